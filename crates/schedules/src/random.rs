//! Random numbers that a seed makes repeatable (splitmix64).

use std::ops::Range;

/// A generator of random numbers, which must not be used for secrets.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator. Equal seeds give equal numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next number, which may have any value. The type is not an `Iterator`, because the sequence of
    /// numbers has no end.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Returns true with a probability of one in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns a number of any integer type from `least` up to, but not including, `limit`.
    pub fn between<T: Copy + TryFrom<i128> + TryInto<i128>>(&mut self, least: T, limit: T) -> T {
        let [least, limit] =
            [least, limit].map(|end| end.try_into().unwrap_or_else(|_| unreachable!("at most 64 bits")));
        let number = least + i128::from(self.next() % (limit - least) as u64);
        T::try_from(number).unwrap_or_else(|_| unreachable!("between two numbers of the type"))
    }

    /// Returns a list of a random length in `len`. Each item is drawn by `draw`.
    pub fn list<T>(&mut self, len: Range<usize>, mut draw: impl FnMut(&mut Random) -> T) -> Vec<T> {
        (0..self.between(len.start, len.end)).map(|_| draw(self)).collect()
    }
}
