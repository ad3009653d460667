/* SPDX-License-Identifier: GPL-2.0 */
/* The mistakes of mistakes_rust.rs. */
#ifndef _PLANTED_MISTAKES_H
#define _PLANTED_MISTAKES_H

void planted_rust_use_after_free(void);
void planted_rust_out_of_bounds(void);
void planted_rust_overflow(void);
void planted_rust_assertion(void);

#endif /* _PLANTED_MISTAKES_H */
