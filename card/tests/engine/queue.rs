// SPDX-License-Identifier: GPL-2.0-or-later
//! The queue engine: it processes jobs as docs/queues.md says, whether it is preempted anywhere or
//! not. No bytes that a program leaves crash it.

use crate::words::{Words, BASE};
use fermata_card::engine::{splitmix64, AppRegs, Bus, Engine, EngineKind, Refused};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

const COPY: u32 = 1;
const FILL: u32 = 2;
const SHA256: u32 = 3;
const CRC32C: u32 = 4;
const END: u32 = 5;
const EINVAL: u32 = 22;
const EFAULT: u64 = 14;
const DONE: u64 = 3;

/// The addresses of the parts: room for 64 entries, then data.
const JOBS: u64 = BASE;
const STATUSES: u64 = BASE + 0x1000;
const CONTROL: u64 = BASE + 0x2000;
const IDLE: u64 = CONTROL + 16;
const DATA: u64 = BASE + 0x3000;
const SIZE: usize = 0x40_000;

#[derive(Clone, Copy, Debug)]
struct Job {
    op: u32,
    src: u64,
    dst: u64,
    length: u64,
    arg: u64,
    reserved: u64,
}

const NO_JOB: Job = Job {
    op: 0,
    src: 0,
    dst: 0,
    length: 0,
    arg: 0,
    reserved: 0,
};
const END_JOB: Job = Job { op: END, ..NO_JOB };

fn fill(dst: u64, length: u64) -> Job {
    Job {
        op: FILL,
        dst,
        length,
        ..NO_JOB
    }
}

/// A program with a queue.
struct Program {
    memory: Words,
    entries: u64,
    tail: u64,
    /// The statuses that it reaped: number, status.
    reaped: Vec<(u64, [u64; 3])>,
    open: Vec<u64>,
}

impl Program {
    fn new(entries: u64) -> Self {
        let memory = Words::new(SIZE);
        for at in (DATA..BASE + SIZE as u64).step_by(8) {
            memory.store(at, splitmix64(at));
        }
        Self {
            memory,
            entries,
            tail: 0,
            reaped: vec![],
            open: vec![],
        }
    }

    fn regs(&self) -> AppRegs {
        regs(JOBS, STATUSES, self.entries, CONTROL)
    }

    fn job_at(&self, n: u64) -> u64 {
        JOBS + n % self.entries * 64
    }

    fn status_at(&self, n: u64) -> u64 {
        STATUSES + n % self.entries * 32
    }

    fn header(&self, n: u64) -> u32 {
        self.memory.load(self.status_at(n)) as u32
    }

    fn write(&self, n: u64, tag: u64, job: &Job) {
        let words = [tag, job.src, job.dst, job.length, job.arg, job.reserved, 0];
        for (at, word) in (self.job_at(n) + 8..).step_by(8).zip(words) {
            self.memory.store(at, word);
        }
        self.memory
            .store(self.job_at(n), 1 | u64::from(job.op) << 32);
    }

    fn has_room(&self) -> bool {
        let valid = |n| self.memory.load(self.job_at(n)) & 1 != 0;
        !valid(self.tail) && self.header(self.tail) == 0 && !valid(self.tail + 1)
    }

    fn post(&mut self, job: &Job) {
        assert!(self.has_room());
        self.write(self.tail, self.tail + 1000, job);
        self.open.push(self.tail);
        self.tail += 1;
    }

    fn reap(&mut self) {
        let done: Vec<u64> = self
            .open
            .iter()
            .copied()
            .filter(|n| self.header(*n) == DONE as u32)
            .collect();
        for n in done {
            let at = self.status_at(n);
            self.reaped
                .push((n, [0, 8, 16].map(|o| self.memory.load(at + o))));
            self.memory.store(self.job_at(n), 0);
            self.memory.store(at, 0);
            self.open.retain(|other| *other != n);
        }
    }

    fn completed(&self) -> u64 {
        self.memory.load(CONTROL)
    }
}

fn regs(jobs: u64, statuses: u64, entries: u64, control: u64) -> AppRegs {
    let mut regs = AppRegs::default();
    for (at, value) in [
        (0x30, jobs),
        (0x38, statuses),
        (0x40, entries),
        (0x48, control),
    ] {
        regs.set(at, value);
    }
    regs
}

