// SPDX-License-Identifier: MIT OR Apache-2.0
//! Job queues.

use crate::arena::{check_mapped, Arena};
use fermata::queue::{Operation, SharedQueue};
use fermata::{uapi, Error};
use pyo3::exceptions::{PyBlockingIOError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A job queue in an arena, for one job of a queue engine. Its jobs take no call to the driver.
///
/// Queue(arena, offset, entries) is made before context.write_registers(queue.registers) and
/// context.start(). The bytes from offset, a multiple of 64, are zeroed, and belong to the queue
/// and the engine until the job has ended. entries is a power of two, 2 to 65536. ValueError:
/// entries or offset is not allowed, or the queue does not fit into the arena. Addresses are the
/// engine's: they begin at arena.base. Methods that post a job return its number in the queue.
/// BlockingIOError: the queue is full. As with the arena, an access to the queue after the card is
/// gone ends the program by SIGBUS.
#[pyclass(frozen, module = "fermata")]
pub(crate) struct Queue {
    inner: Mutex<SharedQueue>,
    arena: Arc<fermata::Arena>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, SharedQueue> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the queue, unless its memory belongs to the parent of this process.
    fn mapped(&self) -> PyResult<MutexGuard<'_, SharedQueue>> {
        check_mapped(&self.arena).map(|()| self.lock())
    }

    fn post(&self, operation: Operation, tag: u64) -> PyResult<u64> {
        let posted = self.mapped()?.push(operation, tag);
        posted.ok_or_else(|| {
            PyBlockingIOError::new_err((Error::Again.errno(), "the queue is full: reap jobs first"))
        })
    }
}

#[pymethods]
impl Queue {
    #[new]
    fn new(arena: &Arena, offset: usize, entries: usize) -> PyResult<Self> {
        let arena = arena.mapped()?;
        let made = SharedQueue::shared(arena.clone(), offset, entries);
        let inner = made.map_err(|_| {
            PyValueError::new_err(format!(
                "{entries} entries at offset {offset}: entries is a power of two from 2 to 65536, offset a multiple of 64, and the queue \
                 lies within the arena"
            ))
        })?;
        Ok(Self {
            inner: Mutex::new(inner),
            arena,
        })
    }

    /// The register for the number of complete jobs at which the engine reports Event.COMPLETED
    /// while it runs. With 0 it reports jobs only when it leaves its slot.
    #[classattr]
    const COALESCE_COUNT: u32 = uapi::QUEUE_REG_COALESCE_COUNT;

    /// The register for the time in microseconds after which the engine reports fewer jobs; 0: at
    /// once.
    #[classattr]
    const COALESCE_US: u32 = uapi::QUEUE_REG_COALESCE_US;

    /// Returns how many bytes a queue with this many entries takes. One entry always stays free.
    #[staticmethod]
    fn length(entries: u32) -> usize {
        fermata::queue::Queue::bytes(entries as usize)
    }

    /// The registers that tell the engine where the queue is, for write_registers(): pairs of offset and value.
    #[getter]
    fn registers(&self) -> Vec<(u32, u64)> {
        self.lock().registers().into()
    }

    /// Posts a copy of length bytes, in pieces of 64 from the beginning.
    #[pyo3(signature = (src, dst, length, tag=0))]
    fn copy(&self, src: u64, dst: u64, length: u64, tag: u64) -> PyResult<u64> {
        self.post(Operation::Copy { src, dst, length }, tag)
    }

    /// Posts repeated writes of the eight bytes of pattern, to length bytes.
    #[pyo3(signature = (dst, length, pattern, tag=0))]
    fn fill(&self, dst: u64, length: u64, pattern: u64, tag: u64) -> PyResult<u64> {
        let fill = Operation::Fill {
            dst,
            length,
            pattern,
        };
        self.post(fill, tag)
    }

    /// Posts a hash, whose 32 bytes go to digest.
    #[pyo3(signature = (src, length, digest, tag=0))]
    fn sha256(&self, src: u64, length: u64, digest: u64, tag: u64) -> PyResult<u64> {
        let hash = Operation::Sha256 {
            src,
            length,
            digest,
        };
        self.post(hash, tag)
    }

    /// Posts a CRC-32C, which reap() returns as the result. crc: the CRC of the preceding bytes.
    #[pyo3(signature = (src, length, crc=0, tag=0))]
    fn crc32c(&self, src: u64, length: u64, crc: u32, tag: u64) -> PyResult<u64> {
        self.post(Operation::Crc32c { src, length, crc }, tag)
    }

    /// Posts the end of the engine's job, after all others.
    #[pyo3(signature = (tag=0))]
    fn end(&self, tag: u64) -> PyResult<u64> {
        self.post(Operation::End, tag)
    }

    /// Whether the engine has left its slot or is about to, so that posted jobs wait for
    /// context.ring(). ring() raises FileNotFoundError if the engine has reached the end in the
    /// meantime.
    #[getter]
    fn needs_doorbell(&self) -> PyResult<bool> {
        Ok(self.mapped()?.needs_doorbell())
    }

    /// Takes the oldest complete job out of the queue: an object with number, tag, result and
    /// error. error is 0, or EINVAL if the engine refused the job. None: no job is complete; wait
    /// for Event.COMPLETED, EMPTY or DONE.
    fn reap<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let reaped = self.mapped()?.reap();
        reaped.map(|job| crate::of_reaped(py, &job)).transpose()
    }

    /// How many jobs have completed since the queue was created, reaped or not.
    #[getter]
    fn completed(&self) -> PyResult<u64> {
        Ok(self.mapped()?.completed())
    }

    /// How many jobs are posted and not reaped.
    #[getter]
    fn outstanding(&self) -> u64 {
        self.lock().outstanding()
    }

    fn __repr__(&self) -> String {
        format!(
            "<fermata.Queue with {} jobs that are not reaped>",
            self.lock().outstanding()
        )
    }
}
