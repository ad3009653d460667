// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-slurm`: a prolog and an epilog of Slurm, which slurmd runs as root in the cgroup of the
//! job's extern step, give jobs their shares of cards. A wrapper saves a program when Slurm ends
//! its job, and restores the program where Slurm starts the job again.

mod card;
mod job;
mod processes;
mod settings;
mod wrapper;

use anyhow::{ensure, Context as _, Result};
use card::Card;
use clap::{Parser, Subcommand};
use fermata_command_line::OfParser;
use fermata_output::complain;
use job::Job;
use processes::{directory, own_cgroup};
use settings::Settings;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use wrapper::Run;

/// Share cards between jobs of Slurm, and move jobs between nodes.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Give a job its share of its cards: the Prolog of slurm.conf, with PrologFlags=RunInJob
    Prolog(Hook),
    /// Take a job off its cards, and report its time on slots: the Epilog of slurm.conf
    Epilog(Hook),
    Run(Run),
    #[command(flatten)]
    OfParser(OfParser),
}

fn main() -> ExitCode {
    let success = |()| ExitCode::SUCCESS;
    let done = match Arguments::parse().command {
        Command::Prolog(hook) => hook.prolog().map(success),
        Command::Epilog(hook) => hook.epilog().map(success),
        Command::Run(run) => run.run(),
        Command::OfParser(command) => command.run::<Arguments>().map(success),
    };
    done.unwrap_or_else(|error| {
        complain!("fermata-slurm: {error:#}");
        ExitCode::FAILURE
    })
}

#[derive(clap::Args)]
struct Hook {
    /// The file with the terms of accounts and QOS
    #[arg(long, value_name = "FILE", default_value = "/etc/slurm/fermata.toml")]
    settings: PathBuf,
    /// A folder of this node for data about jobs on its cards
    #[arg(long, value_name = "DIR", default_value = "/run/fermata-slurm")]
    state: PathBuf,
    /// Where the epilog writes a line for each job that has left a card
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/log/fermata-slurm.log"
    )]
    log: PathBuf,
}

impl Hook {
    fn prolog(&self) -> Result<()> {
        let settings = Settings::read(&self.settings)?;
        let (id, node) = (job_id()?, variable("SLURMD_NODENAME")?);
        let job = Job::ask(id)?;
        let shards = job.shards(&node, settings.shards)?;
        if shards.is_empty() {
            return Ok(());
        }
        let cgroup = job_cgroup(&own_cgroup()?, id)?;
        let cards = card::allowed()?;
        ensure!(
            cards.len() == shards.len(),
            "job {id} has parts of {} cards, and can open {}: {cards:?}: compare gres.conf with the cards, and \
             set ConstrainDevices=yes in cgroup.conf",
            shards.len(),
            cards.len()
        );
        let terms = settings.terms(&job.account, &job.qos);
        for (device, shards) in cards.iter().zip(shards) {
            let card = Card::open(device, &self.state)?;
            card.join(id, cgroup.as_ref(), shards, terms, settings.shards)?;
        }
        Ok(())
    }

    fn epilog(&self) -> Result<()> {
        let settings = Settings::read(&self.settings)?;
        let (id, node) = (job_id()?, variable("SLURMD_NODENAME")?);
        let mut time = None;
        for device in card::allowed()? {
            let card = Card::open(&device, &self.state)?;
            if let Some(run) = card.leave(id, settings.shards)? {
                time = Some(time.unwrap_or(Duration::ZERO) + run);
            }
        }
        let Some(time) = time else { return Ok(()) };
        let line = format!(
            "job={id} node={node} card_seconds={:.3}\n",
            time.as_secs_f64()
        );
        let log = OpenOptions::new().append(true).create(true).open(&self.log);
        let written = log.and_then(|mut log| log.write_all(line.as_bytes()));
        written.with_context(|| self.log.display().to_string())?;
        job::add_time(id, &node, time)
    }
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set: slurmd calls this program"))
}

fn job_id() -> Result<u32> {
    let text = variable("SLURM_JOB_ID")?;
    text.parse()
        .with_context(|| format!("SLURM_JOB_ID: {text}"))
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
