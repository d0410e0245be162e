//! A fast hash for states and views, which are trusted input: two lanes of multiply and rotate. 64 bits are enough for
//! the tens of millions of states of the longest runs: among 5·10⁷ states, the chance of a collision is below one in
//! 10,000.
//!
//! States have hundreds of small fields, so bytes are collected and mixed eight at a time.

use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Builds hashers for maps keyed by views.
pub type Fast = BuildHasherDefault<Mix>;

#[derive(Debug, Clone, Copy)]
pub struct Mix {
    one: u64,
    two: u64,
    /// Collected bytes that are not mixed yet, after a marker bit.
    word: u64,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            one: 0x243f_6a88_85a3_08d3,
            two: 0x1319_8a2e_0370_7344,
            word: 1,
        }
    }
}

/// Position of the marker bit when seven bytes are collected.
const FULL: u64 = 1 << 56;

impl Mix {
    fn byte(&mut self, byte: u8) {
        let is_full = self.word >= FULL;
        self.word = (self.word << 8) | u64::from(byte);
        if is_full {
            self.add(self.word);
            self.word = 1;
        }
    }

    /// Adds a number that is usually small: as one byte, or as a marker and eight bytes.
    fn small(&mut self, value: u64) {
        match u8::try_from(value) {
            Ok(byte) if byte != u8::MAX => self.byte(byte),
            _ => {
                self.byte(u8::MAX);
                self.add(value);
            }
        }
    }

    fn add(&mut self, word: u64) {
        self.one = (self.one ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        self.two = (self.two.rotate_left(23) ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        let mut all = *self;
        all.add(self.word);
        let mixed = (all.one ^ all.two.rotate_left(32)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(w, b)| *w = *b);
            self.add(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.byte(value);
    }

    fn write_u16(&mut self, value: u16) {
        // The largest number stands for no node. The addition wraps it to 0.
        self.small(value.wrapping_add(1).into());
    }

    fn write_u32(&mut self, value: u32) {
        self.add(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.small(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.small(value as u64);
    }
}

pub fn of(value: &impl Hash) -> u64 {
    let mut mix = Mix::default();
    value.hash(&mut mix);
    mix.finish()
}
