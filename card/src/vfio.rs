// SPDX-License-Identifier: GPL-2.0-or-later
//! The vfio-user server: QEMU's docs/interop/vfio-user over a UNIX socket.

use crate::config::IrqKind;
use crate::device::Device;
use crate::dma::Remote;
use crate::event::What;
use crate::pci::{CONFIG_SIZE, VECTORS};
use crate::regs::BAR_SIZE;
use rustix::io::Errno;
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const REGIONS: u32 = 9;
const BAR0: u32 = 0;
const CONFIG: u32 = 7;
const IRQS: u32 = 5;
const MSI: u32 = 1;
const MSIX: u32 = 2;
const REGION_READ_WRITE: u32 = 3;
const DEVICE_RESETTABLE_PCI: u32 = 3;
const IRQ_EVENTFD_NORESIZE: u32 = 1 | 1 << 3;
const IRQ_DATA_NONE: u32 = 1;
const IRQ_DATA_EVENTFD: u32 = 1 << 2;
const IRQ_ACTION_TRIGGER: u32 = 1 << 5;
const MAP_WRITE: u32 = 2;

/// Removes the socket at a path, if there is one, and nothing else: a daemon that runs as root must
/// not remove a file because of a wrong path.
///
/// # Errors
///
/// Something else is at the path, or the socket cannot be removed.
pub fn remove_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            Err(io::Error::other("not a socket: remove it"))
        }
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Serves a card to one client after another.
pub struct Server {
    card: Arc<dyn Device>,
    listener: UnixListener,
    client: Mutex<Option<UnixStream>>,
    stopping: AtomicBool,
}

impl Server {
    /// Returns a server on a listening socket.
    pub fn new(card: Arc<dyn Device>, listener: UnixListener) -> Self {
        Self {
            card,
            listener,
            client: Mutex::new(None),
            stopping: AtomicBool::new(false),
        }
    }

    /// Serves until [`Self::stop`]. If a client is lost without disconnecting, calls `lost` with
    /// the reason.
    pub fn run(&self, lost: impl Fn(&std::io::Error)) -> std::io::Result<()> {
        while !self.stopping.load(Ordering::Acquire) {
            let (stream, _) = self.listener.accept()?;
            self.remember(Some(stream.try_clone()?));
            if self.stopping.load(Ordering::Acquire) {
                break;
            }
            self.card.connect();
            let end = self.serve(&stream);
            self.remember(None);
            self.card.disconnect();
            if let Err(error) = end {
                lost(&error);
            }
        }
        Ok(())
    }

    fn remember(&self, stream: Option<UnixStream>) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    /// Returns whether a client is connected.
    pub fn has_client(&self) -> bool {
        let client = self.client.lock();
        client.unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Ends [`Self::run`]; called from another thread.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        if let Some(client) = &*self.client.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
        // Wakes up accept.
        let _ = self
            .listener
            .local_addr()
            .and_then(|a| UnixStream::connect_addr(&a));
    }

    /// Ends [`Self::run`] when SIGTERM or SIGINT comes.
    ///
    /// # Errors
    ///
    /// The signals cannot be caught.
    pub fn stop_on_signals(self: &Arc<Self>) -> std::io::Result<()> {
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let server = self.clone();
        std::thread::spawn(move || {
            for _ in signals.forever() {
                server.stop();
            }
        });
        Ok(())
    }

    fn serve(&self, stream: &UnixStream) -> std::io::Result<()> {
        let link = Arc::new(Link::new(stream)?);
        self.card.host().memory.set_remote(Some(link.clone()));
        let end = self.exchange(stream, &link);
        link.close();
        end
    }

    fn exchange(&self, stream: &UnixStream, link: &Link) -> std::io::Result<()> {
        while let Some(message) = receive(stream)? {
            if message.header.is_reply() {
                link.answered(message);
                continue;
            }
            let header = message.header;
            let result = self.dispatch(message);
            if header.wants_reply() {
                link.reply(&header, result)?;
            }
        }
        Ok(())
    }

