// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-slurm run`: runs a program that is saved when Slurm ends its job, continues where Slurm
//! starts the job again, and leaves the card while Slurm suspends the job.
//!
//! The image is saved in a folder of the job's user, on a file system that all nodes share. The
//! program writes its output to a pipe. A file to which Slurm also writes would have changed by the
//! time the program is restored.

use crate::card::Allowed;
use crate::processes::{check_memory, hold_all, Stopped, Suspended};
use anyhow::{bail, ensure, Context as _, Result};
use fermata_output::complain;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{fcntl_setfl, fstat, OFlags};
use rustix::io::{retry_on_intr, Errno};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{
    kill_process, kill_process_group, waitid, waitpid, Pid, Signal, WaitId, WaitIdOptions,
    WaitOptions,
};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::JoinHandle;

/// The status after which Slurm starts a job again, if it is in `RequeueExit` of slurm.conf
/// (`EX_TEMPFAIL`).
const SAVED: u8 = 75;
/// In an image: how the program was saved.
const RECORD: &str = "fermata-slurm.json";
/// In an image: the job of the program's only context.
const JOB: &str = "job";

/// Run a program that is saved when Slurm ends its job, and continues where Slurm starts the job
/// again
///
/// SIGTERM saves the program, which then ends with status 75. If the job has an image, the image is
/// restored instead of starting the program. SIGTSTP stops the program and holds its jobs on cards;
/// SIGCONT lets both continue. Slurm sends signals only to the first process of a task or script,
/// so a batch script ends with `exec fermata-slurm run ...`.
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

/// How a program was saved. CRIU needs to know the pipes of its standard output and standard error.
#[derive(Deserialize, Serialize)]
struct Record {
    /// Names of the pipes of standard output and standard error; `None`: saved by
    /// fermata-checkpoint.
    pipes: Option<[String; 2]>,
}

/// How a program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exited(i32),
    Killed(i32),
}

impl End {
    /// Returns the status by which shells report the end.
    fn code(self) -> ExitCode {
        let (Self::Exited(code) | Self::Killed(code)) = self;
        let from = if matches!(self, Self::Killed(_)) {
            128
        } else {
            0
        };
        ExitCode::from((from + code) as u8)
    }
}

