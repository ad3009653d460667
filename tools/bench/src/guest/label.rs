// SPDX-License-Identifier: GPL-2.0-or-later
//! Labels: instructions that a plugin of QEMU (tools/bench/plugin) recognizes in the program, and
//! that tell the plugin which phase the program is in.

use anyhow::{Context as _, Result};
use serde::Serialize;
use std::arch::asm;
use std::fs::File;
use std::path::Path;

/// A phase of the workload. `operations` operations ran between the labels `2 * number` and `2 *
/// number + 1`.
#[derive(Serialize)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) operations: u64,
}

#[derive(Serialize)]
pub(crate) struct CountReport {
    /// The address of the module's code, and the length of the module's memory.
    text: String,
    bytes: u64,
    pub(crate) phases: Vec<Phase>,
}

impl CountReport {
    pub(crate) fn new() -> Result<Self> {
        let (text, bytes) = module()?;
        Ok(Self {
            text,
            bytes,
            phases: Vec::new(),
        })
    }

    /// Writes the file that vm/fermatavm/instructions.py reads.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let out = File::create(path).with_context(|| path.display().to_string())?;
        serde_json::to_writer(out, self)?;
        Ok(())
    }
}

/// Executes a label: a long NOP whose displacement holds `NUMBER`.
pub(crate) fn label<const NUMBER: u32>() {
    const MAGIC: u32 = 0x5e9c << 16;
    // SAFETY: The instruction is a NOP.
    unsafe {
        asm!(
            ".byte 0x0f, 0x1f, 0x84, 0x00",
            ".long {word}",
            word = const MAGIC | NUMBER,
            options(nomem, nostack, preserves_flags)
        );
    }
}

macro_rules! phase {
    ($counted:expr, $number:literal, $name:literal, $operations:expr) => {{
        $crate::guest::label::label::<{ 2 * $number }>();
        let operations = $operations;
        $crate::guest::label::label::<{ 2 * $number + 1 }>();
        $counted.phases.push($crate::guest::label::Phase {
            name: $name,
            operations,
        });
    }};
}
pub(crate) use phase;

/// Tells the plugin the addresses of the kernel functions that begin and end sections with
/// interrupts off and that access registers.
pub(crate) fn report_functions() -> Result<()> {
    report_function("rust_helper_readq", label::<0xfff4>)?;
    report_function("rust_helper_writeq", label::<0xfff5>)?;
    // The function that ends a section comes before the function that begins one.
    report_function("_raw_spin_unlock_irqrestore", label::<0xfff3>)?;
    report_function("_raw_spin_lock_irqsave", label::<0xfff2>)
}

fn report_function(function: &str, which: fn()) -> Result<()> {
    let symbols = std::fs::read_to_string("/proc/kallsyms")?;
    let mut lines = symbols.lines().map(|line| line.split_ascii_whitespace());
    let address = lines.find_map(|mut words| {
        let address = words.next()?;
        (words.nth(1)? == function).then_some(address)
    });
    let address = address.with_context(|| format!("the kernel has no {function}"))?;
    let address = u64::from_str_radix(address, 16)?;
    for bit in (0..u64::BITS).rev() {
        if address >> bit & 1 == 1 {
            label::<0xfff1>();
        } else {
            label::<0xfff0>();
        }
    }
    which();
    Ok(())
}

/// Returns the address of the module's code, and the size of the module in bytes.
fn module() -> Result<(String, u64)> {
    let text = std::fs::read_to_string("/sys/module/fermata/sections/.text")
        .context("fermata.ko is not loaded")?;
    let modules = std::fs::read_to_string("/proc/modules")?;
    let line = modules.lines().find(|line| line.starts_with("fermata "));
    let bytes = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    let bytes = bytes.context("/proc/modules has no fermata")?.parse()?;
    Ok((text.trim().into(), bytes))
}
