// SPDX-License-Identifier: GPL-2.0-or-later
//! Misbehaviours that a test switches on.

use crate::config::parse_number;

/// How often a misbehaviour happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// Not at all.
    #[default]
    Never,
    /// This many more times (at least once).
    Next(u64),
    /// Every time.
    Always,
}

impl Times {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "all" => Self::Always,
            n => match parse_number(n)? {
                0 => Self::Never,
                n => Self::Next(n),
            },
        })
    }

    /// Returns whether it happens now; uses up one time.
    pub fn take(&mut self) -> bool {
        match *self {
            Self::Never => false,
            Self::Always => true,
            Self::Next(n) => {
                *self = if n > 1 {
                    Self::Next(n - 1)
                } else {
                    Self::Never
                };
                true
            }
        }
    }

    fn pending(self) -> u64 {
        match self {
            Self::Never => 0,
            Self::Next(n) => n,
            Self::Always => 1,
        }
    }
}

/// The misbehaviours that are switched on in a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is a switch of its own
pub struct Misbehaviour {
    /// PAUSEs to swallow.
    pub ignore_pause: Times,
    /// Interrupts to lose.
    pub lose_irq: Times,
    /// How long the next save takes.
    pub save_takes_us: Option<u64>,
    /// What `CSR_STATE_SIZE_PG` reads.
    pub state_size: Option<u64>,
    /// The next PAUSE finds the job at its end: a job that would end sooner waits for the PAUSE
    /// just before its end, any other job then runs to its end at full speed.
    pub finish_on_pause: bool,
    /// One DMA write comes this many microseconds after the next PAUSED: eight bytes of the job's
    /// last access again, through offset and window as they are then.
    pub write_after_paused: Option<u64>,
    /// The next save that a reset cuts short is answered nevertheless: from this many microseconds
    /// after the reset on, one read of the status shows PAUSED with the `START_COUNT` of that job,
    /// and its interrupt is sent.
    pub late_paused: Option<u64>,
    /// The job makes no progress and ignores a PAUSE, until a reset.
    pub hang: bool,
    /// The next save ends after this many bytes.
    pub save_torn: Option<u64>,
    /// RESET has no effect: a running job continues, and the status is unchanged. Function resets
    /// are not affected.
    pub reset_fails: bool,
    /// Microseconds between spurious interrupts; 0: none.
    pub irq_storm: u64,
    /// `START_NEW` does not clear the result registers of the previous job.
    pub results_kept: bool,
    /// `FAULT_INFO`, `FAULT_ADDR` and `EVENTS` read all-ones.
    pub ones: bool,
    /// `AFU_ID` reads 0, like that of a slot without an engine.
    pub no_engine: bool,
    /// Records to lose.
    pub lose_record: Times,
    /// Records whose last word comes first.
    pub tear_record: Times,
    /// The next record is late by this many microseconds.
    pub delay_record: Option<u64>,
    /// Orders to swallow.
    pub ignore_order: Times,
    /// Orders for another run that are accepted.
    pub stale_order: Times,
    /// The next AT is late by this many microseconds; an AT of 0 then aborts no restore.
    pub late_at: Option<u64>,
    /// Table entries that cannot be read.
    pub entry_error: Times,
}

/// A `fault` command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultCommand {
    /// Switches everything off.
    Clear,
    /// A switch of the slot.
    Slot(SlotFault),
    /// This many interrupts at once.
    SpuriousIrq(u64),
    /// The card dies, or comes back.
    Dead(bool),
    /// The card dies at this register read, counted from now; 0: it does not.
    DeadAtRead(u64),
    /// The card dies at this register write, counted from now; 0: it does not.
    DeadAtWrite(u64),
    /// Reads at this offset in BAR 0 are lost on the link.
    LoseRead(u64, Times),
    /// This register read, counted from now, and those that follow, so many in all, are lost on the
    /// link; 0: none.
    LoseReadAt(u64, Times),
}

