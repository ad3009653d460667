// SPDX-License-Identifier: GPL-2.0

//! The cost of a decision, counted and not timed: allocations, of which there are none, since the
//! caller provides the storage of contexts; and accesses to entries of contexts, which cause cache
//! misses. The worst case counts, not the average. It grows no faster than the logarithm of the
//! number of contexts.

use fermata_output::say;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fermata_sched_bench::{Contended, CASES};
use fermata_sched_host::array::accesses;
use fermata_sched_host::sched::{Event, Params, Refusal};

/// The largest cost of one call, by the kind of call.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    /// An event of the card or a timer.
    card: u64,
    /// The arrival of an urgent job.
    urgent: u64,
    /// A request of an owner.
    owner: u64,
}

impl Worst {
    fn all(self) -> [(&'static str, u64); 3] {
        [
            ("card", self.card),
            ("urgent", self.urgent),
            ("owner", self.owner),
        ]
    }
}

struct Run {
    it: Contended,
    worst: Worst,
}

impl Run {
    fn count<R>(&mut self, call: impl FnOnce(&mut Contended) -> R) -> (R, u64) {
        let before = accesses();
        let done = call(&mut self.it);
        (done, accesses() - before)
    }

    fn decide(&mut self) {
        let ((), cost) = self.count(Contended::decide);
        self.worst.card = self.worst.card.max(cost);
    }

    fn owner(&mut self, call: impl FnOnce(&mut Contended) -> Result<(), Refusal>) {
        let (done, cost) = self.count(call);
        done.expect("nothing is refused");
        self.worst.owner = self.worst.owner.max(cost);
    }
}

/// Runs this many rounds, and returns the largest costs. `announced`: now and then many contexts
/// announce work for the same time.
fn worst(it: Contended, rounds: usize, announced: bool) -> Worst {
    let (contexts, slots) = (it.contexts().len(), it.slots());
    let worst = Worst::default();
    let mut run = Run { it, worst };
    let mut random = 1_usize;
    for round in 0..rounds {
        if announced && round % 50 == 0 {
            run.it.announce();
        }
        for _ in 0..2 {
            run.decide();
        }
        if round % 4 == 0 {
            let ((), cost) = run.count(Contended::start_urgent);
            run.worst.urgent = run.worst.urgent.max(cost);
            for _ in 0..3 * slots {
                run.decide();
            }
        }
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let ctx = run.it.contexts()[(random >> 33) % contexts];
        let event = match round % 5 {
            0 => Event::Preempt { ctx, hold: true },
            1 => Event::Preempt { ctx, hold: false },
            2 => {
                run.owner(|it| {
                    it.call(|machine, now, out| {
                        let mut params = machine.params(ctx)?;
                        params.weight = 1 + (random >> 40) as u16 % Params::WEIGHT_MAX;
                        params.priority = (random >> 50) as u8 % (Params::PRIORITY_MAX + 1);
                        machine.set_params(now, ctx, params, &mut |action| out(action))
                    })
                });
                continue;
            }
            _ => Event::Resume { ctx },
        };
        run.owner(|it| {
            it.call(|machine, now, out| machine.handle(now, event, &mut |action| out(action)))
        });
    }
    run.worst
}

/// Checks the worst number of accesses of each kind of call with `contexts` contexts, two to the
/// power of `log`: relative to 64, two to the power of 6, it grows at most in proportion to the
/// logarithm.
fn check(slots: usize, contexts: usize, log: u64) {
    // Enough rounds that most contexts get a turn; and as many with few contexts, so that the worst
    // case is as likely to be seen.
    let rounds = 3 * contexts;
    for case in CASES {
        let name = case.name;
        let few = worst(Contended::on(64, case, slots), rounds, false).all();
        let many = worst(Contended::on(contexts, case, slots), rounds, false).all();
        for ((what, few), (_, many)) in few.into_iter().zip(many) {
            let found = format!(
                "{name}, {slots} slots, {what}: {few} at 64 contexts, {many} at {contexts}"
            );
            say!("{found}");
            assert!(many * 6 <= few * log, "{found}");
        }
    }
}

/// So with 4,096 contexts the number of accesses is at most twice that with 64.
#[test]
fn a_decision_looks_at_no_more_than_log_n_entries() {
    check(1, 4_096, 12);
}

#[test]
fn that_holds_for_several_slots() {
    check(4, 1_024, 10);
}

/// A tenant may make gangs of all its contexts, so that gangs which can only run later want every
/// slot; other tenants may announce work for the same time.
#[test]
fn a_decision_about_gangs_looks_at_a_limited_number_of_entries() {
    const CONTEXTS: usize = 512;
    const SLOTS: usize = 8;
    const MOST: u64 = 70_000;
    let all = CASES.into_iter().filter(|case| !case.has_groups());
    let all = all.flat_map(|case| [(case, false), (case, true)]);
    for (case, apart) in all.filter(|(case, apart)| !(*apart && case.has_reservations())) {
        for gangs in [1, 2, 4, 8, CONTEXTS / SLOTS] {
            let mut it = Contended::on(CONTEXTS, case, SLOTS);
            it.form_gangs(gangs, apart);
            for (what, found) in worst(it, 3_000, true).all() {
                let found_by = format!("{}, {gangs} gangs, {apart}, {what}: {found}", case.name);
                say!("{found_by}");
                assert!(found <= MOST, "{found_by}");
            }
        }
    }
}

/// Counts the calls of each thread separately, because threads of the test harness allocate
/// meanwhile.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends may free memory after its counter is gone.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: the system's allocator does all the work; this only counts calls.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the rules of `alloc`, which are the same for the system's
        // allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller keeps the rules of `dealloc`, and `at` came from the same allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_decision_allocates_nothing() {
    let sizes = [2, 64, 4_096];
    for (case, contexts) in CASES.into_iter().flat_map(|case| sizes.map(|n| (case, n))) {
        let name = case.name;
        let mut contended = Contended::new(case, contexts);
        let before = CALLS.get();
        for _ in 0..2 * contexts {
            contended.switch();
        }
        assert_eq!(CALLS.get(), before, "{name}, {contexts} contexts");
    }
    // The counter works: it has counted the allocation of the scheduler's storage.
    assert!(CALLS.get() > 0);
}
