// SPDX-License-Identifier: GPL-2.0-or-later
//! The misbehaviour switches, one by one.

use crate::common::*;
use crate::registers::walk;
use fermata_card::config::Profile;
use std::time::{Duration, Instant};

const LIST: u64 = 0x10_0000;
const OUT: u64 = 0x8000;
const SNAP: u64 = 0x9000;

fn slow() -> Rig {
    let mut rig = Rig::with(Profile::Irq, &["slot=all,speed=1"]);
    rig.open(0);
    rig
}

/// Starts a job that never ends by itself.
fn walk_on(rig: &mut Rig) {
    let head = rig.endless(LIST);
    for (off, val) in [(0x30, head), (0x40, 3), (0x48, OUT), (TAG, 1)] {
        rig.sw(0, off, val);
    }
    rig.snapshot(0, SNAP);
    rig.sw(0, CTL, START_NEW);
}

#[test]
fn ignore_pause() {
    let mut rig = slow();
    rig.ask("fault slot=0 ignore_pause=2");
    walk_on(&mut rig);
    for left in [1, 0] {
        rig.sw(0, CTL, PAUSE);
        assert_eq!(rig.status(0), RUNNING);
        assert_eq!(rig.table("state slot=0")["pending_faults"], left);
    }
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    assert_eq!(rig.table("counters slot=0")["pauses_dropped"], 2);
    rig.reset(0);
    rig.ask("fault slot=0 ignore_pause=all");
    rig.sw(0, CTL, START_RESUME);
    rig.wait_running(0);
    for _ in 0..5 {
        rig.sw(0, CTL, PAUSE);
    }
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(rig.status(0), RUNNING);
    rig.ask("fault slot=0 clear");
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
}

#[test]
fn save_takes_us() {
    let mut rig = slow();
    rig.ask("fault slot=0 save_takes_us=50000");
    walk_on(&mut rig);
    let begin = Instant::now();
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    assert!(begin.elapsed() >= Duration::from_millis(50));
    rig.clean();
}

#[test]
fn reset_fails() {
    let mut rig = slow();
    rig.ask("fault slot=0 reset_fails=1");
    walk_on(&mut rig);
    rig.wait_running(0);
    for _ in 0..3 {
        rig.w(0x18, 1);
        assert_eq!((rig.r(0x18), rig.status(0)), (1, RUNNING));
        rig.w(0x18, 0);
    }
    assert_eq!(rig.status(0), RUNNING);
    // It continues to work, and nothing else is started in its place.
    let before = rig.sr(0, 0x38);
    while rig.sr(0, 0x38) == before {}
    rig.w(0x18, 1);
    rig.sw(0, CTL, START_NEW);
    assert_eq!(rig.sr(0, CTL) >> 32, 1);
    rig.saw("start_busy", 1);
    rig.ask("violations clear");
    // Switched off: the reset that is held takes effect.
    rig.ask("fault slot=0 reset_fails=0");
    assert_eq!(rig.status(0), IDLE);
    rig.w(0x18, 0);
    assert_eq!(rig.table("counters slot=0")["resets"], 1);
    // A function-level reset is not a reset of the slot.
    rig.ask("fault slot=0 reset_fails=1");
    walk_on(&mut rig);
    rig.client.reset().unwrap();
    assert_eq!(rig.status(0), IDLE);
    rig.master();
    rig.open(0);
    walk_on(&mut rig);
    rig.w(0x18, 1);
    assert_eq!(rig.status(0), RUNNING);
    rig.ask("fault slot=0 clear");
    assert_eq!(rig.status(0), IDLE);
    rig.clean();
}

