// SPDX-License-Identifier: GPL-2.0-or-later
//! Sockets of a service for the kubelet.
//!
//! Kubelets before 1.26 send the path of the socket as the `:authority` of their requests, which
//! the server's HTTP/2 library refuses (hyperium/h2 #487). Here the header is changed to
//! `localhost`, which later kubelets send, before the server sees it. Source: RFC 9113, RFC 7541.

use anyhow::{bail, Context as _, Result};
use fluke_hpack::Decoder;
use rustix::fs::Mode;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{signal, SignalKind};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};

/// Makes sockets and files of the program accessible to root only.
pub(crate) fn for_root_only() {
    rustix::process::umask(Mode::from_raw_mode(0o077));
}

/// Listens on a socket, and replaces a socket that a previous program has left.
pub(crate) fn listen(path: &Path) -> Result<impl Stream<Item = io::Result<UnixStream>>> {
    let name = || path.display().to_string();
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => bail!("{}: not a socket: remove it", name()),
        Ok(_) => fs::remove_file(path).with_context(name)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(name),
    }
    let listener = UnixListener::bind(path).with_context(name)?;
    Ok(UnixListenerStream::new(listener).map(|client| corrected(client?)))
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

const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
/// The largest frame. The server does not allow larger ones.
const MOST_FRAME: usize = 1 << 14;
/// The largest header block, several times the size of a kubelet's.
const MOST_BLOCK: usize = 1 << 14;
const AUTHORITY: &[u8] = b":authority";

// Types and flags of frames.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// Returns the connection to a client, for the server, with the authority corrected.
pub(crate) fn corrected(client: UnixStream) -> io::Result<UnixStream> {
    let (server, own) = UnixStream::pair()?;
    tokio::spawn(async move {
        let (from_client, mut to_client) = client.into_split();
        let (mut from_server, to_server) = own.into_split();
        // The connection ends when either side ends, or breaks the protocol.
        tokio::select! {
            _ = correct(from_client, to_server) => {}
            _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
        }
    });
    Ok(server)
}

/// A frame.
struct Frame {
    kind: u8,
    flags: u8,
    stream: [u8; 4],
    payload: Vec<u8>,
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Frame {
    async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut header = [0; FRAME_HEADER];
        from.read_exact(&mut header).await?;
        let [a, b, c, kind, flags, stream @ ..] = header;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > MOST_FRAME {
            return Err(broken("a frame is too large"));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        Ok(Self {
            kind,
            flags,
            stream,
            payload,
        })
    }

    async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut bytes = (self.payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream);
        bytes.extend(&self.payload);
        to.write_all(&bytes).await
    }

    /// Returns the fragment of a header block, without padding and priority.
    fn fragment(&self) -> io::Result<&[u8]> {
        let mut fragment = &self.payload[..];
        if self.flags & PADDED != 0 {
            let (padding, rest) = fragment.split_first().ok_or_else(|| broken("no padding"))?;
            let end = rest.len().checked_sub(usize::from(*padding));
            fragment = end
                .and_then(|end| rest.get(..end))
                .ok_or_else(|| broken("too much padding"))?;
        }
        if self.flags & PRIORITY != 0 {
            fragment = fragment.get(5..).ok_or_else(|| broken("no priority"))?;
        }
        Ok(fragment)
    }
}

/// Forwards what a client sends.
async fn correct(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    let mut decoder = Decoder::new();
    loop {
        let mut frame = Frame::read(&mut from).await?;
        if frame.kind == HEADERS {
            let mut block = frame.fragment()?.to_vec();
            let mut ends = frame.flags & END_HEADERS != 0;
            while !ends {
                let more = Frame::read(&mut from).await?;
                if more.kind != CONTINUATION || more.stream != frame.stream {
                    return Err(broken("a header block is interrupted"));
                }
                block.extend(&more.payload);
                ends = more.flags & END_HEADERS != 0;
                if block.len() > MOST_BLOCK {
                    return Err(broken("a header block is too large"));
                }
            }
            let headers = decoder
                .decode(&block)
                .map_err(|_| broken("a header block is not HPACK"))?;
            frame.flags = frame.flags & END_STREAM | END_HEADERS;
            frame.payload = encode(&headers);
            if frame.payload.len() > MOST_FRAME {
                return Err(broken("a header block is too large"));
            }
        }
        frame.write(&mut to).await?;
    }
}

