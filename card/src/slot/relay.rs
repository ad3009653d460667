// SPDX-License-Identifier: GPL-2.0-or-later
//! Orders: what a slot holds, when the present run has to stop, and what runs next.

use super::state::{Phase, Queued, State, Stop};
use super::Slot;
use crate::clock::Clock;
use crate::engine::AppRegs;
use crate::event::{us, OrderFate, What};
use crate::relay::{Entry, Order, Reason, Record, RESULTS};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a slot knows of orders.
#[derive(Default)]
pub(super) struct Relay {
    /// `RELAY[i]`
    pub(super) on: bool,
    pub(super) held: Option<Order>,
    /// The run that occupies the slot, if an order brought it there.
    pub(super) run: Option<Run>,
    /// Number of power-ons: what was to be written later must not survive one.
    pub(super) epoch: u64,
}

/// A run that an order brought about. Times are 0 until they come.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) context: u64,
    pub(super) resume: bool,
    pub(super) cookie: u64,
    pub(super) began: u64,
    pub(super) worked: u64,
    pub(super) stopped: u64,
    /// Where the results go.
    pub(super) results: u64,
    pub(super) offsets: [u16; RESULTS],
    /// AT of the held order has come, and was obeyed or ignored.
    spent: bool,
    /// The stop that has begun saves nothing.
    pub(super) drops: bool,
    /// A misbehaviour: AT of the held order comes so many nanoseconds too late.
    late_ns: u64,
}

impl Run {
    fn new(context: u64, resume: bool, began: u64) -> Self {
        Self {
            context,
            resume,
            cookie: 0,
            began,
            worked: 0,
            stopped: 0,
            results: 0,
            offsets: [0; RESULTS],
            spent: false,
            drops: false,
            late_ns: 0,
        }
    }

    /// The run with its times by another clock.
    pub(super) fn at(&self, clock: impl Fn(u64) -> u64) -> Self {
        let time = |time| if time == 0 { 0 } else { clock(time) };
        Self {
            began: time(self.began),
            worked: time(self.worked),
            stopped: time(self.stopped),
            ..self.clone()
        }
    }

    /// The context is loaded.
    pub(super) fn loaded(&mut self, entry: &Entry) {
        self.results = entry.results;
        self.offsets = entry.offsets;
    }
}

impl Relay {
    /// The held order whose AT is still to come, and when that is due.
    pub(super) fn deadline(&self) -> Option<(Order, u64)> {
        let (order, run) = (self.held?, self.run.as_ref()?);
        let at = us(order.at_us()?).saturating_add(run.late_ns);
        (run.worked != 0 && !run.spent).then(|| (order, Clock::after(run.worked, at)))
    }

    /// Whether the held order has AT 0, which aborts a restore.
    pub(super) fn at_zero(&self) -> bool {
        let late = self.run.as_ref().map_or(0, |run| run.late_ns);
        late == 0 && self.held.is_some_and(|order| order.at_us() == Some(0))
    }

    /// A reset: no order is held, and the run leaves no record.
    pub(super) fn reset(&mut self) {
        self.held = None;
        self.run = None;
    }
}

impl Slot {
    /// A write to `RELAY[i]`.
    pub(super) fn switch_relay(state: &mut State, val: u64) {
        if state.relay.run.is_none() && !state.phase.busy() {
            state.relay.on = val & 1 != 0;
        }
    }

    /// Whether the slot obeys orders.
    pub fn relays(&self) -> bool {
        self.lock().relay.on
    }

    /// A write to `ORDER[i]`.
    pub(super) fn order(&self, state: &mut State, order: Order, t: u64) {
        let run = state.start_count;
        let fate = Self::judge(state, order);
        let accepted = matches!(fate, OrderFate::Held | OrderFate::Taken);
        let seen = order.context().filter(|_| accepted);
        self.host.recorder.record_at(
            t,
            What::Order {
                slot: self.index,
                order,
                run,
                fate,
                seen: seen.and_then(|context| self.peek(context)),
            },
        );
        match fate {
            OrderFate::Held => {
                Self::hold(state, order);
                self.stop_when_due(state, t);
            }
            OrderFate::Withdrawn => state.relay.held = None,
            OrderFate::Taken => self.take(state, order, t),
            OrderFate::Dropped | OrderFate::Ignored | OrderFate::Off => return,
        }
        self.tell_engine(state);
        self.maker.wake();
        self.changed.notify_all();
    }

