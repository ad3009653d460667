// SPDX-License-Identifier: GPL-2.0-or-later
//! The host: the daemon, and a tenant next to it.

use anyhow::{bail, ensure, Context as _, Result};
use fermata::{uapi, Arena, Context, EngineId, Events, GroupSettings};
use fermata_card::control::Control;
use rustix::process::{prlimit, Pid, Resource, Rlimit};
use sha2::{Digest, Sha256};
use std::fs::{File, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The host's card.
pub(crate) const DEVICE: &str = "/dev/fermata0";
/// The card of another host.
pub(crate) const OTHER: &str = "/dev/fermata1";

const CGROUPS: &str = "/sys/fs/cgroup";
/// The user of the daemons.
const USER: u32 = 1000;

/// A daemon that serves.
pub(crate) struct Daemon {
    child: Child,
    socket: PathBuf,
    control: PathBuf,
}

impl Daemon {
    /// Starts a daemon without privileges in a cgroup of its own, with these arguments.
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_on(DEVICE, name, arguments)
    }

    /// Like [`Daemon::start`], on this card.
    pub(crate) fn start_on(device: &str, name: &str, arguments: &[&str]) -> Result<Self> {
        let socket = std::env::temp_dir().join(format!("{name}.sock"));
        let control = socket.with_extension("control");
        let mut command = Command::new("fermata-vfio");
        command.args(["serve", "--device", device, "--socket"]);
        command.arg(&socket).arg("--control").arg(&control);
        command.args(arguments);
        command.uid(USER).gid(USER).stdout(Stdio::piped());
        let mut child = in_cgroup(name, || command.spawn().context("fermata-vfio"))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        ensure!(line == "ready\n", "fermata-vfio does not serve: {line}");
        Ok(Self {
            child,
            socket,
            control,
        })
    }

    /// Returns the socket of the device.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the control socket.
    pub(crate) fn control(&self) -> &Path {
        &self.control
    }

    /// Runs `fermata-vfio COMMAND` for this daemon. An error has what the command printed.
    pub(crate) fn ask(&self, command: &str, file: Option<&Path>) -> Result<()> {
        let mut process = Command::new("fermata-vfio");
        process.arg(command).arg("--control").arg(&self.control);
        let output = process.args(file).output().context("fermata-vfio")?;
        let printed = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command}: {}", printed.trim());
        Ok(())
    }

    /// Keeps the daemon from pinning more memory.
    pub(crate) fn pin_nothing(&self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        prlimit(Some(pid), Resource::Memlock, none)?;
        Ok(())
    }

    /// Returns the daemon's contexts on the host's card.
    pub(crate) fn contexts(&self, host: &Context) -> Result<Vec<uapi::ContextInfo>> {
        let mut all = host.contexts()?;
        all.retain(|context| context.pid as u32 == self.child.id());
        Ok(all)
    }

    /// Returns the daemon's contexts that have had a job. The others have the memory of the guest.
    pub(crate) fn with_jobs(&self, host: &Context) -> Result<Vec<uapi::ContextInfo>> {
        let mut all = self.contexts(host)?;
        all.retain(|context| context.job > 0);
        Ok(all)
    }

    /// Returns how many bytes of memory the daemon has pinned. The pages of each context count
    /// once.
    pub(crate) fn pinned(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib: u64 = number
            .context("no VmPin in the status of the daemon")?
            .parse()?;
        Ok(kib << 10)
    }

    /// Waits until this many contexts of the daemon have had a job on a slot. A guest's START
    /// returns before.
    pub(crate) fn wait_for_jobs(&self, host: &Context, count: usize) -> Result<()> {
        wait_until("no job begins", || {
            let begun = |context: &&uapi::ContextInfo| context.slices > 0;
            Ok(self.contexts(host)?.iter().filter(begun).count() >= count)
        })
    }

    /// Waits until the daemon has no contexts.
    pub(crate) fn wait_for_no_contexts(&self, host: &Context) -> Result<()> {
        wait_until("contexts stay", || Ok(self.contexts(host)?.is_empty()))
    }

    /// Waits until the daemon has no pinned memory. A context is gone before its memory is.
    pub(crate) fn wait_for_no_memory(&self) -> Result<()> {
        wait_until("memory stays pinned", || Ok(self.pinned()? == 0))
    }

    /// Kills the daemon, like `kill -9`.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

/// Waits until `is_so` returns true, for at most 20 s. `otherwise` is the text of the error.
fn wait_until(otherwise: &'static str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    while !is_so()? {
        ensure!(begin.elapsed() < Duration::from_secs(20), otherwise);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_file(&self.control);
    }
}

/// Returns the directory of the cgroup with this name.
pub(crate) fn cgroup(name: &str) -> PathBuf {
    Path::new(CGROUPS).join(name)
}

