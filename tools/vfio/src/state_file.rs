// SPDX-License-Identifier: GPL-2.0-or-later
//! The state of a guest's card as a checkpoint (docs/checkpoint.md).

use anyhow::{ensure, Context as _, Result};
use fermata_card::card::{CardState, Make};
use fermata_checkpoint::container::{Kind, Reader, Section, Writer, SECTION_MAX};
use serde::de::DeserializeOwned;
use std::io::{Read, Write};

/// The description is nested four deep.
const DEPTH: usize = 16;
/// The release that wrote a file. Only the same release reads the file, because the state of a card
/// is the program's internal data about the card.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Writes the state of a card.
pub(crate) fn write(state: &CardState, to: impl Write) -> Result<()> {
    let mut writer = Writer::new(to)?;
    let mut description = Vec::new();
    ciborium::into_writer(RELEASE, &mut description)?;
    ciborium::into_writer(state, &mut description)?;
    ensure!(
        description.len() <= SECTION_MAX,
        "the description is too long"
    );
    writer.section(Kind::Card, 0, &description)?;
    let mut offset = 0;
    for part in state
        .slots
        .iter()
        .flat_map(|slot| slot.engine().chunks(SECTION_MAX))
    {
        writer.section(Kind::State, offset, part)?;
        offset += part.len() as u64;
    }
    writer.end()?;
    Ok(())
}

/// Reads the state of a card of this make. The state is not trusted: the card checks it when it
/// takes the state. Allocates no more memory than the state of a card of this make needs.
pub(crate) fn read(from: impl Read, make: &Make) -> Result<CardState> {
    let mut reader = Reader::new(from)?;
    let first = reader.section()?;
    ensure!(
        first.kind == Kind::Card,
        "it is the checkpoint of a context: fermata-checkpoint restores it"
    );
    let mut data = &first.data[..];
    let release: String = item(&mut data)?;
    ensure!(
        release == RELEASE,
        "release {release} of fermata-vfio wrote it, and this is release {RELEASE}"
    );
    let mut state: CardState = item(&mut data)?;
    ensure!(data.is_empty(), "the description is too long");
    make.check(state.make()).map_err(anyhow::Error::msg)?;
    let mut engines = Engines::new(reader);
    for (index, slot) in state.slots.iter_mut().enumerate() {
        if let Some(engine) = slot.engine_mut() {
            *engine = engines.take(make.engine_bytes(index))?;
        }
    }
    engines.end()?;
    Ok(state)
}

/// Reads one item of CBOR.
fn item<T: DeserializeOwned>(from: &mut &[u8]) -> Result<T> {
    let item = ciborium::de::from_reader_with_recursion_limit(from, DEPTH);
    item.context("the description")
}

/// The states of engines, one after the other.
struct Engines<R> {
    reader: Reader<R>,
    offset: u64,
    /// Bytes that were read beyond the last state.
    rest: Vec<u8>,
}

impl<R: Read> Engines<R> {
    fn new(reader: Reader<R>) -> Self {
        Self {
            reader,
            offset: 0,
            rest: Vec::new(),
        }
    }

    fn section(&mut self) -> Result<Section> {
        let section = self.reader.section()?;
        ensure!(
            matches!(section.kind, Kind::State | Kind::End),
            "it has a section that does not belong there"
        );
        Ok(section)
    }

    /// Returns the next state, of `length` bytes.
    fn take(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut state = std::mem::take(&mut self.rest);
        while state.len() < length {
            let section = self.section()?;
            let has_bytes = section.kind == Kind::State && !section.data.is_empty();
            ensure!(has_bytes, "states of engines are missing");
            ensure!(
                section.offset == self.offset,
                "states of engines are not in order"
            );
            self.offset += section.data.len() as u64;
            state.extend_from_slice(&section.data);
        }
        self.rest = state.split_off(length);
        Ok(state)
    }

    /// Checks that no bytes are left over.
    fn end(mut self) -> Result<()> {
        let last = self.section()?.kind == Kind::End && self.rest.is_empty();
        ensure!(last, "states of engines are too long");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ciborium::Value;
    use fermata_card::card::Card;
    use fermata_card::config::{CardConfig, IrqKind, Profile};
    use fermata_card::engine::EngineKind;
    use fermata_card::log::Recorder;
    use std::sync::Arc;
    use std::time::Duration;

    fn card(engines: &[EngineKind]) -> Arc<Card> {
        let config = CardConfig::new(Profile::Relay, IrqKind::Msix, engines).unwrap();
        let card = Card::new(config, Recorder::none());
        card.freeze(Duration::from_secs(60)).unwrap();
        card
    }

    fn bytes(state: &CardState) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(state, &mut bytes).unwrap();
        bytes
    }

