// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl dump`: what the driver has kept of a hang (docs/dumps.md), explained.

use crate::card::CardName;
use crate::format;
use crate::trouble::{Out, Result, Trouble};
use fermata_output::text::printable;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where the kernel keeps dumps.
const FOLDER: &str = "/sys/class/devcoredump";
/// The first line of a dump, without its version.
const MAGIC: &str = "fermata-dump ";
/// The version of the format that this program knows.
const VERSION: &str = "1";

/// Show and explain what the driver has kept of the last hang
///
/// The driver makes a dump when a job does not stop, when a slot or the card does not do what it
/// must, and when the card is gone: at most one a minute. The kernel keeps it for five minutes, and
/// keeps no other of the card meanwhile. Takes root.
#[derive(Debug, clap::Args)]
pub(crate) struct Dump {
    /// The card, or a file with a dump (-: standard input); otherwise the newest dump of all cards
    #[arg(value_name = "CARD|FILE")]
    source: Option<String>,
    /// Delete the dump afterwards: the kernel keeps the next one
    #[arg(long)]
    delete: bool,
    /// Print the dump as the driver has written it
    #[arg(long)]
    raw: bool,
}

/// Where a dump comes from.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    Input,
    File(PathBuf),
    /// The kernel's dump of the card of this number, or of any card.
    Kernel(Option<u32>),
}

impl Source {
    /// Returns the source that a word names: a word that names no card names a file.
    fn of(word: Option<&str>) -> Self {
        let Some(word) = word else {
            return Self::Kernel(None);
        };
        if word == "-" {
            return Self::Input;
        }
        let is_path = word.contains('/') && !word.starts_with("/dev/fermata");
        let card = word.parse::<CardName>().ok().filter(|_| !is_path);
        match card.and_then(|card| card.number()) {
            Some(number) => Self::Kernel(Some(number)),
            None => Self::File(word.into()),
        }
    }
}

/// A dump: the lines of each section, the lines before the first section under the name `head`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    sections: BTreeMap<String, Vec<(String, String)>>,
    /// The last line is there.
    is_complete: bool,
}

impl Parsed {
    /// Parses a dump. The error says why the text is none.
    fn of(text: &str) -> std::result::Result<Self, String> {
        let mut lines = text.lines();
        let version = lines.next().and_then(|line| line.strip_prefix(MAGIC));
        match version {
            Some(VERSION) => {}
            Some(version) => {
                let version = printable(version);
                return Err(format!("a dump in version {version} of the format"));
            }
            None => return Err("not a dump of fermata".into()),
        }
        let mut parsed = Self::default();
        let mut section = "head".to_owned();
        for line in lines {
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|line| line.strip_suffix(']'))
            {
                section = name.into();
                parsed.is_complete |= name == "end";
            } else if let Some((key, value)) = line.split_once(": ") {
                let pair = (key.to_owned(), value.to_owned());
                parsed
                    .sections
                    .entry(section.clone())
                    .or_default()
                    .push(pair);
            }
        }
        Ok(parsed)
    }

    fn section(&self, name: &str) -> &[(String, String)] {
        self.sections.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns a value of a section.
    fn value(&self, section: &str, key: &str) -> Option<&str> {
        let mut pairs = self.section(section).iter();
        pairs.find(|pair| pair.0 == key).map(|pair| &*pair.1)
    }

    fn number(&self, section: &str, key: &str) -> Option<u64> {
        self.value(section, key)?.parse().ok()
    }

    /// Returns a value of the head, without characters that a terminal acts on.
    fn head(&self, key: &str) -> String {
        printable(self.value("head", key).unwrap_or("?"))
    }

    fn reason(&self) -> &str {
        self.value("head", "reason").unwrap_or_default()
    }

    /// Returns when the dump was written, for finding the newest.
    fn written(&self) -> (Option<u64>, Option<u64>) {
        let number = |key| self.number("head", key);
        (number("time"), number("monotonic_ns"))
    }

    /// Returns when the first event was, in nanoseconds of CLOCK_MONOTONIC.
    fn began(&self) -> Option<u64> {
        self.section("events").first()?.0.parse().ok()
    }

    /// Returns whether one of the events is `reason`.
    fn has_event(&self, reason: &str) -> bool {
        let mut events = self.section("events").iter();
        events.any(|(_, event)| event.split(' ').next() == Some(reason))
    }

    /// Returns a word of the first event, such as `slot`.
    fn of_first_event(&self, name: &str) -> Option<&str> {
        let (_, event) = self.section("events").first()?;
        let mut words = event.split(' ').filter_map(|word| word.split_once('='));
        words.find(|word| word.0 == name).map(|word| word.1)
    }
}

