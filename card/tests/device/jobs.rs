// SPDX-License-Identifier: GPL-2.0-or-later
//! Preemption with the engines: START, PAUSE, RESUME, FINISH. `PAUSE_AT_BOUNDARY`: which engines
//! accept it, where it stops a job, and that the job continues from there; the duration of a
//! restore.

use crate::common::*;
use fermata_card::config::Profile;
use fermata_card::engine::EngineKind;
use sha2::{Digest, Sha256};
use std::time::Duration;

const LIST: u64 = 0x30_0000;
const BUF: u64 = 0x20_0000;
const DATA: u64 = 0x30_0000;
const OUT: u64 = 0x8000;
const SNAP: u64 = 0x9000;
const SLOW: [&str; 3] = ["slot=0,speed=1", "slot=1,speed=20", "slot=2,speed=1"];

fn rig(profile: Profile) -> Rig {
    Rig::with(profile, &SLOW)
}

/// Acts as a driver does around a run: registers, START, PAUSE after a while, and again.
fn preempted(rig: &mut Rig, profile: Profile, slot: u64, regs: &[(u64, u64)]) -> u64 {
    let mut pauses = 0;
    let mut verb = START_NEW;
    if profile == Profile::Irq {
        rig.open(slot);
    }
    loop {
        if profile == Profile::Base {
            rig.reset_and_settle(slot);
        } else {
            rig.reset(slot);
            rig.status(slot);
        }
        regs.iter().for_each(|&(off, val)| rig.sw(slot, off, val));
        rig.snapshot(slot, SNAP);
        rig.sw(slot, CTL, verb);
        std::thread::sleep(std::time::Duration::from_millis(1));
        rig.sw(slot, CTL, PAUSE);
        match rig.wait(slot, |s| s == PAUSED || s == FINISH) {
            PAUSED => pauses += 1,
            _ => break,
        }
        verb = START_RESUME;
    }
    if profile == Profile::Base {
        std::thread::sleep(std::time::Duration::from_millis(1));
        rig.status(slot);
    }
    pauses
}

#[test]
fn linkedlist_is_preempted() {
    for profile in [Profile::Irq, Profile::Base] {
        let mut rig = rig(profile);
        let (head, count, checksum) = rig.list(LIST, 300_000, 77);
        let pauses = preempted(
            &mut rig,
            profile,
            0,
            &[(0x30, head), (0x38, 0), (0x40, 77), (0x48, OUT), (TAG, 5)],
        );
        assert!(pauses > 0);
        assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), (count, checksum));
        assert_eq!(
            (rig.sr(0, 0x38), rig.sr(0, 0x40), rig.sr(0, 0x48)),
            (count, checksum, count)
        );
        rig.clean();
    }
}

#[test]
fn membench_is_preempted() {
    for profile in [Profile::Irq, Profile::Base] {
        let mut all_pauses = 0;
        for mode in 0..8 {
            let mut rig = rig(profile);
            let (lines, count, seed) = (64u64, 8000u64, 9u64);
            let mut model: Vec<u64> = (0..lines * 8).map(splitmix64).collect();
            rig.put(
                BUF,
                &model
                    .iter()
                    .flat_map(|w| w.to_le_bytes())
                    .collect::<Vec<_>>(),
            );
            let mut checksum = 0u64;
            for n in 0..count {
                let line = if mode & 2 != 0 {
                    splitmix64(seed + n)
                } else {
                    n
                } % lines;
                for k in 0..8 {
                    let at = (line * 8 + k) as usize;
                    let pattern = splitmix64(seed ^ (line * 8 + k));
                    let (word, new) = match (mode & 4 != 0, mode & 1 != 0) {
                        (true, _) => (model[at], model[at] ^ pattern),
                        (false, true) => (pattern, pattern),
                        (false, false) => (model[at], model[at]),
                    };
                    checksum = checksum.rotate_left(5) ^ word;
                    model[at] = new;
                }
            }
            let regs = [
                (0x30, BUF),
                (0x38, lines * 64),
                (0x40, count),
                (0x48, seed),
                (0x58, mode),
                (0x60, OUT),
                (TAG, 6),
            ];
            all_pauses += preempted(&mut rig, profile, 1, &regs);
            assert_eq!(
                (rig.get64(OUT), rig.get64(OUT + 8)),
                (count, checksum),
                "mode {mode}"
            );
            assert_eq!((rig.sr(1, 0x48), rig.sr(1, 0x60)), (count, checksum));
            let memory = rig.get(BUF, lines as usize * 64);
            assert!(
                memory
                    == model
                        .iter()
                        .flat_map(|w| w.to_le_bytes())
                        .collect::<Vec<_>>(),
                "mode {mode}"
            );
            rig.clean();
        }
        assert!(all_pauses > 0);
    }
}