/// Encodes headers without a table that the server would have to keep.
fn encode(headers: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [
            &name[..],
            if name == AUTHORITY {
                b"localhost"
            } else {
                &value[..]
            },
        ] {
            encode_length(&mut block, text.len());
            block.extend(text);
        }
    }
    block
}

/// Encodes the length of an uncompressed string: an integer with a prefix of 7 bits.
fn encode_length(block: &mut Vec<u8>, length: usize) {
    const PREFIX: usize = 127;
    if length < PREFIX {
        block.push(length as u8);
        return;
    }
    block.push(PREFIX as u8);
    let mut rest = length - PREFIX;
    while rest >= 128 {
        block.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    block.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use fluke_hpack::Encoder;

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

    const PATH: &[u8] = b"/var/lib/kubelet/device-plugins/fermata.sock";

    fn frame(kind: u8, flags: u8, payload: Vec<u8>) -> Frame {
        Frame {
            kind,
            flags,
            stream: [0, 0, 0, 1],
            payload,
        }
    }

    /// Passes frames on, and returns what the server receives.
    async fn pass(frames: &[Frame]) -> io::Result<Vec<Frame>> {
        let mut sent = vec![b'p'; PREFACE];
        for frame in frames {
            frame.write(&mut sent).await?;
        }
        let mut got = Vec::new();
        let error = correct(&sent[..], &mut got).await.unwrap_err();
        if error.kind() != io::ErrorKind::UnexpectedEof {
            return Err(error);
        }
        let mut rest = &got[PREFACE..];
        let mut passed = Vec::new();
        while !rest.is_empty() {
            passed.push(Frame::read(&mut rest).await?);
        }
        Ok(passed)
    }

    #[tokio::test]
    async fn the_path_of_a_socket_becomes_localhost() {
        let long = vec![b'x'; 300];
        let headers = [
            (&b":path"[..], &b"/v1beta1.DevicePlugin/Allocate"[..]),
            (AUTHORITY, PATH),
            (b"long", &long),
        ];
        let mut encoder = Encoder::new();
        let mut decoder = Decoder::new();
        // The second block refers to entries of the table that the first block has created.
        let blocks = [encoder.encode(headers), encoder.encode(headers)];
        let mut padded = vec![3, 0, 0, 0, 0, 9];
        padded.extend(&blocks[0][..7]);
        padded.extend([0; 3]);
        let passed = pass(&[
            frame(HEADERS, PADDED | PRIORITY | END_STREAM, padded),
            frame(CONTINUATION, 0, blocks[0][7..20].to_vec()),
            frame(CONTINUATION, END_HEADERS, blocks[0][20..].to_vec()),
            frame(0, END_STREAM, b"data".to_vec()),
            frame(HEADERS, END_HEADERS, blocks[1].clone()),
        ])
        .await
        .unwrap();
        let seen: Vec<_> = passed
            .iter()
            .map(|frame| (frame.kind, frame.flags))
            .collect();
        assert_eq!(
            seen,
            [
                (HEADERS, END_HEADERS | END_STREAM),
                (0, END_STREAM),
                (HEADERS, END_HEADERS)
            ]
        );
        assert_eq!(passed[1].payload, b"data");
        for frame in [&passed[0], &passed[2]] {
            let got = decoder.decode(&frame.payload).unwrap();
            let got: Vec<_> = got
                .iter()
                .map(|(name, value)| (&name[..], &value[..]))
                .collect();
            assert_eq!(got, [headers[0], (AUTHORITY, b"localhost"), headers[2]]);
        }
    }

    #[tokio::test]
    async fn what_is_no_protocol_ends_the_connection() {
        for frames in [
            vec![frame(HEADERS, END_HEADERS | PADDED, vec![9, 0])],
            vec![frame(HEADERS, END_HEADERS | PADDED, vec![])],
            vec![frame(HEADERS, END_HEADERS | PRIORITY, vec![0; 4])],
            vec![frame(HEADERS, END_HEADERS, vec![0xff; 9])],
            vec![frame(HEADERS, 0, vec![]), frame(0, 0, vec![])],
            vec![frame(0, 0, vec![0; MOST_FRAME + 1])],
            vec![
                frame(HEADERS, 0, vec![0; MOST_FRAME]),
                frame(CONTINUATION, 0, vec![0]),
            ],
        ] {
            assert!(pass(&frames).await.is_err());
        }
    }
}
