// SPDX-License-Identifier: GPL-2.0

//! Random schedules of owners and of a card that misbehaves. The invariants that hold after each
//! event are in `model/check.rs` and, from the card's side, in `model/card.rs`; this file checks
//! the end state.

use crate::model::{cases, ns, sid, SlotPlan, World, IRQ, MS, US};
use fermata_sched_host::sched::{
    ContextId, Duration, Event, GroupKey, GroupSettings, JobState, NewJob, Params, PolicyKind,
    PreemptGranularity, SlotState, Time, Urgency,
};
use proptest::prelude::*;

/// An act of an owner, an administrator or the card.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Run {
        us: u64,
    },
    Open {
        group: u64,
        class: u8,
        params: Params,
    },
    Start {
        who: usize,
        us: u64,
        job: NewJob,
        /// The progress of an imported state.
        done: u64,
    },
    /// `None` takes the hint back.
    Hint {
        who: usize,
        us: Option<u64>,
    },
    Preempt {
        who: usize,
        hold: bool,
    },
    Resume {
        who: usize,
    },
    Hold {
        who: usize,
    },
    /// Ends one of the holds that there are.
    EndHold {
        which: usize,
    },
    /// More work for its queue.
    Post {
        who: usize,
        us: u64,
    },
    Ring {
        who: usize,
    },
    Close {
        who: usize,
    },
    Change {
        who: usize,
        params: Params,
    },
    Enable {
        who: usize,
        enabled: bool,
    },
    Gang {
        who: usize,
        with: Option<usize>,
    },
    Weigh {
        group: u64,
        weight: u16,
    },
    Group {
        group: u64,
        settings: Option<GroupSettings>,
    },
    Move {
        who: usize,
        group: u64,
    },
    Below {
        group: u64,
        level: u64,
    },
    Exclusive {
        slots: u8,
        group: Option<u64>,
    },
    Fault {
        slot: usize,
        kind: Fault,
    },
    SpuriousIrq {
        slot: usize,
    },
    EarlyTimer {
        slot: usize,
    },
    StaleStatus {
        slot: usize,
        raw: u64,
    },
    Policy {
        policy: PolicyKind,
    },
    /// Operations on every context are done in parts, at other times.
    Lazy {
        lazy: bool,
    },
    /// One such part, for at most `most` contexts.
    Sweep {
        most: u32,
    },
    Freeze,
    /// The card lost its state after the freeze, and is set up again.
    Thaw,
    /// The card loses its state without a freeze.
    Lose,
    Gone {
        noticed: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Pauses(u32),
    Irqs(u32),
    Hang,
    Starts,
    Resets(u32),
    FinishOnPause,
    Torn,
    Window,
    IgnoresPauses,
}

fn params() -> impl Strategy<Value = Params> {
    (any::<u8>(), 100..15_000u64, 20..120u64, 1..10_000u16).prop_map(
        |(mask, slice, timeout, weight)| Params {
            weight,
            priority: mask % 32,
            cap: if weight % 3 == 0 { 1 + mask / 3 } else { 0 },
            budget: Duration::from_us(if weight % 5 == 0 { slice } else { 0 }),
            deadline: Duration::from_us(if weight % 5 == 0 { slice * 3 } else { 0 }),
            period: Duration::from_us(if weight % 5 == 0 {
                slice * 4 + 1_000
            } else {
                0
            }),
            urgency: if weight % 4 == 0 {
                Urgency::LatencyCritical
            } else {
                Urgency::BestEffort
            },
            mask: if mask & 3 == 0 { mask >> 2 } else { u8::MAX },
            cooperative: weight % 7 == 0,
            timeslice: Duration::from_us(slice),
            preempt_timeout: Duration::from_ms(timeout),
        },
    )
}

