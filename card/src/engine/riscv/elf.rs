// SPDX-License-Identifier: GPL-2.0
//! Loads a program: a static executable for RV32, little-endian, whose segments lie in the core's memory.

use super::memory::Memory;
use elf::abi::{EM_RISCV, ET_EXEC, PT_LOAD};
use elf::endian::LittleEndian;
use elf::file::Class;
use elf::segment::ProgramHeader;
use elf::ElfBytes;

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
