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

/// A job lives from `START_NEW`, or from an imported state, to its end. Only its newest snapshot
/// may be resumed.
#[derive(Debug, Default)]
struct Job {
    newest: Option<u64>,
    over: bool,
}

/// All snapshots, by the guest-physical address of their first byte.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    at: HashMap<u64, Snapshot>,
    jobs: HashMap<u64, Job>,
    last_job: u64,
    /// Tenants whose next restore is from a state that this card has not saved, and the state's
    /// digest if known.
    imports: HashMap<u64, Option<u64>>,
    /// Every restore may be from such a state, whichever client the card has.
    pub(super) any: bool,
}

impl Snapshots {
    /// Forgets all snapshots, because their memory is gone.
    pub(super) fn forget(&mut self) {
        *self = Self {
            any: self.any,
            ..Self::default()
        };
    }

    /// Begins a job and returns its number.
    pub(super) fn begin(&mut self) -> u64 {
        self.last_job += 1;
        self.last_job
    }

    /// Ends a job.
    pub(super) fn end(&mut self, job: u64) {
        self.jobs.entry(job).or_default().over = true;
    }

    /// Notes that a save to `gpa` has begun: the previous contents are no longer valid.
    pub(super) fn spoil(&mut self, gpa: u64) {
        self.at.remove(&gpa);
    }

    /// Notes that a save is complete. A job without a known origin (`None`) is a job of its own
    /// from now on.
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

    /// Announces that the next restore of the tenant `tag` is from a state of another card.
    pub(super) fn import(&mut self, tag: u64, hash: Option<u64>) {
        self.imports.insert(tag, hash);
    }

    /// Returns the digest of the newest snapshot of the newest job of the tenant `tag`.
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

    /// Judges a restore from `gpa` for the tenant `tag` that has read bytes of the digest `hash`.
    /// Returns the job that continues, and the violations.
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
