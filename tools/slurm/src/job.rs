// SPDX-License-Identifier: GPL-2.0-or-later
//! A job as slurmctld knows it, and its time on cards, in `AdminComment` of its record.

use crate::programs::Programs;
use anyhow::{bail, Context as _, Result};
use serde::Deserialize;
use std::thread::sleep;
use std::time::Duration;

/// A job.
#[derive(Debug, Deserialize)]
pub(crate) struct Job {
    #[serde(rename = "job_id")]
    id: u32,
    #[serde(default)]
    array_job_id: Number,
    #[serde(default)]
    array_task_id: Number,
    #[serde(default)]
    het_job_id: Number,
    #[serde(default)]
    het_job_offset: Number,
    #[serde(default)]
    pub(crate) account: String,
    #[serde(default)]
    pub(crate) qos: String,
    #[serde(default)]
    admin_comment: String,
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

/// A number in an answer of Slurm, which may be missing.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Number {
    set: bool,
    number: u32,
}

impl Number {
    fn get(self) -> Option<u32> {
        self.set.then_some(self.number)
    }
}

/// The answer of scontrol, whose status is 0 even if slurmctld is silent.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    jobs: Vec<Job>,
    #[serde(default)]
    errors: Vec<Complaint>,
}

#[derive(Deserialize)]
struct Complaint {
    #[serde(default)]
    error: String,
}

impl Job {
    pub(crate) fn ask(programs: &Programs, id: u32) -> Result<Self> {
        let name = id.to_string();
        let text = programs.control(&["show", "job", &name, "--json"])?;
        Self::parse(&text, id).with_context(|| format!("scontrol show job {id} --json"))
    }

    /// Finds a job in an answer. The number of an array, or of a heterogeneous job, is also that of
    /// one of its jobs, and the answer has all of them.
    fn parse(text: &[u8], id: u32) -> Result<Self> {
        let answer: Answer = serde_json::from_slice(text)?;
        let mut jobs = answer.jobs.into_iter();
        let job = jobs.find(|job| job.id == id);
        let errors = answer.errors.iter().map(|complaint| &*complaint.error);
        job.with_context(|| match errors.collect::<Vec<_>>()[..] {
            [] => format!("the answer is not of job {id}"),
            ref errors => errors.join("; "),
        })
    }

    /// Returns the name by which Slurm changes only this job, not others of its array or of its
    /// heterogeneous job.
    fn name(&self) -> String {
        let leader = self.het_job_id.get().filter(|&leader| leader != 0);
        match (self.array_task_id.get(), leader) {
            (Some(task), _) => format!("{}_{task}", self.array_job_id.number),
            (None, Some(leader)) => format!("{leader}+{}", self.het_job_offset.number),
            (None, None) => self.id.to_string(),
        }
    }

    /// Returns how many shards the job has of each card of a node, in the order of the cards,
    /// leaving out cards of which it has none. A whole card counts as `all` shards. Slurm tells no
    /// type of shards: `gpus` has for each GPU of the node whether it is a card, as far as known.
    pub(crate) fn shards(&self, node: &str, all: u32, gpus: &[bool]) -> Result<Vec<u32>> {
        let resources = self.resources.as_ref();
        let nodes = resources.map_or(&[][..], |resources| &resources.nodes.allocation);
        let index = nodes.iter().position(|one| one.name == node);
        let index = index.with_context(|| format!("the job is not on node {node}"))?;
        let detail = self.gres_detail.get(index).map_or("", String::as_str);
        shards_of(detail, all, gpus).with_context(|| format!("gres \"{detail}\""))
    }

    /// Returns the number of the job's nodes.
    pub(crate) fn nodes(&self) -> usize {
        let resources = self.resources.as_ref();
        resources.map_or(0, |resources| resources.nodes.allocation.len())
    }
}

/// The type of the cards in gres.conf. A node may have GPUs of other types.
const TYPE: &str = "fermata";