#[test]
fn sha256_is_preempted() {
    for profile in [Profile::Irq, Profile::Base] {
        for len in [0usize, 1, 55, 56, 63, 64, 119, 120, 400_003] {
            let mut rig = rig(profile);
            let data: Vec<u8> = (0..len as u64).map(|i| splitmix64(i) as u8).collect();
            rig.put(DATA, &data);
            let pauses = preempted(
                &mut rig,
                profile,
                2,
                &[(0x30, DATA), (0x38, len as u64), (0x40, OUT), (TAG, 7)],
            );
            assert!(pauses > 0 || len < 400_000);
            let digest = Sha256::digest(&data).to_vec();
            assert_eq!(rig.get(OUT, 32), digest, "{len} bytes");
            let regs: Vec<u8> = [0x58, 0x60, 0x68, 0x70]
                .iter()
                .flat_map(|&o| rig.sr(2, o).to_le_bytes())
                .collect();
            assert_eq!(regs, digest);
            assert_eq!(rig.sr(2, 0x38), len as u64);
            rig.clean();
        }
    }
}

const STOPPED_AT: u64 = 0x58;
const CAPS: u64 = 0x280;
/// How often a job is stopped while it is slow; it is long enough for many more stops.
const STOPS: usize = 5;

/// linkedlist, membench, sha256, blockmix.
fn mixed_rig(profile: Profile, set: &'static str) -> Rig {
    use EngineKind::{Blockmix, Linkedlist, Membench};
    let mut rig = Rig::new(Options {
        profile,
        engines: vec![Linkedlist, Membench, EngineKind::Sha256, Blockmix],
        set: vec![set],
        ..Options::default()
    });
    if profile == Profile::Irq {
        (0..4).for_each(|slot| rig.open(slot));
    }
    (0..4).for_each(|slot| rig.snapshot(slot, SNAP));
    rig
}

/// Computes blockmix as docs/emulated-card.md defines it: the buffer after `blocks` blocks, and the
/// digest.
fn mixed(data: &[u8], block: usize, blocks: usize, seed: u64) -> (Vec<u8>, u64) {
    let mut out = data.to_vec();
    let mut digest = seed;
    for block in out.chunks_mut(block).take(blocks) {
        let before = digest;
        for (k, word) in block.chunks_exact_mut(8).enumerate() {
            let value = u64::from_le_bytes(word.try_into().unwrap())
                ^ splitmix64(before.wrapping_add(k as u64));
            word.copy_from_slice(&value.to_le_bytes());
            digest = digest.rotate_left(5) ^ value;
        }
    }
    (out, digest)
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64 / 8)
        .flat_map(|i| splitmix64(i).to_le_bytes())
        .collect()
}

/// Sets the registers of a mix of `len` bytes at BUF.
fn set_mix(rig: &mut Rig, len: usize, block: u64, seed: u64) {
    for (off, val) in [
        (0x30, BUF),
        (0x38, len as u64),
        (0x40, block),
        (0x48, seed),
        (0x60, OUT),
        (TAG, 4),
    ] {
        rig.sw(3, off, val);
    }
}

