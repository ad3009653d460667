// SPDX-License-Identifier: GPL-2.0-or-later
//! Snapshots frame by frame: what is saved, what is omitted, and that the job continues
//! nevertheless.

#[path = "../engine/arena.rs"]
#[allow(dead_code)]
mod arena;

use crate::common::*;
use fermata_card::engine::EngineKind;
use std::collections::BTreeMap;
use std::time::Duration;

const ELF: u64 = 0x10_0000;
const OUT: u64 = 0x20_0000;
const OUT_LEN: u64 = 4096;
const RESULT: u64 = 0x30_0000;
const BUFFER: u64 = 0x40_0000;
const OTHER: u64 = 0x50_0000;
/// 266,240 bytes in frames of 404, as on a Zynq.
const FRAMES: u64 = 660;

fn program() -> &'static arena::Program {
    arena::all().iter().find(|p| p.name == "sort").unwrap()
}

fn rig(set: &[&'static str]) -> Rig {
    let mut options = Options {
        engines: vec![EngineKind::Riscv],
        set: vec!["slot=0,speed=2,frame_bytes=404"],
        ..Options::default()
    };
    options.set.extend(set);
    let mut rig = Rig::new(options);
    rig.open(0);
    rig.put(ELF, &program().elf);
    let len = program().elf.len() as u64;
    let arg = program().arg.into();
    let registers = [
        (TAG, 1),
        (0x30, ELF),
        (0x38, len),
        (0x40, OUT),
        (0x48, OUT_LEN),
        (0x58, arg),
        (0x60, RESULT),
    ];
    registers.iter().for_each(|&(off, val)| rig.sw(0, off, val));
    rig.snapshot(0, BUFFER);
    rig
}

impl Rig {
    fn go(&mut self, how: u64) {
        self.sw(0, CTL, how);
        self.wait_running(0);
    }

    fn pause(&mut self) {
        self.sw(0, CTL, PAUSE);
        self.wait(0, |s| s == PAUSED);
    }

    /// Returns the counters of frames of the saves since the last call.
    fn frames(&self) -> BTreeMap<String, u64> {
        let mut table = self.table("counters slot=0");
        self.ask("counters clear slot=0");
        table.retain(|name, _| name.starts_with("frame"));
        table
    }

    /// Runs the job to its end. Its result must be that of a run without preemptions.
    fn finish(&mut self) {
        self.ask("set slot=0 speed=0");
        self.wait(0, |s| s == FINISH);
        let (want, ..) = arena::run(&program().elf, program().arg, []);
        assert_eq!(self.get(RESULT, 48), want.result);
        assert_eq!(self.get(OUT, OUT_LEN as usize), want.out);
    }
}

#[test]
fn only_frames_that_changed_are_saved() {
    let mut rig = rig(&["slot=0,frame_save_ns=62200"]);
    rig.go(START_NEW);
    rig.pause();
    let all = rig.frames();
    assert_eq!((all["frames_saved"], all["frames_skipped"]), (FRAMES, 0));
    let mut sum = BTreeMap::new();
    for _ in 0..10 {
        rig.go(START_RESUME);
        std::thread::sleep(Duration::from_millis(2));
        rig.pause();
        let frames = rig.frames();
        let skipped = frames["frames_skipped"];
        assert_eq!(frames["frames_saved"] + skipped, FRAMES);
        let bytes = frames["frame_bytes_saved"] + frames["frame_bytes_skipped"];
        assert_eq!(bytes, 65 * 4096);
        assert_eq!(frames["frame_ns_skipped"], skipped * 62_200);
        for (name, n) in frames {
            *sum.entry(name).or_insert(0) += n;
        }
    }
    println!("ten saves: {sum:?}");
    // Two arrays of 4 KiB, a stack, the registers.
    assert!((10..400).contains(&sum["frames_saved"]));
    rig.go(START_RESUME);
    rig.finish();
    rig.clean();
}

#[test]
fn a_new_job_is_saved_whole() {
    let mut rig = rig(&[]);
    for _ in 0..2 {
        rig.go(START_NEW);
        rig.pause();
        assert_eq!(rig.frames()["frames_saved"], FRAMES);
    }
    // Also after a run that omitted frames, in the same buffer.
    rig.go(START_RESUME);
    rig.pause();
    assert!(rig.frames()["frames_skipped"] > 0);
    rig.go(START_NEW);
    rig.pause();
    assert_eq!(rig.frames()["frames_saved"], FRAMES);
    rig.go(START_RESUME);
    rig.finish();
    rig.clean();
}

#[test]
fn a_snapshot_that_goes_elsewhere_is_saved_whole() {
    let mut rig = rig(&[]);
    rig.go(START_NEW);
    rig.pause();
    rig.frames();
    rig.go(START_RESUME);
    // A driver must not do so, but even then nothing may be missing.
    rig.snapshot(0, OTHER);
    rig.pause();
    assert_eq!(rig.frames()["frames_saved"], FRAMES);
    rig.go(START_RESUME);
    rig.finish();
    rig.saw("window_busy", 1);
}

#[test]
fn a_buffer_that_is_moved_between_two_runs_is_no_matter() {
    let mut rig = rig(&[]);
    rig.go(START_NEW);
    rig.pause();
    rig.go(START_RESUME);
    rig.pause();
    let bytes = rig.get(BUFFER, 65 * 4096);
    rig.put(OTHER, &bytes);
    rig.put(BUFFER, &vec![0xff; bytes.len()]);
    rig.snapshot(0, OTHER);
    rig.frames();
    rig.go(START_RESUME);
    rig.pause();
    assert!(rig.frames()["frames_skipped"] > 0);
    rig.go(START_RESUME);
    rig.finish();
    // The checker knows of no save to that address.
    rig.saw("resume_incomplete", 1);
}

#[test]
fn a_buffer_that_changes_under_the_job_is_seen() {
    let mut rig = rig(&[]);
    rig.go(START_NEW);
    rig.pause();
    rig.go(START_RESUME);
    // The program does not use this memory, so that its frame is omitted.
    rig.put64(BUFFER + 4096 + 0x2_0000, 0xbad);
    rig.pause();
    rig.go(START_RESUME);
    rig.saw("resume_forged", 1);
}

#[test]
fn frames_cost_what_is_set() {
    let mut rig = rig(&["slot=0,frame_save_ns=100000,frame_restore_ns=50000"]);
    rig.go(START_NEW);
    rig.pause();
    rig.ask("gaps clear slot=0");
    rig.go(START_RESUME);
    let restore_us = rig.table("state slot=0")["restore_us"];
    assert!(restore_us >= FRAMES * 50, "{restore_us}");
    rig.frames();
    rig.sw(0, CTL, PAUSE);
    rig.wait(0, |s| s == PAUSED);
    let frames = rig.frames();
    let took = rig.table("gaps slot=0")["pause_to_paused_max"];
    assert!(took >= frames["frames_saved"] * 100_000, "{took}");
    rig.clean();
}

#[test]
fn a_save_that_is_reset_away_ends_between_two_frames() {
    let mut rig = rig(&["slot=0,frame_save_ns=1000000000"]);
    rig.go(START_NEW);
    rig.sw(0, CTL, PAUSE);
    rig.reset(0);
    assert_eq!(rig.status(0), IDLE);
    assert_eq!(rig.frames()["frames_saved"], 0);
    rig.clean();
}
