// SPDX-License-Identifier: GPL-2.0

//! Access to the registers of a card: the one place where registers are read and written.

use crate::{
    compat::DevresBar,
    monotonic::now,
    regs::{self, Command},
    relay::RESULTS,
    scheduler::{self, Duration, Order, PreemptGranularity, SlotId, Status, Time},
    write_log::{Control, Write, WriteLog},
};
use kernel::{
    device::Device,
    io::{register::Array, Io},
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, Relaxed},
    },
};

/// How long one section with interrupts off reads application registers of which one gives no
/// answer. Registers that answer take a microsecond each.
const UNANSWERED_MAX: Duration = Duration::from_ms(25);

// The scheduler and the register map agree on how many slots a card can have.
static_assert!(scheduler::MAX_SLOTS == regs::MAX_SLOTS);

/// The identity of a card, from its manager page.
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    /// Number of slots, 1 to 8.
    pub(crate) slots: u8,
    /// An Optimus card, of the base profile. An irq card without interrupts is none, although its
    /// slots are used by the same protocol.
    pub(crate) is_base: bool,
    /// Zero on a base card.
    pub(crate) features: regs::FEATURES,
    /// The card has a relay that this driver knows.
    pub(crate) has_relay: bool,
}

impl Identity {
    /// Returns whether slots interrupt.
    pub(crate) fn has_irq(&self) -> bool {
        self.features.irq()
    }

    /// Returns the identity of the same card if its slots cannot interrupt.
    pub(crate) fn without_irq(self) -> Self {
        Self {
            features: self.features.with_irq(false),
            ..self
        }
    }

    /// Returns whether the card refuses engine accesses outside the slot's window.
    pub(crate) fn has_window(&self) -> bool {
        self.features.window()
    }

    /// Returns whether PAUSED and FINISH come after the last DMA.
    pub(crate) fn is_quiescent(&self) -> bool {
        self.features.quiescent()
    }

    /// Returns whether snapshot addresses are IOVAs.
    pub(crate) fn has_snapshot_unit(&self) -> bool {
        self.features.snapshot_unit()
    }

    /// Returns whether an engine accesses its own arena only, and no snapshot, whatever state it is
    /// restored from.
    pub(crate) fn confines_any_state(&self) -> bool {
        self.has_window() && self.has_snapshot_unit()
    }
}

/// The identity of a slot, from its slot page.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlotIdentity {
    /// The engine's UUID, low half.
    pub(crate) afu_id_lo: u64,
    /// The engine's UUID, high half.
    pub(crate) afu_id_hi: u64,
    /// The engine needs a reset before START_RESUME.
    pub(crate) reset_before_resume: bool,
    /// The engine reads a queue of jobs.
    pub(crate) queues: bool,
    /// A reset clears all application registers.
    pub(crate) reset_clears: bool,
    /// Where the engine can stop for a PAUSE.
    pub(crate) granularity: PreemptGranularity,
    /// The size of a snapshot in pages: device input.
    pub(crate) state_pages: u64,
}

/// Returns where an engine with `caps` can stop for a PAUSE.
fn granularity(caps: regs::SLOT_CAPS) -> PreemptGranularity {
    match (caps.boundary_only(), caps.boundary()) {
        (true, _) => PreemptGranularity::BoundaryOnly,
        (false, true) => PreemptGranularity::AnywhereOrBoundary,
        (false, false) => PreemptGranularity::Anywhere,
    }
}

/// Returns whether this driver can use a relay with `caps`.
fn knows_relay(caps: regs::RELAY_CAPS) -> bool {
    caps.version().get() == 1 && caps.orders().get() >= 1 && caps.results().get() >= RESULTS as u64
}

impl SlotIdentity {
    /// Returns whether states of the engine can be saved: their size is one that the register can
    /// have.
    pub(crate) fn has_state_size(&self) -> bool {
        (1..=regs::STATE_PAGES_MAX).contains(&self.state_pages)
    }

