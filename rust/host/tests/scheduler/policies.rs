// SPDX-License-Identifier: GPL-2.0

//! What each policy promises, in virtual time against the model of the card.

use std::collections::BTreeMap;

use fermata_sched_host::sched::{
    Action, ContextConfig, ContextId, Duration, Event, GroupKey, JobState, LoadCost, NewJob,
    Params, PolicyKind, Scheduler, SlotId, SlotState, Status, Time,
};
use fermata_sched_host::{card, storage};
use proptest::prelude::*;

use crate::model::check::{check_shares, ran, shares};
use crate::model::{cases, ns, sid, world, SlotPlan, World, BASE, ENDLESS, IRQ, MS, US};

fn weighted(world: &mut World, weight: u16) -> ContextId {
    let params = Params {
        weight,
        ..Params::DEFAULT
    };
    world.open(0, params).unwrap()
}

/// Returns how long each context has run, in ns.
fn all_ran(world: &World, who: &[ContextId]) -> Vec<f64> {
    who.iter().map(|&ctx| ran(world, ctx)).collect()
}

/// Returns the first context's share of the time that all contexts had since `before`.
fn first_share(world: &World, who: &[ContextId], before: &[f64]) -> f64 {
    let had = all_ran(world, who).into_iter().zip(before);
    let had: Vec<f64> = had.map(|(now, before)| now - before).collect();
    shares(&had)[0]
}

fn slices(world: &World, who: &[ContextId]) -> u64 {
    who.iter().map(|&ctx| world.stats(ctx).slices).sum()
}