fn settings() -> impl Strategy<Value = GroupSettings> {
    (0..10_002u16, 0..33u8, 0..500u16, 0..4u8).prop_map(|(weight, max_priority, cap, slots)| {
        GroupSettings {
            weight,
            max_priority,
            cap: if cap % 3 == 0 { cap } else { 0 },
            slots: slots & (slots >> 1),
        }
    })
}

fn policy() -> impl Strategy<Value = PolicyKind> {
    prop_oneof![
        Just(PolicyKind::Fair),
        Just(PolicyKind::Priority),
        Just(PolicyKind::Deadline),
        Just(PolicyKind::RoundRobin)
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        3 => (1..4u32).prop_map(Fault::Pauses),
        3 => (1..3u32).prop_map(Fault::Irqs),
        2 => Just(Fault::Hang),
        1 => Just(Fault::Starts),
        1 => (1..4u32).prop_map(Fault::Resets),
        3 => Just(Fault::FinishOnPause),
        2 => Just(Fault::Torn),
        1 => Just(Fault::Window),
        1 => Just(Fault::IgnoresPauses),
    ]
}

fn new_job() -> impl Strategy<Value = NewJob> {
    let rarely = prop::bool::weighted;
    (any::<bool>(), rarely(0.3), rarely(0.2)).prop_map(|(replayable, saved, held)| NewJob {
        replayable,
        saved,
        held,
    })
}

fn op() -> impl Strategy<Value = Op> {
    let who = 0..6usize;
    let slot = 0..4usize;
    prop_oneof![
        12 => (1..3_000u64).prop_map(|us| Op::Run { us }),
        2 => (3_000..60_000u64).prop_map(|us| Op::Run { us }),
        3 => (0..4u64, 0..3u8, params())
            .prop_map(|(group, class, params)| Op::Open { group, class, params }),
        8 => (who.clone(), 1..20_000u64, new_job(), 0..20_000u64)
            .prop_map(|(who, us, job, done)| Op::Start { who, us, job, done }),
        8 => (who.clone(), prop::option::weighted(0.9, 0..4_000u64))
            .prop_map(|(who, us)| Op::Hint { who, us }),
        5 => (who.clone(), any::<bool>()).prop_map(|(who, hold)| Op::Preempt { who, hold }),
        4 => who.clone().prop_map(|who| Op::Resume { who }),
        2 => who.clone().prop_map(|who| Op::Hold { who }),
        3 => who.clone().prop_map(|which| Op::EndHold { which }),
        6 => (who.clone(), 1..10_000u64).prop_map(|(who, us)| Op::Post { who, us }),
        2 => who.clone().prop_map(|who| Op::Ring { who }),
        2 => who.clone().prop_map(|who| Op::Close { who }),
        2 => (who.clone(), any::<bool>()).prop_map(|(who, enabled)| Op::Enable { who, enabled }),
        2 => (who.clone(), prop::option::weighted(0.8, who.clone()))
            .prop_map(|(who, with)| Op::Gang { who, with }),
        1 => (1..16u8, prop::option::of(0..4u64))
            .prop_map(|(slots, group)| Op::Exclusive { slots, group }),
        1 => (0..4u64, 0..10_000u16).prop_map(|(group, weight)| Op::Weigh { group, weight }),
        2 => (0..4u64, prop::option::of(settings()))
            .prop_map(|(group, settings)| Op::Group { group, settings }),
        2 => (who.clone(), 0..4u64).prop_map(|(who, group)| Op::Move { who, group }),
        2 => (0..2u64, 2..4u64).prop_map(|(group, level)| Op::Below { group, level }),
        2 => (who, params()).prop_map(|(who, params)| Op::Change { who, params }),
        4 => (slot.clone(), fault()).prop_map(|(slot, kind)| Op::Fault { slot, kind }),
        2 => slot.clone().prop_map(|slot| Op::SpuriousIrq { slot }),
        2 => slot.clone().prop_map(|slot| Op::EarlyTimer { slot }),
        2 => (slot, 0..5u64).prop_map(|(slot, raw)| Op::StaleStatus { slot, raw }),
        1 => policy().prop_map(|policy| Op::Policy { policy }),
        2 => any::<bool>().prop_map(|lazy| Op::Lazy { lazy }),
        6 => (1..4u32).prop_map(|most| Op::Sweep { most }),
        2 => Just(Op::Freeze),
        3 => Just(Op::Thaw),
        1 => Just(Op::Lose),
        1 => prop::bool::weighted(0.5).prop_map(|noticed| Op::Gone { noticed }),
    ]
}

