// SPDX-License-Identifier: GPL-2.0-or-later
//! A queue engine on its slot: it leaves when there is no work, comes back, and reports completions
//! while it runs.

use crate::common::*;
use fermata_card::config::Profile;
use fermata_card::engine::EngineKind;
use std::sync::atomic::{fence, Ordering};
use std::time::{Duration, Instant};

const EMPTY: u64 = 1 << 10;
const FAULT: u64 = 1 << 8;
const EVENTS: u64 = 0x2c0;
const QUEUE: u64 = 0x10_0000;
const ENTRIES: u64 = 16;
const STATUSES: u64 = QUEUE + 0x1000;
const CONTROL: u64 = QUEUE + 0x2000;
const IDLE: u64 = CONTROL + 16;
const DATA: u64 = QUEUE + 0x4000;
const SNAP: u64 = 0x9000;
const FILL: u64 = 2;
const END: u64 = 5;
const NEVER: u64 = 60_000_000;

struct Queue {
    rig: Rig,
    tail: u64,
}

impl Queue {
    fn on(profile: Profile, set: &'static str) -> Self {
        let mut rig = Rig::new(Options {
            profile,
            engines: vec![EngineKind::Queue, EngineKind::Sha256],
            set: vec![set],
            ..Options::default()
        });
        if profile == Profile::Irq {
            rig.open(0);
        }
        let mut queue = Self { rig, tail: 0 };
        queue.load(0, 0);
        queue
    }

    /// Returns a queue engine that lingers for `us`.
    fn lingering(us: u64) -> Self {
        let queue = Self::on(Profile::Irq, "slot=0,speed=0");
        queue.rig.ask(&format!("set slot=0 linger_us={us}"));
        queue
    }

    fn load(&mut self, count: u64, us: u64) {
        let registers = [
            (0x30, QUEUE),
            (0x38, STATUSES),
            (0x40, ENTRIES),
            (0x48, CONTROL),
            (TAG, 5),
            (0x58, count),
            (0x60, us),
        ];
        registers
            .iter()
            .for_each(|&(off, val)| self.rig.sw(0, off, val));
        self.rig.snapshot(0, SNAP);
    }

    fn start(&mut self) {
        self.rig.sw(0, CTL, START_NEW);
    }

    /// Resumes the engine, as a driver does after another tenant.
    fn resume(&mut self) {
        self.rig.sw(0, CTL, START_RESUME);
    }

    /// Posts a job. Returns whether the job needs a doorbell.
    fn post(&mut self, op: u64, length: u64) -> bool {
        let at = QUEUE + self.tail % ENTRIES * 64;
        assert_eq!(self.rig.get64(at) & 1, 0, "the ring is full");
        let words = [self.tail, 0, DATA, length, self.tail, 0, 0];
        for (i, word) in (1..).zip(words) {
            self.rig.put64(at + 8 * i, word);
        }
        self.rig.put64(at, 1 | op << 32);
        self.tail += 1;
        fence(Ordering::SeqCst);
        self.rig.get64(IDLE) != 0
    }

    fn reap(&mut self, n: u64) {
        let status = STATUSES + n % ENTRIES * 32;
        assert_eq!([0, 8].map(|o| self.rig.get64(status + o)), [3, n]);
        self.rig.put64(QUEUE + n % ENTRIES * 64, 0);
        self.rig.put64(status, 0);
    }

