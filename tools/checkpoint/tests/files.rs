// SPDX-License-Identifier: GPL-2.0-or-later
//! Files of earlier tools, which are read for ever, and of later tools. `vm/run travel` restores
//! the same files.
#![allow(missing_docs, clippy::pedantic)]

use fermata_checkpoint::container::{Kind, Reader, Writer};
use fermata_checkpoint::{Content, Description, Job, Part, Refusal};
use std::process::Command;

const LINKED_LIST: &str = "4c494e4b-4544-4c49-5354-000000000001";

/// Returns the file `name` of files.txt.
fn file(name: &str) -> Vec<u8> {
    let heading = format!("= {name}");
    let lines = include_str!("files.txt").lines();
    let lines = lines.skip_while(|line| *line != heading).skip(1);
    let digits: String = lines.take_while(|line| !line.is_empty()).collect();
    assert!(!digits.is_empty(), "{name}");
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// The contents of a file.
struct Contents {
    description: Description,
    state: Vec<u8>,
    arena: Vec<u8>,
    parts: usize,
}

impl Contents {
    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// Checks that nodes 1 to `nodes` form a ring, and that the registers point to the ring.
    fn check_ring(&self, nodes: usize, limit: u64) {
        let base = self.description.arena.as_ref().unwrap().device_base;
        for node in 0..nodes {
            let (at, next) = (0x1000 + node * 64, 0x1000 + (node + 1) % nodes * 64);
            assert_eq!(Self::word(&self.arena, at), base + next as u64);
            assert_eq!(Self::word(&self.arena, at + 8), 0x101 * (node as u64 + 1));
        }
        let registers = &self.description.registers[..4];
        let expected = [
            (0x30, base + 0x1000),
            (0x38, limit),
            (0x40, 5),
            (0x48, base),
        ];
        assert_eq!(registers, expected);
        assert_eq!(self.description.results, [0x38, 0x40]);
    }

    /// Checks that the state is that of a walk that was interrupted: the engine's counters agree.
    fn check_state(&self, limit: u64) {
        let [reads, next, checksum, count] = [0, 8, 16, 24].map(|at| Self::word(&self.state, at));
        assert!(0 < count && count < limit && reads == count);
        let (mut expected, mut node) = (5_u64, 0);
        for _ in 0..count {
            expected = expected.rotate_left(1) ^ (0x101 * (node + 1));
            node = (node + 1) % 7;
        }
        let base = self.description.arena.as_ref().unwrap().device_base;
        assert_eq!((next, checksum), (base + 0x1000 + node * 64, expected));
    }

    fn parameter(&self, number: u32) -> u64 {
        let mut all = self.description.parameters.iter();
        all.find(|(n, _)| *n == number).unwrap().1
    }
}

fn read(bytes: &[u8]) -> Result<Contents, Refusal> {
    let mut content = Content::new(bytes)?;
    let (mut state, mut arena, mut parts) = (Vec::new(), vec![0; 0x2000], 0);
    while let Some(part) = content.part()? {
        parts += 1;
        match part {
            Part::State(_, data) => state.extend(data),
            Part::Arena(at, data) => arena[at as usize..][..data.len()].copy_from_slice(&data),
            Part::Described => {}
        }
    }
    let description = content.description().clone();
    content.end()?;
    Ok(Contents {
        description,
        state,
        arena,
        parts,
    })
}

#[test]
fn a_held_job_is_read() {
    let held = read(&file("held")).unwrap();
    held.check_ring(7, 3_000_123);
    held.check_state(3_000_123);
    assert_eq!(held.description.job, Job::Saved);
    assert_eq!(held.description.engine().to_string(), LINKED_LIST);
    assert_eq!(
        held.description.parameters,
        [
            (1, 2_000_000),
            (2, 100_000_000),
            (3, 20),
            (4, 200),
            (5, 0),
            (6, 0),
            (9, 0)
        ]
    );
    assert_eq!(held.description.reservation, None);
}

/// Checks the file of a job with a reservation that was saved under a version of the interface.
fn check_reserved(name: &str, interface: u32) {
    let reserved = read(&file(name)).unwrap();
    reserved.check_ring(7, 3_000_123);
    reserved.check_state(3_000_123);
    assert_eq!(reserved.description.interface, interface);
    let parameters = [2, 5, 6, 9].map(|number| reserved.parameter(number));
    assert_eq!(parameters, [50_000_000, 1, 50, 1]);
    let promised = reserved.description.reservation.unwrap();
    let times = [promised.budget_ns, promised.deadline_ns, promised.period_ns];
    assert_eq!(times, [10_000_000, 50_000_000, 100_000_000]);
}

#[test]
fn a_reservation_is_read() {
    check_reserved("reserved", 1);
}

#[test]
fn the_version_of_the_interface_does_not_matter() {
    check_reserved("later", 99);
}

#[test]
fn the_retired_share_is_read() {
    let share = read(&file("share")).unwrap();
    share.check_state(3_000_123);
    assert_eq!(share.parameter(7), 30);
}

#[test]
fn contexts_without_state_are_read() {
    let new = read(&file("new")).unwrap();
    new.check_ring(7, 1000);
    assert_eq!((new.description.job, new.state.len()), (Job::New, 0));
    let idle = read(&file("idle")).unwrap();
    idle.check_ring(2, 1000);
    assert_eq!((idle.description.job, idle.state.len()), (Job::None, 0));
    let bare = read(&file("bare")).unwrap();
    assert_eq!((bare.description.job, bare.parts), (Job::None, 0));
    assert_eq!(bare.description.arena, None);
    assert_eq!(bare.description.state_bytes, 4096);
}

#[test]
fn the_last_of_repeated_sections_counts() {
    let moved = read(&file("moved")).unwrap();
    assert_eq!(moved.parts, 4);
    moved.check_ring(7, 6_000_123);
    moved.check_state(6_000_123);
    assert_eq!(moved.description.job, Job::Saved);
    let word = Contents::word(&moved.arena, 0x1800);
    assert!(word > 0, "a word that changed while the job was sent");
}

/// Returns the first section's data.
fn description_of(file: &[u8]) -> Vec<u8> {
    let section = Reader::new(file).unwrap().section().unwrap();
    assert_eq!(section.kind, Kind::Description);
    section.data
}

#[test]
fn descriptions_are_written_as_they_were() {
    for name in [
        "held", "reserved", "share", "new", "idle", "bare", "moved", "later",
    ] {
        let data = description_of(&file(name));
        assert_eq!(
            Description::from_bytes(&data).unwrap().to_bytes(),
            data,
            "{name}"
        );
    }
}

#[test]
fn an_unknown_feature_is_refused() {
    let refusal = read(&file("unknown")).err().unwrap();
    assert!(matches!(&refusal, Refusal::Feature(name) if name == "time-travel"));
}

/// The program names the file, the feature and the remedy, and does not open the card.
#[test]
fn the_program_refuses_an_unknown_feature() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("unknown.fermata");
    std::fs::write(&path, file("unknown")).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_fermata-checkpoint"))
        .args(["restore", "--device", "/nowhere"])
        .arg(&path)
        .output()
        .unwrap();
    let expected = format!(
        "fermata-checkpoint: {}: the checkpoint needs the feature time-travel, which this program \
         does not know: restore it with a newer fermata-checkpoint\n",
        path.display()
    );
    assert_eq!(String::from_utf8(run.stderr).unwrap(), expected);
    assert!(!run.status.success());
}

/// Returns the refusal of a checkpoint whose second description has the list `features`.
fn refusal_of(features: &[&str]) -> Option<Refusal> {
    let first = description_of(&file("bare"));
    let mut description = Description::from_bytes(&first).unwrap();
    description.features = features.iter().map(|name| (*name).into()).collect();
    let mut writer = Writer::new(Vec::new()).unwrap();
    for data in [first, description.to_bytes()] {
        writer.section(Kind::Description, 0, &data).unwrap();
    }
    read(&writer.end().unwrap().0).err()
}

#[test]
fn names_of_features_are_checked() {
    assert!(refusal_of(&[]).is_none());
    assert!(refusal_of(&["reservation", "cooperative", "reservation"]).is_none());
    let unknown = refusal_of(&["cooperative", "a-2"]);
    assert!(matches!(unknown, Some(Refusal::Feature(name)) if name == "a-2"));
    for name in [
        "",
        "\x1b[2J",
        "Reservation",
        "reservation ",
        &"a".repeat(33),
    ] {
        let refusal = refusal_of(&[name]);
        assert!(
            matches!(refusal, Some(Refusal::Inconsistent(_))),
            "{name:?}"
        );
    }
}