/// Contexts that are open at a time.
const CONTEXTS: usize = 6;

/// The class of the engines that take jobs from a queue.
const QUEUES: u8 = 2;

fn plan() -> impl Strategy<Value = SlotPlan> {
    let base = prop_oneof![
        2 => Just(None),
        1 => (0..600u64, 0..600u64).prop_map(|(a, b)| Some((a.max(b) * US, a.min(b) * US))),
    ];
    let stops = prop_oneof![
        Just(PreemptGranularity::Anywhere),
        Just(PreemptGranularity::AnywhereOrBoundary),
        Just(PreemptGranularity::BoundaryOnly)
    ];
    let rest = (0..3u8, any::<bool>(), stops, any::<bool>());
    (base, rest).prop_map(
        |(base, (class, reset_before_resume, stops, relay))| SlotPlan {
            relay: relay && base.is_none(),
            queues: class == QUEUES && base.is_none(),
            base,
            unsavable: u64::from(class) * 20 * US,
            class,
            reset_before_resume,
            granularity: match base {
                Some(_) => PreemptGranularity::Anywhere,
                None => stops,
            },
        },
    )
}

#[derive(Clone, Debug)]
pub struct Setting {
    pub plans: Vec<SlotPlan>,
    pub save: u64,
    pub restore: u64,
    pub start_lag: u64,
    pub irq_delay: u64,
    pub timer_delay: u64,
    pub timer_first: bool,
}

fn setting() -> impl Strategy<Value = Setting> {
    let plans = prop::collection::vec(plan(), 1..5);
    let times = (1..1_500u64, 1..1_500u64, 0..400u64, 0..80u64, 0..80u64);
    (plans, times, any::<bool>()).prop_map(|(plans, t, timer_first)| Setting {
        plans,
        save: t.0 * US,
        restore: t.1 * US,
        start_lag: t.2 * US,
        irq_delay: t.3 * US,
        timer_delay: t.4 * US,
        timer_first,
    })
}

pub struct Play {
    pub world: World,
    pub who: Vec<ContextId>,
    /// The context of each hold.
    holds: Vec<ContextId>,
}

impl Play {
    pub fn new(setting: &Setting, contexts: usize) -> Self {
        let mut world = World::new(&setting.plans, contexts);
        for slot in &mut world.card.slots {
            slot.save = setting.save;
            slot.restore = setting.restore;
            if let Some((settle, _)) = slot.base {
                // The settle time covers the start lag. Otherwise a failed reset could not be told
                // from a late start.
                slot.start_lag = setting.start_lag.min(settle);
            }
        }
        world.irq_delay = setting.irq_delay;
        world.timer_delay = setting.timer_delay;
        world.timer_first = setting.timer_first;
        Self {
            world,
            who: Vec::new(),
            holds: Vec::new(),
        }
    }

    fn all_slots(&self) -> u8 {
        u8::MAX >> (8 - self.world.plans.len())
    }

    fn slot(&self, slot: usize) -> usize {
        slot % self.world.plans.len()
    }

