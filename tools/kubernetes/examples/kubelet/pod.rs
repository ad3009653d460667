// SPDX-License-Identifier: GPL-2.0-or-later
//! Pods: cgroups with programs that use cards.

use crate::card::Card;
use anyhow::{Context as _, Result};
use fermata::{Context, Group};
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const CGROUPS: &str = "/sys/fs/cgroup";

/// A pod, whose programs end with the value.
pub(crate) struct Pod {
    pub(crate) uid: &'static str,
    cgroup: PathBuf,
    programs: Vec<Child>,
}

impl Pod {
    /// Makes the cgroups of a pod and of its container, where the kubelet makes the pod's.
    pub(crate) fn make(uid: &'static str, place: &str) -> Result<Self> {
        let cgroup = Path::new(CGROUPS).join(place);
        fs::create_dir_all(cgroup.join("container"))?;
        Ok(Self {
            uid,
            cgroup,
            programs: Vec::new(),
        })
    }

    /// Returns what is registered for the pod on a card.
    pub(crate) fn group(&self, card: &Card) -> Result<Group> {
        let card = Context::open(card.node())?;
        Ok(card.registered_group(File::open(&self.cgroup)?.as_fd())?)
    }

    /// Starts fermatactl in the pod's container, on a card.
    pub(crate) fn start(&mut self, card: &Card, arguments: &[String]) -> Result<()> {
        let cgroup = self.cgroup.join("container/cgroup.procs");
        let mut command = Command::new("fermatactl");
        command
            .args(arguments)
            .args(["--card", &card.number.to_string()])
            .stdout(Stdio::null());
        // SAFETY: the closure only writes to a file. This process has one thread, so that no lock of
        // the allocator can be held by another.
        unsafe { command.pre_exec(move || fs::write(&cgroup, "0")) };
        self.programs.push(command.spawn().context("fermatactl")?);
        Ok(())
    }

    /// Returns slices and time on slots of the pod's contexts on a card.
    pub(crate) fn runs(&self, card: &Card) -> Result<(u64, u64)> {
        // The group is the container's cgroup as long as the pod's is not registered.
        let groups = [
            self.cgroup.metadata()?.ino(),
            self.cgroup.join("container").metadata()?.ino(),
        ];
        let contexts = Context::open(card.node())?.contexts()?;
        let own = contexts
            .iter()
            .filter(|context| groups.contains(&context.group));
        Ok(own.fold((0, 0), |(slices, ns), context| {
            (slices + context.slices, ns + context.run_ns)
        }))
    }

    pub(crate) fn stop(&mut self) {
        for program in &mut self.programs {
            // It may have ended by itself.
            let _ = program.kill();
            let _ = program.wait();
        }
        self.programs.clear();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir(self.cgroup.join("container"));
        let _ = fs::remove_dir(&self.cgroup);
    }
}
