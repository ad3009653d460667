/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _FM_PRIV_H
#define _FM_PRIV_H

struct fm_shared;
extern struct fm_shared *fm_sh;
int card_slots(void);

#endif
