// SPDX-License-Identifier: GPL-2.0

//! The files of a card below /sys/class/fermata/fermataN
//! (docs/ABI/testing/sysfs-class-fermata): a value each, of the card and, in a folder for each, of
//! its slots; and a file with the figures of all tenants.
//!
//! They are made with the device and before anybody is told of it, and go before the card does.
//! None of them touches a register.

mod files;
mod monitor;
mod values;

pub(crate) use files::groups;