#[test]
fn a_reset_cuts_a_save_short() {
    let mut rig = slow();
    rig.ask("fault slot=0 save_takes_us=60000000");
    walk_on(&mut rig);
    rig.sw(0, CTL, PAUSE);
    while !rig.ask("state slot=0").contains("phase=saving") {}
    rig.reset(0);
    assert_eq!(rig.status(0), IDLE);
    rig.clean();
    rig.sw(0, CTL, START_RESUME);
    rig.wait_running(0);
    rig.saw("resume_incomplete", 1);
}

#[test]
fn lose_and_spurious_irq() {
    let mut rig = slow();
    rig.ask("set slot=0 speed=0");
    rig.ask("fault slot=0 lose_irq=1");
    walk(&mut rig, 10, 1);
    assert_eq!(rig.wait_rest(0), FINISH);
    rig.status(0);
    assert_eq!(rig.irqs(0), 0);
    walk(&mut rig, 10, 1);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.wait_irq(0), 1);
    rig.ask("fault slot=0 spurious_irq=3");
    assert_eq!(rig.irqs(0), 3);
    let counters = rig.table("counters slot=0");
    assert_eq!((counters["irqs"], counters["irqs_lost"]), (4, 1));
    rig.clean();
}

#[test]
fn state_size() {
    let mut rig = slow();
    rig.ask("fault slot=0 state_size=0x100000");
    assert_eq!(rig.sr(0, 0x20), 0x10_0000);
    rig.ask("fault slot=0 clear");
    rig.ask("set slot=0 state_pages=3");
    assert_eq!(rig.sr(0, 0x20), 3);
    rig.put(SNAP, &[0xff; 3 * 4096]);
    walk_on(&mut rig);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    assert!(
        rig.get(SNAP + 32, 3 * 4096 - 32).iter().all(|b| *b == 0),
        "all of it is written"
    );
    rig.clean();
}

#[test]
fn finish_on_pause() {
    // The job stays at its end until the PAUSE comes.
    let mut rig = slow();
    rig.ask("set slot=0 speed=0");
    rig.ask("fault slot=0 finish_on_pause=1");
    let want = walk(&mut rig, 1000, 1);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(rig.status(0), RUNNING);
    assert_eq!(rig.get64(OUT), 0);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), want);
    // Or the job comes to its end when the PAUSE comes.
    rig.ask("set slot=0 speed=1");
    rig.ask("fault slot=0 finish_on_pause=1");
    let want = walk(&mut rig, 100_000, 1);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), want);
    assert_eq!(rig.table("state slot=0")["pending_faults"], 0);
    rig.clean();
}

#[test]
fn write_after_paused() {
    let mut rig = slow();
    rig.ask("fault slot=0 write_after_paused=100");
    walk_on(&mut rig);
    std::thread::sleep(Duration::from_millis(1));
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    let begin = Instant::now();
    while rig.table("counters slot=0")["dma_writes"] < 3 {
        assert!(begin.elapsed() < LIMIT);
    }
    // If the window has been moved by then, the write is refused.
    rig.reset(0);
    rig.status(0);
    rig.ask("fault slot=0 write_after_paused=100");
    walk_on(&mut rig);
    std::thread::sleep(Duration::from_millis(1));
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), PAUSED);
    rig.window(0, 0, 0);
    let begin = Instant::now();
    while rig.table("counters slot=0")["dma_writes"] < 6 && rig.r(0x200) != 3 | 8 << 8 {
        assert!(begin.elapsed() < LIMIT);
    }
    // The next START forgets it.
    rig.ask("fault slot=0 clear");
    rig.open(0);
    walk_on(&mut rig);
    assert_eq!((rig.r(0x200), rig.r(0x240)), (0, 0));
}

