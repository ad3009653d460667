// SPDX-License-Identifier: GPL-2.0
/*
 * Jobs run on every slot when another kernel takes over the machine: the card is at rest by then,
 * and the driver of the other kernel finds it usable. The test is `kexec begin KERNEL INITRD` in
 * the first kernel and `kexec end` in the second, which together print three TAP points.
 * `kexec run` only starts the jobs, for a machine that is switched off while they run.
 */
#include <sys/mman.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include "lib/fm.h"

#define MAX	FM_ENGINES

static struct fm_shared *sh;
static int failed;

static void point(int n, const char *what, const char *wrong)
{
	if (wrong)
		printf("# %s\n", wrong);
	printf("%s %d %s\n", wrong ? "not ok" : "ok", n, what);
	failed |= !!wrong;
	fflush(stdout);
}

/* Starts a job without end on each engine; returns the number of jobs. */
static int begin_jobs(struct fm_ctx *c)
{
	int engine, n = 0;

	for (engine = 0; engine < FM_ENGINES; engine++) {
		if (fm_slot_of(engine) < 0)
			continue;
		fm_ctx_new(&c[n], engine, 1 << 20);
		card_speed(c[n].slot, 1);
		fm_job_endless(&c[n]);
		if (fm_start(c[n].fd))
			fm_die("START");
		card_until_runs(c[n].slot, c[n].token);
		n++;
	}
	return n;
}

/* Loads the second kernel, and passes the tokens of the tenants on its command line. */
static void load(const char *kernel, const char *initrd, const struct fm_ctx *c, int n)
{
	int image = open(kernel, O_RDONLY | O_CLOEXEC), root = open(initrd, O_RDONLY | O_CLOEXEC);
	FILE *file = fopen("/proc/cmdline", "r");
	char line[2048] = "";
	size_t len;
	int i;

	if (image < 0 || root < 0 || !file || !fgets(line, sizeof(line) - 512, file))
		fm_die("kernel, initrd or command line: %s", strerror(errno));
	fclose(file);
	len = strcspn(line, "\n");
	for (i = 0; i < n; i++)
		len += snprintf(line + len, sizeof(line) - len, " fermata_token=0x%llx",
				(unsigned long long)c[i].token);
	if (syscall(SYS_kexec_file_load, image, root, len + 1, line, 0))
		fm_die("kexec_file_load: %s", strerror(errno));
}

static void begin(const char *kernel, const char *initrd)
{
	struct fm_ctx c[MAX];
	int n = begin_jobs(c);

	load(kernel, initrd, c, n);
	printf("TAP version 13\n1..3\n");
	point(1, "jobs run on every slot", NULL);
	sync();
	reboot(RB_KEXEC);
	point(2, "the other kernel takes over", strerror(errno));
}

static void forget_tenants(void)
{
	FILE *file = fopen("/proc/cmdline", "r");
	char word[2048];

	while (file && fscanf(file, "%2047s", word) == 1)
		if (!strncmp(word, "fermata_token=", 14))
			card_cmd("tenant token=%s gone", word + 14);
	if (file)
		fclose(file);
}

static const char *runs_jobs(void)
{
	struct fm_expect e;
	const char *wrong;
	struct fm_ctx c;
	int engine;

	for (engine = 0; engine < FM_ENGINES; engine++) {
		if (fm_slot_of(engine) < 0)
			continue;
		if (card_counter(fm_slot_of(engine), "dma_errors"))
			return "DMA was refused";
		fm_ctx_new(&c, engine, 1 << 20);
		card_speed(c.slot, 0);
		fm_job_any(&c, 1000, 7, &e);
		wrong = fm_job_run(&c, &e);
		if (wrong)
			return wrong;
		fm_ctx_close(&c);
	}
	return fm_teardown(sh);
}

int main(int argc, char **argv)
{
	const char *why;
	struct fm_ctx c[MAX];

	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	why = fm_setup(sh, true);
	if (argc == 2 && !strcmp(argv[1], "run")) {
		if (why)
			fm_die("%s", why);
		begin_jobs(c);
		puts("jobs run on every slot");
		fflush(stdout);
		for (;;)
			pause();
	}
	if (argc == 4 && !strcmp(argv[1], "begin")) {
		if (why)
			fm_die("%s", why);
		begin(argv[2], argv[3]);
	} else if (argc == 2 && !strcmp(argv[1], "end")) {
		point(2, "the card was at rest when the other kernel took over", why);
		forget_tenants();
		point(3, "its driver runs jobs", runs_jobs());
	} else {
		fprintf(stderr, "usage: kexec begin KERNEL INITRD | end | run\n");
		return 2;
	}
	return failed;
}
