// SPDX-License-Identifier: GPL-2.0-or-later
//! A card, plugged by a vfio-user client that is not the card's own code, with a memfd as guest
//! memory. The card is emulated in this process; or it is the card that `fermata-vfio` serves on a
//! host's card: with `FERMATA_VFIO=PROGRAM`, in a machine whose emulated card has the slots of the
//! test, one test at a time. In that case, settings are those of the host's card, and the verdict
//! is that of its checker.

use fermata_card::card::Card;
use fermata_card::config::{CardConfig, IrqKind, Profile, Settings};
use fermata_card::control::{Control, ControlServer};
pub use fermata_card::engine::splitmix64;
use fermata_card::engine::EngineKind;
use fermata_card::log::{replay, Recorder};
use fermata_card::vfio::Server;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{memfd_create, MemfdFlags};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vfio_user::Client;

pub const BAR0: u32 = 0;
pub const CONFIG: u32 = 7;
pub const RAM: u64 = 16 << 20;
pub const READ_ONLY: u64 = 1 << 32;
pub const START_NEW: u64 = 1;
pub const START_RESUME: u64 = 5;
pub const PAUSE: u64 = 6;
pub const PAUSE_AT_BOUNDARY: u64 = 7;
pub const IDLE: u64 = 0;
pub const RUNNING: u64 = 1;
pub const FINISH: u64 = 2;
pub const PAUSED: u64 = 4;
pub const CTL: u64 = 0x18;
/// The status without START_COUNT and the duration of the last restore.
const STATE: u64 = 0xfff;
pub const SNAPSHOT: u64 = 0x28;
pub const TAG: u64 = 0x50;
/// Longer than anything that a test waits for, on any machine.
pub const LIMIT: Duration = Duration::from_secs(60);

pub struct Rig {
    dir: tempfile::TempDir,
    pub client: Client,
    pub ram: File,
    pub irqs: Vec<OwnedFd>,
    profile: Profile,
    device: Device,
}

/// The card to which the client is connected.
enum Device {
    Emulated(Emulated),
    Daemon(Daemon),
}

/// A card in this process.
struct Emulated {
    card: Arc<Card>,
    control: Arc<ControlServer>,
    server: Arc<Server>,
    serving: Option<JoinHandle<()>>,
    recorder: Recorder,
    writer: Option<JoinHandle<()>>,
}

pub struct Options {
    pub profile: Profile,
    pub irq: IrqKind,
    pub engines: Vec<EngineKind>,
    pub set: Vec<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        use EngineKind::{Linkedlist, Membench, Sha256};
        Self {
            profile: Profile::Irq,
            irq: IrqKind::Msix,
            engines: vec![Linkedlist, Membench, Sha256],
            set: vec![],
        }
    }
}

pub fn irq() -> Rig {
    Rig::new(Options::default())
}

pub fn base() -> Rig {
    Rig::with(Profile::Base, &[])
}

impl Emulated {
    fn new(options: &Options, dir: &Path, socket: &Path) -> Self {
        let mut config = CardConfig::new(options.profile, options.irq, &options.engines).unwrap();
        options.set.iter().for_each(|s| config.apply(s).unwrap());
        let log = File::create(dir.join("log")).unwrap();
        let (recorder, writer) = Recorder::start(Box::new(std::io::BufWriter::new(log)));
        let card = Card::new(config, recorder.clone());
        let server = Arc::new(Server::new(
            card.clone(),
            UnixListener::bind(socket).unwrap(),
        ));
        let serve = server.clone();
        let serving = Some(std::thread::spawn(move || serve.run(|_| ()).unwrap()));
        let stop = server.clone();
        let control = ControlServer::new(card.clone(), move || stop.stop());
        Self {
            card,
            control,
            server,
            serving,
            recorder,
            writer: Some(writer),
        }
    }

    fn end(&mut self) {
        self.server.stop();
        if let Some(thread) = self.serving.take() {
            thread.join().unwrap();
        }
        self.card.stop();
        self.recorder.stop();
        if let Some(thread) = self.writer.take() {
            thread.join().unwrap();
        }
    }
}

