// SPDX-License-Identifier: GPL-2.0-or-later
//! Files that are read back, and files that are rejected. Files of earlier tools, which are
//! readable forever, and files of later tools: `vm/run travel` restores the same files.
#![allow(missing_docs, clippy::pedantic)]

use fermata_checkpoint::container::{Kind, Reader, Writer, SECTION_MAX};
use fermata_checkpoint::{
    Account, ArenaDescription, Content, Description, Job, Part, Refusal, ReservationDescription,
};
use proptest::prelude::*;
use std::process::Command;

const LINKED_LIST: &str = "4c494e4b-4544-4c49-5354-000000000001";

fn description() -> Description {
    Description {
        interface: 1,
        features: vec!["reservation".into()],
        engine: [5, 7],
        job: Job::Saved,
        state_bytes: 8192,
        arena: Some(ArenaDescription {
            length: 1 << 16,
            device_base: 0x7f00_0000_0000,
        }),
        registers: vec![(0x30, 1), (0x50, u64::MAX)],
        results: vec![0x38, 0x40],
        parameters: vec![(1, 2_000_000), (9, 0)],
        reservation: Some(ReservationDescription {
            budget_ns: 1_000_000,
            deadline_ns: 5_000_000,
            period_ns: 10_000_000,
        }),
        account: Account {
            run_ns: 1,
            wait_ns: 2,
            slices: 3,
            preemptions: 4,
        },
    }
}

/// Returns a file with one section that is compressed and one that cannot be.
fn file() -> Vec<u8> {
    written(&[
        (Kind::Description, 0, description().to_bytes()),
        (
            Kind::State,
            0,
            (0..8192_u32).map(|i| (i / 64) as u8).collect(),
        ),
        (Kind::Arena, 4096, noise(600)),
    ])
}

fn noise(length: u64) -> Vec<u8> {
    let mix = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u8;
    (0..length).map(mix).collect()
}

