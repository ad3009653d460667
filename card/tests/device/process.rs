// SPDX-License-Identifier: GPL-2.0-or-later
//! The card as a process: its command line, sockets, signals, and the offline check of its log.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use vfio_user::Client;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fermata-card");

/// Returns the command that serves a card with the sockets and the log in a folder.
fn command(dir: &Path, more: &[&str]) -> Command {
    let at = |name| dir.join(name);
    let mut command = Command::new(PROGRAM);
    command
        .args([
            "--socket".as_ref(),
            at("s").as_os_str(),
            "--control".as_ref(),
            at("c").as_os_str(),
        ])
        .args(["--log".as_ref(), at("log").as_os_str()])
        .args(more)
        .stdout(Stdio::piped());
    command
}

fn start(dir: &Path, more: &[&str]) -> Child {
    ready(&mut command(dir, more))
}

/// Runs the command, and waits until the card is ready.
fn ready(command: &mut Command) -> Child {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn ask(dir: &Path, requests: &str) -> Vec<String> {
    let mut stream = UnixStream::connect(dir.join("c")).unwrap();
    stream.write_all(requests.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    BufReader::new(stream).lines().map(|l| l.unwrap()).collect()
}

fn check(dir: &Path) -> Output {
    Command::new(PROGRAM)
        .arg("check")
        .arg(dir.join("log"))
        .output()
        .unwrap()
}

#[test]
fn a_session() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = start(
        dir.path(),
        &[
            "--profile",
            "base",
            "--slots",
            "sha256,membench",
            "--set",
            "slot=1,speed=7",
        ],
    );
    let replies = ask(dir.path(), "a ping\n\nb what\nc violations\n");
    assert_eq!(
        replies,
        [
            "a ok profile=base slots=2 irq=none",
            "b err unknown verb what",
            "c ok total=0"
        ]
    );
    let mut client = Client::new(&dir.path().join("s")).unwrap();
    client.region_write(0, 0x18, &[1; 4]).unwrap();
    drop(client);
    let mut client = Client::new(&dir.path().join("s")).unwrap();
    let mut count = [0; 8];
    client.region_read(0, 0x20, &mut count).unwrap();
    assert_eq!(count, 2u64.to_le_bytes());
    assert_eq!(
        ask(dir.path(), "d violations\n"),
        ["d ok total=1 bad_access=1"]
    );
    assert_eq!(ask(dir.path(), "e quit\n"), ["e ok"]);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!dir.path().join("s").exists());
    let output = check(dir.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.starts_with(b"total=1 bad_access=1\n"));
}

#[test]
fn the_retired_name_of_a_profile() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(dir.path(), &["--profile", "fermata"]);
    let mut child = ready(command.stderr(Stdio::piped()));
    assert_eq!(
        ask(dir.path(), "a ping\nb quit\n"),
        ["a ok profile=irq slots=3 irq=msix", "b ok"]
    );
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(
        said,
        "fermata-card: the profile fermata is now called irq\n"
    );
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_card_with_relay() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = start(dir.path(), &["--profile", "relay"]);
    let mut client = Client::new(&dir.path().join("s")).unwrap();
    let mut caps = [0; 8];
    client.region_read(0, 0x118, &mut caps).unwrap();
    assert_eq!(caps, 0x10_0101u64.to_le_bytes());
    // An order while RELAY is 0.
    client.region_write(0, 0x300, &[0; 8]).unwrap();
    let replies = ask(dir.path(), "a ping\nb violations\nc quit\n");
    assert_eq!(
        replies,
        [
            "a ok profile=relay slots=3 irq=msix",
            "b ok total=1 order_bad=1",
            "c ok"
        ]
    );
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let output = check(dir.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.starts_with(b"total=1 order_bad=1\n"));
}

#[test]
fn violations_that_were_cleared_do_not_fail_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = start(dir.path(), &["--imports"]);
    let mut client = Client::new(&dir.path().join("s")).unwrap();
    client.region_write(0, 0x20, &[0; 4]).unwrap();
    let replies = ask(
        dir.path(),
        "a violations\nb violations clear\nc violations\nd quit\n",
    );
    assert_eq!(
        replies,
        ["a ok total=1 bad_access=1", "b ok", "c ok total=0", "d ok"]
    );
    assert!(child.wait().unwrap().success());
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.contains(r#""e":"imports","on":true"#), "{log}");
}

#[test]
fn sigterm_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = start(dir.path(), &[]);
    let _client = Client::new(&dir.path().join("s")).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(check(dir.path()).status.code(), Some(0));
}

#[test]
fn bad_arguments_are_told() {
    for args in [
        &[][..],
        &["check", "/nonexistent"],
        &[
            "--socket",
            "/nonexistent/s",
            "--control",
            "c",
            "--log",
            "/dev/null",
        ],
        &[
            "--socket",
            "s",
            "--control",
            "c",
            "--log",
            "/dev/null",
            "--set",
            "slot=9,speed=1",
        ],
        &[
            "--socket",
            "s",
            "--control",
            "c",
            "--log",
            "/dev/null",
            "--slots",
            "warp",
        ],
    ] {
        let output = Command::new(PROGRAM).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn a_static_program_says_that_it_cannot_load_a_library() {
    let dir = tempfile::tempdir().unwrap();
    let tried = command(dir.path(), &["--foreign", "/nowhere.so"])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(tried.status.code(), Some(2));
    let told = String::from_utf8(tried.stderr).unwrap();
    assert!(told.starts_with("fermata-card: /nowhere.so: "), "{told}");
    let is_static = cfg!(target_feature = "crt-static");
    assert_eq!(
        told.contains("`make libraries` builds"),
        is_static,
        "{told}"
    );
}