/// What a dump means.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Explanation {
    /// What has happened.
    happened: String,
    /// What the driver did.
    done: String,
    /// What to do next.
    advice: String,
}

impl Explanation {
    fn of(dump: &Parsed) -> Self {
        let slot = printable(dump.of_first_event("slot").unwrap_or("?"));
        let context = printable(dump.of_first_event("context").unwrap_or("?"));
        let (card, device) = (dump.head("card"), dump.head("device"));
        let (happened, done, advice) = match dump.reason() {
            "preempt-timeout" => (
                format!("the job of context {context} on slot {slot} was told to stop, and was not saved within its preempt timeout"),
                "it reset the slot; the job failed with ETIME, and jobs on other slots went on".into(),
                format!("if it is always the same program, give its context more time (`fermatactl set {card} CONTEXT preempt-timeout=TIME`) or correct its job; if not, the engine of the slot hangs: send the dump to its maker"),
            ),
            "reset-failed" => (
                format!("slot {slot} did not come out of reset"),
                "it took the slot out of use".into(),
                again(&device),
            ),
            "invalid-status" => (
                format!("slot {slot} showed a status that its protocol does not have"),
                "it reset the slot; the job failed with EPROTO, and jobs on other slots went on".into(),
                "the engine or the card is faulty: send the dump to its maker".into(),
            ),
            "invalid-record" => (
                format!("the record of a run on slot {slot} was missing, or not as the protocol has it"),
                "it reset the slot; the job failed with EPROTO, and so may those that were to follow".into(),
                "the card is faulty: send the dump to its maker; with `modprobe fermata relay=0` the driver uses no records".into(),
            ),
            "card-gone" => (
                "registers of the card read all-ones: the card is unplugged, has no power, or its link is down".into(),
                "it touches the card no more; all jobs failed with ENODEV, or, if the kernel has reset the link since, those on slots with EIO".into(),
                format!("`lspci -vs {device}` shows whether the card answers; once it does, unbind the driver from it and bind it again"),
            ),
            "link-error" => (
                "the PCI core reported an error of the card or its link".into(),
                "it saved the jobs, which go on; if the card could not be reached, those on slots failed with EIO".into(),
                "`journalctl -k -g AER` names the error; if it comes again, look at the card's slot and cable".into(),
            ),
            other => (
                format!("{}: this fermatactl does not know the reason", printable(other)),
                "docs/dumps.md of the driver's version says it".into(),
                "install fermatactl of the driver's version".into(),
            ),
        };
        let explained = Self {
            happened,
            done,
            advice,
        };
        if dump.reason() != "reset-failed" && dump.has_event("reset-failed") {
            explained.and_reset_failed(&device)
        } else {
            explained
        }
    }

    /// Adds that the slot could not be reset.
    fn and_reset_failed(self, device: &str) -> Self {
        Self {
            happened: self.happened,
            done: format!(
                "{}; the slot did not come out of reset, and is out of use",
                self.done
            ),
            advice: again(device),
        }
    }
}

/// Returns the advice for a slot that is out of use.
fn again(device: &str) -> String {
    format!("reset the card (`echo 1 >/sys/bus/pci/devices/{device}/reset`): jobs of other slots are saved; if the slot stays out of use, switch the machine off and on, and send the dump to the card's maker")
}

#[derive(Serialize)]
struct Answer<'a> {
    /// The file; null for standard input.
    file: Option<&'a Path>,
    reason: &'a str,
    #[serde(flatten)]
    explanation: Explanation,
    complete: bool,
    deleted: bool,
    sections: &'a BTreeMap<String, Vec<(String, String)>>,
}

impl Dump {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let source = Source::of(self.source.as_deref());
        if self.delete && !matches!(source, Source::Kernel(_)) {
            return Err(Trouble::wrong_arguments(
                "--delete: only a dump that the kernel keeps can be deleted",
                "leave out the file, or delete it with `rm`",
            ));
        }
        let (file, text) = read(&source)?;
        let parsed = Parsed::of(&text).map_err(|why| no_dump(file.as_deref(), &why))?;
        if self.raw {
            std::io::stdout().lock().write_all(text.as_bytes())?;
        } else {
            let answer = Answer {
                file: file.as_deref(),
                reason: parsed.reason(),
                explanation: Explanation::of(&parsed),
                complete: parsed.is_complete,
                deleted: self.delete,
                sections: &parsed.sections,
            };
            out.show(&answer, |answer| text_of(answer, &parsed))?;
        }
        match file.filter(|_| self.delete) {
            Some(file) => fs::write(&file, "1").map_err(|error| not_read(&file, &error)),
            None => Ok(()),
        }
    }
}

