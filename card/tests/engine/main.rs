// SPDX-License-Identifier: GPL-2.0
//! Engines by themselves, and parsers: preempted anywhere or not, and with any bytes.
#![allow(missing_docs, unreachable_pub, clippy::pedantic)]

mod properties;
mod queue;
mod words;
