// SPDX-License-Identifier: GPL-2.0

//! The C functions that the types call: `irq_work`, wait queues, eventfds and RCU, with the
//! guarantees that they give. A thread of loom is a task and a CPU.

#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    reason = "the names are those of C"
)]

use super::sync::{allocate, free, Life};
use loom::{
    sync::{
        atomic::{fence, AtomicU32, Ordering},
        Condvar, Mutex, RwLock, RwLockReadGuard,
    },
    thread,
};
use std::{
    cell::{Cell, RefCell},
    ffi::{c_int, c_long, c_void},
    mem, ptr,
};

pub const TASK_NORMAL: u32 = 3;
pub const TASK_INTERRUPTIBLE: u32 = 1;
pub const TASK_UNINTERRUPTIBLE: u32 = 2;
pub const hrtimer_mode_HRTIMER_MODE_ABS: u32 = 0;

const PENDING: u32 = 1;
const BUSY: u32 = 2;

/// As in kernel/irq_work.c; the end of a handler may be hidden by that of another, too.
pub struct irq_work {
    life: Life,
    flags: AtomicU32,
    function: unsafe extern "C" fn(*mut irq_work),
    waiting: Mutex<()>,
    idle: Condvar,
}

impl irq_work {
    pub fn new(function: unsafe extern "C" fn(*mut irq_work)) -> Self {
        Self {
            life: Life::new(),
            flags: AtomicU32::new(0),
            function,
            waiting: Mutex::new(()),
            idle: Condvar::new(),
        }
    }
}

