// SPDX-License-Identifier: GPL-2.0
//! Messages of the vfio-user protocol as bytes.

use rustix::io::Errno;

/// Size of a message header.
pub(super) const HEADER: usize = 16;
/// Most bytes of a message: the largest transfer and its header.
pub(super) const MAX_MESSAGE: usize = MAX_TRANSFER + 64;
/// Most bytes of one region or DMA access.
pub(super) const MAX_TRANSFER: usize = 1 << 20;
/// Most descriptors with one message.
pub(super) const MAX_FDS: usize = 16;

/// Commands.
pub(super) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const GET_INFO: u16 = 4;
    pub(crate) const GET_REGION_INFO: u16 = 5;
    pub(crate) const GET_IRQ_INFO: u16 = 7;
    pub(crate) const SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DMA_READ: u16 = 11;
    pub(crate) const DMA_WRITE: u16 = 12;
    pub(crate) const RESET: u16 = 13;
}

const REPLY: u32 = 1;
const TYPE: u32 = 0xf;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// A message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: u16,
    pub(super) command: u16,
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) error: u32,
}

impl Header {
    pub(super) fn parse(bytes: &[u8; HEADER]) -> Self {
        let mut fields = Fields(bytes);
        let ids = fields.u32().unwrap_or_default();
        let mut next = || fields.u32().unwrap_or_default();
        Self {
            id: ids as u16,
            command: (ids >> 16) as u16,
            size: next(),
            flags: next(),
            error: next(),
        }
    }

    /// Bytes after the header, if the size is sound.
    pub(super) fn body(&self) -> Result<usize, Errno> {
        let size = self.size as usize;
        if (HEADER..=MAX_MESSAGE).contains(&size) {
            Ok(size - HEADER)
        } else {
            Err(Errno::INVAL)
        }
    }

    pub(super) fn is_reply(&self) -> bool {
        self.flags & TYPE == REPLY
    }

    pub(super) fn is_error(&self) -> bool {
        self.flags & ERROR != 0
    }

    pub(super) fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }
}

fn message(id: u16, command: u16, flags: u32, error: u32, body: &[u8]) -> Vec<u8> {
    let size = (HEADER + body.len()) as u32;
    let mut out = Vec::with_capacity(size as usize);
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&command.to_le_bytes());
    for word in [size, flags, error] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(body);
    out
}

/// A request of the server.
pub(super) fn request(id: u16, command: u16, body: &[u8]) -> Vec<u8> {
    message(id, command, 0, 0, body)
}

/// The reply to a request of the client.
pub(super) fn reply(to: &Header, result: Result<Vec<u8>, Errno>) -> Vec<u8> {
    match result {
        Ok(body) => message(to.id, to.command, REPLY, 0, &body),
        Err(errno) => message(
            to.id,
            to.command,
            REPLY | ERROR,
            errno.raw_os_error() as u32,
            &[],
        ),
    }
}

/// Reads little-endian fields; what is missing is EINVAL.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Bytes of little-endian words.
pub(super) fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
