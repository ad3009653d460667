// SPDX-License-Identifier: GPL-2.0-or-later
//! The core's own memory, and how a program is loaded into it: a static executable for RV32,
//! little-endian.

use elf::abi::{EM_RISCV, ET_EXEC, PT_LOAD};
use elf::endian::LittleEndian;
use elf::file::Class;
use elf::segment::ProgramHeader;
use elf::ElfBytes;

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

/// Files beyond this size are refused.
pub const MAX_FILE: u64 = 1 << 20;

/// Memory with the segments of the file in it, and the entry. `None` where it is no such program.
pub fn load(file: &[u8]) -> Option<(Memory, u32)> {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(file).ok()?;
    let header = &elf.ehdr;
    if header.class != Class::ELF32 || header.e_machine != EM_RISCV || header.e_type != ET_EXEC {
        return None;
    }
    let mut memory = Memory::new();
    for segment in elf.segments()? {
        if segment.p_type == PT_LOAD {
            place(file, &segment, &mut memory)?;
        }
    }
    let entry = u32::try_from(header.e_entry).ok()?;
    (entry % 2 == 0 && memory.slice(entry, 2).is_some()).then_some((memory, entry))
}

fn place(file: &[u8], segment: &ProgramHeader, memory: &mut Memory) -> Option<()> {
    let field = |value| usize::try_from(value).ok();
    let (offset, len) = (field(segment.p_offset)?, field(segment.p_filesz)?);
    let bytes = file.get(offset..)?.get(..len)?;
    let addr = u32::try_from(segment.p_vaddr).ok()?;
    let to = memory.slice_mut(addr, field(segment.p_memsz)?)?;
    let (head, rest) = to.split_at_mut_checked(len)?;
    head.copy_from_slice(bytes);
    rest.fill(0);
    Some(())
}
