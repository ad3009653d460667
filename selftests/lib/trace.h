/* SPDX-License-Identifier: GPL-2.0 */
/* The driver's tracepoints, through a tracing instance of the test's own. */
#ifndef _FM_TRACE_H
#define _FM_TRACE_H

#include "fm.h"

/* NULL, or why there are none to be had. The end of each test closes it. */
const char *fm_trace_open(void);
void fm_trace_close(void);
/* Forgets what was recorded. */
void fm_trace_begin(void);
/* Switches one of the events, or all ("enable" of the folder): "start/enable", "enable". */
void fm_trace_switch(const char *which, bool on);
/* Events recorded. */
int fm_trace_count(void);
/*
 * NULL, or the first of the n wanted events that was not recorded behind the one before it. One is
 * written "start ctx=%u resume=1": its name without "fermata_", and of its fields those that matter.
 */
const char *fm_trace_wrong(const char *const *want, int n);
/* Waits until they were. */
void fm_trace_until(const char *const *want, int n);

#endif
