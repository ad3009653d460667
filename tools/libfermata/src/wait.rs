// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits by `poll()`, which waits for a file that is `O_NONBLOCK`, too.

use crate::{Error, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Calls `look`, which does not wait, whenever `file` tells that the job is done or held, until
/// `look` returns anything but [`Error::Again`] or [`Error::TimedOut`].
///
/// # Errors
///
/// [`Error::TimedOut`]: not within `limit`; those of `look`.
pub(crate) fn until_ready<T>(
    file: &impl AsFd,
    limit: Option<Duration>,
    look: impl Fn() -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        match look() {
            Err(Error::Again | Error::TimedOut) => {}
            done => return done,
        }
        let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
        if left == Some(Duration::ZERO) {
            return Err(Error::TimedOut);
        }
        // A limit beyond what a `Timespec` holds is none.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled = [PollFd::new(file, PollFlags::IN | PollFlags::PRI)];
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::from_errno(error.raw_os_error())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    /// Reads a byte of a stream that is not to block.
    fn look(stream: &UnixStream) -> Result<u8> {
        let mut byte = [0];
        let mut stream = stream;
        let read = stream.read_exact(&mut byte);
        read.map_err(|error| Error::from_io(&error))?;
        Ok(byte[0])
    }

    #[test]
    fn a_file_that_does_not_block_is_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let limit = Duration::from_millis(20);
        let looked = until_ready(&ours, Some(limit), || look(&ours));
        assert_eq!(looked, Err(Error::TimedOut));
        let writer = std::thread::spawn(move || {
            std::thread::sleep(limit);
            theirs.write_all(&[7]).unwrap();
            theirs
        });
        assert_eq!(until_ready(&ours, None, || look(&ours)), Ok(7));
        writer.join().unwrap();
    }
}
