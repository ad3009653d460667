// SPDX-License-Identifier: GPL-2.0-or-later
//! The vfio-user server: QEMU's docs/interop/vfio-user over a UNIX socket. This file has the
//! message loop.

mod link;

use crate::card::Card;
use crate::config::IrqKind;
use crate::event::What;
use crate::pci::CONFIG_SIZE;
use crate::pci::VECTORS;
use crate::regs::BAR_SIZE;
use link::{command, receive, words, Fields, Link, Message, MAX_FDS, MAX_TRANSFER};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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

/// Removes the socket at a path, if there is one, and nothing else: a daemon of root must not remove
/// a file for a wrong path.
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

/// Serves a card to one client after the other.
pub struct Server {
    card: Arc<Card>,
    listener: UnixListener,
    client: Mutex<Option<UnixStream>>,
    stopping: AtomicBool,
}

impl Server {
    /// A server on a socket that listens.
    pub fn new(card: Arc<Card>, listener: UnixListener) -> Self {
        Self {
            card,
            listener,
            client: Mutex::new(None),
            stopping: AtomicBool::new(false),
        }
    }

    /// Serves until [`Self::stop`]. Tells `lost` why a client was lost that did not just go away.
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

    /// Whether a client is connected.
    pub fn has_client(&self) -> bool {
        let client = self.client.lock();
        client.unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Ends [`Self::run`], from another thread.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        if let Some(client) = &*self.client.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
        // Wakes accept.
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
        self.card.recorder().record(What::Map {
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
        // The one flag that makes sense for nothing at 0 is "unmap all", whichever bit a client has
        // for it.
        if flags != 0 && (iova, size) == (0, 0) {
            self.card.unmap_all();
        } else {
            self.card.unmap(iova, size);
        }
        self.card.recorder().record(What::Unmap { iova, len: size });
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
