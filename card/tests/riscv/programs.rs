// SPDX-License-Identifier: GPL-2.0
//! The programs of tests/programs, compiled.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub struct Program {
    pub name: &'static str,
    pub elf: Vec<u8>,
    /// Rounds that take a few hundred thousand cycles.
    pub arg: u32,
}

const SOURCES: [(&str, u32); 5] = [
    ("sort", 2),
    ("matrix", 2),
    ("mixture", 6),
    ("unpack", 2),
    ("counters", 20),
];

/// Makes the programs; where they are.
fn make() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    let status = Command::new("make")
        .args(["-s", "-C"])
        .arg(folder)
        .arg(format!("OUT={}", out.display()))
        .status()
        .expect("make is in the build root");
    assert!(status.success(), "the programs do not compile");
    out
}

/// All of them, compiled once for each run of the tests.
pub fn all() -> &'static [Program] {
    static ALL: OnceLock<Vec<Program>> = OnceLock::new();
    ALL.get_or_init(|| {
        let folder = make();
        let program = |(name, arg)| Program {
            name,
            elf: std::fs::read(folder.join(format!("riscv-{name}"))).unwrap(),
            arg,
        };
        SOURCES.map(program).into()
    })
}
