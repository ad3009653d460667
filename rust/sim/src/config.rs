// SPDX-License-Identifier: GPL-2.0

//! Workloads from `GPreempt`'s configuration files (docs/simulator.md describes the format). Fields
//! that do not concern requests are ignored.

use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;

use crate::workload::{
    periodic, poisson, Arrivals, Kind, Part, Phase, TraceRequest, Workload, PROGRAMS,
};
use crate::{MS, US};

const FILE_MAX: u64 = 16 << 20;
const TASKS_MAX: usize = 256;
const REQUESTS_MAX: f64 = 10e6;
const SECONDS: RangeInclusive<u64> = 1..=3600;
const FREQUENCY_MAX: f64 = 1e6;
const PRIORITY: RangeInclusive<u64> = 0..=i32::MAX as u64;
const PREPARATION_US_MAX: u64 = 60_000_000;
/// Range of the duration of a request, in us.
pub const WORK_US: RangeInclusive<u64> = 1..=60_000_000;

/// Reads a file. `work` has the durations of a request of each model, in us; it takes precedence
/// over [`PROGRAMS`].
///
/// # Errors
///
/// What is wrong, in which file and field, and what to do.
pub fn read(file: &Path, work: &[(String, u64)]) -> Result<Workload> {
    workload(file, work).with_context(|| file.display().to_string())
}

fn workload(file: &Path, work: &[(String, u64)]) -> Result<Workload> {
    let name = file.file_stem().and_then(|stem| stem.to_str());
    let is_plain = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let name = name.filter(is_plain).context(
        "the workload is named after the file: rename the file to letters, digits, - and an ending",
    )?;
    let mut text = String::new();
    let length = File::open(file)?
        .take(FILE_MAX + 1)
        .read_to_string(&mut text)?;
    ensure!(
        length as u64 <= FILE_MAX,
        "the file has more than {FILE_MAX} bytes: cut traces short"
    );
    parse(name, &text, work)
}

/// Returns the workload of a file's text.
///
/// # Errors
///
/// What is wrong, in which field, and what to do.
pub fn parse(name: &str, text: &str, work: &[(String, u64)]) -> Result<Workload> {
    let value: Value = serde_json::from_str(text).context("no JSON: correct the file there")?;
    let root = Field::root(&value);
    let seconds = root.whole("time", SECONDS)?;
    let tasks = root.list("tasks", TASKS_MAX)?;
    ensure!(!tasks.is_empty(), "tasks is empty: give one task or more");
    let mut parts = Vec::new();
    for task in &tasks {
        parts.push(part(task, seconds, work)?);
    }
    let requests = parts.iter().map(|part| part.rate).sum::<f64>() * seconds as f64;
    ensure!(
        requests <= REQUESTS_MAX,
        "tasks have {requests:.0} requests in {seconds} s: lower time or frequency to {REQUESTS_MAX} requests"
    );
    let of = |kind| parts.iter().filter(move |part| part.kind == kind);
    let told = |kind| {
        let rate: f64 = of(kind).map(|part| part.rate).sum();
        format!("{} clients, {rate:.1}/s", of(kind).count())
    };
    let text = format!("LC {}; BE {}; {seconds} s", told(Kind::Lc), told(Kind::Be));
    Ok(Workload::new(name.into(), text, Some(seconds), parts))
}

fn part(task: &Field<'_>, seconds: u64, work: &[(String, u64)]) -> Result<Part> {
    let load = task.object("load")?;
    let client = task.object("client")?;
    let (rate, arrivals) = arrivals(&load, seconds)?;
    let preparation = client.whole("preprocess_time", 0..=PREPARATION_US_MAX)?;
    let kind = match client.whole("priority", PRIORITY)? {
        0 => Kind::Lc,
        _ => Kind::Be,
    };
    let staggered = load.value.get("priority").is_none() || load.whole("priority", PRIORITY)? == 0;
    Ok(Part {
        id: task.text("id")?.into(),
        kind,
        us: us_of(&client, work)?,
        rate,
        arrivals,
        staggered,
        preparation: preparation * US,
    })
}

