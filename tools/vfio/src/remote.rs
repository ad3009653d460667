// SPDX-License-Identifier: GPL-2.0-or-later
//! The commands that send a request to a daemon's control socket.

use crate::control::{line, SILENCE};
use anyhow::{bail, Context as _, Result};
use clap::Args;
use fermata_checkpoint::container::{Kind, Reader};
use fermata_checkpoint::store;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a daemon may take to answer: the daemon waits until jobs are held.
const PATIENCE: Duration = Duration::from_secs(90);

/// A daemon.
#[derive(Args)]
pub(crate) struct Daemon {
    /// The control socket of the daemon
    #[arg(long, value_name = "SOCKET")]
    control: PathBuf,
}

/// A daemon and a file.
#[derive(Args)]
pub(crate) struct Transfer {
    #[command(flatten)]
    daemon: Daemon,
    /// The file; - for standard output or input
    file: PathBuf,
}

impl Daemon {
    /// Sends a request.
    fn ask(&self, request: &str) -> Result<UnixStream> {
        let connected = UnixStream::connect(&self.control);
        let mut stream = connected.with_context(|| self.control.display().to_string())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        stream.write_all(request.as_bytes())?;
        Ok(stream)
    }

    /// `fermata-vfio continue`
    pub(crate) fn go_on(&self) -> Result<()> {
        let stream = self.ask("continue\n")?;
        confirmed(&mut BufReader::new(&stream))
    }
}

impl Transfer {
    /// `fermata-vfio save`
    pub(crate) fn save(&self) -> Result<()> {
        let stream = self.daemon.ask("save\n")?;
        let mut from = BufReader::new(&stream);
        confirmed(&mut from)?;
        if self.is_standard() {
            let mut to = std::io::stdout().lock();
            copy(&mut from, &mut to)?;
            to.flush()?;
        } else {
            let stored = store(&self.file, |to| copy(&mut from, to));
            stored.with_context(|| self.file.display().to_string())?;
        }
        // A daemon that has given up says so.
        let _ = (&stream).write_all(b"stored\n");
        match line(&mut from).as_deref() {
            Ok("ok") => Ok(()),
            Ok(error) => {
                if !self.is_standard() {
                    let _ = std::fs::remove_file(&self.file);
                }
                bail!("the card goes on, and the file is void: {error}")
            }
            Err(_) => bail!(
                "the daemon does not confirm: run fermata-vfio continue before the file is \
                 discarded; load the file only if the daemon is gone"
            ),
        }
    }

    /// `fermata-vfio load`
    pub(crate) fn load(&self) -> Result<()> {
        let file: Box<dyn Read> = if self.is_standard() {
            // The daemon waits for the state, but not as long as a pipe may.
            let mut input = std::io::stdin().lock();
            input.fill_buf()?;
            Box::new(input)
        } else {
            let file = File::open(&self.file);
            Box::new(file.with_context(|| self.file.display().to_string())?)
        };
        let mut stream = self.daemon.ask("load\n")?;
        // A daemon that refuses the state may not read all of it.
        let sent = copy(BufReader::new(file), &mut stream);
        let _ = stream.shutdown(Shutdown::Write);
        confirmed(&mut BufReader::new(&stream))?;
        sent.with_context(|| self.file.display().to_string())
    }

    fn is_standard(&self) -> bool {
        self.file == Path::new("-")
    }
}

/// Copies a checkpoint to its end, and verifies its checksums.
fn copy(from: impl Read, to: impl Write) -> Result<()> {
    let mut reader = Reader::new(Tee { from, to })?;
    while reader.section()?.kind != Kind::End {}
    Ok(())
}

/// A reader that writes all that is read.
struct Tee<R, W> {
    from: R,
    to: W,
}

impl<R: Read, W: Write> Read for Tee<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.from.read(buffer)?;
        self.to.write_all(&buffer[..length])?;
        Ok(length)
    }
}

/// Reads the daemon's answer. `Err`: the reason why the request failed.
fn confirmed(from: &mut BufReader<&UnixStream>) -> Result<()> {
    match line(from)?.as_str() {
        "ok" => Ok(()),
        answer => bail!("{}", answer.strip_prefix("error: ").unwrap_or(answer)),
    }
}