#[test]
fn dead() {
    let mut rig = slow();
    walk_on(&mut rig);
    rig.ask("fault slot=0 dead=1");
    assert_eq!(rig.r(0x100), !0);
    assert_eq!(rig.sr(0, CTL), !0);
    let mut id = [0; 4];
    rig.client.region_read(CONFIG, 0, &mut id).unwrap();
    assert_eq!(id, [0xff; 4]);
    rig.w(0x30, 7);
    rig.ask("fault slot=0 spurious_irq=1");
    assert_eq!(rig.irqs(0), 0);
    rig.client.dma_unmap(0, RAM).unwrap();
    let ram = std::os::fd::AsRawFd::as_raw_fd(&rig.ram);
    rig.client.dma_map(0, 0, RAM, ram).unwrap();
    rig.ask("fault slot=0 dead=0");
    assert_eq!((rig.r(0x30), rig.sr(0, CTL), rig.r(0x1c0)), (0, 0, 0));
    let mut command = [0; 2];
    rig.client.region_read(CONFIG, 4, &mut command).unwrap();
    assert_eq!(command, [6, 0], "configuration space is as it was");
    rig.open(0);
    rig.ask("set slot=0 speed=0");
    let want = walk(&mut rig, 100, 1);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), want);
    rig.clean();
}

#[test]
fn dead_at_read() {
    let mut rig = slow();
    let id = rig.r(0x100);
    rig.ask("fault slot=0 dead_at_read=3");
    // Writes do not count.
    rig.w(0x30, 7);
    assert_eq!((rig.r(0x100), rig.r(0x30)), (id, 7));
    assert_eq!(rig.table("state slot=0")["dead"], 0);
    assert_eq!((rig.r(0x100), rig.sr(0, CTL)), (!0, !0));
    assert_eq!(rig.table("state slot=0")["dead"], 1);
    rig.ask("fault slot=0 dead=0");
    assert_eq!((rig.r(0x100), rig.r(0x100)), (id, id));
    // Switched off again.
    for back in ["dead_at_read=0", "clear"] {
        rig.ask("fault slot=0 dead_at_read=1");
        rig.ask(&format!("fault slot=0 {back}"));
        assert_eq!(rig.r(0x100), id);
    }
    rig.clean();
}

#[test]
fn dead_at_write() {
    let mut rig = slow();
    rig.ask("fault slot=0 dead_at_write=2");
    // Reads do not count.
    rig.w(0x30, 7);
    assert_eq!(rig.r(0x30), 7);
    rig.w(0x30, 8);
    assert_eq!(rig.r(0x30), !0);
    rig.client.reset().unwrap();
    assert_eq!(rig.r(0x30), 0);
    rig.ask("fault slot=0 dead_at_write=1");
    rig.ask("fault slot=0 clear");
    rig.w(0x30, 7);
    assert_eq!(rig.r(0x30), 7);
    rig.clean();
}

#[test]
fn lost_reads() {
    let mut rig = slow();
    let id = rig.r(0x100);
    rig.ask("fault slot=0 lose_read=0x100:2");
    assert_eq!((rig.r(0x100), rig.r(0x20), rig.r(0x100)), (!0, 3, !0));
    assert_eq!((rig.r(0x100), rig.sr(0, CTL)), (id, 0));
    rig.ask("fault slot=0 lose_read_at=2");
    assert_eq!((rig.r(0x100), rig.sr(0, CTL), rig.r(0x100)), (id, !0, id));
    rig.ask("fault slot=0 lose_read_at=2:2");
    assert_eq!((rig.r(0x100), rig.r(0x100), rig.sr(0, CTL)), (id, !0, !0));
    assert_eq!(rig.r(0x100), id);
    let state = rig.table("state slot=0");
    assert_eq!((state["lost_reads"], state["dead"]), (5, 0));
    // Switched off again.
    for (kind, back) in [
        ("lose_read=0x100:all", "lose_read=0x100:0"),
        ("lose_read=0x100:all", "clear"),
        ("lose_read_at=1:all", "lose_read_at=0"),
        ("lose_read_at=1:all", "clear"),
    ] {
        rig.ask(&format!("fault slot=0 {kind}"));
        assert_eq!(rig.r(0x100), !0);
        rig.ask(&format!("fault slot=0 {back}"));
        assert_eq!(rig.r(0x100), id);
    }
    rig.clean();
}