    fn judge(state: &mut State, order: Order) -> OrderFate {
        if !state.relay.on {
            return OrderFate::Off;
        }
        if state.misbehaviour.ignore_order.take() {
            return OrderFate::Ignored;
        }
        let vacant = state.relay.run.is_none();
        if state.in_reset || order.vacant() != vacant {
            return OrderFate::Dropped;
        }
        let follows = order.after() == state.start_count as u16;
        if !follows && !state.misbehaviour.stale_order.take() {
            return OrderFate::Dropped;
        }
        match (vacant, order) {
            (true, order) if order.next() == 0 || order.reserved() => OrderFate::Dropped,
            (true, _) => OrderFate::Taken,
            (false, order) if order.withdraws() => OrderFate::Withdrawn,
            (false, _) => OrderFate::Held,
        }
    }

    fn hold(state: &mut State, order: Order) {
        state.relay.held = Some(order);
        let Some(run) = state.relay.run.as_mut() else {
            return;
        };
        run.spent = false;
        run.late_ns = match order.at_us() {
            Some(_) => us(state.misbehaviour.late_at.take().unwrap_or(0)),
            None => 0,
        };
    }

    /// Stops the job when AT of the held order is due. Once stopping has begun, every AT is.
    pub(super) fn stop_when_due(&self, state: &mut State, now: u64) {
        let Some((order, due)) = state.relay.deadline() else {
            return;
        };
        let works = state.phase == Phase::Running;
        if !works || now < due && state.pause.is_none() {
            return;
        }
        let at_once = state.pause == Some(Stop::AtOnce);
        if let Some(run) = state.relay.run.as_mut() {
            run.spent = true;
            // After a DROP at once the engine may stand where it cannot be saved.
            run.drops = order.drops() || run.drops && at_once;
        }
        let boundary = self.stops_at_boundary(order);
        let stop = if boundary {
            Stop::AtBoundary
        } else {
            Stop::AtOnce
        };
        self.pause(state, stop, boundary && order.boundary());
    }

    /// Whether the stop that the order asks for is at a boundary.
    pub(super) fn stops_at_boundary(&self, order: Order) -> bool {
        order.boundary() && self.engine.has_boundaries()
            || !order.drops() && self.engine.only_at_boundaries()
    }

    /// A run begins: RUN goes up. The thread loads the context.
    fn take(&self, state: &mut State, order: Order, t: u64) {
        let Some(context) = order.context() else {
            return;
        };
        state.start_count = state.start_count.wrapping_add(1);
        state.phase = Phase::Loading;
        state.pause = None;
        state.restore_us = 0;
        state.written = AppRegs::default();
        if !state.misbehaviour.results_kept {
            state.reads = AppRegs::default();
        }
        state.relay.run = Some(Run::new(context, order.resume(), t));
        state.queued = Some(Queued::Context(context));
        self.host.recorder.record_at(
            t,
            What::Take {
                slot: self.index,
                run: state.start_count,
                context,
            },
        );
    }

    /// The run is over: posts its record and takes the next context. All of it is one step for a
    /// reader of the registers, as the caller holds the lock.
    pub(super) fn choose(
        self: &Arc<Self>,
        state: &mut State,
        reason: Reason,
        results_lost: bool,
        now: u64,
    ) {
        let Some(run) = state.relay.run.take() else {
            return;
        };
        let order = state.relay.held.take().filter(|order| order.next() != 0);
        let is_void = |o: &Order| o.reserved() || o.context() == Some(run.context);
        let taken = order.filter(|order| !is_void(order));
        let goes_back = matches!(reason, Reason::Paused | Reason::NotRun);
        let back = taken.filter(|order| order.back() && goes_back).is_some();
        let told = run.at(|time| self.host.clock.told(time));
        // A run that was refused did not clear the fault of an earlier one.
        let (fault_info, fault_addr) = match reason {
            Reason::Fault => (state.fault_info, state.fault_addr),
            _ => (0, 0),
        };
        let record = Record {
            cookie: run.cookie,
            began: told.began,
            worked: told.worked,
            stopped: told.stopped,
            left: self.host.clock.told(now),
            fault_addr,
            next: taken.map_or(0, |order| order.next() as u32),
            fault_info: fault_info as u32,
            run: state.start_count,
            reason,
            results_lost,
            void: order.is_some() && taken.is_none(),
            back,
        };
        if taken.is_none() {
            self.window.set_size(0);
        }
        let interrupts = self.post(state, &record, run.context);
        if let Some(order) = taken {
            self.take(state, order, now);
            let back = back.then(|| Order::back_to(state.start_count, run.context));
            state.relay.held = back;
        }
        if interrupts {
            self.interrupt(state);
        }
    }
}
