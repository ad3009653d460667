// SPDX-License-Identifier: GPL-2.0
/* The card as a PCI function: unbinding and binding its driver; the driver's module. */
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "fm.h"

#define DRIVER	"/sys/bus/pci/drivers/fermata"

static char function[64];

const char *fm_pci(void)
{
	char path[64], real[4096], *base;
	struct stat st;

	if (*function)
		return function;
	if (stat(fm_dev(), &st))
		return NULL;
	snprintf(path, sizeof(path), "/sys/dev/char/%u:%u/device", major(st.st_rdev),
		 minor(st.st_rdev));
	if (!realpath(path, real))
		return NULL;
	base = strrchr(real, '/') + 1;
	snprintf(function, sizeof(function), "%s", base);
	return function;
}

static int put_to_function(const char *file, const char *text)
{
	char path[128];

	if (!fm_pci())
		return -ENOENT;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", fm_pci(), file);
	return fm_put(path, text);
}

bool fm_reset_by(const char *method)
{
	return !put_to_function("reset_method", method);
}

int fm_reset(void)
{
	fm_tally("resets", 1);
	return put_to_function("reset", "1");
}

int fm_unbind(void)
{
	fm_tally("unbinds", 1);
	return fm_pci() ? fm_put(DRIVER "/unbind", fm_pci()) : -ENOENT;
}

/* Returns when the device is there. */
int fm_bind(void)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	int fd, rc = fm_put(DRIVER "/bind", fm_pci());

	if (rc)
		return rc;
	while ((fd = fm_open_dev(0)) < 0) {
		if (fm_now() > end)
			return fd;
		fm_sleep_us(1000);
	}
	close(fd);
	return 0;
}

int fm_pci_enabled(void)
{
	char path[128];
	int n = -EIO;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/enable", fm_pci());
	file = fopen(path, "r");
	if (!file)
		return -errno;
	if (fscanf(file, "%d", &n) != 1)
		n = -EIO;
	fclose(file);
	return n;
}

bool fm_delay(const char *function, const char *comm, unsigned int ms)
{
	const char *file = getenv("FERMATA_DELAY");
	char args[160];
	int fd;

	if (!file || !*file)
		return false;
	snprintf(args, sizeof(args), "symbol=%s comm=%s ms=%u", function, comm, ms);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || syscall(SYS_finit_module, fd, args, 0))
		fm_die("%s %s: %s", file, args, strerror(errno));
	close(fd);
	return true;
}

void fm_delay_no_more(void)
{
	if (syscall(SYS_delete_module, "delay", O_NONBLOCK))
		fm_die("removing the module that delays: %s", strerror(errno));
}

bool fm_module_known(void)
{
	const char *file = getenv("FERMATA_MODULE");

	return file && *file;
}

int fm_module_remove(void)
{
	return syscall(SYS_delete_module, "fermata", O_NONBLOCK) ? -errno : 0;
}

void fm_module_load(const char *args)
{
	int fd = open(getenv("FERMATA_MODULE"), O_RDONLY | O_CLOEXEC);

	if (fd < 0 || syscall(SYS_finit_module, fd, args ? args : "", 0))
		fm_die("loading with '%s': %s", args ? args : "", strerror(errno));
	close(fd);
	fm_tally("loads of the module", 1);
}

void fm_until_node(void)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (access(fm_dev(), R_OK | W_OK)) {
		if (fm_now() >= end)
			fm_die("no %s", fm_dev());
		fm_sleep_us(1000);
	}
}
