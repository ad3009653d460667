/* SPDX-License-Identifier: GPL-2.0 */
/* Cgroups (version 2) of the tests' own. Paths are below the root of the hierarchy. */
#ifndef _FM_CGROUP_H
#define _FM_CGROUP_H

#include "fm.h"

#define FM_GROUPS	4	/* cgroups known by a number */
#define FM_ROOT		(-1)

/* The path of cgroup number n; all cgroups of a test begin so, and go with the test. */
#define FM_CGROUP	"fermata-test-"

/* There is a tree of cgroups version 2. */
bool fm_has_cgroups(void);
/* This process, and contexts that it opens from now on, belong to the cgroup, which is made. */
void fm_enter(int cgroup);
void fm_enter_path(const char *path);
/* Makes it, in one that there is. */
void fm_cgroup_make(const char *path);
/* Gives it to a user, as one delegates a subtree. */
void fm_cgroup_delegate(const char *path, uid_t uid);
/* A descriptor of its directory. */
int fm_cgroup_open(const char *path);
/* The inode of its directory. */
u64 fm_cgroup_number(int cgroup);
u64 fm_cgroup_number_of(const char *path);
/* Writes to a file of it; dies when that fails. */
void fm_cgroup_put(const char *path, const char *file, const char *text);
/* The number in a file of it, behind key; key "": the first. */
u64 fm_cgroup_get(const char *path, const char *file, const char *key);
/* Removes one where nobody is in it, and leaves its registration to the driver. */
void fm_cgroup_remove(const char *path);
/* FERMATA_IOC_GROUP_SET for it, of the first card, as root: 0 or a negative errno. */
int fm_group_set(const char *path, struct fermata_group_set *g);
/* The same, where failing is not what is tested. */
void fm_group(const char *path, struct fermata_group_set *g);
int fm_group_remove(const char *path);
/* Removes all of the tests' and their registrations, and that of the root: where nobody is in them: the next ones of the same name are others. */
void fm_cgroups_remove(void);

#endif /* _FM_CGROUP_H */
