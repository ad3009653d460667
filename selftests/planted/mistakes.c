// SPDX-License-Identifier: GPL-2.0
/*
 * A module of mistakes: "insmod planted.ko bug=NAME" makes the mistake of that name.
 * The debug kernel must report each, or the check for this kind of mistake does not
 * work.  Never load it into any other kernel.
 */

#include <linux/debug_locks.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/irq_work.h>
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

#include "mistakes.h"

static char *bug = "";
module_param(bug, charp, 0444);
MODULE_PARM_DESC(bug, "The mistake to make");

/* Returns a value that is unknown to the compiler. */
static int opaque(int value)
{
	OPTIMIZER_HIDE_VAR(value);
	return value;
}

static void use_after_free(void)
{
	char *mem = kmalloc(64, GFP_KERNEL);

	kfree(mem);
	WRITE_ONCE(mem[3], 1);
}

static void double_free(void)
{
	char *mem = kmalloc(64, GFP_KERNEL);

	kfree(mem);
	OPTIMIZER_HIDE_VAR(mem);
	kfree(mem);
}

static void slab_out_of_bounds(void)
{
	char *mem = kmalloc(64, GFP_KERNEL);

	WRITE_ONCE(mem[opaque(64)], 1);
	kfree(mem);
}

static void vmalloc_out_of_bounds(void)
{
	char *mem = vmalloc(PAGE_SIZE - 8);

	WRITE_ONCE(mem[opaque(PAGE_SIZE - 8)], 1);
	vfree(mem);
}

static void leak(void)
{
	int n;

	/* Several, because a stale pointer on a stack may hide one. */
	for (n = 0; n < 8; n++) {
		void *volatile mem = kmalloc(480, GFP_KERNEL);

		mem = NULL;
	}
}

/*
 * Lockdep goes off after its first report, and misses locks that are released then.
 * This switches it on again, while this task holds no locks; several times, because
 * it may first report a lock that it missed in another task.
 */
static void with_lockdep(void (*make)(void))
{
	int n;

	for (n = 0; n < 8; n++) {
		current->lockdep_depth = 0;
		current->curr_chain_key = INITIAL_CHAIN_KEY;
		debug_locks = 1;
		make();
	}
}

static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);

static void lock_inversion(void)
{
	mutex_lock(&first);
	mutex_lock(&second);
	mutex_unlock(&second);
	mutex_unlock(&first);
	mutex_lock(&second);
	mutex_lock(&first);
	mutex_unlock(&first);
	mutex_unlock(&second);
}

static void lock_recursion(void)
{
	struct mutex pair[2];
	int n;

	/* Two locks of one class, without an order. */
	for (n = 0; n < 2; n++)
		mutex_init(&pair[n]);
	mutex_lock(&pair[0]);
	mutex_lock(&pair[1]);
	mutex_unlock(&pair[1]);
	mutex_unlock(&pair[0]);
}

static DEFINE_SPINLOCK(spin);
static DEFINE_RAW_SPINLOCK(raw);

static void take_raw(struct irq_work *work)
{
	raw_spin_lock(&raw);
	raw_spin_unlock(&raw);
}

static void lock_of_interrupts(void)
{
	struct irq_work work = IRQ_WORK_INIT_HARD(take_raw);

	irq_work_queue(&work);
	irq_work_sync(&work);
	/* With interrupts on. */
	raw_spin_lock(&raw);
	raw_spin_unlock(&raw);
}

static void wait_context(void)
{
	raw_spin_lock(&raw);
	spin_lock(&spin);
	spin_unlock(&spin);
	raw_spin_unlock(&raw);
}

static void lock_freed(void)
{
	spinlock_t *lock = kmalloc_obj(*lock);

	spin_lock_init(lock);
	spin_lock(lock);
	kfree(lock);
	preempt_enable();
}

static void sleep_in_atomic(void)
{
	spin_lock(&spin);
	might_sleep();
	spin_unlock(&spin);
}

static void schedule_in_atomic(void)
{
	preempt_disable();
	schedule();
	preempt_enable();
}

static void __rcu *shared;

static void rcu_without_lock(void)
{
	if (rcu_dereference(shared))
		pr_info("planted: there is something\n");
}

static void nothing(struct timer_list *timer)
{
}

static void no_work(struct work_struct *work)
{
}

static void free_active_timer(void)
{
	struct timer_list *timer = kmalloc_obj(*timer);

	timer_setup(timer, nothing, 0);
	mod_timer(timer, jiffies + 600 * HZ);
	kfree(timer);
}

static void free_active_work(void)
{
	struct delayed_work *work = kmalloc_obj(*work);

	INIT_DELAYED_WORK(work, no_work);
	schedule_delayed_work(work, 600 * HZ);
	kfree(work);
}

static void shift_out_of_bounds(void)
{
	pr_info("planted: %d\n", 1 << opaque(40));
}

static void index_out_of_bounds(void)
{
	static int values[4];

	values[opaque(4)] = 1;
	pr_info("planted: %d\n", values[opaque(0)]);
}