    /// Returns the engine's UUID, low and high half.
    pub(crate) fn afu_id(&self) -> (u64, u64) {
        (self.afu_id_lo, self.afu_id_hi)
    }
}

/// The first access of a job that its window refused.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fault {
    /// Device address.
    pub(crate) address: u64,
    pub(crate) is_write: bool,
}

/// The window of a slot: the memory that its engine may access.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// First device address.
    pub(crate) device_base: u64,
    /// The address at which the card's DMA reaches that byte.
    pub(crate) iova: u64,
    /// Bytes; 0: nothing.
    pub(crate) length: u64,
}

impl Window {
    /// Returns what the card adds to a device address.
    pub(crate) fn offset(&self) -> u64 {
        self.iova.wrapping_sub(self.device_base)
    }
}

/// BAR 0 of a card.
///
/// Every accessor may be called in any context, under any lock. Once the device is unbound, writes
/// do nothing and reads return all-ones, as on a card that is gone. Writes are posted and stay in
/// order; a read pushes the writes before it.
///
/// The link may lose a single read, which then gives all-ones: a register that reads all-ones is
/// read once more.
pub(crate) struct Bar {
    bar: DevresBar,
    device: ARef<Device>,
    /// Reads that were lost.
    lost: Atomic<u64>,
    /// The last writes to control registers.
    log: WriteLog,
}

/// Evaluates `$body`, a [`Result`], with `$io` bound to the mapped registers.
///
/// The offsets of [`regs`] are within the BAR. They are checked at run time, because 7.3 cannot
/// check the alignment of 64-bit registers when the module is built.
macro_rules! with_registers {
    ($self:ident, |$io:ident| $body:expr) => {
        (|| -> Result<_> {
            let guard = $self.bar.try_access().ok_or(ENODEV)?;
            let $io = &*guard;
            $body
        })()
    };
}

/// Returns the location of register `$name` of `$slot`.
macro_rules! of_slot {
    ($name:ident, $slot:expr) => {
        regs::$name::try_at($slot.index()).ok_or(EINVAL)?
    };
}

/// Reads register `$name` of the manager, or of `$slot`, with [`Bar::read_twice`].
macro_rules! read {
    ($self:ident, $io:ident, $name:ident) => {
        $self
            .read_twice(
                format_args!(concat!("manager, ", stringify!($name))),
                || Ok($io.try_read(regs::$name)?.into_raw()),
            )
            .map(regs::$name::from_raw)
    };
    ($self:ident, $io:ident, $name:ident, $slot:expr) => {
        $self
            .read_twice(
                format_args!(concat!("slot {}, ", stringify!($name)), $slot.index()),
                || Ok($io.try_read(of_slot!($name, $slot))?.into_raw()),
            )
            .map(regs::$name::from_raw)
    };
}

impl Bar {
    /// Returns the accessors of the mapped BAR of `device`. `ENOMEM`.
    pub(crate) fn new(bar: DevresBar, device: &Device) -> Result<Self> {
        Ok(Self {
            bar,
            device: device.into(),
            lost: Atomic::new(0),
            log: WriteLog::new()?,
        })
    }

    /// Returns what `read` gives. If that is all-ones, which may be the register's value or a read
    /// that the link has lost, returns what it gives the second time.
    fn read_twice(
        &self,
        register: core::fmt::Arguments<'_>,
        read: impl Fn() -> Result<u64>,
    ) -> Result<u64> {
        let first = read()?;
        if first != u64::MAX {
            return Ok(first);
        }
        let second = read()?;
        if second != u64::MAX {
            self.note_lost(register);
        }
        Ok(second)
    }

    /// Logs that a read of `register` was lost. A register that an engine changes between two reads
    /// looks the same, so the log does not get a line for each.
    fn note_lost(&self, register: core::fmt::Arguments<'_>) {
        let lost = self.lost.fetch_add(1, Relaxed) + 1;
        if lost.is_power_of_two() {
            dev_warn!(
                self.device,
                "{register}: a read was not answered, and was repeated ({lost} so far)\n"
            );
        }
    }

