// SPDX-License-Identifier: GPL-2.0-or-later
//! The control connection (docs/emulated-card.md): for each line of text that comes in, one line of
//! text goes out. The card's side, and a client's.

use crate::config::parse_number;
use crate::device::Device;
use crate::event::{Range, What};
use crate::log::Judge;
use crate::misbehave::FaultCommand;
use anyhow::{bail, Context as _, Error, Result};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// The longest line.
const MAX_LINE: u64 = 4 << 20;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in docs/emulated-card.md
pub enum Request {
    Ping,
    Set {
        slot: Option<usize>,
        pairs: Vec<(String, u64)>,
    },
    Fault {
        slot: Option<usize>,
        command: FaultCommand,
    },
    State {
        slot: usize,
    },
    Tell(What),
    Saved {
        token: u64,
    },
    Violations,
    Why,
    Counters {
        slot: usize,
    },
    Gaps {
        slot: usize,
    },
    Runs {
        slot: usize,
    },
    History {
        from: Option<u64>,
    },
    Quit,
}

/// The words after the verb.
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    /// Removes `key=VALUE` and returns the value.
    fn value(&mut self, key: &str) -> Option<&'a str> {
        let at = self
            .0
            .iter()
            .position(|w| w.split_once('=').is_some_and(|(k, _)| k == key))?;
        self.0.remove(at).split_once('=').map(|(_, v)| v)
    }

    fn required(&mut self, key: &str) -> Result<&'a str, String> {
        self.value(key).ok_or_else(|| format!("{key}= is missing"))
    }

    fn number(&mut self, key: &str) -> Result<u64, String> {
        self.required(key).and_then(parse_number)
    }

    /// Removes a bare word. Returns whether it was there.
    fn flag(&mut self, word: &str) -> bool {
        let at = self.0.iter().position(|w| *w == word);
        at.map(|at| self.0.remove(at)).is_some()
    }

    fn slot(&mut self, slots: usize) -> Result<usize, String> {
        let slot = self.number("slot")?;
        usize::try_from(slot)
            .ok()
            .filter(|s| *s < slots)
            .ok_or_else(|| format!("no slot {slot}"))
    }

    fn slot_or_all(&mut self, slots: usize) -> Result<Option<usize>, String> {
        if self.flag("slot=all") {
            return Ok(None);
        }
        self.slot(slots).map(Some)
    }

    fn end(&self) -> Result<(), String> {
        self.0
            .first()
            .map_or(Ok(()), |w| Err(format!("unexpected {w}")))
    }
}

impl Request {
    /// Parses verb and arguments, for a card with `slots` slots.
    pub fn parse(text: &str, slots: usize) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let verb = words.next().ok_or("no verb")?;
        let mut words = Words(words.collect());
        let request = Self::parse_verb(verb, &mut words, slots)?;
        words.end()?;
        Ok(request)
    }

    fn parse_verb(verb: &str, words: &mut Words<'_>, slots: usize) -> Result<Self, String> {
        Ok(match verb {
            "ping" => Self::Ping,
            "set" => Self::Set {
                slot: words.slot_or_all(slots)?,
                pairs: pairs(words)?,
            },
            "fault" => {
                let slot = words.slot_or_all(slots)?;
                let [text] = words.0[..] else {
                    return Err("one KIND[=VALUE] or clear expected".into());
                };
                words.0.clear();
                Self::Fault {
                    slot,
                    command: FaultCommand::parse(text)?,
                }
            }
            "state" => Self::State {
                slot: words.slot(slots)?,
            },
            "tenant" => Self::Tell(tenant(words)?),
            "import" => Self::Tell(What::Import {
                token: words.number("token")?,
                hash: words.value("hash").map(parse_number).transpose()?,
            }),
            "imports" => Self::Tell(What::Imports {
                on: on_or_off(words)?,
            }),
            "saved" => Self::Saved {
                token: words.number("token")?,
            },
            "canary" => Self::Tell(canary(words)?),
            "enforce" => Self::Tell(What::Enforce {
                on: on_or_off(words)?,
            }),
            "violations" if words.flag("clear") => Self::Tell(What::ClearViolations),
            "violations" => Self::Violations,
            "why" => Self::Why,
            "counters" if words.flag("clear") => Self::Tell(What::ClearCounters {
                slot: words.slot(slots)?,
            }),
            "counters" => Self::Counters {
                slot: words.slot(slots)?,
            },
            "gaps" if words.flag("clear") => Self::Tell(What::ClearGaps {
                slot: words.slot(slots)?,
            }),
            "gaps" => Self::Gaps {
                slot: words.slot(slots)?,
            },
            "runs" => Self::Runs {
                slot: words.slot(slots)?,
            },
            "history" => Self::History {
                from: words.value("from").map(parse_number).transpose()?,
            },
            "mark" => Self::Tell(What::Mark {
                text: words.required("text")?.into(),
            }),
            "quit" => Self::Quit,
            _ => return Err(format!("unknown verb {verb}")),
        })
    }
}

