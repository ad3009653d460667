// SPDX-License-Identifier: GPL-2.0-or-later
//! The vfio-user protocol on the wire: errors, DMA by message, memory that is unmapped, invalid
//! messages. And random messages: whatever a client sends, the worst result is that the server
//! drops the client, and the next client finds a card that works. `PROPTEST_CASES` sets how many
//! clients are tried.

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
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfio_user::Client;

const EINVAL: u32 = 22;
const EEXIST: u32 = 17;
const ENOSYS: u32 = 38;

/// A client that answers DMA requests from its own memory at `at`.
struct Raw {
    stream: UnixStream,
    next: u16,
    at: u64,
    memory: Vec<u8>,
    asked: u64,
}

struct Reply {
    flags: u32,
    error: u32,
    body: Vec<u8>,
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Raw {
    fn send(
        &mut self,
        id: u16,
        command: u16,
        flags: u32,
        error: u32,
        body: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) {
        let mut message = Vec::new();
        message.extend_from_slice(&id.to_le_bytes());
        message.extend_from_slice(&command.to_le_bytes());
        [(16 + body.len()) as u32, flags, error]
            .iter()
            .for_each(|w| message.extend_from_slice(&w.to_le_bytes()));
        message.extend_from_slice(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fd.into_iter().collect();
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        let n = sendmsg(
            &self.stream,
            &[IoSlice::new(&message)],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        self.stream.write_all(&message[n..]).unwrap();
    }

    fn receive(&mut self) -> (u16, u16, Reply) {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let (id, command, size) = (word(0) as u16, (word(0) >> 16) as u16, word(4) as usize);
        let mut body = vec![0; size - 16];
        self.stream.read_exact(&mut body).unwrap();
        (
            id,
            command,
            Reply {
                flags: word(8),
                error: word(12),
                body,
            },
        )
    }

    /// Sends one request; answers what the server asks in between.
    fn call_fd(&mut self, command: u16, body: &[u8], fd: Option<BorrowedFd<'_>>) -> Reply {
        self.next += 1;
        let id = self.next;
        self.send(id, command, 0, 0, body, fd);
        loop {
            let (got, what, message) = self.receive();
            if message.flags & 0xf == 1 {
                assert_eq!((got, what), (id, command));
                return message;
            }
            self.answer(got, what, &message.body);
        }
    }

    fn answer(&mut self, id: u16, command: u16, body: &[u8]) {
        self.asked += 1;
        let (addr, count) = (u64_at(body, 0), u64_at(body, 8) as usize);
        let place = addr
            .checked_sub(self.at)
            .map(|a| a as usize)
            .filter(|a| a + count <= self.memory.len());
        match (place, command) {
            (Some(at), 11) => {
                let mut reply = body[..16].to_vec();
                reply.extend_from_slice(&self.memory[at..at + count]);
                self.send(id, command, 1, 0, &reply, None);
            }
            (Some(at), 12) => {
                self.memory[at..at + count].copy_from_slice(&body[16..16 + count]);
                self.send(id, command, 1, 0, &body[..16], None);
            }
            _ => self.send(id, command, 1 | 1 << 5, 19, &[], None),
        }
    }

    fn call(&mut self, command: u16, body: &[u8]) -> Reply {
        self.call_fd(command, body, None)
    }

    fn read(&mut self, off: u64) -> u64 {
        let reply = self.call(9, &words(&[off, 8 << 32]));
        assert_eq!((reply.error, reply.body.len()), (0, 24));
        u64_at(&reply.body, 16)
    }

    fn write(&mut self, off: u64, val: u64) {
        // Posted, as QEMU sends it.
        self.send(999, 10, 1 << 4, 0, &words(&[off, 8 << 32, val]), None);
    }

    fn config_write(&mut self, off: u64, data: &[u8]) {
        let mut body = words(&[off, (data.len() as u64) << 32 | 7]);
        body.extend_from_slice(data);
        assert_eq!(self.call(10, &body).error, 0);
    }

    fn map(
        &mut self,
        flags: u32,
        offset: u64,
        iova: u64,
        size: u64,
        fd: Option<BorrowedFd<'_>>,
    ) -> u32 {
        self.call_fd(
            2,
            &words(&[32 | (u64::from(flags) << 32), offset, iova, size]),
            fd,
        )
        .error
    }

    fn wait(&mut self, slot: u64) -> u64 {
        let begin = Instant::now();
        loop {
            let status = self.read(0x1000 * (slot + 1) + 0x18) & 0xffff_ffff;
            if status != 1 {
                return status;
            }
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
    }
}

struct Fixture {
    _dir: tempfile::TempDir,
    raw: Raw,
    path: std::path::PathBuf,
    card: Arc<Card>,
    recorder: Recorder,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let engines = [EngineKind::Linkedlist, EngineKind::Membench];
    let mut config = CardConfig::new(Profile::Irq, IrqKind::Msix, &engines).unwrap();
    config.apply("slot=all,speed=0").unwrap();
    let (recorder, _) = Recorder::start(Box::new(std::io::sink()));
    let card = Card::new(config, recorder.clone());
    let path = dir.path().join("s");
    let server = Server::new(card.clone(), UnixListener::bind(&path).unwrap());
    std::thread::spawn(move || server.run(|_| ()));
    let raw = connect(&path);
    Fixture {
        _dir: dir,
        raw,
        path,
        card,
        recorder,
    }
}

fn connect(path: &std::path::Path) -> Raw {
    let stream = UnixStream::connect(path).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut raw = Raw {
        stream,
        next: 0,
        at: 0x10_0000,
        memory: vec![0; 0x10_0000],
        asked: 0,
    };
    let mut version = vec![0, 0, 1, 0];
    version.extend_from_slice(b"{\"capabilities\":{}}\0");
    let reply = raw.call(1, &version);
    assert_eq!(reply.error, 0);
    let text = std::str::from_utf8(&reply.body[4..])
        .unwrap()
        .trim_end_matches('\0');
    assert!(serde_json::from_str::<serde_json::Value>(text).unwrap()["capabilities"].is_object());
    raw.config_write(4, &[6, 0]);
    raw
}

fn membench(raw: &mut Raw, at: u64, count: u64, mode: u64, result: u64) {
    raw.write(0x188, 0);
    raw.write(0x1c8, 1 << 47);
    for (off, val) in [
        (0x30, at),
        (0x38, 0x1000),
        (0x40, count),
        (0x48, 1),
        (0x58, mode),
        (0x60, result),
    ] {
        raw.write(0x2000 + off, val);
    }
    raw.write(0x2018, 1);
}

#[test]
fn dma_goes_by_message_where_no_descriptor_leads() {
    let mut f = fixture();
    // A page that is known but not shared, like ROM.
    assert_eq!(f.raw.map(3, 0, 0x10_0000, 0x1000, None), 0);
    membench(&mut f.raw, 0x10_0000, 64, 1, 0x10_2000);
    assert_eq!(f.raw.wait(1), 2);
    assert_eq!(f.raw.asked, 65);
    assert_eq!(
        u64_at(&f.raw.memory, 0),
        fermata_card::engine::splitmix64(1)
    );
    assert_eq!(u64_at(&f.raw.memory, 0x2000), 64);
    let written = u64_at(&f.raw.memory, 0x2008);
    membench(&mut f.raw, 0x10_0000, 64, 0, 0x10_2000);
    assert_eq!(f.raw.wait(1), 2);
    assert_eq!(u64_at(&f.raw.memory, 0x2008), written, "read back");
    // Nobody answers for this address: zeros are read, and an error is counted.
    membench(&mut f.raw, 0x90_0000, 4, 0, 0);
    assert_eq!(f.raw.wait(1), 2);
    assert_eq!(f.raw.read(0x2060), 0);
    assert!(
        f.recorder
            .ask(|j| j.ledger.counters(1).dma_errors.to_string())
            == "4"
    );
}

#[test]
fn a_snapshot_may_go_by_message_or_fail() {
    let mut f = fixture();
    f.raw.write(0x2028, 0x11_0000 / 64);
    membench(&mut f.raw, 0x10_0000, 1 << 40, 1, 0);
    while f.raw.asked < 5 {
        f.raw.read(0x20);
    }
    f.raw.write(0x2018, 6);
    assert_eq!(f.raw.wait(1), 4);
    assert_ne!(u64_at(&f.raw.memory, 0x1_0000), 0);
    // A restore from an address without memory.
    f.raw.write(0x2028, 0x90_0000 / 64);
    f.raw.write(0x2018, 5);
    assert_eq!(f.raw.wait(1), 2 | 1 << 9);
    let errors = f.recorder.ask(|j| j.checker.text());
    assert_eq!(errors, "total=1 unmapped_dma=1");
}

#[test]
fn a_reset_does_not_wait_for_a_client_that_does_not_answer() {
    let mut f = fixture();
    membench(&mut f.raw, 0x10_0000, 1, 0, 0);
    let (id, command, _) = f.raw.receive();
    assert_eq!(command, 11);
    // The flush returns although the request is unanswered; the answer that comes too late is
    // dropped.
    f.raw
        .send(7, 10, 1 << 4, 0, &words(&[0x18, 8 << 32, 2]), None);
    assert_eq!(f.raw.read(0x2018) & 0xff, 0);
    f.raw.send(id, 11, 1, 0, &words(&[0, 64, 0]), None);
    assert_eq!(f.raw.read(0x20), 2);
}

#[test]
fn an_unmap_ends_access() {
    let mut f = fixture();
    let ram = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
    ram.set_len(0x1000).unwrap();
    assert_eq!(f.raw.map(3, 0, 0x80_0000, 0x1000, Some(ram.as_fd())), 0);
    for _ in 0..20 {
        membench(&mut f.raw, 0x80_0000, 1 << 40, 1, 0);
        std::thread::sleep(Duration::from_micros(500));
        assert_eq!(f.raw.call(3, &words(&[24, 0x80_0000, 0x1000])).error, 0);
        ram.write_all_at(&[0; 0x1000], 0).unwrap();
        f.raw.read(0x20);
        let mut page = [0; 0x1000];
        ram.read_exact_at(&mut page, 0).unwrap();
        assert!(
            page.iter().all(|b| *b == 0),
            "written after the unmap was answered"
        );
        f.raw.write(0x18, 2);
        f.raw.read(0x2018);
        f.raw.write(0x18, 0);
        assert_eq!(f.raw.map(3, 0, 0x80_0000, 0x1000, Some(ram.as_fd())), 0);
    }
}

#[test]
fn read_only_memory_is_not_written() {
    let mut f = fixture();
    let ram = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
    ram.set_len(0x1000).unwrap();
    assert_eq!(f.raw.map(1, 0, 0x80_0000, 0x1000, Some(ram.as_fd())), 0);
    membench(&mut f.raw, 0x80_0000, 64, 1, 0);
    assert_eq!(f.raw.wait(1), 2);
    let mut page = [0; 0x1000];
    ram.read_exact_at(&mut page, 0).unwrap();
    assert!(page.iter().all(|b| *b == 0));
    assert_eq!(f.raw.asked, 0);
}

#[test]
fn errors_have_an_errno() {
    let mut f = fixture();
    let raw = &mut f.raw;
    assert_eq!(raw.map(3, 0, 0x1000, 0x1000, None), 0);
    assert_eq!(raw.map(3, 0, 0x1000, 0x1000, None), EEXIST);
    assert_eq!(raw.map(3, 0, u64::MAX, 0x1000, None), EINVAL);
    let small = memfd_create("small", MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(
        raw.map(3, 0, 0x10_0000, 0x1000, Some(small.as_fd())),
        EINVAL
    );
    assert_eq!(
        raw.call(3, &words(&[24, 0x77_0000, 0])).error,
        0,
        "an unmap of nothing"
    );
    assert_eq!(raw.call(3, &words(&[24, 0, u64::MAX])).error, 0);
    assert_eq!(raw.call(3, &words(&[24 | 2 << 32, 0, 0])).error, 0);
    assert_eq!(raw.call(99, &[]).error, ENOSYS);
    for command in [1, 2, 3, 5, 7, 8, 9, 10] {
        assert_eq!(
            raw.call(command, &[1]).error,
            EINVAL,
            "command {command} without a body"
        );
    }
    assert_eq!(raw.call(1, &[1, 0, 0, 0]).error, EINVAL, "major version 1");
    assert_eq!(
        raw.call(9, &words(&[0, 8 << 32 | 3])).error,
        EINVAL,
        "no such region"
    );
    assert_eq!(
        raw.call(9, &words(&[0, 0xffff_ffff << 32])).error,
        EINVAL,
        "too long"
    );
    assert_eq!(
        raw.call(10, &words(&[0, 64 << 32])).error,
        EINVAL,
        "data missing"
    );
    assert_eq!(raw.call(5, &words(&[32, 9])).error, EINVAL);
    let info = raw.call(5, &words(&[32, 0, 0, 0]));
    assert_eq!(u64_at(&info.body, 16), 0x1_0000);
    assert_eq!(info.body[4], 3, "readable and writable, not mappable");
    let irqs = raw.call(7, &words(&[16, 2]));
    assert_eq!(irqs.body[12], 8);
    assert_eq!(raw.call(7, &words(&[16, 5])).error, EINVAL);
}

#[test]
fn a_card_outlives_a_bad_client() {
    let mut f = fixture();
    for bad in [vec![0; 16], vec![0xff; 16], vec![1, 0, 9, 0, 200, 0, 0, 0]] {
        f.raw.stream.write_all(&bad).unwrap();
        drop(f.raw);
        f.raw = connect(&f.path);
        assert_eq!(f.raw.read(0x20), 2);
    }
    f.card.stop();
}

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

/// One message of a client.
#[derive(Clone, Debug)]
struct Message {
    command: u16,
    /// How far the length in the header is from the true length.
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

/// Values that have a meaning somewhere: indices, sizes, registers, commands of slots, limits.
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

fn any_words() -> impl Strategy<Value = Vec<u8>> {
    let bytes = |words: Vec<u64>| words.into_iter().flat_map(u64::to_le_bytes).collect();
    vec(word(), 0..8).prop_map(bytes)
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let cut = (any_words(), 0usize..64).prop_map(|(mut bytes, length)| {
        bytes.truncate(length);
        bytes
    });
    prop_oneof![4 => any_words(), 2 => cut, 1 => vec(any::<u8>(), 0..200)]
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

/// Aborts the test when a thread panics.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// A card that serves one client after another.
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
            // A server that has panicked would leave the next client without an answer forever.
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

    /// Checks that a correct client gets its job done.
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
            // The server may have closed the connection to this client.
            let _ = messages.iter().try_for_each(|message| message.send(&stream));
            drop(stream);
            served.works();
        });
    }
}
