// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl exporter`: metrics for Prometheus (docs/metrics.md).
//!
//! [`cards`] reads cards and names the tenants of their groups, [`pages`] writes the metrics.
//! Nothing is read until a client asks for it.
//!
//! The server is made for requests of one small page: HTTP/1.1, one request per connection. Clients
//! are not trusted: the size of a request, the time of a connection and the number of connections
//! are bounded.

mod cards;
mod pages;

use crate::cgroup;
use crate::trouble::{Result, Trouble};
use cards::Card;
use pages::Format;
use rustix::fs::Mode;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const CLASS: &str = "/sys/class/fermata";
/// Where the unit listens.
const SOCKET: &str = "/run/fermata/exporter.sock";

/// Serve metrics of all cards for Prometheus
///
/// GET /metrics answers in OpenMetrics, or in the older text format if the client does not ask for
/// OpenMetrics. The figures are those of all tenants: reading them takes the group fermata-monitor,
/// and no capability.
#[derive(Debug, clap::Args)]
pub(crate) struct Exporter {
    /// Listen on this socket, to which the user and the group of the exporter may connect
    #[arg(
        long,
        value_name = "PATH",
        default_value = SOCKET
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
            // Readers take turns. What a reader had seen before it panicked is still true.
            let mut collector = collector.lock().unwrap_or_else(PoisonError::into_inner);
            collector.page(format)
        });
        // Only systemd is interested, so a failure does not matter.
        let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
        listener.serve(&answer)
    }
}

/// Listens on a socket that the user and the group of the process may connect to. A socket without
/// a listener is replaced.
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
    bound.map_err(|error| match error.kind() {
        // The unit makes the folder of this path.
        io::ErrorKind::NotFound if path == Path::new(SOCKET) => Trouble::new(
            format!("{SOCKET}: {error}"),
            "fermata-exporter.service makes the folder: `systemctl start fermata-exporter.service`, \
             or serve it from here by --listen 127.0.0.1:9839 or --socket PATH",
        ),
        _ => Trouble::of_file(path, &error),
    })
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
    /// Numbers of all cards seen so far.
    seen: BTreeSet<u32>,
}

impl Collector {
    /// Returns the current metrics.
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
        let paths = cgroup::paths(&cgroup::root(), numbers.collect());
        pages::write(format, &cards, &paths)
    }
}

/// Maximum bytes of a request, and maximum number of its headers.
const REQUEST_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
/// Maximum number of connections at once. Later ones are closed.
const CONNECTIONS_MAX: usize = 16;
/// How long a client may take to send the request, and to take the answer.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the text of the metrics.
type Answer = dyn Fn(Format) -> String + Send + Sync;

/// A socket that listens.
enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Answers requests forever.
    fn serve(&self, answer: &Arc<Answer>) -> ! {
        match self {
            Self::Unix(socket) => serve(|| Ok(socket.accept()?.0), answer),
            Self::Tcp(socket) => serve(|| Ok(socket.accept()?.0), answer),
        }
    }
}

/// A connection.
trait Connection: Read + Write + Send + 'static {
    /// Sets how long the next read and the next write may take, more than 0.
    fn set_timeout(&self, time: Duration) -> io::Result<()>;
}

impl Connection for UnixStream {
    fn set_timeout(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Connection for TcpStream {
    fn set_timeout(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

fn serve<C: Connection>(mut accept: impl FnMut() -> io::Result<C>, answer: &Arc<Answer>) -> ! {
    // Each connection has a reference.
    let connections = Arc::new(());
    loop {
        let Ok(connection) = accept() else {
            // Descriptors or memory have run out for now.
            thread::sleep(PAUSE);
            continue;
        };
        if Arc::strong_count(&connections) > CONNECTIONS_MAX {
            continue;
        }
        let (counted, answer) = (connections.clone(), answer.clone());
        let work = move || {
            // The client has gone or is too slow.
            let _ = handle(connection, &*answer);
            drop(counted);
        };
        if thread::Builder::new().spawn(work).is_err() {
            thread::sleep(PAUSE);
        }
    }
}

/// Reads the request, and answers.
fn handle<C: Connection>(mut connection: C, answer: &Answer) -> io::Result<()> {
    let request = read(&mut connection)?;
    let response = match request {
        Request::Metrics(format) => response("200 OK", format.content_type(), &answer(format)),
        Request::Refused(status) => response(status, "text/plain", &format!("{status}\n")),
    };
    write(&mut connection, response.as_bytes())
}

fn response(status: &str, content_type: &str, text: &str) -> String {
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    )
}

/// A client's request.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Metrics(Format),
    /// A request that is refused with this status.
    Refused(&'static str),
}

impl Request {
    /// Returns the request; `None`: the request is not complete.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) if bytes.len() < REQUEST_MAX => return None,
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Some(Self::Refused("431 Request Header Fields Too Large"));
            }
            Err(_) => return Some(Self::Refused("400 Bad Request")),
        }
        let path = request.path.unwrap_or_default().split('?').next();
        Some(match (request.method, path) {
            (Some("GET"), Some("/metrics")) => Self::Metrics(format_for(request.headers)),
            (Some("GET"), _) => Self::Refused("404 Not Found"),
            _ => Self::Refused("405 Method Not Allowed"),
        })
    }
}

