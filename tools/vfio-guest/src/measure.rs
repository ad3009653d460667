// SPDX-License-Identifier: GPL-2.0-or-later
//! What a job of a guest takes beside the same job of a process of the host: START to the notice of
//! the end, in turns. Nobody else uses the slot.

use crate::guest::Guest;
use crate::host::{Daemon, HostHash};
use crate::jobs::{Hash, SLOTS};
use anyhow::Result;
use std::time::{Duration, Instant};

const ROUNDS: usize = 30;

/// The middle one, and the longest.
fn summary(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() - 1])
}

/// Measures, and prints a table.
pub(crate) fn measure() -> Result<()> {
    let daemon = Daemon::start("measure", &["--slots", SLOTS])?;
    let mut guest = Guest::plug(daemon.socket())?;
    let hash = Hash::new(&guest, 0, 0x1000)?;
    let host = HostHash::new(0x1001, hash.length())?;
    let (mut by_host, mut by_guest, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        by_host.push(host.run()?);
        let begin = Instant::now();
        guest.prepare(&hash.job)?;
        writes.push(begin.elapsed());
        let begin = Instant::now();
        guest.go(&hash.job)?;
        guest.finish(&hash.job)?;
        by_guest.push(begin.elapsed());
        hash.check(&mut guest)?;
    }
    let (host, longest_of_host) = summary(&mut by_host);
    let (writes, longest_of_writes) = summary(&mut writes);
    let (guest, longest_of_guest) = summary(&mut by_guest);
    println!("a hash of {} bytes, {ROUNDS} times each", hash.length());
    println!("          median      longest");
    println!("host   {host:>9.2?}   {longest_of_host:>9.2?}");
    println!("guest  {guest:>9.2?}   {longest_of_guest:>9.2?}");
    println!("writes {writes:>9.2?}   {longest_of_writes:>9.2?}   of the guest's registers, before START");
    let more = guest.as_secs_f64() / host.as_secs_f64() - 1.0;
    println!("the guest's median is {:.1} % longer", more * 100.0);
    Ok(())
}
