// SPDX-License-Identifier: GPL-2.0

//! Calls for the job of a context: announcing it, starting it, preempting it, waiting for it.

use super::Call;
use crate::{
    argument::{check_flags, check_zero},
    context::job_error,
    hold, monotonic,
    notifier::Notice,
    scheduler::{JobState, NewJob},
    uapi::{self, event},
};
use kernel::{
    fs::file::{flags::O_CLOEXEC, FileDescriptorReservation},
    prelude::*,
};

impl Call<'_> {
    pub(super) fn start(&self) -> Result {
        let mut user = self.read::<uapi::Start>()?;
        let flags = user.value.flags;
        check_flags(
            flags,
            uapi::START_REPLAYABLE | uapi::START_SAVED | uapi::START_HELD,
        )?;
        user.check_writable()?;
        user.value.job = self.context.start(NewJob {
            replayable: flags & uapi::START_REPLAYABLE != 0,
            saved: flags & uapi::START_SAVED != 0,
            held: flags & uapi::START_HELD != 0,
        })?;
        user.write()
    }

    pub(super) fn preempt(&self) -> Result {
        let preempt = self.read::<uapi::Preempt>()?.value;
        check_flags(preempt.flags, uapi::PREEMPT_HOLD)?;
        check_zero(preempt.reserved)?;
        let hold = preempt.flags & uapi::PREEMPT_HOLD != 0;
        self.on_context(preempt.context, |context| {
            context.card.preempt(context.id()?, hold)
        })
    }

    pub(super) fn resume(&self) -> Result {
        let resume = self.read::<uapi::Resume>()?.value;
        check_flags(resume.flags, 0)?;
        check_zero(resume.reserved)?;
        self.on_own_context(resume.context, |context| context.card.resume(context.id()?))
    }

    pub(super) fn hold(&self) -> Result {
        let mut user = self.read::<uapi::Hold>()?;
        check_flags(user.value.flags, 0)?;
        user.check_complete()?;
        user.check_writable()?;
        let (descriptor, file) = self.on_context(user.value.context, |context| {
            let descriptor = FileDescriptorReservation::get_unused_fd_flags(O_CLOEXEC)?;
            Ok((descriptor, hold::new_file(context)?))
        })?;
        // CAST: descriptors are below 2^31.
        user.value.fd = descriptor.reserved_fd() as i32;
        // If this fails, the file is closed, and the hold ends.
        user.write()?;
        descriptor.fd_install(file);
        Ok(())
    }

    pub(super) fn hint(&self) -> Result {
        let hint = self.read::<uapi::Hint>()?.value;
        check_flags(hint.flags, 0)?;
        let at = monotonic::of_caller(hint.at);
        self.context.card.hint(self.context.id()?, at)
    }

    pub(super) fn doorbell(&self) -> Result {
        check_flags(self.read::<uapi::Doorbell>()?.value.flags, 0)?;
        self.context.card.ring(self.context.id()?)
    }

    pub(super) fn wait(&self) -> Result {
        let mut user = self.read::<uapi::Wait>()?;
        let wait = user.value;
        if wait.events == 0 {
            return Err(EINVAL);
        }
        check_flags(wait.events, event::ALL)?;
        let context = self.context;
        context.id()?;
        let mut found = self.happened(wait.events);
        if !over(&found) {
            if self.nonblocking {
                return Err(EAGAIN);
            }
            let deadline = monotonic::of_caller(wait.deadline);
            context.client.notifier.queue().wait(deadline, || {
                found = self.happened(wait.events);
                over(&found)
            })?;
        }
        let (happened, error) = found?;
        if happened == 0 {
            return Err(crate::compat::errno::etimedout());
        }
        user.value = uapi::Wait {
            happened,
            error,
            ..wait
        };
        user.write()
    }

    /// Returns which of `events` hold, and why the job failed. Takes a completion that it returns.
    /// `ENODEV`: the card is gone; `ENOENT`: there is no job.
    fn happened(&self, events: u32) -> Result<(u32, u32)> {
        if self.context.card.is_gone() {
            return Err(ENODEV);
        }
        let (state, job) = self.context.card.job(self.context.id()?)?;
        if job == 0 {
            return Err(ENOENT);
        }
        let completed =
            events & event::COMPLETED != 0 && self.context.client.notifier.take(Notice::Completed);
        let completed = if completed { event::COMPLETED } else { 0 };
        let happened = holding(state) & events | completed;
        Ok((happened, job_error(state)))
    }

    pub(super) fn eventfd(&self) -> Result {
        let eventfd = self.read::<uapi::EventFd>()?.value;
        check_flags(eventfd.events, event::ALL)?;
        let fd = (eventfd.fd != -1).then_some(eventfd.fd);
        if eventfd.reserved != 0 || fd.is_some() != (eventfd.events != 0) {
            return Err(EINVAL);
        }
        self.context.id()?;
        self.context.client.notifier.set_eventfd(fd, eventfd.events)
    }
}

/// Returns whether a wait is over, because something has happened or because of an error.
fn over(found: &Result<(u32, u32)>) -> bool {
    !matches!(found, Ok((0, _)))
}

/// Returns the events that hold in `state`: those that depend on nothing else.
pub(crate) fn holding(state: JobState) -> u32 {
    match state {
        JobState::Done | JobState::Failed(_) => event::DONE,
        JobState::Held => event::HELD,
        JobState::Empty => event::EMPTY,
        JobState::Idle | JobState::Queued | JobState::Running => 0,
    }
}