/// A switch of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in Misbehaviour
pub enum SlotFault {
    IgnorePause(Times),
    LoseIrq(Times),
    SaveTakesUs(u64),
    StateSize(u64),
    FinishOnPause(bool),
    WriteAfterPaused(u64),
    LatePaused(u64),
    Hang(bool),
    SaveTorn(u64),
    ResetFails(bool),
    IrqStorm(u64),
    ResultsKept(bool),
    Ones(bool),
    NoEngine(bool),
    LoseRecord(Times),
    TearRecord(Times),
    DelayRecord(u64),
    IgnoreOrder(Times),
    StaleOrder(Times),
    LateAt(u64),
    EntryError(Times),
}

const MAX_SPURIOUS: u64 = 100_000;

impl FaultCommand {
    /// Parses `clear` or `KIND[=VALUE]`; without a value, the value is 1.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (kind, value) = text.split_once('=').unwrap_or((text, "1"));
        let number = || parse_number(value);
        let times = || Times::parse(value);
        let number_and_times = || {
            let (number, times) = value.split_once(':').unwrap_or((value, "1"));
            Ok::<_, String>((parse_number(number)?, Times::parse(times)?))
        };
        let flag = || match value {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(format!("{kind} is 0 or 1")),
        };
        Ok(match kind {
            "clear" => Self::Clear,
            "dead" => Self::Dead(flag()?),
            "dead_at_read" => Self::DeadAtRead(number()?),
            "dead_at_write" => Self::DeadAtWrite(number()?),
            "lose_read" => {
                let (offset, times) = number_and_times()?;
                Self::LoseRead(offset, times)
            }
            "lose_read_at" => {
                let (n, times) = number_and_times()?;
                Self::LoseReadAt(n, times)
            }
            "spurious_irq" => match number()? {
                n @ 0..=MAX_SPURIOUS => Self::SpuriousIrq(n),
                _ => return Err(format!("at most {MAX_SPURIOUS} at once")),
            },
            "ignore_pause" => Self::Slot(SlotFault::IgnorePause(times()?)),
            "lose_irq" => Self::Slot(SlotFault::LoseIrq(times()?)),
            "save_takes_us" => Self::Slot(SlotFault::SaveTakesUs(number()?)),
            "state_size" => Self::Slot(SlotFault::StateSize(number()?)),
            "finish_on_pause" => Self::Slot(SlotFault::FinishOnPause(flag()?)),
            "write_after_paused" => Self::Slot(SlotFault::WriteAfterPaused(number()?)),
            "late_paused" => Self::Slot(SlotFault::LatePaused(number()?)),
            "hang" => Self::Slot(SlotFault::Hang(flag()?)),
            "reset_fails" => Self::Slot(SlotFault::ResetFails(flag()?)),
            "irq_storm" => Self::Slot(SlotFault::IrqStorm(number()?)),
            "results_kept" => Self::Slot(SlotFault::ResultsKept(flag()?)),
            "ones" => Self::Slot(SlotFault::Ones(flag()?)),
            "no_engine" => Self::Slot(SlotFault::NoEngine(flag()?)),
            "lose_record" => Self::Slot(SlotFault::LoseRecord(times()?)),
            "tear_record" => Self::Slot(SlotFault::TearRecord(times()?)),
            "delay_record" => Self::Slot(SlotFault::DelayRecord(number()?)),
            "ignore_order" => Self::Slot(SlotFault::IgnoreOrder(times()?)),
            "stale_order" => Self::Slot(SlotFault::StaleOrder(times()?)),
            "late_at" => Self::Slot(SlotFault::LateAt(number()?)),
            "entry_error" => Self::Slot(SlotFault::EntryError(times()?)),
            "save_torn" => Self::Slot(SlotFault::SaveTorn(number()?)),
            _ => return Err(format!("unknown misbehaviour {kind}")),
        })
    }
}

