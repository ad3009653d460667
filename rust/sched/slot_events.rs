// SPDX-License-Identifier: GPL-2.0

//! The events of a slot: its status was read, its timer fired.

use super::event::Cx;
use super::run::Run;
use super::slot_fsm::{Progress, SlotFsm, State};
use super::{Duration, Status};

impl SlotFsm {
    /// Takes in a status that was read.
    pub(super) fn status(&mut self, cx: &mut Cx<'_>, status: Status) -> Progress {
        match self.state {
            State::Running(run) => {
                let class = status.classify(&self.config, &run, self.count, cx.now);
                self.run_status(cx, status, class)
            }
            State::Resetting(reset) => self.reset_status(cx, reset, status),
            // No job: an interrupt that came late, or that the card did not send.
            State::Vacant | State::Quarantined(_) | State::Gone => Progress::NONE,
        }
    }

    /// Does what is due. The context of the job has `timeslice`, and is `cooperative` or not.
    pub(super) fn timer(
        &mut self,
        cx: &mut Cx<'_>,
        timeslice: Duration,
        cooperative: bool,
    ) -> Progress {
        match self.state {
            State::Running(Run { pause: Some(_), .. }) => {
                self.pause_timer(cx, timeslice, cooperative)
            }
            State::Running(run) if cx.now >= run.poll_at => {
                self.poll(cx, timeslice);
                Progress::NONE
            }
            State::Resetting(reset) => self.reset_timer(cx, reset),
            _ => Progress::NONE,
        }
    }
}
