// SPDX-License-Identifier: GPL-2.0-or-later
//! A card that is stopped, and continues as the same card or as another one.

use crate::common::*;
use crate::relay;
use fermata_card::card::{Card, CardState};
use fermata_card::config::{CardConfig, IrqKind, Profile};
use fermata_card::engine::EngineKind::{self, Linkedlist, Membench, Sha256};
use fermata_card::log::Recorder;
use sha2::Digest;
use std::sync::Arc;
use std::time::Duration;

const LIST: u64 = 0x30_0000;
const DATA: u64 = 0x60_0000;
const SIZE: u64 = 0x10_0000;
const OUT: u64 = 0x8000;
const SNAP: u64 = 0x9000;
const SLOW: [&str; 3] = ["slot=0,speed=1", "slot=1,speed=20", "slot=2,speed=20"];
const ENGINES: [EngineKind; 3] = [Linkedlist, Membench, Sha256];

fn rig(profile: Profile) -> Rig {
    Rig::with(profile, &SLOW)
}

fn a_while() {
    std::thread::sleep(Duration::from_millis(5));
}

fn stop(card: &Card) {
    card.freeze(LIMIT).unwrap();
}

/// Returns the state as another host gets it: a description, and states of engines.
fn carried(state: &CardState) -> CardState {
    let text = serde_json::to_string(state).unwrap();
    let mut copy: CardState = serde_json::from_str(&text).unwrap();
    for (to, from) in copy.slots.iter_mut().zip(&state.slots) {
        assert_eq!(to.has_engine(), from.has_engine());
        if let Some(engine) = to.engine_mut() {
            assert!(engine.is_empty());
            engine.extend_from_slice(from.engine());
        }
    }
    copy
}

/// Returns another card, with the memory of the rig, and no state yet.
fn other(rig: &Rig, config: CardConfig) -> Arc<Card> {
    let card = Card::new(config, Recorder::none());
    let ram = rig.ram.try_clone().unwrap().into();
    card.host()
        .memory
        .map(0, RAM, true, Some((ram, 0)))
        .unwrap();
    stop(&card);
    card
}

/// Stops the card of the rig for good, and lets another one continue.
fn moved(rig: &Rig) -> Arc<Card> {
    stop(rig.card());
    let card = other(rig, rig.card().config().clone());
    card.set_state(&carried(&rig.card().state())).unwrap();
    card
}

fn read(card: &Card, off: u64) -> u64 {
    let mut data = [0; 8];
    card.bar_read(off, &mut data);
    u64::from_le_bytes(data)
}

/// Waits until the status of a slot is `status`.
fn wait_for(card: &Card, slot: u64, status: u64) {
    let begin = std::time::Instant::now();
    while read(card, 0x1000 * (slot + 1) + CTL) & 0xfff != status {
        assert!(begin.elapsed() < LIMIT);
        a_while();
    }
}

fn finish(card: &Card, slot: u64) {
    wait_for(card, slot, FINISH);
}

/// Starts a hash of `SIZE` bytes. Returns the digest.
fn hash(rig: &mut Rig, slot: u64) -> Vec<u8> {
    let data: Vec<u8> = (0..SIZE / 8)
        .flat_map(|i| splitmix64(i).to_le_bytes())
        .collect();
    rig.put(DATA, &data);
    if !rig.card().config().profile.is_base() {
        rig.open(slot);
    }
    rig.snapshot(slot, SNAP);
    for (off, val) in [(0x30, DATA), (0x38, SIZE), (0x40, OUT), (TAG, 7)] {
        rig.sw(slot, off, val);
    }
    rig.sw(slot, CTL, START_NEW);
    sha2::Sha256::digest(&data).to_vec()
}

/// Starts a walk of a list in slot 0, whose results go to `OUT` + 0x100.
fn walk(rig: &mut Rig, head: u64, seed: u64) {
    rig.open(0);
    for (off, val) in [(0x30, head), (0x40, seed), (0x48, OUT + 0x100), (TAG, 5)] {
        rig.sw(0, off, val);
    }
    rig.sw(0, CTL, START_NEW);
}

