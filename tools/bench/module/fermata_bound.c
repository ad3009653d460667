// SPDX-License-Identifier: GPL-2.0
/*
 * The lower bound of a switch, for "make bench": one job on slot 0 that takes
 * turns with itself.  A timer writes PAUSE; the interrupt's handler reads the
 * status and writes the next START, and does nothing else.  What a slot stands
 * idle here, no driver of such a card can save: one interrupt, one trapped
 * read, one write.
 *
 * Bound by driver_override only, to the emulated card (docs/card.md) with a
 * membench in slot 0.  Never of use for anything else.
 */

#include <linux/dma-mapping.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/module.h>
#include <linux/pci.h>

/* docs/card.md */
#define RESET		0x18
#define DMA_OFFSET	0x30
#define WINDOW_BASE	0x180
#define WINDOW_SIZE	0x1c0
#define CONTROL		0x1018
#define SNAPSHOT_ADDR	0x1028
#define BUF		0x1030
#define LEN		0x1038
#define COUNT		0x1040
#define SEED		0x1048
#define TAG		0x1050
#define MODE		0x1058
#define RESULT		0x1060

#define START_NEW	1
#define START_RESUME	5
#define PAUSE		6
#define PAUSED		4
#define PHASE		0xff
#define RESTORE_US(s)	(((s) >> 12) & 0xfffff)

/* A PAUSE that meets a restore is dropped: written again until it is answered. */
#define SLICE		(1 * NSEC_PER_MSEC)

struct bound {
	void __iomem *bar;
	struct hrtimer timer;
	void *memory, *snapshot;
	dma_addr_t memory_at, snapshot_at;
	/* What a restore took last; the slice comes after it. */
	u64 restore_ns;
};

static irqreturn_t bound_interrupt(int irq, void *data)
{
	struct bound *bound = data;
	u64 status = readq(bound->bar + CONTROL);

	if ((status & PHASE) != PAUSED)
		return IRQ_HANDLED;
	writeq(START_RESUME, bound->bar + CONTROL);
	bound->restore_ns = RESTORE_US(status) * NSEC_PER_USEC;
	hrtimer_start(&bound->timer, ns_to_ktime(SLICE + bound->restore_ns),
		      HRTIMER_MODE_REL_PINNED_HARD);
	return IRQ_HANDLED;
}

static enum hrtimer_restart bound_timer(struct hrtimer *timer)
{
	struct bound *bound = container_of(timer, struct bound, timer);

	writeq(PAUSE, bound->bar + CONTROL);
	hrtimer_forward_now(timer, ns_to_ktime(SLICE));
	return HRTIMER_RESTART;
}

static int bound_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct device *dev = &pdev->dev;
	struct bound *bound;
	int ret;

	bound = devm_kzalloc(dev, sizeof(*bound), GFP_KERNEL);
	if (!bound)
		return -ENOMEM;
	ret = pcim_enable_device(pdev);
	if (ret)
		return ret;
	bound->bar = pcim_iomap_region(pdev, 0, "fermata_bound");
	if (IS_ERR(bound->bar))
		return PTR_ERR(bound->bar);
	ret = dma_set_mask_and_coherent(dev, DMA_BIT_MASK(48));
	if (ret)
		return ret;
	bound->memory = dmam_alloc_coherent(dev, PAGE_SIZE, &bound->memory_at, GFP_KERNEL);
	bound->snapshot = dmam_alloc_coherent(dev, PAGE_SIZE, &bound->snapshot_at, GFP_KERNEL);
	if (!bound->memory || !bound->snapshot)
		return -ENOMEM;
	pci_set_master(pdev);
	ret = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSIX);
	if (ret < 0)
		return ret;
	hrtimer_setup(&bound->timer, bound_timer, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_HARD);
	pci_set_drvdata(pdev, bound);
	ret = request_irq(pci_irq_vector(pdev, 0), bound_interrupt, 0, "fermata_bound", bound);
	if (ret) {
		pci_free_irq_vectors(pdev);
		return ret;
	}
	writeq(1, bound->bar + RESET);
	/* Returns when the slot's last DMA is complete. */
	readq(bound->bar + CONTROL);
	writeq(0, bound->bar + RESET);
	writeq(0, bound->bar + DMA_OFFSET);
	writeq(bound->memory_at, bound->bar + WINDOW_BASE);
	writeq(PAGE_SIZE, bound->bar + WINDOW_SIZE);
	writeq(bound->memory_at, bound->bar + BUF);
	writeq(PAGE_SIZE, bound->bar + LEN);
	writeq(U64_MAX, bound->bar + COUNT);
	writeq(0, bound->bar + SEED);
	writeq(0, bound->bar + MODE);
	writeq(0, bound->bar + RESULT);
	writeq(1, bound->bar + TAG);
	writeq(bound->snapshot_at / 64, bound->bar + SNAPSHOT_ADDR);
	writeq(START_NEW, bound->bar + CONTROL);
	hrtimer_start(&bound->timer, ns_to_ktime(SLICE), HRTIMER_MODE_REL_PINNED_HARD);
	return 0;
}

static void bound_remove(struct pci_dev *pdev)
{
	struct bound *bound = pci_get_drvdata(pdev);

	free_irq(pci_irq_vector(pdev, 0), bound);
	hrtimer_cancel(&bound->timer);
	writeq(1, bound->bar + RESET);
	readq(bound->bar + CONTROL);
	pci_free_irq_vectors(pdev);
	pci_clear_master(pdev);
}

/* Empty: by driver_override only. */
static const struct pci_device_id bound_ids[] = { {} };

static struct pci_driver bound_driver = {
	.name = "fermata_bound",
	.id_table = bound_ids,
	.probe = bound_probe,
	.remove = bound_remove,
};
module_pci_driver(bound_driver);

MODULE_DESCRIPTION("The lower bound of a switch of the emulated fermata card");
MODULE_LICENSE("GPL");