    /// Requests may be refused; the world checks that a refusal changes nothing.
    pub fn step(&mut self, op: Op) {
        let who = |i: usize| self.who.get(i % self.who.len().max(1)).copied();
        match op {
            Op::Run { us } => self.world.run_for(us * US),
            Op::Open {
                group,
                class,
                params,
            } => {
                if let Ok(ctx) = self.world.open_in(GroupKey(group), class, params) {
                    self.who.push(ctx);
                }
            }
            Op::Start {
                who: i,
                us,
                job,
                done,
            } => {
                let done = done.min(us) * US;
                let _ = who(i).map(|ctx| self.world.start_from(ctx, us * US, job, done));
            }
            Op::Hint { who: i, us } => {
                let at = us.map_or(Time::ZERO, |us| ns(self.world.now + us * US));
                let _ = who(i).map(|ctx| self.world.event(Event::Hint { ctx, at }));
            }
            Op::Preempt { who: i, hold } => {
                let _ = who(i).map(|ctx| self.world.event(Event::Preempt { ctx, hold }));
            }
            Op::Resume { who: i } => {
                let _ = who(i).map(|ctx| self.world.event(Event::Resume { ctx }));
            }
            Op::Hold { who: i } => {
                let Some(ctx) = who(i) else { return };
                if self.world.event(Event::Hold { ctx }).is_ok() {
                    self.holds.push(ctx);
                }
            }
            Op::EndHold { which } => {
                if !self.holds.is_empty() {
                    let ctx = self.holds.swap_remove(which % self.holds.len());
                    // The context may be closed.
                    let _ = self.world.event(Event::EndHold { ctx });
                }
            }
            Op::Post { who: i, us } => {
                let _ = who(i).map(|ctx| self.post(ctx, us * US));
            }
            Op::Ring { who: i } => {
                let _ = who(i).map(|ctx| self.world.event(Event::Ring { ctx }));
            }
            Op::Close { who: i } => {
                let _ = who(i).map(|ctx| self.world.close(ctx));
            }
            Op::Change { who: i, params } => {
                let _ = who(i).map(|ctx| self.world.set_params(ctx, params));
            }
            Op::Enable { who: i, enabled } => {
                let _ = who(i).map(|ctx| self.world.set_enabled(ctx, enabled));
            }
            Op::Gang { who: i, with } => {
                let with = with.and_then(who);
                let _ = who(i).map(|ctx| self.world.set_gang(ctx, with));
            }
            Op::Group { group, settings } => {
                let group = GroupKey(group);
                let _ = match settings {
                    Some(settings) => self.world.set_group(group, settings),
                    None => self.world.remove_group(group),
                };
            }
            Op::Move { who: i, group } => {
                let _ = who(i).map(|ctx| self.world.move_to(ctx, GroupKey(group)));
            }
            Op::Below { group, level } => {
                let _ = self.world.put_below(GroupKey(group), GroupKey(level));
            }
            Op::Weigh { group, weight } => {
                let _ = self.world.set_group_weight(GroupKey(group), weight);
            }
            Op::Exclusive { slots, group } => {
                let slots = slots & self.all_slots();
                let _ = self.world.set_exclusive(slots, group.map(GroupKey));
            }
            Op::Fault { slot, kind } => self.fault(self.slot(slot), kind),
            Op::SpuriousIrq { slot } => self.world.read(self.slot(slot)),
            Op::EarlyTimer { slot } => {
                let slot = sid(self.slot(slot));
                self.world.event(Event::Timer { slot }).unwrap();
            }
            Op::StaleStatus { slot, raw } => self.stale(self.slot(slot), raw),
            Op::Policy { policy } => {
                let _ = self.world.set_policy(policy);
            }
            Op::Lazy { lazy } => self.world.lazy = lazy,
            Op::Sweep { most } => self.world.sweep(most),
            Op::Freeze => self.world.freeze(),
            Op::Thaw => {
                self.world.freeze();
                self.world.rest();
                self.world.thaw();
            }
            Op::Lose => {
                self.world.lose_runs();
                assert!(self.world.machine.is_at_rest());
            }
            Op::Gone { noticed } => {
                self.world.vanish();
                if noticed {
                    self.world.event(Event::Gone).unwrap();
                }
            }
        }
    }

