/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The machine from outside, where it is one of vm/boot's: a port whose other end unplugs and
 * plugs cards, and presses the power button (vm/fermatavm/host.py).
 */
#ifndef _FM_HOST_H
#define _FM_HOST_H

#include <stdbool.h>

bool host_present(void);
/* One request; NULL, or why it was refused. Dies when nobody answers. */
const char *host_ask(const char *verb, unsigned int number);

/*
 * The machine sleeps: S3, in which the card loses its power; to idle, in which it keeps it, and
 * which the power button ends (QEMU's clock raises no ACPI event while the machine runs); or the
 * kernel's rehearsals, in which devices are suspended and resumed, a second later or at once.
 *
 * Or the machine hibernates (vm/boot --disk): devices are frozen and thawed only (rehearsal); an
 * image is written and restored at once (test_resume); the machine resets or switches itself off
 * (platform), boots again, and restores the image.
 */
enum fm_sleep {
	FM_S3, FM_TO_IDLE, FM_REHEARSAL, FM_SHORT_REHEARSAL,
	FM_DISK_REHEARSAL, FM_DISK_TEST_RESUME, FM_DISK_REBOOT, FM_DISK_PLATFORM
};

/* NULL, or why the machine cannot sleep like that and wake up by itself. */
const char *fm_cannot_sleep(enum fm_sleep how);
/* Sleeps and wakes: 0 or a negative errno. */
int fm_sleep_and_wake(enum fm_sleep how);

#endif
