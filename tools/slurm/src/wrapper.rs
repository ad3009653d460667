// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-slurm run`: a program that is saved when Slurm ends its job, goes on where Slurm starts
//! the job again, and leaves the card while Slurm suspends the job.

use crate::card;
use crate::image::Images;
use crate::output::{name_of, Output};
use crate::processes::Suspended;
use anyhow::{bail, ensure, Context as _, Result};
use rustix::process::{kill_process, waitpid, Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The status after which Slurm starts a job again, if it is in `RequeueExit` of slurm.conf
/// (`EX_TEMPFAIL`).
const SAVED: u8 = 75;
/// In an image: how the program was saved.
const RECORD: &str = "fermata-slurm.json";
/// In an image: the job of the program's only context.
const JOB: &str = "job";

/// Run a program that is saved when Slurm ends its job, and goes on where Slurm starts it again
///
/// SIGTERM saves the program, which ends then with status 75. If the job has an image, that is
/// restored instead of starting the program. SIGTSTP stops the program and holds its jobs on cards,
/// SIGCONT lets both go on. Slurm sends signals to the first process of a task or script only, so a
/// batch script ends with `exec fermata-slurm run ...`.
#[derive(clap::Args)]
pub(crate) struct Run {
    /// The folder of images, which all nodes share [default: .fermata-slurm in the home folder]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Save only the job of the program's one context, by fermata-checkpoint; the program itself is
    /// ended, and `fermata-checkpoint restore` takes its place. Without it CRIU saves the program
    #[arg(long)]
    checkpoint: bool,
    /// Where CRIU finds its plugins, fermata.so among them [default: CRIU's own]
    #[arg(long, value_name = "DIR")]
    plugins: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// How a program was saved. CRIU is told the pipes of its standard output and standard error.
#[derive(Deserialize, Serialize)]
struct Record {
    /// Names of the pipes of standard output and standard error; `None`: saved by
    /// fermata-checkpoint.
    pipes: Option<[String; 2]>,
}

/// The program, or what goes on with its job.
struct Program {
    pid: Pid,
    outputs: Vec<Output>,
    pipes: [String; 2],
}

impl Run {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let signals = [
            SIGTERM, SIGTSTP, SIGCONT, SIGCHLD, SIGINT, SIGHUP, SIGUSR1, SIGUSR2,
        ];
        // From now on: one that comes while a program is restored is not lost.
        let mut signals = Signals::new(signals)?;
        let images = Images::open(self.directory()?.join(task()?))?;
        let program = match images.current()? {
            Some(image) => self.restore(&image),
            None => self.start(),
        };
        let program = match program {
            Ok(program) => program,
            Err(error) if error.is::<PidInUse>() => {
                eprintln!("fermata-slurm: {error}: the job is to be started again");
                return Ok(ExitCode::from(SAVED));
            }
            Err(error) => return Err(error),
        };
        let mut suspended = Suspended::default();
        for signal in signals.forever() {
            match signal {
                SIGTERM => {
                    // CRIU and the driver keep apart what was held for Slurm and by the program.
                    suspended.resume();
                    match self.save(&program, &images) {
                        Ok(()) => {
                            program.finish();
                            eprintln!("fermata-slurm: saved");
                            return Ok(ExitCode::from(SAVED));
                        }
                        Err(error) => {
                            eprintln!("fermata-slurm: not saved, the program goes on: {error:#}");
                        }
                    }
                }
                SIGTSTP => {
                    if let Err(error) = suspended.suspend() {
                        eprintln!("fermata-slurm: a job is not held: {error:#}");
                    }
                }
                SIGCONT => suspended.resume(),
                SIGCHLD => {}
                other => {
                    if let Some(signal) = Signal::from_named_raw(other) {
                        // It may have ended.
                        let _ = kill_process(program.pid, signal);
                    }
                }
            }
            if let Some(code) = program.has_ended()? {
                program.finish();
                images.remove()?;
                return Ok(code);
            }
        }
        bail!("no more signals")
    }

    fn directory(&self) -> Result<PathBuf> {
        if let Some(directory) = &self.directory {
            return Ok(std::path::absolute(directory)?);
        }
        let home = std::env::var_os("HOME").context("HOME is not set: give --directory")?;
        Ok(Path::new(&home).join(".fermata-slurm"))
    }

    fn start(&self) -> Result<Program> {
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]);
        let name = self.program[0].to_string_lossy().into_owned();
        Program::start(command).with_context(|| name)
    }

    fn save(&self, program: &Program, images: &Images) -> Result<()> {
        let image = images.begin()?;
        let record = Record {
            pipes: (!self.checkpoint).then(|| program.pipes.clone()),
        };
        fs::write(image.join(RECORD), serde_json::to_vec(&record)?)?;
        let pid = program.pid.as_raw_nonzero().to_string();
        if self.checkpoint {
            let mut command = Command::new("fermata-checkpoint");
            command.args(["save", "--hold", "--pid", &pid]);
            ensure!(
                succeeds(command.arg(image.join(JOB)).stdout(Stdio::null()))?,
                "fermata-checkpoint failed"
            );
            images.complete(&image)?;
            kill_process(program.pid, Signal::KILL)?;
            return Ok(());
        }
        let mut command = self.criu("dump", &image);
        command.args(["--tree", &pid]);
        if !succeeds(&mut command)? {
            bail!("criu dump failed: {}", complaints(&image.join("dump.log")));
        }
        images.complete(&image)
    }

    fn restore(&self, image: &Path) -> Result<Program> {
        let path = image.join(RECORD);
        let name = || path.display().to_string();
        let record: Record =
            serde_json::from_slice(&fs::read(&path).with_context(name)?).with_context(name)?;
        eprintln!("fermata-slurm: restoring {}", image.display());
        let Some(pipes) = record.pipes else {
            let mut command = Command::new("fermata-checkpoint");
            command.arg("restore");
            if let Some(card) = own_card()? {
                command.arg("--device").arg(card);
            }
            command.arg(image.join(JOB));
            return Program::start(command).context("fermata-checkpoint");
        };
        let pid_file = image.join("pid");
        let mut command = self.criu("restore", image);
        command.args(["--restore-detached", "--restore-sibling", "--pidfile"]);
        command.arg(&pid_file);
        for (number, pipe) in (1..).zip(&pipes) {
            command
                .arg("--inherit-fd")
                .arg(format!("fd[{number}]:{pipe}"));
        }
        if let Some(card) = own_card()? {
            command.env("FERMATA_CRIU_DEVICE", card);
        }
        let (outputs, ends) = outputs()?;
        let names = names(&ends)?;
        let [out, err] = ends;
        if !succeeds(command.stdout(out).stderr(err))? {
            let log = fs::read_to_string(image.join("restore.log")).unwrap_or_default();
            let is_taken = log.contains("Can't fork for") && log.contains("File exists");
            // The number of a thread.
            if is_taken || log.contains("Unable to create a thread: -17") {
                return Err(PidInUse.into());
            }
            bail!(
                "criu restore failed: {}; to begin anew, remove {}",
                complaints(&image.join("restore.log")),
                image.parent().unwrap_or(image).display()
            );
        }
        let pid = fs::read_to_string(&pid_file)?.trim().parse().ok();
        Ok(Program {
            pid: pid.and_then(Pid::from_raw).context("criu wrote no pid")?,
            outputs,
            pipes: names,
        })
    }

    fn criu(&self, action: &str, image: &Path) -> Command {
        let mut command = Command::new("criu");
        command.args([action, "--unprivileged", "--file-locks", "-v3"]);
        command.arg("--images-dir").arg(image);
        command.args(["--log-file", &format!("{action}.log")]);
        if let Some(plugins) = &self.plugins {
            command.arg("--libdir").arg(plugins);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

/// A restored process has the number that it had; on the new node another process has it.
#[derive(Debug, thiserror::Error)]
#[error("the number of a process is in use on this node")]
struct PidInUse;

impl Program {
    fn start(mut command: Command) -> Result<Self> {
        let (outputs, ends) = outputs()?;
        let pipes = names(&ends)?;
        let [out, err] = ends;
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        // SAFETY: setsid() is safe after fork().
        unsafe {
            // CRIU dumps whole sessions.
            command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?));
        }
        let child = command.spawn()?;
        Ok(Self {
            pid: Pid::from_child(&child),
            outputs,
            pipes,
        })
    }

    /// Returns the status of the program, if it has ended.
    fn has_ended(&self) -> Result<Option<ExitCode>> {
        let Some((_, status)) = waitpid(Some(self.pid), WaitOptions::NOHANG)? else {
            return Ok(None);
        };
        // As shells tell signals.
        let code = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => return Ok(None),
        };
        Ok(Some(ExitCode::from(code as u8)))
    }

    fn finish(self) {
        for output in self.outputs {
            output.finish();
        }
    }
}

