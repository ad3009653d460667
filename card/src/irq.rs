// SPDX-License-Identifier: GPL-2.0
//! Interrupt vectors: eventfds that the client gave.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Vectors of the card.
pub const VECTORS: usize = 8;

/// The eventfds of the vectors.
#[derive(Default)]
pub struct Irqs(Mutex<[Option<OwnedFd>; VECTORS]>);

impl Irqs {
    /// Sets, or with `None` takes away, one vector. A vector that the card does not have is ignored.
    pub fn set(&self, vector: usize, fd: Option<OwnedFd>) {
        let mut vectors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(v) = vectors.get_mut(vector) {
            *v = fd;
        }
    }

    /// Takes all vectors away.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
    }

    /// Signals a vector. False when nobody listens. With `fold`, a vector beyond those in use goes to one of them, as MSI with fewer
    /// messages than were asked for does.
    pub fn fire(&self, vector: usize, fold: bool) -> bool {
        let vectors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = vectors
            .iter()
            .rposition(Option::is_some)
            .map_or(0, |last| last + 1);
        let vector = if fold {
            vector % used.next_power_of_two()
        } else {
            vector
        };
        let fd = vectors.get(vector).and_then(Option::as_ref);
        fd.is_some_and(|fd| rustix::io::write(fd, &1u64.to_ne_bytes()).is_ok())
    }
}
