/* SPDX-License-Identifier: GPL-2.0 */
/* The tree of cgroups, for Rust (rust/cgroup.rs); keep the two in step. */
#ifndef _FERMATA_CGROUP_H
#define _FERMATA_CGROUP_H

#include <linux/types.h>

struct cgroup;

struct cgroup *fermata_cgroup_current(void);
struct cgroup *fermata_cgroup_of_fd(int fd);
void fermata_cgroup_put(struct cgroup *cgroup);
int fermata_cgroup_level(struct cgroup *cgroup);
u64 fermata_cgroup_at(struct cgroup *cgroup, int level);
bool fermata_cgroup_lives(u64 number);

#endif /* _FERMATA_CGROUP_H */
