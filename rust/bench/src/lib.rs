// SPDX-License-Identifier: GPL-2.0

//! A card with one slot and many contexts that all wait for it: what `make bench-sched` and the test of allocations step
//! through.

use fermata_sched_host::sched::{
    Action, ContextConfig, Duration, Entry, Event, Machine, MachineConfig, Params, PolicyKind,
    Profile, SlotConfig, SlotId, Status, Time,
};

/// The policies there are, by name.
pub const POLICIES: [(&str, PolicyKind); 3] = [
    ("fair", PolicyKind::Fair),
    ("round-robin", PolicyKind::RoundRobin),
    ("priority", PolicyKind::Priority),
];

/// One slot under contention.
#[derive(Debug)]
pub struct Contended {
    machine: Machine<Vec<Entry>>,
    slot: SlotId,
    now: u64,
    count: u32,
    /// What the timer is armed for.
    armed: u64,
    /// The last event led to a PAUSE.
    paused: bool,
}

const SLICE: Duration = Duration::from_ms(2);
/// A PAUSE is answered after this time.
const SAVE: u64 = 50_000;

impl Contended {
    /// `contexts` contexts, one on the slot and the others in the queue of `policy`.
    ///
    /// # Panics
    ///
    /// If the scheduler refuses that.
    pub fn new(policy: PolicyKind, contexts: usize) -> Self {
        let mut config = MachineConfig::default();
        config.slots[0] = Some(SlotConfig {
            profile: Profile::Fermata,
            class: 0,
            reset_before_resume: false,
            start_count: 0,
        });
        let mut it = Self {
            machine: Machine::new(config, vec![Entry::EMPTY; contexts]),
            slot: SlotId::new(0).expect("0 is a slot"),
            now: 0,
            count: 0,
            armed: 0,
            paused: false,
        };
        let now = Time::ZERO;
        let set = it.machine.set_policy(now, policy, &mut |_| {});
        set.expect("the card is there");
        for _ in 0..contexts {
            let params = Params {
                timeslice: SLICE,
                ..Params::DEFAULT
            };
            let config = ContextConfig { class: 0, params };
            let ctx = it.machine.add(config).expect("there is room");
            it.event(Event::Start { ctx });
        }
        it
    }

    fn event(&mut self, event: Event) {
        let now = Time::from_ns(self.now);
        let (mut starts, mut paused, mut armed) = (0, false, self.armed);
        let done = self.machine.handle(now, event, &mut |action| match action {
            Action::Start { .. } => starts += 1,
            Action::Pause { .. } => paused = true,
            Action::Arm { at, .. } => armed = at.as_ns(),
            _ => {}
        });
        done.expect("nothing is refused");
        self.count = self.count.wrapping_add(starts);
        (self.paused, self.armed) = (paused, armed);
    }

    /// One switch, as the scheduler sees it: the slice of the one that runs ends while others wait, so PAUSE; PAUSED; the next
    /// one is picked and started.
    ///
    /// # Panics
    ///
    /// If no other context was started.
    pub fn switch(&mut self) {
        let slot = self.slot;
        self.now = self.now.max(self.armed);
        self.event(Event::Timer { slot });
        assert!(self.paused, "the timer was armed for the end of the slice");
        self.now += SAVE;
        let before = self.count;
        let status = Status::from_raw(4 | (u64::from(self.count) << 32));
        self.event(Event::Status { slot, status });
        assert_eq!(self.count, before + 1, "a switch is one START");
    }
}
