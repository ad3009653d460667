// SPDX-License-Identifier: GPL-2.0-or-later
//! A server for requests of one small page: HTTP/1.1, one request a connection. Clients are not
//! trusted: size of a request, time of a connection and number of connections are bounded.

use super::metrics::Format;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a request at the most, and how many headers it can have.
const REQUEST_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
/// Connections at once at the most; later ones are closed.
const CONNECTIONS_MAX: usize = 16;
/// How long a client may take to send the request, and to take the answer.
const TIME_MAX: Duration = Duration::from_secs(5);
/// How long no connection is accepted after one could not be.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the text of the metrics.
pub(super) type Answer = dyn Fn(Format) -> String + Send + Sync;

/// A socket that listens.
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Answers requests for ever.
    pub(super) fn serve(&self, answer: &Arc<Answer>) -> ! {
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
            // There are no descriptors or no memory now.
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

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Metrics(Format),
    /// It is refused with this status.
    Refused(&'static str),
}

impl Request {
    /// Returns the request; `None`: it is not complete.
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
            // Bytes that come now and then do not prolong the time.
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
