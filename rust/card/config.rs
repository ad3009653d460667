// SPDX-License-Identifier: GPL-2.0

//! What the scheduler has to know of a card, and what its refusals mean to a program.

use super::{now, slot_ids, Scheduler, SlotRegisters, State};
use crate::{
    bar::{Bar, Identity, SlotIdentity},
    image::Tenant,
    limits::Limits,
    measurement::Measurements,
    regs::MAX_SLOTS,
    sched::{self, Duration, MachineConfig, Profile, Refusal, SlotConfig, Status},
};
use core::mem::MaybeUninit;
use kernel::prelude::*;

/// Groups whose last context closed are remembered as long as there is room, so many at least.
const GROUPS_REMEMBERED: usize = 64;
/// Groups beyond one for each context: those, and the registered ones.
const GROUPS: usize = GROUPS_REMEMBERED + Scheduler::GROUPS_MAX as usize;

/// The state of a card without contexts.
pub(super) fn new_state(config: MachineConfig, limits: &Limits) -> Result<KBox<State>> {
    let room = Scheduler::room(limits.contexts, GROUPS);
    let entries = table(room, || sched::Entry::EMPTY)?;
    let tenants = table(limits.contexts, || None)?;
    let measurements = Measurements::new(fermata_slots(&config))?;
    let place = KBox::new_uninit(GFP_KERNEL)?;
    let mut state = fill(place, limits.contexts, entries, tenants, measurements);
    state.machine.add_slots(&config);
    // There are no contexts, so no action follows.
    state
        .machine
        .set_policy(now(), limits.policy)
        .and_then(|()| state.machine.set_guard(now(), limits.guard, &mut |_| ()))
        .and_then(|()| state.machine.set_boundary_wait(limits.boundary_wait))
        .map_err(refused)?;
    while state.machine.sweep(now(), u32::MAX, &mut |_| ()) {}
    Ok(state)
}

/// Makes a state without slots in its place on the heap. In a frame of its own, since it comes by
/// way of the stack, kilobytes of it: nothing is called from here that allocates, and so reclaims.
#[inline(never)]
fn fill(
    place: KBox<MaybeUninit<State>>,
    contexts: usize,
    entries: KVVec<sched::Entry>,
    tenants: KVVec<Option<Tenant>>,
    measurements: KVBox<Measurements>,
) -> KBox<State> {
    let Ok(state) = place.write_init(init!(State {
        machine: Scheduler::without_slots(contexts, entries),
        tenants,
        slots: SlotRegisters::NEW,
        measurements,
        state_pages: [0; MAX_SLOTS],
        completions: [0; MAX_SLOTS],
    }));
    state
}

/// The slots of the fermata profile, a bit each.
fn fermata_slots(config: &MachineConfig) -> u8 {
    // CAST: 8.
    slot_ids(MAX_SLOTS as u8)
        .zip(&config.slots)
        .filter(|(_, slot)| slot.is_some_and(|slot| slot.profile == Profile::Fermata))
        .fold(0, |slots, (id, _)| slots | id.bit())
}

/// So many places with the same in each.
fn table<T>(count: usize, empty: impl Fn() -> T) -> Result<KVVec<T>> {
    let mut places = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        places.push(empty(), GFP_KERNEL)?;
    }
    Ok(places)
}

/// The first slot that has the engine of slot number `slot`.
pub(super) fn class_of(slots: &[SlotIdentity], slot: usize) -> u8 {
    let engine = slots.get(slot).map(SlotIdentity::afu_id);
    let first = slots
        .iter()
        .position(|other| Some(other.afu_id()) == engine)
        .unwrap_or(slot);
    // CAST: below MAX_SLOTS.
    first as u8
}

/// What the scheduler has to know of the card. `ENODEV`: that is gone.
pub(super) fn machine_config(
    bar: &Bar,
    identity: &Identity,
    slots: &[SlotIdentity],
    limits: &Limits,
) -> Result<MachineConfig> {
    let mut config = MachineConfig::default();
    for id in slot_ids(identity.slots) {
        let slot = &slots[id.index()];
        let status = Status::from_raw(bar.status(id));
        if status.is_gone() {
            return Err(ENODEV);
        }
        config.slots[id.index()] = Some(SlotConfig {
            profile: if identity.is_quiescent() && identity.has_irq() {
                Profile::Fermata
            } else {
                Profile::Base {
                    settle: Duration::from_ns(limits.settle.as_ns()),
                }
            },
            class: class_of(slots, id.index()),
            reset_before_resume: slot.reset_before_resume,
            queues: slot.queues,
            stops: slot.stops,
            start_count: status.start_count(),
        });
    }
    Ok(config)
}

/// The error number of a refusal (`uapi/fermata.h`, "errors").
pub(super) fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::NoContext | Refusal::Gone => ENODEV,
        Refusal::Busy => EBUSY,
        Refusal::NoJob => ENOENT,
        Refusal::NoSlot => EIO,
        Refusal::NoSpace => ENOSPC,
        Refusal::Admission => EBUSY,
        Refusal::Range => ERANGE,
        Refusal::Ceiling => EPERM,
        Refusal::Rate => EAGAIN,
    }
}
