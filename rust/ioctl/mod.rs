// SPDX-License-Identifier: GPL-2.0

//! The calls. What each does, and its errors, stand in `uapi/fermata.h`.
//!
//! Every handler first checks its argument completely, then that the answer can be written, and
//! then acts.

mod control;
mod info;
mod job;
mod memory;
mod param;
mod registers;

pub(crate) use job::holding;

use crate::{context::Context, uapi::ioc};
use kernel::{prelude::*, sync::ArcBorrow, uaccess::UserPtr};

/// How a call was made.
pub(crate) struct Call<'a> {
    pub(crate) context: ArcBorrow<'a, Context>,
    /// The user's pointer.
    pub(crate) argument: UserPtr,
    /// The file is O_NONBLOCK.
    pub(crate) nonblocking: bool,
}

impl Call<'_> {
    /// Carries out the call `command`.
    pub(crate) fn run(&self, command: u32) -> Result {
        if command == ioc::WAIT {
            // Sleeps, so not inside the gate.
            return self.wait();
        }
        let device = self.context.card.enter()?;
        match command {
            ioc::CARD_INFO => self.card_info(),
            ioc::SLOT_INFO => self.slot_info(),
            ioc::SETUP => self.set_up(),
            ioc::ARENA_CREATE => self.arena_create(&device),
            ioc::SNAPSHOT_CREATE => self.snapshot_create(&device),
            ioc::SNAPSHOT_READ => self.snapshot_read(),
            ioc::REGS_WRITE => self.regs_write(),
            ioc::REGS_READ => self.regs_read(),
            ioc::RESULTS => self.results(),
            ioc::START => self.start(),
            ioc::PREEMPT => self.preempt(),
            ioc::RESUME => self.resume(),
            ioc::STATUS => self.status(),
            ioc::EVENTFD => self.eventfd(),
            ioc::PARAM_GET => self.param_get(),
            ioc::PARAM_SET => self.param_set(),
            ioc::CONTEXT_INFO => self.context_info(),
            ioc::CONTROL => self.control(),
            _ => Err(ENOTTY),
        }
    }
}
