// SPDX-License-Identifier: GPL-2.0
//! Programs of normal priority that compute, one for each CPU.

use super::usage::cpus;
use anyhow::Result;
use std::process::{Child, Command};

/// Ended with this.
pub(super) struct Hog(Child);

/// One for each CPU.
pub(super) fn hogs() -> Result<Vec<Hog>> {
    let program = std::env::current_exe()?;
    (0..cpus()?)
        .map(|_| Ok(Hog(Command::new(&program).arg("spin").spawn()?)))
        .collect()
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What each of them does, until it is killed.
pub(crate) fn spin() -> ! {
    let mut number = 1_u64;
    loop {
        number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005) + 1);
    }
}
