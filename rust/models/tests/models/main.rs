// SPDX-License-Identifier: GPL-2.0

//! Models of the lock-free types of the module, for loom, which runs each in all interleavings, and
//! with all values that its loads may return. The types are the same source files that the module
//! compiles; a few lines based on loom's types stand in for the kernel.

// The module's files use these names.
extern crate self as core;
extern crate self as kernel;

pub use ::std::*;

#[allow(
    clippy::missing_safety_doc,
    clippy::new_without_default,
    clippy::new_ret_no_self,
    reason = "the interface is that of the kernel crate"
)]
mod kernel_crate;
pub use kernel_crate::{bindings, cell, error, prelude, sync, types};

#[path = "../../../c_object.rs"]
#[allow(dead_code, reason = "tables of C are static")]
mod c_object;
#[path = "../../../delivery.rs"]
mod delivery;
#[path = "../../../gate.rs"]
#[allow(unexpected_cfgs, reason = "the host has none of the kernel's options")]
mod gate;
#[path = "../../../notifier.rs"]
#[allow(dead_code, reason = "no model has all notices")]
mod notifier;
#[path = "../../../presence.rs"]
#[allow(dead_code, reason = "not all is lock-free")]
mod presence;
#[path = "../../../wait_queue.rs"]
#[allow(dead_code, reason = "poll() needs a file")]
mod wait_queue;

use bindings::{run_irq_work, take_signals};
use delivery::Delivery;
use gate::UnplugGate;
use loom::cell::UnsafeCell;
use loom::thread::JoinHandle;
use notifier::{Notice, Notifier};
use prelude::*;
use presence::Presence;
use scheduler::Time;
use sync::Arc;

/// The part of the rest of the module that the types use.
mod scheduler {
    #[derive(Clone, Copy)]
    pub(crate) struct Time(pub(crate) u64);

    impl Time {
        pub(crate) fn from_ns(ns: u64) -> Self {
            Self(ns)
        }

        pub(crate) fn as_ns(self) -> u64 {
            self.0
        }
    }
}

/// The part of the rest of the module that the types use.
mod shim {
    use crate::bindings;

    pub(crate) unsafe fn fermata_irq_work_init(
        work: *mut bindings::irq_work,
        function: unsafe extern "C" fn(*mut bindings::irq_work),
    ) {
        // SAFETY: `work` is valid for writes.
        unsafe { work.write(bindings::irq_work::new(function)) };
    }

    pub(crate) unsafe fn fermata_wait_queue_init(queue: *mut bindings::wait_queue_head) {
        // SAFETY: `queue` is valid for writes.
        unsafe { queue.write(bindings::wait_queue_head::new()) };
    }

    pub(crate) fn schedule() {
        // SAFETY: The caller is on a wait queue.
        unsafe { bindings::schedule() };
    }

    pub(crate) fn schedule_hrtimeout_range(expires: &mut i64, slack: u64, mode: u32) -> i32 {
        // SAFETY: `expires` is valid.
        unsafe { bindings::schedule_hrtimeout_range(expires, slack, mode) }
    }

    pub(crate) fn synchronize_rcu() {
        // SAFETY: No requirement.
        unsafe { bindings::synchronize_rcu() };
    }

    pub(crate) fn eventfd_ctx_fdget(fd: i32) -> *mut bindings::eventfd_ctx {
        // SAFETY: No requirement.
        unsafe { bindings::eventfd_ctx_fdget(fd) }
    }
}

/// The part of the rest of the module that the types use.
mod raw_spinlock {
    use crate::prelude::PinInit;
    use loom::sync::{Mutex, MutexGuard};

    pub(crate) struct RawSpinLock<T>(Mutex<T>);