/// Lets the world run until `n` more slices have begun.
fn run_slices(world: &mut World, who: &[ContextId], n: u64) {
    let end = slices(world, who) + n;
    while slices(world, who) < end {
        world.run_for(20 * MS);
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn fair_shares_are_as_the_weights(
        weights in prop::collection::vec(1..=1_000u16, 2..6),
        save in 1..500u64,
    ) {
        let mut world = world(1, PolicyKind::Fair);
        world.card.slots[0].save = save * US;
        let who: Vec<_> = weights.iter().map(|&w| weighted(&mut world, w)).collect();
        for &ctx in &who {
            world.start(ctx, ENDLESS).unwrap();
        }
        run_slices(&mut world, &who, 1_000);
        check_shares(&all_ran(&world, &who), &weights, 0.01)?;
    }

    /// Whatever sleepers and contexts of large weight do, all contexts make progress.
    #[test]
    fn fair_starves_nobody(
        weights in prop::collection::vec(50..=200u16, 2..6),
        sleeps in prop::collection::vec((1..4_000u64, 1..4_000u64), 2..6),
    ) {
        let mut world = world(1, PolicyKind::Fair);
        let busy: Vec<_> = weights.iter().map(|&w| weighted(&mut world, w)).collect();
        let sleepers: Vec<_> = sleeps.iter().map(|_| weighted(&mut world, 200)).collect();
        for &ctx in &busy {
            world.start(ctx, ENDLESS).unwrap();
        }
        for step in 0..2_000u64 {
            for (&ctx, &(work, pause)) in sleepers.iter().zip(&sleeps) {
                if step % (1 + pause / 500) == 0 {
                    let _ = world.start(ctx, work * US);
                }
            }
            world.run_for(500 * US);
        }
        for ctx in busy.iter().chain(&sleepers) {
            let longest = world.tenants[ctx].longest_wait;
            prop_assert!(longest < 200 * MS, "{longest}");
            prop_assert!(world.stats(*ctx).slices > 0);
        }
    }
}

#[test]
fn fair_is_the_default() {
    assert_eq!(PolicyKind::default(), PolicyKind::Fair);
}

#[test]
fn fair_weight_may_change_while_it_runs() {
    let mut world = world(1, PolicyKind::Fair);
    let who = [weighted(&mut world, 100), weighted(&mut world, 100)];
    for ctx in who {
        world.start(ctx, ENDLESS).unwrap();
    }
    run_slices(&mut world, &who, 200);
    let heavy = Params {
        weight: 300,
        ..Params::DEFAULT
    };
    world.set_params(who[0], heavy).unwrap();
    let before = all_ran(&world, &who);
    run_slices(&mut world, &who, 1_000);
    let share = first_share(&world, &who, &before);
    assert!((share - 0.75).abs() < 0.01, "{share}");
}

#[test]
fn fair_sleep_saves_up_no_more_than_a_slice() {
    let mut world = world(1, PolicyKind::Fair);
    let (busy, sleeper) = (weighted(&mut world, 100), weighted(&mut world, 100));
    world.start(busy, ENDLESS).unwrap();
    world.start(sleeper, MS).unwrap();
    world.run_for(1_000 * MS);
    world.start(sleeper, ENDLESS).unwrap();
    let before = [ran(&world, busy), ran(&world, sleeper)];
    world.run_for(100 * MS);
    let had = ran(&world, sleeper) - before[1];
    assert!(had < 56.0 * MS as f64, "{had}");
}

#[test]
fn fair_time_had_alone_is_not_held_against_one() {
    let mut world = world(1, PolicyKind::Fair);
    let (alone, other) = (weighted(&mut world, 100), weighted(&mut world, 100));
    world.start(alone, 1_000 * MS).unwrap();
    world.run_for(1_001 * MS);
    world.start(other, ENDLESS).unwrap();
    world.start(alone, ENDLESS).unwrap();
    let before = [ran(&world, alone), ran(&world, other)];
    world.run_for(200 * MS);
    let share = first_share(&world, &[alone, other], &before);
    assert!((share - 0.5).abs() < 0.03, "{share}");
}

#[test]
fn fair_shares_on_several_slots() {
    let mut world = world(2, PolicyKind::Fair);
    // No context is entitled to more than one of the two slots.
    let weights = [400, 200, 100, 100];
    let who = weights.map(|w| weighted(&mut world, w));
    for ctx in who {
        world.start(ctx, ENDLESS).unwrap();
    }
    run_slices(&mut world, &who, 2_000);
    check_shares(&all_ran(&world, &who), &weights, 0.02).unwrap();
}

/// One decision ends all of them, and after each takes into account which context gets that slot.
#[test]
fn of_slices_that_end_together_as_many_end_as_contexts_wait() {
    const SLOTS: usize = 4;
    for waiting in 1..SLOTS {
        let mut world = world(SLOTS, PolicyKind::RoundRobin);
        let all: Vec<ContextId> = (0..SLOTS + waiting).map(|_| world.tenant(2 * MS)).collect();
        for ctx in all {
            world.start(ctx, ENDLESS).unwrap();
        }
        world.run_until(3 * MS);
        let pauses = world.log.iter();
        let mut pauses = pauses.filter(|(_, action)| matches!(action, Action::Pause { .. }));
        let &(first, _) = pauses.next().unwrap();
        assert_eq!(1 + pauses.filter(|&&(at, _)| at == first).count(), waiting);
    }
}

#[test]
fn slices_are_no_shorter_than_saves_allow() {
    let mut world = world(1, PolicyKind::RoundRobin);
    (world.card.slots[0].save, world.card.slots[0].restore) = (MS, MS);
    let params = Params {
        timeslice: Duration::from_us(100),
        ..Params::DEFAULT
    };
    let who = [
        world.open(0, params).unwrap(),
        world.open(0, params).unwrap(),
    ];
    for ctx in who {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(1_000 * MS);
    // A slice of 4 ms, a save of 1 ms, and the compensated restore.
    assert!(slices(&world, &who) < 200);
}

/// A resumed job works for at least twice a save and a restore, which are measured separately.
#[test]
fn slices_are_no_shorter_than_restores_allow() {
    let mut world = world(1, PolicyKind::RoundRobin);
    (world.card.slots[0].save, world.card.slots[0].restore) = (100 * US, 900 * US);
    let params = Params {
        timeslice: Duration::from_us(100),
        ..Params::DEFAULT
    };
    let who = [
        world.open(0, params).unwrap(),
        world.open(0, params).unwrap(),
    ];
    for ctx in who {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(1_000 * MS);
    // A slice of 2 ms, a save of 0.1 ms and the compensated restore of 0.9 ms: 3 ms for a switch.
    let switches = slices(&world, &who);
    assert!((325..=345).contains(&switches), "{switches}");
    let stats = world.machine.slot_stats(sid(0), ns(world.now)).unwrap();
    assert_eq!(stats.restore.as_ns() / US, 900);
    assert_eq!(stats.restore_max, Duration::from_us(900));
    // The moving average has converged: it forgets an eighth of the difference at a time.
    assert_eq!(stats.save.as_ns() / US, 100);
}

#[test]
fn a_restore_that_nobody_tells_is_taken_to_cost_a_save() {
    let base = SlotPlan {
        base: Some((500 * US, 0)),
        ..BASE
    };
    let mut world = World::new(&[base], 2);
    world.card.slots[0].restore = 300 * US;
    let who = [world.tenant(2 * MS), world.tenant(2 * MS)];
    for ctx in who {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(100 * MS);
    let stats = world.machine.slot_stats(sid(0), ns(world.now)).unwrap();
    assert!(stats.resumes > 10 && stats.save > Duration::ZERO);
    assert_eq!(
        (stats.restore, stats.restore_max),
        (stats.save, Duration::ZERO)
    );
}

#[test]
fn weights_out_of_range() {
    use fermata_sched_host::sched::Refusal;
    let mut world = world(1, PolicyKind::Fair);
    let ctx = weighted(&mut world, 1);
    for weight in [0, 10_001, u16::MAX] {
        let params = Params {
            weight,
            ..Params::DEFAULT
        };
        assert_eq!(world.open(0, params), Err(Refusal::Range));
        assert_eq!(world.set_params(ctx, params), Err(Refusal::Range));
    }
}

/// A context that yields waits behind the next one, whatever its lag, and it alone is charged.
#[test]
fn a_yield_goes_behind_the_next() {
    for policy in [
        PolicyKind::Fair,
        PolicyKind::RoundRobin,
        PolicyKind::Priority,
        PolicyKind::Deadline,
    ] {
        let mut world = world(1, policy);
        let long = Params {
            timeslice: Duration::from_ms(1_000),
            ..Params::DEFAULT
        };
        let [a, b] = [(); 2].map(|()| world.open(0, long).unwrap());
        for ctx in [a, b] {
            world.start(ctx, ENDLESS).unwrap();
        }
        world.run_for(10 * MS);
        for (round, ms) in [1, 30, 2, 1, 5].into_iter().enumerate() {
            let (runs, waits) = if round % 2 == 0 { (a, b) } else { (b, a) };
            assert_eq!(world.state(runs), JobState::Running, "{policy:?} {round}");
            world
                .event(Event::Preempt {
                    ctx: runs,
                    hold: false,
                })
                .unwrap();
            world.run_for(MS);
            assert_eq!(world.state(waits), JobState::Running, "{policy:?} {round}");
            world.run_for(ms * MS);
        }
    }
}

#[test]
fn a_yield_is_given_for_good() {
    let mut world = world(1, PolicyKind::Fair);
    let (a, b) = (weighted(&mut world, 100), weighted(&mut world, 100));
    world.start(a, ENDLESS).unwrap();
    world.start(b, ENDLESS).unwrap();
    run_slices(&mut world, &[a, b], 100);
    // `a` yields as soon as it runs: it gives up most of each slice, and gets nothing back for it.
    for _ in 0..200 {
        while world.state(a) != JobState::Running {
            world.run_for(100 * US);
        }
        world
            .event(Event::Preempt {
                ctx: a,
                hold: false,
            })
            .unwrap();
        world.run_for(500 * US);
        assert_eq!(world.state(b), JobState::Running);
    }
    let before = [ran(&world, a), ran(&world, b)];
    run_slices(&mut world, &[a, b], 100);
    let share = first_share(&world, &[a, b], &before);
    assert!((share - 0.5).abs() < 0.02, "{share}");
}

#[test]
fn a_yield_to_nobody_goes_on() {
    let mut world = world(1, PolicyKind::Fair);
    let (a, b) = (weighted(&mut world, 100), weighted(&mut world, 100));
    world.start(a, ENDLESS).unwrap();
    world.run_for(10 * MS);
    world
        .event(Event::Preempt {
            ctx: a,
            hold: false,
        })
        .unwrap();
    world.run_for(MS);
    assert_eq!(world.state(a), JobState::Running);
    // The yield is not remembered when another context arrives later.
    world.start(b, ENDLESS).unwrap();
    let before = [ran(&world, a), ran(&world, b)];
    run_slices(&mut world, &[a, b], 200);
    let share = first_share(&world, &[a, b], &before);
    assert!((share - 0.5).abs() < 0.02, "{share}");
}

// Registers that take time to load: this happens before a slice, and a context is charged for it.

const STEP: u64 = 10 * US;
const SLICE: u64 = 2 * MS;
const CLEARING: u64 = MS;

/// Two contexts, each in its own group, with jobs that do not end, on one slot.
fn loading() -> (World, [ContextId; 2]) {
    let mut world = World::new(&[IRQ], 8);
    world.set_policy(PolicyKind::Fair).unwrap();
    let pair = [1, 2].map(|group| world.tenant_in(GroupKey(group), SLICE));
    for ctx in pair {
        world.start(ctx, ENDLESS).unwrap();
    }
    (world, pair)
}

/// Advances time until `ctx` is put on the slot.
fn until_started(world: &mut World, ctx: ContextId) {
    let runs = |world: &World| world.machine.slot_state(sid(0)) == Some(SlotState::Running(ctx));
    while runs(world) {
        world.run_for(STEP);
    }
    while !runs(world) {
        world.run_for(STEP);
    }
}

fn clear_after(debtor: ContextId) -> LoadCost {
    LoadCost {
        clearing: Duration::from_ns(CLEARING),
        total: Duration::from_ns(CLEARING + MS / 2),
        debtor: Some((debtor, GroupKey(1))),
    }
}

#[test]
fn a_slice_begins_after_the_load() {
    let (mut world, [writes, waits]) = loading();
    until_started(&mut world, waits);
    let (begun, before) = (world.now, world.stats(waits).run);
    world.note_load(0, clear_after(writes));
    until_started(&mut world, writes);
    let took = world.now - begun;
    let least = CLEARING + MS / 2 + SLICE - STEP;
    assert!(took >= least, "{took} ns");
    let charged = world.stats(waits).run.as_ns() - before.as_ns();
    assert!(charged < took - CLEARING + STEP, "{charged} of {took} ns");
}

#[test]
fn clearing_is_charged_to_who_wrote_the_registers() {
    let (mut world, [writes, waits]) = loading();
    let mut cleared = 0;
    for _ in 0..200 {
        until_started(&mut world, waits);
        world.note_load(0, clear_after(writes));
        cleared += CLEARING;
    }
    let [paid, had] = [writes, waits].map(|ctx| world.stats(ctx).run.as_ns());
    let apart = (paid + cleared).abs_diff(had);
    assert!(apart < 10 * MS, "{paid} + {cleared} and {had} ns");
}

#[test]
fn clearing_after_a_closed_context_is_charged_to_its_group() {
    let (mut world, [writes, waits]) = loading();
    let next = world.tenant_in(GroupKey(1), SLICE);
    until_started(&mut world, waits);
    world.close(writes).unwrap();
    world.start(next, ENDLESS).unwrap();
    world.note_load(0, clear_after(writes));
    let without = {
        let (mut world, [writes, waits]) = self::loading();
        let next = world.tenant_in(GroupKey(1), SLICE);
        until_started(&mut world, waits);
        world.close(writes).unwrap();
        world.start(next, ENDLESS).unwrap();
        world.run_for(100 * MS);
        world.stats(next).run
    };
    world.run_for(100 * MS);
    assert!(world.stats(next).run < without);
}

// The first of the contexts that may use a slot becomes its successor, or starts there at once,
// whatever was inserted into the queue, removed from it and moved in it before: the balanced tree is
// compared with a list.

const CONTEXTS: usize = 64;
const CARD_SLOTS: u8 = 3;

#[derive(Clone, Debug)]
enum Op {
    /// The next status of a slot.
    Card(usize),
    Start(usize),
    Hold(usize),
    Resume(usize),
    Change(usize, u8, u8),
}

fn op() -> impl Strategy<Value = Op> {
    let who = 0..CONTEXTS;
    prop_oneof![
        2 => (0..usize::from(CARD_SLOTS)).prop_map(Op::Card),
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
    slots: [Slot; CARD_SLOTS as usize],
    /// The waiting contexts by index, with their order of arrival, also those that are bound.
    queued: BTreeMap<usize, u64>,
    /// The successor of each slot.
    bound: [Option<ContextId>; CARD_SLOTS as usize],
    turns: u64,
}

impl Model {
    fn new() -> Self {
        let mut machine = Scheduler::new(&card(usize::from(CARD_SLOTS)), storage(CONTEXTS, 1));
        let now = Time::ZERO;
        machine.set_policy(now, PolicyKind::Priority).unwrap();
        while machine.sweep(now, u32::MAX, &mut |_| {}) {}
        // The starvation boost follows another order, on purpose.
        machine.set_boost(now, Duration::ZERO, &mut |_| {}).unwrap();
        let mut add = |i| {
            // One slot for each context, so that branches of the tree often have none for a slot.
            let params = Params {
                mask: 1_u8 << (i % usize::from(CARD_SLOTS)),
                ..Params::DEFAULT
            };
            let group = GroupKey(0);
            let config = ContextConfig {
                class: 0,
                params,
                group: group.into(),
            };
            machine.add(ns(0), config).unwrap()
        };
        let contexts = (0..CONTEXTS).map(&mut add).collect();
        Self {
            machine,
            now: 0,
            contexts,
            slots: [Slot::default(); CARD_SLOTS as usize],
            queued: BTreeMap::new(),
            bound: [None; CARD_SLOTS as usize],
            turns: 0,
        }
    }

    fn wait(&mut self, ctx: ContextId) {
        self.turns += 1;
        self.queued.insert(ctx.index(), self.turns);
    }

    /// Returns the first context by the list: of those whose mask has the slot, and that are bound to
    /// no other slot, the one with the highest priority, then the earliest.
    fn first(&self, slot: SlotId) -> Option<usize> {
        let params = |i: usize| self.machine.params(self.contexts[i]).unwrap();
        let elsewhere = |i: usize| {
            let mut bound = self.bound.iter().enumerate();
            bound.any(|(other, ctx)| other != slot.index() && *ctx == Some(self.contexts[i]))
        };
        let may = self
            .queued
            .iter()
            .filter(|(i, _)| params(**i).mask & slot.bit() != 0 && !elsewhere(**i));
        may.min_by_key(|(i, turn)| (u8::MAX - params(**i).priority, **turn))
            .map(|(i, _)| *i)
    }

    fn take_in(&mut self, actions: Vec<Action>) {
        let next = [0, 1, 2].map(|i| self.machine.successor(sid(i)));
        let before = std::mem::replace(&mut self.bound, next);
        for action in actions {
            match action {
                Action::Start { slot, ctx, .. } => {
                    if before[slot.index()] != Some(ctx) {
                        assert_eq!(self.first(slot), Some(ctx.index()), "not the first");
                    }
                    self.queued.remove(&ctx.index());
                    let slot = &mut self.slots[slot.index()];
                    slot.count += 1;
                    slot.runs = Some(ctx);
                    slot.pausing = false;
                }
                Action::Pause { slot, .. } => self.slots[slot.index()].pausing = true,
                Action::Arm { slot, at } => self.slots[slot.index()].timer = Some(at),
                _ => {}
            }
        }
        for (i, next) in next.into_iter().enumerate() {
            if let Some(next) = next.filter(|&next| before[i] != Some(next)) {
                assert_eq!(self.first(sid(i)), Some(next.index()), "not the first");
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

    /// Fires the timers that are due soon: a decision starts only one job, and leaves the others to
    /// the next decision.
    fn fire(&mut self) {
        let due = |slot: &Slot, now| slot.timer.is_some_and(|at| at <= ns(now + 2_000));
        while let Some(i) = self.slots.iter().position(|slot| due(slot, self.now)) {
            let at = self.slots[i].timer.take();
            self.now = self.now.max(at.map_or(0, Time::as_ns));
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
        // A job that was told to pause waits again, unless the machine is to hold it.
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
                // A waiting job leaves the queue before anything else is decided.
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
