// SPDX-License-Identifier: GPL-2.0-or-later
//! `make demo`, the part in the guest: tenants, a process each, share the slots of a card. Each job
//! first runs alone; then all jobs run together, and must have the same results.

mod epoch;
mod report;
mod tenant;

use anyhow::{bail, Context as _, Result};
use clap::{Parser, Subcommand};
use fermata::{uapi, Context};
use fermata_card::control::{Control, Run};
use fermata_output::say;
use report::{write, Gaps, Phase, Report, SlotReport, SlotStates, TenantReport, View};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use tenant::{hex, Ending, Job, Reply, Request};

/// Let tenants share a card.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    options: Options,
}

/// Options of the demo.
#[derive(Clone, Debug, clap::Args)]
struct Options {
    /// The card
    #[arg(long, default_value = "/dev/fermata0")]
    device: PathBuf,
    /// The emulated card's control port
    #[arg(long, default_value = "/dev/virtio-ports/fermata.card0")]
    control: PathBuf,
    /// The file to hash
    #[arg(long, default_value = "/boot/vmlinuz")]
    image: PathBuf,
    /// Where the report goes
    #[arg(long, default_value = "/report/demo.json")]
    report: PathBuf,
    /// Nodes of each list
    #[arg(long, default_value_t = 1_000_000)]
    nodes: u64,
    /// Timeslices of the phases, in microseconds
    #[arg(long, value_delimiter = ',', default_values_t = [2000, 1000])]
    slices: Vec<u64>,
    /// Redraw the view in place, on a terminal
    #[arg(long)]
    live: bool,
}

#[derive(Subcommand)]
enum Role {
    /// Play the first figure of EPOCH (`make epoch`)
    Epoch(epoch::Options),
    /// A tenant that takes orders on its input (used by the demo itself)
    #[command(hide = true)]
    Tenant {
        /// The name of the process
        name: String,
        /// The card
        device: PathBuf,
        /// The job, as JSON
        job: String,
        /// The word that identifies the tenant to the card
        token: u64,
    },
}

fn run(args: Args) -> Result<bool> {
    match args.role {
        Some(Role::Tenant {
            name,
            device,
            job,
            token,
        }) => {
            tenant::rename(&name)?;
            tenant::serve(&device, &serde_json::from_str(&job)?, token)?;
            Ok(true)
        }
        Some(Role::Epoch(options)) => epoch::run(&options),
        None => run_demo(&args.options),
    }
}

fn main() -> ExitCode {
    fermata_output::end("fermata-demo", run(Args::parse()))
}

/// Time limit for all waits; only a hang reaches it.
const TIMEOUT: Duration = Duration::from_secs(90);
const TICK: Duration = Duration::from_millis(200);
/// The name of the tenant that is killed while its job runs.
const VICTIM: &str = "to-be-killed";

/// A tenant's process.
struct Tenant {
    /// Name of the tenant.
    name: String,
    job: Job,
    /// The word that identifies the tenant to the card.
    token: u64,
    /// The tenant's slot.
    slot: u32,
    child: Child,
    input: Option<ChildStdin>,
    expected: String,
    alone: Ending,
}

impl Tenant {
    fn request(&mut self, request: &Request) -> Result<()> {
        let input = self.input.as_mut().context("the tenant is gone")?;
        writeln!(input, "{}", serde_json::to_string(request)?)?;
        Ok(input.flush()?)
    }
}

/// A tenant's reply; `None`: its process has ended.
type Message = (u64, Option<Reply>);

/// The state of the demo.
struct Demo<'a> {
    options: &'a Options,
    control: Control,
    send: Sender<Message>,
    messages: Receiver<Message>,
    tenants: BTreeMap<u64, Tenant>,
    tokens: u64,
    failures: Vec<String>,
}

/// Returns a speed of the engine, in nodes or bytes per microsecond, at which a job takes a second
/// or more.
fn speed_of(engine: &str) -> u64 {
    match engine {
        "linkedlist" => 1,
        "membench" => 16,
        _ => 6,
    }
}