/// Reads a dump. Returns the file, if the dump is in one.
fn read(source: &Source) -> Result<(Option<PathBuf>, String)> {
    match source {
        Source::Input => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().lock().read_to_end(&mut bytes);
            read.map_err(|error| Trouble::of_file(Path::new("standard input"), &error))?;
            Ok((None, String::from_utf8_lossy(&bytes).into_owned()))
        }
        Source::File(file) => {
            let bytes = fs::read(file).map_err(|error| Trouble::of_file(file, &error))?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            Ok((Some(file.clone()), text))
        }
        Source::Kernel(card) => {
            let (file, text) = newest(Path::new(FOLDER), *card)?;
            Ok((Some(file), text))
        }
    }
}

/// Returns the newest dump of a card, or of all cards, in the kernel's folder.
fn newest(folder: &Path, card: Option<u32>) -> Result<(PathBuf, String)> {
    let entries = fs::read_dir(folder).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Trouble::new(
            "this kernel keeps no dumps: it was built without CONFIG_DEV_COREDUMP",
            "`journalctl -k` has what the driver has logged",
        ),
        _ => Trouble::of_file(folder, &error),
    })?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let file = entry.path().join("data");
        let bytes = match fs::read(&file) {
            Ok(bytes) => bytes,
            // No dump, or one that was deleted just now.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                continue;
            }
            Err(error) => return Err(not_read(&file, &error)),
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Ok(dump) = Parsed::of(&text) else {
            continue;
        };
        if card.is_none() || dump.number("head", "card") == card.map(u64::from) {
            found.push((dump.written(), file, text));
        }
    }
    match found.into_iter().max_by_key(|dump| dump.0) {
        Some((_, file, text)) => Ok((file, text)),
        None => Err(none_of(card)),
    }
}

/// Returns the error for a card without a dump.
fn none_of(card: Option<u32>) -> Trouble {
    let whose = match card {
        Some(number) => format!("fermata{number}"),
        None => "no card".into(),
    };
    let has = if card.is_some() { "has no" } else { "has a" };
    Trouble::new(
        format!("{whose} {has} dump"),
        "the kernel keeps a dump for five minutes after a hang; `journalctl -k -g fermata` has what was before",
    )
}

/// Returns the error for a file of the kernel.
fn not_read(file: &Path, error: &std::io::Error) -> Trouble {
    match error.kind() {
        ErrorKind::PermissionDenied => Trouble::not_permitted(
            format!("{}: {error}", file.display()),
            "dumps are for root only: sudo fermatactl dump",
        ),
        _ => Trouble::of_file(file, error),
    }
}

/// Returns the error for a text that is no dump.
fn no_dump(file: Option<&Path>, why: &str) -> Trouble {
    let name = file.map_or("standard input".into(), |file| file.to_string_lossy());
    Trouble::new(
        format!("{}: {why}", printable(&name)),
        "name a card, or a file that `fermatactl dump --raw` of this version has written",
    )
}

fn text_of(answer: &Answer<'_>, dump: &Parsed) -> String {
    let Explanation {
        happened,
        done,
        advice,
    } = &answer.explanation;
    let seconds = dump.number("head", "time").unwrap_or(0);
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    let time = time.filter(|_| seconds < 1 << 36);
    let time = time.map(|time| humantime::format_rfc3339_seconds(time).to_string());
    let mut text = format!(
        "fermata{} ({}): {}, {}\n  what happened: {happened}\n  the driver: {done}\n  next: {advice}\n",
        dump.head("card"),
        dump.head("device"),
        printable(answer.reason),
        format::or_dash(time),
    );
    if !answer.complete {
        text += "  the dump is cut off: its end is missing\n";
    }
    match dump.number("head", "missed") {
        Some(0) | None => {}
        Some(count) => text += &format!("  events since the last dump that are in none: {count}\n"),
    }
    text += &format!(
        "\nkernel {}, driver {}, profile {}\n",
        dump.head("kernel"),
        dump.head("driver"),
        printable(dump.value("card", "profile").unwrap_or("?")),
    );
    text += "\nevents\n";
    text += &timed(dump, "events", |event| vec![printable(event)]);
    text += "\nslots\n";
    text += &slots(dump);
    text += "\nlast writes to control registers\n";
    text + &timed(dump, "writes", cells_of_write)
}

