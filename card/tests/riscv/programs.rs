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

const FLAGS: [&str; 13] = [
    "--target=riscv32-unknown-elf",
    "-march=rv32imc_zicsr",
    "-mabi=ilp32",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-nostdlib",
    "-static",
    "-fuse-ld=lld",
    "-Wl,-z,max-page-size=4096",
    "-Wl,--strip-all",
];

fn compile(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.elf"));
    let status = Command::new("clang")
        .args(FLAGS)
        .args([&folder.join(format!("{name}.c")), &folder.join("runtime.c")])
        .arg("-o")
        .arg(&out)
        .status()
        .expect("clang is in the build root");
    assert!(status.success(), "{name} does not compile");
    std::fs::read(out).unwrap()
}

/// All of them, compiled once for each run of the tests.
pub fn all() -> &'static [Program] {
    static ALL: OnceLock<Vec<Program>> = OnceLock::new();
    ALL.get_or_init(|| {
        let program = |(name, arg)| Program {
            name,
            elf: compile(name),
            arg,
        };
        SOURCES.map(program).into()
    })
}
