/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Macros and inline functions of the kernel, as functions that Rust can call.
 * Nothing here makes decisions.  The Rust side is rust/shim.rs; keep the two
 * in step.
 */
#ifndef _FERMATA_SHIM_H
#define _FERMATA_SHIM_H

#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/notifier.h>
#include <linux/types.h>
#include <linux/workqueue.h>

struct device;
struct file;
struct file_operations;
struct irq_work;
struct lock_class_key;
struct page;
struct wait_queue_head;

void fermata_raw_spin_lock_init(raw_spinlock_t *lock, const char *name,
				struct lock_class_key *key);
void fermata_raw_spin_assert_held(raw_spinlock_t *lock);

/* Timer of rust/timer.rs begins like this. */
struct fermata_timer {
	struct hrtimer hrtimer;
	void (*fired)(struct hrtimer *hrtimer);
};

void fermata_timer_setup(struct hrtimer *timer, enum hrtimer_mode mode);

/* Vector of rust/vector.rs begins like this. */
struct fermata_vector {
	void (*interrupted)(void *vector);
};

int fermata_request_irq(unsigned int irq, void *vector);

/* BusWatch of rust/bus_watch.rs begins like this. */
struct fermata_bus_watch {
	struct notifier_block block;
	void (*changed)(struct notifier_block *block);
};

void fermata_bus_watch_init(struct notifier_block *block);
int fermata_bus_watch_start(struct notifier_block *block);
void fermata_bus_watch_stop(struct notifier_block *block);

void fermata_wait_queue_init(struct wait_queue_head *queue);
void fermata_irq_work_init(struct irq_work *work,
			   void (*func)(struct irq_work *work));
void fermata_delayed_work_init(struct delayed_work *work, work_func_t func);
void fermata_delayed_work_queue(struct delayed_work *work, unsigned int ms);
struct file *fermata_hold_file(const struct file_operations *operations,
			       void *hold);
u32 fermata_responsible_user(void);
bool fermata_dma_is_translated(struct device *dev);
unsigned int fermata_dma_neighbours(struct device *dev, int *group);
bool fermata_dma_is_coherent(struct device *dev);
bool fermata_link_may_recover(struct device *dev);
void fermata_dma_cross_boundaries(struct device *dev);
void fermata_dma_flush(struct device *dev);
void fermata_dma_rmb(void);
struct page *fermata_pages_alloc(unsigned int order);
struct page *fermata_contig_alloc(unsigned long count);
bool fermata_contig_is_charged(unsigned long count);
u64 fermata_memory_bytes(void);
void fermata_put_pages(struct page **pages, unsigned long count);
struct page *fermata_nth_page(struct page *page, unsigned long n);
ktime_t fermata_monotonic_of_caller(ktime_t time);
bool fermata_locked_down(void);
bool fermata_capable_noaudit(int capability);
unsigned long fermata_memlock_limit(void);
const char *fermata_policy_parameter(void);
bool fermata_fatal_signal_pending(void);
const char *fermata_kernel_release(void);
void fermata_dump(struct device *dev, void *text, size_t length);
void fermata_unplug_teach(void);
void fermata_unplug_acquire(void);
void fermata_unplug_release(void);

#endif /* _FERMATA_SHIM_H */