/// Feeds `jobs` and an END to a queue, in steps of `cuts` units with a preemption after each.
/// Returns the program and the registers.
fn run(entries: u64, jobs: &[Job], cuts: &[u64]) -> (Program, AppRegs) {
    let mut program = Program::new(entries);
    let mut bus = program.memory.clone();
    let regs = program.regs();
    let mut engine = EngineKind::Queue.start(&regs);
    let end = END_JOB;
    let mut left = jobs.iter().chain([&end]).peekable();
    let mut cuts = cuts.iter();
    loop {
        program.reap();
        while program.has_room() {
            let Some(job) = left.next() else { break };
            program.post(job);
        }
        let cut = cuts.next();
        let progress = engine
            .step(cut.copied().unwrap_or(1 << 14).max(64), &mut bus)
            .unwrap();
        if progress.done {
            break;
        }
        assert!(
            progress.units > 0,
            "no progress with {} open",
            program.open.len()
        );
        if cut.is_some() {
            let state = engine.save();
            assert!(state.len() <= 4096);
            engine = EngineKind::Queue.resume(&regs, &AppRegs::default(), &state);
        }
    }
    engine.finish(&mut bus).unwrap();
    program.reap();
    program.reaped.sort_unstable();
    let readback = engine.readback();
    (program, readback)
}

/// Computes CRC-32C bit by bit.
fn crc32c(crc: u32, data: &[u8]) -> u32 {
    !data.iter().fold(!crc, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| {
            c >> 1 ^ (c & 1) * 0x82f6_3b78
        })
    })
}

/// Models what a job does, in another way. Returns error and result.
fn model(job: &Job, memory: &Words) -> (u32, u64) {
    if job.reserved != 0 || job.length > 1 << 32 || !(COPY..=END).contains(&job.op) {
        return (EINVAL, 0);
    }
    let source = || memory.vec(job.src, job.length as usize);
    match job.op {
        COPY => {
            for at in (0..job.length).step_by(64) {
                let line = memory.vec(job.src + at, 64.min(job.length - at) as usize);
                memory.put(job.dst + at, &line);
            }
        }
        FILL => (0..job.length)
            .for_each(|i| memory.put(job.dst + i, &[job.arg.to_le_bytes()[i as usize % 8]])),
        SHA256 => memory.put(job.dst, &Sha256::digest(source())),
        CRC32C => return (0, u64::from(crc32c(job.arg as u32, &source()))),
        _ => {}
    }
    (0, 0)
}

const REGION: u64 = 0x4000;

/// Jobs that each have their own memory (a copy may overlap itself).
fn jobs() -> impl Strategy<Value = Vec<Job>> {
    let one = (
        0u32..7,
        0u64..3000,
        0u64..5000,
        0u64..5000,
        any::<u64>(),
        prop::bool::weighted(0.05),
    );
    prop::collection::vec(one, 0..14).prop_map(|all| {
        let place =
            |(region, (op, length, src, dst, arg, bad)): (u64, (u32, u64, u64, u64, u64, bool))| {
                let base = DATA + region * REGION;
                // 5 would be an END.
                let op = if op == END { 9 } else { op };
                let dst = if op == SHA256 { dst + 8100 } else { dst };
                Job {
                    op,
                    src: base + src,
                    dst: base + dst,
                    length,
                    arg,
                    reserved: u64::from(bad),
                }
            };
        (0..).zip(all).map(place).collect()
    })
}

proptest! {
    #[test]
    fn preempted_equals_the_model(jobs in jobs(), entries in 1u32..6, cuts in prop::collection::vec(1u64..2000, 0..200)) {
        let entries = 1 << entries;
        let (plain, first) = run(entries, &jobs, &[]);
        let (cut, second) = run(entries, &jobs, &cuts);
        let model_memory = Program::new(entries).memory;
        let n = jobs.len() as u64;
        for (i, job) in (0..).zip(&jobs) {
            let (error, result) = model(job, &model_memory);
            let want = (i, [DONE | u64::from(error) << 32, i + 1000, result]);
            prop_assert_eq!(plain.reaped[i as usize], want, "{:?}", job);
            prop_assert_eq!(cut.reaped[i as usize], want, "{:?}", job);
        }
        prop_assert_eq!(first, second);
        prop_assert_eq!((first.get(0x30), first.get(0x38), first.get(0x40)), (n + 1, n + 1, 0));
        let data = |w: &Words| w.vec(DATA, SIZE - (DATA - BASE) as usize);
        prop_assert!(data(&plain.memory) == data(&model_memory));
        prop_assert!(data(&cut.memory) == data(&model_memory));
        prop_assert_eq!((cut.completed(), cut.memory.load(CONTROL + 8), cut.memory.load(IDLE)), (n + 1, n + 1, 0));
        prop_assert_eq!(cut.reaped.len() as u64, n + 1);
    }
}

