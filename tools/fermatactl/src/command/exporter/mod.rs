// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl exporter`: metrics for Prometheus (docs/metrics.md).
//!
//! [`http`] takes requests, [`cards`] reads cards and [`groups`] names their tenants, [`pages`] has
//! the metrics, and [`metrics`] the format of the text. Nothing is read unless somebody asks.

mod cards;
mod groups;
mod http;
mod metrics;
mod pages;

use crate::trouble::{Result, Trouble};
use cards::Card;
use http::{Answer, Listener};
use metrics::Format;
use rustix::fs::Mode;
use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

const CLASS: &str = "/sys/class/fermata";
const CGROUPS: &str = "/sys/fs/cgroup";

/// Serve metrics of all cards for Prometheus
///
/// GET /metrics answers in OpenMetrics, or in the older text format to those who do not ask for
/// OpenMetrics. The figures are those of all tenants: it takes the group fermata-monitor, and no
/// capability, to read them.
#[derive(Debug, clap::Args)]
pub(crate) struct Exporter {
    /// Listen on this socket, to which the user and the group of the exporter may connect
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/fermata/exporter.sock"
    )]
    socket: PathBuf,
    /// Listen on this loopback address instead: every user of the machine may connect
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = loopback, conflicts_with = "socket")]
    listen: Option<SocketAddr>,
}

/// Parses an address of the loopback interface.
fn loopback(text: &str) -> std::result::Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| "give an address and a port, such as 127.0.0.1:9839")?;
    if !address.ip().is_loopback() {
        return Err(
            "give a loopback address, such as 127.0.0.1:9839: for other machines put a proxy \
             before it that asks who they are"
                .into(),
        );
    }
    Ok(address)
}

impl Exporter {
    pub(crate) fn run(&self) -> Result<()> {
        let listener = match self.listen {
            Some(address) => {
                let socket = TcpListener::bind(address);
                Listener::Tcp(socket.map_err(|error| refused(address, &error))?)
            }
            None => Listener::Unix(bind(&self.socket)?),
        };
        let collector = Mutex::new(Collector::default());
        let answer: Arc<Answer> = Arc::new(move |format| {
            // Readers take turns. What a reader that has panicked has seen holds all the same.
            let mut collector = collector.lock().unwrap_or_else(PoisonError::into_inner);
            collector.page(format)
        });
        // Only systemd wants to know.
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
        listener.serve(&answer)
    }
}

/// Listens on a socket that the user and the group of the process may connect to. A socket that
/// nobody listens on is replaced.
fn bind(path: &Path) -> Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        return Err(Trouble::new(
            format!("{}: another exporter serves it", path.display()),
            "end that one, or name another socket by --socket",
        ));
    }
    if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        fs::remove_file(path).map_err(|error| Trouble::of_file(path, &error))?;
    }
    // The mode is 0660 from the beginning.
    let before = rustix::process::umask(Mode::RWXO | Mode::XUSR | Mode::XGRP);
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    bound.map_err(|error| Trouble::of_file(path, &error))
}

fn refused(address: SocketAddr, error: &std::io::Error) -> Trouble {
    Trouble::new(
        format!("{address}: {error}"),
        "`ss -lt` shows who listens: end that one, or give another port",
    )
}

/// Reads cards.
#[derive(Default)]
struct Collector {
    /// Numbers of the cards that were there at some time.
    seen: BTreeSet<u32>,
}

impl Collector {
    /// Returns the metrics of now.
    fn page(&mut self, format: Format) -> String {
        let entries = fs::read_dir(CLASS).into_iter().flatten().flatten();
        self.seen
            .extend(entries.filter_map(|entry| fermata::card_number(&entry.file_name())));
        let folders = self.seen.iter().map(|number| format!("fermata{number}"));
        let cards: Vec<(String, Option<Card>)> = folders
            .map(|name| {
                let card = Card::read(&Path::new(CLASS).join(&name));
                (name, card)
            })
            .collect();
        let numbers = cards.iter().flat_map(|(_, card)| card);
        let numbers = numbers.flat_map(|card| card.groups.keys().copied());
        let paths = groups::paths(Path::new(CGROUPS), numbers.collect());
        pages::write(format, &cards, &paths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_loopback_addresses_are_taken() {
        for text in ["127.0.0.1:9839", "127.9.9.9:1", "[::1]:9839"] {
            assert!(loopback(text).is_ok(), "{text}");
        }
        for text in [
            "0.0.0.0:9839",
            "[::]:9839",
            "192.0.2.1:9839",
            "127.0.0.1",
            "localhost:1",
        ] {
            assert!(loopback(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_socket_is_replaced_and_another_file_is_not() {
        let path = std::env::temp_dir().join(format!("fermatactl-socket-{}", std::process::id()));
        let first = bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        assert!(bind(&path).is_err());
        drop(first);
        drop(bind(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "text").unwrap();
        assert!(bind(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        fs::remove_file(&path).unwrap();
    }
}
