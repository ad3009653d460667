// SPDX-License-Identifier: GPL-2.0

/* The tracepoints, and for each rust_do_trace_NAME(), which rust/trace.rs calls. */
#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include <trace/events/fermata.h>
