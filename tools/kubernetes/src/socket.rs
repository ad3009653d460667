// SPDX-License-Identifier: GPL-2.0-or-later
//! Sockets of a service for the kubelet.

use crate::authority;
use anyhow::{bail, Context as _, Result};
use rustix::fs::Mode;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{signal, SignalKind};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};

/// Makes sockets and files of the program root's only.
pub(crate) fn for_root_only() {
    rustix::process::umask(Mode::from_raw_mode(0o077));
}

/// Listens at a socket, in place of one that a former program has left.
pub(crate) fn listen(path: &Path) -> Result<impl Stream<Item = io::Result<UnixStream>>> {
    let name = || path.display().to_string();
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => bail!("{}: not a socket: remove it", name()),
        Ok(_) => fs::remove_file(path).with_context(name)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(name),
    }
    let listener = UnixListener::bind(path).with_context(name)?;
    Ok(UnixListenerStream::new(listener).map(|client| authority::corrected(client?)))
}

/// Waits for a signal that ends the program.
pub(crate) async fn signal_comes() -> Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = term.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(listen(&path).unwrap());
        drop(listen(&path).unwrap());
        let file = folder.path().join("file");
        fs::write(&file, "kept").unwrap();
        assert!(listen(&file).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        assert!(listen(&folder.path().join("none/socket")).is_err());
    }
}