impl Rig {
    /// Returns a card with the usual engines and interrupts.
    pub fn with(profile: Profile, set: &[&'static str]) -> Self {
        Self::new(Options {
            profile,
            set: set.to_vec(),
            ..Options::default()
        })
    }

    pub fn new(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("card.sock");
        let device = match Daemon::program() {
            Some(program) => Device::Daemon(Daemon::start(&program, &options, &socket)),
            None => Device::Emulated(Emulated::new(&options, dir.path(), &socket)),
        };
        let ram = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
        ram.set_len(RAM).unwrap();
        let client = Client::new(&socket).unwrap();
        let mut rig = Self {
            dir,
            client,
            ram,
            irqs: vec![],
            profile: options.profile,
            device,
        };
        rig.plug(match options.profile {
            Profile::Base => IrqKind::None,
            _ => options.irq,
        });
        rig
    }

    fn emulated(&self) -> &Emulated {
        match &self.device {
            Device::Emulated(device) => device,
            Device::Daemon(_) => panic!("this test needs the emulated card itself"),
        }
    }

    pub fn card(&self) -> &Arc<Card> {
        &self.emulated().card
    }

    pub fn control(&self) -> &ControlServer {
        &self.emulated().control
    }

    /// Sets up memory, interrupts and bus mastering, as a guest does.
    pub fn plug(&mut self, irq: IrqKind) {
        self.client
            .dma_map(0, 0, RAM, self.ram.as_raw_fd())
            .unwrap();
        self.irqs = (0..8)
            .map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap())
            .collect();
        let fds: Vec<_> = self.irqs.iter().map(AsRawFd::as_raw_fd).collect();
        match irq {
            IrqKind::Msix => self.client.set_irqs(2, 0x24, 0, 8, &fds).unwrap(),
            IrqKind::Msi => self.client.set_irqs(1, 0x24, 0, 8, &fds).unwrap(),
            IrqKind::None => {}
        }
        self.master();
    }

    pub fn master(&mut self) {
        self.client.region_write(CONFIG, 4, &[6, 0]).unwrap();
    }

    pub fn no_master(&mut self) {
        self.client.region_write(CONFIG, 4, &[2, 0]).unwrap();
    }

    /// Maps memory that cannot be written, at [`READ_ONLY`]: an access fails without a request to
    /// the client (which answers no requests).
    pub fn map_read_only(&mut self) {
        let own = memfd_create("ro", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&own, 1 << 20).unwrap();
        let file = File::open(format!("/proc/self/fd/{}", own.as_raw_fd())).unwrap();
        self.client
            .dma_map(0, READ_ONLY, 1 << 20, file.as_raw_fd())
            .unwrap();
    }

    /// Connects again, as QEMU does after a reboot.
    pub fn reconnect(&mut self) {
        self.client.shutdown().unwrap();
        self.client = Client::new(&self.dir.path().join("card.sock")).unwrap();
    }

    pub fn r(&mut self, off: u64) -> u64 {
        let mut data = [0; 8];
        self.client.region_read(BAR0, off, &mut data).unwrap();
        u64::from_le_bytes(data)
    }

    pub fn w(&mut self, off: u64, val: u64) {
        self.client
            .region_write(BAR0, off, &val.to_le_bytes())
            .unwrap();
    }

    pub fn sr(&mut self, slot: u64, off: u64) -> u64 {
        self.r(0x1000 * (slot + 1) + off)
    }

    pub fn sw(&mut self, slot: u64, off: u64, val: u64) {
        self.w(0x1000 * (slot + 1) + off, val);
    }

    /// Returns the status without START_COUNT and the duration of the last restore.
    pub fn status(&mut self, slot: u64) -> u64 {
        self.sr(slot, CTL) & STATE
    }

    /// Sets the offset, in bytes.
    pub fn offset(&mut self, slot: u64, bytes: u64) {
        let lines = (bytes as i64 >> 6) as u64;
        let base = self.profile == Profile::Base;
        self.w(0x30 + 8 * slot, if base { lines } else { bytes });
    }

    pub fn window(&mut self, slot: u64, base: u64, size: u64) {
        self.w(0x180 + 8 * slot, base);
        self.w(0x1c0 + 8 * slot, size);
    }

    pub fn open(&mut self, slot: u64) {
        self.window(slot, 0, RAM);
    }

