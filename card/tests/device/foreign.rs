// SPDX-License-Identifier: GPL-2.0-or-later
//! A foreign card: what its library is asked, what becomes of what it answers, and what the log says.

use fermata_card::config::{IrqKind, Profile};
use fermata_card::control::ControlServer;
use fermata_card::device::Device;
use fermata_card::engine::EngineKind;
use fermata_card::event::{Event, What};
use fermata_card::foreign::interface::{
    CardCalls, Functions, HostCalls, DMA_MAX, EINVAL, ENODEV, OK, UNANSWERED, VERSION,
};
use fermata_card::foreign::{Foreign, Make};
use fermata_card::log::Recorder;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

/// Where a test tells the chip below to call the host: the value is the slot, the length or the
/// vector, and the answer is read at `ANSWER`.
const DMA: u64 = 0x1030;
const LENGTH: u64 = 0x1038;
const NULL: u64 = 0x1040;
const VECTOR: u64 = 0x1048;
const ANSWER: u64 = 0x1058;
/// A register that does not answer, and a register whose answer is none.
const SILENT: u64 = 0x1060;
const ODD: u64 = 0x1068;
/// What the status is.
const STATUS: u64 = 0x1070;
const CTL: u64 = 0x1018;

/// A chip with two slots, of which the first has the id of sha256.
#[derive(Default)]
struct Chip {
    host: usize,
    status: u64,
    answer: c_int,
    word: u64,
    ticks: u64,
}

/// Returns the chip of a call.
fn chip<'a>(card: *mut c_void) -> &'a mut Chip {
    // SAFETY: the host gives back what `open` has set.
    unsafe { &mut *card.cast::<Chip>() }
}

extern "C" fn open(
    host: *const HostCalls,
    argument: *const c_char,
    card: *mut *mut c_void,
) -> c_int {
    // SAFETY: the host gives a string.
    if unsafe { CStr::from_ptr(argument) } == c"no" {
        return 9;
    }
    let chip = Chip {
        host: host as usize,
        ..Chip::default()
    };
    // SAFETY: the host gives a place for the pointer.
    unsafe { *card = Box::into_raw(Box::new(chip)).cast() };
    0
}

extern "C" fn close(card: *mut c_void) {
    // SAFETY: `open` has made the box, and this is the last call.
    drop(unsafe { Box::from_raw(card.cast::<Chip>()) });
}

extern "C" fn reset(card: *mut c_void) {
    let chip = chip(card);
    *chip = Chip {
        host: chip.host,
        ..Chip::default()
    };
}

extern "C" fn bar_read(card: *mut c_void, off: u64, _: u32, value: *mut u64) -> c_int {
    let chip = chip(card);
    let (high, low) = EngineKind::Sha256.afu_id();
    let read = match off {
        0x20 => 2,
        0x1008 => low,
        0x1010 => high,
        CTL => chip.status,
        ANSWER => chip.answer as u64,
        DMA => chip.word,
        SILENT => return UNANSWERED,
        ODD => return 77,
        _ => 0x1234_5678_9abc_def0,
    };
    // SAFETY: the host gives a place for the value.
    unsafe { *value = read };
    OK
}

extern "C" fn bar_write(card: *mut c_void, off: u64, _: u32, value: u64) {
    let chip = chip(card);
    let (slot, word) = (value as u32, (&raw mut chip.word).cast::<c_void>());
    // SAFETY: the host's structure is valid until the card is closed; so are the chip's eight bytes,
    // of which the host takes no more before it refuses the length.
    unsafe {
        let host = &*(chip.host as *const HostCalls);
        match off {
            // The address is that of the test's memory.
            DMA => chip.answer = (host.dma_read)(host.host, slot, 0x1000, word, 8),
            LENGTH => chip.answer = (host.dma_write)(host.host, 0, 0x1000, word, value as usize),
            NULL => chip.answer = (host.dma_write)(host.host, 0, 0, std::ptr::null(), 8),
            VECTOR => chip.answer = (host.interrupt)(host.host, slot),
            STATUS => chip.status = value,
            _ => {}
        }
    }
}

extern "C" fn tick(card: *mut c_void, cycles: u64) -> c_int {
    let chip = chip(card);
    assert!(cycles > 0);
    chip.ticks += 1;
    // It works for a while after each access.
    c_int::from(chip.ticks % 8 != 0)
}

const CALLS: CardCalls = CardCalls {
    version: VERSION,
    size: size_of::<CardCalls>() as u32,
    open: Some(open),
    close: Some(close),
    reset: Some(reset),
    bar_read: Some(bar_read),
    bar_write: Some(bar_write),
    tick: Some(tick),
};

