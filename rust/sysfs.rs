// SPDX-License-Identifier: GPL-2.0

//! The files of a card in /sys/class/fermata/fermataN (docs/ABI/testing/sysfs-class-fermata): files
//! with one value of the card or, in the directory of a slot, of the slot; and files with the
//! figures of all tenants.
//!
//! The files are made with the device, before its uevent, and removed before the card is dropped.
//! They access no register.

mod files;
mod lines;
mod monitor;
mod values;

pub(crate) use files::groups;
