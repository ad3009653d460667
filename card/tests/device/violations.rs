// SPDX-License-Identifier: GPL-2.0-or-later
//! Each kind of violation, caused by a raw client, is detected; the replay of the log agrees with
//! the verdict at run time.

use crate::common::*;
use clap::ValueEnum;
use fermata_card::checker::{Checker, Kind};
use fermata_card::config::{CardConfig, IrqKind, Profile};
use fermata_card::engine::EngineKind;
use fermata_card::event::{Event, IrqFate, PauseFate, Phase, What};
use std::time::{Duration, Instant};

const A: u64 = 0xa;
const B: u64 = 0xb;
const ARENA_A: u64 = 0x10_0000;
const ARENA_B: u64 = 0x20_0000;
const SNAP_A: u64 = 0x40_0000;
const SNAP_B: u64 = 0x41_0000;

/// Two tenants with an arena each, on a slow card.
fn rig(profile: Profile) -> Rig {
    let set = ["slot=0,speed=1", "slot=1,speed=20", "slot=2,speed=10"];
    let mut rig = Rig::with(profile, &set);
    rig.ask(&format!("tenant token={A} pages={ARENA_A:#x}+0x20000"));
    rig.ask(&format!(
        "tenant token={B} pages={ARENA_B:#x}+0x10000,{:#x}+0x10000",
        ARENA_B + 0x1_0000
    ));
    rig.ask("enforce on");
    if profile == Profile::Irq {
        (0..3).for_each(|slot| rig.open(slot));
    }
    rig
}

fn arena(tag: u64) -> u64 {
    if tag == A {
        ARENA_A
    } else {
        ARENA_B
    }
}

/// Sets the registers of a membench job that never ends by itself.
fn load(rig: &mut Rig, tag: u64) {
    for (off, val) in [
        (0x30, arena(tag)),
        (0x38, 0x1000),
        (0x40, 1 << 30),
        (0x48, tag),
        (0x58, 1),
        (TAG, tag),
        (0x60, 0),
    ] {
        rig.sw(1, off, val);
    }
    rig.snapshot(1, if tag == A { SNAP_A } else { SNAP_B });
}

fn start(rig: &mut Rig, tag: u64) {
    load(rig, tag);
    rig.sw(1, CTL, START_NEW);
}

fn resume(rig: &mut Rig, tag: u64) {
    load(rig, tag);
    rig.sw(1, CTL, START_RESUME);
    rig.wait_running(1);
}

fn pause(rig: &mut Rig) {
    let begin = Instant::now();
    while rig.sr(1, 0x48) == 0 {
        assert!(begin.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_micros(300));
    }
    rig.sw(1, CTL, PAUSE);
    assert_eq!(rig.wait_rest(1), PAUSED);
}

/// Resets the slot, as each profile requires.
fn quiet(rig: &mut Rig, profile: Profile) {
    match profile {
        Profile::Base => rig.reset_and_settle(1),
        Profile::Irq | Profile::Relay => {
            rig.reset(1);
            rig.status(1);
        }
    }
}

#[test]
fn a_clean_driver_violates_nothing() {
    for profile in [Profile::Irq, Profile::Base] {
        let mut rig = rig(profile);
        let mut begun = [false; 2];
        for turn in 0..10 {
            let tag = if turn % 2 == 0 { A } else { B };
            quiet(&mut rig, profile);
            if std::mem::replace(&mut begun[turn % 2], true) {
                resume(&mut rig, tag);
            } else {
                start(&mut rig, tag);
            }
            pause(&mut rig);
        }
        quiet(&mut rig, profile);
        rig.ask("mark text=end");
        rig.clean();
        let runs = rig.ask("runs slot=1");
        assert!(
            runs.contains("0xa:1:4:5:0:") && runs.contains("0xb:1:4:5:0:"),
            "{runs}"
        );
        let gaps = rig.table("gaps slot=1");
        assert_eq!((gaps["count"], gaps["pause_to_paused_count"]), (9, 10));
        assert!(gaps["p50"] <= gaps["p99"] && gaps["p99"] <= gaps["max"]);
        let (online, offline) = rig.replay();
        assert_eq!((online.as_str(), offline.as_str()), ("total=0", "total=0"));
    }
}

/// Causes a violation on an irq card, and compares the replay of the log.
fn planted(kind: Kind, n: u64, plant: impl FnOnce(&mut Rig)) {
    planted_on(Profile::Irq, kind, n, plant);
}

