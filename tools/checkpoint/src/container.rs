// SPDX-License-Identifier: GPL-2.0-or-later
//! The container of a checkpoint: a header, then sections with checksums (docs/checkpoint.md).
//!
//! Input is not trusted: a section is not interpreted before its checksums are verified, and memory
//! is allocated for one section of maximum size only.

use std::io::{ErrorKind, Read, Write};

const MAGIC: [u8; 8] = *b"fermata\n";
/// Version of the format. A reader refuses other versions.
pub const VERSION: u32 = 1;
/// Maximum length of a section, uncompressed.
pub const SECTION_MAX: usize = 1 << 20;
const HEADER: usize = 16;
const SECTION_HEADER: usize = 40;

/// Kind of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The description of the context, in CBOR.
    Description,
    /// A part of the arena.
    Arena,
    /// A part of the engine's state.
    State,
    /// The end, without data.
    End,
    /// The description of the card of a virtual machine, in CBOR (`fermata-vfio save`).
    Card,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::Description => 1,
            Self::Arena => 2,
            Self::State => 3,
            Self::End => 4,
            Self::Card => 5,
        }
    }

    fn of(number: u32) -> Option<Self> {
        use Kind::{Arena, Card, Description, End, State};
        let all = [Description, Arena, State, End, Card];
        all.into_iter().find(|kind| kind.number() == number)
    }
}

/// A section of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Kind of the section.
    pub kind: Kind,
    /// Offset in the arena or the state, in bytes; in the file of a card: in the states of the slots'
    /// engines, one after the other; of the end: number of sections before it.
    pub offset: u64,
    /// At most [`SECTION_MAX`] bytes.
    pub data: Vec<u8>,
}

/// Encodings of a section's data.
const PLAIN: u32 = 0;
const LZ4: u32 = 1;

/// The header of a section, without checksums.
#[derive(Clone, Copy)]
struct SectionHeader {
    kind: u32,
    compression: u32,
    offset: u64,
    length: u64,
    stored: u64,
}

impl SectionHeader {
    /// Returns the encoded header: 32 bytes, their checksum, and the checksum of the stored data.
    fn to_bytes(self, stored: &[u8]) -> [u8; SECTION_HEADER] {
        let mut bytes = [0; SECTION_HEADER];
        bytes[0..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.compression.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.stored.to_le_bytes());
        bytes[36..40].copy_from_slice(&crc32c::crc32c(stored).to_le_bytes());
        let own = Self::checksum(&bytes);
        bytes[32..36].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Returns the checksum of the header without the checksum itself.
    fn checksum(bytes: &[u8; SECTION_HEADER]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&bytes[..32]), &bytes[36..40])
    }

    /// Returns the header and the checksum of the stored data, or `None` if the header's checksum
    /// is wrong.
    fn from_bytes(bytes: &[u8; SECTION_HEADER]) -> Option<(Self, u32)> {
        if word(bytes, 32) != Self::checksum(bytes) {
            return None;
        }
        let long = |at| u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32;
        let header = Self {
            kind: word(bytes, 0),
            compression: word(bytes, 4),
            offset: long(8),
            length: long(16),
            stored: long(24),
        };
        Some((header, word(bytes, 36)))
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Writes a checkpoint.
pub struct Writer<W> {
    to: W,
    sections: u64,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the header of a checkpoint.
    pub fn new(mut to: W) -> std::io::Result<Self> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let own = crc32c::crc32c(&header[..12]);
        header[12..].copy_from_slice(&own.to_le_bytes());
        to.write_all(&header)?;
        Ok(Self {
            to,
            sections: 0,
            bytes: HEADER as u64,
        })
    }

    /// Writes a section, compressed if that makes it smaller. Panics on more than [`SECTION_MAX`]
    /// bytes.
    pub fn section(&mut self, kind: Kind, offset: u64, data: &[u8]) -> std::io::Result<()> {
        assert!(data.len() <= SECTION_MAX);
        let small = lz4_flex::block::compress(data);
        let (compression, stored) = if small.len() < data.len() {
            (LZ4, &small[..])
        } else {
            (PLAIN, data)
        };
        let header = SectionHeader {
            kind: kind.number(),
            compression,
            offset,
            length: data.len() as u64,
            stored: stored.len() as u64,
        };
        self.to.write_all(&header.to_bytes(stored))?;
        self.to.write_all(stored)?;
        self.sections += 1;
        self.bytes += (SECTION_HEADER + stored.len()) as u64;
        Ok(())
    }

    /// Writes the end. Returns the stream, and the number of bytes written.
    pub fn end(mut self) -> std::io::Result<(W, u64)> {
        let sections = self.sections;
        self.section(Kind::End, sections, &[])?;
        self.to.flush()?;
        Ok((self.to, self.bytes))
    }

    /// Flushes the stream.
    pub fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// Reads a checkpoint.
pub struct Reader<R> {
    from: R,
    sections: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header of a checkpoint.
    pub fn new(from: R) -> Result<Self, Refusal> {
        let mut reader = Self { from, sections: 0 };
        let mut header = [0; HEADER];
        reader.fill(&mut header, "the header")?;
        if header[..8] != MAGIC {
            return Err(Refusal::NotACheckpoint);
        }
        if word(&header, 12) != crc32c::crc32c(&header[..12]) {
            return Err(Refusal::Damaged("the header".into()));
        }
        match word(&header, 8) {
            VERSION => Ok(reader),
            version => Err(Refusal::Version(version)),
        }
    }

    /// Reads all of `bytes`; `what` names them in errors.
    fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<(), Refusal> {
        self.from
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => Refusal::Truncated(what.into()),
                _ => Refusal::Unreadable(error),
            })
    }

    /// Returns the next section, including the end, after which there is none.
    pub fn section(&mut self) -> Result<Section, Refusal> {
        let name = format!("section {}", self.sections);
        let mut bytes = [0; SECTION_HEADER];
        self.fill(&mut bytes, &name)?;
        let Some((header, checksum)) = SectionHeader::from_bytes(&bytes) else {
            return Err(Refusal::Damaged(format!("the header of {name}")));
        };
        let kind = Kind::of(header.kind).ok_or(Refusal::Kind(header.kind))?;
        if header.length > SECTION_MAX as u64 || header.stored > header.length {
            let what = format!("{name} of {} bytes", header.length.max(header.stored));
            return Err(Refusal::TooLarge(what));
        }
        let mut stored = vec![0; header.stored as usize];
        self.fill(&mut stored, &name)?;
        if crc32c::crc32c(&stored) != checksum {
            return Err(Refusal::Damaged(name));
        }
        let data = unpack(header, stored).ok_or(Refusal::Damaged(name))?;
        if kind == Kind::End && (header.offset != self.sections || !data.is_empty()) {
            let text = format!("{} sections are there, of {}", self.sections, header.offset);
            return Err(Refusal::Truncated(text));
        }
        self.sections += 1;
        Ok(Section {
            kind,
            offset: header.offset,
            data,
        })
    }

    /// Returns the stream, which is positioned after the checkpoint.
    pub fn into_inner(self) -> R {
        self.from
    }
}

