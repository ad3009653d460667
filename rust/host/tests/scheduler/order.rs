// SPDX-License-Identifier: GPL-2.0

//! Whoever is put on a slot is the first of those that may use it, whatever was inserted into the queue, taken out of it and moved
//! in it before: the balanced tree against a list.

use std::collections::BTreeMap;

use fermata_sched_host::sched::{
    Action, ContextConfig, ContextId, Duration, Event, GroupKey, NewJob, Params, PolicyKind,
    Scheduler, SlotId, Status, Time,
};
use fermata_sched_host::{card, storage};
use proptest::prelude::*;

const CONTEXTS: usize = 64;
const SLOTS: u8 = 3;

#[derive(Clone, Debug)]
enum Op {
    /// The next that a slot has to say.
    Card(usize),
    Start(usize),
    Hold(usize),
    Resume(usize),
    Change(usize, u8, u8),
}

fn op() -> impl Strategy<Value = Op> {
    let who = 0..CONTEXTS;
    prop_oneof![
        2 => (0..usize::from(SLOTS)).prop_map(Op::Card),
        6 => who.clone().prop_map(Op::Start),
        1 => who.clone().prop_map(Op::Hold),
        1 => who.clone().prop_map(Op::Resume),
        3 => (who, 0..6_u8, prop_oneof![Just(1_u8), Just(2), Just(4), Just(5)]).prop_map(|(who, priority, mask)| {
            Op::Change(who, priority, mask)
        }),
    ]
}

#[derive(Clone, Copy, Default)]
struct Slot {
    count: u32,
    runs: Option<ContextId>,
    pausing: bool,
    timer: Option<Time>,
}

struct Model {
    machine: Scheduler,
    now: u64,
    contexts: Vec<ContextId>,
    slots: [Slot; SLOTS as usize],
    /// Those that wait: the order in which they came, by index.
    queued: BTreeMap<usize, u64>,
    turns: u64,
}

impl Model {
    fn new() -> Self {
        let mut machine = Scheduler::new(&card(usize::from(SLOTS)), storage(CONTEXTS, 1));
        let now = Time::ZERO;
        machine.set_policy(now, PolicyKind::Priority).unwrap();
        while machine.sweep(now, u32::MAX, &mut |_| {}) {}
        // It goes by another order, on purpose.
        machine.set_boost(now, Duration::ZERO, &mut |_| {}).unwrap();
        let mut add = |i| {
            // One slot each: so a branch often has nobody for a slot.
            let params = Params {
                mask: 1_u8 << (i % usize::from(SLOTS)),
                ..Params::DEFAULT
            };
            let group = GroupKey(0);
            let config = ContextConfig {
                class: 0,
                params,
                group,
            };
            machine.add(config).unwrap()
        };
        let contexts = (0..CONTEXTS).map(&mut add).collect();
        Self {
            machine,
            now: 0,
            contexts,
            slots: [Slot::default(); SLOTS as usize],
            queued: BTreeMap::new(),
            turns: 0,
        }
    }

    fn wait(&mut self, ctx: ContextId) {
        self.turns += 1;
        self.queued.insert(ctx.index(), self.turns);
    }

    /// What the list says: the highest priority, then who came first, of those whose mask has the slot.
    fn first(&self, slot: SlotId) -> Option<usize> {
        let params = |i: usize| self.machine.params(self.contexts[i]).unwrap();
        let may = self
            .queued
            .iter()
            .filter(|(i, _)| params(**i).mask & slot.bit() != 0);
        may.min_by_key(|(i, turn)| (u8::MAX - params(**i).priority, **turn))
            .map(|(i, _)| *i)
    }

