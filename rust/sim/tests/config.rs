// SPDX-License-Identifier: GPL-2.0

//! Configuration files: `traces/config.json` was made for these tests, in the format of `GPreempt`'s REAL.json.

use std::path::Path;
use std::process::{Command, Output};

use fermata_sim::compare::{compare, Settings};
use fermata_sim::config;
use fermata_sim::mode::Mode;
use fermata_sim::sim::{run, Costs, Outcome, Plan};
use fermata_sim::workload::{Arrivals, ClientPlan, Kind, Phases, Work, Workload};
use fermata_sim::MS;
use serde_json::{json, Value};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/config.json");

fn task(id: &str, load: &Value, model: &str, priority: u64, preparation: u64) -> Value {
    let client =
        json!({ "model_name": model, "priority": priority, "preprocess_time": preparation });
    json!({ "id": id, "load": load, "client": client })
}

/// An LC client has the same requests in all rows, even if BE clients precede it and a row omits
/// the BE clients. Without costs, a mode then gives the LC client the same latencies as alone,
/// because BE never delays LC.
#[test]
fn lc_has_the_same_requests_without_be() {
    let poisson = |rate: u64| json!({ "type": "poisson", "frequency": rate });
    let mut tasks = vec![
        task("lc", &poisson(200), "vgg", 0, 200),
        task("be-1", &poisson(100), "bert", 1, 200),
        task("be-2", &poisson(50), "resnet152", 1, 0),
    ];
    for _ in 0..2 {
        let text = json!({ "time": 5, "tasks": tasks }).to_string();
        let rows = compare(&Settings {
            workloads: vec![config::parse("order", &text, &[]).unwrap()],
            loads: vec![None],
            modes: vec![Mode::LC_BE],
            costs: Costs::ZERO,
            phases: Phases::Staggered,
            seconds: 5,
            seed: 1,
        });
        let [isolated, alone, mode] = &rows[..] else {
            panic!()
        };
        assert!(mode.be.count > 500, "{mode:?}");
        assert_eq!((isolated.lc, alone.lc), (mode.lc, mode.lc));
        tasks.reverse();
    }
}

/// Returns the tasks of `GPreempt`'s file of this workload.
fn tasks(name: &str) -> Vec<Value> {
    const NETWORKS: [&str; 5] = ["resnet152", "densenet", "vgg", "inception", "bert"];
    const GRAPHS: [&str; 4] = ["bfs", "sssp", "pagerank", "cc"];
    let some = |models: &[&str], lc: bool, rate: u64, preparation: u64| {
        let tasks = models.iter().map(|model| {
            let load = match name {
                "E" => json!({ "type": "poisson", "frequency": rate }),
                _ => json!({ "type": "periodic", "priority": 0, "frequency": rate }),
            };
            let id = format!("{model}_{}", if lc { "rt" } else { "be" });
            task(&id, &load, model, u64::from(!lc), preparation)
        });
        tasks.collect::<Vec<_>>()
    };
    let (lc, be) = match name {
        "A" => (
            some(&["vgg"], true, 100, 200),
            some(&["resnet152"], false, 100, 200),
        ),
        "B" => (
            some(&["vgg"], true, 220, 200),
            some(&["resnet152"], false, 220, 200),
        ),
        "C" => (
            some(&["vgg"], true, 100, 200),
            some(&NETWORKS, false, 100, 200),
        ),
        "D" | "E" => (
            some(&NETWORKS, true, 20, 200),
            some(&NETWORKS, false, 100, 200),
        ),
        "Y" => (
            some(&["vgg"], true, 100, 200),
            some(&["miniweather"], false, 150, 0),
        ),
        "Z" => (
            some(&["vgg"], true, 100, 200),
            some(&GRAPHS, false, 100, 200),
        ),
        _ => panic!("{name}"),
    };
    [lc, be].concat()
}

/// A built-in workload equals `GPreempt`'s file of the same name.
#[test]
fn built_in_workloads_are_as_their_files() {
    for phases in [Phases::Staggered, Phases::Drifting] {
        let rows = |workloads| {
            let rows = compare(&Settings {
                workloads,
                loads: vec![None, Some(0.8)],
                modes: vec![Mode::NO_PREEMPTION, Mode::HINTS],
                costs: Costs::DEFAULT,
                phases,
                seconds: 2,
                seed: 1,
            });
            serde_json::to_value(rows).unwrap()
        };
        let files = Workload::all().into_iter().map(|workload| {
            let text = json!({ "time": 2, "tasks": tasks(&workload.name) }).to_string();
            config::parse(&workload.name, &text, &[]).unwrap()
        });
        let (files, built_in) = (rows(files.collect()), rows(Workload::all()));
        let each = files
            .as_array()
            .unwrap()
            .iter()
            .zip(built_in.as_array().unwrap());
        for (file, built_in) in each {
            assert_eq!(file, built_in);
        }
        assert_eq!(files, built_in);
    }
}