    const ENGINES: [EngineKind; 2] = [EngineKind::Linkedlist, EngineKind::Membench];

    /// Returns a card that is stopped in the middle of a job of slot 1, which never ends.
    fn at_work() -> (Arc<Card>, CardState) {
        let card = card(&ENGINES);
        card.thaw();
        for (offset, value) in [
            (0x1c8, 1 << 20),
            (0x2030, 64),
            (0x2038, 4096),
            (0x2040, 1 << 40),
            (0x2018, 1),
        ] {
            card.bar_write(offset, &u64::to_le_bytes(value));
        }
        let mut count = [0; 8];
        while count == [0; 8] {
            card.bar_read(0x2048, &mut count);
        }
        card.freeze(Duration::from_secs(60)).unwrap();
        let state = card.state();
        assert!(state.slots[1].has_engine() && !state.slots[0].has_engine());
        (card, state)
    }

    /// Returns all of a state but the card's time, which goes on.
    fn at_any_time(state: &CardState) -> Vec<(Value, Value)> {
        let mut fields = Value::serialized(state).unwrap().into_map().unwrap();
        fields.retain(|(name, _)| *name != "time".into());
        fields
    }

    #[test]
    fn a_state_comes_back() {
        let (card, state) = at_work();
        let file = bytes(&state);
        let back = read(&file[..], &card.make()).unwrap();
        assert_eq!(bytes(&back), file);
        assert_eq!(back.slots[1].engine(), state.slots[1].engine());
        card.set_state(&back).unwrap();
        assert_eq!(at_any_time(&card.state()), at_any_time(&back));
        card.stop();
    }

    type Parts<'a> = &'a [(Kind, u64, &'a [u8])];

    #[test]
    fn what_does_not_fit_is_refused() {
        let (card, state) = at_work();
        let make = card.make();
        let file = bytes(&state);
        let wrong = |bytes: &[u8], make: &Make| read(bytes, make).unwrap_err().to_string();
        let other = self::card(&ENGINES[..1]);
        assert!(wrong(&file, &other.make()).contains("it is of another card: profile relay"));
        for length in 0..file.len() {
            assert!(read(&file[..length], &make).is_err(), "{length} bytes");
        }
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert!(read(&damaged[..], &make).is_err(), "byte {at}");
        }
        let file_of = |sections: Parts<'_>| {
            let mut writer = Writer::new(Vec::new()).unwrap();
            for (kind, offset, data) in sections {
                writer.section(*kind, *offset, data).unwrap();
            }
            writer.end().unwrap().0
        };
        let text_of = |release: &str| {
            let mut text = Vec::new();
            ciborium::into_writer(release, &mut text).unwrap();
            ciborium::into_writer(&state, &mut text).unwrap();
            text
        };
        let (text, old) = (text_of(RELEASE), text_of("0.0.1"));
        let more = [&text[..], &[0]].concat();
        let engine = state.slots[1].engine();
        let long = [engine, &[0]].concat();
        let cases: [(Parts<'_>, &str); 8] = [
            (&[(Kind::Description, 0, &text)], "of a context"),
            (&[(Kind::Card, 0, b"what")], "the description"),
            (&[(Kind::Card, 0, &old)], "release 0.0.1 of fermata-vfio"),
            (&[(Kind::Card, 0, &more)], "too long"),
            (&[(Kind::Card, 0, &text)], "missing"),
            (
                &[(Kind::Card, 0, &text), (Kind::State, 1, engine)],
                "not in order",
            ),
            (
                &[(Kind::Card, 0, &text), (Kind::State, 0, &long)],
                "too long",
            ),
            (
                &[(Kind::Card, 0, &text), (Kind::Arena, 0, engine)],
                "does not belong",
            ),
        ];
        for (sections, why) in cases {
            let error = wrong(&file_of(sections), &make);
            assert!(error.contains(why), "{error}: {why}");
        }
        card.stop();
        other.stop();
    }
}
