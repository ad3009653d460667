// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts: calls that let other Python threads run while they wait, and waits that signals
//! interrupt.

use crate::arena::Arena;
use fermata::{uapi, EngineId, Error, Events, Param, Process, Reservation};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd, RawFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const PAGE: usize = 4096;
/// How long closing a context waits until the engine has left memory of the program's own.
const LEAVE: Duration = Duration::from_secs(2);

/// One open file of a card: one tenant, with at most one job at a time.
///
/// Context(device) opens a card, Context.open_engine(engine) the first card that has an engine.
/// Methods raise OSError with the errno of the driver's call and a text that names the cause and
/// the remedy. TimeoutError, PermissionError and so on are OSErrors.
#[pyclass(frozen, weakref, module = "fermata")]
pub(crate) struct Context {
    opened: Mutex<Option<Arc<Opened>>>,
    name: String,
}

/// The file, which stays open until the last call that uses it returns.
struct Opened {
    context: fermata::Context,
    /// The program's own memory, if it is the arena, and the process that has made it the arena.
    memory: Mutex<Option<(PyUntypedBuffer, Process)>>,
}

impl Opened {
    fn memory(&self) -> MutexGuard<'_, Option<(PyUntypedBuffer, Process)>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the job off its slot for good. Returns whether the engine has left the memory.
    fn stop(&self) -> bool {
        matches!(self.context.hold(Some(LEAVE)), Ok(_) | Err(Error::NotReady))
    }
}

impl Drop for Opened {
    /// Python may use the program's own memory for other objects as soon as the buffer is released,
    /// so the release waits until the engine has left the memory. If the engine does not leave, the
    /// memory stays allocated. A child of `fork()` has its own mapping, and leaves the job of its
    /// parent alone.
    fn drop(&mut self) {
        let Some((memory, process)) = self.memory().take() else {
            return;
        };
        let leave = || !process.is_current() || self.stop();
        let stopped = Python::try_attach(|py| py.detach(leave));
        if stopped == Some(true) {
            drop(memory);
        } else {
            std::mem::forget(memory);
        }
    }
}

#[derive(FromPyObject)]
enum Registers {
    Map(BTreeMap<u32, u64>),
    Pairs(Vec<(u32, u64)>),
}

fn engine_of(text: &str) -> PyResult<EngineId> {
    EngineId::of(text).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn param_of(number: u32) -> PyResult<Param> {
    Param::of(number).ok_or_else(|| {
        PyValueError::new_err(format!(
            "there is no parameter {number}: give one of fermata.Param"
        ))
    })
}

/// Returns a number of seconds as a `Duration`.
fn time_of(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!("{seconds} is no time: give seconds, 0 or more"))
    })
}

impl Context {
    fn new(context: fermata::Context, name: String) -> Self {
        let opened = Opened {
            context,
            memory: Mutex::default(),
        };
        Self {
            opened: Mutex::new(Some(Arc::new(opened))),
            name,
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Opened>>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) -> PyResult<Arc<Opened>> {
        let opened = self.slot().clone();
        opened.ok_or_else(|| PyValueError::new_err(format!("{}: the context is closed", self.name)))
    }

    /// Makes a call while other Python threads run.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        what: &str,
        call: impl FnOnce(&fermata::Context) -> fermata::Result<T> + Send,
    ) -> PyResult<T> {
        let opened = self.opened()?;
        let context = &opened.context;
        let done = py.detach(|| call(context).map_err(|error| (error, context.explain(error))));
        done.map_err(|(error, why)| crate::explained_error(&self.name, what, error, &why))
    }
}

#[pymethods]
impl Context {
    #[new]
    fn open(py: Python<'_>, device: PathBuf) -> PyResult<Self> {
        let name = device.to_string_lossy().into_owned();
        match py.detach(|| fermata::Context::open(&device)) {
            Ok(context) => Ok(Self::new(context, name)),
            Err(error) => Err(crate::error_of_call(&name, "open the card", error)),
        }
    }

    /// Opens the first card that has the engine and accepts the context, and chooses the engine
    /// there. FileNotFoundError: no card has the engine.
    #[classmethod]
    fn open_engine(_class: &Bound<'_, PyType>, py: Python<'_>, engine: &str) -> PyResult<Self> {
        let wanted = engine_of(engine)?;
        let name = format!("engine {engine}");
        match py.detach(|| fermata::Context::open_engine(wanted)) {
            Ok(context) => Ok(Self::new(context, name)),
            Err(error) => Err(crate::error_of_call(
                &name,
                "open a card that has the engine",
                error,
            )),
        }
    }

