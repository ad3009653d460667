// SPDX-License-Identifier: GPL-2.0

//! Gangs beside a latency-critical stream, and the same work without gangs.

use serde::Serialize;

use crate::mode::Mode;
use crate::sim::{run, Costs, Latency, Outcome, Plan};
use crate::workload::{periodic, Arrivals, ClientPlan, Kind, Phase, Work, DRIFT};
use crate::{MS, S, US};

/// The sizes of gangs, and of cards.
pub const SIZES: [usize; 3] = [2, 4, 8];

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How slots are shared.
    pub mode: Mode,
    /// Slots of the card.
    pub slots: usize,
    /// Members of each gang.
    pub members: usize,
    /// BE clients in no gang.
    pub singles: usize,
    /// Requests per second of the LC client.
    pub rate: f64,
    /// The costs of card and machine.
    pub costs: Costs,
    /// Seconds of virtual time.
    pub seconds: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// The results of gangs, and of the same work without gangs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// How slots are shared.
    pub mode: String,
    /// Slots of the card.
    pub slots: usize,
    /// Members of each gang.
    pub members: usize,
    /// Gangs: at least two more members than there are slots.
    pub gangs: usize,
    /// BE clients in no gang.
    pub singles: usize,
    /// The longest time between the STARTs of two members that waited together.
    pub skew_us: f64,
    /// The same, as a part of a save and a restore.
    pub skew_switches: f64,
    /// The same without gangs.
    pub skew_apart_us: f64,
    /// The part of the slots' time in which engines worked on BE jobs.
    pub useful: f64,
    /// The same without gangs.
    pub useful_apart: f64,
    /// The part of it that gangs lose; negative: a gain.
    pub loss: f64,
    /// The part of the slots' time in which engines worked on jobs of gangs.
    pub gang_useful: f64,
    /// The same without gangs.
    pub gang_useful_apart: f64,
    /// Latency of LC requests.
    pub lc: Latency,
    /// The same without gangs.
    pub lc_apart: Latency,
}

/// Work of a request of the LC client.
const LC_WORK: u64 = 500 * US;
/// Mean work of a request of each other client.
const BE_WORK: u64 = 20 * MS;

impl Settings {
    /// Returns the number of gangs: there are at least two more members than slots, so that some
    /// always wait.
    fn gangs(&self) -> usize {
        (self.slots + 2).div_ceil(self.members)
    }

    fn clients(&self) -> Vec<ClientPlan> {
        let lc = ClientPlan::new(
            Kind::Lc,
            periodic(self.rate, Phase::Random { drift: DRIFT }),
            Work::Fixed(LC_WORK),
        );
        // There is always a next request.
        let be = |gang| ClientPlan {
            gang,
            ..ClientPlan::new(
                Kind::Be,
                Arrivals::Periodic {
                    period: BE_WORK / 2,
                    phase: Phase::Random { drift: 0.0 },
                },
                Work::Fixed(BE_WORK),
            )
        };
        let members = 0..self.gangs() * self.members;
        let ganged = members.map(|i| be(Some((i / self.members) as u32)));
        let singles = (0..self.singles).map(|_| be(None));
        [lc].into_iter().chain(ganged).chain(singles).collect()
    }

    fn plan(&self, gangs: bool) -> Plan {
        Plan {
            mode: self.mode,
            costs: self.costs,
            cards: 1,
            slots: self.slots,
            clients: vec![self.clients()],
            gangs,
            seed: self.seed,
            warm_up: 0,
            end: self.seconds * S,
            drain: 0,
        }
    }
}

/// Runs the work as gangs, and without gangs.
pub fn gangs(settings: &Settings) -> Row {
    let [mut together, mut apart] = [true, false].map(|gangs| run(&settings.plan(gangs)));
    let time = (settings.slots as u64 * settings.seconds * S) as f64;
    let useful = |outcome: &Outcome| (outcome.gang_work + outcome.be_work) as f64 / time;
    let skew = |outcome: &Outcome| outcome.skews.iter().copied().max().unwrap_or(0) as f64;
    let switch = settings.costs.save + settings.costs.restore;
    Row {
        mode: settings.mode.name(),
        slots: settings.slots,
        members: settings.members,
        gangs: settings.gangs(),
        singles: settings.singles,
        skew_us: skew(&together) / US as f64,
        skew_switches: skew(&together) / switch as f64,
        skew_apart_us: skew(&apart) / US as f64,
        useful: useful(&together),
        useful_apart: useful(&apart),
        loss: 1.0 - useful(&together) / useful(&apart),
        gang_useful: together.gang_work as f64 / time,
        gang_useful_apart: apart.gang_work as f64 / time,
        lc: Latency::of(&mut together.lc),
        lc_apart: Latency::of(&mut apart.lc),
    }
}
