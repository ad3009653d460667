// SPDX-License-Identifier: GPL-2.0-or-later

//! Executes programs: threads, files and shared memory, and the coverage of the module by each
//! thread (the kernel's KCOV).

use crate::program::{Action, Call, Kind, Member, Program, Step, CALLS, ENGINES, FILES, THREADS};
use anyhow::{ensure, Result};
use fermata::{uapi, work::REG_TAG, EngineId, Policy};
use std::{
    collections::{HashSet, VecDeque},
    ffi::{CString, OsStr},
    fs::{self, File, OpenOptions},
    io, mem,
    mem::offset_of,
    os::{
        fd::{AsRawFd, FromRawFd as _, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::PathBuf,
    ptr,
    sync::{
        atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering},
        mpsc, Arc, Mutex, MutexGuard, PoisonError,
    },
    thread,
    time::{Duration, Instant},
};

/// A call that takes longer is interrupted by signals.
const SIGNAL_AFTER: Duration = Duration::from_millis(20);
const PAGE: usize = 4096;
/// Maximum number of holds at once.
const HOLDS: usize = 2;
/// An unprivileged user.
const NOBODY: libc::uid_t = 1000;

/// The state that the threads share while a program runs.
#[derive(Default)]
struct Shared {
    files: [AtomicI32; FILES as usize],
    contexts: [AtomicU32; FILES as usize],
    mapped: [AtomicUsize; FILES as usize],
    /// The last holds, which end in the order of their beginning.
    holds: Mutex<VecDeque<OwnedFd>>,
    calls: AtomicU64,
    good: AtomicU64,
}

/// The state of a thread.
struct Worker {
    shared: Arc<Shared>,
    kcov: Kcov,
    device: CString,
    /// The card's folder in sysfs.
    sysfs: PathBuf,
    eventfd: i32,
    cgroup: i32,
    /// Two pages of writable memory, then a read-only page.
    memory: *mut u64,
}

/// A thread that takes its steps of each program, and returns the reached addresses.
struct WorkerHandle {
    programs: mpsc::Sender<Arc<Program>>,
    reached: mpsc::Receiver<HashSet<u64>>,
    id: libc::pthread_t,
}

/// The threads and files.
pub(crate) struct Executor {
    shared: Arc<Shared>,
    threads: Vec<WorkerHandle>,
}

/// Does nothing: the signal interrupts a call.
extern "C" fn on_signal(_: libc::c_int) {}

impl Executor {
    /// Starts the threads.
    pub(crate) fn new(device: &str) -> Result<Self> {
        // SAFETY: The handler does nothing, and a zeroed `sigaction` is valid.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut());
        }
        let shared = Arc::new(Shared::default());
        for file in &shared.files {
            file.store(-1, Ordering::Relaxed);
        }
        let threads = (0..THREADS)
            .map(|number| start(number, &shared, device))
            .collect::<Result<_>>()?;
        Ok(Self { shared, threads })
    }

    /// Runs a program to its end; returns the addresses that it reached.
    pub(crate) fn run(&self, program: &Arc<Program>) -> HashSet<u64> {
        for thread in &self.threads {
            thread
                .programs
                .send(program.clone())
                .expect("a thread died");
        }
        let mut reached = HashSet::new();
        let begin = Instant::now();
        for thread in &self.threads {
            reached.extend(loop {
                match thread.reached.recv_timeout(SIGNAL_AFTER) {
                    Ok(reached) => break reached,
                    Err(mpsc::RecvTimeoutError::Disconnected) => panic!("a thread died"),
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        assert!(
                            begin.elapsed() < Duration::from_secs(60),
                            "a call does not end, in\n{program}"
                        );
                        // SAFETY: The thread lives, because it has not sent its result.
                        unsafe { libc::pthread_kill(thread.id, libc::SIGUSR1) };
                    }
                }
            });
        }
        self.close_all();
        reached
    }

    /// Returns the number of calls, and of successful calls.
    pub(crate) fn calls(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.shared.calls), count(&self.shared.good))
    }

    fn close_all(&self) {
        self.shared.holds().clear();
        for file in 0..usize::from(FILES) {
            self.shared.unmap(file);
            self.shared.close(file);
            self.shared.contexts[file].store(0, Ordering::Relaxed);
        }
    }
}