fn planted_on(profile: Profile, kind: Kind, n: u64, plant: impl FnOnce(&mut Rig)) {
    let mut rig = rig(profile);
    plant(&mut rig);
    rig.saw(&kind.name(), n);
    assert!(rig.ask("why").starts_with(&kind.name()));
    assert!(rig
        .log_text()
        .contains(&format!("\"kind\":\"{}\"", kind.name())));
    let (online, offline) = rig.replay();
    assert_eq!(online, offline);
}

#[test]
fn start_busy() {
    planted(Kind::StartBusy, 2, |rig| {
        start(rig, A);
        rig.sw(1, CTL, START_NEW);
        rig.w(0x18, 2);
        rig.sw(1, CTL, START_NEW);
    });
}

#[test]
fn start_undrained() {
    planted_on(Profile::Base, Kind::StartUndrained, 1, |rig| {
        rig.ask("set slot=1 settle_us=60000000");
        rig.reset(1);
        start(rig, A);
    });
    planted_on(Profile::Base, Kind::StartUndrained, 1, |rig| {
        rig.ask("set slot=1 settle_us=60000000");
        rig.reset(1);
        rig.offset(1, 4096);
    });
    // PAUSED is not quiescence.
    planted_on(Profile::Base, Kind::StartUndrained, 1, |rig| {
        rig.ask("set slot=1 drain_us=60000000");
        start(rig, A);
        pause(rig);
        rig.sw(1, CTL, START_RESUME);
    });
    // irq: the read that flushes a reset is missing.
    planted(Kind::StartUndrained, 1, |rig| {
        start(rig, A);
        rig.reset(1);
        rig.window(1, 0, RAM / 2);
    });
}

#[test]
fn window_busy() {
    planted(Kind::WindowBusy, 4, |rig| {
        start(rig, A);
        rig.offset(1, 4096);
        rig.offset(1, 0);
        rig.w(0x1c8, RAM - 64);
        rig.w(0x1c8, RAM - 64);
        rig.snapshot(1, SNAP_B);
        rig.sw(1, CTL, PAUSE);
        rig.wait_rest(1);
    });
}

#[test]
fn resume_incomplete() {
    planted(Kind::ResumeIncomplete, 1, |rig| resume(rig, A));
    // A save that was cut short does not count.
    planted(Kind::ResumeIncomplete, 1, |rig| {
        start(rig, A);
        pause(rig);
        rig.ask("fault slot=1 save_torn=20");
        resume(rig, A);
        rig.sw(1, CTL, PAUSE);
        assert_eq!(rig.wait_rest(1), FINISH | 1 << 9);
        resume(rig, A);
    });
}

#[test]
fn resume_stale() {
    // Twice from the same snapshot.
    planted(Kind::ResumeStale, 1, |rig| {
        start(rig, A);
        pause(rig);
        resume(rig, A);
        quiet(rig, Profile::Irq);
        resume(rig, A);
    });
    // From an older snapshot.
    planted(Kind::ResumeStale, 1, |rig| {
        start(rig, A);
        pause(rig);
        resume(rig, A);
        pause(rig);
        rig.snapshot(1, SNAP_B);
        rig.sw(1, CTL, START_NEW);
        pause(rig);
        // Its newest snapshot is in place B; place A holds the last snapshot of another job, and is
        // resumed twice.
        resume(rig, A);
        quiet(rig, Profile::Irq);
        resume(rig, A);
    });
    // From a snapshot of a job that is over.
    planted(Kind::ResumeStale, 1, |rig| {
        start(rig, A);
        pause(rig);
        rig.ask("set slot=1 speed=0");
        load(rig, A);
        rig.sw(1, 0x40, 10);
        rig.sw(1, CTL, START_RESUME);
        assert_eq!(rig.wait_rest(1), FINISH);
        rig.sw(1, CTL, START_RESUME);
        rig.wait_rest(1);
    });
}

#[test]
fn resume_forged() {
    planted(Kind::ResumeForged, 1, |rig| {
        start(rig, A);
        pause(rig);
        rig.put64(SNAP_A, 12345);
        resume(rig, A);
    });
}