/// Returns requests per second, and when they arrive.
fn arrivals(load: &Field<'_>, seconds: u64) -> Result<(f64, Arrivals)> {
    match load.text("type")? {
        "trace" => {
            let times = times(load, seconds)?;
            let rate = times.len() as f64 / seconds as f64;
            Ok((rate, Arrivals::Trace(times.into())))
        }
        "periodic" => {
            let rate = load.frequency()?;
            Ok((rate, periodic(rate, Phase::At(0))))
        }
        "poisson" => {
            let rate = load.frequency()?;
            Ok((rate, poisson(rate)))
        }
        other => bail!(
            "{}.type is {other:?}: give trace, periodic or poisson; no other is simulated",
            load.path
        ),
    }
}

/// Returns the times of a trace up to the end, in order.
fn times(load: &Field<'_>, seconds: u64) -> Result<Vec<TraceRequest>> {
    let mut times = Vec::new();
    for time in load.list("trace", REQUESTS_MAX as usize)? {
        let ms = time.value.as_u64().filter(|ms| *ms <= SECONDS.end() * 1000);
        let ms = ms.with_context(|| {
            let shown = shown(Some(time.value));
            format!(
                "{} is {shown}: give whole milliseconds, up to an hour",
                time.path
            )
        })?;
        if ms < seconds * 1000 {
            times.push((ms * MS, None));
        }
    }
    times.sort_unstable();
    ensure!(
        !times.is_empty(),
        "{}.trace has no time before {seconds} s: give one, or more in time",
        load.path
    );
    Ok(times)
}

fn us_of(client: &Field<'_>, work: &[(String, u64)]) -> Result<u64> {
    let model = client.text("model_name")?;
    let given = work
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(model));
    let known = || {
        PROGRAMS
            .iter()
            .find(|it| it.name.eq_ignore_ascii_case(model))
    };
    let us = given.map(|(_, us)| *us).or_else(|| Some(known()?.us));
    us.with_context(|| {
        let names = PROGRAMS.map(|program| program.name).join(", ");
        format!(
            "{}.model_name is {model:?}, whose requests take nobody knows how long: give that as --work {model}=MICROSECONDS, or one of {names}",
            client.path
        )
    })
}

/// A value, and its position in the file.
struct Field<'a> {
    path: String,
    value: &'a Value,
}

/// Returns a value as it is written in the file, or enough of it to find it there.
fn shown(value: Option<&Value>) -> String {
    match value {
        None => "missing".into(),
        Some(Value::Object(_)) => "an object".into(),
        Some(Value::Array(_)) => "a list".into(),
        Some(value) => value.to_string().chars().take(40).collect(),
    }
}

impl<'a> Field<'a> {
    fn root(value: &'a Value) -> Self {
        let path = String::new();
        Self { path, value }
    }

    fn path_of(&self, name: &str) -> String {
        match self.path.as_str() {
            "" => name.into(),
            path => format!("{path}.{name}"),
        }
    }

    /// Returns a message that says what is wrong with a field, and what to write there.
    fn wrong(&self, name: &str, remedy: &str) -> String {
        let shown = shown(self.value.get(name));
        format!("{} is {shown}: give {remedy}", self.path_of(name))
    }

    fn whole(&self, name: &str, range: RangeInclusive<u64>) -> Result<u64> {
        let value = self.value.get(name).and_then(Value::as_u64);
        let value = value.filter(|value| range.contains(value));
        value.with_context(|| {
            let (low, high) = range.into_inner();
            self.wrong(name, &format!("a whole number from {low} to {high}"))
        })
    }

    fn frequency(&self) -> Result<f64> {
        let value = self.value.get("frequency").and_then(Value::as_f64);
        let value = value.filter(|value| *value > 0.0 && *value <= FREQUENCY_MAX);
        value.with_context(|| {
            let remedy = format!("requests per second, more than 0 and up to {FREQUENCY_MAX}");
            self.wrong("frequency", &remedy)
        })
    }