fn format_for(headers: &[httparse::Header<'_>]) -> Format {
    let mut accept = headers.iter();
    let accept = accept.find(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept = accept.and_then(|header| std::str::from_utf8(header.value).ok());
    Format::accepted(accept.unwrap_or_default())
}

/// Returns the time until `end`.
fn until(end: Instant) -> io::Result<Duration> {
    let left = end.checked_duration_since(Instant::now());
    left.filter(|left| !left.is_zero())
        .ok_or_else(|| io::ErrorKind::TimedOut.into())
}

fn read<C: Connection>(connection: &mut C) -> io::Result<Request> {
    let end = Instant::now() + TIME_MAX;
    let mut bytes = [0; REQUEST_MAX];
    let mut length = 0;
    loop {
        connection.set_timeout(until(end)?)?;
        let more = connection.read(&mut bytes[length..])?;
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        length += more;
        if let Some(request) = Request::parse(&bytes[..length]) {
            return Ok(request);
        }
    }
}

fn write<C: Connection>(connection: &mut C, mut bytes: &[u8]) -> io::Result<()> {
    let end = Instant::now() + TIME_MAX;
    while !bytes.is_empty() {
        connection.set_timeout(until(end)?)?;
        let written = connection.write(bytes)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
    }
    Ok(())
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

    #[test]
    fn requests_are_understood_or_refused() {
        let of = |text: &str| Request::parse(text.as_bytes());
        let get = "GET /metrics HTTP/1.1\r\nHost: x\r\n";
        assert_eq!(of(get), None);
        let metrics = |format| Some(Request::Metrics(format));
        assert_eq!(of(&format!("{get}\r\n")), metrics(Format::Prometheus));
        let open = format!("{get}ACCEPT: application/openmetrics-text\r\n\r\n");
        assert_eq!(of(&open), metrics(Format::OpenMetrics));
        let many = format!("{get}{}\r\n", "A: b\r\n".repeat(HEADERS_MAX));
        let long = format!("{get}A: {}", "b".repeat(REQUEST_MAX));
        for (text, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("\x16\x03\x01\r\n", "400"),
            (&many, "431"),
            (&long[..REQUEST_MAX], "431"),
        ] {
            let Some(Request::Refused(refused)) = of(text) else {
                panic!("{text}");
            };
            assert!(refused.starts_with(status), "{text}: {refused}");
        }
    }

    /// A server, to which the function returns a connection.
    fn connect() -> TcpStream {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let answer: Arc<Answer> = Arc::new(|_| "x".repeat(100_000));
        thread::spawn(move || Listener::Tcp(socket).serve(&answer));
        TcpStream::connect(address).unwrap()
    }

    #[test]
    fn a_request_in_pieces_is_answered_whole() {
        let mut client = connect();
        for piece in ["GET /met", "rics HTTP/1.0\r\n", "\r\n"] {
            client.write_all(piece.as_bytes()).unwrap();
            thread::sleep(Duration::from_millis(10));
        }
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("\r\nContent-Length: 100000\r\n"), "{text}");
        assert!(text.ends_with(&format!("\r\n\r\n{}", "x".repeat(100_000))));
    }

    #[test]
    fn slow_clients_are_cut_off_and_others_served() {
        let first = connect();
        let address = first.peer_addr().unwrap();
        let slow: Vec<_> = (1..CONNECTIONS_MAX)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let mut one_more = TcpStream::connect(address).unwrap();
        let begin = Instant::now();
        assert_eq!(one_more.read(&mut [0]).unwrap_or(0), 0);
        assert!(begin.elapsed() < TIME_MAX);
        for mut client in slow.into_iter().chain([first]) {
            // Single bytes now and then do not prolong the time.
            let _ = client.write(b"G");
            let _ = client.read(&mut [0]);
        }
        assert!(begin.elapsed() < 2 * TIME_MAX);
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 404 "), "{text}");
    }
}