/// A state from another card, announced with or without its digest.
#[test]
fn imported() {
    for announced in ["", " hash="] {
        let mut rig = rig(Profile::Irq);
        start(&mut rig, A);
        pause(&mut rig);
        let hash = rig.table(&format!("saved token={A}"))["hash"];
        let state = rig.get(SNAP_A, 4096);
        rig.put(SNAP_B, &state);
        let hash = if announced.is_empty() {
            String::new()
        } else {
            format!("{announced}{hash}")
        };
        rig.ask(&format!("import token={A}{hash}"));
        quiet(&mut rig, Profile::Irq);
        load(&mut rig, A);
        rig.snapshot(1, SNAP_B);
        rig.sw(1, CTL, START_RESUME);
        rig.wait_running(1);
        rig.clean();
        // From then on it is a job like any other.
        rig.sw(1, CTL, PAUSE);
        assert_eq!(rig.wait_rest(1), PAUSED);
        quiet(&mut rig, Profile::Irq);
        load(&mut rig, A);
        rig.snapshot(1, SNAP_B);
        rig.sw(1, CTL, START_RESUME);
        rig.wait_running(1);
        rig.clean();
        // The announcement was for one restore.
        rig.sw(1, CTL, PAUSE);
        assert_eq!(rig.wait_rest(1), PAUSED);
        rig.put(SNAP_A, &state);
        resume(&mut rig, A);
        rig.clean();
        rig.sw(1, CTL, PAUSE);
        assert_eq!(rig.wait_rest(1), PAUSED);
    }
}

#[test]
fn imported_and_not_what_was_announced() {
    planted(Kind::ResumeForged, 1, |rig| {
        rig.ask(&format!("import token={A} hash=1"));
        resume(rig, A);
    });
    planted(Kind::ResumeStale, 1, |rig| {
        rig.ask(&format!("import token={A}"));
        resume(rig, A);
        quiet(rig, Profile::Irq);
        resume(rig, A);
    });
}

#[test]
fn imported_at_any_time() {
    let mut rig = rig(Profile::Irq);
    rig.ask("imports on");
    for _ in 0..2 {
        resume(&mut rig, A);
        quiet(&mut rig, Profile::Irq);
    }
    rig.reconnect();
    rig.plug(IrqKind::Msix);
    rig.master();
    rig.open(1);
    resume(&mut rig, A);
    quiet(&mut rig, Profile::Irq);
    rig.clean();
    rig.ask("imports off");
    resume(&mut rig, A);
    rig.saw("resume_stale", 1);
}

#[test]
fn resume_unreset() {
    planted(Kind::ResumeUnreset, 1, |rig| {
        let head = rig.endless(ARENA_A);
        for (off, val) in [(0x30, head), (0x40, 1), (TAG, A)] {
            rig.sw(0, off, val);
        }
        rig.snapshot(0, SNAP_A);
        rig.sw(0, CTL, START_NEW);
        rig.sw(0, CTL, PAUSE);
        assert_eq!(rig.wait_rest(0), PAUSED);
        rig.sw(0, CTL, START_RESUME);
    });
}

#[test]
fn mixed_tenant() {
    planted(Kind::MixedTenant, 1, |rig| {
        start(rig, A);
        pause(rig);
        quiet(rig, Profile::Irq);
        load(rig, B);
        rig.snapshot(1, SNAP_A);
        rig.sw(1, CTL, START_RESUME);
        rig.wait_running(1);
    });
}

#[test]
fn register_residue() {
    planted(Kind::RegisterResidue, 2, |rig| {
        start(rig, A);
        pause(rig);
        // SEED (0x48) and the length are not written.
        for (off, val) in [(0x30, ARENA_B), (0x40, 10), (0x58, 1), (TAG, B)] {
            rig.sw(1, off, val);
        }
        rig.snapshot(1, SNAP_B);
        rig.sw(1, CTL, START_NEW);
    });
    // A reset keeps MODE.
    planted(Kind::RegisterResidue, 1, |rig| {
        start(rig, A);
        pause(rig);
        quiet(rig, Profile::Irq);
        for (off, val) in [(0x30, ARENA_B), (0x38, 64), (0x40, 10), (TAG, B)] {
            rig.sw(1, off, val);
        }
        rig.sw(1, CTL, START_NEW);
    });
}