fn make(profile: Profile) -> Make {
    Make {
        profile,
        irq: IrqKind::Msix,
        settings: vec!["slot=all,settle_us=0".into()],
        argument: c"".into(),
    }
}

struct Rig {
    card: Arc<Foreign>,
    control: Arc<ControlServer>,
    log: File,
}

impl Rig {
    fn new(profile: Profile) -> Self {
        let log = File::from(memfd_create("log", MemfdFlags::CLOEXEC).unwrap());
        let (recorder, _) = Recorder::start(Box::new(log.try_clone().unwrap()));
        // SAFETY: the functions above are as the header wants them.
        let functions = unsafe { Functions::of(&CALLS) }.unwrap();
        let card = Foreign::start(functions, make(profile), recorder).unwrap();
        let memory = memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, 0x2000).unwrap();
        rustix::io::pwrite(&memory, &7u64.to_le_bytes(), 0).unwrap();
        let memory = Some((memory, 0));
        card.host()
            .memory
            .map(0x1000, 0x1000, true, memory)
            .unwrap();
        let control = ControlServer::new(card.clone(), || ());
        let rig = Self { card, control, log };
        rig.card.config_write(4, &[6, 0]);
        rig
    }

    fn read(&self, off: u64) -> u64 {
        let mut data = [0; 8];
        self.card.bar_read(off, &mut data);
        u64::from_le_bytes(data)
    }

    fn write(&self, off: u64, value: u64) {
        self.card.bar_write(off, &value.to_le_bytes());
    }

    /// Makes the chip call the host, and returns what the host answered.
    fn call(&self, off: u64, value: u64) -> c_int {
        self.write(off, value);
        self.read(ANSWER) as c_int
    }

    fn ask(&self, request: &str) -> String {
        self.control.answer(&format!("1 {request}")).unwrap()
    }

    /// Returns what the log has of this kind.
    fn logged(&self, kind: fn(&What) -> bool) -> Vec<What> {
        self.ask("violations");
        let mut text = vec![0; self.log.metadata().unwrap().len() as usize];
        self.log.read_exact_at(&mut text, 0).unwrap();
        let lines = text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        let events = lines.map(|line| {
            Event::parse(std::str::from_utf8(line).unwrap())
                .unwrap()
                .what
        });
        events.filter(kind).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.card.stop();
    }
}

#[test]
fn a_library_of_another_version_or_without_a_function_is_refused() {
    let error = |calls: &CardCalls| {
        // SAFETY: the structure is valid.
        unsafe { Functions::of(calls) }.err().unwrap()
    };
    let newer = CardCalls {
        version: VERSION + 1,
        ..CALLS
    };
    assert!(error(&newer).contains("has version 2 of the interface, and this program version 1"));
    assert!(error(&CardCalls { size: 8, ..CALLS }).contains("has 8 bytes instead of 56"));
    assert_eq!(
        error(&CardCalls {
            tick: None,
            ..CALLS
        }),
        "the library has no tick()"
    );
    // SAFETY: null is allowed.
    let none = unsafe { Functions::of(std::ptr::null()) };
    assert!(none.err().unwrap().contains("NULL"));
    // SAFETY: as above.
    let functions = unsafe { Functions::of(&CALLS) }.unwrap();
    let refuses = Make {
        argument: c"no".into(),
        ..make(Profile::Irq)
    };
    let refused = Foreign::start(functions, refuses, Recorder::none());
    assert_eq!(refused.err().unwrap(), "the library's open() returned 9");
}

#[test]
fn reads_reach_the_library_and_may_stay_unanswered() {
    let rig = Rig::new(Profile::Irq);
    assert_eq!(rig.ask("ping"), "1 ok profile=irq slots=2 irq=msix");
    assert_eq!(rig.read(0x1078), 0x1234_5678_9abc_def0);
    let mut half = [0; 4];
    rig.card.bar_read(0x1078, &mut half);
    assert_eq!(u32::from_le_bytes(half), 0x9abc_def0);
    assert_eq!(rig.read(SILENT), u64::MAX);
    rig.card.bar_read(SILENT, &mut half);
    assert_eq!(half, [0xff; 4]);
    // QEMU's, not the library's.
    assert_eq!(rig.read(0xe000), 0);
    let mut odd = [0; 3];
    rig.card.bar_read(0x1078, &mut odd);
    assert_eq!(odd, [0xff; 3]);
    assert!(rig.ask("violations").contains(" bad_access=2"));
    assert!(rig.ask("state slot=0").starts_with("1 err a foreign card"));
}

