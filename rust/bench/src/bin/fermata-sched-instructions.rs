// SPDX-License-Identifier: GPL-2.0

//! Runs the pure part of a switch, or of a call, under callgrind, which counts the instructions of
//! the scheduler (vm/fermatavm/instructions.py). Arguments: a case, an operation, and the number of
//! slots (1). Prints how many operations were counted.

use fermata_output::say;
use fermata_sched_bench::{Case, Contended, Counts, CASES};
use fermata_sched_host::sched::{Event, Params};
use std::process::ExitCode;

/// Contexts that want the slot.
const CONTEXTS: usize = 64;
/// Number of operations that are counted, after the same number for warm-up.
const TIMES: usize = 200;

/// An operation on a slot under contention.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// A switch at the end of a slice: the timer, and PAUSED.
    Switch,
    /// From the report that a job is saved to the START of the next one.
    Gap,
    /// A whole urgent job: its START, PAUSED, and its FINISH.
    Urgent,
    /// The urgent job's START alone, as by the ioctl.
    Start,
    /// The same, on a vacant slot that no other context wants.
    StartVacant,
    /// A waiting context is held, and resumed: two ioctls.
    Hold,
    /// A parameter is set.
    SetParam,
}

const OPERATIONS: [(&str, Operation); 7] = [
    ("switch", Operation::Switch),
    ("gap", Operation::Gap),
    ("urgent", Operation::Urgent),
    ("start", Operation::Start),
    ("start-vacant", Operation::StartVacant),
    ("hold-resume", Operation::Hold),
    ("set-param", Operation::SetParam),
];

fn perform(it: &mut Contended, operation: Operation, round: usize, count: bool) {
    let run = |it: &mut Contended, what: &dyn Fn(&mut Contended)| {
        it.count(if count { Counts::All } else { Counts::None });
        what(it);
        it.count(Counts::None);
    };
    // Contexts are not used in the order in which they were made.
    let context = |it: &Contended| it.contexts()[round * 29 % CONTEXTS];
    let event = |it: &mut Contended, event| {
        it.call(|machine, now, out| machine.handle(now, event, &mut |action| out(action)))
            .expect("nothing is refused");
    };
    match operation {
        Operation::Switch => run(it, &|it| {
            it.switch();
        }),
        Operation::Gap if count => {
            say!("1");
            it.gap();
        }
        Operation::Gap => _ = it.switch(),
        Operation::Urgent => run(it, &|it| {
            it.interrupt();
        }),
        Operation::Start | Operation::StartVacant => {
            run(it, &|it| it.start_urgent());
            it.interrupt();
        }
        Operation::Hold => {
            let ctx = context(it);
            run(it, &|it| event(it, Event::Preempt { ctx, hold: true }));
            run(it, &|it| event(it, Event::Resume { ctx }));
            it.switch();
        }
        Operation::SetParam => run(it, &|it| {
            let ctx = context(it);
            it.call(|machine, now, out| {
                let mut params = machine.params(ctx).expect("it is there");
                params.weight = 1 + (params.weight + 7) % Params::WEIGHT_MAX;
                machine.set_params(now, ctx, params, &mut |action| out(action))
            })
            .expect("the parameters are good");
        }),
    }
}

fn main() -> ExitCode {
    run();
    fermata_output::status(ExitCode::SUCCESS)
}

fn run() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let case: Option<&Case> = CASES
        .iter()
        .find(|case| Some(case.name) == arguments.first().map(String::as_str));
    let operation = OPERATIONS
        .iter()
        .find(|(name, _)| arguments.get(1).is_some_and(|it| it == name));
    let (Some(case), Some((_, operation))) = (case, operation) else {
        for case in CASES {
            for (name, operation) in OPERATIONS {
                if operation != Operation::Gap || !case.has_relay() {
                    say!("{} {name}", case.name);
                }
            }
        }
        return;
    };
    let contexts = match operation {
        Operation::StartVacant => 0,
        _ => CONTEXTS,
    };
    let slots = arguments.get(2).and_then(|slots| slots.parse().ok());
    let mut it = Contended::on(contexts, *case, slots.unwrap_or(1));
    for round in 0..2 * TIMES {
        perform(&mut it, *operation, round, round >= TIMES);
    }
    say!("{TIMES}");
}
