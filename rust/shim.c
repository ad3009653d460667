// SPDX-License-Identifier: GPL-2.0

#include <linux/anon_inodes.h>
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/devcoredump.h>
#include <linux/device.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/fcntl.h>
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/iommu.h>
#include <linux/irq_work.h>
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/notifier.h>
#include <linux/pci.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/security.h>
#include <linux/spinlock.h>
#include <linux/time_namespace.h>
#include <linux/user_namespace.h>
#include <linux/utsname.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "fermata.h"
#include "fermata_shim.h"

/* The same sizes as in rust/uapi.rs. */
static_assert(sizeof(struct fermata_card_info) == 40);
static_assert(sizeof(struct fermata_slot_info) == 136);
static_assert(sizeof(struct fermata_setup) == 32);
static_assert(sizeof(struct fermata_arena_create) == 56);
static_assert(sizeof(struct fermata_snapshot_create) == 32);
static_assert(sizeof(struct fermata_snapshot_read) == 32);
static_assert(sizeof(struct fermata_snapshot_write) == 32);
static_assert(sizeof(struct fermata_reg) == 16);
static_assert(sizeof(struct fermata_regs) == 24);
static_assert(sizeof(struct fermata_config) == 72);
static_assert(sizeof(struct fermata_outcome) == 56);
static_assert(sizeof(struct fermata_start) == 16);
static_assert(sizeof(struct fermata_preempt) == 16);
static_assert(sizeof(struct fermata_resume) == 16);
static_assert(sizeof(struct fermata_hold) == 16);
static_assert(sizeof(struct fermata_status) == 176);
static_assert(sizeof(struct fermata_hint) == 16);
static_assert(sizeof(struct fermata_wait) == 24);
static_assert(sizeof(struct fermata_eventfd) == 16);
static_assert(sizeof(struct fermata_param) == 40);
static_assert(sizeof(struct fermata_context_info) == 136);
static_assert(sizeof(struct fermata_histogram) == 64);
static_assert(sizeof(struct fermata_reserve) == 40);
static_assert(sizeof(struct fermata_group) == 40);
static_assert(sizeof(struct fermata_group_set) == 80);

/* The kernel crate's module! supports only parameters that are numbers. */
static char *fermata_policy = FERMATA_POLICY_FAIR;
module_param_named(policy, fermata_policy, charp, 0444);
MODULE_PARM_DESC(policy, "Policy of a new card: fair, round-robin, priority or deadline");

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
 * Functions that the kernel calls through a pointer and that return an enum are
 * in C: kCFI tells an enum from the integer that the Rust bindings use for it.
 */
static enum hrtimer_restart timer_fired(struct hrtimer *hrtimer)
{
	container_of(hrtimer, struct fermata_timer, hrtimer)->fired(hrtimer);
	return HRTIMER_NORESTART;
}

/* The timer is the first member of a struct fermata_timer. */
void fermata_timer_setup(struct hrtimer *timer, enum hrtimer_mode mode)
{
	hrtimer_setup(timer, timer_fired, CLOCK_MONOTONIC, mode);
}

static irqreturn_t interrupted(int irq, void *cookie)
{
	struct fermata_vector *vector = cookie;

	vector->interrupted(vector);
	return IRQ_HANDLED;
}

/*
 * The handler is a hard one with forced threading, too: a switch must not wait
 * for a thread.
 */
int fermata_request_irq(unsigned int irq, void *vector)
{
	return request_irq(irq, interrupted, IRQF_NO_THREAD, "fermata", vector);
}

/* The IOMMU layer, which was notified before, has put a new device into its group. */
static int bus_changed(struct notifier_block *block, unsigned long action, void *device)
{
	if (action == BUS_NOTIFY_ADD_DEVICE || action == BUS_NOTIFY_REMOVED_DEVICE)
		container_of(block, struct fermata_bus_watch, block)->changed(block);
	return NOTIFY_DONE;
}

/* The block is the first member of a struct fermata_bus_watch. */
void fermata_bus_watch_init(struct notifier_block *block)
{
	*block = (struct notifier_block) { .notifier_call = bus_changed };
}

int fermata_bus_watch_start(struct notifier_block *block)
{
	return bus_register_notifier(&pci_bus_type, block);
}