#[test]
fn bad_call() {
    let rig = Rig::new(Profile::Irq);
    assert_eq!((rig.call(DMA, 0), rig.read(DMA)), (OK, 7));
    assert_eq!(rig.call(DMA, u64::from(u32::MAX)), OK);
    assert_eq!(rig.ask("violations"), "1 ok total=0");
    assert_eq!(rig.call(DMA, 2), EINVAL);
    assert_eq!(rig.call(LENGTH, DMA_MAX as u64 + 1), EINVAL);
    assert_eq!(rig.call(LENGTH, 0), EINVAL);
    assert_eq!(rig.call(NULL, 0), EINVAL);
    assert_eq!(rig.call(VECTOR, 2), EINVAL);
    assert_eq!(rig.read(ODD), u64::MAX);
    assert_eq!(rig.ask("violations"), "1 ok total=6 bad_call=6");
    let why = "1 ok bad_call: bar_read() at 0x1068 returned 77";
    assert_eq!(rig.ask("why"), why);
    // Nobody listens to the vector.
    assert_eq!(rig.call(VECTOR, 1), ENODEV);
    rig.card.unmap(0x1000, 0x1000);
    assert_eq!((rig.call(DMA, 0), rig.read(DMA)), (ENODEV, 0));
    let counters = rig.ask("counters slot=0");
    assert!(counters.contains(" dma_reads=1 "), "{counters}");
    assert!(counters.contains(" dma_errors=1 "), "{counters}");
}

#[test]
fn dma_without_a_slot_is_logged_and_judged_as_such() {
    let rig = Rig::new(Profile::Irq);
    let none = u64::from(u32::MAX);
    assert_eq!(rig.call(DMA, none), OK);
    let of_slot = |slot| move |what: &What| matches!(what, What::Dma { slot: known, .. } | What::DmaError { slot: known, .. } if *known == slot);
    let dma = rig.logged(|what| matches!(what, What::Dma { .. } | What::DmaError { .. }));
    assert_eq!(dma.len(), 1);
    assert!(dma.iter().all(of_slot(None)), "{dma:?}");
    // It may be the job of any tenant, but of a tenant.
    let What::Dma { ranges, .. } = &dma[0] else {
        panic!("{dma:?}")
    };
    rig.ask(&format!("tenant token=9 pages={}+4096", ranges[0].0));
    assert_eq!(rig.call(DMA, none), OK);
    assert_eq!(rig.ask("violations"), "1 ok total=0");
    rig.ask("tenant token=9 gone");
    assert_eq!(rig.call(DMA, none), OK);
    assert_eq!(rig.ask("violations"), "1 ok total=1 foreign_dma=1");
    assert!(
        rig.ask("why").contains("foreign_dma: no slot: "),
        "{}",
        rig.ask("why")
    );
    rig.card.unmap(0x1000, 0x1000);
    assert_eq!(rig.call(DMA, none), ENODEV);
    let errors = rig.logged(|what| matches!(what, What::DmaError { .. }));
    assert_eq!(errors.len(), 1);
    assert!(errors.iter().all(of_slot(None)), "{errors:?}");
}

#[test]
fn no_dma_without_bus_mastering_or_after_a_reset() {
    let rig = Rig::new(Profile::Irq);
    rig.card.config_write(4, &[2, 0]);
    assert_eq!((rig.call(DMA, 0), rig.read(DMA)), (ENODEV, 0));
    rig.card.config_write(4, &[6, 0]);
    assert_eq!((rig.call(DMA, 0), rig.read(DMA)), (OK, 7));
    rig.card.device_reset();
    assert_eq!(rig.read(DMA), 0, "the library was not reset");
    assert_eq!(rig.call(DMA, 0), ENODEV);
}

#[test]
fn the_checker_judges_the_driver_of_a_foreign_card() {
    let rig = Rig::new(Profile::Base);
    assert_eq!(rig.card.config().irq, IrqKind::None);
    for round in 0..2 {
        rig.write(CTL, if round == 0 { 1 } else { 5 });
        rig.write(STATUS, 1);
        rig.read(CTL);
        rig.write(CTL, 6);
        rig.write(STATUS, if round == 0 { 4 } else { 2 });
        rig.read(CTL);
    }
    let counters = rig.ask("counters slot=0");
    for part in ["starts=1 resumes=1 ", " paused=1 finished=1 "] {
        assert!(counters.contains(part), "{counters}");
    }
    assert_eq!(rig.ask("violations"), "1 ok total=0");
    rig.write(CTL, 1);
    rig.write(STATUS, 1);
    rig.write(CTL, 1);
    rig.write(0x30, 5);
    rig.write(0x18, 1);
    rig.read(0x1030);
    let violations = "1 ok total=3 start_busy=1 window_busy=1 unanswered_read=1";
    assert_eq!(rig.ask("violations"), violations);
}