impl Misbehaviour {
    /// Switches a misbehaviour on or off.
    pub fn apply(&mut self, fault: SlotFault) {
        match fault {
            SlotFault::IgnorePause(times) => self.ignore_pause = times,
            SlotFault::LoseIrq(times) => self.lose_irq = times,
            SlotFault::SaveTakesUs(us) => self.save_takes_us = Some(us),
            SlotFault::StateSize(pages) => self.state_size = Some(pages),
            SlotFault::FinishOnPause(on) => self.finish_on_pause = on,
            SlotFault::WriteAfterPaused(us) => self.write_after_paused = Some(us),
            SlotFault::LatePaused(us) => self.late_paused = Some(us),
            SlotFault::Hang(on) => self.hang = on,
            SlotFault::SaveTorn(bytes) => self.save_torn = Some(bytes),
            SlotFault::ResetFails(on) => self.reset_fails = on,
            SlotFault::IrqStorm(us) => self.irq_storm = us,
            SlotFault::ResultsKept(on) => self.results_kept = on,
            SlotFault::Ones(on) => self.ones = on,
            SlotFault::NoEngine(on) => self.no_engine = on,
            SlotFault::LoseRecord(times) => self.lose_record = times,
            SlotFault::TearRecord(times) => self.tear_record = times,
            SlotFault::DelayRecord(us) => self.delay_record = Some(us),
            SlotFault::IgnoreOrder(times) => self.ignore_order = times,
            SlotFault::StaleOrder(times) => self.stale_order = times,
            SlotFault::LateAt(us) => self.late_at = Some(us),
            SlotFault::EntryError(times) => self.entry_error = times,
        }
    }

    /// Returns how many are still to happen (one that always happens counts once).
    pub fn pending(&self) -> u64 {
        let flags = [
            self.finish_on_pause,
            self.hang,
            self.reset_fails,
            self.irq_storm > 0,
            self.results_kept,
            self.ones,
            self.no_engine,
        ];
        let once = [
            self.save_takes_us,
            self.state_size,
            self.save_torn,
            self.write_after_paused,
            self.late_paused,
            self.delay_record,
            self.late_at,
        ];
        let times = [
            self.ignore_pause,
            self.lose_irq,
            self.lose_record,
            self.tear_record,
            self.ignore_order,
            self.stale_order,
            self.entry_error,
        ];
        times.iter().map(|t| t.pending()).sum::<u64>()
            + flags.iter().filter(|f| **f).count() as u64
            + once.iter().filter(|o| o.is_some()).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_parse() {
        assert_eq!(FaultCommand::parse("clear"), Ok(FaultCommand::Clear));
        assert_eq!(
            FaultCommand::parse("ignore_pause"),
            Ok(FaultCommand::Slot(SlotFault::IgnorePause(Times::Next(1))))
        );
        assert_eq!(
            FaultCommand::parse("lose_irq=all"),
            Ok(FaultCommand::Slot(SlotFault::LoseIrq(Times::Always)))
        );
        assert_eq!(FaultCommand::parse("dead=0"), Ok(FaultCommand::Dead(false)));
        for (text, times) in [
            ("lose_read=0x1018", Times::Next(1)),
            ("lose_read=4120:2", Times::Next(2)),
            ("lose_read=0x1018:all", Times::Always),
            ("lose_read=0x1018:0", Times::Never),
        ] {
            let command = FaultCommand::LoseRead(0x1018, times);
            assert_eq!(FaultCommand::parse(text), Ok(command), "{text}");
        }
        assert_eq!(
            FaultCommand::parse("lose_read_at=7"),
            Ok(FaultCommand::LoseReadAt(7, Times::Next(1)))
        );
        assert_eq!(
            FaultCommand::parse("lose_read_at=7:4"),
            Ok(FaultCommand::LoseReadAt(7, Times::Next(4)))
        );
        assert_eq!(
            FaultCommand::parse("dead_at_write=7"),
            Ok(FaultCommand::DeadAtWrite(7))
        );
        for bad in [
            "",
            "x",
            "dead=2",
            "ignore_pause=x",
            "spurious_irq=0xffffffff",
            "save_torn=",
            "lose_read=0x1018:",
            "lose_read=:1",
            "lose_read_at=all",
        ] {
            assert!(FaultCommand::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_used_up() {
        let mut times = Times::Next(2);
        assert!(times.take() && times.take() && !times.take());
        let mut always = Times::Always;
        assert!(always.take() && always.take());
    }
}
