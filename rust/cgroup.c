// SPDX-License-Identifier: GPL-2.0
/*
 * The tree of cgroups (version 2): the cgroup of a task or of a descriptor,
 * its ancestors, who owns their directories, and which cgroups are alive.
 *
 * Only the file system knows who owns the directory of a cgroup, and no
 * exported function looks the owner up by the cgroup.  So the module mounts
 * the tree when it needs an owner for the first time.  A kworker makes the
 * mount: a caller in the cgroup namespace of a container would get only the
 * container's part of the tree.
 */
#include <linux/cgroup.h>
#include <linux/cleanup.h>
#include <linux/dcache.h>
#include <linux/err.h>
#include <linux/exportfs.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <linux/mutex.h>
#include <linux/path.h>
#include <linux/uidgid.h>
#include <linux/workqueue.h>

#include "fermata_cgroup.h"

/* The number of the root, the only cgroup on a kernel without cgroups. */
#define FERMATA_CGROUP_ROOT	1

#ifdef CONFIG_CGROUPS

static DEFINE_MUTEX(fermata_mount_lock);
/* NULL: not mounted yet.  Protected by the lock above. */
static struct vfsmount *fermata_mount;

static void fermata_mount_make(struct work_struct *work)
{
	struct file_system_type *type = get_fs_type("cgroup2");
	struct vfsmount *mount;

	if (!type)
		return;
	mount = vfs_kern_mount(type, 0, "fermata", NULL);
	if (!IS_ERR(mount))
		fermata_mount = mount;
}

static DECLARE_WORK(fermata_mount_work, fermata_mount_make);

/* Returns the mount of the tree; NULL: it cannot be mounted.  May sleep. */
static struct vfsmount *fermata_mount_get(void)
{
	guard(mutex)(&fermata_mount_lock);
	if (!fermata_mount) {
		queue_work(system_dfl_wq, &fermata_mount_work);
		flush_work(&fermata_mount_work);
	}
	return fermata_mount;
}

/* Unmounts the tree, when the module exits. */
void fermata_cgroup_exit(void)
{
	if (fermata_mount)
		kern_unmount(fermata_mount);
	fermata_mount = NULL;
}

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

/*
 * Returns 1 if GLOBAL_ROOT_UID owns the directory of the ancestor at @level,
 * and 0 if not or if the directory was removed; or -ENOMEM.  May sleep.
 */
int fermata_cgroup_is_roots(struct cgroup *cgroup, int level)
{
	struct cgroup *ancestor = cgroup_ancestor(cgroup, level);
	struct path path = { .mnt = fermata_mount_get() };
	u64 number = cgroup_id(ancestor);
	struct super_block *sb;
	struct kstat stat;
	int err;

	if (!path.mnt)
		return -ENOMEM;
	sb = path.mnt->mnt_sb;
	path.dentry = sb->s_export_op->fh_to_dentry(sb, (struct fid *)&number, 2,
						    FILEID_KERNFS);
	/* A removed directory and a lack of memory give the same error. */
	if (IS_ERR_OR_NULL(path.dentry))
		return ancestor->self.flags & CSS_ONLINE ? -ENOMEM : 0;
	err = vfs_getattr_nosec(&path, &stat, STATX_UID, AT_STATX_DONT_SYNC);
	dput(path.dentry);
	return err ?: uid_eq(stat.uid, GLOBAL_ROOT_UID);
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

void fermata_cgroup_exit(void)
{
}

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

int fermata_cgroup_is_roots(struct cgroup *cgroup, int level)
{
	return 1;
}

bool fermata_cgroup_lives(u64 number)
{
	return false;
}

#endif
