// SPDX-License-Identifier: GPL-2.0-or-later
//! `kubelet PROGRAM`: acts as the kubelet and as the API server for the program, in a machine with
//! two emulated cards, a relay card and a card of the irq profile. Prints TAP.

#![allow(missing_docs, reason = "a test")]

mod deviceplugin;
mod dra;

use anyhow::{ensure, Context as _, Result};
use fermata::{Context, Group, GroupSettings};
use fermata_output::{complain, say};
use rustix::process::{kill_process, Pid, Signal};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Prints the points of TAP.
struct Points {
    number: u32,
    failed: bool,
}

impl Points {
    /// Prints a point for a condition, and `what` if the condition does not hold.
    fn holds(&mut self, name: &str, condition: bool, what: impl std::fmt::Debug) {
        let done = if condition {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{what:?}"))
        };
        self.point(name, done);
    }

    fn point(&mut self, name: &str, done: Result<()>) {
        self.number += 1;
        match done {
            Ok(()) => say!("ok {} {name}", self.number),
            Err(error) => {
                say!("not ok {} {name}\n# {error:#}", self.number);
                self.failed = true;
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(program) = std::env::args_os().nth(1).map(PathBuf::from) else {
        complain!("usage: kubelet PROGRAM");
        return ExitCode::FAILURE;
    };
    let mut points = Points {
        number: 0,
        failed: false,
    };
    say!("TAP version 13");
    // The last test leaves a card with a slot out of use.
    let done = match dra::test(&program, &mut points).await {
        Ok(()) => deviceplugin::test(&program, &mut points).await,
        failed => failed,
    };
    if let Err(error) = done {
        say!("Bail out! {error:#}");
        return ExitCode::FAILURE;
    }
    say!("1..{}", points.number);
    ExitCode::from(u8::from(points.failed))
}

/// An emulated card.
pub(crate) struct Card {
    pub(crate) number: u32,
    pub(crate) address: String,
}

impl Card {
    pub(crate) fn find(number: u32) -> Result<Self> {
        let device = fs::canonicalize(format!("/sys/class/fermata/fermata{number}/device"))?;
        let address = device.file_name().context("a card without an address")?;
        Ok(Self {
            number,
            address: address.to_string_lossy().into(),
        })
    }

    pub(crate) fn node(&self) -> PathBuf {
        format!("/dev/fermata{}", self.number).into()
    }

    /// Binds the driver to the card, or unbinds the driver.
    pub(crate) fn driver(&self, what: &str) -> Result<()> {
        fs::write(
            format!("/sys/bus/pci/drivers/fermata/{what}"),
            &self.address,
        )?;
        Ok(())
    }

    /// Sends a command to the emulation.
    pub(crate) fn command(&self, words: &str) -> Result<()> {
        let path = format!("/dev/virtio-ports/fermata.card{}", self.number);
        let mut port = OpenOptions::new().read(true).write(true).open(path)?;
        writeln!(port, "kubelet {words}")?;
        let mut reply = String::new();
        BufReader::new(port).read_line(&mut reply)?;
        ensure!(reply.starts_with("kubelet ok"), "{words}: {reply}");
        Ok(())
    }
}

const CGROUPS: &str = "/sys/fs/cgroup";

/// A pod. Its programs end when the value is dropped.
pub(crate) struct Pod {
    pub(crate) uid: &'static str,
    cgroup: PathBuf,
    programs: Vec<Child>,
}

impl Pod {
    /// Creates the cgroups of a pod and of its container, in the place where the kubelet creates
    /// the pod's.
    pub(crate) fn make(uid: &'static str, place: &str) -> Result<Self> {
        let cgroup = Path::new(CGROUPS).join(place);
        fs::create_dir_all(cgroup.join("container"))?;
        Ok(Self {
            uid,
            cgroup,
            programs: Vec::new(),
        })
    }

    /// Returns the registered settings of the pod on a card.
    pub(crate) fn group(&self, card: &Card) -> Result<Group> {
        let card = Context::open(card.node())?;
        Ok(card.registered_group(File::open(&self.cgroup)?.as_fd())?)
    }

    /// Starts fermatactl in the pod's container, on a card. The pod is a group of the card, as with
    /// fermata-groups@.service.
    pub(crate) fn start(&mut self, card: &Card, arguments: &[String]) -> Result<()> {
        let settings = GroupSettings {
            children: Some(true),
            ..Default::default()
        };
        let parent = self.cgroup.parent().context("the root")?;
        Context::open(card.node())?.set_group(File::open(parent)?.as_fd(), &settings)?;
        let cgroup = self.cgroup.join("container/cgroup.procs");
        let mut command = Command::new("fermatactl");
        command
            .args(arguments)
            .args(["--card", &card.number.to_string()])
            .stdout(Stdio::null());
        // SAFETY: the closure only writes to a file. This process has one thread, so no other
        // thread can hold a lock of the allocator.
        unsafe { command.pre_exec(move || fs::write(&cgroup, "0")) };
        self.programs.push(command.spawn().context("fermatactl")?);
        Ok(())
    }

    /// Returns the slices and the time on slots of the pod's contexts on a card.
    pub(crate) fn runs(&self, card: &Card) -> Result<(u64, u64)> {
        let group = self.cgroup.metadata()?.ino();
        let contexts = Context::open(card.node())?.contexts()?;
        let own = contexts.iter().filter(|context| context.group == group);
        Ok(own.fold((0, 0), |(slices, ns), context| {
            (slices + context.slices, ns + context.run_ns)
        }))
    }

    pub(crate) fn stop(&mut self) {
        for program in &mut self.programs {
            // It may already have ended.
            let _ = program.kill();
            let _ = program.wait();
        }
        self.programs.clear();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir(self.cgroup.join("container"));
        let _ = fs::remove_dir(&self.cgroup);
    }
}

/// Time limit of everything that the test waits for.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A process of the program, which ends when the value is dropped.
pub(crate) struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts a command, with its log in a folder.
    pub(crate) fn start(command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join("log");
        let child = command.stderr(File::create(&log)?).spawn()?;
        Ok(Self { child, log })
    }

    /// Waits for the end. Returns the status and the log.
    pub(crate) async fn end(&mut self) -> Result<(Option<i32>, String)> {
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    return anyhow::Ok(status.code());
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        let code = timeout(LIMIT, ended)
            .await
            .context("the program does not end")??;
        Ok((code, fs::read_to_string(&self.log)?))
    }

    pub(crate) fn terminate(&self) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?).context("no process")?;
        Ok(kill_process(pid, Signal::TERM)?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for line in fs::read_to_string(&self.log).unwrap_or_default().lines() {
            say!("# {line}");
        }
    }
}
