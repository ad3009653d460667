// SPDX-License-Identifier: GPL-2.0

#include <linux/cgroup.h>
#include <linux/cred.h>
#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/iommu.h>
#include <linux/irq_work.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/security.h>
#include <linux/spinlock.h>
#include <linux/time_namespace.h>
#include <linux/uidgid.h>

#include "fermata.h"
#include "fermata_shim.h"

/* The sizes that rust/uapi.rs has. */
static_assert(sizeof(struct fermata_card_info) == 40);
static_assert(sizeof(struct fermata_slot_info) == 136);
static_assert(sizeof(struct fermata_setup) == 32);
static_assert(sizeof(struct fermata_arena_create) == 40);
static_assert(sizeof(struct fermata_snapshot_create) == 24);
static_assert(sizeof(struct fermata_snapshot_read) == 32);
static_assert(sizeof(struct fermata_snapshot_write) == 32);
static_assert(sizeof(struct fermata_reg) == 16);
static_assert(sizeof(struct fermata_regs) == 24);
static_assert(sizeof(struct fermata_start) == 16);
static_assert(sizeof(struct fermata_preempt) == 8);
static_assert(sizeof(struct fermata_resume) == 8);
static_assert(sizeof(struct fermata_status) == 176);
static_assert(sizeof(struct fermata_hint) == 16);
static_assert(sizeof(struct fermata_wait) == 24);
static_assert(sizeof(struct fermata_eventfd) == 16);
static_assert(sizeof(struct fermata_param) == 32);
static_assert(sizeof(struct fermata_context_info) == 120);
static_assert(sizeof(struct fermata_histogram) == 64);
static_assert(sizeof(struct fermata_control) == 24);
static_assert(sizeof(struct fermata_reserve) == 40);
static_assert(sizeof(struct fermata_policy) == 32);
static_assert(sizeof(struct fermata_group) == 40);
static_assert(sizeof(struct fermata_exclusive) == 16);

/* The kernel crate's module! knows parameters that are numbers only. */
static char *fermata_policy = FERMATA_POLICY_FAIR;
module_param_named(policy, fermata_policy, charp, 0444);
MODULE_PARM_DESC(policy, "Policy of a new card: fair, round-robin, priority, deadline or share");

const char *fermata_policy_parameter(void)
{
	return fermata_policy;
}

void fermata_raw_spin_lock_init(raw_spinlock_t *lock, const char *name,
				struct lock_class_key *key)
{
#ifdef CONFIG_DEBUG_SPINLOCK
	__raw_spin_lock_init(lock, name, key, LD_WAIT_SPIN);
#else
	raw_spin_lock_init(lock);
#endif
}

void fermata_raw_spin_assert_held(raw_spinlock_t *lock)
{
	lockdep_assert_held(lock);
}

/*
 * Not hard: on PREEMPT_RT it runs in a thread, where the wake-ups and eventfd
 * signals that it makes may take sleeping locks.
 */
void fermata_irq_work_init(struct irq_work *work,
			   void (*func)(struct irq_work *work))
{
	*work = IRQ_WORK_INIT(func);
}

void fermata_poll_wait(struct file *file, struct wait_queue_head *queue,
		       struct poll_table_struct *table)
{
	poll_wait(file, queue, table);
}

/* Whether DMA addresses of @dev go through an IOMMU page table. */
bool fermata_dma_is_translated(struct device *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	return domain && (domain->type & __IOMMU_DOMAIN_PAGING);
}

bool fermata_dma_mapping_failed(struct device *dev, dma_addr_t address)
{
	return dma_mapping_error(dev, address);
}

/*
 * Zeroed, physically contiguous pages, each with a reference of its own, so
 * that each can be mapped into a process: what the page allocator gives where
 * that is large enough, else what page migration can make free, which knows
 * nothing of memory cgroups.
 */
struct page *fermata_contig_alloc(unsigned long count)
{
	struct page *page;
	unsigned long i;
	void *cpu;

	if (get_order(count * PAGE_SIZE) <= MAX_PAGE_ORDER) {
		cpu = alloc_pages_exact(count * PAGE_SIZE,
					GFP_KERNEL_ACCOUNT | __GFP_ZERO |
					__GFP_NOWARN);
		return cpu ? virt_to_page(cpu) : NULL;
	}

	page = alloc_contig_pages(count, GFP_KERNEL | __GFP_NOWARN,
				  numa_mem_id(), NULL);
	if (!page)
		return NULL;
	for (i = 0; i < count; i++)
		clear_highpage(fermata_nth_page(page, i));
	return page;
}

/* A page that somebody else still refers to is freed when that one lets go. */
void fermata_contig_free(struct page *page, unsigned long count)
{
	unsigned long i;

	for (i = 0; i < count; i++)
		put_page(fermata_nth_page(page, i));
}

void *fermata_page_address(struct page *page)
{
	return page_address(page);
}

struct page *fermata_nth_page(struct page *page, unsigned long n)
{
	return pfn_to_page(page_to_pfn(page) + n);
}

/* CLOCK_MONOTONIC of the caller's time namespace as that of the kernel. */
ktime_t fermata_monotonic_of_caller(ktime_t time)
{
	return timens_ktime_to_host(CLOCK_MONOTONIC, time);
}

bool fermata_locked_down(void)
{
	return security_locked_down(LOCKDOWN_PCI_ACCESS) != 0;
}

/* The caller's real user in the initial user namespace. */
u32 fermata_current_uid(void)
{
	return from_kuid(&init_user_ns, current_uid());
}

/* The caller's user, with a reference for free_uid(). */
struct user_struct *fermata_get_current_user(void)
{
	return get_uid(current_user());
}

/* Another reference for free_uid(). */
void fermata_get_user(struct user_struct *user)
{
	get_uid(user);
}

/* The caller's RLIMIT_MEMLOCK in bytes. */
unsigned long fermata_memlock_limit(void)
{
	return rlimit(RLIMIT_MEMLOCK);
}

/*
 * The number of the caller's cgroup (version 2); 0: it is in the root, or there
 * are none.
 */
u64 fermata_current_cgroup(void)
{
	u64 id = 0;
#ifdef CONFIG_CGROUPS
	struct cgroup *cgroup;

	rcu_read_lock();
	cgroup = task_dfl_cgroup(current);
	if (cgroup_parent(cgroup))
		id = cgroup_id(cgroup);
	rcu_read_unlock();
#endif
	return id;
}

/* The caller's process, with a reference for put_pid(). */
struct pid *fermata_get_current_tgid(void)
{
	return get_pid(task_tgid(current));
}

/* Its number in the initial pid namespace. */
int fermata_pid_nr(struct pid *pid)
{
	return pid_nr(pid);
}

void fermata_vma_forbid_exec(struct vm_area_struct *vma)
{
	vm_flags_clear(vma, VM_MAYEXEC);
}