/// Returns the decompressed data of a section, or `None` if the data are invalid.
fn unpack(header: SectionHeader, stored: Vec<u8>) -> Option<Vec<u8>> {
    match header.compression {
        PLAIN if header.stored == header.length => Some(stored),
        LZ4 => {
            let data = lz4_flex::block::decompress(&stored, header.length as usize).ok()?;
            (data.len() as u64 == header.length).then_some(data)
        }
        _ => None,
    }
}

/// Why a checkpoint is refused. Nothing of the checkpoint runs, and no context remains.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The input is not a checkpoint.
    #[error("this is no checkpoint of fermata")]
    NotACheckpoint,
    /// The checkpoint has another version of the format.
    #[error("the checkpoint is of version {0} of the format, this program reads version {version}", version = VERSION)]
    Version(u32),
    /// The checkpoint is truncated.
    #[error("the checkpoint is truncated: {0}")]
    Truncated(String),
    /// A checksum is wrong.
    #[error("the checkpoint is damaged: {0}")]
    Damaged(String),
    /// The checkpoint is of a card, and not of a context.
    #[error("the checkpoint is of the card of a virtual machine: fermata-vfio load takes it")]
    Card,
    /// A section has an unknown kind.
    #[error("the checkpoint has a section of the unknown kind {0}")]
    Kind(u32),
    /// A size exceeds its limit.
    #[error("too large: {0}")]
    TooLarge(String),
    /// Sections contradict each other.
    #[error("the checkpoint is inconsistent: {0}")]
    Inconsistent(String),
    /// Data follow the checkpoint.
    #[error("data follow the end of the checkpoint")]
    Trailing,
    /// The card lacks the engine.
    #[error("the card has no engine {0}")]
    Engine(String),
    /// The checkpoint needs an unknown feature.
    #[error(
        "the checkpoint needs the feature {0}, which this program does not know: restore it with a \
         newer fermata-checkpoint"
    )]
    Feature(String),
    /// The engine's state has another size on this card.
    #[error(
        "the engine's state has {0} bytes in the checkpoint, and {1} on this card: it is \
         another version of the engine"
    )]
    StateSize(u64, u64),
    /// An I/O error.
    #[error("the checkpoint cannot be read: {0}")]
    Unreadable(#[source] std::io::Error),
    /// The driver refuses a call.
    #[error("{0}: {1}")]
    Driver(&'static str, #[source] fermata::Error),
}