impl Shared {
    fn holds(&self) -> MutexGuard<'_, VecDeque<OwnedFd>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a hold, and ends the first of too many.
    fn keep_hold(&self, hold: OwnedFd) {
        let mut holds = self.holds();
        holds.push_back(hold);
        if holds.len() > HOLDS {
            holds.pop_front();
        }
    }

    fn close(&self, file: usize) {
        self.put_file(file, -1);
    }

    /// Sets the descriptor of a file, and closes the previous one. Another thread may do the same.
    fn put_file(&self, file: usize, fd: i32) {
        let before = self.files[file].swap(fd, Ordering::AcqRel);
        if before >= 0 {
            // SAFETY: `swap` has taken the descriptor, so no other thread closes it.
            unsafe { libc::close(before) };
        }
    }

    fn unmap(&self, file: usize) {
        self.put_mapping(file, 0);
    }

    /// Sets the mapping of a file's arena, and unmaps the previous one. The low bits of the address
    /// hold the number of pages, which is less than 4096.
    fn put_mapping(&self, file: usize, mapped: usize) {
        let before = self.mapped[file].swap(mapped, Ordering::AcqRel);
        if before != 0 {
            // SAFETY: `map` made the mapping, and `swap` has taken it.
            unsafe { libc::munmap((before & !(PAGE - 1)) as _, (before & (PAGE - 1)) * PAGE) };
        }
    }
}