/// The program, or the process that continues its job.
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
        // Before anything else, so that a signal that comes while a program is restored is not
        // lost.
        let mut signals = Signals::new(signals)?;
        let images = Images::open(self.directory()?.join(task()?))?;
        let Some(program) = self.begin(&images)? else {
            return Ok(ExitCode::from(SAVED));
        };
        let mut suspended = Suspended::default();
        for signal in signals.forever() {
            match signal {
                SIGTERM => {
                    // CRIU and the driver distinguish what was held for Slurm from what the program
                    // has held.
                    suspended.resume();
                    match self.save(&program, &images) {
                        Ok(()) => {
                            program.finish();
                            images.tidy();
                            complain!("fermata-slurm: saved");
                            return Ok(ExitCode::from(SAVED));
                        }
                        Err(error) => {
                            complain!("fermata-slurm: not saved, the program goes on: {error:#}");
                        }
                    }
                }
                SIGTSTP => {
                    if let Err(error) = suspended.suspend() {
                        complain!("fermata-slurm: a job is not held: {error:#}");
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
            if let Some(end) = program.has_ended()? {
                program.finish();
                images.leave(end);
                return Ok(end.code());
            }
        }
        bail!("no more signals")
    }

    /// Starts the program, or restores its last image. `None`: the job is to be started again.
    fn begin(&self, images: &Images) -> Result<Option<Program>> {
        let program = match images.current()? {
            Some(image) => self.restore(&image),
            None => self.start(),
        };
        match program {
            Err(error) if error.is::<PidInUse>() => {
                complain!("fermata-slurm: {error}: the job is to be started again");
                Ok(None)
            }
            program => program.map(Some),
        }
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

    /// Saves the program and ends it. After an error the program goes on, and the images before are
    /// unchanged.
    fn save(&self, program: &Program, images: &Images) -> Result<()> {
        if !self.checkpoint {
            check_memory(program.pid)?;
        }
        let image = images.begin()?;
        let record = Record {
            pipes: (!self.checkpoint).then(|| program.pipes.clone()),
        };
        let recorded = serde_json::to_vec(&record)?;
        let recorded = fs::write(image.join(RECORD), recorded).map_err(Into::into);
        let saved = recorded.and_then(|()| {
            if self.checkpoint {
                save_job(program, images, &image)
            } else {
                self.dump(program, images, &image)
            }
        });
        if saved.is_err() {
            forget(&image);
        }
        saved
    }

    /// Saves the program by CRIU, which leaves the program stopped: it is killed when nothing can
    /// fail any more.
    fn dump(&self, program: &Program, images: &Images, image: &Path) -> Result<()> {
        let mut command = self.criu("dump", image);
        command.args(["--leave-stopped", "--tree", &program.name()]);
        if !succeeds(&mut command)? {
            bail!("criu dump failed: {}", complaints(&image.join("dump.log")));
        }
        let stopped = match Stopped::of(program.pid) {
            Ok(stopped) => stopped,
            Err(error) => {
                // The program has its own group, which most of its processes are in.
                kill_process_group(program.pid, Signal::CONT)?;
                return Err(error);
            }
        };
        if let Err(error) = images.complete(image) {
            stopped.signal(Signal::CONT);
            return Err(error);
        }
        stopped.signal(Signal::KILL);
        program.wait_for_end();
        Ok(())
    }

    fn restore(&self, image: &Path) -> Result<Program> {
        let path = image.join(RECORD);
        let name = || path.display().to_string();
        let record: Record =
            serde_json::from_slice(&fs::read(&path).with_context(name)?).with_context(name)?;
        complain!("fermata-slurm: restoring {}", image.display());
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
            // "Unable to create a thread": the number of a thread is in use.
            if is_taken || log.contains("Unable to create a thread: -17") {
                return Err(PidInUse.into());
            }
            bail!(
                "criu restore failed: {}; to start over, remove {}",
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

/// Saves the job of the program's only context, and kills the program.
fn save_job(program: &Program, images: &Images, image: &Path) -> Result<()> {
    // The job must not go on between the checkpoint and the end of the program.
    let _until_ended = hold_all(program.pid)?;
    let mut command = Command::new("fermata-checkpoint");
    command.args(["save", "--pid", &program.name()]);
    ensure!(
        succeeds(command.arg(image.join(JOB)).stdout(Stdio::null()))?,
        "fermata-checkpoint failed"
    );
    images.complete(image)?;
    kill_process(program.pid, Signal::KILL)?;
    program.wait_for_end();
    Ok(())
}

/// A restored process keeps its number, which another process may have on the new node.
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

    /// Returns the number of the program, for other programs.
    fn name(&self) -> String {
        self.pid.as_raw_nonzero().to_string()
    }

    /// Returns how the program has ended, if it has.
    fn has_ended(&self) -> Result<Option<End>> {
        let Some((_, status)) = waitpid(Some(self.pid), WaitOptions::NOHANG)? else {
            return Ok(None);
        };
        Ok(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(End::Exited(code)),
            (None, Some(signal)) => Some(End::Killed(signal)),
            (None, None) => None,
        })
    }

    /// Waits for the end of the program, which was killed.
    fn wait_for_end(&self) {
        // Another signal does not matter: the program is killed.
        let _ = retry_on_intr(|| waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED));
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

/// Returns what a log of CRIU says about errors.
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

/// Returns the only card that the job may open. If there are several, a program keeps the names
/// that it has.
fn own_card() -> Result<Option<PathBuf>> {
    let mut own = Allowed::all()?.into_iter().filter(Allowed::is_usable);
    Ok(match (own.next(), own.next()) {
        (Some(card), None) => Some(card.device),
        _ => None,
    })
}

/// A pipe that is copied to an output of the wrapper.
struct Output {
    stop: OwnedFd,
    thread: JoinHandle<()>,
}

impl Output {
    /// Returns the copying thread, and the end of the pipe for the program.
    fn start(to: impl Write + Send + 'static) -> Result<(Self, OwnedFd)> {
        let (from, program) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&from, OFlags::NONBLOCK)?;
        let thread = std::thread::spawn(move || {
            // Then the reader is dropped, and the program gets SIGPIPE, as from any pipe.
            if let Err(error) = copy(&from, &stopped, to) {
                complain!("fermata-slurm: output: {error}");
            }
        });
        Ok((Self { stop, thread }, program))
    }

    /// Copies what is in the pipe, and ends, even if a process still has the pipe.
    fn finish(self) {
        drop(self.stop);
        // A panic was reported by its thread.
        let _ = self.thread.join();
    }
}

/// Returns the name by which CRIU knows a pipe.
fn name_of(pipe: &OwnedFd) -> Result<String> {
    Ok(format!("pipe:[{}]", fstat(pipe)?.st_ino))
}

fn copy(from: &OwnedFd, stopped: &OwnedFd, mut to: impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let mut ends = false;
    loop {
        match retry_on_intr(|| rustix::io::read(from, &mut *buffer)) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                to.write_all(&buffer[..length])?;
                to.flush()?;
            }
            Err(Errno::AGAIN) if ends => return Ok(()),
            Err(Errno::AGAIN) => {
                let mut both = [
                    PollFd::new(from, PollFlags::IN),
                    PollFd::new(stopped, PollFlags::IN),
                ];
                // The thread also handles signals of the process.
                retry_on_intr(|| poll(&mut both, None))?;
                ends = !both[1].revents().is_empty();
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The names of complete images, followed by a number. The last one counts.
const IMAGE: &str = "image-";
/// The names of images that are not complete.
const NEW: &str = "new-";
/// The link to the complete image, as earlier versions left it.
const LINK: &str = "current";

/// The images of one task of a job.
struct Images {
    folder: PathBuf,
}

impl Images {
    /// Opens or creates the folder. Nobody but the user may have written there: whoever can write
    /// an image determines what the program does.
    fn open(folder: PathBuf) -> Result<Self> {
        let name = || folder.display().to_string();
        let made = DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&folder);
        made.with_context(name)?;
        let is = fs::symlink_metadata(&folder).with_context(name)?;
        let user = rustix::process::geteuid().as_raw();
        ensure!(
            is.is_dir() && is.uid() == user && is.mode().trailing_zeros() >= 6,
            "{}: belongs to another user, or is open to others: give another --directory",
            folder.display()
        );
        let images = Self { folder };
        let adopted = images.adopt();
        adopted.with_context(|| {
            let folder = images.folder.display();
            format!("the image of an earlier version, {folder}/{LINK}: if the program is to start over, remove {folder}")
        })?;
        Ok(images)
    }

    /// Makes the image to which an earlier version has left a link the last one.
    fn adopt(&self) -> Result<()> {
        let link = self.folder.join(LINK);
        let image = match fs::read_link(&link) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            image => image?,
        };
        // Otherwise the image was adopted, but the link was not removed.
        if self.current()?.is_none() {
            fs::rename(self.folder.join(image), self.next(IMAGE)?)?;
        }
        Ok(fs::remove_file(&link)?)
    }

    /// Returns the entries with these names, and a number for each.
    fn entries(&self, kind: &str) -> Result<Vec<(u32, PathBuf)>> {
        let name = || self.folder.display().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).with_context(name)? {
            let path = entry.with_context(name)?.path();
            let file = path.file_name().and_then(|file| file.to_str());
            let number = file.and_then(|file| file.strip_prefix(kind)?.parse().ok());
            found.extend(number.map(|number| (number, path)));
        }
        Ok(found)
    }

    /// Returns the last complete image.
    fn current(&self) -> Result<Option<PathBuf>> {
        let last = self.entries(IMAGE)?.into_iter().max();
        Ok(last.map(|(_, image)| image))
    }

    /// Returns the path of the next entry with one of these names.
    fn next(&self, kind: &str) -> Result<PathBuf> {
        let last = self.entries(kind)?.into_iter().max();
        let number = last.map_or(1, |(number, _)| number + 1);
        Ok(self.folder.join(format!("{kind}{number}")))
    }

    /// Makes a folder for a new image.
    fn begin(&self) -> Result<PathBuf> {
        self.tidy();
        // A file of an incomplete image that cannot be removed may be in its folder.
        let folder = self.next(NEW)?;
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.with_context(|| folder.display().to_string())?;
        Ok(folder)
    }

    /// Makes a complete image the last one, in one step. The images before are unchanged.
    fn complete(&self, image: &Path) -> Result<()> {
        let name = || image.display().to_string();
        for entry in fs::read_dir(image).with_context(name)? {
            let path = entry.with_context(name)?.path();
            sync(&path).with_context(|| path.display().to_string())?;
        }
        sync(image).with_context(name)?;
        let place = self.next(IMAGE)?;
        fs::rename(image, &place).with_context(|| place.display().to_string())?;
        sync(&self.folder).with_context(|| self.folder.display().to_string())
    }

    /// Removes what is not the last complete image, as far as possible. A file on NFS may be busy.
    fn tidy(&self) {
        let tidied = || -> Result<()> {
            let mut old = self.entries(IMAGE)?;
            old.sort_unstable();
            old.pop();
            old.extend(self.entries(NEW)?);
            let removed = old.iter().map(|(_, image)| remove(image));
            removed.fold(Ok(()), Result::and)
        };
        if let Err(error) = tidied() {
            complain!("fermata-slurm: an old image is left: {error:#}");
        }
    }

    /// Removes all images, because the program has ended by itself. Slurm kills the processes of a
    /// job that it ends, in any order: a program that is killed may have to go on.
    fn leave(&self, end: End) {
        if end == End::Killed(SIGKILL) {
            if let Ok(Some(image)) = self.current() {
                complain!(
                    "fermata-slurm: killed, its last image stays: {}",
                    image.display()
                );
                return;
            }
        }
        if let Err(error) = remove(&self.folder) {
            complain!("fermata-slurm: an image is left: {error:#}");
        }
    }
}

/// Writes a file or a folder to the disk. Some file systems cannot do this for folders (EINVAL).
fn sync(path: &Path) -> std::io::Result<()> {
    match File::open(path)?.sync_all() {
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        done => done,
    }
}

/// Removes an image that is not complete, except its logs, which tell why.
fn forget(image: &Path) {
    for entry in fs::read_dir(image).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|end| end != "log") {
            // It is removed by the next save.
            let _ = fs::remove_file(path);
        }
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done.with_context(|| folder.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{symlink, PermissionsExt as _};
    use std::os::unix::thread::JoinHandleExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_that_was_written_is_copied_while_a_process_has_the_pipe() {
        let sink = Sink::default();
        let (output, pipe) = Output::start(sink.clone()).unwrap();
        for _ in 0..100 {
            rustix::io::write(&pipe, &[7; 1000]).unwrap();
        }
        output.finish();
        assert_eq!(sink.0.lock().unwrap().len(), 100_000);
    }

    #[test]
    fn a_signal_does_not_end_the_copying() {
        let handled = Arc::<AtomicBool>::default();
        signal_hook::flag::register(libc::SIGUSR1, handled.clone()).unwrap();
        let sink = Sink::default();
        let (output, pipe) = Output::start(sink.clone()).unwrap();
        let thread = output.thread.as_pthread_t();
        // The thread has nothing to copy, and polls.
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(10));
            // SAFETY: the thread has not been joined.
            assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
        }
        rustix::io::write(&pipe, &[7; 1000]).unwrap();
        output.finish();
        assert!(handled.load(Ordering::Relaxed));
        assert_eq!(sink.0.lock().unwrap().len(), 1000);
    }

    #[test]
    fn the_last_complete_image_counts() {
        let top = tempfile::tempdir().unwrap();
        let images = Images::open(top.path().join("job")).unwrap();
        assert_eq!(images.current().unwrap(), None);
        let first = images.begin().unwrap();
        assert_eq!(images.current().unwrap(), None);
        fs::write(first.join("text"), "first").unwrap();
        images.complete(&first).unwrap();
        let text = || fs::read_to_string(images.current().unwrap().unwrap().join("text")).unwrap();
        assert_eq!(text(), "first");
        // An image that is not completed.
        images.begin().unwrap();
        assert_eq!(text(), "first");
        let second = images.begin().unwrap();
        fs::write(second.join("text"), "second").unwrap();
        images.complete(&second).unwrap();
        assert_eq!(text(), "second");
        images.tidy();
        assert_eq!(fs::read_dir(&images.folder).unwrap().count(), 1);
        assert_eq!(text(), "second");
        images.leave(End::Killed(SIGKILL));
        assert_eq!(text(), "second");
        images.leave(End::Exited(1));
        assert!(!top.path().join("job").exists());
    }

    #[test]
    fn the_image_of_an_earlier_version_counts() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("job");
        let open = || Images::open(folder.clone());
        open().unwrap();
        let link = || symlink("1", folder.join(LINK)).unwrap();
        link();
        // A start from the beginning would lose what was saved.
        let error = format!("{:#}", open().err().unwrap());
        let remedy = format!("remove {}: ", folder.display());
        assert!(error.contains(&remedy), "{error}");
        fs::create_dir(folder.join("1")).unwrap();
        fs::write(folder.join("1/text"), "saved").unwrap();
        let text = || {
            let image = open().unwrap().current().unwrap().unwrap();
            fs::read_to_string(image.join("text")).unwrap()
        };
        assert_eq!(text(), "saved");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        // The wrapper was killed before it removed the link.
        link();
        assert_eq!(text(), "saved");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn an_image_that_cannot_be_completed_leaves_the_one_before() {
        let top = tempfile::tempdir().unwrap();
        let images = Images::open(top.path().join("job")).unwrap();
        let first = images.begin().unwrap();
        images.complete(&first).unwrap();
        let before = images.current().unwrap();
        let second = images.begin().unwrap();
        // It cannot be synced.
        symlink("/nowhere", second.join("core.img")).unwrap();
        fs::write(second.join("dump.log"), "why").unwrap();
        images.complete(&second).unwrap_err();
        assert_eq!(images.current().unwrap(), before);
        forget(&second);
        let left: Vec<_> = fs::read_dir(&second).unwrap().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(fs::read(second.join("dump.log")).unwrap(), b"why");
    }

    #[test]
    fn ends_are_told_as_shells_do() {
        assert_eq!(End::Exited(3).code(), ExitCode::from(3));
        assert_eq!(End::Killed(15).code(), ExitCode::from(143));
    }

    #[test]
    fn a_folder_that_others_can_read_or_replace_is_refused() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("job");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o770)).unwrap();
        assert!(Images::open(folder.clone()).is_err());
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        assert!(Images::open(folder.clone()).is_ok());
        let link = top.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(Images::open(link).is_err());
    }
}