#[test]
fn a_stopped_card_does_nothing_and_goes_on() {
    for profile in [Profile::Irq, Profile::Base] {
        let mut rig = rig(profile);
        let digest = hash(&mut rig, 2);
        a_while();
        stop(rig.card());
        assert!(rig.card().is_frozen() && rig.card().is_busy());
        let seen = |rig: &mut Rig| (rig.status(2), rig.sr(2, 0x38), rig.sr(2, 0x30));
        let before = seen(&mut rig);
        assert_eq!(before.0, RUNNING);
        a_while();
        assert_eq!(seen(&mut rig), before);
        assert_eq!(rig.get(OUT, 32), [0; 32]);
        rig.card().thaw();
        assert_eq!(rig.wait_rest(2), FINISH);
        assert!(rig.comes_to_hold(OUT, &digest));
        rig.clean();
    }
}

#[test]
fn jobs_go_on_as_jobs_of_another_card() {
    let mut rig = rig(Profile::Irq);
    let (head, count, checksum) = rig.list(LIST, 50_000, 77);
    walk(&mut rig, head, 77);
    let digest = hash(&mut rig, 2);
    a_while();
    let progress = rig.sr(2, 0x38);
    let card = moved(&rig);
    assert!(
        read(&card, 0x3000 + 0x38) >= progress,
        "what a guest has seen"
    );
    for off in [
        0x18,
        0x100,
        0x180 + 16,
        0x1c0 + 16,
        0x1000 + CTL,
        0x3000 + CTL,
        0x3000 + TAG,
    ] {
        assert_eq!(read(&card, off), rig.r(off), "register {off:#x}");
    }
    card.thaw();
    finish(&card, 0);
    finish(&card, 2);
    assert_eq!(
        (rig.get64(OUT + 0x100), rig.get64(OUT + 0x108)),
        (count, checksum)
    );
    assert_eq!(rig.get(OUT, 32), digest);
    assert_eq!(read(&card, 0x1000 + CTL) >> 32, 1, "the count of STARTs");
    assert_eq!(read(&card, 0x2000 + CTL), IDLE);
    rig.clean();
    card.stop();
}

/// A base card's job may reach all memory: the job continues where the memory is the same.
#[test]
fn a_base_job_goes_on_where_its_memory_is() {
    let mut rig = rig(Profile::Base);
    let digest = hash(&mut rig, 2);
    a_while();
    stop(rig.card());
    let state = carried(&rig.card().state());
    let card = other(&rig, rig.card().config().clone());
    card.host().memory.unmap(0, RAM);
    let why = card.set_state(&state).unwrap_err();
    assert!(why.contains("a job for sha256 had"), "{why}");
    assert!(!card.is_busy());
    card.stop();
    let card = moved(&rig);
    card.thaw();
    finish(&card, 2);
    // The data of a base card arrive after its status.
    assert!(rig.comes_to_hold(OUT, &digest));
    card.stop();
}

#[test]
fn registers_of_a_stopped_card_take_effect_when_it_goes_on() {
    let mut rig = rig(Profile::Irq);
    hash(&mut rig, 2);
    a_while();
    stop(rig.card());
    rig.sw(2, CTL, PAUSE);
    assert_eq!(rig.status(2), RUNNING);
    let (head, count, checksum) = rig.list(LIST, 100, 3);
    walk(&mut rig, head, 3);
    a_while();
    assert_eq!((rig.status(0), rig.get64(OUT + 0x100)), (RUNNING, 0));
    // A slot of a stopped card can be reset.
    rig.open(1);
    rig.sw(1, 0x30, DATA);
    rig.sw(1, 0x38, 4096);
    rig.sw(1, 0x40, 1 << 40);
    rig.sw(1, CTL, START_NEW);
    rig.reset(1);
    assert_eq!(rig.status(1), IDLE);
    let card = moved(&rig);
    card.thaw();
    finish(&card, 0);
    assert_eq!(
        (rig.get64(OUT + 0x100), rig.get64(OUT + 0x108)),
        (count, checksum)
    );
    // The engine of slot 2 has a thread of its own, which may be late.
    wait_for(&card, 2, PAUSED);
    card.stop();
    rig.card().thaw();
    assert_eq!(rig.wait_rest(2), PAUSED);
    assert_eq!(rig.wait_rest(0), FINISH);
    assert_eq!(rig.status(1), IDLE);
    rig.clean();
}