fn pairs(words: &mut Words<'_>) -> Result<Vec<(String, u64)>, String> {
    let parse = |w: &str| {
        let (key, value) = w
            .split_once('=')
            .ok_or_else(|| format!("{w}: KEY=VALUE expected"))?;
        Ok((key.to_string(), parse_number(value)?))
    };
    words.0.drain(..).map(parse).collect()
}

fn tenant(words: &mut Words<'_>) -> Result<What, String> {
    let token = words.number("token")?;
    if words.flag("gone") {
        return Ok(What::TenantGone { token });
    }
    let pages = words
        .required("pages")?
        .split(',')
        .map(range)
        .collect::<Result<_, _>>()?;
    Ok(What::Tenant { token, pages })
}

/// No guest has more memory than the address space of a 48-bit card, and no tenant has that much.
const MAX_RANGE: u64 = 1 << 40;

fn range(text: &str) -> Result<Range, String> {
    let (gpa, len) = text
        .split_once('+')
        .ok_or_else(|| format!("{text}: GPA+LEN expected"))?;
    checked_range(parse_number(gpa)?, parse_number(len)?)
}

fn checked_range(gpa: u64, len: u64) -> Result<Range, String> {
    if len == 0 || len > MAX_RANGE || gpa.checked_add(len).is_none() {
        return Err(format!("bad range {gpa:#x}+{len:#x}"));
    }
    Ok((gpa, len))
}

fn canary(words: &mut Words<'_>) -> Result<What, String> {
    let gpa = words.number("gpa")?;
    if words.flag("gone") {
        return Ok(What::CanaryGone { gpa });
    }
    let (gpa, len) = checked_range(gpa, words.number("len")?)?;
    Ok(What::Canary { gpa, len })
}

fn on_or_off(words: &mut Words<'_>) -> Result<bool, String> {
    match (words.flag("on"), words.flag("off")) {
        (true, false) => Ok(true),
        (false, true) => Ok(false),
        _ => Err("on or off expected".into()),
    }
}

/// Answers requests.
pub struct ControlServer {
    card: Arc<dyn Device>,
    quit: Box<dyn Fn() + Send + Sync>,
    /// Quitting was requested. It follows the answer, because the process must live to send it.
    quits: AtomicBool,
}