#[test]
fn foreign_dma() {
    let one_line = |rig: &mut Rig, tag: u64, at: u64| {
        for (off, val) in [(0x30, at), (0x38, 64), (0x40, 1), (TAG, tag)] {
            rig.sw(1, off, val);
        }
        rig.sw(1, CTL, START_NEW);
        assert_eq!(rig.wait_rest(1), FINISH);
        rig.reset(1);
    };
    planted(Kind::ForeignDma, 1, |rig| {
        one_line(rig, A, ARENA_A);
        one_line(rig, A, ARENA_B);
    });
    planted(Kind::ForeignDma, 1, |rig| {
        one_line(rig, A, ARENA_A);
        rig.ask(&format!("tenant token={A} gone"));
        one_line(rig, A, ARENA_A);
        rig.ask(&format!("tenant token={B} pages={ARENA_A:#x}+0x1000"));
        one_line(rig, B, ARENA_A);
    });
    planted(Kind::ForeignDma, 1, |rig| {
        one_line(rig, A, 0x80_0000);
        rig.ask("enforce off");
        one_line(rig, A, 0x80_0000);
    });
    planted(Kind::ForeignDma, 1, |rig| {
        rig.ask(&format!("tenant token={A} gone"));
        one_line(rig, A, ARENA_A);
        rig.ask("enforce off");
        one_line(rig, A, ARENA_A);
    });
}

#[test]
fn snapshot_in_arena() {
    planted(Kind::SnapshotInArena, 1, |rig| {
        start(rig, A);
        rig.ask(&format!("tenant token={B} pages={SNAP_A:#x}+4096"));
        pause(rig);
        rig.ask(&format!("tenant token={B} gone"));
    });
}

#[test]
fn canary() {
    planted(Kind::Canary, 1, |rig| {
        rig.ask(&format!("canary gpa={:#x} len=64", ARENA_A + 0x1000));
        rig.ask(&format!("canary gpa={:#x} len=64", ARENA_A + 0x80));
        rig.ask(&format!("canary gpa={:#x} gone", ARENA_A + 0x80));
        for (off, val) in [(0x30, ARENA_A), (0x38, 0x1000), (0x40, 64), (TAG, A)] {
            rig.sw(1, off, val);
        }
        rig.sw(1, CTL, START_NEW);
        rig.wait_rest(1);
        rig.clean();
        rig.sw(1, 0x38, 0x1040);
        rig.sw(1, 0x40, 65);
        rig.sw(1, CTL, START_NEW);
        rig.wait_rest(1);
    });
}

#[test]
fn unmapped_dma() {
    planted_on(Profile::Base, Kind::UnmappedDma, 2, |rig| {
        rig.map_read_only();
        load(rig, A);
        rig.snapshot(1, READ_ONLY);
        rig.sw(1, CTL, START_NEW);
        pause(rig);
    });
}

#[test]
fn bad_access() {
    planted(Kind::BadAccess, 3, |rig| {
        rig.r(0x28);
        rig.sw(1, CTL, 2);
        rig.client.region_write(BAR0, 0x1030, &[1; 4]).unwrap();
    });
}

#[test]
fn unanswered_read() {
    planted_on(Profile::Base, Kind::UnansweredRead, 1, |rig| {
        rig.w(0x18, 2);
        rig.r(0x18);
        rig.status(0);
        rig.status(1);
        rig.w(0x18, 0);
        rig.status(1);
    });
}

#[test]
fn write_running() {
    planted(Kind::WriteRunning, 1, |rig| {
        start(rig, A);
        rig.sw(1, TAG, A);
        rig.sw(1, TAG, B);
    });
}

#[test]
fn master_busy() {
    // Switched off while an engine works, and on again while an engine has not come to its end.
    planted(Kind::MasterBusy, 2, |rig| {
        start(rig, A);
        rig.wait_running(1);
        rig.no_master();
        rig.master();
        rig.reset(1);
        rig.status(1);
        rig.no_master();
        rig.master();
    });
    // A reset for which the driver has not waited.
    planted(Kind::MasterBusy, 1, |rig| {
        start(rig, A);
        rig.wait_running(1);
        rig.w(0x18, 2);
        rig.no_master();
        rig.status(1);
        rig.master();
        rig.no_master();
        rig.master();
    });
}

#[test]
fn bus_mastering_may_end_under_a_slot_that_a_reset_does_not_stop() {
    let mut rig = rig(Profile::Irq);
    start(&mut rig, A);
    rig.wait_running(1);
    rig.ask("fault slot=1 reset_fails=1");
    rig.w(0x18, 2);
    rig.status(1);
    rig.no_master();
    rig.clean();
    rig.ask("fault slot=1 clear");
}

