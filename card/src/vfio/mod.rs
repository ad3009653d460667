// SPDX-License-Identifier: GPL-2.0-or-later
//! The vfio-user server: QEMU's docs/interop/vfio-user over a UNIX socket.

mod link;
mod server;

pub use server::Server;
