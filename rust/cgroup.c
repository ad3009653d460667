// SPDX-License-Identifier: GPL-2.0
/*
 * The tree of cgroups (version 2): the cgroup of a task or of a descriptor,
 * its ancestors, and which cgroups are alive.
 */
#include <linux/cgroup.h>
#include <linux/err.h>

#include "fermata_cgroup.h"

/* The number of the root, the only cgroup on a kernel without cgroups. */
#define FERMATA_CGROUP_ROOT	1

#ifdef CONFIG_CGROUPS

/* Returns the caller's cgroup, with a reference for fermata_cgroup_put(). */
struct cgroup *fermata_cgroup_current(void)
{
	struct cgroup *cgroup;

	rcu_read_lock();
	do {
		cgroup = task_dfl_cgroup(current);
	} while (!cgroup_tryget(cgroup));
	rcu_read_unlock();
	return cgroup;
}

/* Returns the cgroup of a descriptor, with a reference, or an error. */
struct cgroup *fermata_cgroup_of_fd(int fd)
{
	return cgroup_get_from_fd(fd);
}

void fermata_cgroup_put(struct cgroup *cgroup)
{
	cgroup_put(cgroup);
}

/* Returns the number of cgroups above @cgroup. */
int fermata_cgroup_level(struct cgroup *cgroup)
{
	return cgroup->level;
}

/* Returns the number of the ancestor at @level; at its own level, of @cgroup. */
u64 fermata_cgroup_at(struct cgroup *cgroup, int level)
{
	return cgroup_id(cgroup_ancestor(cgroup, level));
}

/* Returns whether there is a cgroup @number.  A kworker sees the whole tree. */
bool fermata_cgroup_lives(u64 number)
{
	struct cgroup *cgroup = cgroup_get_from_id(number);
	bool online;

	if (IS_ERR(cgroup))
		return false;
	online = cgroup->self.flags & CSS_ONLINE;
	cgroup_put(cgroup);
	return online;
}

#else

struct cgroup *fermata_cgroup_current(void)
{
	return NULL;
}

struct cgroup *fermata_cgroup_of_fd(int fd)
{
	return ERR_PTR(-EBADF);
}

void fermata_cgroup_put(struct cgroup *cgroup)
{
}

int fermata_cgroup_level(struct cgroup *cgroup)
{
	return 0;
}

u64 fermata_cgroup_at(struct cgroup *cgroup, int level)
{
	return FERMATA_CGROUP_ROOT;
}

bool fermata_cgroup_lives(u64 number)
{
	return false;
}

#endif
