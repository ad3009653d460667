// SPDX-License-Identifier: GPL-2.0-or-later
//! The container of a checkpoint: a header, then sections, each with checksums of its own
//! (docs/checkpoint.md).
//!
//! What is read is not trusted: nothing of a section is looked at before its checksums hold, and no
//! more memory is taken than the largest section has.

use std::io::{ErrorKind, Read, Write};

const MAGIC: [u8; 8] = *b"fermata\n";
/// Of the format. A reader refuses others.
pub const VERSION: u32 = 1;
/// The largest section, uncompressed.
pub const SECTION_MAX: usize = 1 << 20;
const HEADER: usize = 16;
const SECTION_HEADER: usize = 40;

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What the context is, as CBOR.
    Description,
    /// A part of the arena.
    Arena,
    /// A part of the engine's state.
    State,
    /// Nothing: all is there.
    End,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::Description => 1,
            Self::Arena => 2,
            Self::State => 3,
            Self::End => 4,
        }
    }

    fn of(number: u32) -> Option<Self> {
        let all = [Self::Description, Self::Arena, Self::State, Self::End];
        all.into_iter().find(|kind| kind.number() == number)
    }
}

/// A part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// What it holds.
    pub kind: Kind,
    /// Where it belongs in what it is a part of, in bytes; of the end: how many sections there are
    /// before it.
    pub offset: u64,
    /// At most [`SECTION_MAX`] bytes.
    pub data: Vec<u8>,
}

/// How the bytes of a section are stored.
const PLAIN: u32 = 0;
const LZ4: u32 = 1;

/// A section's header, without its checksums.
#[derive(Clone, Copy)]
struct SectionHeader {
    kind: u32,
    compression: u32,
    offset: u64,
    length: u64,
    stored: u64,
}

impl SectionHeader {
    /// All of it: 32 bytes, and the checksums of these and of what is stored.
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

    /// Of all but itself.
    fn checksum(bytes: &[u8; SECTION_HEADER]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&bytes[..32]), &bytes[36..40])
    }

    /// The header, and the checksum of what is stored; `None`: its own checksum does not hold.
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
    /// Writes the header.
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

    /// Writes a section, compressed where that makes it smaller. Panics on more than
    /// [`SECTION_MAX`] bytes.
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

    /// Writes the end, and gives the stream back with the number of bytes written.
    pub fn end(mut self) -> std::io::Result<(W, u64)> {
        let sections = self.sections;
        self.section(Kind::End, sections, &[])?;
        self.to.flush()?;
        Ok((self.to, self.bytes))
    }

    /// Hands all that was written to the stream on.
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
    /// Reads the header.
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

    /// Reads bytes of `what`, all or none.
    fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<(), Refusal> {
        self.from
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => Refusal::Truncated(what.into()),
                _ => Refusal::Unreadable(error),
            })
    }

    /// The next section, the end included; after that there is none.
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

    /// The stream behind the checkpoint.
    pub fn into_inner(self) -> R {
        self.from
    }
}

/// The bytes of a section as they were; `None`: they are no such bytes.
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

/// Why a checkpoint is not taken. Nothing runs then, and nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is something else.
    #[error("this is no checkpoint of fermata")]
    NotACheckpoint,
    /// Of another version of the format.
    #[error("the checkpoint is of version {0} of the format, this program reads version {version}", version = VERSION)]
    Version(u32),
    /// It ends too early.
    #[error("the checkpoint is cut off: {0}")]
    Truncated(String),
    /// A checksum does not hold.
    #[error("the checkpoint is damaged: {0}")]
    Damaged(String),
    /// A section of an unknown kind.
    #[error("the checkpoint has a section of the unknown kind {0}")]
    Kind(u32),
    /// Something is larger than it may be.
    #[error("too large: {0}")]
    TooLarge(String),
    /// Sections that do not belong together, or there.
    #[error("the checkpoint does not make sense: {0}")]
    Inconsistent(String),
    /// Something follows it.
    #[error("something follows the end of the checkpoint")]
    Trailing,
    /// The card has no such engine.
    #[error("the card has no engine {0}")]
    Engine(String),
    /// The driver is older than the program that the checkpoint is of.
    #[error(
        "the checkpoint is of version {0} of the driver's interface, this driver has version {1}"
    )]
    Interface(u32, u32),
    /// The engine's state is of another size here.
    #[error(
        "the engine's state has {0} bytes in the checkpoint, and {1} on this card: it is \
         another version of the engine"
    )]
    StateSize(u64, u64),
    /// It cannot be read.
    #[error("the checkpoint cannot be read: {0}")]
    Unreadable(#[source] std::io::Error),
    /// The driver refuses a step.
    #[error("{0}: {1}")]
    Driver(&'static str, #[source] fermata::Error),
}