    impl<T> RawSpinLock<T> {
        pub(crate) fn new(value: T) -> impl PinInit<Self> {
            Self(Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    macro_rules! new_raw_spinlock {
        ($value:expr, $name:literal) => {
            $crate::raw_spinlock::RawSpinLock::new($value)
        };
    }
    pub(crate) use new_raw_spinlock;
}

/// Runs `threads` in all interleavings with a limited number of preemptions (besides waits) of a
/// thread. Each interleaving must free all that it allocates.
fn check(threads: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || sync::run(&threads));
}

const PREEMPTIONS: usize = 3;

/// A device that exists until its gate has closed.
#[pin_data]
struct Device {
    #[pin]
    gate: UnplugGate,
    registers: [UnsafeCell<()>; 2],
}

// SAFETY: Registers are accessed behind the gate, which is what the models show.
unsafe impl Send for Device {}
// SAFETY: As above.
unsafe impl Sync for Device {}

impl Device {
    fn new() -> Arc<Self> {
        let device = pin_init!(Self {
            gate <- UnplugGate::new(),
            registers: Default::default(),
        });
        Arc::pin_init(device, GFP_KERNEL_ACCOUNT).unwrap()
    }

    /// Writes a register, if the device still exists. Returns whether it does.
    fn write(&self, register: usize) -> bool {
        let Ok(_guard) = self.gate.enter() else {
            return false;
        };
        self.registers[register].with_mut(|_| ());
        true
    }

