// SPDX-License-Identifier: GPL-2.0-or-later
//! The jobs that share a card, and their weights. The jobs' cgroups are registered with the card,
//! and a file below /run for each job has its share.

use crate::settings::JobTerms;
use anyhow::{ensure, Context as _, Result};
use fermata::{Context, Error, GroupSettings};
use fermata_output::{complain, file::NewFile};
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A card that the caller is not forbidden to open: with `ConstrainDevices`, one of its job's cards.
pub(crate) struct Allowed {
    pub(crate) device: PathBuf,
    /// Refused if the card is broken.
    file: fermata::Result<Context>,
}

impl Allowed {
    /// Returns the cards, in the order of their numbers.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let devices = fermata::devices().context("/dev")?.into_iter();
        let tried = devices.map(|device| Self {
            file: Context::open(&device),
            device,
        });
        let is_allowed = |card: &Self| !matches!(card.file, Err(Error::NotPermitted));
        Ok(tried.filter(is_allowed).collect())
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.file.is_ok()
    }
}

/// A job on a card.
#[derive(Debug, Deserialize, Serialize)]
struct Member {
    cgroup: PathBuf,
    #[serde(flatten)]
    share: Share,
}

/// The lock of a card's files, among them.
const LOCK: &str = "lock";
/// How long to wait for the lock, whose owner makes a few calls of the driver.
const LOCK_LIMIT: Duration = Duration::from_secs(20);

/// A card, and the files of its jobs. No other process changes the files while the value exists.
pub(crate) struct Card {
    file: Context,
    folder: PathBuf,
    _lock: File,
}

impl Card {
    pub(crate) fn open(card: Allowed, state: &Path) -> Result<Self> {
        let device = card.device.display().to_string();
        let folder = state.join(card.device.file_name().context("a device has a name")?);
        for folder in [state, &folder] {
            make_private(folder).with_context(|| folder.display().to_string())?;
        }
        let path = folder.join(LOCK);
        let lock = lock(&path, LOCK_LIMIT).with_context(|| path.display().to_string())?;
        Ok(Self {
            file: card.file.context(device)?,
            folder,
            _lock: lock,
        })
    }

    /// Gives a job its share of the card, and adjusts the shares of the other jobs.
    pub(crate) fn join(
        &self,
        job: u32,
        cgroup: &Path,
        shards: u32,
        terms: JobTerms,
        card_shards: u32,
    ) -> Result<()> {
        let settings = GroupSettings {
            max_priority: Some(terms.max_priority),
            cap: Some(terms.cap),
            ..GroupSettings::default()
        };
        self.register(cgroup, &settings)?;
        let member = Member {
            cgroup: cgroup.into(),
            share: Share {
                shards,
                weight: terms.weight,
            },
        };
        self.store(job, &member)?;
        self.share(card_shards)
    }

    /// Writes the file of a job in one step: an incomplete file would be read by the prologs of all
    /// later jobs.
    fn store(&self, job: u32, member: &Member) -> Result<()> {
        let path = self.path(job);
        let text = serde_json::to_vec(member)?;
        let stored = NewFile::create(&path).and_then(|new| new.fill(&text));
        stored.with_context(|| path.display().to_string())
    }

    /// Takes a job off the card. Returns the time that it had on slots; `None`: the job was not on
    /// the card.
    pub(crate) fn leave(&self, job: u32, card_shards: u32) -> Result<Option<Duration>> {
        let path = self.path(job);
        let Some(member) = read(&path)? else {
            remove(&path)?;
            return Ok(None);
        };
        let run = match File::open(&member.cgroup) {
            Ok(cgroup) => match self.file.registered_group(cgroup.as_fd()) {
                // The card was bound again in the meantime, or the registration was removed.
                Err(Error::NotFound) => None,
                group => Some(group?.run),
            },
            Err(_) => None,
        };
        remove(&path)?;
        self.share(card_shards)?;
        Ok(run)
    }

    fn path(&self, job: u32) -> PathBuf {
        self.folder.join(job.to_string())
    }

