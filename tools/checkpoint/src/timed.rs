// SPDX-License-Identifier: GPL-2.0-or-later
//! A stream whose reads and writes have a limit: a socket, or a device such as a virtio-serial port,
//! which has no timeouts of its own.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::io::Errno;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The file of a stream, and the limit of each read and write; `None`: there is none.
#[derive(Clone, Copy)]
pub(crate) struct Timed<'a> {
    file: BorrowedFd<'a>,
    limit: Option<Duration>,
}

impl<'a> Timed<'a> {
    /// Makes the file of `stream` `O_NONBLOCK`.
    pub(crate) fn new(stream: &'a impl AsFd, limit: Option<Duration>) -> Result<Self> {
        let file = stream.as_fd();
        fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?;
        Ok(Self { file, limit })
    }

    /// Returns the same stream without a limit.
    pub(crate) fn without_limit(self) -> Self {
        Self {
            limit: None,
            ..self
        }
    }

    /// Waits until the stream has one of `events`.
    fn wait(&self, events: PollFlags) -> Result<()> {
        let limit = self.limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut polled = [PollFd::new(&self.file, events)];
        match poll(&mut polled, limit.as_ref()) {
            Ok(0) => {
                let seconds = self.limit.unwrap_or_default().as_secs();
                let text = format!("the other end has been silent for {seconds} s");
                Err(Error::new(ErrorKind::TimedOut, text))
            }
            // A device whose other end is closed takes nothing.
            Ok(_) if !polled[0].revents().intersects(events) => Err(Errno::PIPE.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a call that does not wait, again whenever the stream has one of `events`.
    fn retry(
        &self,
        events: PollFlags,
        mut call: impl FnMut() -> rustix::io::Result<usize>,
    ) -> Result<usize> {
        loop {
            match call() {
                Err(Errno::AGAIN) => self.wait(events)?,
                done => return Ok(done?),
            }
        }
    }
}

impl Read for &Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.retry(PollFlags::IN, || rustix::io::read(self.file, &mut *buffer))
    }
}

impl Write for &Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.retry(PollFlags::OUT, || rustix::io::write(self.file, bytes))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_silent_peer_is_given_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let limited = Timed::new(&ours, Some(Duration::from_millis(10))).unwrap();
        let read = (&limited).read(&mut [0; 8]);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
        let written = (&limited).write_all(&vec![0; 16 << 20]);
        assert_eq!(written.unwrap_err().kind(), ErrorKind::TimedOut);

        let unlimited = limited.without_limit();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            theirs.write_all(b"late").unwrap();
        });
        let mut heard = [0; 4];
        (&unlimited).read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"late");
        writer.join().unwrap();
    }
}
