//! Random numbers that depend only on the seed, for the model and the soak: SplitMix64. Not from a library, because a
//! replay of an old seed must not depend on the library's version.

use std::ops::RangeInclusive;

/// A small generator. Not for cryptography.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Returns a generator with this seed. All seeds are valid.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in the range. In huge ranges, the last numbers are slightly less likely.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (first, last) = (*range.start(), *range.end());
        match last.saturating_sub(first).checked_add(1) {
            Some(count) => first + self.bits() % count,
            None => self.bits(),
        }
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        let last = u64::try_from(end.saturating_sub(1)).unwrap_or(u64::MAX);
        usize::try_from(self.within(0..=last)).unwrap_or(0)
    }

    /// Returns true with a chance of one in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_never_change() {
        let mut random = Random::new(1_234_567);
        // From the reference implementation by Sebastiano Vigna.
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!([random.bits(), random.bits(), random.bits()], expected);
    }

    #[test]
    fn ranges_are_kept_and_used() {
        let mut random = Random::new(7);
        let mut seen = [0; 4];
        for _ in 0..400 {
            seen[usize::try_from(random.within(3..=6) - 3).unwrap()] += 1;
        }
        assert!(seen.iter().all(|n| *n > 50), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert_eq!(random.within(9..=9), 9);
        random.within(0..=u64::MAX);
    }
}