/// Calls `what` as a process of the cgroup with this name, which is a group of the card.
fn in_cgroup<T>(name: &str, what: impl FnOnce() -> Result<T>) -> Result<T> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let settings = GroupSettings {
        children: Some(true),
        ..Default::default()
    };
    Context::open(DEVICE)?.set_group(File::open(CGROUPS)?.as_fd(), &settings)?;
    let cgroup = cgroup(name);
    std::fs::create_dir_all(&cgroup)?;
    std::fs::write(cgroup.join("cgroup.procs"), "0")?;
    let done = what();
    std::fs::write(Path::new(CGROUPS).join("cgroup.procs"), "0")?;
    done
}

/// Lets daemons without privileges use the card, as the udev rule does for the group fermata.
pub(crate) fn open_node() -> Result<()> {
    let open = |node| std::fs::set_permissions(node, Permissions::from_mode(0o666)).context(node);
    open(DEVICE)?;
    if Path::new(OTHER).exists() {
        open(OTHER)?;
    }
    Ok(())
}

/// Sends a request to an emulated card of the host. The card checks restores, and must know which
/// states come by `SNAPSHOT_WRITE`.
pub(crate) fn tell_card(number: u32, request: &str) -> Result<()> {
    let port = format!("/dev/virtio-ports/fermata.card{number}");
    Control::open(Path::new(&port))?.ask(request).map(drop)
}

/// The jobs that start on cards of the host, according to the driver's tracepoint.
pub(crate) struct Starts {
    trace: PathBuf,
}

const TRACING: &str = "/sys/kernel/tracing";
const JOB_START: &str = "/sys/kernel/tracing/events/fermata/fermata_job_start/enable";

impl Starts {
    /// Starts tracing.
    pub(crate) fn trace() -> Result<Self> {
        let trace = Path::new(TRACING).join("trace");
        std::fs::write(&trace, "").context(TRACING)?;
        std::fs::write(JOB_START, "1").context(JOB_START)?;
        Ok(Self { trace })
    }

    /// Ends the trace. Returns how many jobs with a state started as held.
    pub(crate) fn held(self) -> Result<usize> {
        let trace = std::fs::read_to_string(&self.trace)?;
        let held = trace.lines().filter(|line| line.contains("saved=1 held=1"));
        Ok(held.count())
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        let _ = std::fs::write(JOB_START, "0");
    }
}

/// A tenant of the host that hashes repeatedly.
pub(crate) struct Tenant {
    stop: Arc<AtomicBool>,
    jobs: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Tenant {
    /// Starts the tenant.
    pub(crate) fn start(tag: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let jobs = Arc::new(AtomicU64::new(0));
        let thread = {
            let (stop, jobs) = (stop.clone(), jobs.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    hash(tag)?;
                    jobs.fetch_add(1, Ordering::AcqRel);
                }
                Ok(())
            })
        };
        Self { stop, jobs, thread }
    }

    /// Ends the tenant. Returns the number of its jobs, all of which were correct.
    pub(crate) fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::Release);
        match self.thread.join() {
            Ok(done) => done?,
            Err(_) => bail!("the tenant panicked"),
        }
        Ok(self.jobs.load(Ordering::Acquire))
    }
}

/// Runs a job of a context. Returns the time from START to the notice of the end.
pub(crate) fn run(context: &Context) -> Result<Duration> {
    let begin = Instant::now();
    context.start()?;
    context.wait(Events::DONE, Some(Duration::from_secs(60)))?;
    let took = begin.elapsed();
    context.job_result()?;
    Ok(took)
}

/// A context of the host that hashes its memory.
pub(crate) struct HostHash {
    context: Context,
    arena: Arena,
    digest: Vec<u8>,
}

impl HostHash {
    /// Opens the context.
    pub(crate) fn new(tag: u64, length: usize) -> Result<Self> {
        let context = Context::open(DEVICE)?;
        context.setup(EngineId::SHA256, 0)?;
        let arena = context.create_arena(length + 4096)?;
        context.create_snapshot()?;
        let data: Vec<u8> = (0..length).map(|i| (i as u64 ^ tag) as u8).collect();
        arena.write(4096, &data);
        let base = arena.base();
        let registers = [
            (0x30, base + 4096),
            (0x38, length as u64),
            (0x40, base),
            (0x50, tag),
        ];
        context.write_registers(&registers)?;
        let digest = Sha256::digest(&data).to_vec();
        Ok(Self {
            context,
            arena,
            digest,
        })
    }

    /// Hashes once. Returns the time from START to the notice of the end.
    pub(crate) fn run(&self) -> Result<Duration> {
        let took = run(&self.context)?;
        ensure!(self.arena.read(0, 32) == self.digest, "the host's digest");
        Ok(took)
    }
}

/// Hashes some memory in a new context of the host.
pub(crate) fn hash(tag: u64) -> Result<()> {
    HostHash::new(tag, 256 << 10)?.run().map(drop)
}
