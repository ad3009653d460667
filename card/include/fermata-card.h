/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fermata-card.h - a card of your own behind fermata-card --foreign LIBRARY
 *
 * A shared library that defines fermata_card() is the card that QEMU shows to the machine: the driver's accesses to BAR 0 reach the
 * library, and the library reaches the machine's memory and vectors. So a design under Verilator, or a model in C, is tried under the
 * real driver, before there is a bitstream. fermata-card adds PCI configuration space (memory enable, bus mastering, MSI or MSI-X,
 * function-level reset), writes a log of all accesses, and checks the driver by that log.
 *
 * Threads: fermata-card makes all calls on one thread, from open() to close(). The library calls the host only on that thread and only
 * during one of these calls, not after close(). It may have threads of its own, which do not call the host.
 *
 * Time: cycles have no fixed length. tick() is called as often as the machine allows; accesses are made between two ticks, also several
 * of them without a tick in between. A design that needs cycles to answer a read takes them itself, during bar_read().
 *
 * What the library prints on the standard output goes to the error output.
 *
 * Nothing that a library answers or asks for stops fermata-card: what is not allowed is refused, and written to the log as "bad_call" (of each
 * kind at most a thousand times until the next reset).
 */
#ifndef FERMATA_CARD_H
#define FERMATA_CARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It grows when a structure or the meaning of a call changes; fermata-card takes only its own version. */
#define FERMATA_CARD_VERSION 1

/* Bytes of BAR 0. From 0xe000 on it belongs to MSI-X: the library is not asked there. */
#define FERMATA_CARD_BAR_SIZE 0x10000
/* Most bytes of one DMA access. */
#define FERMATA_CARD_DMA_MAX 0x100000
/* The `slot` of a DMA access if the design does not tell for which slot it is. */
#define FERMATA_CARD_NO_SLOT 0xffffffffu

/* What functions of the host answer. */
#define FERMATA_CARD_OK 0
/* The call is not allowed: a null pointer, a length of 0 or above FERMATA_CARD_DMA_MAX, a slot or vector beyond SLOT_COUNT. "bad_call". */
#define FERMATA_CARD_EINVAL (-1)
/*
 * Nobody responds: no memory at one of the addresses, memory that may not be written, or bus mastering is off. Nothing was
 * transferred; of a read, all bytes are 0. Of an interrupt: the driver has not enabled the vector. DMA is logged as "dma_error".
 */
#define FERMATA_CARD_ENODEV (-2)

/* What bar_read() answers. */
#define FERMATA_CARD_ANSWERED 0
/* The design does not answer: the driver gets all-ones, as from a card that does not respond. Logged as "unanswered". */
#define FERMATA_CARD_UNANSWERED 1

/*
 * What fermata-card offers the library. The structure is valid from open() to close(). `host` is the first argument of each function.
 */
struct fermata_card_host {
	uint32_t version; /* FERMATA_CARD_VERSION */
	uint32_t size;    /* bytes of this structure */
	void *host;

	/*
	 * Reads `length` bytes of the machine's memory at the bus address `address` (the DMA offset is already added) into `data`, which
	 * is complete when this returns: a design that models latency delays the answer itself. `slot`: for which slot the access is made,
	 * or FERMATA_CARD_NO_SLOT (null in the log); only for the log and the checker. The range may cross pages, and is not aligned.
	 * Returns FERMATA_CARD_OK, FERMATA_CARD_EINVAL or FERMATA_CARD_ENODEV.
	 */
	int (*dma_read)(void *host, uint32_t slot, uint64_t address, void *data, size_t length);

	/* Writes memory; otherwise as dma_read(). Writes are seen by the machine in the order of the calls, and before a later interrupt. */
	int (*dma_write)(void *host, uint32_t slot, uint64_t address, const void *data, size_t length);

	/*
	 * Sends the interrupt of a vector: vector i is that of slot i. Returns FERMATA_CARD_OK, FERMATA_CARD_EINVAL or FERMATA_CARD_ENODEV. A card without
	 * interrupts (--irq none, and always the profile base) has no vectors.
	 */
	int (*interrupt)(void *host, uint32_t vector);
};

/* What the library offers. All functions are called on one thread, one at a time. None may be null, except close. */
struct fermata_card {
	uint32_t version; /* FERMATA_CARD_VERSION; otherwise fermata-card ends with a message, and calls nothing */
	uint32_t size;    /* bytes of this structure */

	/*
	 * Makes the card, in its state after power-on. `argument` is that of --argument, or "". `*card` is the first argument of all
	 * other functions. Returns 0; another value ends fermata-card with a message that names the value.
	 * DMA and interrupts are answered with FERMATA_CARD_ENODEV.
	 */
	int (*open)(const struct fermata_card_host *host, const char *argument, void **card);

	/* Frees the card: the last call. */
	void (*close)(void *card);

	/*
	 * Power-on, function-level reset, or reset of the bus: all registers as after power-on. After the call no DMA and no interrupt
	 * of before may come. Called once after open(), and when the machine goes away. The number and the AFU ids of the slots must not
	 * change: fermata-card reads SLOT_COUNT and the ids after the first reset.
	 */
	void (*reset)(void *card);

	/*
	 * Reads BAR 0. `length` is 1, 2, 4 or 8 bytes; `offset` is a multiple of it, below 0xe000 (without interrupts by MSI-X: below
	 * FERMATA_CARD_BAR_SIZE). The driver makes accesses of 8 bytes; others come from people who look around. Sets `*value`, of which
	 * the lowest `length` bytes count, and returns FERMATA_CARD_ANSWERED; or returns FERMATA_CARD_UNANSWERED. Another answer counts
	 * as FERMATA_CARD_UNANSWERED, and as bad_call. Writes of before have reached the design, which may take cycles: the machine's
	 * processor waits, so at most some milliseconds.
	 */
	int (*bar_read)(void *card, uint64_t offset, uint32_t length, uint64_t *value);

	/* Writes BAR 0: posted, so the processor does not wait. Offset and length as in bar_read(); upper bytes of `value` are 0. */
	void (*bar_write)(void *card, uint64_t offset, uint32_t length, uint64_t value);

	/*
	 * Lets the design go on for `cycles` cycles of its clock, 1 or more; the number may differ from call to call. Returns 0 if
	 * nothing will happen before the next access or reset: fermata-card then sleeps until that comes. A design that cannot tell
	 * returns 1, and has a processor of the host for itself.
	 */
	int (*tick)(void *card, uint64_t cycles);
};

/*
 * Defined by the library: returns its functions, which stay valid while the library is loaded. Called once, before open(). NULL: no
 * card, and fermata-card ends with a message.
 */
const struct fermata_card *fermata_card(void);

#ifdef __cplusplus
}
#endif

#endif