    /// Sets the weights of all jobs on the card.
    fn share(&self, card_shards: u32) -> Result<()> {
        let members = self.members()?;
        let shares: Vec<_> = members.iter().map(|member| member.share).collect();
        for (member, weight) in members.iter().zip(weights(&shares, card_shards)) {
            let settings = GroupSettings {
                weight: Some(weight),
                ..GroupSettings::default()
            };
            self.register(&member.cgroup, &settings)?;
        }
        Ok(())
    }

    /// Returns the jobs on the card. Removes the files of jobs that have ended.
    fn members(&self) -> Result<Vec<Member>> {
        let mut members = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_none_or(|name| name.parse::<u32>().is_err()) {
                continue;
            }
            let Some(member) = read(&path)? else { continue };
            // The job has ended, and its epilog did not run.
            if !member.cgroup.exists() {
                remove(&path)?;
                continue;
            }
            members.push(member);
        }
        Ok(members)
    }

    fn register(&self, cgroup: &Path, settings: &GroupSettings) -> Result<()> {
        let name = || cgroup.display().to_string();
        let directory = match File::open(cgroup) {
            // The job is just ending.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            directory => directory.with_context(name)?,
        };
        match self.file.set_group(directory.as_fd(), settings) {
            Err(Error::NotFound) => Ok(()),
            done => done.map(drop).with_context(name),
        }
    }
}

/// Makes a folder that only its owner can open, or takes a folder away from all others.
fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o700))
}

/// Takes a lock, for which it waits until the time limit. The lock is for root only: whoever opens it
/// can hold it for ever.
fn lock(path: &Path, limit: Duration) -> Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    let begin = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => ensure!(
                begin.elapsed() < limit,
                "another process has held the lock for {limit:?}: `fuser` tells which"
            ),
            done => return Ok(done.map(|()| file)?),
        }
        sleep(Duration::from_millis(20));
    }
}

/// Reads the file of a job. `None`: there is no such file, or it is not the file of a job. Neither
/// is a reason to refuse the card to other jobs.
fn read(path: &Path) -> Result<Option<Member>> {
    let name = || path.display().to_string();
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.with_context(name)?,
    };
    match serde_json::from_slice(&text) {
        Ok(member) => Ok(Some(member)),
        Err(error) => {
            complain!(
                "fermata-slurm: {}: {error}: the weight of this job stays as it is: remove the file",
                name()
            );
            Ok(None)
        }
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done.with_context(|| path.display().to_string()),
    }
}

/// The largest weight of a group.
const MOST_WEIGHT: u64 = GroupSettings::MAX_WEIGHT as u64;

/// The part of a card that a job has.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Share {
    /// Parts of the card that the job is promised.
    pub(crate) shards: u32,
    /// Its weight, per shard, for the part of the card that is promised to no job.
    pub(crate) weight: u32,
}