fn engine(program: &Program) -> Box<dyn Engine> {
    EngineKind::Queue.start(&program.regs())
}

#[test]
fn a_short_job_overtakes_a_long_one() {
    let mut program = Program::new(8);
    let mut bus = program.memory.clone();
    let mut engine = engine(&program);
    program.post(&fill(DATA, 0x8000));
    program.post(&fill(DATA + 0x8000, 64));
    while program.completed() == 0 {
        engine.step(64, &mut bus).unwrap();
    }
    assert_eq!((program.header(0), program.header(1)), (1, 3));
    assert!(!engine.idle());
    // Its pair is free while the older job is still in progress.
    program.reap();
    assert_eq!(program.reaped.len(), 1);
    while !engine.idle() {
        engine.step(1 << 14, &mut bus).unwrap();
    }
    assert_eq!((program.header(0), program.completed()), (3, 2));
}

#[test]
fn at_most_four_jobs_are_in_hand() {
    let mut program = Program::new(16);
    let mut bus = program.memory.clone();
    let mut engine = engine(&program);
    for i in 0..10 {
        program.post(&fill(DATA + i * 0x2000, 0x2000));
    }
    let mut most = 0;
    while program.completed() < 10 {
        engine.step(64, &mut bus).unwrap();
        let started = (0..10).filter(|n| program.header(*n) == 1).count();
        most = most.max(started);
    }
    assert_eq!(most, 4);
}

#[test]
fn end_waits_for_all_others_and_nothing_follows_it() {
    let mut program = Program::new(8);
    let mut bus = program.memory.clone();
    let mut engine = engine(&program);
    program.post(&fill(DATA, 0x4000));
    for _ in 0..2 {
        program.post(&END_JOB);
    }
    program.post(&fill(DATA, 8));
    while !engine.step(64, &mut bus).unwrap().done {
        assert_eq!(program.header(1) & 2, 0);
    }
    assert_eq!(program.header(0), 3);
    engine.finish(&mut bus).unwrap();
    assert_eq!([1, 2, 3].map(|n| program.header(n)), [3, 0, 0]);
    assert_eq!(program.completed(), 2);
    assert!(!engine.leave(&mut bus).unwrap() && !engine.idle());
}

#[test]
fn an_end_that_is_not_clean_ends_nothing() {
    let mut program = Program::new(8);
    let mut bus = program.memory.clone();
    let mut engine = engine(&program);
    program.post(&Job {
        op: END,
        reserved: 1,
        ..NO_JOB
    });
    program.post(&fill(DATA, (1 << 32) + 1));
    while !engine.idle() {
        assert!(!engine.step(64, &mut bus).unwrap().done);
    }
    program.reap();
    let invalid = DONE | u64::from(EINVAL) << 32;
    assert_eq!(
        program.reaped,
        [(0, [invalid, 1000, 0]), (1, [invalid, 1001, 0])]
    );
}

#[test]
fn registers_that_are_not_allowed_end_it_without_dma() {
    /// A bus that must not be used.
    struct Nowhere;
    impl Bus for Nowhere {
        fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), Refused> {
            panic!("read")
        }
        fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Refused> {
            panic!("write")
        }
        fn attention(&self) -> bool {
            false
        }
        fn wants_boundary(&self) -> bool {
            false
        }
    }
    let bad = [
        regs(JOBS, STATUSES, 0, CONTROL),
        regs(JOBS, STATUSES, 1, CONTROL),
        regs(JOBS, STATUSES, 3, CONTROL),
        regs(JOBS, STATUSES, 1 << 20, CONTROL),
        regs(JOBS, STATUSES, u64::MAX, CONTROL),
        regs(JOBS + 8, STATUSES, 8, CONTROL),
        regs(JOBS, STATUSES + 32, 8, CONTROL),
        regs(JOBS, STATUSES, 8, CONTROL + 1),
    ];
    for regs in bad {
        for mut engine in [
            EngineKind::Queue.start(&regs),
            EngineKind::Queue.resume(&regs, &regs, &[0xff; 4096]),
        ] {
            let progress = engine.step(1 << 14, &mut Nowhere).unwrap();
            assert!(progress.done && progress.units == 0 && !engine.idle());
            assert!(!engine.leave(&mut Nowhere).unwrap());
            assert_eq!(engine.readback().get(0x40), u64::from(EINVAL));
        }
        // The end of a job with invalid registers writes no status, whatever its snapshot says.
        let resumed = EngineKind::Queue.resume(&regs, &regs, &[0xff; 4096]);
        for mut engine in [EngineKind::Queue.start(&regs), resumed] {
            engine.finish(&mut Nowhere).unwrap();
        }
    }
    assert!(
        !EngineKind::Queue
            .start(&regs(JOBS, STATUSES, 65536, CONTROL))
            .step(0, &mut Words::new(SIZE))
            .unwrap()
            .done
    );
}