    fn text(&self, name: &str) -> Result<&'a str> {
        let value = self.value.get(name).and_then(Value::as_str);
        value.with_context(|| self.wrong(name, "a text"))
    }

    fn object(&self, name: &str) -> Result<Self> {
        let value = self.value.get(name).filter(|value| value.is_object());
        Ok(Self {
            path: self.path_of(name),
            value: value.with_context(|| self.wrong(name, "an object"))?,
        })
    }

    fn list(&self, name: &str, most: usize) -> Result<Vec<Self>> {
        let values = self.value.get(name).and_then(Value::as_array);
        let values = values.with_context(|| self.wrong(name, "a list"))?;
        let path = self.path_of(name);
        ensure!(
            values.len() <= most,
            "{path} has {} entries: leave {most} at most",
            values.len()
        );
        let field = |(n, value)| Self {
            path: format!("{path}[{n}]"),
            value,
        };
        Ok(values.iter().enumerate().map(field).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn task(load: &Value, model: &str, priority: u64) -> Value {
        let client = json!({ "name": "x", "model_name": model, "priority": priority, "batch_size": 1, "preprocess_time": 200 });
        json!({ "id": "x", "load": load, "client": client })
    }

    fn config() -> Value {
        let trace = json!({ "type": "trace", "trace": [700, 0, 150, 2000, 1999] });
        let periodic = json!({ "type": "periodic", "priority": 0, "frequency": 100 });
        let poisson = json!({ "type": "poisson", "frequency": 12.5 });
        json!({ "time": 2, "tasks": [task(&trace, "resnet152", 0), task(&periodic, "vgg", 1), task(&poisson, "own", 1)] })
    }

    fn own() -> Vec<(String, u64)> {
        vec![("own".into(), 123)]
    }

    #[test]
    fn tasks_are_clients() {
        let workload = parse("REAL", &config().to_string(), &own()).unwrap();
        assert_eq!(workload.seconds, Some(2));
        assert!(workload.parts()[1].staggered);
        let other = changed("/tasks/1/load/priority", json!(1)).to_string();
        assert!(!parse("x", &other, &own()).unwrap().parts()[1].staggered);
        assert_eq!(
            workload.text,
            "LC 1 clients, 2.0/s; BE 2 clients, 112.5/s; 2 s"
        );
        let told = workload.parts().iter().map(|part| (part.kind, part.us));
        let expected = [(Kind::Lc, 3_000), (Kind::Be, 1_000), (Kind::Be, 123)];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert!(workload
            .parts()
            .iter()
            .all(|part| part.preparation == 200 * US));
        let Arrivals::Trace(times) = &workload.parts()[0].arrivals else {
            panic!()
        };
        let times: Vec<_> = times.iter().map(|(at, _)| at / MS).collect();
        assert_eq!(times, [0, 150, 700, 1999], "in order, before the end");
        let Arrivals::Periodic { period, .. } = workload.parts()[1].arrivals else {
            panic!()
        };
        assert_eq!(period, 10 * MS);
    }

    /// Returns the configuration with one value replaced, or removed.
    fn changed(pointer: &str, value: Value) -> Value {
        let mut config = config();
        *config.pointer_mut(pointer).unwrap() = value;
        config
    }

    #[test]
    fn mistakes_are_told_with_their_field_and_what_to_do() {
        let many = vec![task(&json!({ "type": "periodic", "frequency": 1 }), "vgg", 0); 257];
        let long: Vec<_> = (0..100_001).collect();
        let cases = [
            (json!([]), "time is missing: give a whole number from 1 to 3600"),
            (changed("/time", json!(0)), "time is 0: give"),
            (changed("/time", json!(3601)), "time is 3601: give"),
            (changed("/time", json!("38")), "time is \"38\": give"),
            (changed("/tasks", json!({})), "tasks is an object: give a list"),
            (changed("/tasks", json!([])), "tasks is empty: give"),
            (changed("/tasks", json!(many)), "tasks has 257 entries: leave 256"),
            (changed("/tasks/1/id", json!(1)), "tasks[1].id is 1: give a text"),
            (changed("/tasks/1/load", json!(1)), "tasks[1].load is 1: give an object"),
            (changed("/tasks/1/load/type", json!("continuous")), "tasks[1].load.type is \"continuous\": give trace, periodic or poisson"),
            (changed("/tasks/1/load/type", json!(null)), "tasks[1].load.type is null: give a text"),
            (changed("/tasks/1/load/frequency", json!(0)), "tasks[1].load.frequency is 0: give requests per second"),
            (changed("/tasks/1/load/frequency", json!(1e7)), "tasks[1].load.frequency is 10000000.0: give"),
            (changed("/tasks/1/load/priority", json!(-1)), "tasks[1].load.priority is -1: give a whole number"),
            (changed("/tasks/0/load/trace", json!(null)), "tasks[0].load.trace is null: give a list"),
            (changed("/tasks/0/load/trace/1", json!(-1)), "tasks[0].load.trace[1] is -1: give whole milliseconds"),
            (changed("/tasks/0/load/trace/1", json!(0.5)), "tasks[0].load.trace[1] is 0.5: give whole milliseconds"),
            (changed("/tasks/0/load/trace", json!([2000])), "tasks[0].load.trace has no time before 2 s: give one"),
            (changed("/tasks/0/client/priority", json!("rt")), "tasks[0].client.priority is \"rt\": give a whole number"),
            (changed("/tasks/0/client/preprocess_time", json!(60_000_001)), "tasks[0].client.preprocess_time is 60000001: give"),
            (changed("/tasks/0/client/model_name", json!("gpt")), "tasks[0].client.model_name is \"gpt\", whose requests take nobody knows how long: give that as --work gpt="),
            (changed("/tasks/0/load", json!({ "type": "periodic", "frequency": 1e6 })), ""),
            (changed("/tasks/0/load/trace", json!(long)), ""),
        ];
        for (config, expected) in cases {
            match parse("x", &config.to_string(), &own()) {
                Err(error) => {
                    let error = format!("{error:#}");
                    assert!(
                        !expected.is_empty() && error.starts_with(expected),
                        "{error}"
                    );
                }
                Ok(_) => assert_eq!(expected, "", "{config}"),
            }
        }
        let mut busy = changed(
            "/tasks/0/load",
            json!({ "type": "periodic", "frequency": 1e6 }),
        );
        busy["time"] = json!(60);
        let error = parse("x", &busy.to_string(), &own()).err().unwrap();
        assert!(format!("{error:#}").starts_with("tasks have 60006750 requests in 60 s: lower"));
        let error = parse("x", "{\n  \"time\": }", &[]).err().unwrap();
        assert!(format!("{error:#}")
            .starts_with("no JSON: correct the file there: expected value at line 2"));
    }

    #[test]
    fn files_have_bounds_and_names() {
        let folder = std::env::temp_dir().join(format!("fermata-sim-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let told = |name: &str, text: &str| {
            let file = folder.join(name);
            std::fs::write(&file, text).unwrap();
            let read = read(&file, &own()).map(|workload| workload.name);
            let path = file.display().to_string();
            read.map_err(|error| format!("{error:#}").replace(&path, "FILE"))
        };
        let text = config().to_string();
        assert_eq!(told("REAL.json", &text), Ok("REAL".into()));
        let named = told("a b.json", &text).unwrap_err();
        assert!(named.starts_with("FILE: the workload is named after the file: rename"));
        let large = told("large.json", &" ".repeat(FILE_MAX as usize + 1)).unwrap_err();
        assert!(large.starts_with("FILE: the file has more than 16777216 bytes: cut"));
        let none = read(&folder.join("none.json"), &[]).err().unwrap();
        assert!(format!("{none:#}").contains("none.json: No such file"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
