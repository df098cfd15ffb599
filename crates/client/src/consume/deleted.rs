//! Ranges of offsets whose records were deleted by retention or DeleteRecords before a reader had read them.
//!
//! Invariant: at most one range is stored for each partition, because the caller of a run may never take the ranges.

use fullbore_wire::Text;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// The offsets that a reader skipped in a partition, because their records had been deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedOffsets {
    /// The name of the topic.
    pub topic: Text,
    /// The number of the partition.
    pub partition: i32,
    /// The offsets from the reader's old position to its new one. The new position is the start of the log, or the end
    /// if auto.offset.reset is latest. Some of the offsets belong to markers, or to records that compaction had removed
    /// before.
    pub offsets: Range<i64>,
}

impl DeletedOffsets {
    /// Returns the number of offsets in the range.
    pub fn count(&self) -> u64 {
        u64::try_from(self.offsets.end.saturating_sub(self.offsets.start)).unwrap_or(0)
    }
}

impl fmt::Display for DeletedOffsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeletedOffsets { topic, partition, offsets } = self;
        let (first, last) = (offsets.start, offsets.end.saturating_sub(1));
        let offsets = match self.count() {
            1 => format!("offset {first}"),
            count => format!("{count} offsets, {first} to {last},"),
        };
        write!(
            f,
            "skipped {offsets} of partition {partition} of topic '{topic}': its records were deleted before they were read"
        )
    }
}

/// The deleted offsets of all partitions that the caller of the run has not taken yet.
#[derive(Debug, Default)]
pub(super) struct DeletedRanges(BTreeMap<(Text, i32), Range<i64>>);

impl DeletedRanges {
    /// Adds offsets of a partition. Merges all ranges of a partition into one, from the lowest offset to the highest.
    pub(super) fn add(&mut self, of: DeletedOffsets) {
        let known = self.0.entry((of.topic, of.partition)).or_insert_with(|| of.offsets.clone());
        *known = known.start.min(of.offsets.start)..known.end.max(of.offsets.end);
    }

    /// Removes and returns all ranges.
    pub(super) fn take(&mut self) -> Vec<DeletedOffsets> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.map(|((topic, partition), offsets)| DeletedOffsets { topic, partition, offsets }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(partition: i32, offsets: Range<i64>) -> DeletedOffsets {
        DeletedOffsets { topic: Text::from("t"), partition, offsets }
    }

    #[test]
    fn offsets_of_two_resets_become_one_range() {
        let mut ranges = DeletedRanges::default();
        for (partition, offsets) in [(0, 5..9), (1, 0..1), (0, 3..12)] {
            ranges.add(of(partition, offsets));
        }
        assert_eq!(ranges.take(), [of(0, 3..12), of(1, 0..1)]);
        assert_eq!(ranges.take(), []);
    }

    #[test]
    fn the_sentence_has_the_number_and_offsets_of_deleted_records() {
        let sentence =
            "skipped 4 offsets, 5 to 8, of partition 3 of topic 't': its records were deleted before they were read";
        assert_eq!(of(3, 5..9).to_string(), sentence);
        assert!(of(3, 5..6).to_string().starts_with("skipped offset 5 of partition 3"));
    }
}