/* Waits for a notification that is being handled.  Does nothing if none was started. */
void fermata_bus_watch_stop(struct notifier_block *block)
{
	bus_unregister_notifier(&pci_bus_type, block);
}

void fermata_wait_queue_init(struct wait_queue_head *queue)
{
	init_waitqueue_head(queue);
}

/*
 * The work is not hard: on PREEMPT_RT it runs in a thread, where its wake-ups and
 * eventfd signals may take sleeping locks.
 */
void fermata_irq_work_init(struct irq_work *work,
			   void (*func)(struct irq_work *work))
{
	*work = IRQ_WORK_INIT(func);
}

void fermata_delayed_work_init(struct delayed_work *work, work_func_t func)
{
	INIT_DELAYED_WORK(work, func);
}

/*
 * The work does not run while the machine is asleep.  Work that is queued already
 * runs at its time, or at once if @ms is 0.
 */
void fermata_delayed_work_queue(struct delayed_work *work, unsigned int ms)
{
	if (ms)
		queue_delayed_work(system_freezable_wq, work, msecs_to_jiffies(ms));
	else
		mod_delayed_work(system_freezable_wq, work, 0);
}

/* Returns a new file with @operations that has @hold as its private data. */
struct file *fermata_hold_file(const struct file_operations *operations,
			       void *hold)
{
	return anon_inode_getfile("[fermata-hold]", operations, hold,
				  O_RDWR | O_CLOEXEC);
}

/*
 * Returns the user of the initial user namespace who answers for the caller:
 * its real user, or in another namespace the owner of that namespace's ancestor
 * whose parent is the initial one.
 */
u32 fermata_responsible_user(void)
{
	struct user_namespace *ns;
	kuid_t uid = current_uid();

	for (ns = current_user_ns(); ns != &init_user_ns; ns = ns->parent)
		uid = ns->owner;
	return from_kuid(&init_user_ns, uid);
}

/* Returns whether DMA addresses of @dev go through an IOMMU page table. */
bool fermata_dma_is_translated(struct device *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	return domain && (domain->type & __IOMMU_DOMAIN_PAGING);
}

static int count_endpoint(struct device *dev, void *count)
{
	/* A bridge maps no memory, as in VFIO. */
	if (!dev_is_pci(dev) || !pci_is_bridge(to_pci_dev(dev)))
		++*(unsigned int *)count;
	return 0;
}

/*
 * Returns how many other devices share the IOMMU address space of @dev, and sets
 * @group to the number of their group.  May sleep.
 */
unsigned int fermata_dma_neighbours(struct device *dev, int *group)
{
	struct iommu_group *shared = iommu_group_get(dev);
	unsigned int count = 0;

	if (!shared)
		return 0;
	iommu_group_for_each_dev(shared, &count, count_endpoint);
	*group = iommu_group_id(shared);
	iommu_group_put(shared);
	/* A device that is being removed has left its group. */
	return count ? count - 1 : 0;
}

bool fermata_dma_is_coherent(struct device *dev)
{
	return dev_is_dma_coherent(dev);
}

/*
 * Returns whether the kernel may yet reset the link of a device that does not
 * answer, because the port above it reports errors (AER).  Any context, while
 * the device is bound.
 */
bool fermata_link_may_recover(struct device *dev)
{
#ifdef CONFIG_PCIEAER
	struct pci_dev *pdev = to_pci_dev(dev);
	struct pci_dev *port = pcie_find_root_port(pdev);

	return port && port->aer_cap && !pci_dev_is_disconnected(pdev);
#else
	return false;
#endif
}

/*
 * Lets one mapping of a scatter list cross every boundary.  The PCI default, 4 GiB,
 * makes the IOMMU layer leave gaps between the segments of a larger mapping.
 */
void fermata_dma_cross_boundaries(struct device *dev)
{
	dma_set_seg_boundary(dev, ULONG_MAX);
}

/*
 * A domain with a flush queue (the default of most distributions) leaves
 * unmapped pages in the IOTLB for some milliseconds.  After this call the
 * device cannot reach them any more, and they may be freed.
 */
void fermata_dma_flush(struct device *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	if (domain && domain->type == IOMMU_DOMAIN_DMA_FQ)
		iommu_flush_iotlb_all(domain);
}

/* Orders reads of coherent memory that a device writes. */
void fermata_dma_rmb(void)
{
	dma_rmb();
}

