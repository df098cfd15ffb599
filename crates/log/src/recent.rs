//! Remembers the positions of the newest batches in the active segment. Consumers at the end of the log then need no
//! index.
//!
//! The records themselves are in the page cache. Invariant: the batches are in one segment, in order and without gaps.

use std::collections::VecDeque;

/// Maximum number of batches that are remembered. Each takes 16 bytes.
const RECENT_MAX: usize = 64;

/// The newest batches, with base offset and position.
#[derive(Debug, Default)]
pub struct Recent(VecDeque<(i64, u64)>);

/// The position and size of a batch in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPosition {
    pub position: u64,
    pub size: u64,
}

impl Recent {
    pub fn push(&mut self, base_offset: i64, position: u64) {
        if self.0.len() == RECENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back((base_offset, position));
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the batch that contains `offset`, which must be before the log end. Returns `None` if the batch is not
    /// remembered. `size` is the size of the file.
    pub fn find(&self, offset: i64, size: u64) -> Option<BatchPosition> {
        let after = self.0.partition_point(|&(base_offset, _)| base_offset <= offset);
        let (_, position) = *self.0.get(after.checked_sub(1)?)?;
        let end = self.0.get(after).map_or(size, |&(_, next)| next);
        Some(BatchPosition { position, size: end - position })
    }

    /// Returns the last remembered position at or before `limit` at which a batch begins, with this batch's base
    /// offset. A read may end there. Returns `None` if no such position is remembered.
    pub fn end_before(&self, limit: u64) -> Option<(u64, i64)> {
        let after = self.0.partition_point(|&(_, position)| position <= limit);
        self.0.get(after.checked_sub(1)?).map(|&(base_offset, position)| (position, base_offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_batches_are_known() {
        let mut recent = Recent::default();
        (0..100).for_each(|n| recent.push(n * 3, n as u64 * 10));
        assert_eq!(recent.find(36 * 3 - 1, 1000), None);
        assert_eq!(recent.find(36 * 3 + 2, 1000), Some(BatchPosition { position: 360, size: 10 }));
        assert_eq!(recent.find(299, 1017), Some(BatchPosition { position: 990, size: 27 }));
        assert_eq!((recent.end_before(359), recent.end_before(375)), (None, Some((370, 111))));
    }
}
