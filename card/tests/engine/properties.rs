// SPDX-License-Identifier: GPL-2.0-or-later
//! Properties of the engines and parsers: a job that is preempted anywhere gives the same result as
//! one that is not; no bytes crash the card.

use fermata_card::config::{CardConfig, IrqKind, Profile};
use fermata_card::control::Request;
use fermata_card::engine::{splitmix64, AppRegs, Bus, EngineKind, Refused};
use fermata_card::log::replay;
use fermata_card::pci::ConfigSpace;
use fermata_card::regs::Reg;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

/// Memory from address 4096 on; reads outside it return zeros, as on an unmapped address.
struct Memory {
    bytes: Vec<u8>,
    wants_boundary: bool,
}

impl Memory {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            wants_boundary: false,
        }
    }

    fn range(&self, addr: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let at = usize::try_from(addr.checked_sub(4096)?).ok()?;
        (at.checked_add(len)? <= self.bytes.len()).then(|| at..at + len)
    }
}

impl Bus for Memory {
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), Refused> {
        match self.range(addr, buf.len()) {
            Some(range) => buf.copy_from_slice(&self.bytes[range]),
            None => buf.fill(0),
        }
        Ok(())
    }

    fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), Refused> {
        if let Some(range) = self.range(addr, data.len()) {
            self.bytes[range].copy_from_slice(data);
        }
        Ok(())
    }

    fn attention(&self) -> bool {
        false
    }

    fn wants_boundary(&self) -> bool {
        self.wants_boundary
    }
}

/// Runs a job with a preemption after each of `cuts` units. Between runs only the snapshot remains.
fn run(kind: EngineKind, regs: &AppRegs, memory: &mut Memory, cuts: &[u64]) -> AppRegs {
    let mut engine = kind.start(regs);
    for &cut in cuts {
        if engine.step(cut.max(kind.quantum()), memory).unwrap().done {
            engine.finish(memory).unwrap();
            return engine.readback();
        }
        if kind.only_at_boundaries() && !engine.at_boundary() {
            memory.wants_boundary = true;
            while !engine.at_boundary() {
                engine.step(kind.quantum(), memory).unwrap();
            }
            memory.wants_boundary = false;
        }
        let state = engine.save();
        engine = kind.resume(regs, &AppRegs::default(), &state);
    }
    while !engine.step(1 << 20, memory).unwrap().done {}
    engine.finish(memory).unwrap();
    engine.readback()
}

fn regs(values: &[(u16, u64)]) -> AppRegs {
    let mut regs = AppRegs::default();
    values.iter().for_each(|&(off, val)| regs.set(off, val));
    regs
}

fn cuts() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1u64..3000, 0..40)
}