    fn dispatch(&self, message: Message) -> Result<Vec<u8>, Errno> {
        let body = &message.body[..];
        match message.header.command {
            command::VERSION => version(body),
            command::DMA_MAP => self.dma_map(body, message.fds),
            command::DMA_UNMAP => self.dma_unmap(body),
            command::GET_INFO => Ok(words(&[16, DEVICE_RESETTABLE_PCI, REGIONS, IRQS])),
            command::GET_REGION_INFO => region_info(body),
            command::GET_IRQ_INFO => self.irq_info(body),
            command::SET_IRQS => self.set_irqs(body, message.fds),
            command::REGION_READ => self.region_read(body),
            command::REGION_WRITE => self.region_write(body),
            command::RESET => {
                self.card.device_reset();
                Ok(Vec::new())
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn dma_map(&self, body: &[u8], fds: Vec<OwnedFd>) -> Result<Vec<u8>, Errno> {
        let mut f = Fields(body);
        let (_argsz, flags) = (f.u32()?, f.u32()?);
        let (offset, iova, size) = (f.u64()?, f.u64()?, f.u64()?);
        let backing = fds.into_iter().next().map(|fd| (fd, offset));
        let fd = backing.is_some();
        self.card
            .host()
            .memory
            .map(iova, size, flags & MAP_WRITE != 0, backing)?;
        self.card.host().recorder.record(What::Map {
            iova,
            len: size,
            gpa: offset,
            fd,
            flags,
        });
        Ok(Vec::new())
    }

    fn dma_unmap(&self, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut f = Fields(body);
        let (_argsz, flags, iova, size) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?);
        // At 0 with size 0, the only flag that makes sense is "unmap all", whichever bit a client
        // uses for it.
        if flags != 0 && (iova, size) == (0, 0) {
            self.card.unmap_all();
        } else {
            self.card.unmap(iova, size);
        }
        self.card
            .host()
            .recorder
            .record(What::Unmap { iova, len: size });
        Ok(body[..24].to_vec())
    }

    fn irq_info(&self, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut f = Fields(body);
        let (_argsz, _flags, index) = (f.u32()?, f.u32()?, f.u32()?);
        if index >= IRQS {
            return Err(Errno::INVAL);
        }
        let mine = self.irq_index() == Some(index);
        let (flags, count) = if mine {
            (IRQ_EVENTFD_NORESIZE, VECTORS as u32)
        } else {
            (0, 0)
        };
        Ok(words(&[16, flags, index, count]))
    }

    fn irq_index(&self) -> Option<u32> {
        match self.card.config().irq {
            IrqKind::Msix => Some(MSIX),
            IrqKind::Msi => Some(MSI),
            IrqKind::None => None,
        }
    }

    fn set_irqs(&self, body: &[u8], fds: Vec<OwnedFd>) -> Result<Vec<u8>, Errno> {
        let mut f = Fields(body);
        let (_argsz, flags, index, start, count) =
            (f.u32()?, f.u32()?, f.u32()?, f.u32()?, f.u32()?);
        if index >= IRQS {
            return Err(Errno::INVAL);
        }
        if self.irq_index() != Some(index) || flags & IRQ_ACTION_TRIGGER == 0 {
            return Ok(Vec::new());
        }
        let irqs = &self.card.host().irqs;
        let (start, end) = (
            start as usize,
            (start as usize).saturating_add(count as usize).min(VECTORS),
        );
        if flags & IRQ_DATA_EVENTFD != 0 {
            let mut fds = fds.into_iter();
            (start..end).try_for_each(|v| irqs.set(v, fds.next()))?;
        } else if flags & IRQ_DATA_NONE != 0 && count == 0 {
            irqs.clear();
        }
        Ok(Vec::new())
    }

    fn region_read(&self, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut f = Fields(body);
        let (offset, region, count) = (f.u64()?, f.u32()?, f.u32()? as usize);
        if count > MAX_TRANSFER {
            return Err(Errno::INVAL);
        }
        let mut out = body[..16].to_vec();
        out.resize(16 + count, 0);
        match region {
            BAR0 => self.card.bar_read(offset, &mut out[16..]),
            CONFIG => self.card.config_read(offset, &mut out[16..]),
            _ => return Err(Errno::INVAL),
        }
        Ok(out)
    }

    fn region_write(&self, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut f = Fields(body);
        let (offset, region, count) = (f.u64()?, f.u32()?, f.u32()? as usize);
        let data = f.0.get(..count).ok_or(Errno::INVAL)?;
        match region {
            BAR0 => self.card.bar_write(offset, data),
            CONFIG => self.card.config_write(offset, data),
            _ => return Err(Errno::INVAL),
        }
        Ok(body[..16].to_vec())
    }
}

fn version(body: &[u8]) -> Result<Vec<u8>, Errno> {
    let versions = Fields(body).u32()?;
    if versions & 0xffff != 0 {
        return Err(Errno::INVAL);
    }
    let capabilities = format!(
        "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\"max_data_xfer_size\":{MAX_TRANSFER},\"write_multiple\":false}}}}\0"
    );
    let mut out = words(&[0]);
    out.extend_from_slice(capabilities.as_bytes());
    Ok(out)
}

fn region_info(body: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut f = Fields(body);
    let (_argsz, _flags, index) = (f.u32()?, f.u32()?, f.u32()?);
    let size = match index {
        BAR0 => BAR_SIZE,
        CONFIG => CONFIG_SIZE as u64,
        _ if index < REGIONS => 0,
        _ => return Err(Errno::INVAL),
    };
    let flags = if size > 0 { REGION_READ_WRITE } else { 0 };
    let mut out = words(&[32, flags, index, 0]);
    out.extend_from_slice(&size.to_le_bytes());
    out.extend_from_slice(&0u64.to_le_bytes());
    Ok(out)
}

type Answer = Option<Vec<u8>>;

/// The sending side, shared by the message loop and the engines.
struct Link {
    out: Mutex<UnixStream>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next_id: u16,
    replies: HashMap<u16, SyncSender<Answer>>,
    closed: bool,
}

/// A client that does not answer a DMA request within this time does not have the memory.
const REPLY_LIMIT: Duration = Duration::from_secs(5);
/// How soon an engine that waits for a reply notices that its job was aborted by a reset.
const GIVE_UP_POLL: Duration = Duration::from_millis(1);

/// One message.
struct Message {
    header: Header,
    body: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Link {
    fn new(stream: &UnixStream) -> std::io::Result<Self> {
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

    fn reply(&self, to: &Header, result: Result<Vec<u8>, Errno>) -> std::io::Result<()> {
        self.send(&reply(to, result))
    }

    /// Passes a reply of the client to the engine that waits for it.
    fn answered(&self, message: Message) {
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

    /// Handles the departure of the client: all waiting requests fail.
    fn close(&self) {
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
                // A client may answer with address and count. Fewer bytes than requested are a
                // failure.
                answer.is_some_and(|a| {
                    Fields(a.get(8..).unwrap_or_default())
                        .u64()
                        .is_ok_and(|n| n == piece.len() as u64)
                })
            })
    }
}

/// Receives one message. Returns `None` at the end of the stream.
fn receive(stream: &UnixStream) -> std::io::Result<Option<Message>> {
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
const HEADER: usize = 16;
/// The largest message in bytes: the largest transfer and its header.
const MAX_MESSAGE: usize = MAX_TRANSFER + 64;
/// The most bytes in an access to a region or by DMA.
const MAX_TRANSFER: usize = 1 << 20;
/// The most descriptors with one message.
const MAX_FDS: usize = 16;

/// Commands.
mod command {
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
struct Header {
    id: u16,
    command: u16,
    size: u32,
    flags: u32,
    error: u32,
}

impl Header {
    fn parse(bytes: &[u8; HEADER]) -> Self {
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

    /// Returns the number of bytes after the header, if the size is sound.
    fn body(&self) -> Result<usize, Errno> {
        let size = self.size as usize;
        if (HEADER..=MAX_MESSAGE).contains(&size) {
            Ok(size - HEADER)
        } else {
            Err(Errno::INVAL)
        }
    }

    fn is_reply(&self) -> bool {
        self.flags & TYPE == REPLY
    }

    fn is_error(&self) -> bool {
        self.flags & ERROR != 0
    }

    fn wants_reply(&self) -> bool {
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

/// Returns a request of the server.
fn request(id: u16, command: u16, body: &[u8]) -> Vec<u8> {
    message(id, command, 0, 0, body)
}

/// Returns the reply to a request of the client.
fn reply(to: &Header, result: Result<Vec<u8>, Errno>) -> Vec<u8> {
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

/// Reads little-endian fields; a missing field is EINVAL.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Returns the bytes of little-endian words.
fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
