// SPDX-License-Identifier: GPL-2.0
/*
 * The bounds of a switch, for "make bench", on slot 0.
 *
 * fermata_bound: one job takes turns with itself, without a relay.  A timer
 * writes PAUSE; the interrupt handler reads the status and writes the next
 * START, and does nothing else.  No driver of a card without a relay can avoid
 * the idle time of the slot here: one interrupt, one trapped read, one write.
 *
 * fermata_card_bound: two contexts take turns by orders (docs/registers.md, Relay).
 * The interrupt handler looks for the record of the run, and posts the order
 * for the next one.  The idle time of the slot here is the card's own.
 *
 * Bound only by driver_override, to the emulated card (docs/registers.md) with a
 * membench in slot 0.  Not useful for anything else.
 */

#include <linux/dma-mapping.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/module.h>
#include <linux/pci.h>

/* docs/registers.md */
#define RESET		0x18
#define SLOT_COUNT	0x20
#define DMA_OFFSET	0x30
#define CTX_TABLE	0x120
#define CTX_COUNT	0x128
#define RECORDS		0x130
#define WINDOW_BASE	0x180
#define WINDOW_SIZE	0x1c0
#define ORDER		0x300
#define RELAY		0x340
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

/* An order. */
#define AFTER(run)	((run) & 0xffff)
#define NEXT(context)	(((context) + 1ULL) << 16)
#define VACANT		BIT_ULL(33)
#define RESUME		BIT_ULL(34)
#define AT_US(us)	((u64)(us) << 40)

/* A register's offset in the slot's page. */
#define IN_PAGE(reg)	((reg) & 0xfff)

#define STATE_SIZE	PAGE_SIZE
#define CONTEXTS	2

/* A PAUSE that meets a restore is dropped, so it is written again until it is answered. */
#define SLICE		(1 * NSEC_PER_MSEC)

/* An entry of the context table. */
struct entry {
	__le64 flags, dma_offset, window_base, window_size;
	__le64 snapshot_addr, snapshot_size, regs, results;
	__le16 offsets[16];
	__le64 cookie, reserved[3];
};

struct record {
	__le64 words[7];
	/* Run and reason; written last. */
	__le64 last;
};

/* The memory of two contexts that the card reads and writes. */
struct relay {
	struct record records[8];
	/* Each slot has a KiB. */
	u8 rest[PAGE_SIZE - 8 * sizeof(struct record)];
	struct entry table[CONTEXTS];
	/* Indexed from the beginning of the slot's page. */
	__le64 regs[CONTEXTS][PAGE_SIZE / 8];
};

struct bound {
	void __iomem *bar;
	struct hrtimer timer;
	void *memory, *snapshot;
	dma_addr_t memory_at, snapshot_at;
	/* The duration of the last restore; the slice comes after the restore. */
	u64 restore_ns;
	struct relay *relay;
	dma_addr_t relay_at;
	/* The numbers of the first run and of the run whose record is awaited. */
	u32 first_run, run;
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

/* Returns a bound with memory for two contexts, whose card may do DMA. */
static struct bound *bound_new(struct pci_dev *pdev)
{
	struct device *dev = &pdev->dev;
	struct bound *bound;
	int ret;

	bound = devm_kzalloc(dev, sizeof(*bound), GFP_KERNEL);
	if (!bound)
		return ERR_PTR(-ENOMEM);
	ret = pcim_enable_device(pdev);
	if (ret)
		return ERR_PTR(ret);
	bound->bar = pcim_iomap_region(pdev, 0, "fermata_bound");
	if (IS_ERR(bound->bar))
		return ERR_CAST(bound->bar);
	ret = dma_set_mask_and_coherent(dev, DMA_BIT_MASK(48));
	if (ret)
		return ERR_PTR(ret);
	bound->memory = dmam_alloc_coherent(dev, CONTEXTS * PAGE_SIZE, &bound->memory_at,
					    GFP_KERNEL);
	bound->snapshot = dmam_alloc_coherent(dev, CONTEXTS * STATE_SIZE, &bound->snapshot_at,
					      GFP_KERNEL);
	bound->relay = dmam_alloc_coherent(dev, sizeof(*bound->relay), &bound->relay_at,
					   GFP_KERNEL);
	if (!bound->memory || !bound->snapshot || !bound->relay)
		return ERR_PTR(-ENOMEM);
	pci_set_master(pdev);
	hrtimer_setup(&bound->timer, bound_timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	pci_set_drvdata(pdev, bound);
	return bound;
}

/* Requests the interrupt and resets the slot. */
static int bound_begin(struct pci_dev *pdev, struct bound *bound, irq_handler_t handler)
{
	int ret = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSIX);
	u64 slot, slots;