fn start(number: u8, shared: &Arc<Shared>, device: &str) -> Result<WorkerHandle> {
    let (programs, next) = mpsc::channel::<Arc<Program>>();
    let (tell, reached) = mpsc::channel();
    let (ready, started) = mpsc::channel();
    let (shared, device) = (shared.clone(), CString::new(device)?);
    thread::spawn(move || {
        // SAFETY: `pthread_self` has no requirements.
        let id = unsafe { libc::pthread_self() };
        let worker = match Worker::new(number, shared, device) {
            Ok(worker) => worker,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let _ = ready.send(Ok(id));
        while let Ok(program) = next.recv() {
            worker.kcov.clear();
            for step in program.steps.iter().filter(|step| step.thread == number) {
                worker.take(step);
            }
            if tell.send(worker.kcov.reached().collect()).is_err() {
                return;
            }
        }
    });
    Ok(WorkerHandle {
        programs,
        reached,
        id: started.recv()??,
    })
}

impl Worker {
    fn new(number: u8, shared: Arc<Shared>, device: CString) -> Result<Self> {
        let kcov = Kcov::of_this_thread()?;
        let node = fs::metadata(OsStr::from_bytes(device.as_bytes()))?.rdev();
        let (major, minor) = (libc::major(node), libc::minor(node));
        let sysfs = format!("/sys/dev/char/{major}:{minor}").into();
        // SAFETY: A new mapping, part of which becomes read-only or is unmapped.
        let memory = unsafe {
            let memory = libc::mmap(
                ptr::null_mut(),
                4 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            libc::mprotect(memory.wrapping_byte_add(2 * PAGE), PAGE, libc::PROT_READ);
            libc::munmap(memory.wrapping_byte_add(3 * PAGE), PAGE);
            memory
        };
        // SAFETY: The arguments are numbers.
        let eventfd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        let directory = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: The path is a C string.
        let cgroup = unsafe { libc::open(c"/sys/fs/cgroup".as_ptr(), directory) };
        if number > 0 {
            // The system call, unlike the C function, changes this thread only.
            // SAFETY: The arguments are numbers.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            ensure!(done == 0, "setresuid: {}", io::Error::last_os_error());
        }
        Ok(Self {
            shared,
            kcov,
            device,
            sysfs,
            eventfd,
            cgroup,
            memory: memory.cast(),
        })
    }

    fn take(&self, step: &Step) {
        let file = usize::from(step.file);
        let fd = self.shared.files[file].load(Ordering::Acquire);
        let result = match &step.action {
            Action::Open(mode) => self.open(file, *mode),
            Action::Close => {
                self.shared.close(file);
                0
            }
            Action::Map(length) => self.map(file, fd, *length as usize),
            Action::Unmap => {
                self.shared.unmap(file);
                0
            }
            Action::Poll => {
                let mut poll = libc::pollfd {
                    fd,
                    events: libc::POLLIN | libc::POLLPRI,
                    revents: 0,
                };
                // SAFETY: `poll` is the only entry.
                unsafe { libc::poll(&mut poll, 1, 0) }
            }
            Action::Policy(policy) => {
                let policy = Policy::ALL.get(*policy as usize);
                self.write("policy", policy.map_or("nothing", |policy| policy.name()))
            }
            Action::Boost(ms) => self.write("boost_ms", &ms.to_string()),
            Action::Call(index, size, values) => self.call(file, fd, &CALLS[*index], *size, values),
        };
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        if result >= 0 {
            self.shared.good.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes a file of the card in sysfs.
    fn write(&self, name: &str, text: &str) -> i32 {
        match fs::write(self.sysfs.join(name), text) {
            Ok(()) => 0,
            Err(_) => -1,
        }
    }

    fn open(&self, file: usize, mode: u64) -> i32 {
        let nonblocking = if mode == 1 { libc::O_NONBLOCK } else { 0 };
        let flags = libc::O_RDWR | libc::O_CLOEXEC | nonblocking;
        // SAFETY: The path is a C string.
        let fd = unsafe { libc::open(self.device.as_ptr(), flags) };
        if fd >= 0 {
            self.shared.put_file(file, fd);
        }
        fd
    }

    fn map(&self, file: usize, fd: i32, length: usize) -> i32 {
        let pages = length.div_ceil(PAGE);
        if pages >= PAGE {
            return -1;
        }
        // SAFETY: A new mapping.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return -1;
        }
        // SAFETY: No other code knows the new mapping. The kernel writes to it, so that missing
        // memory gives an error instead of a signal.
        unsafe {
            let zero = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY);
            libc::read(zero, memory, length);
            libc::close(zero);
        }
        self.shared.put_mapping(file, memory as usize | pages);
        0
    }

    fn call(&self, file: usize, fd: i32, call: &Call, size: u32, values: &[u64]) -> i32 {
        // The argument has room for any size that the kernel accepts.
        let mut argument = vec![0_u8; 2 * PAGE];
        argument[..4].copy_from_slice(&size.to_le_bytes());
        for (member, value) in call.members.iter().zip(values) {
            self.fill(
                &mut argument[member.offset..][..member.width],
                member,
                *value,
            );
        }
        let number = libc::c_ulong::from(call.number);
        // SAFETY: The argument is larger than what the kernel copies back, at most a page.
        let result = unsafe { libc::ioctl(fd, number as _, argument.as_mut_ptr()) };
        if result == 0 && call.name == "setup" {
            let number = &argument[offset_of!(uapi::Setup, context)..][..4];
            let number = number.try_into().map_or(0, u32::from_le_bytes);
            self.shared.contexts[file].store(number, Ordering::Relaxed);
        }
        if result == 0 && call.name == "hold" {
            let fd = &argument[offset_of!(uapi::Hold, fd)..][..4];
            let fd = fd.try_into().map_or(-1, i32::from_le_bytes);
            // SAFETY: The driver has made the descriptor for us.
            self.shared.keep_hold(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        result
    }

    /// Writes the value that the kernel sees.
    fn fill(&self, to: &mut [u8], member: &Member, value: u64) {
        let meant = match member.kind {
            Kind::Deadline if value > 0 && value < 1000 => fermata::now_ns() + value * 1_000_000,
            Kind::Deadline | Kind::Small | Kind::Length | Kind::Duration => value,
            Kind::Context => match self.shared.contexts.get(value.wrapping_sub(1) as usize) {
                Some(number) => number.load(Ordering::Relaxed).into(),
                None => value,
            },
            Kind::File => match self.shared.files.get(value.wrapping_sub(1) as usize) {
                Some(fd) => fd.load(Ordering::Relaxed) as u64,
                None => value,
            },
            Kind::Pointer => self.pointer(value),
            Kind::Eventfd => match value {
                0 => self.eventfd as u64,
                1 => u64::MAX,
                other => other,
            },
            Kind::Process => match value {
                0 => 0,
                1 => std::process::id().into(),
                _ => u32::MAX.into(),
            },
            Kind::Cgroup => match value {
                0 => self.cgroup as u64,
                1 => u64::MAX,
                other => other,
            },
            Kind::Engine => {
                let none = EngineId {
                    low: value,
                    high: 0,
                };
                let engine = ENGINES.get(value as usize).unwrap_or(&none);
                to[..8].copy_from_slice(&engine.low.to_le_bytes());
                to[8..].copy_from_slice(&engine.high.to_le_bytes());
                return;
            }
        };
        let width = to.len();
        to.copy_from_slice(&meant.to_le_bytes()[..width]);
    }

    /// Returns an address for a pointer. Memory is filled with registers and values made of the
    /// seed.
    fn pointer(&self, seed: u64) -> u64 {
        let address = self.memory as u64;
        match seed {
            0..256 => {
                for n in 0..2 * PAGE as u64 / 16 {
                    let mixed = (seed * 512 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    // Mostly registers that engines have. The value is 0 where results are
                    // declared.
                    let offset = if seed % 16 == 15 {
                        mixed >> 52
                    } else {
                        0x30 + n % 16 * 8
                    };
                    // The card's checker mistakes a TAG that changes on a slot for a write of
                    // another tenant's register.
                    let value = if seed == 0 || offset == u64::from(REG_TAG) {
                        0
                    } else {
                        mixed >> (mixed & 63)
                    };
                    // SAFETY: The entry lies in the two writable pages.
                    unsafe {
                        let entry = self.memory.add(2 * n as usize);
                        entry.write(offset);
                        entry.add(1).write(value);
                    }
                }
                address
            }
            // Addresses whose end is read-only or unmapped.
            256 => address + 2 * PAGE as u64 - 16,
            257 => address + 3 * PAGE as u64 - 16,
            258 => address + 3 * PAGE as u64,
            u64::MAX => 0,
            other => other,
        }
    }
}

/// Maximum number of addresses of a run.
const ENTRIES: usize = 1 << 16;
// KCOV_INIT_TRACE, KCOV_ENABLE and KCOV_TRACE_PC of linux/kcov.h.
const INIT_TRACE: libc::c_ulong = 0x8008_6301;
const ENABLE: libc::c_ulong = 0x6364;
const TRACE_PC: libc::c_ulong = 0;

/// The coverage of the thread that made the value.
struct Kcov {
    _file: File,
    /// The number of entries, then the entries.
    words: *const AtomicU64,
}

impl Kcov {
    /// Traces the calling thread from now on.
    fn of_this_thread() -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/sys/kernel/debug/kcov")?;
        let fd = file.as_raw_fd();
        // SAFETY: The argument is a number.
        let made = unsafe { libc::ioctl(fd, INIT_TRACE as _, ENTRIES) };
        ensure!(made == 0, "KCOV_INIT_TRACE: {}", io::Error::last_os_error());
        // SAFETY: A new mapping of the size that INIT_TRACE has set.
        let words = unsafe {
            libc::mmap(
                ptr::null_mut(),
                ENTRIES * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        ensure!(
            words != libc::MAP_FAILED,
            "kcov: {}",
            io::Error::last_os_error()
        );
        // SAFETY: The argument is a number.
        let enabled = unsafe { libc::ioctl(fd, ENABLE as _, TRACE_PC) };
        ensure!(enabled == 0, "KCOV_ENABLE: {}", io::Error::last_os_error());
        Ok(Self {
            _file: file,
            words: words.cast(),
        })
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        assert!(n < ENTRIES);
        // SAFETY: The index lies within the mapping, which stays until the process ends.
        unsafe { &*self.words.add(n) }
    }

    /// Clears the reached addresses.
    fn clear(&self) {
        self.word(0).store(0, Ordering::Relaxed);
    }

    /// Returns the reached addresses.
    fn reached(&self) -> impl Iterator<Item = u64> + '_ {
        let count = (self.word(0).load(Ordering::Relaxed) as usize).min(ENTRIES - 1);
        (1..=count).map(|n| self.word(n).load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, os::fd::IntoRawFd, os::unix::net::UnixStream};

    #[test]
    fn threads_that_open_the_same_file_lose_no_descriptor() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let shared = Shared::default();
        shared.files[0].store(-1, Ordering::Relaxed);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let theirs = theirs.try_clone().unwrap();
                let shared = &shared;
                scope.spawn(move || {
                    for _ in 0..50_000 {
                        shared.put_file(0, theirs.try_clone().unwrap().into_raw_fd());
                    }
                });
            }
        });
        shared.close(0);
        drop(theirs);
        ours.set_nonblocking(true).unwrap();
        assert_eq!(ours.read(&mut [0]).unwrap(), 0, "a descriptor is open");
    }
}
