// SPDX-License-Identifier: GPL-2.0-or-later
//! The prolog and the epilog of a job, which slurmd runs on each of its nodes.
//!
//! slurmd drains a node whose prolog fails, and starts the job on another one. So the prolog fails
//! only if a card or the node's settings are wrong, whatever job a user submits, and whether
//! slurmctld answers or not.

use crate::card::{Allowed, Card};
use crate::job::{self, Job};
use crate::processes::{directory, others, own_cgroup};
use crate::programs::{Programs, LIMIT};
use crate::settings::{JobTerms, Settings};
use anyhow::{ensure, Context as _, Result};
use fermata_output::complain;
use rustix::process::{kill_process_group, Signal};
use std::fs::{OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The cards of a job on the node, by their indices. slurmd sets the variable for `gpu` and for
/// `shard`.
const CARDS: &str = "SLURM_JOB_GPUS";
/// How often slurmctld is asked for a job before the job starts, once in each [`LIMIT`].
const TRIES: u32 = 3;
/// Parts of each of its cards that a job has as long as slurmctld is silent.
const DEFAULT_SHARDS: u32 = 1;
/// The name of this program.
const NAME: &str = env!("CARGO_PKG_NAME");

/// The arguments of a hook.
#[derive(clap::Args)]
pub(crate) struct Hook {
    /// The file with the terms of accounts and QOS
    #[arg(long, value_name = "FILE", default_value = "/etc/slurm/fermata.toml")]
    settings: PathBuf,
    /// A folder of this node for data about jobs on its cards
    #[arg(long, value_name = "DIR", default_value = "/run/fermata-slurm")]
    state: PathBuf,
    /// Where the epilog writes a line for each job that has left a card, and the prolog one for each
    /// job about which slurmctld does not answer
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/log/fermata-slurm.log"
    )]
    log: PathBuf,
    #[command(flatten)]
    programs: Programs,
}

/// The arguments of the prolog.
#[derive(clap::Args)]
pub(crate) struct Prolog {
    #[command(flatten)]
    hook: Hook,
    /// Wait until slurmctld answers, and do not give the job the default share before: what the
    /// prolog starts if slurmctld is silent
    #[arg(long)]
    wait: bool,
}

/// The job of a hook.
struct OfJob {
    id: u32,
    node: String,
}

impl OfJob {
    /// Returns the job whose environment slurmd has given to the hook.
    fn of_hook() -> Result<Self> {
        let id = variable("SLURM_JOB_ID")?;
        Ok(Self {
            id: id.parse().with_context(|| format!("SLURM_JOB_ID: {id}"))?,
            node: variable("SLURMD_NODENAME")?,
        })
    }
}

impl Prolog {
    pub(crate) fn run(&self) -> Result<()> {
        let hook = &self.hook;
        // Nothing about a job without cards can be wrong.
        if std::env::var_os(CARDS).is_none_or(|cards| cards.is_empty()) {
            return Ok(());
        }
        let settings = Settings::read(&hook.settings)?;
        hook.programs.check()?;
        let job = OfJob::of_hook()?;
        let tries = if self.wait { u32::MAX } else { TRIES };
        match hook.ask(&job, &settings, tries) {
            Ok(share) => {
                let registered = hook.register(&job, &settings, &share);
                if self.wait {
                    let outcome = match &registered {
                        Ok(()) => "own".into(),
                        Err(error) => format!("default: {error:#}"),
                    };
                    let (id, node) = (job.id, &job.node);
                    hook.log(&format!("job={id} node={node} share={outcome}"))?;
                }
                registered
            }
            Err(error) => {
                let (id, node) = (job.id, &job.node);
                let logged = hook.log(&format!("job={id} node={node} share=default: {error:#}"));
                // A full disk, for example, is no reason to drain the node.
                if let Err(error) = logged {
                    complain!("fermata-slurm: {error:#}");
                }
                hook.register_by_default(&job, &settings)?;
                hook.wait_for_answer()
            }
        }
    }
}

/// What a job gets of its cards, in the order of their numbers.
struct JobShare {
    shards: Vec<u32>,
    terms: JobTerms,
}

impl Hook {
    /// Asks slurmctld for a job, once in each [`LIMIT`].
    fn ask(&self, of: &OfJob, settings: &Settings, tries: u32) -> Result<JobShare> {
        let ask = || -> Result<JobShare> {
            let job = Job::ask(&self.programs, of.id)?;
            let mut shards = job.shards(&of.node, settings.shards, &[])?;
            // Some may be of GPUs of other types.
            if shards.len() != Allowed::all()?.len() {
                let gpus = job::gpus_of(&self.programs, &of.node)?;
                shards = job.shards(&of.node, settings.shards, &gpus)?;
            }
            Ok(JobShare {
                shards,
                terms: settings.terms(&job.account, &job.qos),
            })
        };
        let mut left = tries;
        loop {
            let begin = Instant::now();
            let answer = ask();
            left -= 1;
            if answer.is_ok() || left == 0 {
                return answer;
            }
            sleep(LIMIT.saturating_sub(begin.elapsed()));
        }
    }