fn written(sections: &[(Kind, u64, Vec<u8>)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for (kind, offset, data) in sections {
        writer.section(*kind, *offset, data).unwrap();
    }
    let (bytes, length) = writer.end().unwrap();
    assert_eq!(bytes.len() as u64, length);
    bytes
}

/// Returns all parts of a file, or why it is refused.
fn read(bytes: &[u8]) -> Result<(Description, Vec<Part>), Refusal> {
    let mut content = Content::new(bytes)?;
    let mut parts = Vec::new();
    while let Some(part) = content.part()? {
        parts.push(part);
    }
    let description = content.description().clone();
    content.end().map(|()| (description, parts))
}

#[test]
fn what_was_written_is_read() {
    let (read_back, parts) = read(&file()).unwrap();
    assert_eq!(read_back, description());
    let [Part::State(0, state), Part::Arena(4096, arena)] = &parts[..] else {
        panic!("{parts:?}");
    };
    assert_eq!((state.len(), &arena[..]), (8192, &noise(600)[..]));
}

#[test]
fn every_truncation_is_refused() {
    let file = file();
    for length in 0..file.len() {
        let refusal = read(&file[..length]).unwrap_err();
        assert!(
            matches!(refusal, Refusal::Truncated(_)),
            "{length}: {refusal}"
        );
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let mut file = file();
    for bit in 0..file.len() * 8 {
        file[bit / 8] ^= 1 << (bit % 8);
        let refusal = read(&file).expect_err("a flipped bit");
        let expected = match bit / 8 {
            0..8 => matches!(refusal, Refusal::NotACheckpoint),
            8..16 => matches!(refusal, Refusal::Damaged(_)),
            _ => matches!(refusal, Refusal::Damaged(_) | Refusal::Truncated(_)),
        };
        assert!(expected, "bit {bit}: {refusal}");
        file[bit / 8] ^= 1 << (bit % 8);
    }
    read(&file).unwrap();
}

#[test]
fn something_behind_the_end_is_refused() {
    let mut file = file();
    file.push(0);
    assert!(matches!(read(&file), Err(Refusal::Trailing)));
}

#[test]
fn another_version_is_refused() {
    let mut file = file();
    file[8] = 2;
    let own = crc32c::crc32c(&file[..12]);
    file[12..16].copy_from_slice(&own.to_le_bytes());
    assert!(matches!(read(&file), Err(Refusal::Version(2))));
}

/// Returns the file with one field of the first section's header changed, and the checksum
/// corrected.
fn forged(at: usize, value: u64, width: usize) -> Vec<u8> {
    let mut file = file();
    let header = &mut file[16..56];
    header[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    let own = crc32c::crc32c_append(crc32c::crc32c(&header[..32]), &header[36..40]);
    header[32..36].copy_from_slice(&own.to_le_bytes());
    file
}

#[test]
fn forged_headers_are_refused() {
    assert!(matches!(read(&forged(0, 9, 4)), Err(Refusal::Kind(9))));
    assert!(matches!(read(&forged(4, 9, 4)), Err(Refusal::Damaged(_))));
    for huge in [SECTION_MAX as u64 + 1, u64::MAX] {
        assert!(matches!(
            read(&forged(16, huge, 8)),
            Err(Refusal::TooLarge(_))
        ));
        assert!(matches!(
            read(&forged(24, huge, 8)),
            Err(Refusal::TooLarge(_))
        ));
    }
    // The uncompressed data are shorter or longer than the header says.
    assert!(matches!(
        read(&forged(16, 8191, 8)),
        Err(Refusal::Damaged(_))
    ));
}

fn with(change: impl Fn(&mut Description)) -> Vec<u8> {
    let mut description = description();
    description.job = Job::New;
    change(&mut description);
    description.to_bytes()
}

fn refused(sections: &[(Kind, u64, Vec<u8>)]) -> Refusal {
    read(&written(sections)).expect_err("it does not make sense")
}

#[test]
fn what_makes_no_sense_is_refused() {
    let first = (Kind::Description, 0, with(|_| ()));
    let inconsistent = |sections: &[(Kind, u64, Vec<u8>)]| {
        let refusal = refused(sections);
        assert!(matches!(refusal, Refusal::Inconsistent(_)), "{refusal}");
    };
    inconsistent(&[(Kind::Arena, 0, vec![1])]);
    inconsistent(&[(Kind::Description, 0, b"no description".to_vec())]);
    inconsistent(&[(Kind::Description, 0, [with(|_| ()), vec![0]].concat())]);
    // Beyond the arena, and without an arena.
    inconsistent(&[first.clone(), (Kind::Arena, (1 << 16) - 1, vec![1, 1])]);
    inconsistent(&[first.clone(), (Kind::Arena, u64::MAX, vec![1])]);
    inconsistent(&[
        (Kind::Description, 0, with(|d| d.arena = None)),
        (Kind::Arena, 0, vec![1]),
    ]);
    // A state for a job that has none; too little, too much, or out of order.
    let saved = (Kind::Description, 0, description().to_bytes());
    inconsistent(&[first.clone(), (Kind::State, 0, vec![0; 8192])]);
    inconsistent(&[saved.clone(), (Kind::State, 0, vec![0; 8191])]);
    inconsistent(&[saved.clone(), (Kind::State, 0, vec![0; 8193])]);
    inconsistent(&[saved.clone(), (Kind::State, 1, vec![0; 8191])]);
    inconsistent(&[saved.clone()]);
    // Two contexts in one.
    inconsistent(&[
        first.clone(),
        (Kind::Description, 0, with(|d| d.engine = [1, 1])),
    ]);
    inconsistent(&[
        first.clone(),
        (Kind::Description, 0, with(|d| d.arena = None)),
    ]);
    // Parameters that do not travel, and a number that no parameter has.
    for number in [8, 10, 11] {
        inconsistent(&[(
            Kind::Description,
            0,
            with(|d| d.parameters = vec![(number, 1)]),
        )]);
    }
    let many = with(|d| d.registers = vec![(0x30, 0); 513]);
    assert!(matches!(
        refused(&[(Kind::Description, 0, many)]),
        Refusal::TooLarge(_)
    ));
    let many = with(|d| d.results = vec![0x30; 17]);
    assert!(matches!(
        refused(&[(Kind::Description, 0, many)]),
        Refusal::TooLarge(_)
    ));
}

/// Sections with correct checksums and arbitrary contents.
fn section() -> impl Strategy<Value = (Kind, u64, Vec<u8>)> {
    let kind = prop_oneof![
        Just(Kind::Description),
        Just(Kind::Arena),
        Just(Kind::State),
        Just(Kind::End)
    ];
    let offset = prop_oneof![Just(0), 0..70_000_u64, any::<u64>()];
    let data = prop_oneof![
        Just(description().to_bytes()),
        prop::collection::vec(any::<u8>(), 0..300),
        Just(vec![0; 8192]),
        (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| {
            let mut bytes = description().to_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        }),
    ];
    (kind, offset, data)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever passes the checks is within the bounds of its description.
    #[test]
    fn any_sections_are_read_or_refused(sections in prop::collection::vec(section(), 0..6), first in any::<bool>()) {
        let mut all = Vec::new();
        if first {
            all.push((Kind::Description, 0, description().to_bytes()));
        }
        all.extend(sections);
        if let Ok((description, parts)) = read(&written(&all)) {
            let length = description.arena.map_or(0, |arena| arena.length);
            let mut state = 0;
            for part in parts {
                match part {
                    Part::Arena(offset, data) => prop_assert!(offset + data.len() as u64 <= length),
                    Part::State(offset, data) => {
                        prop_assert_eq!(offset, state);
                        state += data.len() as u64;
                    }
                    Part::Described => {}
                }
            }
            let whole = if description.job == Job::Saved { description.state_bytes } else { 0 };
            prop_assert_eq!(state, whole);
        }
    }

    /// Arbitrary bytes after a correct header.
    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut file = file()[..16].to_vec();
        file.extend(bytes);
        prop_assert!(read(&file).is_err());
    }

    #[test]
    fn sections_come_back_as_they_were(data in prop::collection::vec(any::<u8>(), 0..5000), offset in any::<u64>()) {
        let file = written(&[(Kind::Arena, offset, data.clone())]);
        let section = Reader::new(&file[..]).unwrap().section().unwrap();
        prop_assert_eq!((section.kind, section.offset, section.data), (Kind::Arena, offset, data));
    }
}

/// Returns the file `name` of files.txt.
fn stored_file(name: &str) -> Vec<u8> {
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

fn contents_of(bytes: &[u8]) -> Result<Contents, Refusal> {
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
    let held = contents_of(&stored_file("held")).unwrap();
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
    let reserved = contents_of(&stored_file(name)).unwrap();
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
    let share = contents_of(&stored_file("share")).unwrap();
    share.check_state(3_000_123);
    assert_eq!(share.parameter(7), 30);
}

#[test]
fn contexts_without_state_are_read() {
    let new = contents_of(&stored_file("new")).unwrap();
    new.check_ring(7, 1000);
    assert_eq!((new.description.job, new.state.len()), (Job::New, 0));
    let idle = contents_of(&stored_file("idle")).unwrap();
    idle.check_ring(2, 1000);
    assert_eq!((idle.description.job, idle.state.len()), (Job::None, 0));
    let bare = contents_of(&stored_file("bare")).unwrap();
    assert_eq!((bare.description.job, bare.parts), (Job::None, 0));
    assert_eq!(bare.description.arena, None);
    assert_eq!(bare.description.state_bytes, 4096);
}

#[test]
fn the_last_of_repeated_sections_counts() {
    let moved = contents_of(&stored_file("moved")).unwrap();
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
        let data = description_of(&stored_file(name));
        assert_eq!(
            Description::from_bytes(&data).unwrap().to_bytes(),
            data,
            "{name}"
        );
    }
}

#[test]
fn an_unknown_feature_is_refused() {
    let refusal = contents_of(&stored_file("unknown")).err().unwrap();
    assert!(matches!(&refusal, Refusal::Feature(name) if name == "time-travel"));
}

/// The program names the file, the feature and the remedy, and does not open the card.
#[test]
fn the_program_refuses_an_unknown_feature() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("unknown.fermata");
    std::fs::write(&path, stored_file("unknown")).unwrap();
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
    let first = description_of(&stored_file("bare"));
    let mut description = Description::from_bytes(&first).unwrap();
    description.features = features.iter().map(|name| (*name).into()).collect();
    let mut writer = Writer::new(Vec::new()).unwrap();
    for data in [first, description.to_bytes()] {
        writer.section(Kind::Description, 0, &data).unwrap();
    }
    contents_of(&writer.end().unwrap().0).err()
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