#[test]
fn a_reset_of_a_stopped_card_leaves_no_job() {
    let mut rig = rig(Profile::Irq);
    hash(&mut rig, 2);
    a_while();
    stop(rig.card());
    rig.client.reset().unwrap();
    assert!(rig.card().is_frozen() && !rig.card().is_busy());
    let mut gone = rig.card().state();
    assert!(gone
        .slots
        .iter_mut()
        .all(|slot| slot.engine_mut().is_none()));
    rig.card().thaw();
    assert_eq!(rig.status(2), IDLE);
    rig.clean();
}

#[test]
fn a_client_that_goes_away_lets_the_card_go_on() {
    let mut rig = rig(Profile::Irq);
    stop(rig.card());
    rig.reconnect();
    rig.plug(IrqKind::Msix);
    let digest = hash(&mut rig, 2);
    assert_eq!(rig.wait_rest(2), FINISH);
    assert_eq!(rig.get(OUT, 32), digest);
    rig.clean();
}

/// The order that a slot holds, the run with its times, and the table.
#[test]
fn orders_go_on_on_another_card() {
    let mut from = relay::driver(&["slot=1,speed=1"]);
    from.membench(0, 20_000);
    from.membench(1, 10);
    from.begin(1, 0, 0);
    from.wait_working(1);
    from.order(1, 1 | relay::next(1) | relay::NEVER);
    let card = moved(&from.rig);
    a_while();
    assert!(!from.has_record(1, 1));
    card.thaw();
    let (first, second) = (from.wait(1, 1), from.wait(1, 2));
    assert_eq!((first.reason, first.next), (relay::R_FINISH, 2));
    assert_eq!((second.reason, second.next), (relay::R_FINISH, 0));
    let times = [
        first.began,
        first.worked,
        first.stopped,
        first.left,
        second.worked,
    ];
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(read(&card, 0x2000 + CTL) >> 32, 2);
    from.rig.clean();
    card.stop();
}

/// A context that was named when the card stopped is loaded by the card that continues.
#[test]
fn an_order_that_was_taken_goes_on_on_another_card() {
    let mut from = relay::driver(&[]);
    from.membench(0, 10);
    stop(from.rig.card());
    from.begin(1, 0, 0);
    let card = moved(&from.rig);
    card.thaw();
    assert_eq!(from.wait(1, 1).reason, relay::R_FINISH);
    card.stop();
}

#[test]
fn states_that_do_not_fit_are_refused() {
    let mut rig = rig(Profile::Irq);
    hash(&mut rig, 2);
    a_while();
    stop(rig.card());
    let state = rig.card().state();
    let plain = CardConfig::new(Profile::Irq, IrqKind::Msix, &ENGINES).unwrap();
    let refused = |config: CardConfig, state: &CardState| {
        let card = other(&rig, config);
        let why = card.set_state(state).unwrap_err();
        assert!(!card.is_busy(), "nothing is changed");
        card.stop();
        why
    };
    let two = CardConfig::new(Profile::Irq, IrqKind::Msix, &ENGINES[..2]).unwrap();
    assert!(refused(two, &state).contains("it is of another card"));
    let relay = CardConfig::new(Profile::Relay, IrqKind::Msix, &ENGINES).unwrap();
    assert!(refused(relay, &state).contains("profile irq, msix, slots linkedlist"));
    let mut short = state.clone();
    short.slots[2].engine_mut().unwrap().truncate(100);
    assert!(refused(plain.clone(), &short).contains("inconsistent"));
    // Errors in the description: a job in a slot that is held in reset, a run without orders.
    for (path, value) in [
        ("/slots/2/in_reset", true.into()),
        ("/slots/2/relay", true.into()),
        ("/slots/0/relay", true.into()),
        ("/slots/0/held", 5.into()),
        ("/slots/0/pause", "AtOnce".into()),
        ("/slots/0/activity", serde_json::json!({"Load": 1})),
        ("/config_space", serde_json::json!([1, 2])),
    ] {
        let mut text = serde_json::to_value(&state).unwrap();
        *text.pointer_mut(path).unwrap() = value;
        let mut wrong: CardState = serde_json::from_value(text).unwrap();
        if let Some(engine) = wrong.slots[2].engine_mut() {
            engine.extend_from_slice(state.slots[2].engine());
        }
        assert!(
            refused(plain.clone(), &wrong).contains("inconsistent"),
            "{path}"
        );
    }
}