proptest! {
    #[test]
    fn membench_preempted_equals_unpreempted(cuts in cuts(), mode in 0u64..8, seed: u64, count in 0u64..500, lines in 0u64..50) {
        let fresh = || Memory::new((0..8192u64).map(|i| splitmix64(i) as u8).collect());
        let (mut plain, mut cut) = (fresh(), fresh());
        let regs = regs(&[(0x30, 4096), (0x38, lines * 64), (0x40, count), (0x48, seed), (0x58, mode), (0x60, 4096 + 8000)]);
        let first = run(EngineKind::Membench, &regs, &mut plain, &[]);
        let second = run(EngineKind::Membench, &regs, &mut cut, &cuts);
        prop_assert_eq!(first, second);
        prop_assert!(plain.bytes == cut.bytes);
    }

    #[test]
    fn blockmix_preempted_equals_unpreempted(cuts in cuts(), seed: u64, len in 0u64..8000, block in 0u64..2000) {
        let fresh = || Memory::new((0..8192u64).map(|i| splitmix64(i) as u8).collect());
        let (mut plain, mut cut) = (fresh(), fresh());
        let regs = regs(&[(0x30, 4096), (0x38, len), (0x40, block), (0x48, seed), (0x60, 4096 + 8000)]);
        let first = run(EngineKind::Blockmix, &regs, &mut plain, &[]);
        let second = run(EngineKind::Blockmix, &regs, &mut cut, &cuts);
        prop_assert_eq!(first, second);
        prop_assert!(plain.bytes == cut.bytes);
    }

    #[test]
    fn counters_preempted_equal_unpreempted(cuts in cuts(), total in 1u64..50_000, first in 0u64..16) {
        let regs = regs(&[(0x30, total), (0x38, first), (0x40, 4096)]);
        for (kind, last) in [
            (EngineKind::CounterUp, first.wrapping_add(total) & 15),
            (EngineKind::CounterDown, first.wrapping_sub(total) & 15),
        ] {
            let mut memory = Memory::new(vec![0; 16]);
            let end = run(kind, &regs, &mut memory, &cuts);
            prop_assert_eq!((end.get(0x30), end.get(0x38)), (last, total));
            prop_assert_eq!(memory.bytes, [total, last].iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn a_boundary_that_is_wanted_is_not_passed(kind in prop::sample::select(vec![EngineKind::Linkedlist, EngineKind::Sha256, EngineKind::Blockmix]), before in 1u64..9000) {
        // The list is a loop; each engine passes 16 boundaries before the end.
        let mut memory = Memory::new([4096u64, 7].iter().flat_map(|w| w.to_le_bytes()).collect());
        memory.bytes.resize(65536, 0);
        let words = [(0x30, 4096), (0x38, 65536), (0x40, 4096)];
        let mut engine = kind.start(&regs(&words));
        let gap = if kind == EngineKind::Linkedlist { 1024 } else { 4096 };
        let mut done = 0;
        while done < before {
            done += engine.step((before - done).max(kind.quantum()), &mut memory).unwrap().units;
        }
        memory.wants_boundary = true;
        while !engine.at_boundary() {
            let progress = engine.step(kind.chunk(), &mut memory).unwrap();
            prop_assert!(progress.units > 0 && !progress.done);
            done += progress.units;
        }
        prop_assert_eq!(done % gap, 0);
        prop_assert_eq!(engine.step(kind.chunk(), &mut memory).unwrap().units, 0);
        prop_assert!(done < before + gap + kind.quantum());
    }

    #[test]
    fn sha256_preempted_equals_sha256(cuts in cuts(), data in prop::collection::vec(any::<u8>(), 0..20_000)) {
        let digest = Sha256::digest(&data).to_vec();
        let len = data.len() as u64;
        let mut memory = Memory::new(data);
        memory.bytes.extend([0; 32]);
        let regs = regs(&[(0x30, 4096), (0x38, len), (0x40, 4096 + len)]);
        let end = run(EngineKind::Sha256, &regs, &mut memory, &cuts);
        prop_assert_eq!(&memory.bytes[len as usize..], &digest[..]);
        prop_assert_eq!(&end.get(0x58).to_le_bytes()[..], &digest[..8]);
    }

    #[test]
    fn linkedlist_preempted_equals_a_walk(cuts in cuts(), n in 0u64..2000, seed: u64, limit in 0u64..2500) {
        let mut memory = Memory::new(Vec::new());
        let mut want = seed;
        for i in 0..n {
            let next = if i + 1 < n { 4096 + 16 * (i + 1) } else { 0 };
            memory.bytes.extend(next.to_le_bytes());
            memory.bytes.extend(splitmix64(i).to_le_bytes());
            if limit == 0 || i < limit {
                want = want.rotate_left(1) ^ splitmix64(i);
            }
        }
        memory.bytes.extend([0; 16]);
        let head = if n > 0 { 4096 } else { 0 };
        let regs = regs(&[(0x30, head), (0x38, limit), (0x40, seed), (0x48, 4096 + 16 * n)]);
        let end = run(EngineKind::Linkedlist, &regs, &mut memory, &cuts);
        let count = if limit == 0 { n } else { n.min(limit) };
        prop_assert_eq!((end.get(0x38), end.get(0x40)), (count, want));
        prop_assert_eq!(&memory.bytes[16 * n as usize..][..8], &count.to_le_bytes()[..]);
    }

    #[test]
    fn forged_snapshots_do_not_crash(state in prop::collection::vec(any::<u8>(), 0..64), words in prop::array::uniform8(any::<u64>()), small: bool) {
        for kind in [
            EngineKind::Linkedlist, EngineKind::Membench, EngineKind::Sha256, EngineKind::Blockmix, EngineKind::Queue, EngineKind::Riscv, EngineKind::CounterUp,
            EngineKind::CounterDown,
        ] {
            let mut file = AppRegs::default();
            for (i, word) in words.iter().enumerate() {
                file.set(0x30 + 8 * i as u16, if small { word % 10_000 } else { *word });
            }
            let mut memory = Memory::new(vec![0xa5; 4096]);
            let mut engine = kind.resume(&file, &file, &state);
            for _ in 0..4 {
                if engine.step(kind.chunk(), &mut memory).unwrap().done {
                    engine.finish(&mut memory).unwrap();
                    break;
                }
            }
            let _ = (engine.readback(), engine.save());
        }
    }

    #[test]
    fn the_control_parser_takes_anything(line in ".{0,80}") {
        let _ = Request::parse(&line, 3);
    }

    #[test]
    fn the_control_parser_takes_anything_like_a_request(
        verb in "(ping|set|fault|state|tenant|canary|enforce|violations|why|counters|gaps|runs|history|mark|quit)",
        words in prop::collection::vec("(slot|token|gpa|len|pages|speed|text|dead)?=?(all|on|off|clear|gone|-?[0-9]{0,22}|0x[0-9a-f]{0,20}|1\\+1,)", 0..4),
    ) {
        let _ = Request::parse(&format!("{verb} {}", words.join(" ")), 3);
    }

    #[test]
    fn settings_take_anything(text in "(slot=(all|[0-9]),)?.{0,40}") {
        let mut config = CardConfig::new(Profile::Base, IrqKind::None, &[EngineKind::Sha256]).unwrap();
        let _ = config.apply(&text);
    }

    #[test]
    fn any_offset_decodes(off: u64, slots in 1usize..9) {
        for profile in [Profile::Base, Profile::Irq] {
            if let Some(Reg::Slot(slot, _)) = Reg::at(off, profile, slots) {
                prop_assert!(slot < slots);
            }
            let _ = Reg::at(off % 0x1_0000, profile, slots);
        }
    }

    #[test]
    fn config_space_takes_any_access(off in prop_oneof![any::<u64>(), 0u64..4200], data in prop::collection::vec(any::<u8>(), 0..16)) {
        let mut space = ConfigSpace::new(&CardConfig::new(Profile::Irq, IrqKind::Msix, &[EngineKind::Sha256]).unwrap());
        space.write(off, &data);
        let mut back = data.clone();
        space.read(off, &mut back);
        let mut id = [0; 4];
        space.read(0, &mut id);
        prop_assert_eq!(u32::from_le_bytes(id), 0x10f1_1af4);
    }

    #[test]
    fn a_log_of_nonsense_is_an_error(text in "[ -~\n]{1,60}") {
        let _ = replay(text.as_bytes());
    }
}
