// SPDX-License-Identifier: GPL-2.0-or-later
//! The jobs that share a card: their cgroups are registered with the card, and a file for each job
//! below /run tells its share.

use crate::settings::JobTerms;
use crate::shares::{weights, Share};
use anyhow::{Context as _, Result};
use fermata::{Context, Error, GroupSettings};
use rustix::fs::{flock, FlockOperation};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the cards that the caller may open: with `ConstrainDevices` those of its job.
pub(crate) fn allowed() -> Result<Vec<PathBuf>> {
    let devices = fermata::devices().context("/dev")?;
    let may_open = |device: &PathBuf| Context::open(device).is_ok();
    Ok(devices.into_iter().filter(may_open).collect())
}

/// A job on a card.
#[derive(Debug, Deserialize, Serialize)]
struct Member {
    cgroup: PathBuf,
    #[serde(flatten)]
    share: Share,
}

/// A card, and the files of its jobs. Nobody else changes them meanwhile.
pub(crate) struct Card {
    file: Context,
    folder: PathBuf,
    _lock: File,
}

impl Card {
    pub(crate) fn open(device: &Path, state: &Path) -> Result<Self> {
        let name = device.file_name().context("a device has a name")?;
        let folder = state.join(name);
        let lock = fs::create_dir_all(&folder).and_then(|()| File::open(&folder));
        let lock = lock.with_context(|| folder.display().to_string())?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let file = Context::open(device).with_context(|| device.display().to_string())?;
        Ok(Self {
            file,
            folder,
            _lock: lock,
        })
    }

    /// Gives a job its share of the card, and the other jobs what they have beside it.
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
        let path = self.path(job);
        fs::write(&path, serde_json::to_vec(&member)?)
            .with_context(|| path.display().to_string())?;
        self.share(card_shards)
    }

    /// Takes a job off the card. Returns the time that it had on slots; `None`: it was not there.
    pub(crate) fn leave(&self, job: u32, card_shards: u32) -> Result<Option<Duration>> {
        let path = self.path(job);
        let Some(member) = read(&path)? else {
            return Ok(None);
        };
        let run = match File::open(&member.cgroup) {
            Ok(cgroup) => match self.file.registered_group(cgroup.as_fd()) {
                // The card was bound again meanwhile, or the registration was removed.
                Err(Error::NotFound) => None,
                group => Some(group?.run),
            },
            Err(_) => None,
        };
        fs::remove_file(&path)?;
        self.share(card_shards)?;
        Ok(run)
    }

    fn path(&self, job: u32) -> PathBuf {
        self.folder.join(job.to_string())
    }

    /// Sets the weights of all jobs on the card.
    fn share(&self, card_shards: u32) -> Result<()> {
        let mut members = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let Some(member) = read(&path)? else { continue };
            // The job has ended, and its epilog did not run.
            if !member.cgroup.exists() {
                fs::remove_file(&path)?;
                continue;
            }
            members.push(member);
        }
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

    fn register(&self, cgroup: &Path, settings: &GroupSettings) -> Result<()> {
        let name = || cgroup.display().to_string();
        let directory = match File::open(cgroup) {
            // The job ends at this moment.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            directory => directory.with_context(name)?,
        };
        match self.file.set_group(directory.as_fd(), settings) {
            Err(Error::NotFound) => Ok(()),
            done => done.map(drop).with_context(name),
        }
    }
}

fn read(path: &Path) -> Result<Option<Member>> {
    let name = || path.display().to_string();
    match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        text => serde_json::from_slice(&text.with_context(name)?).with_context(name),
    }
}