impl ControlServer {
    /// Makes a server that calls `quit` for the verb of that name.
    pub fn new(card: Arc<dyn Device>, quit: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            card,
            quit: Box::new(quit),
            quits: AtomicBool::new(false),
        })
    }

    /// Serves any number of connections until the process ends.
    pub fn serve(self: Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming().flatten() {
            let control = self.clone();
            std::thread::spawn(move || control.converse(&stream));
        }
    }

    fn converse(&self, stream: &UnixStream) {
        let mut input = BufReader::new(stream);
        let mut output = stream;
        let mut line = Vec::new();
        loop {
            line.clear();
            let limited = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
            if !matches!(limited, Ok(n) if n > 0) || !line.ends_with(b"\n") {
                return;
            }
            let Some(reply) = self.answer(&String::from_utf8_lossy(&line)) else {
                continue;
            };
            if output.write_all(format!("{reply}\n").as_bytes()).is_err() {
                return;
            }
            if self.quits.load(Ordering::Relaxed) {
                (self.quit)();
            }
        }
    }

    /// Returns the reply to one line; `None` if the line is empty.
    pub fn answer(&self, line: &str) -> Option<String> {
        let line = line.trim();
        let id = line.split_ascii_whitespace().next()?;
        Some(
            match Request::parse(&line[id.len()..], self.card.config().slots.len())
                .and_then(|r| self.perform(r))
            {
                Ok(text) if text.is_empty() => format!("{id} ok"),
                Ok(text) => format!("{id} ok {text}"),
                Err(text) => format!("{id} err {text}"),
            },
        )
    }

    fn perform(&self, request: Request) -> Result<String, String> {
        let card = &self.card;
        let recorder = &card.host().recorder;
        Ok(match request {
            Request::Ping => {
                let config = card.config();
                format!(
                    "profile={} slots={} irq={}",
                    config.profile.name(),
                    config.slots.len(),
                    config.irq.name()
                )
            }
            Request::Set { slot, pairs } => {
                let pairs: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), *v)).collect();
                for slot in self.slots(slot) {
                    card.set(slot, &pairs)?;
                }
                String::new()
            }
            Request::Fault { slot, command } => {
                self.slots(slot)
                    .try_for_each(|slot| card.fault(slot, command))?;
                String::new()
            }
            Request::State { slot } => card.state(slot)?,
            Request::Tell(what) => {
                recorder.record(what);
                String::new()
            }
            Request::Violations => self.ask(|j| j.checker.text()),
            Request::Saved { token } => self.ask(move |j| j.checker.saved_text(token)),
            Request::Why => self.ask(|j| j.checker.why().to_string()),
            Request::Counters { slot } => self.ask(move |j| j.ledger.counters_text(slot)),
            Request::Gaps { slot } => self.ask(move |j| j.ledger.gaps_text(slot)),
            Request::Runs { slot } => self.ask(move |j| j.ledger.runs_text(slot)),
            Request::History { from } => self.ask(move |j| j.history.text(from)),
            Request::Quit => {
                self.quits.store(true, Ordering::Relaxed);
                String::new()
            }
        })
    }

    /// Asks the judge, once everything that slots do in one step is recorded: a record in memory
    /// may tell a client of a run that the log does not contain yet.
    fn ask(&self, question: impl FnOnce(&Judge) -> String + Send + 'static) -> String {
        self.card.settle();
        self.card.host().recorder.ask(question)
    }

    fn slots(&self, slot: Option<usize>) -> std::ops::Range<usize> {
        slot.map_or(0..self.card.config().slots.len(), |s| s..s + 1)
    }
}

/// A connection. Other clients may use the port, too: each request has an ID, which its reply
/// repeats.
#[derive(Debug)]
pub struct Control {
    input: BufReader<File>,
    output: File,
    requests: u64,
}

/// A tenant's use of a slot, as the card saw it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    /// Number of STARTs.
    pub turns: u64,
    /// Number of PAUSEs.
    pub pauses: u64,
    /// Time on the slot, in nanoseconds.
    pub busy_ns: u64,
}

fn told_number(text: &str) -> Result<u64> {
    let parsed = parse_number(text).map_err(Error::msg);
    parsed.with_context(|| format!("the card says {text}"))
}

