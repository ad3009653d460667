// SPDX-License-Identifier: GPL-2.0-or-later
//! Output of the program. The program writes to a pipe, because a file that Slurm writes to as well
//! would not be as it was when the program is restored.

use anyhow::Result;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{fcntl_setfl, fstat, OFlags};
use rustix::io::{retry_on_intr, Errno};
use rustix::pipe::{pipe_with, PipeFlags};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

/// A pipe that is copied to an output of the wrapper.
pub(crate) struct Output {
    stop: OwnedFd,
    thread: JoinHandle<()>,
}

impl Output {
    /// Returns the copying thread, and the end of the pipe for the program.
    pub(crate) fn start(to: impl Write + Send + 'static) -> Result<(Self, OwnedFd)> {
        let (from, program) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&from, OFlags::NONBLOCK)?;
        let thread = std::thread::spawn(move || {
            // The reader is dropped then: the program is told by SIGPIPE, as it would be by a pipe.
            if let Err(error) = copy(&from, &stopped, to) {
                eprintln!("fermata-slurm: output: {error}");
            }
        });
        Ok((Self { stop, thread }, program))
    }

    /// Copies what is in the pipe, and ends, also while a process has the pipe still.
    pub(crate) fn finish(self) {
        drop(self.stop);
        // A panic was reported by its thread.
        let _ = self.thread.join();
    }
}

/// Returns the name by which CRIU knows a pipe.
pub(crate) fn name_of(pipe: &OwnedFd) -> Result<String> {
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
                // The thread handles signals of the process, too.
                retry_on_intr(|| poll(&mut both, None))?;
                ends = !both[1].revents().is_empty();
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
