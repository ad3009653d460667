// SPDX-License-Identifier: GPL-2.0

//! Requests from a file: CSV with a header `time_us,client,kind,work_us`, kind LC or BE, in any order.

use std::collections::BTreeMap;

use anyhow::{bail, ensure, Context, Result};

use crate::arrivals::{Arrivals, TraceRequest, Work};
use crate::workload::{ClientPlan, Kind};
use crate::US;

const HEADER: &str = "time_us,client,kind,work_us";
/// An hour and a minute: longer ones are mistakes.
const TIME_MAX_US: u64 = 3_600_000_000;
const WORK_MAX_US: u64 = 60_000_000;

/// The clients of a trace, in the order of their names, and the time of the last request in ns.
///
/// # Errors
///
/// What is wrong, and in which line.
pub fn parse(text: &str, preparation: u64) -> Result<(Vec<ClientPlan>, u64)> {
    let mut lines = text.lines().zip(1..);
    let header = lines.next().map(|(line, _)| line.trim());
    ensure!(
        header == Some(HEADER),
        "line 1: the header must be {HEADER}"
    );
    let mut clients: BTreeMap<&str, (Kind, Vec<TraceRequest>)> = BTreeMap::new();
    let mut last = 0;
    for (line, number) in lines {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (at, name, kind, work) = request(line).with_context(|| format!("line {number}"))?;
        let entry = clients.entry(name).or_insert((kind, Vec::new()));
        ensure!(entry.0 == kind, "line {number}: {name} is both LC and BE");
        entry.1.push((at, Some(work)));
        last = last.max(at);
    }
    ensure!(!clients.is_empty(), "no requests");
    let clients = clients.into_values().map(|(kind, mut requests)| {
        requests.sort_by_key(|request| request.0);
        ClientPlan {
            kind,
            arrivals: Arrivals::Trace(requests.into()),
            work: Work::Fixed(0),
            preparation,
            skips_late: false,
            stream: None,
            gang: None,
        }
    });
    Ok((clients.collect(), last))
}

fn request(line: &str) -> Result<(u64, &str, Kind, u64)> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [time, name, kind, work] = fields[..] else {
        bail!("{} fields, not 4", fields.len());
    };
    let time: u64 = time.parse().context("time_us")?;
    let work: u64 = work.parse().context("work_us")?;
    ensure!(time <= TIME_MAX_US, "time_us is over an hour");
    ensure!(
        (1..=WORK_MAX_US).contains(&work),
        "work_us is 0 or over a minute"
    );
    ensure!(!name.is_empty(), "no client");
    let kind = match kind {
        "LC" => Kind::Lc,
        "BE" => Kind::Be,
        _ => bail!("kind is neither LC nor BE"),
    };
    Ok((time * US, name, kind, work * US))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_sorted_by_client_and_time() {
        let text = "time_us,client,kind,work_us\n30,b,BE,5\n\n# more\n20,a,LC,7\n10,b,BE,6\n";
        let (clients, last) = parse(text, 0).unwrap();
        assert_eq!((clients.len(), last), (2, 30 * US));
        let Arrivals::Trace(requests) = &clients[1].arrivals else {
            panic!()
        };
        assert_eq!(
            requests[..],
            [(10 * US, Some(6 * US)), (30 * US, Some(5 * US))]
        );
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (rest, expected) in [
            ("1,a,LC\n", "line 2"),
            ("1,a,LC,5\nx,a,LC,1\n", "line 3"),
            ("-1,a,LC,1\n", "line 2"),
            ("1,a,XX,1\n", "line 2"),
            ("1,,LC,1\n", "line 2"),
            ("1,a,LC,0\n", "line 2"),
            ("18446744073709551615,a,LC,1\n", "line 2"),
            ("1,a,LC,1\n2,a,BE,1\n", "line 3"),
            ("", "no requests"),
        ] {
            let error = parse(&format!("{HEADER}\n{rest}"), 0).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{rest}: {error:#}");
        }
        assert!(parse("", 0).is_err());
    }
}
