// SPDX-License-Identifier: GPL-2.0-or-later
//! The socket to the client: the layout of messages, whole messages in and out, and DMA by message.

use crate::dma::Remote;
use rustix::io::Errno;
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::collections::HashMap;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, RecvTimeoutError, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

type Answer = Option<Vec<u8>>;

/// The sending side, shared by the message loop and the engines.
pub(super) struct Link {
    out: Mutex<UnixStream>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next_id: u16,
    replies: HashMap<u16, SyncSender<Answer>>,
    closed: bool,
}

/// A client that does not answer a DMA request for so long does not have the memory.
const REPLY_LIMIT: Duration = Duration::from_secs(5);
/// How soon an engine that waits for a reply sees that its job was reset away.
const GIVE_UP_POLL: Duration = Duration::from_millis(1);

/// One message.
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) body: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Link {
    pub(super) fn new(stream: &UnixStream) -> std::io::Result<Self> {
        Ok(Self {
            out: Mutex::new(stream.try_clone()?),
            waiting: Mutex::default(),
        })
    }

    fn send(&self, bytes: &[u8]) -> std::io::Result<()> {
        self.out
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(bytes)
    }

    pub(super) fn reply(&self, to: &Header, result: Result<Vec<u8>, Errno>) -> std::io::Result<()> {
        self.send(&reply(to, result))
    }

    /// Hands a reply of the client to the engine that waits for it.
    pub(super) fn answered(&self, message: Message) {
        let waiting = self
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replies
            .remove(&message.header.id);
        if let Some(waiting) = waiting {
            let _ = waiting.send((!message.header.is_error()).then_some(message.body));
        }
    }

    /// The client is gone: nobody will be answered.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.closed = true;
        waiting.replies.clear();
    }

    fn ask(&self, command: u16, body: &[u8], give_up: &AtomicBool) -> Answer {
        let (tx, rx) = sync_channel(1);
        let id = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.closed {
                return None;
            }
            waiting.next_id = waiting.next_id.wrapping_add(1);
            let id = waiting.next_id;
            waiting.replies.insert(id, tx);
            id
        };
        let answer = self
            .send(&request(id, command, body))
            .ok()
            .and_then(|()| wait(&rx, give_up));
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replies
            .remove(&id);
        answer
    }
}