    /// Returns whether the card answers: the number of its slots is never all-ones.
    fn answers(&self) -> bool {
        let slots = with_registers!(self, |io| read!(self, io, SLOT_COUNT));
        slots.is_ok_and(|slots| slots.into_raw() != u64::MAX)
    }

    /// Calls `f` with the number of each of the last writes to control registers, oldest first.
    pub(crate) fn for_each_write(&self, f: impl FnMut(usize, Write)) {
        self.log.for_each(f);
    }

    /// Reads the identity of the card. Writes nothing, because `new_id` can bind the driver to any
    /// device.
    ///
    /// `ENODEV`: the device is neither a fermata nor an Optimus card.
    pub(crate) fn identify(&self) -> Result<Identity> {
        with_registers!(self, |io| {
            let is_base = read!(self, io, MAGIC)?.into_raw() != regs::FERMATA_MAGIC;
            let features = if !is_base {
                let version = read!(self, io, VERSION)?.into_raw();
                let features = read!(self, io, FEATURES)?;
                if version != regs::FERMATA_VERSION || features.into_raw() == u64::MAX {
                    return Err(ENODEV);
                }
                features
            } else {
                let dfh = read!(self, io, MANAGER_DFH)?;
                let is_afu = dfh.feature_type().get() == 1 && dfh.end_of_list();
                let id_lo = read!(self, io, MANAGER_ID_L)?.into_raw();
                // A MAGIC that is not answered must not turn an irq card into a base card.
                if !is_afu || dfh.into_raw() == u64::MAX || id_lo == regs::FERMATA_MANAGER_ID_L {
                    return Err(ENODEV);
                }
                regs::FEATURES::zeroed()
            };
            match u8::try_from(read!(self, io, SLOT_COUNT)?.into_raw()) {
                Ok(slots) if slots >= 1 && usize::from(slots) <= regs::MAX_SLOTS => Ok(Identity {
                    slots,
                    is_base,
                    features,
                    has_relay: features.relay() && knows_relay(read!(self, io, RELAY_CAPS)?),
                }),
                _ => Err(ENODEV),
            }
        })
    }

    /// Reads the identity of `slot`. `ENODEV`: the slot has no engine, or the card does not answer.
    pub(crate) fn identify_slot(&self, slot: SlotId, identity: &Identity) -> Result<SlotIdentity> {
        let slot_identity = with_registers!(self, |io| {
            let caps = if identity.is_quiescent() {
                read!(self, io, SLOT_CAPS, slot)?
            } else {
                regs::SLOT_CAPS::zeroed()
            };
            if caps.into_raw() == u64::MAX {
                return Err(ENODEV);
            }
            Ok(SlotIdentity {
                afu_id_lo: read!(self, io, AFU_ID_L, slot)?.into_raw(),
                afu_id_hi: read!(self, io, AFU_ID_H, slot)?.into_raw(),
                reset_before_resume: caps.reset_before_resume(),
                queues: caps.queues(),
                reset_clears: caps.reset_clears(),
                granularity: granularity(caps),
                state_pages: read!(self, io, STATE_SIZE_PG, slot)?.into_raw(),
            })
        })?;
        match slot_identity.afu_id() {
            (0, 0) | (u64::MAX, u64::MAX) => Err(ENODEV),
            _ => Ok(slot_identity),
        }
    }

    /// Reads the status register of `slot`: [`Status::UNANSWERED`] if only the slot does not answer,
    /// all-ones if the card does not.
    pub(crate) fn status(&self, slot: SlotId) -> u64 {
        match with_registers!(self, |io| read!(self, io, TRANSACTION_CTL, slot)) {
            Ok(status) if status.into_raw() != u64::MAX => status.into_raw(),
            Ok(_) if self.answers() => Status::UNANSWERED.raw(),
            _ => u64::MAX,
        }
    }

