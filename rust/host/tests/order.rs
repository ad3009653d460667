// SPDX-License-Identifier: GPL-2.0

//! The new scheduler (rust/scheduler) beside the present one, for the same input: contexts run in the
//! same order where turns decide, and have the same time where virtual time does. There the order
//! may differ, because a successor is chosen when the job before it is told to stop, and not once
//! more when that job has left.

#![cfg(not(feature = "successor"))]

use fermata_sched_host::sched::{
    Action, ContextConfig, ContextId, Duration, Event, GroupKey, NewJob, Params, PolicyKind,
    Refusal, SlotId, Status, Time,
};
use fermata_sched_host::{card, recording, sched, storage, successor_storage};
use proptest::prelude::*;

/// From PAUSE to PAUSED, in ns.
const SAVE: u64 = 50_000;
/// For how long contexts run, in ns.
const TIME: u64 = 300_000_000;

type Out<'a> = &'a mut dyn FnMut(Action);

/// The interface that both schedulers have.
trait Core {
    fn add(&mut self, config: ContextConfig) -> Result<ContextId, Refusal>;
    fn handle(&mut self, now: Time, event: Event, out: Out<'_>) -> Result<(), Refusal>;
    fn set_policy(&mut self, policy: PolicyKind);
}

macro_rules! core {
    ($scheduler:ty) => {
        impl Core for $scheduler {
            fn add(&mut self, config: ContextConfig) -> Result<ContextId, Refusal> {
                <$scheduler>::add(self, Time::ZERO, config)
            }

            fn handle(&mut self, now: Time, event: Event, out: Out<'_>) -> Result<(), Refusal> {
                <$scheduler>::handle(self, now, event, out)
            }

            fn set_policy(&mut self, policy: PolicyKind) {
                <$scheduler>::set_policy(self, Time::ZERO, policy).unwrap();
                while <$scheduler>::sweep(self, Time::ZERO, u32::MAX, &mut |_| ()) {}
            }
        }
    };
}

core!(sched::Scheduler);
core!(recording::Scheduler);

/// One slot, which saves a job in [`SAVE`].
#[derive(Default)]
struct Slot {
    runs: Option<ContextId>,
    count: u32,
    armed: Option<u64>,
    leaves: Option<u64>,
    reads: bool,
    starts: Vec<usize>,
    began: u64,
    /// Time on the slot, by the index of the context.
    ran: Vec<u64>,
}

impl Slot {
    fn act(&mut self, now: u64, action: Action) {
        match action {
            Action::Start { ctx, .. } => {
                self.count += 1;
                self.runs = Some(ctx);
                self.began = now;
                self.starts.push(ctx.index());
            }
            Action::Pause { .. } => self.leaves = Some(now + SAVE),
            Action::Arm { at, .. } => self.armed = Some(at.as_ns()),
            Action::Disarm { .. } => self.armed = None,
            Action::ReadStatus { .. } => self.reads = true,
            _ => {}
        }
    }
}

/// Runs jobs that never end, all of which are asked for at the beginning.
fn play(core: &mut dyn Core, policy: PolicyKind, contexts: &[(u64, Params)]) -> Slot {
    let slot_id = SlotId::new(0).unwrap();
    let (mut slot, mut now) = (Slot::default(), 1);
    slot.ran = vec![0; contexts.len()];
    core.set_policy(policy);
    let all: Vec<_> = contexts
        .iter()
        .map(|&(group, params)| {
            let group = GroupKey(group).into();
            let class = 0;
            let config = ContextConfig {
                class,
                params,
                group,
            };
            core.add(config).unwrap()
        })
        .collect();
    for ctx in all {
        let job = NewJob::default();
        let event = Event::Start { ctx, job };
        let out = &mut |action| slot.act(now, action);
        core.handle(Time::from_ns(now), event, out).unwrap();
    }
    while now < TIME {
        let phase = if core::mem::take(&mut slot.reads) {
            Some(1)
        } else if slot
            .leaves
            .is_some_and(|at| slot.armed.is_none_or(|armed| at <= armed))
        {
            now = slot.leaves.take().unwrap();
            if let Some(ctx) = slot.runs.take() {
                slot.ran[ctx.index()] += now - slot.began;
            }
            Some(4)
        } else {
            now = now.max(slot.armed.take().expect("a timer is armed"));
            None
        };
        let event = match phase {
            Some(phase) => Event::Status {
                slot: slot_id,
                status: Status::from_raw(phase | (u64::from(slot.count) << 32)),
            },
            None => Event::Timer { slot: slot_id },
        };
        let out = &mut |action| slot.act(now, action);
        core.handle(Time::from_ns(now), event, out).unwrap();
    }
    slot
}

/// Returns what both schedulers make of the same contexts, the present one first.
fn compare(policy: PolicyKind, contexts: &[(u64, Params)]) -> [Slot; 2] {
    let places = contexts.len();
    let mut present = sched::Scheduler::new(&card(1), storage(places, places));
    let storage = successor_storage(places, places);
    let mut new = recording::Scheduler::new(&card(1), storage);
    let both: [&mut dyn Core; 2] = [&mut present, &mut new];
    both.map(|core| play(core, policy, contexts))
}

fn contexts() -> impl Strategy<Value = Vec<(u64, Params)>> {
    let context = (0..3u64, 50..200u16, 0..3u8, 500..3_000u64);
    let context = context.prop_map(|(group, weight, priority, slice)| {
        let timeslice = Duration::from_us(slice);
        let params = Params {
            weight,
            priority,
            timeslice,
            ..Params::DEFAULT
        };
        (group, params)
    });
    prop::collection::vec(context, 2..10)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn contexts_take_turns_in_the_same_order(contexts in contexts(), priority in any::<bool>()) {
        let policy = if priority { PolicyKind::Priority } else { PolicyKind::RoundRobin };
        let [present, new] = compare(policy, &contexts);
        prop_assert_eq!(new.starts, present.starts);
    }

    #[test]
    fn contexts_have_the_same_fair_time(contexts in contexts()) {
        let [present, new] = compare(PolicyKind::Fair, &contexts);
        for (new, present) in new.ran.iter().zip(&present.ran) {
            // Each may be within a slice, and behind by another one.
            let differs = new.abs_diff(*present);
            prop_assert!(differs < 2 * (3_000_000 + SAVE), "{differs}: {new} and {present}");
        }
    }
}