    /// Closes the context. A job that has not ended is lost, unless the arena is still mapped,
    /// which keeps its memory and the job.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        // A call in another thread may still use it.
        let opened = slf.get().slot().take();
        if opened.is_some() {
            py.detach(move || drop(opened));
            py.import("fermata._aio")?.call_method1("closed", (slf,))?;
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        Self::close(slf)
    }

    fn __repr__(&self) -> String {
        let closed = if self.slot().is_some() {
            ""
        } else {
            ", closed"
        };
        format!("<fermata.Context on {}{closed}>", self.name)
    }

    /// The descriptor, for select and poll: readable when the job is done, urgent (POLLPRI) when it
    /// is held, error when the card is gone.
    fn fileno(&self) -> PyResult<RawFd> {
        Ok(self.opened()?.context.as_fd().as_raw_fd())
    }

    /// Returns the properties of the card.
    fn card_info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let info = self.call(py, "tell what the card is", fermata::Context::card_info)?;
        crate::of_card(py, &info)
    }

    /// Returns the properties and counters of a slot.
    fn slot_info<'py>(&self, py: Python<'py>, slot: u32) -> PyResult<Bound<'py, PyAny>> {
        let info = self.call(py, "tell what the slot is", |context| {
            context.slot_info(slot)
        })?;
        crate::of_slot(py, &info)
    }

    /// Returns the state and the counters of the context.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let status = self.call(
            py,
            "tell the state of the context",
            fermata::Context::status,
        )?;
        crate::of_context(py, &status)
    }

    /// Chooses the engine, by UUID or, for engines of the emulated card, by name. slot_mask: the
    /// slots that the context may use, 0 for all. Returns the number of the context.
    #[pyo3(signature = (engine, slot_mask=0))]
    fn setup(&self, py: Python<'_>, engine: &str, slot_mask: u32) -> PyResult<u32> {
        let engine = engine_of(engine)?;
        self.call(py, "choose the engine", |context| {
            context.setup(engine, slot_mask)
        })
    }

    /// Creates the arena, zeroed, of length bytes, a multiple of the page size, and maps it.
    fn create_arena(&self, py: Python<'_>, length: usize) -> PyResult<Arena> {
        let made = self.call(py, "make the arena", |context| context.create_arena(length));
        made.map(Arena::new)
    }

    /// Makes a part of the arena of another context of the card also the arena of this context, and
    /// maps it.
    fn share_arena(
        &self,
        py: Python<'_>,
        lender: &Self,
        offset: usize,
        length: usize,
    ) -> PyResult<Arena> {
        let lender = lender.opened()?;
        let shared = self.call(py, "share an arena", move |context| {
            context.share_arena(&lender.context, offset, length)
        });
        shared.map(Arena::new)
    }

    /// Makes memory of the program's own the arena: a contiguous writable buffer whose address and
    /// length are multiples of the page size, such as mmap.mmap(-1, length) and numpy arrays of it.
    /// base: its device address, by default the memory's own address. The buffer is in use until
    /// the context is closed. Returns the device address.
    #[pyo3(signature = (buffer, base=None))]
    fn use_memory(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        base: Option<u64>,
    ) -> PyResult<u64> {
        let buffer = PyUntypedBuffer::get(buffer)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the buffer is read-only, or not contiguous",
            ));
        }
        let (address, length) = (buffer.buf_ptr() as usize, buffer.len_bytes());
        if address % PAGE != 0 || length % PAGE != 0 {
            return Err(PyValueError::new_err(format!(
                "the buffer has {length} bytes at {address:#x}: both must be multiples of {PAGE}, as of mmap.mmap(-1, length)"
            )));
        }
        let base = base.unwrap_or(address as u64);
        let opened = self.opened()?;
        let made = py.detach(|| {
            let memory = NonNull::new(std::ptr::with_exposed_provenance_mut(address))
                .ok_or(Error::Invalid)?;
            // SAFETY: `Opened` keeps the buffer, and Python has no references to bytes of writable
            // buffers.
            unsafe { opened.context.use_memory(memory, length, base) }
        });
        made.map_err(|error| crate::error_of_call(&self.name, "make the buffer the arena", error))?;
        *opened.memory() = Some((buffer, Process::current()));
        Ok(base)
    }

    /// Creates the buffer for the state of preempted jobs, once, before the first job. Returns its
    /// size in bytes.
    fn create_snapshot(&self, py: Python<'_>) -> PyResult<usize> {
        self.call(
            py,
            "make the buffer for preempted state",
            fermata::Context::create_snapshot,
        )
    }

    /// Returns the state of a held job, from offset on.
    #[pyo3(signature = (offset=0, length=None))]
    fn read_snapshot<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let what = "read the state of the job";
        let limit = self
            .call(py, what, fermata::Context::status)?
            .snapshot_length;
        let rest = limit.saturating_sub(offset);
        let length = length.unwrap_or(rest);
        if length > rest {
            return Err(PyValueError::new_err(format!(
                "{offset}+{length} is beyond the buffer's {limit} bytes"
            )));
        }
        let state = self.call(py, what, move |context| {
            let mut state = vec![0; length as usize];
            context.read_snapshot(offset, &mut state).map(|()| state)
        })?;
        Ok(PyBytes::new(py, &state))
    }

    /// Writes a part of the state from which start(saved=True) resumes.
    #[pyo3(signature = (state, offset=0))]
    fn write_snapshot(&self, py: Python<'_>, state: &[u8], offset: u64) -> PyResult<()> {
        self.call(py, "bring a state in", |context| {
            context.write_snapshot(offset, state)
        })
    }

    /// Writes registers, all or none: a dict of offsets and values, or pairs. They are written
    /// again before each start of a job.
    fn write_registers(&self, py: Python<'_>, registers: Registers) -> PyResult<()> {
        let registers = match registers {
            Registers::Map(map) => map.into_iter().collect(),
            Registers::Pairs(pairs) => pairs,
        };
        self.call(py, "write registers", move |context| {
            context.write_registers(&registers)
        })
    }

    /// Returns the values of registers. BlockingIOError: the context is not on a slot, and not all
    /// of the registers are declared results.
    fn read_registers(&self, py: Python<'_>, offsets: Vec<u32>) -> PyResult<Vec<u64>> {
        self.call(py, "read registers", move |context| {
            context.read_registers(&offsets)
        })
    }

    /// Declares the registers that are read when a job ends or is preempted, 16 at most.
    fn declare_results(&self, py: Python<'_>, offsets: Vec<u32>) -> PyResult<()> {
        self.call(py, "declare results", move |context| {
            context.declare_results(&offsets)
        })
    }

    /// Starts a job and returns its number. replayable: the job may run again from its beginning if
    /// its state is lost. saved: it resumes from the state written by write_snapshot(). held: it
    /// waits for resume().
    #[pyo3(signature = (*, replayable=false, saved=false, held=false))]
    fn start(&self, py: Python<'_>, replayable: bool, saved: bool, held: bool) -> PyResult<u64> {
        let flags = [
            (replayable, uapi::START_REPLAYABLE),
            (saved, uapi::START_SAVED),
            (held, uapi::START_HELD),
        ];
        let flags = flags
            .iter()
            .filter(|(given, _)| *given)
            .fold(0, |all, (_, flag)| all | flag);
        self.call(py, "start a job", move |context| context.start_with(flags))
    }

    /// Takes the job off its slot: behind the next job that waits, or, with hold, until resume().
    /// Event.HELD reports that the job is held.
    #[pyo3(signature = (*, hold=false))]
    fn preempt(&self, py: Python<'_>, hold: bool) -> PyResult<()> {
        self.call(py, "preempt the job", move |context| context.preempt(hold))
    }

    /// Holds the job, and jobs that are started meanwhile, until the returned descriptor is closed
    /// by os.close(), or the process ends. Event.HELD reports that the job is held.
    fn hold(&self, py: Python<'_>) -> PyResult<RawFd> {
        let hold = self.call(py, "hold the job", fermata::Context::open_hold)?;
        Ok(OwnedFd::from(hold).into_raw_fd())
    }

    /// Resumes a job that preempt() holds.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, "resume the job", fermata::Context::resume)
    }

    /// Rings the doorbell: there is work in the queue of the job.
    fn ring(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, "ring the doorbell", fermata::Context::ring)
    }

    /// Waits until one of events holds, and returns those that hold. timeout: in seconds, then
    /// TimeoutError; 0: does not wait; None: forever. Signal handlers run meanwhile; Control-C ends
    /// the wait.
    #[pyo3(signature = (events=uapi::EVENT_DONE, timeout=None))]
    fn wait<'py>(
        &self,
        py: Python<'py>,
        events: u32,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let deadline = match timeout.map(time_of).transpose()? {
            None => u64::MAX,
            Some(Duration::ZERO) => 0,
            Some(limit) => fermata::deadline_in(limit),
        };
        let opened = self.opened()?;
        loop {
            match py.detach(|| {
                opened
                    .context
                    .wait_until(Events::from_bits(events), deadline)
            }) {
                Ok(happened) => return crate::member(py, "Event", happened.bits()),
                Err(Error::Interrupted) => py.check_signals()?,
                Err(error) => {
                    return Err(crate::error_of_call(&self.name, "wait for the job", error))
                }
            }
        }
    }

    /// Waits like wait(), as a coroutine: the event loop continues meanwhile, and asyncio.timeout()
    /// or a cancellation ends the wait.
    #[pyo3(signature = (events=uapi::EVENT_DONE))]
    fn wait_async<'py>(slf: &Bound<'py, Self>, events: u32) -> PyResult<Bound<'py, PyAny>> {
        let aio = slf.py().import("fermata._aio")?;
        aio.call_method1("wait", (slf, events))
    }

    /// Registers an eventfd to which 1 is added each time one of events begins to hold; -1 and 0
    /// remove it. wait_async() registers one of its own.
    fn set_eventfd(&self, py: Python<'_>, fd: RawFd, events: u32) -> PyResult<()> {
        if fd < 0 && (fd != -1 || events != 0) {
            return Err(PyValueError::new_err(format!(
                "{fd} is no descriptor: for no eventfd, give -1 and 0"
            )));
        }
        self.call(py, "set the eventfd", move |context| {
            // SAFETY: used for this call only, by the driver, which refuses anything but an
            // eventfd.
            let eventfd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) });
            context.set_eventfd(eventfd.map(|fd| (fd, Events::from_bits(events))))
        })
    }

    /// Returns if the last job has finished. JobError: it failed; FileNotFoundError: there was
    /// none; OSError with EBUSY: it has not ended.
    fn job_result(&self, py: Python<'_>) -> PyResult<()> {
        let what = "tell the result of the job";
        let status = self.call(py, what, fermata::Context::status)?;
        match crate::error_of_job(&self.name, &status) {
            Some(error) => Err(error),
            None => self.call(py, what, fermata::Context::job_result),
        }
    }

    /// Returns the value of a parameter, one of fermata.Param.
    fn param(&self, py: Python<'_>, param: u32) -> PyResult<u64> {
        let param = param_of(param)?;
        self.call(py, "tell a parameter", move |context| context.param(param))
    }

    /// Sets a parameter, one of fermata.Param.
    fn set_param(&self, py: Python<'_>, param: u32, value: u64) -> PyResult<()> {
        let param = param_of(param)?;
        self.call(py, "set a parameter", move |context| {
            context.set_param(param, value)
        })
    }

    /// Reserves time on a slot, in seconds: budget, by deadline after the beginning of each period.
    /// All three 0: drops the reservation. OSError with EBUSY: there is not enough unreserved time.
    /// PermissionError: this takes CAP_SYS_NICE.
    fn reserve(&self, py: Python<'_>, budget: f64, deadline: f64, period: f64) -> PyResult<()> {
        let reservation = Reservation {
            budget: time_of(budget)?,
            deadline: time_of(deadline)?,
            period: time_of(period)?,
        };
        let times = [reservation.budget, reservation.deadline, reservation.period];
        let is_any = times.iter().any(|time| !time.is_zero());
        self.call(py, "reserve time", move |context| {
            context.reserve(0, is_any.then_some(reservation))
        })
    }

    /// Announces that a job will be started in this many seconds, at most 10. None withdraws the
    /// announcement.
    fn hint(&self, py: Python<'_>, ahead: Option<f64>) -> PyResult<()> {
        let ahead = ahead.map(time_of).transpose()?;
        self.call(py, "announce a job", move |context| context.hint(ahead))
    }

    /// Joins the gang of the context with this number; 0: leaves the gang.
    fn join_gang(&self, py: Python<'_>, number: u32) -> PyResult<()> {
        self.call(py, "join a gang", move |context| match number {
            0 => context.leave_gang(),
            number => context.join_gang(number),
        })
    }
}
