// SPDX-License-Identifier: GPL-2.0-or-later
//! Random messages on the wire. Whatever a client sends, the server drops the client at the worst, and
//! the next client finds a card that works. `PROPTEST_CASES` sets how many clients are tried.

use crate::common::LIMIT;
use fermata_card::card::Card;
use fermata_card::config::{CardConfig, IrqKind, Profile};
use fermata_card::engine::EngineKind;
use fermata_card::log::Recorder;
use fermata_card::vfio::Server;
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::cell::RefCell;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use vfio_user::Client;

const RAM: u64 = 1 << 20;
const FDS: usize = 20;

/// A descriptor that goes with a message.
#[derive(Clone, Copy, Debug)]
enum Descriptor {
    Memory,
    Empty,
    Event,
    Socket,
}

impl Descriptor {
    fn open(self) -> OwnedFd {
        let memory = |size| {
            let fd = memfd_create("fuzz", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, size).unwrap();
            fd
        };
        match self {
            Self::Memory => memory(RAM),
            Self::Empty => memory(0),
            Self::Event => eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
            Self::Socket => UnixStream::pair().unwrap().0.into(),
        }
    }
}

/// What a client sends at once.
#[derive(Clone, Debug)]
struct Message {
    command: u16,
    /// What the header says of the length, beside what is true.
    lie: i32,
    flags: u32,
    error: u32,
    body: Vec<u8>,
    descriptors: Vec<Descriptor>,
}

impl Message {
    fn send(&self, to: &UnixStream) -> std::io::Result<()> {
        let length = (16 + self.body.len() as i32).wrapping_add(self.lie);
        let mut bytes = vec![7, 0];
        bytes.extend_from_slice(&self.command.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&self.flags.to_le_bytes());
        bytes.extend_from_slice(&self.error.to_le_bytes());
        bytes.extend_from_slice(&self.body);
        let owned: Vec<_> = self.descriptors.iter().map(|kind| kind.open()).collect();
        let fds: Vec<_> = owned.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(to, &[IoSlice::new(&bytes)], &mut control, flags)?;
        let mut to = to;
        to.write_all(&bytes[sent..])
    }
}

/// Values that mean something somewhere: indices, sizes, registers, commands of slots, limits.
fn word() -> impl Strategy<Value = u64> {
    let values = vec![
        0,
        1,
        2,
        5,
        6,
        7,
        8,
        9,
        0x18,
        0x24,
        0x1000,
        0x1018,
        0x2018,
        0x1c0,
        RAM,
        1 << 32,
        8 << 32,
        7 | 2 << 32,
        (8 << 32) | 9,
        1 << 47,
        u64::MAX,
        u64::MAX - 4095,
    ];
    prop_oneof![4 => proptest::sample::select(values), 1 => any::<u64>(), 1 => any::<u32>().prop_map(u64::from)]
}

fn words() -> impl Strategy<Value = Vec<u8>> {
    let bytes = |words: Vec<u64>| words.into_iter().flat_map(u64::to_le_bytes).collect();
    vec(word(), 0..8).prop_map(bytes)
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let cut = (words(), 0usize..64).prop_map(|(mut bytes, length)| {
        bytes.truncate(length);
        bytes
    });
    prop_oneof![4 => words(), 2 => cut, 1 => vec(any::<u8>(), 0..200)]
}

fn message() -> impl Strategy<Value = Message> {
    use Descriptor::{Empty, Event, Memory, Socket};
    let descriptors = proptest::sample::select(vec![Memory, Memory, Event, Empty, Socket]);
    let descriptors =
        prop_oneof![3 => vec(descriptors.clone(), 0..2), 1 => vec(descriptors, 0..FDS)];
    let lie = prop_oneof![12 => Just(0), 1 => any::<i32>(), 1 => -16i32..64];
    let flags = prop_oneof![6 => Just(0u32), 2 => Just(1 << 4), 1 => Just(1), 1 => any::<u32>()];
    let command = prop_oneof![8 => 1u16..20, 1 => any::<u16>()];
    let error = prop_oneof![8 => Just(0u32), 1 => any::<u32>()];
    (command, lie, flags, error, body(), descriptors).prop_map(
        |(command, lie, flags, error, body, descriptors)| Message {
            command,
            lie,
            flags,
            error,
            body,
            descriptors,
        },
    )
}

/// Ends the test with the panic of a thread.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// A card that serves one client after the other.
struct Served {
    card: Arc<Card>,
    server: Arc<Server>,
    thread: Option<std::thread::JoinHandle<()>>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Served {
    fn new() -> Self {
        let engines = [EngineKind::Membench, EngineKind::Membench];
        let mut config = CardConfig::new(Profile::Relay, IrqKind::Msix, &engines).unwrap();
        config.apply("slot=all,speed=0").unwrap();
        let card = Card::new(config, Recorder::none());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let server = Arc::new(Server::new(card.clone(), listener));
        let serving = server.clone();
        let thread = std::thread::spawn(move || {
            // A server that has panicked would leave the next client without an answer for ever.
            let guard = AbortOnPanic;
            serving.run(|_| ()).unwrap();
            drop(guard);
        });
        Self {
            card,
            server,
            thread: Some(thread),
            path,
            _dir: dir,
        }
    }

    /// A client that does all right has its job done.
    fn works(&self) {
        let mut client = Client::new(&self.path).unwrap();
        let ram = Descriptor::Memory.open();
        client.dma_map(0, 0, RAM, ram.as_raw_fd()).unwrap();
        client.region_write(7, 4, &[6, 0]).unwrap();
        let registers = [
            (0x1c0, RAM),
            (0x1030, 0),
            (0x1038, 4096),
            (0x1040, 10),
            (0x1048, 1),
            (0x1058, 2),
            (0x1018, 1),
        ];
        for (offset, value) in registers {
            let value = u64::to_le_bytes(value);
            client.region_write(0, offset, &value).unwrap();
        }
        let mut status = [1; 8];
        let begin = Instant::now();
        while status[0] == 1 {
            assert!(begin.elapsed() < LIMIT, "the job does not end");
            client.region_read(0, 0x1018, &mut status).unwrap();
        }
        assert_eq!(status[..2], [2, 0], "status");
        let mut count = [0; 8];
        client.region_read(0, 0x1048, &mut count).unwrap();
        assert_eq!(u64::from_le_bytes(count), 10);
        client.shutdown().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                std::thread::panicking() || ended.is_ok(),
                "the server panicked"
            );
        }
        self.card.stop();
    }
}

thread_local! {
    static SERVED: RefCell<Option<Served>> = const { RefCell::new(None) };
}

proptest! {
    #[test]
    fn any_messages_leave_a_card_that_works(messages in vec(message(), 1..24), master in any::<bool>()) {
        SERVED.with_borrow_mut(|served| {
            let served = served.get_or_insert_with(Served::new);
            let stream = UnixStream::connect(&served.path).unwrap();
            if master {
                let mut body: Vec<u8> = [4u64, 7 | 2 << 32].into_iter().flat_map(u64::to_le_bytes).collect();
                body.extend_from_slice(&[6, 0]);
                let first = Message {
                    command: 10,
                    lie: 0,
                    flags: 0,
                    error: 0,
                    body,
                    descriptors: vec![],
                };
                first.send(&stream).unwrap();
            }
            // The server may have gone away from this client.
            let _ = messages.iter().try_for_each(|message| message.send(&stream));
            drop(stream);
            served.works();
        });
    }
}