#[test]
fn capabilities_name_what_an_engine_can() {
    let mut irq = mixed_rig(Profile::Irq, "slot=all,speed=0");
    let caps = |rig: &mut Rig| [0, 1, 2, 3].map(|slot| rig.r(CAPS + 8 * slot));
    assert_eq!(caps(&mut irq), [3, 0, 2, 6]);
    let mut base = mixed_rig(Profile::Base, "slot=all,speed=0");
    assert_eq!(caps(&mut base), [u64::MAX; 4], "no such register");
}

#[test]
fn blockmix_mixes() {
    let mut rig = mixed_rig(Profile::Irq, "slot=all,speed=0");
    assert_eq!(rig.sr(3, 0x10), 0x424c_4f43_4b4d_4958);
    assert_eq!(rig.sr(3, 0x08), 4);
    // (bytes, BLOCK, the block size that results)
    for (len, block, real) in [
        (0, 4096, 4096),
        (64, 64, 64),
        (100, 64, 64),
        (8192, 1024, 1024),
        (10_048, 1024, 1024),
        (1024, 0, 64),
        (1024, 100, 64),
        (200_000, 1 << 40, 65536),
    ] {
        let data = noise(len);
        rig.put(BUF, &data);
        set_mix(&mut rig, len, block, 9);
        rig.sw(3, CTL, START_NEW);
        assert_eq!(rig.wait_rest(3), FINISH);
        let whole = len / 64 * 64;
        let blocks = whole.div_ceil(real);
        let (want, digest) = mixed(&data[..whole], real, blocks, 9);
        assert_eq!(
            rig.get(BUF, whole),
            want,
            "{len} bytes in blocks of {block}"
        );
        assert_eq!(
            (rig.get64(OUT), rig.get64(OUT + 8)),
            (blocks as u64, digest)
        );
        assert_eq!(
            (rig.sr(3, 0x38), rig.sr(3, 0x40), rig.sr(3, STOPPED_AT)),
            (blocks as u64, digest, blocks as u64)
        );
        rig.reset(3);
    }
    rig.clean();
}

/// At every boundary, finished blocks are complete, the others are untouched, and the job continues
/// to the same result.
#[test]
fn blockmix_stops_between_blocks_only_and_goes_on() {
    const BLOCKS: u64 = 2000;
    const LEN: usize = BLOCKS as usize * 512;
    for command in [PAUSE, PAUSE_AT_BOUNDARY] {
        let mut rig = mixed_rig(Profile::Irq, "slot=all,speed=1");
        let data = noise(LEN);
        rig.put(BUF, &data);
        set_mix(&mut rig, LEN, 512, 7);
        rig.sw(3, CTL, START_NEW);
        let mut stops = Vec::new();
        loop {
            // Into the next block.
            let done = stops.last().copied().unwrap_or(0);
            while rig.get(BUF + done * 512, 64) == data[done as usize * 512..][..64] {
                std::thread::sleep(Duration::from_micros(20));
            }
            rig.sw(3, CTL, command);
            if rig.wait_rest(3) == FINISH {
                break;
            }
            let at = rig.sr(3, STOPPED_AT);
            assert!(at > done && at == rig.sr(3, 0x38));
            let (want, digest) = mixed(&data, 512, at as usize, 7);
            assert_eq!(rig.get(BUF, LEN), want, "stopped after {at} blocks");
            assert_eq!((rig.get64(SNAP), rig.get64(SNAP + 8)), (at, digest));
            assert_eq!(rig.get(SNAP + 16, 4080), [0; 4080]);
            stops.push(at);
            if at == BLOCKS {
                break;
            }
            rig.reset(3);
            set_mix(&mut rig, LEN, 512, 7);
            rig.sw(3, CTL, START_RESUME);
            if stops.len() <= STOPS {
                rig.wait_restored(3);
                assert_eq!(rig.sr(3, STOPPED_AT), at);
            }
            if stops.len() == STOPS {
                rig.ask("set slot=3 speed=0");
            }
        }
        assert!(stops.len() >= STOPS, "{stops:?}");
        if rig.status(3) == PAUSED {
            rig.sw(3, CTL, START_RESUME);
            assert_eq!(rig.wait_rest(3), FINISH);
        }
        let (want, digest) = mixed(&data, 512, BLOCKS as usize, 7);
        assert_eq!(rig.get(BUF, LEN), want);
        assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), (BLOCKS, digest));
        rig.clean();
    }
}