impl Control {
    /// Opens the port; in the machine, it is /dev/virtio-ports/fermata.card0.
    pub fn open(path: &Path) -> Result<Self> {
        let output = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("{}: the emulated card's control port", path.display()))?;
        Ok(Self {
            input: BufReader::new(output.try_clone()?),
            output,
            requests: 0,
        })
    }

    /// Sends a request. Returns the reply without `ok`.
    pub fn ask(&mut self, request: &str) -> Result<String> {
        self.requests += 1;
        let id = format!("{}.{}", std::process::id(), self.requests);
        self.output
            .write_all(format!("{id} {request}\n").as_bytes())?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.input.read_line(&mut line)? == 0 {
                bail!("the card closed its control connection");
            }
            // Skips replies to clients that have exited.
            let Some(reply) = line.strip_prefix(&id).and_then(|l| l.strip_prefix(' ')) else {
                continue;
            };
            let reply = reply.trim();
            return match reply.strip_prefix("ok") {
                Some(rest) => Ok(rest.trim().into()),
                None => bail!("card: {request}: {reply}"),
            };
        }
    }

    /// Sends a request. Returns the numbers in the reply, which consists of words of the form
    /// KEY=NUMBER.
    pub fn numbers(&mut self, request: &str) -> Result<HashMap<String, u64>> {
        let reply = self.ask(request)?;
        Ok(reply
            .split_ascii_whitespace()
            .filter_map(|word| word.split_once('='))
            .filter_map(|(key, value)| Some((key.to_string(), told_number(value).ok()?)))
            .collect())
    }

    /// Tells the card that pages belong to a tenant.
    pub fn register(&mut self, token: u64, pages: &[(u64, u64)]) -> Result<()> {
        for some in pages.chunks(500) {
            let list: Vec<_> = some
                .iter()
                .map(|(at, length)| format!("{at:#x}+{length:#x}"))
                .collect();
            self.ask(&format!("tenant token={token} pages={}", list.join(",")))?;
        }
        Ok(())
    }

    /// Returns the token of the tenant on the slot, if the slot has a job.
    pub fn running(&mut self, slot: u32) -> Result<Option<u64>> {
        let state = self.numbers(&format!("state slot={slot}"))?;
        let get = |key| state.get(key).copied().unwrap_or(0);
        Ok((get("status") & 0xff == 1).then(|| get("tag")))
    }

    /// Returns each tenant's use of a slot, by token.
    pub fn runs(&mut self, slot: u32) -> Result<HashMap<u64, Run>> {
        let reply = self.ask(&format!("runs slot={slot}"))?;
        let mut runs = HashMap::new();
        for entry in reply.split(',').filter(|e| !e.is_empty()) {
            let fields: Result<Vec<_>> = entry.split(':').map(told_number).collect();
            if let [tag, starts, resumes, pauses, _, run_ns] = fields?[..] {
                let run = Run {
                    turns: starts + resumes,
                    pauses,
                    busy_ns: run_ns,
                };
                runs.insert(tag, run);
            }
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_parse() {
        let parse = |t| Request::parse(t, 2);
        assert_eq!(parse("ping"), Ok(Request::Ping));
        assert_eq!(
            parse("set slot=all speed=0x10 save_us=5"),
            Ok(Request::Set {
                slot: None,
                pairs: vec![("speed".into(), 16), ("save_us".into(), 5)]
            })
        );
        assert_eq!(
            parse("fault slot=1 clear"),
            Ok(Request::Fault {
                slot: Some(1),
                command: FaultCommand::Clear
            })
        );
        assert_eq!(
            parse("tenant token=7 pages=0x1000+4096,0x5000+8192"),
            Ok(Request::Tell(What::Tenant {
                token: 7,
                pages: vec![(0x1000, 4096), (0x5000, 8192)]
            }))
        );
        assert_eq!(
            parse("tenant token=7 gone"),
            Ok(Request::Tell(What::TenantGone { token: 7 }))
        );
        assert_eq!(
            parse("canary gpa=4096 len=64"),
            Ok(Request::Tell(What::Canary { gpa: 4096, len: 64 }))
        );
        assert_eq!(
            parse("counters clear slot=0"),
            Ok(Request::Tell(What::ClearCounters { slot: 0 }))
        );
        assert_eq!(parse("history"), Ok(Request::History { from: None }));
        assert_eq!(
            parse("history from=5"),
            Ok(Request::History { from: Some(5) })
        );
        assert_eq!(parse("gaps slot=1"), Ok(Request::Gaps { slot: 1 }));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "",
            "x",
            "set",
            "set slot=2 speed=1",
            "set slot=0 speed",
            "set slot=0 speed=y",
            "fault slot=0",
            "fault slot=0 dead=1 hang=1",
            "tenant",
            "tenant token=1",
            "tenant token=1 pages=5",
            "tenant token=1 pages=0+0",
            "tenant token=1 pages=0xffffffffffffffff+2",
            "canary gpa=1",
            "enforce",
            "enforce on off",
            "ping pong",
            "gaps",
            "history from=x",
            "mark",
            "state slot=-1",
        ] {
            assert!(Request::parse(bad, 2).is_err(), "{bad}");
        }
    }
}