	if (ret < 0)
		return ret;
	ret = request_irq(pci_irq_vector(pdev, 0), handler, 0, "fermata_bound", bound);
	if (ret) {
		pci_free_irq_vectors(pdev);
		return ret;
	}
	writeq(1, bound->bar + RESET);
	/* Returns when the slot's last DMA is complete. */
	readq(bound->bar + CONTROL);
	writeq(0, bound->bar + RESET);
	/* The previous driver may have left RELAY on in the slots. */
	slots = readq(bound->bar + SLOT_COUNT);
	for (slot = 0; slot < slots; slot++)
		writeq(0, bound->bar + RELAY + 8 * slot);
	return 0;
}

static int bound_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct bound *bound = bound_new(pdev);
	int ret;

	if (IS_ERR(bound))
		return PTR_ERR(bound);
	ret = bound_begin(pdev, bound, bound_interrupt);
	if (ret)
		return ret;
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

/*
 * Orders the other context to run after the present run's slice.  Runs with even
 * and odd numbers belong to different contexts.
 */
static void relay_order(struct bound *bound)
{
	u32 run = bound->run;
	u64 order = AFTER(run) | NEXT(run % CONTEXTS) | AT_US(SLICE / NSEC_PER_USEC);

	/* The first two runs begin the two jobs. */
	if (run != bound->first_run)
		order |= RESUME;
	writeq(order, bound->bar + ORDER);
}

static irqreturn_t relay_interrupt(int irq, void *data)
{
	struct bound *bound = data;
	struct record *records = bound->relay->records;
	struct record *record = &records[bound->run % ARRAY_SIZE(bound->relay->records)];

	if ((u32)le64_to_cpu(READ_ONCE(record->last)) != bound->run)
		return IRQ_HANDLED;
	bound->run++;
	relay_order(bound);
	return IRQ_HANDLED;
}

static void relay_context(struct bound *bound, unsigned int context)
{
	struct entry *entry = &bound->relay->table[context];
	__le64 *regs = bound->relay->regs[context];
	dma_addr_t memory_at = bound->memory_at + context * PAGE_SIZE;

	regs[IN_PAGE(BUF) / 8] = cpu_to_le64(memory_at);
	regs[IN_PAGE(LEN) / 8] = cpu_to_le64(PAGE_SIZE);
	regs[IN_PAGE(COUNT) / 8] = cpu_to_le64(U64_MAX);
	regs[IN_PAGE(TAG) / 8] = cpu_to_le64(context + 1);
	*entry = (struct entry) {
		.flags = cpu_to_le64(1),
		.window_base = cpu_to_le64(memory_at),
		.window_size = cpu_to_le64(PAGE_SIZE),
		.snapshot_addr = cpu_to_le64(bound->snapshot_at + context * STATE_SIZE),
		.snapshot_size = cpu_to_le64(STATE_SIZE),
		.regs = cpu_to_le64(bound->relay_at + offsetof(struct relay, regs[context])),
	};
}

static int relay_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct bound *bound = bound_new(pdev);
	unsigned int context;
	u32 run;
	int ret;

	if (IS_ERR(bound))
		return PTR_ERR(bound);
	for (context = 0; context < CONTEXTS; context++)
		relay_context(bound, context);
	ret = bound_begin(pdev, bound, relay_interrupt);
	if (ret)
		return ret;
	writeq(bound->relay_at + offsetof(struct relay, table), bound->bar + CTX_TABLE);
	writeq(CONTEXTS, bound->bar + CTX_COUNT);
	writeq(bound->relay_at, bound->bar + RECORDS);
	writeq(1, bound->bar + RELAY);
	run = readq(bound->bar + CONTROL) >> 32;
	writeq(VACANT | AFTER(run) | NEXT(run % CONTEXTS), bound->bar + ORDER);
	bound->first_run = run + 1;
	bound->run = run + 1;
	relay_order(bound);
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

/* Empty: bound only by driver_override. */
static const struct pci_device_id bound_ids[] = { {} };

static struct pci_driver bound_driver = {
	.name = "fermata_bound",
	.id_table = bound_ids,
	.probe = bound_probe,
	.remove = bound_remove,
};

static struct pci_driver relay_driver = {
	.name = "fermata_card_bound",
	.id_table = bound_ids,
	.probe = relay_probe,
	.remove = bound_remove,
};

static int __init bound_init(void)
{
	int ret = pci_register_driver(&bound_driver);

	if (ret)
		return ret;
	ret = pci_register_driver(&relay_driver);
	if (ret)
		pci_unregister_driver(&bound_driver);
	return ret;
}
module_init(bound_init);

static void __exit bound_exit(void)
{
	pci_unregister_driver(&relay_driver);
	pci_unregister_driver(&bound_driver);
}
module_exit(bound_exit);

MODULE_DESCRIPTION("The bounds of a switch of the emulated fermata card");
MODULE_LICENSE("GPL");