    /// Posts work as a program does, which may have no job to ring for.
    fn post(&mut self, ctx: ContextId, work: u64) {
        if self.world.card.post(self.world.now, ctx, work) {
            let _ = self.world.event(Event::Ring { ctx });
        }
    }

    fn fault(&mut self, i: usize, kind: Fault) {
        let is_base = self.world.plans[i].base.is_some();
        let slot = &mut self.world.card.slots[i];
        match kind {
            Fault::Pauses(n) => slot.ignore_pauses = n,
            Fault::Irqs(n) => slot.lose_irqs = n,
            Fault::Hang => self.world.card.set_hang(i),
            Fault::Starts => slot.ignore_starts = 1,
            Fault::Resets(n) if n < 3 => slot.ignore_resets = n,
            Fault::Resets(_) => slot.ignore_resets = u32::MAX,
            Fault::FinishOnPause => slot.finish_on_pause = true,
            Fault::Torn if !is_base => slot.torn = true,
            Fault::Window => slot.fault = true,
            Fault::IgnoresPauses => slot.ignore_pauses = u32::MAX,
            Fault::Torn => {}
        }
    }

    /// Reports a status that was read before the last START, with an older count.
    fn stale(&mut self, i: usize, raw: u64) {
        let state = self.world.machine.slot_state(sid(i));
        // During a reset the machine relies on its caller to read and report the status under one
        // lock.
        let resetting = matches!(state, Some(SlotState::Resetting(_)));
        // No status is read during a switch of a relay.
        let plan = self.world.plans[i];
        let tells = plan.base.is_none() && !plan.relay;
        if tells && !self.world.card.gone && !resetting {
            let count = self.world.card.slots[i].count.wrapping_sub(1);
            self.world.status(i, raw | (u64::from(count) << 32));
        }
    }

    /// Checks that every job ends, and none is lost, once the card behaves and all contexts may
    /// run.
    pub fn finish(mut self) {
        for slot in &mut self.world.card.slots {
            slot.ignore_pauses = 0;
            slot.finish_on_pause = false;
            slot.lose_irqs = 0;
        }
        self.world.lazy = false;
        self.step(Op::Thaw);
        let all = self.all_slots();
        let _ = self.world.set_exclusive(all, None);
        for group in 0..4 {
            let _ = self.world.remove_group(GroupKey(group));
        }
        for ctx in std::mem::take(&mut self.holds) {
            let _ = self.world.event(Event::EndHold { ctx });
        }
        for round in 0..400 {
            for ctx in self.who.clone() {
                let _ = self.world.set_enabled(ctx, true);
                let _ = self.world.event(Event::Resume { ctx });
                self.post(ctx, 20 * MS);
                if round % 4 == 3
                    && self
                        .world
                        .stats_of(ctx)
                        .is_some_and(|s| s == JobState::Running)
                {
                    // A hang is not noticed while no context waits for the slot: request a
                    // preemption.
                    let _ = self.world.event(Event::Preempt { ctx, hold: false });
                }
            }
            self.world.run_for(150 * MS);
            // This is usually soon, but slow saves are debts that take long to pay under a cap of 1
            // %.
            if self.unfinished().is_none() {
                break;
            }
        }
        assert_eq!(self.unfinished(), None, "lost");
        self.close_all();
    }

    /// Returns a context whose job has not ended, although it could.
    fn unfinished(&self) -> Option<(ContextId, JobState)> {
        self.who.iter().find_map(|&ctx| {
            let state = self.world.stats_of(ctx)?;
            // No slot in its mask is in use, so that it cannot be resumed.
            let is_off = matches!(state, JobState::Held | JobState::Empty);
            let stranded = is_off && self.world.quarantined != 0;
            (state.is_live() && !stranded).then_some((ctx, state))
        })
    }

