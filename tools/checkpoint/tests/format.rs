// SPDX-License-Identifier: GPL-2.0-or-later
//! Files that are read back, and files that are not believed.
#![allow(missing_docs, clippy::pedantic)]

use fermata_checkpoint::container::{Kind, Reader, Writer, SECTION_MAX};
use fermata_checkpoint::{
    Account, ArenaDescription, Content, Description, Job, Part, Refusal, ReservationDescription,
};
use proptest::prelude::*;

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

/// A file with one section that is compressed and one that cannot be.
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

/// All parts of a file, or why it is refused.
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

/// The first section's header with one field changed, its checksum right.
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
    // Uncompressed it is shorter or longer than it says.
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
    // Beyond the arena, and without one.
    inconsistent(&[first.clone(), (Kind::Arena, (1 << 16) - 1, vec![1, 1])]);
    inconsistent(&[first.clone(), (Kind::Arena, u64::MAX, vec![1])]);
    inconsistent(&[
        (Kind::Description, 0, with(|d| d.arena = None)),
        (Kind::Arena, 0, vec![1]),
    ]);
    // A state of a job that has none, too little, too much, out of order.
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

/// Sections whose checksums hold, whatever is in them.
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

    /// Whatever passes the checks lies within what its description says.
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

    /// Any bytes behind a header that is right.
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
