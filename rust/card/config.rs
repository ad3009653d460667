// SPDX-License-Identifier: GPL-2.0

//! Setting up the scheduler of a card, and the error numbers of its refusals.

use super::{slot_ids, state::State};
use crate::{
    bar::{Bar, Identity, SlotIdentity},
    limits::Limits,
    relay::Relay,
    scheduler::{
        CardConfig, Duration, Profile, Refusal, Scheduler, Slot, SlotConfig, Status, Storage,
    },
};
use kernel::{
    device::{Bound, Device},
    prelude::*,
};
use pin_init::init_array_from_fn;

/// Groups whose last context was closed are remembered while there is room: at least this many.
const GROUPS_REMEMBERED: usize = 64;

/// Returns the state of a card without contexts. Not inlined: the scheduler is on the stack for a
/// moment.
#[inline(never)]
pub(super) fn new_state(
    config: &CardConfig,
    limits: &Limits,
    relay: Option<KBox<Relay>>,
) -> Result<KBox<State>> {
    let contexts = table(limits.contexts)?;
    State::new(config, storage(config, limits)?, contexts, relay)
}

/// Returns storage for the scheduler.
fn storage(config: &CardConfig, limits: &Limits) -> Result<Storage> {
    let contexts = limits.contexts;
    let classes = config.slots.iter().enumerate().filter(|(id, slot)| {
        // CAST: below MAX_SLOTS.
        slot.is_some_and(|slot| slot.class == *id as u8)
    });
    let levels = Scheduler::level_places(contexts, classes.count(), GROUPS_REMEMBERED);
    let groups = levels + Scheduler::GROUPS_MAX;
    Ok(Storage {
        contexts: table(contexts)?,
        entities: table(contexts + levels)?,
        levels: table(levels)?,
        groups: table(groups)?,
        bins: table(groups)?,
        slots: KBox::init(init_array_from_fn(|_| Slot::default()), GFP_KERNEL)?,
    })
}

/// Returns an array of `count` empty places.
fn table<T: Default>(count: usize) -> Result<KVVec<T>> {
    let mut places = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        places.push(T::default(), GFP_KERNEL)?;
    }
    Ok(places)
}

/// Returns the first slot that has the engine of slot number `slot`.
pub(super) fn class_of(slots: &[SlotIdentity], slot: usize) -> u8 {
    let engine = slots.get(slot).map(SlotIdentity::afu_id);
    let first = slots
        .iter()
        .position(|other| Some(other.afu_id()) == engine)
        .unwrap_or(slot);
    // CAST: below MAX_SLOTS.
    first as u8
}

/// Returns the profile by which the slots of a card are used.
pub(super) fn profile(identity: &Identity, limits: &Limits) -> Profile {
    if !identity.is_quiescent() || !identity.has_irq() {
        return Profile::Base {
            settle: limits.settle,
            unsavable: match identity.is_base {
                true => limits.unsavable,
                false => Duration::ZERO,
            },
        };
    }
    let may_relay = identity.has_window() && identity.has_snapshot_unit() && limits.relay;
    match identity.has_relay && may_relay {
        true => Profile::Relay,
        false => Profile::Irq,
    }
}

/// Returns the memory for a card whose slots switch by themselves. `None`: they do not, or the card
/// cannot reach such memory. May sleep.
pub(super) fn new_relay(
    device: &Device<Bound>,
    is_translated: bool,
    identity: &Identity,
    limits: &Limits,
) -> Option<KBox<Relay>> {
    if profile(identity, limits) != Profile::Relay {
        return None;
    }
    let relay = Relay::new(device, is_translated, limits.contexts);
    let told = relay.inspect_err(|error| {
        dev_warn!(
            device,
            "no memory that the card reads contexts from ({error:?}): the relay is not used\n"
        );
    });
    told.ok()
}

/// Returns what the scheduler has to know about the card. `ENODEV`: the card is gone.
pub(super) fn card_config(
    device: &Device<Bound>,
    bar: &Bar,
    identity: &Identity,
    slots: &[SlotIdentity],
    limits: &Limits,
) -> Result<CardConfig> {
    let mut config = CardConfig {
        policy: limits.policy,
        boost: limits.boost,
        boundary_wait: limits.boundary_wait,
        ..CardConfig::default()
    };
    for id in slot_ids(identity.slots) {
        let slot = &slots[id.index()];
        let status = Status::from_raw(bar.status(id));
        if status.is_gone() {
            dev_err!(device, "the card does not answer any more\n");
            return Err(ENODEV);
        }
        if status == Status::UNANSWERED {
            dev_err!(device, "slot {} does not answer\n", id.index());
            return Err(ENODEV);
        }
        config.slots[id.index()] = Some(SlotConfig {
            profile: profile(identity, limits),
            class: class_of(slots, id.index()),
            reset_before_resume: slot.reset_before_resume,
            queues: slot.queues,
            granularity: slot.granularity,
            start_count: status.start_count(),
        });
    }
    Ok(config)
}

/// Returns the error number of a refusal (`uapi/fermata.h`, "errors").
pub(super) fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::NoContext => ESRCH,
        Refusal::Gone => ENODEV,
        Refusal::Busy => EBUSY,
        Refusal::NoJob => ENOENT,
        Refusal::NoSlot => EIO,
        Refusal::NoSpace => ENOSPC,
        Refusal::Admission => EBUSY,
        Refusal::Range => ERANGE,
        Refusal::Ceiling => EPERM,
        Refusal::Rate => EAGAIN,
        Refusal::Depth => E2BIG,
    }
}
