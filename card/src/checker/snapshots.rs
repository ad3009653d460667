// SPDX-License-Identifier: GPL-2.0-or-later
//! Jobs and their snapshots: what may be resumed, and from where.

use super::Kind;
use std::collections::HashMap;

/// A completed save.
#[derive(Debug)]
struct Snapshot {
    job: u64,
    tag: u64,
    hash: u64,
    resumed: bool,
}

/// A job lives from `START_NEW`, or from a state that was brought in, to its end; its newest
/// snapshot is the only one that may be resumed.
#[derive(Debug, Default)]
struct Job {
    newest: Option<u64>,
    over: bool,
}

/// All of them, by the guest-physical address of a snapshot's first byte.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    at: HashMap<u64, Snapshot>,
    jobs: HashMap<u64, Job>,
    last_job: u64,
    /// Tenants whose next restore is of a state that this card has not saved, and its digest where
    /// that is known.
    imports: HashMap<u64, Option<u64>>,
    /// Every restore may be of such a state, whichever client the card has.
    pub(super) any: bool,
}

impl Snapshots {
    /// The memory of the snapshots is gone.
    pub(super) fn forget(&mut self) {
        *self = Self {
            any: self.any,
            ..Self::default()
        };
    }

    /// A job begins.
    pub(super) fn begin(&mut self) -> u64 {
        self.last_job += 1;
        self.last_job
    }

    /// A job is over.
    pub(super) fn end(&mut self, job: u64) {
        self.jobs.entry(job).or_default().over = true;
    }

    /// A save to `gpa` has begun: what was there before is worth nothing.
    pub(super) fn spoil(&mut self, gpa: u64) {
        self.at.remove(&gpa);
    }

    /// A save is complete. A job that was resumed from nowhere (`None`) is a job of its own from
    /// here.
    pub(super) fn save(&mut self, gpa: u64, job: Option<u64>, tag: u64, hash: u64) {
        let job = job.unwrap_or_else(|| self.begin());
        self.jobs.entry(job).or_default().newest = Some(gpa);
        let resumed = false;
        self.at.insert(
            gpa,
            Snapshot {
                job,
                tag,
                hash,
                resumed,
            },
        );
    }

    /// The next restore of the tenant `tag` is of a state from elsewhere.
    pub(super) fn import(&mut self, tag: u64, hash: Option<u64>) {
        self.imports.insert(tag, hash);
    }

    /// The digest of the newest snapshot of the tenant `tag`, of its newest job.
    pub(super) fn saved(&self, tag: u64) -> Option<u64> {
        let newest = |(gpa, snapshot): &(&u64, &Snapshot)| {
            snapshot.tag == tag && self.newest_of(snapshot.job) == Some(**gpa)
        };
        let all = self.at.iter().filter(newest);
        all.max_by_key(|(_, snapshot)| snapshot.job)
            .map(|(_, snapshot)| snapshot.hash)
    }

    fn newest_of(&self, job: u64) -> Option<u64> {
        self.jobs.get(&job)?.newest
    }

    /// A restore from `gpa` for the tenant `tag` has read bytes of the digest `hash`: the job that
    /// goes on, and what is wrong with that.
    pub(super) fn restore(
        &mut self,
        gpa: u64,
        tag: u64,
        hash: u64,
    ) -> (Option<u64>, Vec<(Kind, String)>) {
        let import = self.imports.remove(&tag);
        if let Some(expected) = import.or(self.any.then_some(None)) {
            self.save(gpa, None, tag, expected.unwrap_or(hash));
        }
        let Some(snapshot) = self.at.get_mut(&gpa) else {
            let text = format!("no save was completed to {gpa:#x}");
            return (None, vec![(Kind::ResumeIncomplete, text)]);
        };
        let job = self.jobs.get(&snapshot.job);
        let stale = snapshot.resumed || job.is_none_or(|j| j.over || j.newest != Some(gpa));
        let (owner, forged) = (snapshot.tag, snapshot.hash != hash);
        snapshot.resumed = true;
        let wrong = [
            (stale, Kind::ResumeStale, format!("snapshot at {gpa:#x}")),
            (
                forged,
                Kind::ResumeForged,
                format!("the bytes at {gpa:#x} are not those saved"),
            ),
            (
                owner != tag,
                Kind::MixedTenant,
                format!("snapshot of {owner:#x}, registers of {tag:#x}"),
            ),
        ];
        let wrong = wrong.into_iter().filter(|(is, ..)| *is);
        let wrong = wrong.map(|(_, kind, text)| (kind, text)).collect();
        (Some(snapshot.job), wrong)
    }
}