    /// Tells what does not answer, [`Status::ALL_ONES`] for the card and [`Status::UNANSWERED`] for
    /// `slot`, after a register of `slot` read all-ones. `None`: all-ones is the register's value.
    pub(crate) fn silence(&self, slot: SlotId) -> Option<Status> {
        let status = Status::from_raw(self.status(slot));
        (status.is_gone() || status == Status::UNANSWERED).then_some(status)
    }

    /// Reads how many completion events the engine of `slot` has counted; all-ones: the card may be
    /// gone.
    pub(crate) fn completion_events(&self, slot: SlotId) -> u64 {
        with_registers!(self, |io| read!(self, io, EVENTS, slot))
            .map_or(u64::MAX, |events| events.into_raw())
    }

    /// Writes `command` to `slot`. Earlier writes to memory and registers are visible to the card
    /// before the command.
    pub(crate) fn command(&self, slot: SlotId, command: Command) {
        // CAST: the enum is `repr(u64)`.
        self.log.note(Some(slot), Control::Command, command as u64);
        let _ = with_registers!(self, |io| io.try_write(
            of_slot!(TRANSACTION_CTL, slot),
            regs::TRANSACTION_CTL::command(command)
        ));
    }

    /// Tells the card where the context table and the records are. Must not be called while a slot
    /// obeys orders.
    pub(crate) fn set_relay_memory(&self, table: u64, entries: u64, records: u64) {
        self.log.note(None, Control::ContextTable, table);
        self.log.note(None, Control::ContextCount, entries);
        self.log.note(None, Control::Records, records);
        let _ = with_registers!(self, |io| {
            io.try_write(regs::CTX_TABLE, regs::CTX_TABLE::from_raw(table))?;
            io.try_write(regs::CTX_COUNT, regs::CTX_COUNT::from_raw(entries))?;
            io.try_write(regs::RECORDS, regs::RECORDS::from_raw(records))
        });
    }

    /// Returns whether the card has taken what [`Bar::set_relay_memory`] wrote.
    pub(crate) fn has_relay_memory(&self, table: u64, entries: u64, records: u64) -> bool {
        with_registers!(self, |io| Ok([
            read!(self, io, CTX_TABLE)?.into_raw(),
            read!(self, io, CTX_COUNT)?.into_raw(),
            read!(self, io, RECORDS)?.into_raw(),
        ])) == Ok([table, entries, records])
    }

    /// Sets whether `slot`, which must be vacant, obeys orders.
    pub(crate) fn set_relay(&self, slot: SlotId, on: bool) {
        self.log.note(Some(slot), Control::Relay, on.into());
        let _ = with_registers!(self, |io| io
            .try_write(of_slot!(RELAY, slot), regs::RELAY::zeroed().with_on(on)));
    }

    /// Returns whether `slot` obeys orders.
    pub(crate) fn obeys_orders(&self, slot: SlotId) -> bool {
        with_registers!(self, |io| read!(self, io, RELAY, slot))
            .is_ok_and(|relay| relay.into_raw() == 1)
    }

    /// Writes `order` to `slot`. Earlier writes to memory are visible to the card before the order.
    pub(crate) fn order(&self, slot: SlotId, order: &Order) {
        let order = regs::ORDER::of(order);
        self.log.note(Some(slot), Control::Order, order.into_raw());
        let _ = with_registers!(self, |io| io.try_write(of_slot!(ORDER, slot), order));
    }

    /// Reads which slots are held in reset, which pushes earlier writes to the card. Returns `false`
    /// if the card is gone.
    pub(crate) fn push_reset(&self) -> bool {
        self.held_in_reset().is_some() || self.answers()
    }

    /// Reads which slots are held in reset, a bit each. `None`: the manager does not answer.
    pub(crate) fn held_in_reset(&self) -> Option<u64> {
        let slots = with_registers!(self, |io| read!(self, io, RESET)).ok()?;
        Some(slots.into_raw()).filter(|&slots| slots != u64::MAX)
    }

