// SPDX-License-Identifier: GPL-2.0
//! The core's own memory.

/// Address of its first byte: nothing is at address 0.
pub const BASE: u32 = 0x1_0000;
/// Its bytes.
pub const SIZE: usize = 256 * 1024;

/// `SIZE` bytes from `BASE` on.
#[derive(Clone, PartialEq, Eq)]
pub struct Memory(Vec<u8>);

impl Memory {
    pub(super) fn new() -> Self {
        Self(vec![0; SIZE])
    }

    /// Memory that begins with these bytes, as far as there is room; the rest is zeros.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut own = bytes[..bytes.len().min(SIZE)].to_vec();
        own.resize(SIZE, 0);
        Self(own)
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn at(addr: u32) -> Option<usize> {
        addr.checked_sub(BASE).map(|at| at as usize)
    }

    /// `len` bytes at `addr`, if all are there.
    pub(super) fn slice(&self, addr: u32, len: usize) -> Option<&[u8]> {
        self.0.get(Self::at(addr)?..)?.get(..len)
    }

    pub(super) fn slice_mut(&mut self, addr: u32, len: usize) -> Option<&mut [u8]> {
        self.0.get_mut(Self::at(addr)?..)?.get_mut(..len)
    }

    pub(super) fn load<const N: usize>(&self, addr: u32) -> Option<[u8; N]> {
        self.0.get(Self::at(addr)?..)?.first_chunk().copied()
    }

    pub(super) fn store<const N: usize>(&mut self, addr: u32, data: [u8; N]) -> Option<()> {
        let to = self.0.get_mut(Self::at(addr)?..)?.first_chunk_mut()?;
        *to = data;
        Some(())
    }
}