    fn close_all(mut self) {
        for ctx in self.who.clone() {
            let _ = self.world.close(ctx);
        }
        self.world.run_for(50 * MS);
        if self.world.quarantined != 0 || self.world.card.gone {
            self.world.vanish();
            self.world.event(Event::Gone).unwrap();
        } else {
            for i in 0..self.world.plans.len() {
                assert_eq!(
                    self.world.machine.slot_state(sid(i)),
                    Some(SlotState::Vacant)
                );
            }
        }
        assert_eq!(self.world.machine.contexts(), 0);
        assert_eq!(self.world.released.len(), self.who.len());
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn random_schedules(setting in setting(), ops in prop::collection::vec(op(), 1..120)) {
        let mut play = Play::new(&setting, CONTEXTS);
        for op in ops {
            play.step(op);
        }
        play.finish();
    }

    /// On one slot, contexts that always want to run do so in turn.
    #[test]
    fn round_robin_is_fair(
        slices in prop::collection::vec(100..3_000u64, 2..7),
        setting in setting(),
        base in any::<bool>(),
    ) {
        let mut setting = setting;
        setting.plans.truncate(1);
        setting.plans[0].class = 0;
        setting.plans[0].queues = false;
        setting.plans[0].base = base.then_some((500 * US, 100 * US));
        setting.plans[0].relay &= !base;
        let mut play = Play::new(&setting, CONTEXTS);
        for &us in slices.iter().take(6) {
            let ctx = play.world.tenant(us * US);
            play.world.start(ctx, 100_000 * MS).unwrap();
            play.who.push(ctx);
        }
        play.world.run_for(200 * MS);
        let order: Vec<_> = play.world.starts();
        for (i, pair) in order.chunks(play.who.len()).enumerate() {
            assert_eq!(pair, &play.who[..pair.len()], "round {i}");
        }
        assert!(order.len() > play.who.len());
        play.close_all();
    }

    /// Several slots: no context waits longer than the slices and switches of the others take.
    #[test]
    fn waits_are_bounded(
        slices in prop::collection::vec(100..3_000u64, 2..7),
        slots in 1..4usize,
        setting in setting(),
    ) {
        let mut setting = setting;
        let mut plan = setting.plans[0];
        plan.class = 0;
        plan.queues = false;
        setting.plans = vec![plan; slots];
        let mut play = Play::new(&setting, CONTEXTS);
        for &us in slices.iter().take(6) {
            let ctx = play.world.tenant(us * US);
            play.world.start(ctx, 100_000 * MS).unwrap();
            play.who.push(ctx);
        }
        play.world.run_for(200 * MS);
        // Slice, restore that the slice covers, save noticed late (poll or repeated PAUSE), settle
        // time.
        let switch = 3_000 * US + 20 * MS;
        let bound = switch * slices.len() as u64;
        for &ctx in &play.who {
            let tenant = &play.world.tenants[&ctx];
            assert!(tenant.longest_wait < bound, "{ctx:?}: {}", tenant.longest_wait);
            assert!(play.world.stats(ctx).slices > 0);
        }
        play.close_all();
    }
}

/// Each member has its own slot after a freeze, beside a vacant slot.
#[test]
fn members_of_a_gang_are_started_one_by_one_after_a_freeze() {
    let setting = Setting {
        plans: vec![IRQ; 3],
        save: 1000,
        restore: 1000,
        start_lag: 0,
        irq_delay: 0,
        timer_delay: 0,
        timer_first: false,
    };
    let job = NewJob::default();
    let open = |group| Op::Open {
        group,
        class: 0,
        params: Params::DEFAULT,
    };
    let start = |who| Op::Start {
        who,
        us: 1,
        job,
        done: 0,
    };
    let (who, with) = (0, Some(1));
    let moves = Op::Move { who, group: 1 };
    let gang = Op::Gang { who, with };
    let mut play = Play::new(&setting, CONTEXTS);
    for op in [open(0), moves, open(1), gang, start(1), start(0)] {
        play.step(op);
    }
    play.finish();
}