fn wait(rx: &std::sync::mpsc::Receiver<Answer>, give_up: &AtomicBool) -> Answer {
    let until = Instant::now() + REPLY_LIMIT;
    while !give_up.load(Ordering::Acquire) && Instant::now() < until {
        match rx.recv_timeout(GIVE_UP_POLL) {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

fn place(iova: u64, len: usize) -> Vec<u8> {
    [iova, len as u64]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect()
}

impl Remote for Link {
    fn read(&self, iova: u64, buf: &mut [u8], give_up: &AtomicBool) -> bool {
        (0u64..)
            .step_by(MAX_TRANSFER)
            .zip(buf.chunks_mut(MAX_TRANSFER))
            .all(|(at, piece)| {
                let request = place(iova.wrapping_add(at), piece.len());
                let answer = self.ask(command::DMA_READ, &request, give_up);
                let data = answer.as_deref().and_then(|a| a.get(16..16 + piece.len()));
                data.map(|data| piece.copy_from_slice(data)).is_some()
            })
    }

    fn write(&self, iova: u64, data: &[u8], give_up: &AtomicBool) -> bool {
        (0u64..)
            .step_by(MAX_TRANSFER)
            .zip(data.chunks(MAX_TRANSFER))
            .all(|(at, piece)| {
                let mut request = place(iova.wrapping_add(at), piece.len());
                request.extend_from_slice(piece);
                let answer = self.ask(command::DMA_WRITE, &request, give_up);
                // A client may answer with address and count; fewer bytes than asked for is a
                // failure.
                answer.is_some_and(|a| {
                    Fields(a.get(8..).unwrap_or_default())
                        .u64()
                        .is_ok_and(|n| n == piece.len() as u64)
                })
            })
    }
}

/// Receives one message. `None` at the end of the stream.
pub(super) fn receive(stream: &UnixStream) -> std::io::Result<Option<Message>> {
    let mut fds = Vec::new();
    let mut bytes = [0; HEADER];
    // Header first: descriptors come with the first byte of their message.
    let mut have = 0;
    while have < HEADER {
        match receive_some(stream, &mut bytes[have..], &mut fds)? {
            0 => return Ok(None),
            n => have += n,
        }
    }
    let header = Header::parse(&bytes);
    let mut body = vec![0; header.body()?];
    let mut stream = stream;
    stream.read_exact(&mut body)?;
    Ok(Some(Message { header, body, fds }))
}

fn receive_some(
    stream: &UnixStream,
    buf: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        recvmsg(
            stream,
            &mut [IoSliceMut::new(buf)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(got.bytes)
}

/// Size of a message header.
pub(super) const HEADER: usize = 16;
/// Most bytes of a message: the largest transfer and its header.
pub(super) const MAX_MESSAGE: usize = MAX_TRANSFER + 64;
/// Most bytes of one region or DMA access.
pub(super) const MAX_TRANSFER: usize = 1 << 20;
/// Most descriptors with one message.
pub(super) const MAX_FDS: usize = 16;

/// Commands.
pub(super) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const GET_INFO: u16 = 4;
    pub(crate) const GET_REGION_INFO: u16 = 5;
    pub(crate) const GET_IRQ_INFO: u16 = 7;
    pub(crate) const SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DMA_READ: u16 = 11;
    pub(crate) const DMA_WRITE: u16 = 12;
    pub(crate) const RESET: u16 = 13;
}

const REPLY: u32 = 1;
const TYPE: u32 = 0xf;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// A message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: u16,
    pub(super) command: u16,
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) error: u32,
}

impl Header {
    pub(super) fn parse(bytes: &[u8; HEADER]) -> Self {
        let mut fields = Fields(bytes);
        let ids = fields.u32().unwrap_or_default();
        let mut next = || fields.u32().unwrap_or_default();
        Self {
            id: ids as u16,
            command: (ids >> 16) as u16,
            size: next(),
            flags: next(),
            error: next(),
        }
    }

    /// Bytes after the header, if the size is sound.
    pub(super) fn body(&self) -> Result<usize, Errno> {
        let size = self.size as usize;
        if (HEADER..=MAX_MESSAGE).contains(&size) {
            Ok(size - HEADER)
        } else {
            Err(Errno::INVAL)
        }
    }

    pub(super) fn is_reply(&self) -> bool {
        self.flags & TYPE == REPLY
    }

    pub(super) fn is_error(&self) -> bool {
        self.flags & ERROR != 0
    }

    pub(super) fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }
}

fn message(id: u16, command: u16, flags: u32, error: u32, body: &[u8]) -> Vec<u8> {
    let size = (HEADER + body.len()) as u32;
    let mut out = Vec::with_capacity(size as usize);
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&command.to_le_bytes());
    for word in [size, flags, error] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(body);
    out
}

/// A request of the server.
pub(super) fn request(id: u16, command: u16, body: &[u8]) -> Vec<u8> {
    message(id, command, 0, 0, body)
}

/// The reply to a request of the client.
pub(super) fn reply(to: &Header, result: Result<Vec<u8>, Errno>) -> Vec<u8> {
    match result {
        Ok(body) => message(to.id, to.command, REPLY, 0, &body),
        Err(errno) => message(
            to.id,
            to.command,
            REPLY | ERROR,
            errno.raw_os_error() as u32,
            &[],
        ),
    }
}

/// Reads little-endian fields; what is missing is EINVAL.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Bytes of little-endian words.
pub(super) fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