loom::thread_local! {
    /// What is queued on this CPU.
    static RAISED: RefCell<Vec<*mut irq_work>> = RefCell::new(Vec::new());
    /// The wait queue that this task is on, and its entry.
    static ASLEEP_ON: Cell<(*mut wait_queue_head, *mut wait_queue_entry)> = Cell::new((ptr::null_mut(), ptr::null_mut()));
    /// How often this CPU is a reader, and its lock as a reader.
    static READER: RefCell<(usize, Option<RwLockReadGuard<'static, ()>>)> = RefCell::new((0, None));
}

loom::lazy_static! {
    static ref RCU: RwLock<()> = RwLock::new(());
}

pub unsafe fn irq_work_queue(work: *mut irq_work) -> bool {
    // SAFETY: The memory exists until the next interleaving; `life` tells whether it is in use.
    let this = unsafe { &*work };
    this.life.check();
    if this.flags.fetch_or(PENDING | BUSY, Ordering::SeqCst) & PENDING != 0 {
        return false;
    }
    RAISED.with(|raised| raised.borrow_mut().push(work));
    true
}

/// Runs the work that is queued on this CPU: its interrupts are on or, on PREEMPT_RT, its
/// `irq_work` thread runs.
pub fn run_irq_work() {
    for work in RAISED.with(|raised| mem::take(&mut *raised.borrow_mut())) {
        unsafe { rcu_read_lock() };
        // SAFETY: As above.
        let this = unsafe { &*work };
        this.life.check();
        let flags = this.flags.fetch_and(!PENDING, Ordering::SeqCst) & !PENDING;
        fence(Ordering::SeqCst);
        // SAFETY: It is queued, so it exists.
        unsafe { (this.function)(work) };
        this.life.check();
        let _ =
            this.flags
                .compare_exchange(flags, flags & !BUSY, Ordering::SeqCst, Ordering::Relaxed);
        this.life.check();
        drop(this.waiting.lock().unwrap());
        this.idle.notify_all();
        unsafe { rcu_read_unlock() };
    }
}

pub unsafe fn irq_work_sync(work: *mut irq_work) {
    // SAFETY: As above.
    let this = unsafe { &*work };
    this.life.check();
    // A task that sleeps leaves the CPU to the thread that runs the work.
    run_irq_work();
    let mut waiting = this.waiting.lock().unwrap();
    while this.flags.load(Ordering::Acquire) & BUSY != 0 {
        waiting = this.idle.wait(waiting).unwrap();
    }
}

/// A CPU is a reader until its outermost unlock.
pub unsafe fn rcu_read_lock() {
    READER.with(|reader| {
        let (depth, guard) = &mut *reader.borrow_mut();
        if *depth == 0 {
            *guard = Some(RCU.read().unwrap());
        }
        *depth += 1;
    });
}

pub unsafe fn rcu_read_unlock() {
    READER.with(|reader| {
        let (depth, guard) = &mut *reader.borrow_mut();
        *depth -= 1;
        if *depth == 0 {
            *guard = None;
        }
    });
}

pub unsafe fn synchronize_rcu() {
    drop(RCU.write().unwrap());
}

/// Tasks that sleep, and tasks that have been woken.
pub struct wait_queue_head {
    life: Life,
    entries: Mutex<Vec<*mut wait_queue_entry>>,
    woken: Condvar,
}

#[derive(Default)]
pub struct wait_queue_entry {
    /// Protected by the lock of the queue.
    queued: Cell<bool>,
}

impl wait_queue_head {
    pub fn new() -> Self {
        Self {
            life: Life::new(),
            entries: Mutex::new(Vec::new()),
            woken: Condvar::new(),
        }
    }
}

pub unsafe fn __wake_up(queue: *mut wait_queue_head, _: u32, _: c_int, _: *mut c_void) -> c_int {
    // SAFETY: As above.
    let this = unsafe { &*queue };
    this.life.check();
    for entry in this.entries.lock().unwrap().drain(..) {
        // SAFETY: The task that sleeps there removes its entry first.
        unsafe { (*entry).queued.set(false) };
    }
    this.woken.notify_all();
    this.life.check();
    0
}

pub unsafe fn init_wait_entry(entry: *mut wait_queue_entry, _: c_int) {
    // SAFETY: It is valid for writes.
    unsafe { entry.write(wait_queue_entry::default()) };
}

pub unsafe fn prepare_to_wait_event(
    queue: *mut wait_queue_head,
    entry: *mut wait_queue_entry,
    _: c_int,
) -> c_long {
    // SAFETY: As above; the lock protects `entry`.
    let (this, entry) = unsafe { (&*queue, &*entry) };
    this.life.check();
    let mut entries = this.entries.lock().unwrap();
    if !entry.queued.replace(true) {
        entries.push(ptr::from_ref(entry).cast_mut());
    }
    ASLEEP_ON.with(|asleep| asleep.set((queue, ptr::from_ref(entry).cast_mut())));
    0
}

pub unsafe fn schedule() {
    let (queue, entry) = ASLEEP_ON.with(Cell::get);
    // SAFETY: The caller is on `queue`, by `entry`.
    let this = unsafe { &*queue };
    this.life.check();
    let mut entries = this.entries.lock().unwrap();
    // SAFETY: As above.
    while unsafe { (*entry).queued.get() } {
        entries = this.woken.wait(entries).unwrap();
    }
}

/// Times out at once.
pub unsafe fn schedule_hrtimeout_range(_: *mut i64, _: u64, _: u32) -> c_int {
    thread::yield_now();
    0
}

pub unsafe fn finish_wait(queue: *mut wait_queue_head, entry: *mut wait_queue_entry) {
    // SAFETY: As above. A task whose entry was removed does not lock: no wake-up follows.
    unsafe {
        if (*entry).queued.get() {
            (*queue).life.check();
            (*queue)
                .entries
                .lock()
                .unwrap()
                .retain(|&other| other != entry);
        }
    }
}

/// A reference of an eventfd, known by its descriptor.
pub struct eventfd_ctx {
    life: Life,
    fd: i32,
}

loom::lazy_static! {
    /// How often each was signalled.
    static ref SIGNALS: [AtomicU32; 2] = Default::default();
}

pub unsafe fn eventfd_ctx_fdget(fd: c_int) -> *mut eventfd_ctx {
    allocate(eventfd_ctx {
        life: Life::new(),
        fd,
    })
}

pub unsafe fn eventfd_ctx_put(eventfd: *mut eventfd_ctx) {
    // SAFETY: It comes from `eventfd_ctx_fdget`.
    unsafe { free(eventfd) };
}

pub unsafe fn eventfd_signal_mask(eventfd: *mut eventfd_ctx, _: u32) {
    // SAFETY: The memory exists until the next interleaving.
    let this = unsafe { &*eventfd };
    this.life.check();
    SIGNALS[this.fd as usize].fetch_add(1, Ordering::Relaxed);
    this.life.check();
}

/// Returns how often eventfd `fd` was signalled since the last call.
pub fn take_signals(fd: i32) -> u32 {
    SIGNALS[fd as usize].swap(0, Ordering::Relaxed)
}
