// SPDX-License-Identifier: GPL-2.0

//! Programs: their requests, one after the other, and what they hear of them.

use std::collections::VecDeque;

use fermata_sched_host::sched::{ContextId, JobState, Time};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Sim, What};
use crate::arrivals::Source;
use crate::workload::{ClientPlan, Kind};

/// A program that has requests.
pub(super) struct Client {
    pub(super) ctx: ContextId,
    pub(super) kind: Kind,
    pub(super) preparation: u64,
    /// Draws how long each preparation is: not from the source, so that requests are the same whatever is drawn here.
    pub(super) rng: Xoshiro256PlusPlus,
    pub(super) source: Source,
    /// The next request, drawn already.
    pub(super) next: Option<(u64, u64)>,
    pub(super) skips_late: bool,
    /// Those that came and are not begun: when, and how much work.
    pub(super) waiting: VecDeque<(u64, u64)>,
    /// The one that is being prepared or run: when it came.
    pub(super) current: Option<u64>,
    /// Work that its job has left, as of its START or its snapshot.
    pub(super) left: u64,
    /// Its snapshot is complete and was not resumed.
    pub(super) saved: bool,
    /// The gang that it is a member of.
    pub(super) gang: Option<u32>,
    /// When another member was started while this one waited.
    pub(super) behind_since: Option<u64>,
}

impl Sim<'_> {
    /// Adds a client. All random numbers of the client follow from the seed and `stream`.
    pub(super) fn add_client(&mut self, stream: u64, ctx: ContextId, plan: &ClientPlan) {
        let id = self.clients.len() as u32;
        let seed = self.plan.seed;
        let source = Source::new(plan.arrivals.clone(), plan.work, seed, stream);
        self.clients.push(Client {
            ctx,
            kind: plan.kind,
            preparation: plan.preparation,
            skips_late: plan.skips_late,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ (stream << 32)),
            source,
            next: None,
            waiting: VecDeque::new(),
            current: None,
            left: 0,
            saved: false,
            gang: plan.gang,
            behind_since: None,
        });
        self.draw(id);
    }

    /// Draws the next request of a client, if it comes in time.
    pub(super) fn draw(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        client.next = client.source.next().filter(|next| next.0 < self.plan.end);
        if let Some((at, _)) = client.next {
            self.agenda.push(at, What::Arrival { client: id });
        }
    }

    /// Begins a client's next request, if there is one and none under way. The members of a gang
    /// begin together, when each has a request.
    pub(super) fn begin(&mut self, id: u32) {
        let client = &self.clients[id as usize];
        let Some(gang) = client.gang else {
            return self.begin_one(id);
        };
        let ids = 0..self.clients.len() as u32;
        let members: Vec<u32> = ids
            .filter(|&id| self.clients[id as usize].gang == Some(gang))
            .collect();
        let all_can = members.iter().all(|&id| {
            let client = &self.clients[id as usize];
            client.current.is_none() && !client.waiting.is_empty()
        });
        for id in members.into_iter().filter(|_| all_can) {
            self.begin_one(id);
        }
    }

    fn begin_one(&mut self, id: u32) {
        self.skip_late(id);
        let client = &mut self.clients[id as usize];
        if client.current.is_some() {
            return;
        }
        let Some((came, work)) = client.waiting.pop_front() else {
            return;
        };
        client.current = Some(came);
        client.left = work;
        client.saved = false;
        let call = self.plan.costs.call;
        let mut begin = self.now;
        let hints = self.plan.mode.hints(client.kind);
        if hints {
            begin += call;
        }
        let off = f64::from(self.plan.costs.preparation_off) / 100.0;
        let takes = client.rng.random_range(1.0 - off..=1.0 + off) * client.preparation as f64;
        let ready = begin + takes as u64 + call;
        if hints {
            let at = begin + client.preparation + call;
            self.agenda.push(begin, What::Hint { client: id, at });
        }
        self.agenda.push(ready, What::Ready { client: id });
    }

    /// Skips all requests of a client that wait but the newest, if the client does so and is about to begin one.
    fn skip_late(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        if !client.skips_late || client.current.is_some() {
            return;
        }
        let late = client.waiting.len().saturating_sub(1);
        let skipped = client.waiting.drain(..late);
        let skipped = skipped.filter(|(came, _)| *came >= self.plan.warm_up);
        let count = match client.kind {
            Kind::Lc => &mut self.outcome.lc_skipped,
            Kind::Be => &mut self.outcome.be_skipped,
        };
        *count += skipped.count() as u64;
    }

    pub(super) fn heard(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        let came = client.current.take().expect("a request was under way");
        let counted = self.plan.warm_up..self.plan.end;
        if client.kind == Kind::Be && counted.contains(&self.now) {
            self.outcome.be_done += 1;
        }
        if came < counted.start {
            return;
        }
        match client.kind {
            Kind::Lc => self.outcome.lc.push(self.now - came),
            Kind::Be => self.outcome.be.push(self.now - came),
        }
    }

    /// Counts a save, if it is one until the end.
    pub(super) fn note_save(&mut self) {
        self.outcome.saves += u64::from(self.now < self.plan.end);
    }

    /// The job of a client has so much work left after a run.
    pub(super) fn note_work(&mut self, id: u32, left: u64) {
        let client = &mut self.clients[id as usize];
        let done = client.left - left;
        client.left = left;
        match (client.kind, client.gang) {
            (Kind::Lc, _) => {}
            (Kind::Be, Some(_)) => self.outcome.gang_work += done,
            (Kind::Be, None) => self.outcome.be_work += done,
        }
    }

    /// The job of a client begins or goes on. Returns the work that it has left.
    pub(super) fn use_snapshot(&mut self, id: u32, resume: bool) -> u64 {
        let client = &mut self.clients[id as usize];
        let saved = std::mem::take(&mut client.saved);
        assert_eq!(resume, saved, "a resume from no snapshot, or a loss of one");
        self.outcome.starts += 1;
        client.left
    }

    /// Notes who waited when another member of its gang was started, and for how long after.
    pub(super) fn note_start(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        let Some(gang) = client.gang else {
            return;
        };
        if let Some(since) = client.behind_since.take() {
            // Who has come since joins them later.
            self.outcome.skews.push(self.now - since);
            return;
        }
        let machine = &self.card.machine;
        let now = Time::from_ns(self.now);
        let mates = self.clients.iter_mut();
        for mate in mates.filter(|mate| mate.gang == Some(gang)) {
            let stats = machine.stats(mate.ctx, now).expect("clients stay");
            if stats.state == JobState::Queued {
                mate.behind_since.get_or_insert(self.now);
            }
        }
    }
}
