// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's side of job queues against the emulated card's engine, in one process: no job is
//! lost, whichever side is faster.
#![allow(missing_docs, clippy::pedantic)]

#[path = "../../../card/tests/engine/words.rs"]
mod words;

use fermata::queue::{Operation, Queue, Reaped};
use fermata::Error;
use fermata_card::engine::{splitmix64, AppRegs, Engine, EngineKind};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use words::{Words, BASE};

const SIZE: usize = 1 << 20;
const DATA: u64 = BASE + (1 << 19);
/// Longer than any wait of these tests takes, on any machine.
const LIMIT: Duration = Duration::from_secs(60);

fn regs(queue: &Queue<'_>) -> AppRegs {
    let mut regs = AppRegs::default();
    for (offset, value) in queue.registers() {
        regs.set(offset as u16, value);
    }
    regs
}

fn fill(n: u64, length: u64) -> Operation {
    Operation::Fill {
        dst: DATA + n % 64 * 64,
        length,
        pattern: n,
    }
}

#[test]
fn each_operation_gives_what_it_says() {
    let memory = Words::new(SIZE);
    let mut queue = Queue::over(&memory.0, BASE, 8).unwrap();
    memory.put(DATA, b"123456789");
    let text = |n| Operation::Crc32c {
        src: DATA,
        length: n,
        crc: 0,
    };
    queue.post(text(9), 10).unwrap();
    queue
        .post(
            Operation::Crc32c {
                src: DATA + 4,
                length: 5,
                crc: 0xf63a_f4ee,
            },
            11,
        )
        .unwrap();
    queue
        .post(
            Operation::Sha256 {
                src: DATA,
                length: 9,
                digest: DATA + 64,
            },
            12,
        )
        .unwrap();
    queue
        .post(
            Operation::Copy {
                src: DATA,
                dst: DATA + 128,
                length: 9,
            },
            13,
        )
        .unwrap();
    queue.post(fill(3, 12), 14).unwrap();
    queue.post(fill(3, (1 << 32) + 1), 15).unwrap();
    queue.post(Operation::End, 16).unwrap();
    assert!(
        queue.post(Operation::End, 17).is_none(),
        "eight pairs hold seven jobs"
    );
    let mut engine = EngineKind::Queue.start(&regs(&queue));
    let mut bus = memory.clone();
    while !engine.step(1 << 14, &mut bus).unwrap().done {}
    engine.finish(&mut bus).unwrap();
    let mut reaped: Vec<Reaped> = std::iter::from_fn(|| queue.reap()).collect();
    reaped.sort_by_key(|job| job.number);
    assert_eq!(
        reaped.iter().map(|job| job.tag).collect::<Vec<_>>(),
        (10..17).collect::<Vec<_>>()
    );
    // The check value of CRC-32C, of the whole and continued from the CRC of "1234".
    let outcomes: Vec<_> = reaped.into_iter().map(|job| job.outcome).collect();
    let crc = Ok(0xe306_9283);
    assert_eq!(
        outcomes,
        [crc, crc, Ok(0), Ok(0), Ok(0), Err(Error::Invalid), Ok(0)]
    );
    assert_eq!(
        memory.vec(DATA + 64, 32),
        Sha256::digest(b"123456789").to_vec()
    );
    assert_eq!(memory.vec(DATA + 128, 9), b"123456789");
    assert_eq!(
        memory.vec(DATA + 192, 12),
        [3, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]
    );
    assert_eq!(
        (queue.outstanding(), queue.completed(), queue.reap()),
        (0, 7, None)
    );
}

#[test]
fn layouts_that_are_not_allowed_are_refused() {
    let memory = Words::new(Queue::bytes(16));
    for entries in [0, 1, 3, 32, 1 << 17, usize::MAX] {
        assert!(
            matches!(Queue::over(&memory.0, BASE, entries), Err(Error::Invalid)),
            "{entries}"
        );
    }
    assert!(Queue::over(&memory.0, BASE + 8, 16).is_err());
    assert!(Queue::over(&memory.0, BASE, 16).is_ok());
}