#[test]
fn result_residue() {
    planted(Kind::ResultResidue, 1, |rig| {
        for (off, val) in [(0x30, ARENA_A), (0x38, 64), (0x40, 1), (TAG, A)] {
            rig.sw(1, off, val);
        }
        rig.sw(1, CTL, START_NEW);
        assert_eq!(rig.wait_rest(1), FINISH);
        rig.sw(1, CTL, START_NEW);
        assert_eq!(rig.wait_rest(1), FINISH);
        rig.clean();
        rig.ask("fault slot=1 results_kept=1");
        rig.sw(1, CTL, START_NEW);
        assert_eq!(rig.wait_rest(1), FINISH);
        rig.ask("fault slot=1 clear");
    });
}

/// Returns the checker's verdict on a card that does this: slot 0 has a queue engine, slot 1
/// another engine.
fn judged(profile: Profile, events: &[What]) -> String {
    let engines = [EngineKind::Queue, EngineKind::Sha256];
    let config = CardConfig::new(profile, IrqKind::Msix, &engines).unwrap();
    let mut checker = Checker::default();
    for what in [What::Card { config }].iter().chain(events) {
        checker.step(&Event {
            t: 0,
            what: what.clone(),
        });
    }
    checker.text()
}

fn fermata_judged(events: &[What]) -> String {
    judged(Profile::Irq, events)
}

fn started(slot: usize) -> What {
    What::Start {
        slot,
        resume: false,
        accepted: true,
        tag: A,
    }
}

fn pause_honoured(slot: usize) -> What {
    What::Pause {
        slot,
        fate: PauseFate::Honoured,
        at_boundary: false,
    }
}

fn paused(slot: usize, empty: bool) -> What {
    What::Phase {
        slot,
        phase: Phase::Paused,
        fault: false,
        snapshot_error: false,
        empty,
    }
}

fn irq(slot: usize) -> What {
    What::Irq {
        slot,
        fate: IrqFate::Sent,
    }
}

fn told(slot: usize) -> What {
    What::Completions { slot, n: 2 }
}

#[test]
fn what_a_card_may_do_by_itself_is_no_violation() {
    for good in [
        vec![started(0), told(0), irq(0), paused(0, true), irq(0)],
        vec![started(0), pause_honoured(0), paused(0, true), irq(0)],
        vec![started(1), pause_honoured(1), paused(1, false), irq(1)],
    ] {
        assert_eq!(fermata_judged(&good), "total=0", "{good:?}");
    }
}

/// A correct card does none of this, so the events are made up.
#[test]
fn unasked_pause() {
    for bad in [
        vec![started(0), paused(0, false)],
        vec![started(1), paused(1, true)],
        vec![started(1), pause_honoured(1), paused(1, true)],
        vec![
            started(0),
            pause_honoured(0),
            paused(0, false),
            started(0),
            paused(0, false),
        ],
    ] {
        assert_eq!(fermata_judged(&bad), "total=1 unasked_pause=1", "{bad:?}");
    }
    let on_base = judged(Profile::Base, &[started(0), paused(0, true)]);
    assert_eq!(on_base, "total=1 unasked_pause=1");
}

#[test]
fn unasked_irq() {
    for bad in [
        vec![started(0), irq(0)],
        vec![started(1), told(1), irq(1)],
        vec![told(0), irq(0)],
        vec![started(0), told(0), irq(0), irq(0)],
        vec![
            started(1),
            pause_honoured(1),
            paused(1, false),
            irq(1),
            irq(1),
        ],
    ] {
        assert_eq!(fermata_judged(&bad), "total=1 unasked_irq=1", "{bad:?}");
    }
}

/// A START that is too early by the settle time that was set, but not by that of the configuration.
#[test]
fn settings_outlive_resets_for_the_checker_too() {
    for how in 0..3 {
        let mut rig = rig(Profile::Base);
        rig.ask("set slot=1 settle_us=60000000");
        match how {
            0 => rig.card().device_reset(),
            1 => {
                rig.ask("fault slot=0 dead=1");
                rig.ask("fault slot=0 dead=0");
            }
            _ => {
                rig.reconnect();
                rig.plug(IrqKind::None);
            }
        }
        rig.master();
        rig.reset_and_settle(1);
        start(&mut rig, A);
        rig.saw("start_undrained", 1);
        let (online, offline) = rig.replay();
        assert_eq!(online, offline, "{how}");
    }
}

#[test]
fn every_kind_has_a_test() {
    let source = concat!(
        include_str!("violations.rs"),
        include_str!("foreign.rs"),
        include_str!("relay/verdicts.rs")
    );
    for kind in Kind::value_variants() {
        assert!(
            source.contains(&format!("fn {}()", kind.name())),
            "{}",
            kind.name()
        );
    }
}
