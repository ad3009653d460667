// SPDX-License-Identifier: GPL-2.0

//! Checks configurations and prints a table: `fermata-check [--large] [--first] [WORD of a name]...`
//! (`--first`: up to the first that fails)

use fermata_output::{complain, say};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fermata_check::{Bounds, LARGE, QUICK};

fn main() -> ExitCode {
    let (options, words): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|arg| arg.starts_with("--"));
    let is_known = |option: &String| ["--large", "--first"].contains(&option.as_str());
    if let Some(option) = options.iter().find(|option| !is_known(option)) {
        complain!("fermata-check: {option}: usage: fermata-check [--large] [--first] [WORD]...");
        return ExitCode::FAILURE;
    }
    let large = if options.iter().any(|option| option == "--large") {
        LARGE
    } else {
        &[]
    };
    let all = QUICK.iter().chain(large);
    let chosen = all.filter(|bounds| words.iter().all(|word| bounds.name.contains(word.as_str())));
    say!("| configuration | unique states | steps taken | depth | seconds | result |");
    say!("| --- | --- | --- | --- | --- | --- |");
    let mut code = ExitCode::SUCCESS;
    for bounds in chosen {
        if let Err(why) = check(bounds) {
            say!("{why}");
            code = ExitCode::FAILURE;
            if options.iter().any(|option| option == "--first") {
                break;
            }
        }
    }
    fermata_output::status(code)
}

fn check(bounds: &Bounds) -> Result<(), String> {
    let begin = Instant::now();
    let limit = std::env::var("FERMATA_CHECK_SECONDS").ok();
    let limit = limit.and_then(|s| s.parse().ok()).unwrap_or(3_600);
    let search = fermata_check::search(bounds, Some(Duration::from_secs(limit)), None);
    let is_cut_off = begin.elapsed().as_secs() >= limit;
    // A limited search may not have visited the states that must be reached.
    let unreached = search.unreached.filter(|_| !is_cut_off);
    let failure = search.breach.or(unreached);
    say!(
        "| {} | {} | {} | {} | {} | {} |",
        bounds.name,
        search.unique_states,
        search.states,
        search.depth,
        begin.elapsed().as_secs(),
        match &failure {
            Some(_) => "FAILS",
            None if is_cut_off => "cut off: all hold as far as it came",
            None => "all hold",
        }
    );
    failure.map_or(Ok(()), Err)
}