#[test]
fn jobs_are_reaped_in_any_order_and_their_pairs_used_again() {
    let memory = Words::new(SIZE);
    let mut queue = Queue::over(&memory.0, BASE, 4).unwrap();
    let mut engine = EngineKind::Queue.start(&regs(&queue));
    let mut bus = memory.clone();
    let first = queue.push(fill(0, 1 << 16), 0).unwrap();
    let short: Vec<u64> = (1..3).map(|n| queue.push(fill(n, 8), n).unwrap()).collect();
    assert_eq!(queue.push(fill(3, 8), 3), None);
    while queue.completed() < 2 {
        engine.step(64, &mut bus).unwrap();
    }
    // Only the younger two are complete. Reaping them makes no room, because the pair of the older
    // job is the next to be used.
    assert_eq!(queue.reap_job(first), None);
    assert_eq!(queue.reap_job(short[1]).unwrap().tag, 2);
    assert_eq!(queue.reap_job(short[1]), None);
    assert_eq!(queue.reap().unwrap().tag, 1);
    assert_eq!(queue.reap(), None);
    assert!(!queue.has_room());
    while !engine.idle() {
        engine.step(1 << 14, &mut bus).unwrap();
    }
    assert_eq!(queue.reap().unwrap().tag, 0);
    assert_eq!(
        (queue.push(fill(3, 8), 3), queue.outstanding()),
        (Some(3), 1)
    );
    assert_eq!([queue.reap_job(2), queue.reap_job(99)], [None, None]);
}

/// A card with a driver: runs the engine, preempts it now and then, lets it leave when it is idle,
/// and brings it back at a doorbell. A doorbell that comes while the engine is there is remembered.
fn serve(regs: &AppRegs, mut bus: Words, doorbell: &AtomicBool) {
    let mut engine: Box<dyn Engine> = EngineKind::Queue.start(regs);
    for turn in 0.. {
        if engine.step(256, &mut bus).unwrap().done {
            engine.finish(&mut bus).unwrap();
            break;
        }
        let leaves = engine.idle() && engine.leave(&mut bus).unwrap();
        if leaves || splitmix64(turn) % 8 == 0 {
            engine = EngineKind::Queue.resume(regs, &AppRegs::default(), &engine.save());
        }
        let begin = Instant::now();
        while leaves && !doorbell.swap(false, Ordering::AcqRel) {
            assert!(begin.elapsed() < LIMIT, "the program waits, too");
            std::thread::yield_now();
        }
    }
}

/// Posts `jobs` jobs to a card in another thread, up to `together` at a time with random pauses in
/// between, and reaps them. Returns how many doorbells this took.
fn race(seed: u64, jobs: u64, together: u64) -> u64 {
    let memory = Words::new(SIZE);
    let mut queue = Queue::over(&memory.0, BASE, 16).unwrap();
    let (regs, bus, doorbell) = (regs(&queue), memory.clone(), AtomicBool::new(false));
    let mut doorbells = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&regs, bus, &doorbell));
        let (mut tag, mut random) = (0, seed);
        while tag < jobs {
            random = splitmix64(random);
            (0..random % 200).for_each(|_| std::hint::spin_loop());
            for _ in 0..=random % together {
                queue.push(fill(tag, 8), tag).unwrap();
                tag += 1;
            }
            if queue.needs_doorbell() {
                doorbells += 1;
                doorbell.store(true, Ordering::Release);
            }
            let begin = Instant::now();
            while queue.outstanding() > 0 {
                match queue.reap() {
                    Some(job) => assert_eq!(memory.load(DATA + job.tag % 64 * 64), job.tag),
                    None => std::thread::yield_now(),
                }
                assert!(begin.elapsed() < LIMIT / 4, "job {tag} is left lying");
            }
        }
        queue.push(Operation::End, 0).unwrap();
        doorbell.store(true, Ordering::Release);
    });
    doorbells
}

#[test]
fn no_doorbell_is_lost() {
    // Repeats until one race had both cases: the engine had left, and the engine saw the job in
    // time. On a busy machine this takes more than one race.
    let both = (0..64).any(|seed| (1..20_000).contains(&race(seed, 20_000, 1)));
    assert!(both);
}

#[test]
fn no_job_is_lost_where_several_share_a_doorbell() {
    race(9, 20_000, 10);
}