impl Demo<'_> {
    fn spawn(&mut self, name: &str, job: Job) -> Result<u64> {
        self.tokens += 1;
        // Differs from values that registers have by chance.
        let token = 0xfe47_0000_0000 | u64::from(std::process::id()) << 8 | self.tokens;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["tenant", name])
            .arg(&self.options.device)
            .arg(serde_json::to_string(&job)?)
            .arg(token.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let send = self.send.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(std::result::Result::ok) {
                if let Ok(word) = serde_json::from_str(&line) {
                    let _ = send.send((token, Some(word)));
                }
            }
            let _ = send.send((token, None));
        });
        let tenant = Tenant {
            name: name.into(),
            job,
            token,
            slot: 0,
            child,
            input,
            expected: String::new(),
            alone: Ending::default(),
        };
        self.tenants.insert(token, tenant);
        let Reply::Ready { slot, pages } = self.next_of(token)? else {
            bail!("{name} is not ready");
        };
        self.control.register(token, &pages)?;
        self.tenant(token).slot = slot;
        Ok(token)
    }

    fn tenant(&mut self, token: u64) -> &mut Tenant {
        self.tenants.get_mut(&token).expect("a tenant")
    }

    /// Returns the next reply, which must come from the tenant.
    fn next_of(&mut self, token: u64) -> Result<Reply> {
        let (from, word) = loop {
            let message = self.messages.recv_timeout(TIMEOUT);
            let message = message.context("a tenant is silent")?;
            // The end of a killed tenant may be reported late.
            if self.tenants.contains_key(&message.0) {
                break message;
            }
        };
        let name = &self.tenants[&from].name;
        match word {
            Some(word) if from == token => Ok(word),
            Some(word) => bail!("{name} says {word:?} unasked"),
            None => bail!("{name} ended early"),
        }
    }

    fn prepare(&mut self, token: u64, slice_ns: u64) -> Result<()> {
        self.tenant(token).request(&Request::Prepare(slice_ns))?;
        let Reply::Prepared(expected) = self.next_of(token)? else {
            bail!("a tenant is not prepared");
        };
        self.tenant(token).expected = expected;
        Ok(())
    }

    /// Runs each job alone on its slot; different slots work at the same time.
    fn alone(&mut self) -> Result<()> {
        let mut queue: Vec<u64> = self.tenants.keys().copied().collect();
        for token in queue.clone() {
            self.prepare(token, 10_000_000_000)?;
        }
        let mut busy: BTreeMap<u32, u64> = BTreeMap::new();
        while !(queue.is_empty() && busy.is_empty()) {
            queue.retain(|token| {
                let tenant = self.tenants.get_mut(token).expect("a tenant");
                if busy.contains_key(&tenant.slot) {
                    return true;
                }
                busy.insert(tenant.slot, *token);
                tenant.request(&Request::Go).is_err()
            });
            let (token, word) = self
                .messages
                .recv_timeout(TIMEOUT)
                .context("a job does not end")?;
            let Some(Reply::Done(ending)) = word else {
                bail!("{} ended early", self.tenants[&token].name);
            };
            let tenant = self.tenant(token);
            busy.remove(&tenant.slot);
            let (name, expected) = (tenant.name.clone(), tenant.expected.clone());
            tenant.alone = ending.clone();
            say!(
                "  {name:8} alone: {:6.0} ms  {}",
                ending.run_ns as f64 / 1e6,
                if ending.outcome == expected {
                    "as computed here"
                } else {
                    "WRONG"
                }
            );
            if ending.outcome != expected {
                self.failures.push(format!(
                    "{name} alone: {}, computed here: {expected}",
                    ending.outcome
                ));
            }
            if ending.preemptions != 0 {
                self.failures
                    .push(format!("{name} was preempted while it was alone"));
            }
        }
        Ok(())
    }

    /// Runs all jobs together, and kills a tenant half-way.
    fn together(&mut self, slice_us: u64, slots: u32) -> Result<Phase> {
        let name = format!("{:.1} ms slices", slice_us as f64 / 1e3);
        say!("\nTogether, {name}:");
        let victim = self.spawn(VICTIM, Job::Endless)?;
        let tokens: Vec<u64> = self.tenants.keys().copied().collect();
        for &token in &tokens {
            self.prepare(token, slice_us * 1000)?;
        }
        self.control
            .ask(&format!("mark text=together-{slice_us}us"))?;
        let before: Vec<_> = (0..slots)
            .map(|slot| self.control.runs(slot))
            .collect::<Result<_>>()?;
        // The victim starts first, so that it dies in the middle of its slices.
        for &token in std::iter::once(&victim).chain(tokens.iter().filter(|t| **t != victim)) {
            self.tenant(token).request(&Request::Go)?;
        }
        let started = Instant::now();
        let mut view = View::new(self.options.live, slots);
        let mut endings: BTreeMap<u64, Ending> = BTreeMap::new();
        let mut killed_after = None;
        let mut all_there = false;
        let others = tokens.len() - 1;
        while endings.len() < others || killed_after.is_none() {
            if started.elapsed() > TIMEOUT {
                bail!("jobs do not end");
            }
            match self.messages.recv_timeout(TICK) {
                Ok((token, Some(Reply::Done(ending)))) => {
                    endings.insert(token, ending);
                }
                // The last reply of the victim, of this phase or of the previous one.
                Ok((token, None)) if token == victim && killed_after.is_some() => {}
                Ok((token, None)) if !self.tenants.contains_key(&token) => {}
                Ok((token, word)) => bail!("{}: {word:?}", self.tenants[&token].name),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("nobody is left"),
            }
            let runs = self.slot_states(&before)?;
            if !all_there {
                // Gaps count from here: before, slots were idle because no job waited.
                all_there = tokens
                    .iter()
                    .all(|t| runs.iter().any(|r| r.1.get(t).is_some_and(|r| r.turns > 0)));
                if all_there {
                    self.control.ask(&format!("mark text=all-{slice_us}us"))?;
                }
                for slot in 0..slots {
                    self.control.ask(&format!("gaps clear slot={slot}"))?;
                }
            }
            view.show(started.elapsed(), &runs, &self.tenants, &endings);
            let slot = self.tenants[&victim].slot as usize;
            let turns = runs[slot].1.get(&victim).map_or(0, |r| r.turns);
            let half = self.tenants.values().any(|t| {
                let ran = runs[slot].1.get(&t.token).map_or(0, |r| r.busy_ns);
                t.slot as usize == slot && t.token != victim && ran > t.alone.run_ns / 2
            });
            if killed_after.is_none() && turns > 1 && (half || endings.len() == others) {
                self.kill(victim)?;
                view.show_event(started.elapsed(), &format!("{VICTIM} is killed (SIGKILL)"));
                killed_after = Some(turns);
            }
        }
        let mut phase = Phase {
            name,
            timeslice_ns: slice_us * 1000,
            seconds: started.elapsed().as_secs_f64(),
            ..Phase::default()
        };
        for &token in tokens.iter().filter(|t| **t != victim) {
            let slot = self.tenants[&token].slot;
            let card = self.control.runs(slot)?.get(&token).copied();
            let earlier = before[slot as usize].get(&token).copied();
            let turns = card.unwrap_or_default().turns - earlier.unwrap_or_default().turns;
            let report = self.judge(token, &endings[&token], turns);
            phase.tenants.push(report);
        }
        let gone = self.tenants.remove(&victim).expect("it is a tenant");
        phase.tenants.push(TenantReport {
            name: gone.name,
            engine: gone.job.engine_name().into(),
            slot: gone.slot,
            job: gone.job.describe(),
            slices: killed_after.unwrap_or(0),
            killed: true,
            ..TenantReport::default()
        });
        for slot in 0..slots {
            let gaps = self.control.numbers(&format!("gaps slot={slot}"))?;
            phase.slots.push(SlotReport {
                slot,
                gap: Gaps::from(&gaps, ""),
                pause_to_paused: Gaps::from(&gaps, "pause_to_paused_"),
            });
        }
        phase.violations = self.violations()?;
        Ok(phase)
    }

    /// Returns the running tenant of each slot, and each tenant's use of the slot since `before`.
    fn slot_states(&mut self, before: &[HashMap<u64, Run>]) -> Result<SlotStates> {
        let mut runs = Vec::new();
        for (slot, before) in (0..).zip(before) {
            let mut now = self.control.runs(slot)?;
            for (token, run) in &mut now {
                let earlier = before.get(token).copied().unwrap_or_default();
                run.turns -= earlier.turns;
                run.pauses -= earlier.pauses;
                run.busy_ns -= earlier.busy_ns;
            }
            runs.push((self.control.running(slot)?, now));
        }
        Ok(runs)
    }

    fn kill(&mut self, token: u64) -> Result<()> {
        let tenant = self.tenant(token);
        tenant.child.kill()?;
        let status = tenant.child.wait()?;
        if status.signal() != Some(libc::SIGKILL) {
            bail!("{} did not die of SIGKILL: {status}", tenant.name);
        }
        // From here on the pages belong to no tenant: an access by an engine is a violation.
        self.control.ask(&format!("tenant token={token} gone"))?;
        Ok(())
    }

    fn judge(&mut self, token: u64, ending: &Ending, card_turns: u64) -> TenantReport {
        let contended = {
            let slot = self.tenants[&token].slot;
            self.tenants.values().filter(|t| t.slot == slot).count() > 1
        };
        let tenant = &self.tenants[&token];
        let name = &tenant.name;
        let right = ending.outcome == tenant.alone.outcome && ending.outcome == tenant.expected;
        let mut wrong = Vec::new();
        if !right {
            wrong.push(format!(
                "{name}: {}; alone {}; computed here {}",
                ending.outcome, tenant.alone.outcome, tenant.expected
            ));
        }
        if contended && ending.preemptions == 0 {
            wrong.push(format!("{name} was never preempted on a contended slot"));
        }
        if ending.slices != ending.preemptions + 1 || ending.slices != card_turns {
            wrong.push(format!(
                "{name}: the driver counts {} slices and {} preemptions, the card {card_turns} \
                     turns",
                ending.slices, ending.preemptions
            ));
        }
        let report = TenantReport {
            name: name.clone(),
            engine: tenant.job.engine_name().into(),
            slot: tenant.slot,
            job: tenant.job.describe(),
            alone_ns: tenant.alone.run_ns,
            run_ns: ending.run_ns,
            wait_ns: ending.wait_ns,
            slices: ending.slices,
            preemptions: ending.preemptions,
            outcome: ending.outcome.clone(),
            alone_outcome: tenant.alone.outcome.clone(),
            computed_here: tenant.expected.clone(),
            right,
            killed: false,
        };
        self.failures.extend(wrong);
        report
    }

    fn violations(&mut self) -> Result<u64> {
        let total = self.control.numbers("violations")?;
        let total = *total.get("total").context("violations without total")?;
        if total != 0 {
            let kinds = self.control.ask("violations")?;
            let why = self.control.ask("why")?;
            self.failures.push(format!("violations: {kinds}; {why}"));
            self.control.ask("violations clear")?;
        }
        Ok(total)
    }

    fn end(&mut self) -> Result<()> {
        let mut tenants = std::mem::take(&mut self.tenants);
        for tenant in tenants.values_mut() {
            drop(tenant.input.take());
        }
        for tenant in tenants.values_mut() {
            let status = tenant.child.wait()?;
            if !status.success() {
                self.failures.push(format!("{}: {status}", tenant.name));
            }
            let token = tenant.token;
            self.control.ask(&format!("tenant token={token} gone"))?;
        }
        Ok(())
    }
}