    pub fn snapshot(&mut self, slot: u64, at: u64) {
        self.sw(slot, SNAPSHOT, at / 64);
    }

    pub fn reset(&mut self, slot: u64) {
        self.w(0x18, 1 << slot);
        self.w(0x18, 0);
    }

    /// Resets a slot as a driver of a base card does: reads back, and waits for the settle time.
    pub fn reset_and_settle(&mut self, slot: u64) {
        self.reset(slot);
        self.status(slot);
        std::thread::sleep(Duration::from_micros(600));
    }

    /// Returns whether memory holds `want`, now or soon.
    pub fn comes_to_hold(&mut self, at: u64, want: &[u8]) -> bool {
        let begin = Instant::now();
        while self.get(at, want.len()) != want {
            if begin.elapsed() > LIMIT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    pub fn wait(&mut self, slot: u64, want: impl Fn(u64) -> bool) -> u64 {
        self.wait_status(slot, |status| want(status & STATE)) & STATE
    }

    /// Waits for a status; all its bits are compared.
    fn wait_status(&mut self, slot: u64, want: impl Fn(u64) -> bool) -> u64 {
        let begin = Instant::now();
        loop {
            let status = self.sr(slot, CTL);
            if want(status) {
                return status;
            }
            assert!(
                begin.elapsed() < LIMIT,
                "slot {slot} stays at status {status:#x}"
            );
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    pub fn wait_rest(&mut self, slot: u64) -> u64 {
        self.wait(slot, |s| s != RUNNING)
    }

    /// Waits until the engine computes: a restore is over, and a PAUSE will be honoured.
    pub fn wait_running(&self, slot: u64) {
        let begin = Instant::now();
        while !self
            .ask(&format!("state slot={slot}"))
            .contains("phase=running")
        {
            assert!(begin.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Waits until the status shows the duration of a restore. Before that, the values of the
    /// result registers are undefined.
    pub fn wait_restored(&mut self, slot: u64) {
        self.wait_status(slot, |status| status >> 12 & 0xf_ffff != 0);
    }

    /// Writes a list that never ends. Returns its head.
    pub fn endless(&self, at: u64) -> u64 {
        self.put64(at, at);
        self.put64(at + 8, 5);
        at
    }

    pub fn put(&self, gpa: u64, data: &[u8]) {
        self.ram.write_all_at(data, gpa).unwrap();
    }

    pub fn get(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.ram.read_exact_at(&mut data, gpa).unwrap();
        data
    }

    pub fn put64(&self, gpa: u64, value: u64) {
        self.put(gpa, &value.to_le_bytes());
    }

    pub fn get64(&self, gpa: u64) -> u64 {
        u64::from_le_bytes(self.get(gpa, 8).try_into().unwrap())
    }

    /// Sends a control request that must succeed. Returns what follows `ok`.
    pub fn ask(&self, request: &str) -> String {
        if let Device::Daemon(daemon) = &self.device {
            return daemon.ask_card(request);
        }
        let reply = self.control().answer(&format!("t {request}")).unwrap();
        reply
            .strip_prefix("t ok")
            .unwrap_or_else(|| panic!("{request}: {reply}"))
            .trim()
            .to_string()
    }

    /// Returns a reply as a table.
    pub fn table(&self, request: &str) -> BTreeMap<String, u64> {
        let reply = self.ask(request);
        let number = |v: &str| fermata_card::config::parse_number(v).ok();
        reply
            .split_whitespace()
            .filter_map(|w| w.split_once('='))
            .filter_map(|(k, v)| Some((k.into(), number(v)?)))
            .collect()
    }

    pub fn violations(&self) -> BTreeMap<String, u64> {
        let mut table = self.table("violations");
        let total = table.remove("total").unwrap();
        assert_eq!(total, table.values().sum::<u64>());
        table
    }

    #[track_caller]
    pub fn clean(&self) {
        assert_eq!(self.ask("violations"), "total=0", "{}", self.ask("why"));
    }

    /// Checks that exactly this kind was seen, `n` times. A daemon keeps its guest's mistakes away
    /// from the host's card.
    #[track_caller]
    pub fn saw(&self, kind: &str, n: u64) {
        if matches!(self.device, Device::Daemon(_)) {
            return self.clean();
        }
        assert_eq!(
            self.violations(),
            BTreeMap::from([(kind.to_string(), n)]),
            "{}",
            self.ask("why")
        );
    }

    /// Checks that a counter of the card is `n`. The card of a daemon is not asked.
    #[track_caller]
    pub fn counted(&self, slot: u64, key: &str, n: u64) {
        if matches!(self.device, Device::Emulated(_)) {
            assert_eq!(self.table(&format!("counters slot={slot}"))[key], n);
        }
    }

    /// Returns the number of interrupts of a vector since the last call.
    pub fn irqs(&self, vector: usize) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.irqs[vector], &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    pub fn wait_irq(&self, vector: usize) -> u64 {
        let begin = Instant::now();
        loop {
            match self.irqs(vector) {
                0 => assert!(begin.elapsed() < LIMIT, "no interrupt"),
                n => return n,
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Writes a list of `n` nodes in random order at `at`. Returns its head, and count and checksum
    /// of a walk from `seed`.
    pub fn list(&self, at: u64, n: u64, seed: u64) -> (u64, u64, u64) {
        let mut order: Vec<u64> = (0..n).collect();
        order.sort_by_key(|i| splitmix64(seed ^ i));
        let mut bytes = vec![0; n as usize * 16];
        let mut checksum = seed;
        for (k, &i) in order.iter().enumerate() {
            let next = order.get(k + 1).map_or(0, |j| at + 16 * j);
            let value = splitmix64(seed.wrapping_add(i));
            bytes[i as usize * 16..][..8].copy_from_slice(&next.to_le_bytes());
            bytes[i as usize * 16 + 8..][..8].copy_from_slice(&value.to_le_bytes());
            checksum = checksum.rotate_left(1) ^ value;
        }
        self.put(at, &bytes);
        (at + 16 * order[0], n, checksum)
    }

    /// Ends the card and replays its log: the online and the offline verdict must agree. A daemon's
    /// card has no log.
    pub fn replay(mut self) -> (String, String) {
        let online = self.ask("violations");
        let Device::Emulated(device) = &mut self.device else {
            return (online.clone(), online);
        };
        device.end();
        let log = BufReader::new(File::open(self.dir.path().join("log")).unwrap());
        let offline = replay(log).unwrap().checker.text();
        (online, offline)
    }

    pub fn log_text(&self) -> String {
        self.ask("violations");
        let mut text = String::new();
        File::open(self.dir.path().join("log"))
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        text
    }
}

const PORT: &str = "/dev/virtio-ports/fermata.card0";

/// A daemon that serves a card.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Returns the program, if the tests are to run against it.
    pub fn program() -> Option<OsString> {
        std::env::var_os("FERMATA_VFIO")
    }

    /// Starts the program, for a card with these options.
    pub fn start(program: &OsString, options: &Options, socket: &Path) -> Self {
        let irq = options.profile == Profile::Base || options.irq == IrqKind::Msix;
        assert!(irq, "a guest's card has MSI-X, or is a base card");
        let names: Vec<_> = options.engines.iter().map(|kind| kind.name()).collect();
        let mut command = Command::new(program);
        command.args(["serve", "--profile", options.profile.name()]);
        command.args(["--slots", &names.join(",")]);
        command.arg("--socket").arg(socket).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let daemon = Self { child };
        daemon.set_up(options);
        daemon
    }

    /// Sets up the host's card: the settings of the test, or else the defaults.
    fn set_up(&self, options: &Options) {
        self.ask_card("violations clear");
        for (slot, kind) in options.engines.iter().enumerate() {
            let Settings {
                speed,
                save_us,
                restore_us,
                ..
            } = Settings::default_for(*kind);
            self.ask_card(&format!(
                "set slot={slot} speed={speed} save_us={save_us} restore_us={restore_us}"
            ));
        }
        for set in &options.set {
            self.ask_card(&format!("set {}", set.replace(',', " ")));
        }
    }

    /// Sends a request to the host's card.
    pub fn ask_card(&self, request: &str) -> String {
        // The port can be opened only once, and a test may have two cards.
        Control::open(Path::new(PORT))
            .unwrap()
            .ask(request)
            .unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