#[test]
fn an_empty_queue_is_idle_until_a_job_is_posted() {
    let mut program = Program::new(4);
    let mut bus = program.memory.clone();
    let mut engine = engine(&program);
    for turn in 0..9 {
        assert_eq!(engine.step(1 << 14, &mut bus).unwrap().units, 0);
        assert!(engine.idle());
        assert_eq!(program.memory.load(IDLE), 0);
        assert!(engine.leave(&mut bus).unwrap());
        assert_eq!(program.memory.load(IDLE), 1);
        engine = EngineKind::Queue.resume(&program.regs(), &AppRegs::default(), &engine.save());
        program.post(&fill(DATA, 8));
        engine.step(64, &mut bus).unwrap();
        assert_eq!(program.memory.load(IDLE), 0);
        assert!(!engine.idle());
        program.reap();
        assert_eq!(program.reaped.len(), turn + 1);
    }
}

/// A bus on which the program posts a job exactly when the engine writes to `at`.
struct Late {
    memory: Words,
    program: Option<Program>,
    at: u64,
}

impl Bus for Late {
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), Refused> {
        self.memory.read(addr, buf)
    }
    fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), Refused> {
        if addr == self.at && data[0] == 1 {
            let mut program = self.program.take().unwrap();
            program.post(&fill(DATA, 8));
            assert_eq!(
                program.memory.load(IDLE),
                0,
                "its program rings no doorbell"
            );
        }
        self.memory.write(addr, data)
    }
    fn attention(&self) -> bool {
        false
    }
    fn wants_boundary(&self) -> bool {
        false
    }
}

#[test]
fn a_job_posted_between_the_look_and_idle_is_not_left_lying() {
    let program = Program::new(4);
    let mut engine = engine(&program);
    let mut bus = Late {
        memory: program.memory.clone(),
        program: Some(program),
        at: IDLE,
    };
    engine.step(64, &mut bus).unwrap();
    assert!(engine.idle());
    assert!(!engine.leave(&mut bus).unwrap(), "there is a job");
    assert_eq!(bus.memory.load(IDLE), 0);
    engine.step(64, &mut bus).unwrap();
    assert_eq!(bus.memory.load(CONTROL), 1);
}

#[test]
fn a_pause_with_a_job_in_hand_is_not_empty() {
    let mut program = Program::new(4);
    let mut bus = program.memory.clone();
    let mut engine = engine(&program);
    program.post(&fill(DATA, 4096));
    engine.step(64, &mut bus).unwrap();
    assert!(!engine.leave(&mut bus).unwrap());
    assert_eq!(program.memory.load(IDLE), 0);
}

#[test]
fn a_full_ring_is_done_again_and_a_step_ends() {
    let program = Program::new(2);
    let mut bus = program.memory.clone();
    let mut engine = engine(&program);
    // Both entries valid: against the rules, and never reaped.
    for n in 0..2 {
        program.write(n, n, &Job { op: 77, ..NO_JOB });
    }
    for _ in 0..100 {
        let units = engine.step(1 << 14, &mut bus).unwrap().units;
        assert!((1 << 14..1 << 15).contains(&units));
        // What the engine writes over the statuses and the counters has no effect.
        program.memory.store(program.status_at(0), u64::MAX);
        program.memory.store(CONTROL, 0);
        program.memory.store(CONTROL + 8, u64::MAX);
    }
    // Every job costs a line.
    assert_eq!(engine.readback().get(0x38), 100 * (1 << 14) / 64);
    assert!(engine.readback().get(0x30) - engine.readback().get(0x38) <= 4);
}