/// Returns the file's hash, computed by sha256sum.
fn sha256sum(path: &Path) -> Option<String> {
    let done = Command::new("sha256sum").arg(path).output().ok()?;
    let text = String::from_utf8(done.stdout).ok()?;
    done.status
        .success()
        .then(|| text.split_ascii_whitespace().next().map(String::from))?
}

fn prefix_hash(path: &Path, length: u64) -> Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(length)
        .read_to_end(&mut bytes)?;
    Ok(hex(&Sha256::digest(&bytes)))
}

/// Runs the demo. Returns whether all results are right.
fn run_demo(options: &Options) -> Result<bool> {
    let card = {
        let context =
            Context::open(&options.device).with_context(|| options.device.display().to_string())?;
        context.card_info()?
    };
    let mut control = Control::open(&options.control)?;
    say!("{}", crate::report::NOTE);
    say!(
        "card: {} slots ({}), {}",
        card.slots,
        control.ask("ping")?,
        if card.features & uapi::FEATURE_IOMMU == 0 {
            "no IOMMU"
        } else {
            "behind an IOMMU"
        }
    );
    let length = std::fs::metadata(&options.image)
        .with_context(|| options.image.display().to_string())?
        .len();
    control.ask("violations clear")?;
    control.ask("enforce on")?;
    let (send, messages) = std::sync::mpsc::channel();
    let mut demo = Demo {
        options,
        control,
        send,
        messages,
        tenants: BTreeMap::new(),
        tokens: 0,
        failures: Vec::new(),
    };
    for (i, name) in ["list-a", "list-b", "list-c"].into_iter().enumerate() {
        let (nodes, seed) = (options.nodes, 1 + i as u64);
        demo.spawn(name, Job::List { nodes, seed })?;
    }
    for (i, name) in ["mem-a", "mem-b"].into_iter().enumerate() {
        let job = Job::Membench {
            bytes: 4 << 20,
            count: options.nodes / 4,
            seed: 7 + i as u64,
        };
        demo.spawn(name, job)?;
    }
    let part = length / 3 * 2;
    for (name, length) in [("sha-a", length), ("sha-b", part)] {
        let path = options.image.clone();
        let job = Job::Sha256 {
            path,
            from: 0,
            length,
        };
        demo.spawn(name, job)?;
    }
    let speeds: Vec<_> = demo
        .tenants
        .values()
        .map(|t| (t.slot, speed_of(t.job.engine_name())))
        .collect();
    for (slot, speed) in speeds {
        demo.control
            .ask(&format!("set slot={slot} speed={speed}"))?;
    }
    say!("\nEach alone on its slot:");
    demo.alone()?;
    check_hashes(&mut demo, length, part)?;

    let mut report = Report::new(card);
    for &slice in &options.slices {
        let phase = demo.together(slice, card.slots)?;
        phase.print();
        report.phases.push(phase);
    }
    demo.end()?;
    report.violations =
        report.phases.iter().map(|p| p.violations).sum::<u64>() + demo.violations()?;
    report.failures = std::mem::take(&mut demo.failures);
    report.ok = report.failures.is_empty();
    write(&report, &options.report)?;
    for failure in &report.failures {
        say!("WRONG: {failure}");
    }
    say!(
        "\n{}: {} violations of the protocol seen by the card",
        if report.ok { "All is well" } else { "NOT well" },
        report.violations
    );
    Ok(report.ok)
}

/// Compares the digests with those of sha256sum.
fn check_hashes(demo: &mut Demo<'_>, length: u64, part: u64) -> Result<()> {
    let image = demo.options.image.clone();
    let whole = sha256sum(&image).context("sha256sum does not work")?;
    for (job_length, hash) in [(length, whole), (part, prefix_hash(&image, part)?)] {
        let wrong = demo.tenants.values().find(|t| {
            matches!(&t.job, Job::Sha256 { length, .. } if *length == job_length)
                && t.alone.outcome != hash
        });
        if let Some(tenant) = wrong {
            let text = format!(
                "{}: {}, sha256sum: {hash}",
                tenant.name, tenant.alone.outcome
            );
            demo.failures.push(text);
        }
    }
    say!("  the digests are those of sha256sum, too");
    Ok(())
}