/// Runs one client, whose requests of 4 ms arrive at these milliseconds.
fn outcome(times: &[u64], skips_late: bool) -> Outcome {
    let times: Vec<_> = times.iter().map(|ms| (ms * MS, None)).collect();
    let client = ClientPlan {
        skips_late,
        ..ClientPlan::new(Kind::Lc, Arrivals::Trace(times.into()), Work::Fixed(4 * MS))
    };
    run(&Plan::one_slot(
        Mode::NO_PREEMPTION,
        Costs::ZERO,
        vec![client],
    ))
}

#[test]
fn a_client_skips_requests_that_are_late() {
    // The first request ends at 4 ms: those of 1 and 2 ms are skipped, and that of 3 ms begins.
    let times = [0, 1, 2, 3, 10];
    let skipping = outcome(&times, true);
    assert_eq!(skipping.lc, [4 * MS, 5 * MS, 4 * MS]);
    assert_eq!((skipping.lc_skipped, skipping.requests), (2, 5));
    let patient = outcome(&times, false);
    assert_eq!(patient.lc, [4, 7, 10, 13, 10].map(|ms| ms * MS));
    assert_eq!(patient.lc_skipped, 0);
}

fn simulate(out: &Path, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_fermata-sim");
    let out = ["--out", out.to_str().unwrap(), "compare"];
    let done = Command::new(program).args(out).args(arguments).output();
    done.unwrap()
}

fn rows(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("sim.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    report["compare"].as_array().unwrap().clone()
}

#[test]
fn a_file_is_a_workload() {
    let out = std::env::temp_dir().join(format!("fermata-sim-config-{}", std::process::id()));
    let common = ["--config", FILE, "--work", "own=500", "--loads", "0,80"];
    let done = simulate(&out, &common);
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{done:?}");
    assert!(
        text.contains("config: LC 2 clients, 15.5/s; BE 3 clients, 240.0/s; 2 s"),
        "{text}"
    );
    let rows = rows(&out);
    assert!(out.join("sim-config.svg").exists());
    for row in &rows {
        let number = |name: &str| row[name].as_u64().unwrap();
        assert_eq!(row["workload"], "config");
        let lc = row["lc"]["count"].as_u64().unwrap() + number("lc_skipped");
        let be = row["be"]["count"].as_u64().unwrap() + number("be_skipped");
        // Of the 32 times in the file one is after the end.
        assert_eq!(lc, 31, "{row}");
        assert_eq!(lc + be + number("unfinished"), number("requests"), "{row}");
    }
    let all = |name: &str| {
        rows.iter()
            .map(|row| row[name].as_u64().unwrap())
            .sum::<u64>()
    };
    assert!(all("be_skipped") > 0, "BE is late now and then");
    std::fs::remove_dir_all(&out).unwrap();
}

#[test]
fn a_mistake_is_told_with_its_file() {
    let out = std::env::temp_dir().join(format!("fermata-sim-mistake-{}", std::process::id()));
    let told = |arguments: &[&str]| {
        let done = simulate(&out, arguments);
        assert!(!done.status.success());
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let model = told(&["--config", FILE]);
    assert!(model.contains("config.json"), "{model}");
    assert!(
        model.contains("tasks[4].client.model_name is \"own\""),
        "{model}"
    );
    let twice = told(&["--config", FILE, "--config", FILE, "--work", "own=1"]);
    assert!(
        twice.contains("there is a workload config already: rename the file"),
        "{twice}"
    );
    let work = told(&["--config", FILE, "--work", "own=0"]);
    assert!(work.contains("give MODEL=US"), "{work}");
    let none = told(&["--config", "none.json"]);
    assert!(
        none.contains("none.json") && none.contains("No such file"),
        "{none}"
    );
    let _ = std::fs::remove_dir_all(&out);
}

#[test]
fn work_is_scaled_to_the_load() {
    let workload = config::read(Path::new(FILE), &[("own".into(), 500)]).unwrap();
    // 24 of 1.6 ms, 7 of 1 ms, 100 per second of 3 and of 2.4 ms, 40 per second of 0.5 ms.
    let expected = (24.0 * 1.6 + 7.0) / 2e3 + 0.3 + 0.24 + 0.02;
    assert!((workload.natural_load() - expected).abs() < 1e-9);
    let work = |load: f64| workload.clients(load, Phases::Staggered)[4].work;
    let (Work::Fixed(natural), Work::Fixed(half)) = (work(expected), work(expected / 2.0)) else {
        panic!()
    };
    assert!(natural.abs_diff(3 * MS) <= 1 && half.abs_diff(3 * MS / 2) <= 1);
}