/// Returns the table of a section whose lines begin with times, which are shown from the first
/// event on.
fn timed(dump: &Parsed, section: &str, cells: impl Fn(&str) -> Vec<String>) -> String {
    let began = dump.began();
    let rows = dump.section(section).iter().map(|(time, rest)| {
        let mut row = vec![since(began, time)];
        row.extend(cells(rest));
        row
    });
    format::table(&[">when", "what", "value", "meaning"], rows)
}

/// Returns the time from the first event on.
fn since(began: Option<u64>, time: &str) -> String {
    let (Some(began), Ok(time)) = (began, time.parse::<u64>()) else {
        return printable(time);
    };
    let sign = if time < began { "-" } else { "+" };
    format!("{sign}{}", format::time(began.abs_diff(time)))
}

/// Returns the register, its value, and what the value means.
fn cells_of_write(write: &str) -> Vec<String> {
    let (register, value) = write.split_once(' ').unwrap_or((write, ""));
    let number = number_of(value);
    let meaning = match (register.split('[').next(), number) {
        (Some("TRANSACTION_CTL"), Some(1)) => "START".into(),
        (Some("TRANSACTION_CTL"), Some(5)) => "START, resuming".into(),
        (Some("TRANSACTION_CTL"), Some(6)) => "PAUSE".into(),
        (Some("TRANSACTION_CTL"), Some(7)) => "PAUSE at a boundary".into(),
        (Some("RESET"), Some(0)) => "no slot in reset".into(),
        (Some("RESET"), Some(slots)) => format!("in reset: slots {}", list(slots)),
        (Some("WINDOW_SIZE"), Some(0)) => "closed".into(),
        _ => String::new(),
    };
    vec![printable(register), printable(value), meaning]
}

fn number_of(value: &str) -> Option<u64> {
    u64::from_str_radix(value.strip_prefix("0x")?, 16).ok()
}

