// SPDX-License-Identifier: GPL-2.0-or-later
//! Jobs end to end on both profiles: START, PAUSE, RESUME, FINISH with the three engines.

use crate::common::*;
use fermata_card::config::Profile;
use sha2::{Digest, Sha256};

const LIST: u64 = 0x30_0000;
const BUF: u64 = 0x20_0000;
const DATA: u64 = 0x30_0000;
const OUT: u64 = 0x8000;
const SNAP: u64 = 0x9000;
const SLOW: [&str; 3] = ["slot=0,speed=1", "slot=1,speed=20", "slot=2,speed=1"];

fn rig(profile: Profile) -> Rig {
    Rig::new(Options {
        profile,
        set: SLOW.to_vec(),
        ..Options::default()
    })
}

/// What a driver does around a run: registers, START, PAUSE after a while, and again.
fn preempted(rig: &mut Rig, profile: Profile, slot: u64, regs: &[(u64, u64)]) -> u64 {
    let mut pauses = 0;
    let mut verb = START_NEW;
    if profile == Profile::Fermata {
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
    for profile in [Profile::Fermata, Profile::Base] {
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
    for profile in [Profile::Fermata, Profile::Base] {
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
    for profile in [Profile::Fermata, Profile::Base] {
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
