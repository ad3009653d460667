// SPDX-License-Identifier: GPL-2.0
#include <ftw.h>
#include <glob.h>
#include <sys/stat.h>

#include "cgroup.h"
#include "mem.h"

#define TREE	"/sys/fs/cgroup"

static const char *path_of(const char *path, const char *file)
{
	static char full[4096];

	snprintf(full, sizeof(full), TREE "%s%s%s%s", *path ? "/" : "", path, *file ? "/" : "",
		 file);
	return full;
}

static const char *name_of(int cgroup)
{
	static char name[32];

	if (cgroup == FM_ROOT)
		return "";
	snprintf(name, sizeof(name), FM_CGROUP "%d", cgroup);
	return name;
}

bool fm_has_cgroups(void)
{
	return !access(TREE "/cgroup.procs", W_OK);
}

void fm_cgroup_make(const char *path)
{
	if (mkdir(path_of(path, ""), 0755) && errno != EEXIST)
		fm_die("%s: %s", path_of(path, ""), strerror(errno));
}

void fm_enter_path(const char *path)
{
	fm_cgroup_put(path, "cgroup.procs", "0");
}

void fm_enter(int cgroup)
{
	fm_cgroup_make(name_of(cgroup));
	fm_enter_path(name_of(cgroup));
}

void fm_cgroup_delegate(const char *path, uid_t uid)
{
	static const char * const files[] = {
		"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"
	};
	size_t i;

	for (i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		if (chown(path_of(path, files[i]), uid, uid))
			fm_die("%s: %s", path_of(path, files[i]), strerror(errno));
}

int fm_cgroup_open(const char *path)
{
	int fd = open(path_of(path, ""), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		fm_die("%s: %s", path_of(path, ""), strerror(errno));
	return fd;
}

u64 fm_cgroup_number_of(const char *path)
{
	struct stat dir;

	if (stat(path_of(path, ""), &dir))
		fm_die("%s: %s", path_of(path, ""), strerror(errno));
	return dir.st_ino;
}

u64 fm_cgroup_number(int cgroup)
{
	return fm_cgroup_number_of(name_of(cgroup));
}

void fm_cgroup_put(const char *path, const char *file, const char *text)
{
	int rc = fm_put(path_of(path, file), text);

	if (rc)
		fm_die("%s > %s: %s", text, path_of(path, file), strerror(-rc));
}

u64 fm_cgroup_get(const char *path, const char *file, const char *key)
{
	return fm_number_in(path_of(path, file), key);
}

int fm_group_set(const char *path, struct fermata_group_set *g)
{
	int fd = fm_open_dev(0), rc;

	g->size = sizeof(*g);
	g->cgroup = fm_cgroup_open(path);
	rc = fd < 0 ? fd : fm_ioctl(fd, FERMATA_IOC_GROUP_SET, g);
	close(g->cgroup);
	close(fd);
	return rc;
}

void fm_group(const char *path, struct fermata_group_set *g)
{
	int rc = fm_group_set(path, g);

	if (rc)
		fm_die("GROUP_SET of %s: %s", path, strerror(-rc));
}

int fm_group_remove(const char *path)
{
	struct fermata_group_set g = { .flags = FERMATA_GROUP_REMOVE };

	return fm_group_set(path, &g);
}

/* Its registration goes first: else it would be there for a moment longer than the cgroup. */
static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	if (kind != FTW_DP)
		return 0;
	fm_group_remove(path + strlen(TREE "/"));
	rmdir(path);
	return 0;
}

void fm_cgroup_remove(const char *path)
{
	if (rmdir(path_of(path, "")))
		fm_die("%s: %s", path_of(path, ""), strerror(errno));
}

void fm_cgroups_remove(void)
{
	glob_t found;
	size_t i;

	if (fm_has_cgroups())
		fm_group_remove("");
	if (glob(TREE "/" FM_CGROUP "*", 0, NULL, &found))
		return;
	for (i = 0; i < found.gl_pathc; i++)
		nftw(found.gl_pathv[i], remove_one, 16, FTW_DEPTH | FTW_PHYS);
	globfree(&found);
}