#[test]
fn addresses_at_the_end_of_the_space_are_refused() {
    let top = u64::MAX - 63;
    for (op, src, dst, length) in [
        (COPY, top, DATA, 256),
        (COPY, DATA, top, 256),
        (FILL, 0, u64::MAX, 2),
        (SHA256, u64::MAX, DATA, 1 << 32),
        (SHA256, DATA, u64::MAX, 0),
        (CRC32C, u64::MAX - 7, 0, 1 << 32),
    ] {
        let mut program = Program::new(4);
        let mut bus = program.memory.clone();
        let mut engine = engine(&program);
        program.post(&Job {
            op,
            src,
            dst,
            length,
            ..NO_JOB
        });
        assert_eq!(engine.step(64, &mut bus), Err(Refused), "{op}");
        assert_eq!((program.header(0), program.completed()), (1, 0));
        assert_eq!(engine.readback().get(0x40), EFAULT);
    }
    for bad in [
        regs(top, STATUSES, 8, CONTROL),
        regs(JOBS, top, 8, CONTROL),
        regs(JOBS, STATUSES, 8, top),
        regs(top, top, 65536, top),
    ] {
        let mut program = Program::new(8);
        let mut bus = program.memory.clone();
        program.post(&Job {
            op: FILL,
            dst: DATA,
            ..NO_JOB
        });
        assert_eq!(
            EngineKind::Queue.start(&bad).step(64, &mut bus),
            Err(Refused)
        );
    }
    // A job of no bytes touches nothing, wherever it points.
    let mut program = Program::new(8);
    let mut bus = program.memory.clone();
    for op in [COPY, FILL, CRC32C] {
        program.post(&Job {
            op,
            src: top,
            dst: top,
            arg: 5,
            ..NO_JOB
        });
    }
    let mut engine = engine(&program);
    while !engine.idle() {
        engine.step(64, &mut bus).unwrap();
    }
    program.reap();
    assert_eq!(
        program
            .reaped
            .iter()
            .map(|(_, s)| (s[0], s[2]))
            .collect::<Vec<_>>(),
        [(3, 0), (3, 0), (3, 5)]
    );
}

/// Memory with other contents at each read.
struct Shifting {
    seed: u64,
    accesses: u64,
    /// If set, every job is marked valid.
    valid: bool,
    small: bool,
}

impl Bus for Shifting {
    fn read(&mut self, _: u64, buf: &mut [u8]) -> Result<(), Refused> {
        self.accesses += 1;
        for chunk in buf.chunks_mut(8) {
            self.seed = splitmix64(self.seed);
            let word = if self.small {
                self.seed % 5000
            } else {
                self.seed
            };
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
        if let (4, Some(first)) = (buf.len(), buf.first_mut()) {
            *first |= u8::from(self.valid);
        }
        if let (60, Some((op, _))) = (buf.len(), buf.split_first_chunk_mut()) {
            *op = ((self.seed >> 40) as u32 % 7).to_le_bytes();
            if self.small {
                buf[44..].fill(0);
            }
        }
        Ok(())
    }
    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Refused> {
        self.accesses += 1;
        Ok(())
    }
    fn attention(&self) -> bool {
        false
    }
    fn wants_boundary(&self) -> bool {
        false
    }
}

proptest! {
    #[test]
    fn no_bytes_crash_it_or_keep_it(
        seed: u64,
        valid: bool,
        small: bool,
        fresh: bool,
        state in prop::collection::vec(any::<u8>(), 0..600),
        words in prop::array::uniform8(any::<u64>()),
        entries in prop_oneof![(0u32..18).prop_map(|n| 1 << n), any::<u64>()],
        budgets in prop::collection::vec(prop_oneof![0u64..20_000, Just(1 << 14)], 1..20),
    ) {
        let mut bus = Shifting { seed, accesses: 0, valid, small };
        let mut file = regs(words[0] & !63, words[1] & !63, entries, words[2] & !63);
        file.set(0x58, words[3]);
        file.set(0x60, words[4]);
        let mut engine = if fresh { EngineKind::Queue.start(&file) } else { EngineKind::Queue.resume(&file, &file, &state) };
        for budget in budgets {
            bus.accesses = 0;
            let progress = engine.step(budget, &mut bus).unwrap();
            prop_assert!(progress.units < budget + 1024);
            // A line takes at most 10 accesses (for a job that is taken and completed), and waking
            // up takes 3.
            prop_assert!(bus.accesses <= 13 + 10 * progress.units / 64, "{} accesses for {}", bus.accesses, progress.units);
            if progress.done {
                engine.finish(&mut bus).unwrap();
                break;
            }
            let _ = engine.leave(&mut bus).unwrap();
            let state = engine.save();
            prop_assert!(state.len() <= 4096);
            engine = EngineKind::Queue.resume(&file, &AppRegs::default(), &state);
        }
        let _ = engine.readback();
    }
}
