// SPDX-License-Identifier: GPL-2.0-or-later
//! The protocol between clients and daemon, over a `SOCK_SEQPACKET` socket: messages of
//! little-endian words. A client first passes its memory (a memfd), then requests one job at a
//! time, by a message with all registers. The daemon replies when the job is done.

use crate::mapping::Mapping;
use crate::visit::{Job, MEMORY, TIMEOUT};
use anyhow::{ensure, Context as _, Result};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{
    connect, recv, recvmsg, send, sendmsg, socket_with, AddressFamily, RecvAncillaryBuffer,
    RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Device address of a client's memory; each client has an address space of its own.
pub(super) const BASE: u64 = 0x10_0000;
/// Number of registers of a job: 0x30 to 0x60.
pub(super) const REGISTERS: usize = 7;
/// Words of a message: the kind, and as many words as the longest message has.
const WORDS: usize = 1 + REGISTERS;
const BYTES: usize = WORDS * 8;

/// Priority of a client's jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    BestEffort,
    LatencyCritical,
}

/// A message to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// With a memfd of [`MEMORY`] bytes.
    Attach(Urgency),
    /// The values of 0x30, 0x38, ..., 0x60.
    Run([u64; REGISTERS]),
}

/// A message to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Attached,
    /// The status of the slot at the job's end.
    Done(u64),
}

const ATTACH: u64 = 1;
const RUN: u64 = 2;
const ATTACHED: u64 = 3;
const DONE: u64 = 4;

fn to_bytes(words: &[u64; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn to_words(bytes: &[u8]) -> Option<[u64; WORDS]> {
    let mut words = [0; WORDS];
    for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(from.try_into().ok()?);
    }
    (bytes.len() == BYTES).then_some(words)
}

impl Request {
    fn encode(self) -> [u8; BYTES] {
        let mut words = [0; WORDS];
        match self {
            Self::Attach(urgency) => {
                words[0] = ATTACH;
                words[1] = u64::from(urgency == Urgency::LatencyCritical);
            }
            Self::Run(registers) => {
                words[0] = RUN;
                words[1..].copy_from_slice(&registers);
            }
        }
        to_bytes(&words)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [kind, rest @ ..] = to_words(bytes)?;
        match (kind, rest[0]) {
            (ATTACH, 0) => Some(Self::Attach(Urgency::BestEffort)),
            (ATTACH, 1) => Some(Self::Attach(Urgency::LatencyCritical)),
            (RUN, _) => Some(Self::Run(rest)),
            _ => None,
        }
    }

    /// Receives the next message of a client, and the descriptor passed with it. Returns `None` if
    /// the client has closed the socket.
    pub(super) fn receive(from: impl AsFd) -> Result<Option<(Self, Option<OwnedFd>)>> {
        let mut bytes = [0; BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(from, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        if got.bytes == 0 {
            return Ok(None);
        }
        let mut file = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                file = files.into_iter().next();
            }
        }
        let request = Self::decode(&bytes[..got.bytes]).context("invalid message of a client")?;
        Ok(Some((request, file)))
    }
}

impl Reply {
    pub(super) fn send(self, to: impl AsFd) -> Result<()> {
        let mut words = [0; WORDS];
        match self {
            Self::Attached => words[0] = ATTACHED,
            Self::Done(status) => words[..2].copy_from_slice(&[DONE, status]),
        }
        send(to, &to_bytes(&words), SendFlags::NOSIGNAL)?;
        Ok(())
    }

    fn receive(from: impl AsFd) -> Result<Self> {
        let mut bytes = [0; BYTES];
        let (_, length) = recv(from, &mut bytes, RecvFlags::empty())?;
        match to_words(&bytes[..length]) {
            Some([ATTACHED, ..]) => Ok(Self::Attached),
            Some([DONE, status, ..]) => Ok(Self::Done(status)),
            _ => anyhow::bail!("the daemon has exited"),
        }
    }
}

/// A client, and the memory that it shares with the engine.
pub(crate) struct Client {
    socket: OwnedFd,
    memory: Mapping,
    request: [u64; REGISTERS],
}

impl Client {
    /// Connects to the daemon, passes the memory, and prepares the job.
    pub(crate) fn connect(path: &Path, job: Job, urgency: Urgency) -> Result<Self> {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        connect(&socket, &SocketAddrUnix::new(path)?).context("the daemon does not listen")?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        let file = memfd_create("tenant", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, MEMORY as u64)?;
        let memory = Mapping::new(&file, MEMORY, 0)?;
        job.fill(|offset, word| memory.write(offset, word));
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        let bytes = Request::Attach(urgency).encode();
        sendmsg(
            &socket,
            &[IoSlice::new(&bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        ensure!(
            Reply::receive(&socket)? == Reply::Attached,
            "the daemon rejects the memory"
        );
        let mut request = [0; REGISTERS];
        for (offset, value) in job.registers(BASE) {
            request[(offset as usize - 0x30) / 8] = value;
        }
        Ok(Self {
            socket,
            memory,
            request,
        })
    }

    /// Requests the job.
    pub(crate) fn start(&self) -> Result<()> {
        let bytes = Request::Run(self.request).encode();
        send(&self.socket, &bytes, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for the job's end. Returns the slot's status.
    pub(crate) fn wait(&self) -> Result<u64> {
        match Reply::receive(&self.socket)? {
            Reply::Done(status) => Ok(status),
            Reply::Attached => anyhow::bail!("unexpected reply of the daemon"),
        }
    }

    /// Returns a word of the memory.
    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.memory.read(offset)
    }

    /// Writes a word of the memory.
    pub(crate) fn store(&self, offset: usize, word: u64) {
        self.memory.write(offset, word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_socket() {
        for request in [
            Request::Attach(Urgency::LatencyCritical),
            Request::Attach(Urgency::BestEffort),
            Request::Run([1, 2, 3, 4, 5, 6, u64::MAX]),
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        assert_eq!(Request::decode(&[0; BYTES]), None);
        assert_eq!(Request::decode(&[1; 8]), None);
    }
}