/// A lost read does not tell the driver that the DMA of a job that was reset is complete.
#[test]
fn a_lost_read_flushes_nothing() {
    let mut rig = slow();
    walk_on(&mut rig);
    rig.w(0x18, 1);
    rig.ask("fault slot=0 lose_read_at=1");
    assert_eq!(rig.sr(0, CTL), !0);
    rig.w(0x18, 0);
    walk_on(&mut rig);
    assert!(rig.table("violations")["start_undrained"] > 0);
    rig.reset(0);
    rig.ask("violations clear");
}

/// PAUSED of a save that was cut short by a reset is shown once, with the count of its own START,
/// while the next job runs.
#[test]
fn late_paused() {
    let mut rig = slow();
    rig.ask("fault slot=0 save_takes_us=60000000");
    rig.ask("fault slot=0 late_paused=300000");
    walk_on(&mut rig);
    rig.sw(0, CTL, PAUSE);
    while !rig.ask("state slot=0").contains("phase=saving") {}
    rig.reset(0);
    assert_eq!(rig.status(0), IDLE);
    walk_on(&mut rig);
    assert_eq!(rig.wait_irq(0), 1);
    assert_eq!(rig.table("state slot=0")["pending_faults"], 1);
    assert_eq!(rig.sr(0, CTL), PAUSED | 1 << 32);
    assert_eq!(rig.sr(0, CTL), RUNNING | 2 << 32);
    assert_eq!(rig.table("state slot=0")["pending_faults"], 0);
    rig.clean();
}

#[test]
fn hang() {
    let mut rig = slow();
    rig.ask("set slot=0 speed=0");
    rig.ask("fault slot=0 hang=1");
    walk(&mut rig, 1000, 1);
    for _ in 0..3 {
        rig.sw(0, CTL, PAUSE);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(rig.status(0), RUNNING);
    }
    assert_eq!(rig.sr(0, 0x38), 0);
    rig.reset(0);
    assert_eq!(rig.status(0), IDLE);
    let want = walk(&mut rig, 1000, 1);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!((rig.get64(OUT), rig.get64(OUT + 8)), want);
    rig.clean();
}

#[test]
fn save_torn() {
    let mut rig = slow();
    rig.put(SNAP, &[0xee; 64]);
    rig.ask("fault slot=0 save_torn=12");
    walk_on(&mut rig);
    rig.sw(0, CTL, PAUSE);
    assert_eq!(rig.wait_rest(0), FINISH | 1 << 9);
    assert_eq!(rig.get(SNAP + 12, 52), [0xee; 52]);
    assert_ne!(rig.get(SNAP, 12), [0xee; 12]);
    // Base: the slot reads RUNNING until it is reset.
    let mut rig = Rig::with(Profile::Base, &["slot=all,speed=1"]);
    rig.ask("fault slot=0 save_torn=12");
    walk_on(&mut rig);
    rig.sw(0, CTL, PAUSE);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(rig.status(0), RUNNING);
    rig.reset_and_settle(0);
    assert_eq!(rig.status(0), IDLE);
    rig.clean();
}

#[test]
fn bad_commands_change_nothing() {
    let rig = slow();
    for bad in [
        "fault slot=9 hang=1",
        "set slot=0 speed=1 nonsense=2",
        "set slot=0 state_pages=0",
        "what",
        "fault slot=0 x=1",
        "fault slot=0 lose_read=x",
    ] {
        let reply = rig.control().answer(&format!("id-7 {bad}")).unwrap();
        assert!(reply.starts_with("id-7 err "), "{reply}");
    }
    assert_eq!(rig.table("state slot=0")["pending_faults"], 0);
    assert_eq!(rig.control().answer("   "), None);
    assert_eq!(rig.control().answer("x").unwrap(), "x err no verb");
}
