// SPDX-License-Identifier: GPL-2.0-or-later
//! Memory that a program and an engine share like two threads: words, and a bus to them.
#![allow(dead_code)] // each test binary uses only a part
#![allow(missing_docs, unreachable_pub, clippy::pedantic)]

use fermata_card::engine::{Bus, Refused};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// Device address of the first word; accesses below it or beyond the last word are refused.
pub const BASE: u64 = 0x1_0000;

#[derive(Clone)]
pub struct Words(pub Arc<Vec<AtomicU64>>);

impl Words {
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(
            (0..bytes / 8).map(|_| AtomicU64::new(0)).collect(),
        ))
    }

    fn byte(&self, addr: u64) -> (&AtomicU64, u32) {
        let at = (addr - BASE) as usize;
        (&self.0[at / 8], at as u32 % 8 * 8)
    }

    fn holds(&self, addr: u64, len: u64) -> bool {
        let size = self.0.len() as u64 * 8;
        addr.checked_sub(BASE)
            .is_some_and(|at| at <= size && len <= size - at)
    }

    pub fn get(&self, addr: u64, buf: &mut [u8]) {
        for (addr, byte) in (addr..).zip(buf) {
            let (word, shift) = self.byte(addr);
            *byte = (word.load(Relaxed) >> shift) as u8;
        }
    }

    /// Writes aligned words as words, so that nobody sees half of a word.
    pub fn put(&self, mut addr: u64, mut data: &[u8]) {
        while let [first, rest @ ..] = data {
            if let (0, Some((whole, rest))) = (addr % 8, data.split_first_chunk()) {
                self.byte(addr).0.store(u64::from_le_bytes(*whole), Relaxed);
                (addr, data) = (addr + 8, rest);
                continue;
            }
            let (word, shift) = self.byte(addr);
            let change = |old| Some(old & !(0xff << shift) | u64::from(*first) << shift);
            word.fetch_update(Relaxed, Relaxed, change).unwrap();
            (addr, data) = (addr + 1, rest);
        }
    }

    pub fn vec(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.get(addr, &mut bytes);
        bytes
    }

    pub fn load(&self, addr: u64) -> u64 {
        self.byte(addr).0.load(Relaxed)
    }

    pub fn store(&self, addr: u64, value: u64) {
        self.byte(addr).0.store(value, Relaxed);
    }
}

impl Bus for Words {
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), Refused> {
        if !self.holds(addr, buf.len() as u64) {
            return Err(Refused);
        }
        self.get(addr, buf);
        Ok(())
    }

    fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), Refused> {
        if !self.holds(addr, data.len() as u64) {
            return Err(Refused);
        }
        self.put(addr, data);
        Ok(())
    }

    fn attention(&self) -> bool {
        false
    }

    fn wants_boundary(&self) -> bool {
        false
    }
}