/// Returns the weight of each job's group. Each job has its shards of the card, and the rest of the
/// card is shared by shards and weights. If all jobs together have more than the card, they share
/// the card by shards.
fn weights(shares: &[Share], card: u32) -> Vec<u32> {
    let promised: u64 = shares.iter().map(|share| u64::from(share.shards)).sum();
    let card = u64::from(card).max(promised);
    let left = card - promised;
    let claim = |share: &Share| u64::from(share.shards) * u64::from(share.weight);
    let claims: u64 = shares.iter().map(claim).sum::<u64>().max(1);
    let weight = |share: &Share| {
        // In units of 1 / (card * claims) of the card.
        let part = u64::from(share.shards) * claims + left * claim(share);
        (part * MOST_WEIGHT / (card * claims)).clamp(1, MOST_WEIGHT) as u32
    };
    shares.iter().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;

    fn card(state: &Path) -> Card {
        let device = PathBuf::from("/dev/null");
        let file = Context::open(&device);
        Card::open(Allowed { device, file }, state).unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn nobody_else_can_open_the_lock_and_the_files() {
        let top = tempfile::tempdir().unwrap();
        let state = top.path().join("state");
        // As an earlier version left it.
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, Permissions::from_mode(0o755)).unwrap();
        for umask in [0, 0o77] {
            let before = rustix::process::umask(Mode::from_raw_mode(umask));
            let card = card(&state);
            card.store(1, &member(top.path())).unwrap();
            rustix::process::umask(before);
            let modes = [&state, &card.folder].map(|folder| mode(folder));
            assert_eq!(modes, [0o700; 2]);
            let modes = [card.path(1), card.folder.join(LOCK)].map(|file| mode(&file));
            assert_eq!(modes, [0o600; 2]);
            fs::remove_dir_all(&card.folder).unwrap();
        }
    }

    #[test]
    fn the_lock_has_a_time_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCK);
        let limit = Duration::from_millis(50);
        let first = lock(&path, limit).unwrap();
        let error = lock(&path, limit).unwrap_err().to_string();
        assert!(error.contains("has held the lock for 50ms"), "{error}");
        drop(first);
        lock(&path, limit).unwrap();
    }

    fn member(cgroup: &Path) -> Member {
        Member {
            cgroup: cgroup.into(),
            share: Share {
                shards: 2,
                weight: 100,
            },
        }
    }

    #[test]
    fn files_that_are_not_of_a_job_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let card = card(folder.path());
        card.store(1, &member(folder.path())).unwrap();
        let whole = fs::read(card.path(1)).unwrap();
        fs::write(card.path(2), &whole[..whole.len() / 2]).unwrap();
        fs::write(card.path(3), "").unwrap();
        fs::write(card.folder.join(".tmp"), &whole).unwrap();
        card.store(4, &member(Path::new("/nowhere"))).unwrap();
        let members = card.members().unwrap();
        assert_eq!(members.len(), 1);
        assert_eq!(members[0].cgroup, folder.path());
        assert!(!card.path(4).exists());
    }

    #[test]
    fn a_job_whose_file_cannot_be_read_leaves_the_card() {
        let folder = tempfile::tempdir().unwrap();
        let card = card(folder.path());
        fs::write(card.path(2), "{").unwrap();
        assert_eq!(card.leave(2, 8).unwrap(), None);
        assert!(!card.path(2).exists());
        assert_eq!(card.leave(2, 8).unwrap(), None);
    }

    fn of(shares: &[(u32, u32)]) -> Vec<u32> {
        let shares: Vec<_> = shares
            .iter()
            .map(|&(shards, weight)| Share { shards, weight })
            .collect();
        weights(&shares, 8)
    }

    #[test]
    fn a_job_alone_has_the_card() {
        assert_eq!(of(&[(1, 1)]), [10_000]);
        assert_eq!(of(&[(8, 10_000)]), [10_000]);
        assert_eq!(of(&[]), [0; 0]);
    }

    #[test]
    fn a_full_card_is_shared_by_shards_whatever_the_weights() {
        assert_eq!(of(&[(6, 1), (2, 10_000)]), [7_500, 2_500]);
    }

    #[test]
    fn weights_share_what_nobody_is_promised() {
        // 2/8 each, and the other 4/8 as 1 to 3.
        assert_eq!(of(&[(2, 100), (2, 300)]), [3_750, 6_250]);
    }

    #[test]
    fn each_job_has_at_least_what_it_is_promised() {
        for first in 1..=8_u32 {
            for second in 1..=8 - first.min(7) {
                for weight in [1, 100, 10_000] {
                    let card = 8.max(first + second);
                    let got = of(&[(first, weight), (second, 100)]);
                    let sum: u32 = got.iter().sum();
                    // A part in ten thousand is rounded away.
                    assert!(
                        u64::from(got[0] + 1) * u64::from(card)
                            >= u64::from(first) * u64::from(sum)
                    );
                    assert!(
                        u64::from(got[1] + 1) * u64::from(card)
                            >= u64::from(second) * u64::from(sum)
                    );
                }
            }
        }
    }

    #[test]
    fn nothing_overflows() {
        let share = Share {
            shards: 1024,
            weight: 10_000,
        };
        assert_eq!(weights(&[share; 256], 1024)[0], 39);
    }
}