/// Starts a hash of `data`, slowly.
fn start_hash(rig: &mut Rig, data: &[u8], command: u64) {
    for (off, val) in [
        (0x30, BUF),
        (0x38, data.len() as u64),
        (0x40, OUT),
        (TAG, 3),
    ] {
        rig.sw(2, off, val);
    }
    rig.sw(2, CTL, command);
}

#[test]
fn sha256_stops_every_4_kib() {
    let mut rig = mixed_rig(Profile::Irq, "slot=2,speed=1");
    let data = noise(2_000_000);
    rig.put(BUF, &data);
    start_hash(&mut rig, &data, START_NEW);
    let (mut done, mut stops) = (0, 0);
    loop {
        while rig.sr(2, 0x38) <= done {
            std::thread::sleep(Duration::from_micros(20));
        }
        rig.sw(2, CTL, PAUSE_AT_BOUNDARY);
        if rig.wait_rest(2) == FINISH {
            break;
        }
        assert!(rig.sr(2, 0x38) > done);
        done = rig.sr(2, 0x38);
        assert_eq!(done % 4096, 0);
        stops += 1;
        rig.reset(2);
        if stops == STOPS {
            rig.ask("set slot=2 speed=0");
        }
        start_hash(&mut rig, &data, START_RESUME);
    }
    assert!(stops >= STOPS);
    assert_eq!(rig.get(OUT, 32), Sha256::digest(&data).to_vec());
    rig.clean();
}

#[test]
fn linkedlist_stops_every_1024_nodes() {
    let mut rig = mixed_rig(Profile::Irq, "slot=0,speed=1");
    let (head, count, checksum) = rig.list(BUF, 400_000, 5);
    let mut command = START_NEW;
    let (mut done, mut stops) = (0, 0);
    loop {
        for (off, val) in [(0x30, head), (0x40, 5), (0x48, OUT), (TAG, 1)] {
            rig.sw(0, off, val);
        }
        rig.sw(0, CTL, command);
        while rig.sr(0, 0x38) <= done {
            std::thread::sleep(Duration::from_micros(20));
        }
        rig.sw(0, CTL, PAUSE_AT_BOUNDARY);
        if rig.wait_rest(0) == FINISH {
            break;
        }
        assert!(rig.sr(0, 0x38) > done);
        done = rig.sr(0, 0x38);
        assert_eq!(done % 1024, 0);
        stops += 1;
        rig.reset(0);
        if stops == STOPS {
            rig.ask("set slot=0 speed=0");
        }
        command = START_RESUME;
    }
    assert!(stops >= STOPS);
    assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), (count, checksum));
    rig.clean();
}

/// A PAUSE at a boundary stops at a multiple of 4 KiB; a PAUSE at once after it stops anywhere.
#[test]
fn a_pause_at_once_after_one_at_a_boundary() {
    let mut rig = mixed_rig(Profile::Irq, "slot=2,speed=1");
    let data = noise(4_000_000);
    rig.put(BUF, &data);
    start_hash(&mut rig, &data, START_NEW);
    rig.ask("fault slot=2 hang=1");
    for _ in 0..3 {
        rig.sw(2, CTL, PAUSE_AT_BOUNDARY);
    }
    assert_eq!(rig.status(2), RUNNING, "a hang takes none");
    rig.ask("fault slot=2 hang=0");
    loop {
        rig.wait_running(2);
        rig.sw(2, CTL, PAUSE_AT_BOUNDARY);
        rig.sw(2, CTL, PAUSE);
        // It does not replace the PAUSE at once.
        rig.sw(2, CTL, PAUSE_AT_BOUNDARY);
        assert_eq!(rig.wait_rest(2), PAUSED, "it never stops but at a boundary");
        let stopped = rig.sr(2, 0x38);
        rig.reset(2);
        if stopped % 4096 != 0 {
            break;
        }
        start_hash(&mut rig, &data, START_RESUME);
    }
    rig.ask("set slot=2 speed=0");
    start_hash(&mut rig, &data, START_RESUME);
    assert_eq!(rig.wait_rest(2), FINISH);
    assert_eq!(rig.get(OUT, 32), Sha256::digest(&data).to_vec());
    let counters = rig.table("counters slot=2");
    assert_eq!(
        counters["pauses_at_boundary"],
        3 + 2 * (counters["pauses_written"] - 3) / 3
    );
    rig.clean();
}