    fn remove(&self) {
        self.gate.close();
        for register in &self.registers {
            register.with_mut(|_| ());
        }
    }
}

fn spawn<R: 'static>(
    device: &Arc<Device>,
    call: impl FnOnce(&Device) -> R + 'static,
) -> JoinHandle<R> {
    let device = device.clone();
    loom::thread::spawn(move || call(&device))
}

/// Two calls in either order, the last of which completes for both.
#[test]
fn removal_comes_after_what_all_guards_did() {
    check(|| {
        let device = Device::new();
        let calls = [0, 1].map(|n| spawn(&device, move |device| device.write(n)));
        device.remove();
        calls.map(|call| call.join().unwrap());
    });
}

/// The last reference to the device may be dropped by any of them, as soon as it is done.
#[test]
fn a_late_caller_completes_what_is_there_still() {
    check(|| {
        let device = Device::new();
        let late = spawn(&device, |device| device.write(0));
        let removal = spawn(&device, Device::remove);
        drop(device);
        late.join().unwrap();
        removal.join().unwrap();
    });
}

/// No caller enters after the gate has closed, or after the caller saw it closing.
#[test]
fn nobody_enters_a_closed_gate() {
    check(|| {
        let device = Device::new();
        let call = spawn(&device, |device| {
            let closed = device.gate.is_closed();
            let entered = device.write(0);
            assert!(!(closed && entered));
        });
        device.gate.close();
        assert!(device.gate.is_closed() && !device.write(1));
        call.join().unwrap();
    });
}

const NEVER: Time = Time(u64::MAX);
const NOW: Time = Time(0);

/// A card, with its notices to owners.
#[pin_data]
struct Card {
    #[pin]
    presence: Presence,
    #[pin]
    delivery: Delivery,
}

/// A card and the notifiers of `N` contexts.
fn setup<const N: usize>() -> (Arc<Card>, [Arc<Notifier>; N]) {
    let card = pin_init!(Card {
        presence <- Presence::new(),
        delivery <- Delivery::new(),
    });
    (
        Arc::pin_init(card, GFP_KERNEL_ACCOUNT).unwrap(),
        [(); N].map(|()| Arc::pin_init(Notifier::new(), GFP_KERNEL_ACCOUNT).unwrap()),
    )
}

/// Gives `notices` on another CPU, where the `irq_work` runs after the references are dropped, as
/// on PREEMPT_RT.
fn give<const N: usize>(
    card: &Arc<Card>,
    notices: [(&Arc<Notifier>, Notice); N],
) -> JoinHandle<()> {
    let card = card.clone();
    let notices = notices.map(|(notifier, notice)| (notifier.clone(), notice));
    loom::thread::spawn(move || {
        for (notifier, notice) in &notices {
            card.delivery.tell(notifier, *notice);
        }
        drop((card, notices));
        run_irq_work();
    })
}

#[test]
fn a_sleeper_is_woken() {
    check(|| {
        let (card, [notifier]) = setup();
        let giver = give(&card, [(&notifier, Notice::Done)]);
        notifier
            .queue()
            .wait_uninterruptible(|| notifier.has(Notice::Done));
        giver.join().unwrap();
    });
}

/// When the second notice is given, the first is not yet delivered, being delivered, or delivered.
#[test]
fn notices_of_two_cpus_are_both_delivered() {
    check(|| {
        let (card, [notifier]) = setup();
        let givers = [Notice::Done, Notice::Held].map(|notice| give(&card, [(&notifier, notice)]));
        notifier
            .queue()
            .wait_uninterruptible(|| notifier.has(Notice::Done) && notifier.has(Notice::Held));
        givers.map(|giver| giver.join().unwrap());
    });
}

/// Both CPUs put both notifiers on the list, and each takes the list as a whole.
#[test]
fn two_owners_are_told_by_two_cpus() {
    check(|| {
        let (card, [one, other]) = setup();
        let giver = give(&card, [(&one, Notice::Done), (&other, Notice::Done)]);
        card.delivery.tell(&other, Notice::Held);
        run_irq_work();
        one.queue().wait_uninterruptible(|| one.has(Notice::Done));
        other
            .queue()
            .wait_uninterruptible(|| other.has(Notice::Done));
        giver.join().unwrap();
    });
}

/// Data that the giver wrote before a notice is visible to a receiver that sees the notice.
#[test]
fn a_notice_comes_with_what_it_is_about() {
    check(|| {
        let (card, [notifier]) = setup();
        let result = Arc::pin_init(loom::cell::UnsafeCell::new(0), GFP_KERNEL_ACCOUNT).unwrap();
        let giver = loom::thread::spawn({
            let (card, notifier, result) = (card.clone(), notifier.clone(), result.clone());
            move || {
                // SAFETY: No thread reads before the notice.
                result.with_mut(|result| unsafe { *result = 1 });
                card.delivery.tell(&notifier, Notice::Completed);
                drop((card, notifier));
                run_irq_work();
            }
        });
        if notifier.take(Notice::Completed) {
            // SAFETY: No thread writes after the notice.
            assert_eq!(result.with(|result| unsafe { *result }), 1);
        }
        giver.join().unwrap();
    });
}

#[test]
fn a_completion_is_taken_once() {
    check(|| {
        let (card, [notifier]) = setup();
        card.delivery.tell(&notifier, Notice::Completed);
        run_irq_work();
        let other = loom::thread::spawn({
            let notifier = notifier.clone();
            move || notifier.take(Notice::Completed)
        });
        let taken = notifier.take(Notice::Completed);
        assert!(taken != other.join().unwrap());
    });
}

#[test]
fn a_notice_at_the_deadline_is_found() {
    check(|| {
        let (card, [notifier]) = setup();
        let giver = give(&card, [(&notifier, Notice::Done)]);
        let found = notifier
            .queue()
            .wait(NOW, || notifier.has(Notice::Done))
            .unwrap();
        giver.join().unwrap();
        assert!(found || notifier.has(Notice::Done));
    });
}

/// As `Context::release()`: the owner sleeps until it is notified, and is freed then, whatever else
/// is
/// still being delivered.
#[test]
fn an_owner_may_be_freed_as_soon_as_it_is_told() {
    check(|| {
        let (card, [notifier]) = setup();
        let givers =
            [Notice::Done, Notice::Released].map(|notice| give(&card, [(&notifier, notice)]));
        notifier
            .queue()
            .wait_uninterruptible(|| notifier.has(Notice::Released));
        drop(notifier);
        givers.map(|giver| giver.join().unwrap());
    });
}

/// The handler of the single `irq_work` may run on two CPUs at once when the last reference to the
/// card is dropped.
#[test]
fn a_card_may_be_freed_while_notices_are_delivered() {
    check(|| {
        let (card, [one, other]) = setup();
        let givers = [one, other].map(|notifier| give(&card, [(&notifier, Notice::Gone)]));
        drop(card);
        givers.map(|giver| giver.join().unwrap());
    });
}

#[test]
fn an_eventfd_is_signalled_of_its_notices_only() {
    check(|| {
        let (card, [notifier]) = setup();
        notifier.set_eventfd(Some(0), Notice::Done as u32).unwrap();
        let givers = [Notice::Done, Notice::Held].map(|notice| give(&card, [(&notifier, notice)]));
        givers.map(|giver| giver.join().unwrap());
        assert_eq!(take_signals(0), 1);
    });
}

/// The old eventfd may be signalled until it is replaced, and the new one is signalled from then
/// on.
#[test]
fn an_eventfd_is_replaced_while_it_is_signalled() {
    check(|| {
        let (card, [notifier]) = setup();
        notifier.set_eventfd(Some(0), Notice::Done as u32).unwrap();
        let giver = give(&card, [(&notifier, Notice::Done)]);
        notifier.set_eventfd(Some(1), Notice::Held as u32).unwrap();
        take_signals(0);
        card.delivery.tell(&notifier, Notice::Held);
        run_irq_work();
        giver.join().unwrap();
        assert_eq!((take_signals(0), take_signals(1)), (0, 1));
    });
}

/// The eventfd that remains is signalled for the events that were requested with it.
#[test]
fn two_eventfds_are_set_at_once() {
    check(|| {
        let (card, [notifier]) = setup();
        let setter = loom::thread::spawn({
            let notifier = notifier.clone();
            move || notifier.set_eventfd(Some(0), Notice::Done as u32).unwrap()
        });
        notifier.set_eventfd(Some(1), Notice::Held as u32).unwrap();
        setter.join().unwrap();
        card.delivery.tell(&notifier, Notice::Done);
        run_irq_work();
        let of_done = [take_signals(0), take_signals(1)];
        card.delivery.tell(&notifier, Notice::Held);
        run_irq_work();
        let of_held = [take_signals(0), take_signals(1)];
        assert!(matches!(
            (of_done, of_held),
            ([1, 0], [0, 0]) | ([0, 0], [0, 1])
        ));
    });
}

/// As `Card::halt()`: interrupts are on, and the handler runs, as soon as the card's lock is
/// released.
fn disconnect(card: &Card, notifier: &Arc<Notifier>) {
    card.delivery.tell(notifier, Notice::Gone);
    run_irq_work();
}

/// As `FERMATA_IOC_WAIT` beside `Card::disconnect()`.
#[test]
fn nobody_sleeps_through_the_death_of_a_card() {
    check(|| {
        let (card, [notifier]) = setup();
        let death = loom::thread::spawn({
            let (card, notifier) = (card.clone(), notifier.clone());
            move || {
                card.presence.die(|| disconnect(&card, &notifier));
            }
        });
        assert_eq!(
            notifier.queue().wait(NEVER, || card.presence.is_gone()),
            Ok(true)
        );
        death.join().unwrap();
    });
}

/// As `FERMATA_IOC_WAIT` beside `Card::shut_down()`, and a call that is inside the gate.
#[test]
fn nobody_sleeps_through_the_removal_of_a_card() {
    check(|| {
        let (card, [notifier]) = setup();
        let removal = loom::thread::spawn({
            let (card, notifier) = (card.clone(), notifier.clone());
            move || {
                card.presence.close();
                card.presence.die(|| disconnect(&card, &notifier));
            }
        });
        drop(card.presence.enter());
        assert_eq!(
            notifier.queue().wait(NEVER, || card.presence.is_gone()),
            Ok(true)
        );
        removal.join().unwrap();
    });
}