/*
 * Flags for memory of a tenant: zeroed and charged to the memory cgroup.  A
 * failure is reported instead of invoking the OOM killer, which would kill
 * bystanders, because no process has these pages in its resident set.
 */
#define FERMATA_GFP_TENANT	(GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN)

/*
 * Returns 2^order contiguous pages, each with a reference of its own.  Orders
 * above 0 are an optimisation, for which the allocator makes no effort.
 */
struct page *fermata_pages_alloc(unsigned int order)
{
	gfp_t effort = order ? __GFP_NORETRY : __GFP_RETRY_MAYFAIL;
	struct page *page = alloc_pages(FERMATA_GFP_TENANT | effort, order);

	if (page && order)
		split_page(page, order);
	return page;
}

/* Returns how much memory the machine has. */
u64 fermata_memory_bytes(void)
{
	return (u64)totalram_pages() << PAGE_SHIFT;
}

/*
 * Returns whether @count contiguous pages come from the page allocator, which
 * charges them.
 */
bool fermata_contig_is_charged(unsigned long count)
{
	return get_order(count * PAGE_SIZE) <= MAX_PAGE_ORDER;
}

/*
 * Returns physically contiguous pages, each with a reference of its own, so that
 * each can be mapped into a process.  More pages than the page allocator can
 * provide come from page migration, which neither zeroes nor charges them.
 */
struct page *fermata_contig_alloc(unsigned long count)
{
	struct page *page;
	unsigned long i;
	void *cpu;

	if (fermata_contig_is_charged(count)) {
		cpu = alloc_pages_exact(count * PAGE_SIZE, FERMATA_GFP_TENANT |
					__GFP_RETRY_MAYFAIL);
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

void fermata_put_pages(struct page **pages, unsigned long count)
{
	unsigned long i;

	for (i = 0; i < count; i++) {
		put_page(pages[i]);
		if (!((i + 1) % 4096))
			cond_resched();
	}
}

struct page *fermata_nth_page(struct page *page, unsigned long n)
{
	return pfn_to_page(page_to_pfn(page) + n);
}

/* Converts CLOCK_MONOTONIC of the caller's time namespace to the kernel's. */
ktime_t fermata_monotonic_of_caller(ktime_t time)
{
	return timens_ktime_to_host(CLOCK_MONOTONIC, time);
}

/* security_locked_down() is an inline function without CONFIG_SECURITY. */
bool fermata_locked_down(void)
{
	return security_locked_down(LOCKDOWN_PCI_ACCESS) != 0;
}

/* Does what capable() does, but a security module logs no denial. */
bool fermata_capable_noaudit(int capability)
{
	return ns_capable_noaudit(&init_user_ns, capability);
}

/* Returns the caller's RLIMIT_MEMLOCK in bytes. */
unsigned long fermata_memlock_limit(void)
{
	return rlimit(RLIMIT_MEMLOCK);
}

bool fermata_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

const char *fermata_kernel_release(void)
{
	return init_utsname()->release;
}

/*
 * Gives @text, which is from vmalloc(), to the kernel: root can read it for some
 * minutes.  Without CONFIG_DEV_COREDUMP, or if @dev has a dump, it is freed.
 */
void fermata_dump(struct device *dev, void *text, size_t length)
{
	dev_coredumpv(dev, text, length, GFP_KERNEL);
}

#ifdef CONFIG_LOCKDEP
static struct lock_class_key fermata_unplug_key;
static struct lockdep_map fermata_unplug_map =
	STATIC_LOCKDEP_MAP_INIT("fermata_unplug", &fermata_unplug_key);

/*
 * Tells lockdep that neither memory reclaim nor mmap_lock may be entered inside
 * the gate, by nesting them the other way round once.
 */
void fermata_unplug_teach(void)
{
	fs_reclaim_acquire(GFP_KERNEL);
	fermata_unplug_acquire();
	fermata_unplug_release();
	fs_reclaim_release(GFP_KERNEL);

	if (!current->mm)
		return;
	mmap_read_lock(current->mm);
	fermata_unplug_acquire();
	fermata_unplug_release();
	mmap_read_unlock(current->mm);
}

void fermata_unplug_acquire(void)
{
	lock_map_acquire(&fermata_unplug_map);
}

void fermata_unplug_release(void)
{
	lock_map_release(&fermata_unplug_map);
}
#endif