/// Parses texts such as `shard:2(2/8,0/8)` and `gpu:fermata:1(IDX:0)`: numbers of cards, or shards
/// of each GPU.
fn shards_of(detail: &str, all: u32, gpus: &[bool]) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for (name, kind, count, inner) in split_outside(detail).into_iter().map(parts) {
        match name {
            _ if kind != TYPE => {}
            "gpu" => found.extend(std::iter::repeat_n(all, count.parse()?)),
            "shard" => {
                let inner = inner.strip_suffix(')');
                let inner = inner.context("no shards of cards in parentheses")?;
                for (index, part) in inner.split(',').enumerate() {
                    let number = part.split('/').next().unwrap_or("").parse()?;
                    let is_card = gpus.get(index).copied().unwrap_or(true);
                    found.extend(Some(number).filter(|&number: &u32| is_card && number > 0));
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Returns for each GPU of a node, in the order of their numbers, whether it is a card.
pub(crate) fn gpus_of(programs: &Programs, node: &str) -> Result<Vec<bool>> {
    let text = programs.control(&["show", "node", node, "--json"])?;
    parse_gpus(&text).with_context(|| format!("scontrol show node {node} --json"))
}

/// Parses an answer about a node, whose GPUs are in texts such as `gpu:other:1,gpu:fermata:2(S:0)`.
fn parse_gpus(text: &[u8]) -> Result<Vec<bool>> {
    #[derive(Deserialize)]
    struct Answer {
        nodes: [Gres; 1],
    }
    #[derive(Deserialize)]
    struct Gres {
        gres: String,
    }
    let Answer {
        nodes: [Gres { gres }],
    } = serde_json::from_slice(text)?;
    let mut gpus = Vec::new();
    for (name, kind, count, _) in split_outside(&gres).into_iter().map(parts) {
        if name == "gpu" {
            gpus.extend(std::iter::repeat_n(kind == TYPE, count.parse()?));
        }
    }
    Ok(gpus)
}

/// Returns the name, the type, the number, and what is in parentheses.
fn parts(gres: &str) -> (&str, &str, &str, &str) {
    let (name, rest) = gres.split_once(':').unwrap_or((gres, ""));
    let (count, inner) = rest.split_once('(').unwrap_or((rest, ""));
    let (kind, count) = count.rsplit_once(':').unwrap_or((TYPE, count));
    (name, kind, count, inner)
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

/// The beginning of the part of a comment that has the times.
const TIME: &str = "card seconds:";
/// The answer of slurmctld about a job that has ended.
const FINISHED: &str = "Job has already finished";
/// How often writing the comment is tried if others replace it.
const TRIES: u32 = 10;
/// The time after which any epilog that has read a comment has also written it.
const SETTLES: Duration = Duration::from_secs(1);
/// Length of the comment that sacct is asked for. The default truncates comments.
const MOST_CHARACTERS: u32 = 4096;

/// The daemon that keeps the comment.
#[derive(Clone, Copy)]
enum Keeper {
    /// slurmctld, which changes the comment until the job has finished.
    Controller,
    /// slurmdbd, afterwards.
    Database,
}

/// Adds time on slots of a node's cards to the comment of a job. The comment of a job that has
/// finished is unchanged if no slurmdbd keeps it.
pub(crate) fn add_time(programs: &Programs, id: u32, node: &str, time: Duration) -> Result<()> {
    let mut job = Job::ask(programs, id)?;
    // Otherwise the epilogs of several nodes write the comment, and slurmctld sends slurmdbd its
    // own.
    let is_only_writer = job.nodes() <= 1 && job.admin_comment.is_empty();
    let mut keeper = Keeper::Controller;
    for _ in 0..TRIES {
        let comment = with_time(&keeper.comment(programs, &job)?, node, time);
        if let Err(error) = keeper.set(programs, &job, &comment) {
            if !error.to_string().contains(FINISHED) {
                return Err(error);
            }
            if !has_database(programs)? {
                return Ok(());
            }
            keeper = Keeper::Database;
            continue;
        }
        if is_only_writer {
            return Ok(());
        }
        sleep(SETTLES);
        job = Job::ask(programs, id)?;
        if time_on(&keeper.comment(programs, &job)?, node) == time_on(&comment, node) {
            return Ok(());
        }
    }
    bail!("the comment of job {id} was replaced {TRIES} times")
}

impl Keeper {
    /// Returns the comment of `job`, which slurmctld has just reported.
    fn comment(self, programs: &Programs, job: &Job) -> Result<String> {
        let recorded = match self {
            Self::Controller => String::new(),
            Self::Database => recorded_comment(programs, job)?,
        };
        // slurmdbd may not have received the comment yet.
        Ok(match recorded.as_str() {
            "" => job.admin_comment.clone(),
            _ => recorded,
        })
    }

    fn set(self, programs: &Programs, job: &Job, comment: &str) -> Result<()> {
        let (job, comment) = (
            format!("JobId={}", job.name()),
            format!("AdminComment={comment}"),
        );
        let output = match self {
            Self::Controller => programs.control(&["update", &job, &comment]),
            Self::Database => {
                let change = [
                    "--immediate",
                    "modify",
                    "job",
                    "where",
                    &job,
                    "set",
                    &comment,
                ];
                programs.call("sacctmgr", &change)
            }
        };
        output.map(drop)
    }
}

/// Returns whether a slurmdbd keeps the records of jobs.
fn has_database(programs: &Programs) -> Result<bool> {
    let settings = programs.control(&["show", "config"])?;
    let settings = String::from_utf8_lossy(&settings);
    let mut pairs = settings.lines().filter_map(|line| line.split_once('='));
    let kind = pairs.find(|(key, _)| key.trim() == "AccountingStorageType");
    Ok(kind.is_some_and(|(_, value)| value.trim() == "accounting_storage/slurmdbd"))
}

/// Returns the comment in slurmdbd's record of a job.
fn recorded_comment(programs: &Programs, job: &Job) -> Result<String> {
    let (name, format) = (
        job.name(),
        format!("--format=AdminComment%{MOST_CHARACTERS}"),
    );
    let plain = ["--allocations", "--noheader", "--parsable2"];
    let arguments = [&plain[..], &[&format, "--jobs", &name]].concat();
    let text = programs.call("sacct", &arguments)?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Returns the seconds on a node from a comment.
fn time_on<'a>(comment: &'a str, node: &str) -> Option<&'a str> {
    let times = comment
        .split("; ")
        .filter_map(|part| part.strip_prefix(TIME));
    let mut words = times
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.split_once('='));
    words
        .find(|&(name, _)| name == node)
        .map(|(_, seconds)| seconds)
}

/// Returns a comment with the time on this node added. The text of others is kept.
fn with_time(comment: &str, node: &str, time: Duration) -> String {
    let (ours, others): (Vec<_>, Vec<_>) = comment
        .split("; ")
        .filter(|part| !part.is_empty())
        .partition(|part| part.starts_with(TIME));
    let words = ours
        .iter()
        .flat_map(|part| part[TIME.len()..].split_whitespace());
    let mut times: Vec<(String, f64)> = words
        .filter_map(|word| {
            let (node, seconds) = word.split_once('=')?;
            Some((node.to_owned(), seconds.parse().ok()?))
        })
        .collect();
    match times.iter_mut().find(|(name, _)| name == node) {
        Some((_, seconds)) => *seconds += time.as_secs_f64(),
        None => times.push((node.to_owned(), time.as_secs_f64())),
    }
    let mut text = TIME.to_owned();
    for (node, seconds) in times {
        text += &format!(" {node}={seconds:.3}");
    }
    let all = others.into_iter().map(str::to_owned).chain([text]);
    all.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As scontrol of Slurm 24.11 answers when it is asked for 11, the number of an array of which
    /// one job runs and the other waits.
    const ARRAY: &str = r#"{"jobs": [
        {"job_id": 12, "account": "one",
         "array_job_id": {"set": true, "infinite": false, "number": 11},
         "array_task_id": {"set": true, "infinite": false, "number": 0}},
        {"job_id": 11, "account": "other",
         "array_job_id": {"set": true, "infinite": false, "number": 11},
         "array_task_id": {"set": true, "infinite": false, "number": 1},
         "het_job_id": {"set": true, "infinite": false, "number": 0}}]}"#;
    /// The same of a heterogeneous job.
    const HETEROGENEOUS: &str = r#"{"jobs": [
        {"job_id": 20, "account": "one", "array_task_id": {"set": false, "infinite": false, "number": 0},
         "het_job_id": {"set": true, "infinite": false, "number": 20},
         "het_job_offset": {"set": true, "infinite": false, "number": 0}},
        {"job_id": 21, "account": "other",
         "het_job_id": {"set": true, "infinite": false, "number": 20},
         "het_job_offset": {"set": true, "infinite": false, "number": 1}}]}"#;

    #[test]
    fn the_record_is_that_of_the_number_asked_for() {
        let of = |text: &str, id| {
            let job = Job::parse(text.as_bytes(), id).unwrap();
            (job.account.clone(), job.name())
        };
        let named = |account: &str, name: &str| (account.to_owned(), name.to_owned());
        assert_eq!(of(ARRAY, 11), named("other", "11_1"));
        assert_eq!(of(ARRAY, 12), named("one", "11_0"));
        assert_eq!(of(HETEROGENEOUS, 20), named("one", "20+0"));
        assert_eq!(of(HETEROGENEOUS, 21), named("other", "20+1"));
        assert_eq!(of(r#"{"jobs": [{"job_id": 7}]}"#, 7), named("", "7"));
        let error = |text: &str| Job::parse(text.as_bytes(), 13).unwrap_err().to_string();
        assert_eq!(error(ARRAY), "the answer is not of job 13");
        let silent = r#"{"jobs": [], "errors": [{"description": "", "error": "Unable to contact slurm controller"}]}"#;
        assert_eq!(error(silent), "Unable to contact slurm controller");
    }

    #[test]
    fn shards_are_those_of_each_card() {
        let of = |detail| shards_of(detail, 8, &[]).unwrap();
        assert_eq!(of("shard:fermata:2(2/8,0/8)"), [2]);
        assert_eq!(of("shard:2(0/8,2/8)"), [2]);
        assert_eq!(of("shard:fermata:9(8/8,1/8)"), [8, 1]);
        assert_eq!(of("gpu:fermata:2(IDX:0-1)"), [8, 8]);
        assert_eq!(of("gpu:1(IDX:0),license:3"), [8]);
        assert_eq!(of(""), [0; 0]);
        assert!(shards_of("shard:2", 8, &[]).is_err());
        assert!(shards_of("gpu:fermata:x(IDX:0)", 8, &[]).is_err());
    }

    #[test]
    fn gpus_of_other_types_are_no_cards() {
        // As scontrol of Slurm 24.11 answers.
        let node =
            r#"{"nodes": [{"name": "n1", "gres": "gpu:other:1,gpu:fermata:2(S:0),shard:24"}]}"#;
        let gpus = parse_gpus(node.as_bytes()).unwrap();
        assert_eq!(gpus, [false, true, true]);
        let of = |detail| shards_of(detail, 8, &gpus).unwrap();
        assert_eq!(of("gpu:fermata:0(IDX:),gpu:other:1(IDX:0)"), [0; 0]);
        assert_eq!(of("gpu:other:1(IDX:0),gpu:fermata:1(IDX:1)"), [8]);
        assert_eq!(of("shard:1(1/8,0/8,0/8)"), [0; 0]);
        assert_eq!(of("shard:1(0/8,0/8,1/8)"), [1]);
    }

    #[test]
    fn time_is_added_by_node_and_other_words_stay() {
        let second = Duration::from_millis(1500);
        let once = with_time("", "n1", second);
        assert_eq!(once, "card seconds: n1=1.500");
        let twice = with_time(&once, "n2", second);
        assert_eq!(twice, "card seconds: n1=1.500 n2=1.500");
        let thrice = with_time(&twice, "n1", second);
        assert_eq!(thrice, "card seconds: n1=3.000 n2=1.500");
        let on = |node| time_on(&thrice, node);
        assert_eq!(
            [on("n1"), on("n2"), on("n")],
            [Some("3.000"), Some("1.500"), None]
        );
        assert_eq!(time_on("a note n1=3", "n1"), None);
        let other = with_time("a note; more", "n1", second);
        assert_eq!(other, "a note; more; card seconds: n1=1.500");
        assert_eq!(
            with_time(&other, "n1", second),
            "a note; more; card seconds: n1=3.000"
        );
    }
}