fn outputs() -> Result<(Vec<Output>, [OwnedFd; 2])> {
    let (out, out_end) = Output::start(std::io::stdout())?;
    let (err, err_end) = Output::start(std::io::stderr())?;
    Ok((vec![out, err], [out_end, err_end]))
}

fn names(ends: &[OwnedFd; 2]) -> Result<[String; 2]> {
    Ok([name_of(&ends[0])?, name_of(&ends[1])?])
}

fn succeeds(command: &mut Command) -> Result<bool> {
    let name = command.get_program().to_string_lossy().into_owned();
    Ok(command.status().with_context(|| name)?.success())
}

/// Returns what a log of CRIU tells of errors.
fn complaints(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = text
        .lines()
        .filter(|line| line.contains("Error") || line.contains("fermata:"));
    let lines: Vec<_> = lines.take(5).collect();
    format!("{}: {}", log.display(), lines.join("; "))
}

/// Returns the name of the folder of the task's images.
fn task() -> Result<String> {
    let variable = |name: &str| std::env::var(name).ok();
    let job =
        variable("SLURM_JOB_ID").context("SLURM_JOB_ID is not set: start it in a job of Slurm")?;
    let step = variable("SLURM_STEP_ID").unwrap_or_else(|| "batch".into());
    let task = variable("SLURM_PROCID").unwrap_or_else(|| "0".into());
    let name = format!("{job}.{step}.{task}");
    let is_plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    ensure!(
        is_plain,
        "{name}: SLURM_JOB_ID, SLURM_STEP_ID and SLURM_PROCID are numbers"
    );
    Ok(name)
}

/// Returns the only card that the job may open. With several, a program keeps the names that it has.
fn own_card() -> Result<Option<PathBuf>> {
    let mut own = card::allowed()?.into_iter();
    Ok(match (own.next(), own.next()) {
        (Some(card), None) => Some(card),
        _ => None,
    })
}
