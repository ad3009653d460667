// SPDX-License-Identifier: GPL-2.0-or-later
//! The ends of a stream that a job is moved through.

use anyhow::{bail, Context as _, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::fs::{File, OpenOptions};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Poll interval for a device whose other end is not open.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// One end of a stream of bytes.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    /// HOST:PORT, for trusted networks or through a tunnel: whoever reads the stream can read the
    /// job, and whoever connects can send a job.
    Tcp(String),
    /// A UNIX socket.
    Unix(PathBuf),
    /// A device with a stream of bytes, such as a virtio-serial port.
    Device(PathBuf),
}

impl FromStr for Endpoint {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("tcp", address)) => Ok(Self::Tcp(address.into())),
            Some(("unix", path)) => Ok(Self::Unix(path.into())),
            None if text.starts_with('/') => Ok(Self::Device(text.into())),
            _ => bail!("{text}: tcp:HOST:PORT, unix:PATH or the path of a device is expected"),
        }
    }
}

impl Endpoint {
    /// Connects to the other end.
    pub(crate) fn connect(&self) -> Result<File> {
        let connected = || -> std::io::Result<File> {
            Ok(match self {
                Self::Tcp(address) => as_file(TcpStream::connect(address)?),
                Self::Unix(path) => as_file(UnixStream::connect(path)?),
                Self::Device(path) => open(path)?,
            })
        };
        connected().with_context(|| format!("{self:?}"))
    }

    /// Waits for the other end to connect.
    pub(crate) fn accept(&self) -> Result<File> {
        let accepted = || -> std::io::Result<File> {
            Ok(match self {
                Self::Tcp(address) => as_file(TcpListener::bind(address)?.accept()?.0),
                Self::Unix(path) => {
                    let (stream, _) = UnixListener::bind(path)?.accept()?;
                    std::fs::remove_file(path)?;
                    as_file(stream)
                }
                Self::Device(path) => open(path)?,
            })
        };
        accepted().with_context(|| format!("{self:?}"))
    }
}

/// Returns a stream as a file.
fn as_file(stream: impl Into<OwnedFd>) -> File {
    File::from(stream.into())
}

/// Opens a device, and waits until its other end is open.
fn open(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    loop {
        let mut polled = [PollFd::new(&file, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default()))?;
        if !polled[0].revents().contains(PollFlags::HUP) {
            return Ok(file);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