#[test]
fn a_reset_stops_it_within_a_block() {
    let mut rig = mixed_rig(Profile::Irq, "slot=3,speed=1");
    rig.put(BUF, &noise(65536));
    set_mix(&mut rig, 65536, 65536, 0);
    rig.sw(3, CTL, START_NEW);
    while rig.get(BUF, 8) == noise(8) {}
    rig.sw(3, CTL, PAUSE);
    rig.reset(3);
    assert_eq!(rig.status(3), IDLE);
    rig.clean();
}

#[test]
fn it_is_dropped_as_a_pause_is() {
    let mut rig = mixed_rig(Profile::Irq, "slot=2,speed=1");
    rig.sw(2, CTL, PAUSE_AT_BOUNDARY);
    assert_eq!(rig.status(2), IDLE);
    let data = noise(1 << 20);
    rig.put(BUF, &data);
    start_hash(&mut rig, &data, START_NEW);
    rig.sw(2, CTL, PAUSE);
    assert_eq!(rig.wait_rest(2), PAUSED);
    rig.ask("set slot=2 restore_us=1000000 speed=0");
    rig.sw(2, CTL, START_RESUME);
    rig.sw(2, CTL, PAUSE_AT_BOUNDARY);
    assert_eq!(rig.wait_rest(2), FINISH);
    rig.sw(2, CTL, PAUSE_AT_BOUNDARY);
    assert_eq!(rig.status(2), FINISH);
    rig.counted(2, "pauses_dropped", 3);
    rig.clean();
}

#[test]
fn finish_on_pause_holds_for_boundaries() {
    let mut rig = mixed_rig(Profile::Irq, "slot=3,speed=1");
    let data = noise(1 << 20);
    rig.put(BUF, &data);
    set_mix(&mut rig, 1 << 20, 65536, 1);
    rig.ask("fault slot=3 finish_on_pause=1");
    rig.sw(3, CTL, START_NEW);
    rig.sw(3, CTL, PAUSE_AT_BOUNDARY);
    assert_eq!(rig.wait_rest(3), FINISH);
    assert_eq!(rig.get64(OUT + 8), mixed(&data, 65536, 16, 1).1);
    rig.clean();
}

#[test]
fn an_engine_without_boundaries_ignores_the_command() {
    let mut rig = mixed_rig(Profile::Irq, "slot=1,speed=1");
    for (off, val) in [(0x30, BUF), (0x38, 64), (0x40, 1 << 40), (TAG, 2)] {
        rig.sw(1, off, val);
    }
    rig.sw(1, CTL, START_NEW);
    rig.sw(1, CTL, PAUSE_AT_BOUNDARY);
    std::thread::sleep(Duration::from_millis(3));
    assert_eq!(rig.status(1), RUNNING);
    rig.saw("bad_access", 1);
    rig.sw(1, CTL, PAUSE);
    assert_eq!(rig.wait_rest(1), PAUSED);
}

