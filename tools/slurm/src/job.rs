// SPDX-License-Identifier: GPL-2.0-or-later
//! A job, as slurmctld knows it.

use anyhow::{bail, ensure, Context as _, Result};
use serde::Deserialize;
use std::process::Command;

/// A job.
#[derive(Debug, Deserialize)]
pub(crate) struct Job {
    #[serde(default)]
    pub(crate) account: String,
    #[serde(default)]
    pub(crate) qos: String,
    #[serde(default)]
    pub(crate) admin_comment: String,
    /// Of each node of the job, in order.
    #[serde(default)]
    gres_detail: Vec<String>,
    #[serde(rename = "job_resources")]
    resources: Option<Resources>,
}

#[derive(Debug, Deserialize)]
struct Resources {
    nodes: Nodes,
}

#[derive(Debug, Deserialize)]
struct Nodes {
    #[serde(default)]
    allocation: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    name: String,
}

#[derive(Deserialize)]
struct Answer {
    jobs: Vec<Job>,
}

impl Job {
    pub(crate) fn ask(id: u32) -> Result<Self> {
        let id = id.to_string();
        let text = call("scontrol", &["show", "job", &id, "--json"])?;
        Self::parse(&text).with_context(|| format!("scontrol show job {id} --json"))
    }

    fn parse(text: &[u8]) -> Result<Self> {
        let answer: Answer = serde_json::from_slice(text)?;
        let mut jobs = answer.jobs.into_iter();
        match (jobs.next(), jobs.next()) {
            (Some(job), None) => Ok(job),
            _ => bail!("the answer is not of one job"),
        }
    }

    /// Returns how many shards the job has of each card of a node of which it has any, in the order
    /// of the cards. A card as a whole has `all`.
    pub(crate) fn shards(&self, node: &str, all: u32) -> Result<Vec<u32>> {
        let resources = self.resources.as_ref();
        let nodes = resources.map_or(&[][..], |resources| &resources.nodes.allocation);
        let index = nodes.iter().position(|one| one.name == node);
        let index = index.with_context(|| format!("the job is not on node {node}"))?;
        let detail = self.gres_detail.get(index).map_or("", String::as_str);
        shards_of(detail, all).with_context(|| format!("gres \"{detail}\""))
    }

    /// Returns the number of its nodes.
    pub(crate) fn nodes(&self) -> usize {
        let resources = self.resources.as_ref();
        resources.map_or(0, |resources| resources.nodes.allocation.len())
    }
}

/// Calls a program of Slurm, and returns its output.
pub(crate) fn call(program: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    let done = Command::new(program).args(arguments).output();
    let done = done.with_context(|| program.to_owned())?;
    // sacctmgr tells some errors on its standard output.
    let said = match &*done.stderr {
        [] => &done.stdout,
        _ => &done.stderr,
    };
    let said = String::from_utf8_lossy(said);
    ensure!(
        done.status.success(),
        "{program} {}: {}",
        arguments.join(" "),
        said.trim()
    );
    Ok(done.stdout)
}

/// Reads such as `shard:fermata:2(2/8,0/8)`, `gpu:fermata:1(IDX:0)`: numbers of cards, or shards of
/// each card.
fn shards_of(detail: &str, all: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for gres in split_outside(detail) {
        let (name, rest) = gres.split_once(':').unwrap_or((gres, ""));
        let inner = rest
            .split_once('(')
            .and_then(|(_, inner)| inner.strip_suffix(')'));
        match name {
            "gpu" => {
                let count = rest.split('(').next().unwrap_or("");
                let count = count.rsplit(':').next().unwrap_or("").parse()?;
                found.extend(std::iter::repeat_n(all, count));
            }
            "shard" => {
                let inner = inner.context("no shards of cards in parentheses")?;
                for part in inner.split(',') {
                    let number = part.split('/').next().unwrap_or("");
                    found.extend(Some(number.parse()?).filter(|&number: &u32| number > 0));
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Splits at commas that are not in parentheses.
fn split_outside(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = text.split(|letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    });
    parts.filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_those_of_each_card() {
        let of = |detail| shards_of(detail, 8).unwrap();
        assert_eq!(of("shard:fermata:2(2/8,0/8)"), [2]);
        assert_eq!(of("shard:2(0/8,2/8)"), [2]);
        assert_eq!(of("shard:fermata:9(8/8,1/8)"), [8, 1]);
        assert_eq!(of("gpu:fermata:2(IDX:0-1)"), [8, 8]);
        assert_eq!(of("gpu:1(IDX:0),license:3"), [8]);
        assert_eq!(of(""), [0; 0]);
        assert!(shards_of("shard:2", 8).is_err());
        assert!(shards_of("gpu:fermata:x(IDX:0)", 8).is_err());
    }
}