/// Returns the numbers of the bits that are set.
fn list(bits: u64) -> String {
    let set = (0..64).filter(|bit| bits >> bit & 1 != 0);
    set.map(|bit| bit.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

fn slots(dump: &Parsed) -> String {
    let rows = (0..64).map_while(|number| {
        let name = format!("slot {number}");
        dump.sections.get(&name)?;
        let value = |key| printable(dump.value(&name, key).unwrap_or("-"));
        let status = dump.value(&name, "status").and_then(number_of);
        let refused = match dump.value(&name, "FAULT_INFO") {
            Some(access) => format!("{} at {}", printable(access), value("FAULT_ADDR")),
            None => "-".into(),
        };
        Some(vec![
            number.to_string(),
            value("state"),
            value("context"),
            status.map_or("-".into(), status_text),
            refused,
        ])
    });
    let titles = ["slot", "state", "context", "last status", "refused access"];
    format::table(&titles, rows)
}

/// Returns what a status says (docs/registers.md).
fn status_text(status: u64) -> String {
    if status == u64::MAX {
        return "all-ones".into();
    }
    let phase = match status & 0xff {
        0 => "idle",
        1 => "running",
        2 => "finished",
        4 => "paused",
        _ => "undefined",
    };
    let flags = [(8, ", fault"), (9, ", snapshot error"), (10, ", empty")];
    let set = flags.iter().filter(|(bit, _)| status >> bit & 1 != 0);
    let flags: String = set.map(|(_, name)| *name).collect();
    format!("{phase}{flags} ({status:#x})")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "fermata-dump 1\n\
        time: 1795982944\nmonotonic_ns: 8341103683\nkernel: 7.2.12\ndriver: 0.1.0\n\
        device: 0000:00:02.0\ncard: 3\nreason: preempt-timeout\nmissed: 2\n\
        [events]\n8140315738: preempt-timeout slot=1 context=65536\n\
        [counts]\npreempt-timeout: 3\n\
        [card]\nprofile: irq\nslots: 2\nFEATURES: 0xf\nRESET: 0x2\n\
        [slot 0]\nengine: 4c49\nstate: vacant\n\
        [slot 1]\nengine: 4c49\nstate: resetting\ncontext: 65536\nstatus: 0x100000101\n\
        FAULT_INFO: read\nFAULT_ADDR: arena+64\n\
        [writes]\n8140115738: TRANSACTION_CTL[1] 0x6\n8140325738: RESET 0x2\n\
        8140325739: DMA_OFFSET[1] (address)\n[end]\n";

    fn shown(text: &str) -> String {
        let parsed = Parsed::of(text).unwrap();
        let answer = Answer {
            file: None,
            reason: parsed.reason(),
            explanation: Explanation::of(&parsed),
            complete: parsed.is_complete,
            deleted: false,
            sections: &parsed.sections,
        };
        text_of(&answer, &parsed)
    }

    #[test]
    fn words_name_cards_files_or_the_input() {
        let table = [
            (None, Source::Kernel(None)),
            (Some("3"), Source::Kernel(Some(3))),
            (Some("fermata3"), Source::Kernel(Some(3))),
            (Some("/dev/fermata3"), Source::Kernel(Some(3))),
            (Some("-"), Source::Input),
            (Some("dump.txt"), Source::File("dump.txt".into())),
            (Some("./3"), Source::File("./3".into())),
        ];
        for (word, source) in table {
            assert_eq!(Source::of(word), source, "{word:?}");
        }
    }

    #[test]
    fn a_dump_is_explained() {
        let text = shown(DUMP);
        for part in [
            "fermata3 (0000:00:02.0): preempt-timeout, 2026-11-29T20:09:04Z\n",
            "the job of context 65536 on slot 1 was told to stop",
            "failed with ETIME",
            "in none: 2\n",
            "running, fault (0x100000101)",
            "read at arena+64",
            "-200us",
            "+10us",
            "PAUSE\n",
            "in reset: slots 1\n",
            "(address)",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("cut off"));
    }

    #[test]
    fn each_reason_has_its_explanation_and_advice() {
        let reasons = [
            ("reset-failed", "out of use", "/0000:00:02.0/reset"),
            ("invalid-status", "EPROTO", "maker"),
            ("invalid-record", "EPROTO", "relay=0"),
            ("card-gone", "ENODEV", "lspci"),
            ("link-error", "EIO", "AER"),
            ("later-reason", "docs/dumps.md", "install fermatactl"),
        ];
        for (reason, done, advice) in reasons {
            let text = DUMP.replace("preempt-timeout", reason);
            let explained = Explanation::of(&Parsed::of(&text).unwrap());
            assert!(explained.done.contains(done), "{explained:?}");
            assert!(explained.advice.contains(advice), "{explained:?}");
        }
    }

    #[test]
    fn a_slot_that_could_not_be_reset_either_is_out_of_use() {
        let text = DUMP.replace("[counts]", "8140319738: reset-failed slot=1\n[counts]");
        let explained = Explanation::of(&Parsed::of(&text).unwrap());
        assert!(explained.happened.contains("preempt timeout"));
        assert!(explained.done.contains("is out of use"), "{explained:?}");
        assert!(explained.advice.contains("/reset"), "{explained:?}");
    }

    #[test]
    fn other_texts_and_cut_off_ones_are_told() {
        assert_eq!(Parsed::of("").unwrap_err(), "not a dump of fermata");
        assert!(Parsed::of("fermata-dump 2\n")
            .unwrap_err()
            .contains("version 2"));
        let cut = &DUMP[..DUMP.len() - 6];
        assert!(shown(cut).contains("cut off"));
        // Nothing of a file reaches the terminal as it is.
        let text = shown(
            &DUMP
                .replace("irq", "\u{1b}[31m")
                .replace("resetting", "\u{1b}c"),
        );
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn the_newest_dump_of_the_card_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let add = |name: &str, text: &str| {
            fs::create_dir(path.join(name)).unwrap();
            fs::write(path.join(name).join("data"), text).unwrap();
        };
        let without = newest(&path.join("none"), None).unwrap_err();
        assert!(without.to_string().contains("CONFIG_DEV_COREDUMP"));
        fs::write(path.join("disabled"), "0").unwrap();
        let none = newest(path, Some(3)).unwrap_err().to_string();
        assert!(none.starts_with("fermata3 has no dump\n"), "{none}");
        add("devcd1", DUMP);
        add("devcd2", &DUMP.replace("1795982944", "1795982943"));
        add(
            "devcd3",
            &DUMP
                .replace("card: 3", "card: 4")
                .replace("1795982944", "1795982950"),
        );
        add("devcd4", "a dump of another driver");
        let file = |card| newest(path, card).unwrap().0;
        assert_eq!(file(Some(3)), path.join("devcd1/data"));
        assert_eq!(file(None), path.join("devcd3/data"));
        assert!(newest(path, Some(5)).is_err());
    }

    #[test]
    fn the_driver_has_the_version_of_the_programs() {
        let source = include_str!("../../../../rust/dump/text.rs");
        let version = concat!("const VERSION: &str = \"", env!("CARGO_PKG_VERSION"), "\";");
        assert!(source.contains(version));
    }
}