#[test]
fn the_base_profile_has_none_of_it() {
    let mut rig = mixed_rig(Profile::Base, "slot=all,speed=1");
    let head = rig.endless(BUF);
    rig.sw(0, 0x30, head);
    rig.sw(0, CTL, START_NEW);
    rig.sw(0, CTL, PAUSE_AT_BOUNDARY);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(rig.sr(0, CTL), RUNNING);
    rig.saw("bad_access", 1);
    rig.ask("violations clear");
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    rig.reset_and_settle(0);
    rig.ask("set slot=0 restore_us=2000");
    rig.sw(0, CTL, START_RESUME);
    rig.wait_running(0);
    assert_eq!(rig.sr(0, CTL), RUNNING, "nothing but the status");
    rig.reset_and_settle(0);
    // An engine that cannot be saved within a block cannot be here, either.
    let data = noise(1 << 20);
    rig.put(BUF, &data);
    set_mix(&mut rig, 1 << 20, 1024, 0);
    rig.sw(3, CTL, START_NEW);
    while rig.get(BUF, 8) == noise(8) {}
    rig.sw(3, CTL, PAUSE);
    assert_eq!(rig.wait_rest(3), PAUSED);
    let at = rig.sr(3, STOPPED_AT) as usize;
    rig.reset_and_settle(3);
    assert!(at > 0);
    // On a busy machine, the last writes may arrive later than they should.
    let want = mixed(&data, 1024, at, 0).0;
    assert!(rig.comes_to_hold(BUF, &want), "at {at}");
    rig.clean();
}

#[test]
fn the_status_tells_what_a_restore_took() {
    let mut rig = mixed_rig(Profile::Irq, "slot=2,speed=1");
    let took = |rig: &mut Rig| rig.sr(2, CTL) >> 12 & 0xf_ffff;
    let data = noise(4 << 20);
    rig.put(BUF, &data);
    start_hash(&mut rig, &data, START_NEW);
    assert_eq!(took(&mut rig), 0);
    rig.sw(2, CTL, PAUSE);
    assert_eq!(rig.wait_rest(2), PAUSED);
    assert_eq!(took(&mut rig), 0);
    rig.ask("set slot=2 restore_us=900000");
    rig.sw(2, CTL, START_RESUME);
    assert_eq!(took(&mut rig), 0, "not known yet");
    rig.wait_running(2);
    let restore = took(&mut rig);
    assert!(restore >= 900_000);
    assert_eq!(rig.sr(2, CTL) >> 32, 2, "beside the count of STARTs");
    // The duration remains until the next START or reset.
    rig.sw(2, CTL, PAUSE);
    assert_eq!(rig.wait_rest(2), PAUSED);
    assert_eq!(took(&mut rig), restore);
    // A duration of more than a second does not fit.
    rig.ask("set slot=2 restore_us=1100000");
    rig.sw(2, CTL, START_RESUME);
    rig.wait_running(2);
    assert_eq!(took(&mut rig), 0xf_ffff);
    rig.reset(2);
    assert_eq!(rig.sr(2, CTL), 3 << 32);
    rig.ask("set slot=2 speed=0");
    start_hash(&mut rig, &data, START_NEW);
    assert_eq!(rig.wait_rest(2), FINISH);
    assert_eq!(took(&mut rig), 0);
    rig.clean();
}

#[test]
fn the_log_replays_to_the_same_verdict() {
    let mut rig = mixed_rig(Profile::Irq, "slot=all,speed=0");
    rig.sw(0, CTL, PAUSE_AT_BOUNDARY);
    rig.sw(1, CTL, PAUSE_AT_BOUNDARY);
    rig.sw(3, CTL, PAUSE_AT_BOUNDARY);
    let (online, offline) = rig.replay();
    assert_eq!(online, "total=1 bad_access=1");
    assert_eq!(online, offline);
}

/// When a card is stopped, blockmix stops between two blocks, too: the job continues with whole
/// blocks.
#[test]
fn a_stopped_card_stops_blockmix_between_two_blocks() {
    let mut rig = mixed_rig(Profile::Irq, "slot=3,speed=1");
    let (data, block) = (noise(4 * 16384), 16384);
    rig.put(BUF, &data);
    set_mix(&mut rig, data.len(), block as u64, 5);
    rig.sw(3, CTL, START_NEW);
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(5));
        rig.card().freeze(LIMIT).unwrap();
        rig.card().thaw();
    }
    assert_eq!(rig.wait_rest(3), FINISH);
    let (expected, _) = mixed(&data, block, 4, 5);
    assert!(rig.comes_to_hold(BUF, &expected));
    rig.clean();
}