    fn completes(&mut self, n: u64) {
        let begin = Instant::now();
        while self.rig.get64(CONTROL) < n {
            assert!(begin.elapsed() < LIMIT, "a job is left lying");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn history(&self) -> String {
        let all = self.rig.ask("history from=0");
        all.split("events=").nth(1).unwrap().to_string()
    }
}

#[test]
fn an_engine_without_work_leaves_and_comes_back_with_a_doorbell() {
    let mut queue = Queue::lingering(20);
    queue.start();
    for n in 0..40 {
        assert_eq!(queue.rig.wait_irq(0), 1);
        assert_eq!(queue.rig.status(0), PAUSED | EMPTY);
        assert_eq!(queue.rig.get64(IDLE), 1);
        assert!(queue.post(FILL, 8), "a doorbell is needed");
        queue.resume();
        queue.completes(n + 1);
        queue.reap(n);
        assert_eq!(queue.rig.get64(DATA), n);
    }
    assert_eq!(queue.rig.wait_irq(0), 1);
    assert_eq!(queue.rig.get64(CONTROL + 8), 40);
    // The interrupt is counted by the time the slot can be read.
    assert_eq!(queue.rig.status(0), PAUSED | EMPTY);
    let counters = queue.rig.table("counters slot=0");
    let told = ["paused", "emptied", "irqs", "pauses_written", "events"].map(|key| counters[key]);
    assert_eq!(told, [41, 41, 41, 0, 0]);
    assert!(queue
        .history()
        .starts_with("0:start:0x5,0:emptied:0x5,0:resume:0x5,0:emptied:0x5"));
    queue.rig.clean();
    let (online, offline) = queue.rig.replay();
    assert_eq!((online.as_str(), offline.as_str()), ("total=0", "total=0"));
}

#[test]
fn no_job_is_left_lying_however_it_is_posted() {
    for linger in [0, 15, 200] {
        let mut queue = Queue::lingering(linger);
        queue.start();
        let mut doorbells = 0;
        for n in 0..400 {
            let begin = Instant::now();
            let pause = Duration::from_nanos(splitmix64(n) % 300_000);
            while begin.elapsed() < pause {}
            if queue.post(FILL, 8) {
                // The driver's part: it resumes an engine that has left; if the doorbell comes too
                // early, the driver remembers it.
                doorbells += 1;
                queue.rig.wait(0, |s| s == PAUSED | EMPTY);
                queue.resume();
            }
            queue.completes(n + 1);
            queue.reap(n);
        }
        queue.rig.wait(0, |s| s == PAUSED | EMPTY);
        let counters = queue.rig.table("counters slot=0");
        assert_eq!(counters["resumes"], doorbells);
        queue.rig.clean();
    }
}

#[test]
fn a_pause_that_meets_no_work_is_empty() {
    let mut queue = Queue::lingering(NEVER);
    queue.start();
    queue.rig.wait_running(0);
    queue.rig.sw(0, CTL, PAUSE);
    assert_eq!(queue.rig.wait_rest(0), PAUSED | EMPTY);
    assert_eq!((queue.rig.get64(IDLE), queue.rig.wait_irq(0)), (1, 1));
    assert_eq!(queue.history(), "0:start:0x5,0:pause:0x5,0:emptied:0x5");
    queue.rig.clean();
}

#[test]
fn a_pause_that_meets_work_is_not() {
    let mut queue = Queue::lingering(20);
    queue.start();
    for n in 0..5 {
        queue.rig.wait(0, |s| s == PAUSED | EMPTY);
        assert!(queue.post(FILL, 1_000_000));
        queue.rig.ask("set slot=0 speed=1");
        queue.resume();
        let begin = Instant::now();
        while queue.rig.get64(STATUSES + n % ENTRIES * 32) == 0 {
            assert!(begin.elapsed() < LIMIT);
        }
        queue.rig.sw(0, CTL, PAUSE);
        assert_eq!(queue.rig.wait_rest(0), PAUSED);
        assert_eq!((queue.rig.get64(IDLE), queue.rig.get64(CONTROL)), (0, n));
        queue.rig.ask("set slot=0 speed=0");
        // There is no doorbell: the driver has to resume the engine.
        queue.resume();
        queue.completes(n + 1);
        queue.reap(n);
    }
    queue.rig.clean();
}

#[test]
fn end_finishes_the_job() {
    let mut queue = Queue::lingering(NEVER);
    queue.start();
    queue.post(FILL, 64);
    queue.post(END, 0);
    assert_eq!(queue.rig.wait_rest(0), FINISH);
    assert_eq!(
        [0x30, 0x38, 0x40].map(|off| queue.rig.sr(0, off)),
        [2, 2, 0]
    );
    queue.rig.sw(0, 0x40, 3);
    queue.start();
    assert_eq!(queue.rig.wait_rest(0), FINISH);
    assert_eq!(
        [0x30, 0x38, 0x40].map(|off| queue.rig.sr(0, off)),
        [0, 0, 22]
    );
    queue.rig.clean();
}

#[test]
fn a_control_block_outside_the_window_is_a_fault() {
    let mut queue = Queue::lingering(0);
    queue.rig.window(0, 0, CONTROL);
    queue.start();
    assert_eq!(queue.rig.wait_rest(0), FINISH | FAULT);
    assert_eq!(queue.rig.sr(0, 0x40), 14);
    // The window closes while the engine is polling: the word that the engine writes to leave is
    // refused.
    let mut queue = Queue::lingering(NEVER);
    queue.start();
    queue.completes(0);
    queue.rig.window(0, 0, CONTROL);
    queue.rig.sw(0, CTL, PAUSE);
    assert_eq!(queue.rig.wait_rest(0), FINISH | FAULT);
    queue.rig.saw("window_busy", 1);
}

#[test]
fn events_come_by_count_while_it_runs() {
    let mut queue = Queue::lingering(NEVER);
    queue.load(4, NEVER);
    queue.start();
    for n in 0..12 {
        queue.post(FILL, 8);
        // Waits until the step that completed the job is over, so that it does not take the next
        // job, too.
        let begin = Instant::now();
        while queue.rig.sr(0, 0x38) <= n {
            assert!(begin.elapsed() < LIMIT, "a job is left lying");
        }
    }
    let begin = Instant::now();
    while queue.rig.r(EVENTS) < 3 {
        assert!(begin.elapsed() < LIMIT);
    }
    assert_eq!(queue.rig.status(0), RUNNING);
    queue.post(FILL, 8);
    queue.completes(13);
    queue.rig.sw(0, CTL, PAUSE);
    assert_eq!(queue.rig.wait_rest(0), PAUSED | EMPTY);
    let counters = queue.rig.table("counters slot=0");
    assert_eq!(
        ["events", "completions", "irqs"].map(|key| counters[key]),
        [3, 12, 4]
    );
    assert_eq!((queue.rig.r(EVENTS), queue.rig.r(EVENTS + 8)), (3, 0));
    // Completions covered by PAUSED are not reported again; a reset keeps the count, power-on does
    // not.
    queue.resume();
    queue.post(FILL, 8);
    queue.completes(14);
    queue.rig.reset(0);
    queue.rig.status(0);
    assert_eq!(queue.rig.r(EVENTS), 3);
    queue.rig.clean();
    queue.rig.card().device_reset();
    queue.rig.master();
    assert_eq!(queue.rig.r(EVENTS), 0);
}

#[test]
fn events_come_by_time_and_not_without_completions() {
    let mut queue = Queue::lingering(NEVER);
    queue.load(1000, 50);
    queue.start();
    for n in 0..3 {
        queue.post(FILL, 8);
        assert_eq!(queue.rig.wait_irq(0), 1);
        assert_eq!(
            (queue.rig.r(EVENTS), queue.rig.get64(CONTROL)),
            (n + 1, n + 1)
        );
    }
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(
        (queue.rig.irqs(0), queue.rig.r(EVENTS), queue.rig.status(0)),
        (0, 3, RUNNING)
    );
    queue.rig.clean();
}

#[test]
fn leaving_covers_what_is_not_told() {
    let mut queue = Queue::lingering(0);
    queue.load(1000, NEVER);
    queue.post(FILL, 8);
    queue.post(FILL, 8);
    queue.start();
    queue.rig.wait(0, |s| s == PAUSED | EMPTY);
    let told = (
        queue.rig.get64(CONTROL),
        queue.rig.r(EVENTS),
        queue.rig.irqs(0),
    );
    assert_eq!(told, (2, 0, 1));
    queue.rig.clean();
}

#[test]
fn a_hung_engine_does_not_leave() {
    let mut queue = Queue::lingering(NEVER);
    queue.start();
    queue.rig.wait_running(0);
    queue.rig.ask("fault slot=0 hang=1");
    queue.rig.ask("set slot=0 linger_us=0");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((queue.rig.status(0), queue.rig.get64(IDLE)), (RUNNING, 0));
    queue.rig.reset(0);
    assert_eq!(
        (queue.rig.status(0), queue.rig.irqs(0)),
        (crate::common::IDLE, 0)
    );
}

#[test]
fn on_base_it_goes_on_looking() {
    let mut queue = Queue::on(Profile::Base, "slot=0,speed=0,linger_us=0");
    queue.load(1, 0);
    queue.start();
    for n in 0..20 {
        std::thread::sleep(Duration::from_micros(500));
        assert!(!queue.post(FILL, 8));
        queue.completes(n + 1);
        queue.reap(n);
    }
    assert_eq!(queue.rig.status(0), RUNNING);
    queue.rig.sw(0, CTL, PAUSE);
    assert_eq!(queue.rig.wait_rest(0), PAUSED);
    assert_eq!(queue.rig.get64(IDLE), 0);
    queue.rig.clean();
    assert_eq!(queue.rig.r(EVENTS), u64::MAX);
    queue.rig.saw("bad_access", 1);
}

#[test]
fn capabilities_tell_a_queue() {
    let mut queue = Queue::lingering(0);
    assert_eq!([0, 8].map(|slot| queue.rig.r(0x280 + slot)), [8, 2]);
}
