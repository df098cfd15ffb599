//! Cuts a part of an extent into units. A unit is one large batch, or several small ones that end in the same block. A
//! reader needs the bytes of a batch together, so the unit is fetched as a whole before the next one.

use std::ops::Range;

use fullbore_rules::commit::BatchRun;

use super::{PartAhead, ReaderShared};
use crate::cache::BLOCK;
use crate::fair_permits::ReadFor;
use crate::objects::ObjectError;
use crate::partition_view::PartitionView;

/// Returns the units of those batches of `run` that lie in `range`, which begins and ends with a batch.
fn units(run: &BatchRun, range: &Range<u32>) -> Vec<Range<u32>> {
    let mut units = Vec::<Range<u32>>::new();
    for (position, _, batch) in run.placed() {
        let end = position + batch.size;
        if position < range.start || end > range.end || batch.size == 0 {
            continue;
        }
        match units.last_mut() {
            Some(last) if (last.end - 1) / BLOCK == (end - 1) / BLOCK => last.end = end,
            _ => units.push(position..end),
        }
    }
    units
}

impl ReaderShared {
    /// Fetches a part of an extent, one unit after another. Wakes the waiters before each GET that follows a unit.
    pub(super) async fn fetch_part(
        &self,
        read: ReadFor,
        partition: &PartitionView,
        part: &PartAhead,
    ) -> Result<(), ObjectError> {
        let (object, until) = (part.run.object, part.range.end);
        for (nth, unit) in units(&part.run, &part.range).into_iter().enumerate() {
            if nth > 0 && self.fetcher.is_missing(object, unit.clone()) {
                partition.wake();
            }
            self.fetcher.fetch(read, object, unit, until).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fullbore_rules::commit::PackedBatch;

    use super::*;

    #[test]
    fn extent_has_small_and_large_batches_only_small_ones_share_a_unit() {
        let sizes = [10, 20, BLOCK, 5, 9 * BLOCK, 7];
        let batches = sizes.map(|size| PackedBatch { size, record_count: 1, max_timestamp: 0 }).to_vec();
        let run = BatchRun { partition: 1, object: 1, base_offset: 0, position: 8, max_timestamp_so_far: 0, batches };
        let end = 8 + sizes.iter().sum::<u32>();
        let expected = [8..38, 38..BLOCK + 43, BLOCK + 43..end];
        assert_eq!(units(&run, &(8..end)), expected);
        assert_eq!(units(&run, &(18..BLOCK + 43)), [18..38, 38..BLOCK + 43]);
    }
}
