//! Counts the offsets whose records were deleted before they were copied.
//!
//! Invariant: each offset counts once, even if the copier goes back to its last commit and reaches the offset again.

use std::collections::HashMap;
use std::ops::Range;

/// The deleted offsets of the source topic.
#[derive(Debug, Default)]
pub(super) struct DeletedBeforeCopy {
    /// The last range of deleted offsets of each partition. Adjacent ranges are merged.
    last: HashMap<i32, Range<i64>>,
    count: u64,
}

impl DeletedBeforeCopy {
    /// Adds offsets of a partition. Returns true if any of them is new.
    pub(super) fn add(&mut self, partition: i32, offsets: Range<i64>) -> bool {
        let length = |of: &Range<i64>| u64::try_from(of.end.saturating_sub(of.start)).unwrap_or(0);
        let before = self.count;
        match self.last.get_mut(&partition) {
            Some(known) if offsets.start <= known.end && known.start <= offsets.end => {
                let both = known.start.min(offsets.start)..known.end.max(offsets.end);
                self.count += length(&both).saturating_sub(length(known));
                *known = both;
            }
            _ => {
                self.count += length(&offsets);
                self.last.insert(partition, offsets);
            }
        }
        self.count > before
    }

    /// Returns how many offsets of all partitions were deleted.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_offsets_count_when_a_range_is_found_again() {
        let mut deleted = DeletedBeforeCopy::default();
        for (partition, offsets, is_new, count) in [
            (0, 5..9, true, 4),
            (0, 5..9, false, 4),
            (1, 5..9, true, 8),
            // This range also has records that the copier had read before they were deleted, but had not copied.
            (0, 2..9, true, 11),
            (0, 7..10, true, 12),
            (0, 20..21, true, 13),
        ] {
            assert_eq!(deleted.add(partition, offsets.clone()), is_new, "{offsets:?}");
            assert_eq!(deleted.count(), count, "{offsets:?}");
        }
    }
}
