// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that `include/libfermata.h` is what cbindgen generates from the source, and that
//! `libfermata.map` names its functions. `FERMATA_UPDATE=1` writes the header.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const HEADER: &str = "include/libfermata.h";

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap()
}

fn words(text: &str, is_wanted: impl Fn(&str) -> bool) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| is_wanted(word))
        .collect()
}

#[test]
fn header_is_as_generated() {
    let mut made = Vec::new();
    let config = cbindgen::Config::from_file(file("cbindgen.toml")).unwrap();
    cbindgen::generate_with_config(file(""), config)
        .unwrap()
        .write(&mut made);
    if std::env::var_os("FERMATA_UPDATE").is_some() {
        std::fs::write(file(HEADER), &made).unwrap();
    }
    assert_eq!(
        String::from_utf8(made).unwrap(),
        read(HEADER),
        "make the header anew: FERMATA_UPDATE=1 cargo test -p libfermata-c"
    );
}

#[test]
fn symbols_have_versions() {
    let header = read(HEADER);
    let declared: BTreeSet<_> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/']))
        .filter_map(|line| line.split_once('(')?.0.split([' ', '*']).next_back())
        .filter(|name| name.starts_with("fermata_"))
        .collect();
    let map = read("libfermata.map");
    let versioned = words(&map, |word| word.starts_with("fermata_"));
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(declared, versioned);
}
