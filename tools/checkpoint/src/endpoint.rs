// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a job goes to or comes from.

use anyhow::{bail, Context as _, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::fs::{File, OpenOptions};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// How often a device is looked at whose other end is not there yet.
const LOOK: Duration = Duration::from_millis(50);

/// One end of a stream of bytes.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    /// HOST:PORT. Who can listen in can read the job, and who can connect can send one: for
    /// networks that are trusted, or through a tunnel.
    Tcp(String),
    /// A UNIX socket.
    Unix(PathBuf),
    /// A device that is a stream, such as a virtio-serial port.
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
    /// Connects to who waits there.
    pub(crate) fn connect(&self) -> Result<File> {
        let connected = || -> std::io::Result<File> {
            Ok(match self {
                Self::Tcp(address) => of(TcpStream::connect(address)?),
                Self::Unix(path) => of(UnixStream::connect(path)?),
                Self::Device(path) => open(path)?,
            })
        };
        connected().with_context(|| format!("{self:?}"))
    }

    /// Waits for one to connect.
    pub(crate) fn accept(&self) -> Result<File> {
        let accepted = || -> std::io::Result<File> {
            Ok(match self {
                Self::Tcp(address) => of(TcpListener::bind(address)?.accept()?.0),
                Self::Unix(path) => {
                    let (stream, _) = UnixListener::bind(path)?.accept()?;
                    std::fs::remove_file(path)?;
                    of(stream)
                }
                Self::Device(path) => open(path)?,
            })
        };
        accepted().with_context(|| format!("{self:?}"))
    }
}

/// Any stream is read and written as a file is.
fn of(stream: impl Into<OwnedFd>) -> File {
    File::from(stream.into())
}

/// Opens a device, and waits until somebody is at its other end.
fn open(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    loop {
        let mut polled = [PollFd::new(&file, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default()))?;
        if !polled[0].revents().contains(PollFlags::HUP) {
            return Ok(file);
        }
        std::thread::sleep(LOOK);
    }
}
