// SPDX-License-Identifier: GPL-2.0
//! SHA-256 that can be stopped between two blocks: all there is of it then is the midstate.

use super::StateReader;
use sha2::digest::generic_array::{typenum::U64, GenericArray};

/// Bytes of a block.
pub(super) const BLOCK: usize = 64;
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The state after some whole blocks.
#[derive(Clone, Copy)]
pub(super) struct Midstate([u32; 8]);

impl Midstate {
    /// After none.
    pub(super) const NEW: Self = Self(INITIAL);

    pub(super) fn load(state: &mut StateReader<'_>) -> Self {
        Self(std::array::from_fn(|_| state.u32()))
    }

    /// Its 32 bytes in a snapshot.
    pub(super) fn store(&self) -> impl Iterator<Item = u8> + '_ {
        self.0.iter().flat_map(|word| word.to_le_bytes())
    }

    /// Takes whole blocks in; what is left of `bytes` is dropped.
    pub(super) fn blocks(&mut self, bytes: &[u8]) {
        for block in bytes.chunks_exact(BLOCK) {
            let block = GenericArray::<u8, U64>::from_slice(block);
            sha2::compress256(&mut self.0, std::slice::from_ref(block));
        }
    }

    /// Takes the last bytes in, of `len` in all. Returns the digest.
    pub(super) fn close(&mut self, bytes: &[u8], len: u64) -> [u8; 32] {
        self.blocks(bytes);
        let tail = bytes.chunks_exact(BLOCK).remainder();
        let mut padded = Vec::with_capacity(2 * BLOCK);
        padded.extend_from_slice(tail);
        padded.push(0x80);
        padded.resize((padded.len() + 8).next_multiple_of(BLOCK) - 8, 0);
        padded.extend(len.wrapping_mul(8).to_be_bytes());
        self.blocks(&padded);
        let mut digest = [0; 32];
        for (out, word) in digest.chunks_exact_mut(4).zip(self.0) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        digest
    }
}