    /// Holds the slots of `mask` in reset, and releases all others.
    pub(crate) fn reset(&self, mask: u8) {
        self.log.note(None, Control::Reset, mask.into());
        let _ = with_registers!(self, |io| io
            .try_write(regs::RESET, regs::RESET::from_raw(mask.into())));
    }

    /// Writes the address of the snapshot of `slot`, in the form of the card's profile.
    pub(crate) fn set_snapshot(&self, slot: SlotId, address: u64) {
        self.log.note(Some(slot), Control::Snapshot, address);
        let _ = with_registers!(self, |io| io.try_write(
            of_slot!(SNAPSHOT_ADDR, slot),
            regs::SNAPSHOT_ADDR::at_address(address)
        ));
    }

    /// Writes the registers of the window of `slot` whose values differ from those of `was`
    /// (`None`: not known), in the form of `card`: the bounds only if the card checks them.
    pub(crate) fn set_window(
        &self,
        slot: SlotId,
        was: Option<Window>,
        window: &Window,
        card: &Identity,
    ) {
        let checked = card.has_window();
        let changes = |part: fn(&Window) -> u64| was.as_ref().map(part) != Some(part(window));
        let _ = with_registers!(self, |io| {
            if changes(Window::offset) {
                self.log
                    .note(Some(slot), Control::DmaOffset, window.offset());
                io.try_write(
                    of_slot!(DMA_OFFSET, slot),
                    regs::DMA_OFFSET::of(window.offset(), card.is_base),
                )?;
            }
            if checked && changes(|window| window.device_base) {
                self.log
                    .note(Some(slot), Control::WindowBase, window.device_base);
                io.try_write(
                    of_slot!(WINDOW_BASE, slot),
                    regs::WINDOW_BASE::from_raw(window.device_base),
                )?;
            }
            if checked && changes(|window| window.length) {
                self.log
                    .note(Some(slot), Control::WindowSize, window.length);
                io.try_write(
                    of_slot!(WINDOW_SIZE, slot),
                    regs::WINDOW_SIZE::from_raw(window.length),
                )?;
            }
            Ok(())
        });
    }

    /// Reads the first access that the window of `slot` has refused since the last START. `ENODEV`:
    /// the card is gone.
    pub(crate) fn fault(&self, slot: SlotId) -> Result<Fault> {
        with_registers!(self, |io| {
            let address = read!(self, io, FAULT_ADDR, slot)?.into_raw();
            let info = read!(self, io, FAULT_INFO, slot)?;
            if info.into_raw() == u64::MAX {
                return Err(ENODEV);
            }
            Ok(Fault {
                address,
                is_write: info.write(),
            })
        })
    }

    /// Reads the application register of `slot` at `offset`, which the caller has checked. `begun`
    /// is when the caller's section with interrupts off began to read such registers. `EIO`: the
    /// register gives no answer, and the section has taken [`UNANSWERED_MAX`].
    ///
    /// Programs choose the offsets, and a read without an answer lasts for a completion time-out of
    /// the link, 50 ms on many machines.
    pub(crate) fn read_application(&self, slot: SlotId, offset: u32, begun: Time) -> Result<u64> {
        let value = with_registers!(self, |io| self.read_twice(
            format_args!("slot {}, register {offset:#x}", slot.index()),
            || io.try_read64(slot_page(slot) + offset as usize)
        ))
        .unwrap_or(u64::MAX);
        if value == u64::MAX && now().since(begun) >= UNANSWERED_MAX {
            return Err(EIO);
        }
        Ok(value)
    }

    /// Writes the application register of `slot` at `offset`, which the caller has checked.
    pub(crate) fn write_application(&self, slot: SlotId, offset: u32, value: u64) {
        let _ = with_registers!(self, |io| io
            .try_write64(value, slot_page(slot) + offset as usize));
    }
}

/// Returns the byte offset of the page of `slot`.
fn slot_page(slot: SlotId) -> usize {
    0x1000 * (slot.index() + 1)
}