static void list_corruption(void)
{
	LIST_HEAD(head);
	struct list_head entry;

	list_add(&entry, &head);
	head.next = &head;
	list_del(&entry);
}

static void reference_of_free_page(void)
{
	struct page *page = alloc_page(GFP_KERNEL);

	__free_page(page);
	get_page(page);
}

/* As the card's DMA does: past KASAN. */
static void __no_sanitize_address write_to_freed_page(void)
{
	struct page *page = alloc_page(GFP_KERNEL);
	volatile u8 *mem = page_address(page);
	struct page *again[64];
	int n;

	__free_page(page);
	mem[100] ^= 0xff;
	for (n = 0; n < ARRAY_SIZE(again); n++)
		again[n] = alloc_page(GFP_KERNEL);
	for (n = 0; n < ARRAY_SIZE(again); n++)
		__free_page(again[n]);
}

static int blocked(void *arg)
{
	schedule_timeout_uninterruptible(10 * HZ);
	return 0;
}

/* With kernel.hung_task_timeout_secs at 2. */
static void hung_task(void)
{
	kthread_run(blocked, NULL, "planted");
	ssleep(9);
}

/* With kernel.watchdog_thresh at 1. */
static void soft_lockup(void)
{
	unsigned long end = jiffies + 8 * HZ;

	preempt_disable();
	while (time_before(jiffies, end))
		cpu_relax();
	preempt_enable();
}

static int map_only(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct page *page = alloc_page(GFP_KERNEL);

	if (!page)
		return -ENOMEM;
	dma_map_page(&pdev->dev, page, 0, PAGE_SIZE, DMA_BIDIRECTIONAL);
	return 0;
}

/* The emulated card. */
static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_REDHAT_QUMRANET, 0x10f1) },
	{}
};

static struct pci_driver forgetful = {
	.name = "planted",
	.id_table = ids,
	.probe = map_only,
};

/* With no driver bound to the card. */
static void leftover_mapping(void)
{
	if (!pci_register_driver(&forgetful))
		pci_unregister_driver(&forgetful);
}

static void unmap_twice(void)
{
	struct pci_dev *pdev = pci_get_device(ids[0].vendor, ids[0].device, NULL);

	if (!pdev)
		return;
	dma_unmap_page(&pdev->dev, 0x1000, PAGE_SIZE, DMA_BIDIRECTIONAL);
	pci_dev_put(pdev);
}

struct mistake {
	const char *name;
	void (*make)(void);
	int flags;
};

#define ENDS_THREAD	BIT(0)	/* the report kills the thread that made the mistake */
#define OF_LOCKS	BIT(1)	/* lockdep must be on */

#define MISTAKE(function, ...) { #function, function, __VA_ARGS__ }

static const struct mistake mistakes[] = {
	MISTAKE(use_after_free),
	MISTAKE(double_free),
	MISTAKE(slab_out_of_bounds),
	MISTAKE(vmalloc_out_of_bounds),
	MISTAKE(leak),
	MISTAKE(lock_inversion, OF_LOCKS),
	MISTAKE(lock_recursion, OF_LOCKS),
	MISTAKE(lock_of_interrupts, OF_LOCKS),
	MISTAKE(wait_context, OF_LOCKS),
	MISTAKE(lock_freed, OF_LOCKS),
	MISTAKE(sleep_in_atomic),
	MISTAKE(schedule_in_atomic),
	MISTAKE(rcu_without_lock, OF_LOCKS),
	MISTAKE(free_active_timer),
	MISTAKE(free_active_work),
	MISTAKE(shift_out_of_bounds),
	MISTAKE(index_out_of_bounds),
	MISTAKE(list_corruption),
	MISTAKE(reference_of_free_page, ENDS_THREAD),
	MISTAKE(write_to_freed_page),
	MISTAKE(hung_task),
	MISTAKE(soft_lockup),
	MISTAKE(leftover_mapping),
	MISTAKE(unmap_twice),
	MISTAKE(planted_rust_use_after_free),
	MISTAKE(planted_rust_out_of_bounds),
	MISTAKE(planted_rust_overflow, ENDS_THREAD),
	MISTAKE(planted_rust_assertion, ENDS_THREAD),
};

static int thread(void *arg)
{
	const struct mistake *mistake = arg;

	mistake->make();
	return 0;
}

static int __init planted_init(void)
{
	int n;

	for (n = 0; n < ARRAY_SIZE(mistakes); n++) {
		if (strcmp(mistakes[n].name, bug))
			continue;
		if (mistakes[n].flags & OF_LOCKS) {
			with_lockdep(mistakes[n].make);
		} else if (mistakes[n].flags & ENDS_THREAD) {
			kthread_run(thread, (void *)&mistakes[n], "planted");
			ssleep(1);
		} else {
			mistakes[n].make();
		}
		return 0;
	}
	return -EINVAL;
}

static void __exit planted_exit(void)
{
}

module_init(planted_init);
module_exit(planted_exit);
MODULE_DESCRIPTION("Planted mistakes for the debug kernel");
MODULE_LICENSE("GPL");
