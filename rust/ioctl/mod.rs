// SPDX-License-Identifier: GPL-2.0

//! The calls. `uapi/fermata.h` says what each of them does, and its errors.
//!
//! Every handler first copies its argument in and checks it completely, then makes sure that the
//! answer can be written, then acts, and last copies the answer out. While it accesses user memory,
//! a handler holds nothing that removal of the card waits for.

mod group;
mod histogram;
mod info;
mod job;
mod memory;
mod param;
mod past;
mod registers;

pub(crate) use job::holding;

use crate::{
    argument::User,
    capability::{self, Audit},
    context::Context,
    uapi::{ioc, Argument},
};
use kernel::{fs::LocalFile, prelude::*, uaccess::UserPtr};

/// A call, and how it was made.
pub(crate) struct Call<'a> {
    pub(crate) context: &'a Context,
    /// The file of the context.
    pub(crate) file: &'a LocalFile,
    /// The user's pointer.
    pub(crate) argument: UserPtr,
    /// The file is O_NONBLOCK.
    pub(crate) nonblocking: bool,
}

impl Call<'_> {
    /// Executes the call `command`.
    pub(crate) fn run(&self, command: u32) -> Result {
        match command {
            ioc::CARD_INFO => self.card_info(),
            ioc::SLOT_INFO => self.slot_info(),
            ioc::SETUP => self.set_up(),
            ioc::ARENA_CREATE => self.arena_create(),
            ioc::SNAPSHOT_CREATE => self.snapshot_create(),
            ioc::SNAPSHOT_READ => self.snapshot_read(),
            ioc::SNAPSHOT_WRITE => self.snapshot_write(),
            ioc::REGS_WRITE => self.regs_write(),
            ioc::REGS_READ => self.regs_read(),
            ioc::RESULTS => self.results(),
            ioc::REGS_LIST => self.regs_list(),
            ioc::START => self.start(),
            ioc::PREEMPT => self.preempt(),
            ioc::RESUME => self.resume(),
            ioc::HOLD => self.hold(),
            ioc::STATUS => self.status(),
            ioc::WAIT => self.wait(),
            ioc::EVENTFD => self.eventfd(),
            ioc::HINT => self.hint(),
            ioc::DOORBELL => self.doorbell(),
            ioc::OUTCOME => self.outcome(),
            ioc::PARAM => self.param(),
            ioc::RESERVE => self.reserve(),
            ioc::CONTEXT_INFO => self.context_info(),
            ioc::HISTOGRAM => self.histogram(),
            ioc::CONFIG => self.config(),
            ioc::GROUP => self.group(),
            ioc::GANG => self.gang(),
            ioc::GROUP_SET => self.group_set(),
            _ => Err(ENOTTY),
        }
    }

    /// Copies the argument in. The errors are those of [`User::read`]; `ENODEV`: the card is gone,
    /// perhaps since the copy has begun.
    fn read<T: Argument>(&self) -> Result<User<T>> {
        let user = User::read(self.argument)?;
        self.check_present()?;
        Ok(user)
    }

    /// Checks that the card is not gone. `ENODEV`.
    fn check_present(&self) -> Result {
        match self.context.card.is_gone() {
            true => Err(ENODEV),
            false => Ok(()),
        }
    }

    /// Calls `act` with the caller's own context (`number` 0), or with context number `number`. The
    /// errors are those of [`Call::on_other`] or of `act`.
    fn on_context<T>(&self, number: u32, act: impl FnOnce(&Context) -> Result<T>) -> Result<T> {
        match number {
            0 => act(self.context),
            number => self.on_other(number, act),
        }
    }

    /// Does what [`Call::on_context`] does, and allows contexts that the caller's user has opened.
    fn on_own_context<T>(&self, number: u32, act: impl FnOnce(&Context) -> Result<T>) -> Result<T> {
        match self.find(number) {
            Ok(own) if own.client.opener.is_caller() => act(&own),
            _ => self.on_context(number, act),
        }
    }

    /// Calls `act` with context number `number`. `EPERM`: the caller is not an administrator;
    /// `ESRCH`: there is no such context, or it was closed meanwhile.
    fn on_other<T>(&self, number: u32, act: impl FnOnce(&Context) -> Result<T>) -> Result<T> {
        if !capability::is_administrator(Audit::Denial) {
            return Err(EPERM);
        }
        let other = self.find(number)?;
        act(&other)
    }

    /// Returns context number `number`. `ESRCH`: there is none.
    fn find(&self, number: u32) -> Result<Context> {
        let card = self.context.card.clone();
        let client = card.find_client(number).ok_or(ESRCH)?;
        Ok(Context { card, client })
    }
}
