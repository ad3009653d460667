// SPDX-License-Identifier: GPL-2.0

/* The tracepoints, and a rust_do_trace_NAME() for each, which rust/trace.rs calls. */
#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include <trace/events/fermata.h>