    /// Gives a job its share of its cards.
    fn register(&self, job: &OfJob, settings: &Settings, share: &JobShare) -> Result<()> {
        // The job has only GPUs of other types, or has been cancelled in the meantime.
        if share.shards.is_empty() {
            return Ok(());
        }
        let (id, cards) = (job.id, Allowed::all()?);
        ensure!(
            cards.len() == share.shards.len(),
            "job {id} has parts of {} cards, and can open {}: {:?}: compare gres.conf with the cards \
             (Type=fermata), and set ConstrainDevices=yes in cgroup.conf",
            share.shards.len(),
            cards.len(),
            cards.iter().map(|card| &card.device).collect::<Vec<_>>()
        );
        let cgroup = job_cgroup(&own_cgroup()?, id)?;
        for (card, &shards) in cards.into_iter().zip(&share.shards) {
            let card = Card::open(card, &self.state)?;
            card.join(id, cgroup.as_ref(), shards, share.terms, settings.shards)?;
        }
        Ok(())
    }

    /// Gives a job, about which slurmctld does not answer, the default share of its cards.
    fn register_by_default(&self, job: &OfJob, settings: &Settings) -> Result<()> {
        // As many as there are: some of the job's may be of another kind.
        let share = JobShare {
            shards: vec![DEFAULT_SHARDS; Allowed::all()?.len()],
            terms: settings.terms("", ""),
        };
        self.register(job, settings, &share)
    }

    /// Starts a process that repeats the registration when slurmctld answers, or is ended by the
    /// epilog ([`end_waiting`]).
    fn wait_for_answer(&self) -> Result<()> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(&program);
        command.args(["prolog", "--wait"]);
        let paths: [(&str, &Path); 4] = [
            ("--settings", &self.settings),
            ("--state", &self.state),
            ("--log", &self.log),
            ("--scontrol", self.programs.scontrol()),
        ];
        for (option, path) in paths {
            command.arg(option).arg(path);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: setsid() is safe after fork().
        unsafe {
            // Slurm kills the process group of a prolog.
            command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?));
        }
        command
            .spawn()
            .with_context(|| program.display().to_string())?;
        Ok(())
    }

    pub(crate) fn epilog(&self) -> Result<()> {
        end_waiting()?;
        let settings = Settings::read(&self.settings)?;
        let job = OfJob::of_hook()?;
        let (mut time, mut done) = (None, Ok(()));
        for card in Allowed::all()? {
            // A broken card is no reason to keep the job on the others.
            let left =
                Card::open(card, &self.state).and_then(|card| card.leave(job.id, settings.shards));
            match left {
                Ok(Some(run)) => time = Some(time.unwrap_or(Duration::ZERO) + run),
                Ok(None) => {}
                Err(error) => done = done.and(Err(error)),
            }
        }
        let Some(time) = time else { return done };
        let (id, node) = (job.id, &job.node);
        let seconds = time.as_secs_f64();
        let logged = self.log(&format!("job={id} node={node} card_seconds={seconds:.3}"));
        let added = job::add_time(&self.programs, id, node, time);
        done.and(logged).and(added)
    }

    /// Writes a line to the log, which only root may read: the log has the times of all users.
    fn log(&self, line: &str) -> Result<()> {
        let write = || {
            let mut options = OpenOptions::new();
            let mut log = options
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&self.log)?;
            let mode = log.metadata()?.permissions().mode();
            // An earlier version has made a log for everybody.
            if mode & 0o7 != 0 {
                log.set_permissions(Permissions::from_mode(mode & 0o7770))?;
            }
            log.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes())
        };
        write().with_context(|| self.log.display().to_string())
    }
}

/// Ends the process of the job that waits for slurmctld, with the program that it has called. They
/// are in the cgroup of the hooks, which Slurm does not empty, and cannot remove before.
fn end_waiting() -> Result<()> {
    for process in others()? {
        let comm = format!("/proc/{}/comm", process.as_raw_nonzero());
        // It may have ended.
        if std::fs::read_to_string(comm).is_ok_and(|comm| comm.trim_end() == NAME) {
            let _ = kill_process_group(process, Signal::KILL);
        }
    }
    Ok(())
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set: slurmd calls this program"))
}

/// Returns the directory of the job's cgroup, in which the hook runs.
fn job_cgroup(own: &str, id: u32) -> Result<String> {
    let name = format!("/job_{id}");
    let end = own.match_indices(&name).map(|(at, name)| at + name.len());
    let end = end.filter(|&end| own[end..].is_empty() || own[end..].starts_with('/'));
    let end = end.last().with_context(|| {
        format!(
            "cgroup {own} is not in that of job {id}: set PrologFlags=RunInJob in slurm.conf, and \
             CgroupPlugin=cgroup/v2 in cgroup.conf"
        )
    })?;
    Ok(directory(&own[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_is_that_of_the_job() {
        let of = |own| job_cgroup(own, 7).ok();
        let job = Some("/sys/fs/cgroup/a/n1_slurmstepd.scope/job_7".to_owned());
        assert_eq!(
            of("/a/n1_slurmstepd.scope/job_7/step_extern/user/task_0"),
            job
        );
        assert_eq!(of("/a/n1_slurmstepd.scope/job_7"), job);
        assert_eq!(of("/a/job_71/step_extern"), None);
        assert_eq!(of("/system.slice"), None);
    }
}
