// SPDX-License-Identifier: GPL-2.0

//! The calls. What each does, and its errors, stand in `uapi/fermata.h`.
//!
//! Every handler first checks its argument completely, then that the answer can be written, and
//! then acts.

use crate::{
    argument::{check_flags, User},
    card::{BoundDevice, Card, View},
    context::{job_error, Context},
    image::{AppRegister, MAX_RESULTS},
    sched::{ContextId, Duration, JobState, Params, SlotId},
    uapi::{self, control, event, feature, ioc, param, state},
};
use kernel::{
    bindings,
    prelude::*,
    sync::ArcBorrow,
    uaccess::{UserPtr, UserSlice},
};

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

    fn card_info(&self) -> Result {
        let mut user = User::<uapi::CardInfo>::read(self.argument)?;
        check_flags(user.value.flags, 0)?;
        let card = &self.context.card;
        let features = [
            (card.identity.has_irq(), feature::IRQ),
            (card.identity.has_window(), feature::WINDOW),
            (card.identity.is_quiescent(), feature::QUIESCENT),
            (card.identity.has_snapshot_unit(), feature::SNAPSHOT_UNIT),
            (card.translated, feature::IOMMU),
        ];
        user.value = uapi::CardInfo {
            uapi_version: uapi::UAPI_VERSION,
            slots: card.identity.slots.into(),
            features: features
                .iter()
                .filter(|(has, _)| *has)
                .fold(0, |all, (_, bit)| all | bit),
            contexts: card.context_count(),
            // CAST: at most 65,536 (`limits.rs`).
            max_contexts: card.limits.contexts as u32,
            max_arena: card.limits.arena,
            ..Default::default()
        };
        user.write()
    }

    fn slot_info(&self) -> Result {
        let mut user = User::<uapi::SlotInfo>::read(self.argument)?;
        let card = &self.context.card;
        let (id, slot) = card.slot(user.value.slot).ok_or(EINVAL)?;
        let (stats, quarantined) = card.slot_stats(id);
        user.value = uapi::SlotInfo {
            slot: user.value.slot,
            afu_id_lo: slot.afu_id_lo,
            afu_id_hi: slot.afu_id_hi,
            state_pages: u32::try_from(card.state_pages(id)?).unwrap_or(u32::MAX),
            flags: if quarantined {
                uapi::SLOT_QUARANTINED
            } else {
                0
            },
            switches: stats.starts,
            busy_ns: stats.busy.as_ns(),
            resets: stats.resets,
            save_ns: stats.save.as_ns(),
            ..Default::default()
        };
        user.write()
    }

    fn set_up(&self) -> Result {
        let mut user = User::<uapi::Setup>::read(self.argument)?;
        let setup = user.value;
        check_flags(setup.flags, 0)?;
        user.check_writable()?;
        self.context
            .set_up((setup.afu_id_lo, setup.afu_id_hi), setup.slot_mask)?;
        user.value = uapi::Setup {
            context: self.context.number()?,
            ..setup
        };
        user.write()
    }

    fn arena_create(&self, device: &BoundDevice<'_>) -> Result {
        let mut user = User::<uapi::ArenaCreate>::read(self.argument)?;
        let arena = user.value;
        check_flags(arena.flags, uapi::ARENA_FIXED_BASE)?;
        let base = (arena.flags & uapi::ARENA_FIXED_BASE != 0).then_some(arena.device_base);
        if base.is_none() && arena.device_base != 0 {
            return Err(EINVAL);
        }
        user.check_writable()?;
        self.context.create_arena(device, arena.length, base)?;
        // The arena is all that a context has to map.
        user.value = uapi::ArenaCreate {
            mmap_offset: 0,
            ..arena
        };
        user.write()
    }

    fn snapshot_create(&self, device: &BoundDevice<'_>) -> Result {
        let mut user = User::<uapi::SnapshotCreate>::read(self.argument)?;
        check_flags(user.value.flags, 0)?;
        user.check_writable()?;
        user.value.length = self.context.create_snapshot(device)?;
        user.write()
    }

    fn snapshot_read(&self) -> Result {
        let read = User::<uapi::SnapshotRead>::read(self.argument)?.value;
        check_flags(read.flags, 0)?;
        let buffer = UserPtr::from_addr(usize::try_from(read.buffer)?);
        let mut out = UserSlice::new(buffer, usize::try_from(read.length)?).writer();
        self.context.read_snapshot(read.offset, &mut out)
    }

    fn regs_write(&self) -> Result {
        let (regs, _) = self.registers(uapi::MAX_REGS)?;
        self.context.card.write_registers(self.context.id()?, &regs)
    }

    fn regs_read(&self) -> Result {
        let (mut regs, array) = self.registers(uapi::MAX_REGS)?;
        self.context
            .card
            .read_registers(self.context.id()?, &mut regs)?;
        let mut writer = UserSlice::new(array, regs.len() * size_of::<uapi::Reg>()).writer();
        for (register, value) in &regs {
            writer.write(&uapi::Reg {
                offset: register.offset(),
                reserved: 0,
                value: *value,
            })?;
        }
        Ok(())
    }

    fn results(&self) -> Result {
        // CAST: 16.
        let (regs, _) = self.registers(MAX_RESULTS as u32)?;
        let mut registers = KVec::with_capacity(regs.len(), GFP_KERNEL)?;
        for &(register, value) in &regs {
            if value != 0 {
                return Err(EINVAL);
            }
            registers.push(register, GFP_KERNEL)?;
        }
        self.context.declare_results(&registers)
    }

    /// Copies in a `struct fermata_regs` and its array, at most `most` entries, checked.
    fn registers(&self, most: u32) -> Result<(KVec<(AppRegister, u64)>, UserPtr)> {
        let regs = User::<uapi::Regs>::read(self.argument)?.value;
        check_flags(regs.flags, 0)?;
        if regs.reserved != 0 || regs.count > most {
            return Err(EINVAL);
        }
        let count = regs.count as usize;
        let array = UserPtr::from_addr(usize::try_from(regs.regs)?);
        let mut reader = UserSlice::new(array, count * size_of::<uapi::Reg>()).reader();
        let mut registers = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            let reg = reader.read::<uapi::Reg>()?;
            if reg.reserved != 0 {
                return Err(EINVAL);
            }
            registers.push((AppRegister::new(reg.offset)?, reg.value), GFP_KERNEL)?;
        }
        Ok((registers, array))
    }

    fn start(&self) -> Result {
        let mut user = User::<uapi::Start>::read(self.argument)?;
        check_flags(user.value.flags, 0)?;
        user.check_writable()?;
        user.value.job = self.context.start()?;
        user.write()
    }

    fn preempt(&self) -> Result {
        let preempt = User::<uapi::Preempt>::read(self.argument)?.value;
        check_flags(preempt.flags, uapi::PREEMPT_HOLD)?;
        self.context
            .card
            .preempt(self.context.id()?, preempt.flags & uapi::PREEMPT_HOLD != 0)
    }

    fn resume(&self) -> Result {
        check_flags(User::<uapi::Resume>::read(self.argument)?.value.flags, 0)?;
        self.context.card.resume(self.context.id()?)
    }

    fn status(&self) -> Result {
        let mut user = User::<uapi::Status>::read(self.argument)?;
        check_flags(user.value.flags, 0)?;
        let memory = self.context.memory_info();
        user.value = uapi::Status {
            arena_length: memory.arena_length,
            device_base: memory.device_base,
            snapshot_length: memory.snapshot_length,
            slot: uapi::NO_SLOT,
            ..Default::default()
        };
        if self.context.is_set_up() {
            let View {
                stats,
                fault_address,
                ..
            } = self.context.view().ok_or(ENODEV)?;
            user.value = uapi::Status {
                state: state_number(stats.state),
                error: job_error(stats.state),
                context: self.context.number()?,
                slot: slot_number(stats.slot),
                job: stats.job,
                run_ns: stats.run.as_ns(),
                wait_ns: stats.wait.as_ns(),
                slices: stats.slices,
                preemptions: stats.preemptions,
                finished: stats.finished,
                failed: stats.failed,
                fault_addr: fault_address,
                ..user.value
            };
        }
        user.write()
    }

    fn wait(&self) -> Result {
        let mut user = User::<uapi::Wait>::read(self.argument)?;
        let wait = user.value;
        if wait.events == 0 {
            return Err(EINVAL);
        }
        check_flags(wait.events, event::ALL)?;
        let context = &self.context;
        if context.card.is_gone() {
            return Err(ENODEV);
        }
        context.id()?;
        let mut found = self.happened(wait.events);
        if !over(&found) {
            if self.nonblocking {
                return Err(EAGAIN);
            }
            context.notifier.wait(wait.deadline, || {
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

    /// Which of `events` hold, and why the job failed. `ENODEV`: the card is gone; `ENOENT`: there
    /// is no job.
    fn happened(&self, events: u32) -> Result<(u32, u32)> {
        if self.context.card.is_gone() {
            return Err(ENODEV);
        }
        let stats = self.context.view().ok_or(ENODEV)?.stats;
        if stats.job == 0 {
            return Err(ENOENT);
        }
        Ok((holding(stats.state) & events, job_error(stats.state)))
    }

    fn eventfd(&self) -> Result {
        let eventfd = User::<uapi::EventFd>::read(self.argument)?.value;
        check_flags(eventfd.events, event::ALL)?;
        let fd = (eventfd.fd != -1).then_some(eventfd.fd);
        if eventfd.reserved != 0 || fd.is_some() != (eventfd.events != 0) {
            return Err(EINVAL);
        }
        self.context.id()?;
        self.context.notifier.set_eventfd(fd, eventfd.events)
    }

    fn param_get(&self) -> Result {
        let mut user = User::<uapi::Param>::read(self.argument)?;
        let range = ParamRange::of(user.value.param, &self.context.card.limits.params)?;
        let params = self.context.card.params(self.context.id()?)?;
        user.value = uapi::Param {
            param: user.value.param,
            value: (range.get)(&params).as_ns(),
            min: range.min.as_ns(),
            max: range.allowed().as_ns(),
            ..Default::default()
        };
        user.write()
    }

    fn param_set(&self) -> Result {
        let wanted = User::<uapi::Param>::read(self.argument)?.value;
        let range = ParamRange::of(wanted.param, &self.context.card.limits.params)?;
        let id = self.context.id()?;
        if wanted.min != 0 || wanted.max != 0 {
            return Err(EINVAL);
        }
        range.apply(&self.context.card, id, wanted.value)
    }

    fn context_info(&self) -> Result {
        let mut user = User::<uapi::ContextInfo>::read(self.argument)?;
        check_flags(user.value.flags, 0)?;
        let from = user.value.cursor as usize;
        let (index, context) = self.context.card.next_context(from).ok_or(ENOENT)?;
        let stats = context.view().ok_or(ENODEV)?.stats;
        user.value = uapi::ContextInfo {
            cursor: number(index) + 1,
            context: context.number()?,
            pid: context.pid_for_caller(),
            state: state_number(stats.state),
            slot: slot_number(stats.slot),
            slot_mask: context.slots().into(),
            job: stats.job,
            run_ns: stats.run.as_ns(),
            wait_ns: stats.wait.as_ns(),
            slices: stats.slices,
            preemptions: stats.preemptions,
            ..Default::default()
        };
        user.write()
    }

    fn control(&self) -> Result {
        let control = User::<uapi::Control>::read(self.argument)?.value;
        let card = &self.context.card;
        let range = match control.operation {
            control::PARAM => Some(ParamRange::of(control.param, &card.limits.params)?),
            control::PREEMPT | control::HOLD | control::RESUME => None,
            _ => return Err(EINVAL),
        };
        if range.is_none() && (control.param != 0 || control.value != 0) {
            return Err(EINVAL);
        }
        // SAFETY: No requirement. CAST: a small constant.
        if !unsafe { bindings::capable(bindings::CAP_SYS_ADMIN as c_int) } {
            return Err(EPERM);
        }
        let other = card
            .find_context(|other| other.number().is_ok_and(|number| number == control.context))
            .ok_or(ESRCH)?;
        let id = other.id()?;
        match range {
            Some(range) => range.apply(card, id, control.value),
            None if control.operation == control::RESUME => card.resume(id),
            None => card.preempt(id, control.operation == control::HOLD),
        }
    }
}

/// A parameter, its limits, and where it is kept.
struct ParamRange {
    min: Duration,
    max: Duration,
    default: Duration,
    get: fn(&Params) -> Duration,
    set: fn(&mut Params, Duration),
}

impl ParamRange {
    /// The parameter number `param`, with its default from `defaults`. `EINVAL`: there is none.
    fn of(param: u32, defaults: &Params) -> Result<Self> {
        match param {
            param::TIMESLICE => Ok(Self {
                min: Params::TIMESLICE_MIN,
                max: Params::TIMESLICE_MAX,
                default: defaults.timeslice,
                get: |params| params.timeslice,
                set: |params, value| params.timeslice = value,
            }),
            param::PREEMPT_TIMEOUT => Ok(Self {
                min: Params::PREEMPT_TIMEOUT_MIN,
                max: Params::PREEMPT_TIMEOUT_MAX,
                default: defaults.preempt_timeout,
                get: |params| params.preempt_timeout,
                set: |params, value| params.preempt_timeout = value,
            }),
            _ => Err(EINVAL),
        }
    }

    /// Sets the parameter of `ctx` to `value`. `ERANGE`; `EPERM`: the caller may not.
    fn apply(&self, card: &Card, ctx: ContextId, value: u64) -> Result {
        let value = Duration::from_ns(value);
        if value < self.min || value > self.max {
            return Err(ERANGE);
        }
        if value > self.allowed() {
            return Err(EPERM);
        }
        card.set_params(ctx, |params| (self.set)(params, value))
    }

    /// The largest value that the caller may set.
    fn allowed(&self) -> Duration {
        // SAFETY: No requirement. CAST: a small constant.
        if unsafe { bindings::capable(bindings::CAP_SYS_NICE as c_int) } {
            self.max
        } else {
            self.default
        }
    }
}

/// Whether a wait has come to its end: something happened, or an error.
fn over(found: &Result<(u32, u32)>) -> bool {
    !matches!(found, Ok((0, _)))
}

/// The events that hold in `state`.
pub(crate) fn holding(state: JobState) -> u32 {
    match state {
        JobState::Done | JobState::Failed(_) => event::DONE,
        JobState::Held => event::HELD,
        JobState::Idle | JobState::Queued | JobState::Running => 0,
    }
}

fn state_number(state: JobState) -> u32 {
    match state {
        JobState::Idle => state::IDLE,
        JobState::Queued => state::QUEUED,
        JobState::Running => state::RUNNING,
        JobState::Held => state::HELD,
        JobState::Done => state::DONE,
        JobState::Failed(_) => state::FAILED,
    }
}

/// A slot as the interface has it.
fn slot_number(slot: Option<SlotId>) -> u32 {
    slot.map_or(uapi::NO_SLOT, |slot| number(slot.index()))
}

/// A small number as the interface has it.
fn number(n: usize) -> u32 {
    // CAST: contexts and slots are fewer than 2^32 (`limits.rs`).
    n as u32
}