    fn take_in(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Start { slot, ctx, .. } => {
                    assert_eq!(self.first(slot), Some(ctx.index()), "not the first");
                    self.queued.remove(&ctx.index());
                    let slot = &mut self.slots[slot.index()];
                    slot.count += 1;
                    slot.runs = Some(ctx);
                    slot.pausing = false;
                }
                Action::Pause { slot, .. } => self.slots[slot.index()].pausing = true,
                Action::Arm { slot, at } => self.slots[slot.index()].timer = Some(at),
                Action::Disarm { slot } => self.slots[slot.index()].timer = None,
                _ => {}
            }
        }
    }

    fn event(&mut self, event: Event) -> bool {
        let mut actions = Vec::new();
        let now = Time::from_ns(self.now);
        let done = self.machine.handle(now, event, &mut |it| actions.push(it));
        self.take_in(actions);
        done.is_ok()
    }

    /// The timers whose time has come: a decision starts one job only, and leaves the others to the next.
    fn fire(&mut self) {
        let now = Time::from_ns(self.now);
        let due = |slot: &Slot| slot.timer.is_some_and(|at| at <= now);
        while let Some(i) = self.slots.iter().position(due) {
            self.slots[i].timer = None;
            let slot = SlotId::new(i as u8).unwrap();
            self.event(Event::Timer { slot });
        }
    }

    fn card(&mut self, i: usize) {
        let Some(ctx) = self.slots[i].runs else {
            return;
        };
        let held = self.slots[i].pausing;
        let status =
            Status::from_raw(if held { 4 } else { 2 } | (u64::from(self.slots[i].count) << 32));
        self.slots[i].runs = None;
        self.slots[i].pausing = false;
        // A job that was asked to pause waits again, unless it shall be held: the machine knows.
        if held && !self.holds(ctx) {
            self.wait(ctx);
        }
        let slot = SlotId::new(i as u8).unwrap();
        self.event(Event::Status { slot, status });
    }

    fn holds(&self, ctx: ContextId) -> bool {
        let mut after = self.machine.clone();
        let slot = after.slot_of(ctx).unwrap();
        let raw = 4 | (u64::from(self.slots[slot.index()].count) << 32);
        let status = Status::from_raw(raw);
        let mut held = false;
        let now = Time::from_ns(self.now);
        let event = Event::Status { slot, status };
        let out = &mut |action| held |= matches!(action, Action::Wake { ctx: it, .. } if it == ctx);
        after.handle(now, event, out).unwrap();
        held
    }

    fn step(&mut self, op: &Op) {
        self.now += 1_000;
        match *op {
            Op::Card(slot) => self.card(slot),
            Op::Start(who) => {
                let ctx = self.contexts[who];
                let stats = self.machine.stats(ctx, Time::from_ns(self.now)).unwrap();
                if !stats.state.is_live() {
                    self.wait(ctx);
                    assert!(self.event(Event::Start {
                        ctx,
                        job: NewJob::default(),
                    }));
                }
            }
            Op::Hold(who) => {
                let ctx = self.contexts[who];
                // One that waits leaves the queue before anything else is decided.
                self.queued.remove(&ctx.index());
                self.event(Event::Preempt { ctx, hold: true });
            }
            Op::Resume(who) => {
                let ctx = self.contexts[who];
                let stats = self.machine.stats(ctx, Time::from_ns(self.now)).unwrap();
                if stats.state == fermata_sched_host::sched::JobState::Held {
                    self.wait(ctx);
                }
                self.event(Event::Resume { ctx });
            }
            Op::Change(who, priority, mask) => {
                let ctx = self.contexts[who];
                let params = Params {
                    priority,
                    mask,
                    ..Params::DEFAULT
                };
                let mut actions = Vec::new();
                let now = Time::from_ns(self.now);
                self.machine
                    .set_params(now, ctx, params, &mut |it| actions.push(it))
                    .unwrap();
                self.take_in(actions);
            }
        }
        self.fire();
        for (slot, i) in self.slots.iter().zip(0..) {
            let first = self.first(SlotId::new(i).unwrap());
            assert!(slot.runs.is_some() || first.is_none(), "{first:?} waits");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_first_that_may_use_a_slot_gets_it(ops in prop::collection::vec(op(), 1..400)) {
        let mut model = Model::new();
        for op in &ops {
            model.step(op);
        }
    }
}
