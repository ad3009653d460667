// SPDX-License-Identifier: GPL-2.0

//! Models of [`Delivery`], [`Notifier`] and [`Presence`].

use crate::{
    bindings::{run_irq_work, take_signals},
    check,
    delivery::Delivery,
    notifier::{Notice, Notifier},
    prelude::*,
    presence::Presence,
    sched::Time,
    sync::Arc,
};
use loom::thread::{self, JoinHandle};

const NEVER: Time = Time(u64::MAX);
const NOW: Time = Time(0);

/// What a card has to tell owners.
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
    thread::spawn(move || {
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

/// The second notice finds the first not yet delivered, being delivered, or delivered.
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

/// Both CPUs put both on the list, which each takes as a whole.
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

/// What the giver wrote before a notice is there for whoever finds the notice.
#[test]
fn a_notice_comes_with_what_it_is_about() {
    check(|| {
        let (card, [notifier]) = setup();
        let result = Arc::pin_init(loom::cell::UnsafeCell::new(0), GFP_KERNEL_ACCOUNT).unwrap();
        let giver = thread::spawn({
            let (card, notifier, result) = (card.clone(), notifier.clone(), result.clone());
            move || {
                // SAFETY: Nobody reads before the notice.
                result.with_mut(|result| unsafe { *result = 1 });
                card.delivery.tell(&notifier, Notice::Completed);
                drop((card, notifier));
                run_irq_work();
            }
        });
        if notifier.take(Notice::Completed) {
            // SAFETY: Nobody writes after the notice.
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
        let other = thread::spawn({
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

/// As `Context::release()`: the owner sleeps until it is told, and is freed then, whatever else is
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

/// The handler of the one `irq_work` may run on two CPUs at once, when the last reference to the
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

/// The one that is replaced may be signalled until then, and the new one is from then on.
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

/// Whichever remains is told of what was asked for it.
#[test]
fn two_eventfds_are_set_at_once() {
    check(|| {
        let (card, [notifier]) = setup();
        let setter = thread::spawn({
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

/// As `Card::halt()`: interrupts are on, and the handler runs, as soon as the card's lock is free.
fn disconnect(card: &Card, notifier: &Arc<Notifier>) {
    card.delivery.tell(notifier, Notice::Gone);
    run_irq_work();
}

/// As `FERMATA_IOC_WAIT` beside `Card::disconnect()`.
#[test]
fn nobody_sleeps_through_the_death_of_a_card() {
    check(|| {
        let (card, [notifier]) = setup();
        let death = thread::spawn({
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
        let removal = thread::spawn({
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
