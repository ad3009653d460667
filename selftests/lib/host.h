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

#endif
