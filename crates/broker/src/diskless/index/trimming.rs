//! GC of the producer rows that precede the retained batches of each producer.
//!
//! The GC walks the rows of a partition piece by piece, twice as fast as rows are added, so that no commit waits long
//! for a piece.
//!
//! Invariant: a row is removed only if none of its batches is retained, is the last marker of its producer, or opens
//! the producer's transaction. A row of a producer that is known to be forgotten is removed as well. Rows committed
//! since the partition's state was read stay.

use std::collections::HashMap;

use fullbore_rules::commit::{DisklessPartitionId, PartitionState};

use super::store::ProducerRowPlace;

/// Number of rows added to a partition before its next piece is due.
const ADDED_MAX: usize = 1024;
/// Most rows of a piece.
pub const PIECE: usize = 2 * ADDED_MAX;

/// Progress of the GC in each partition.
#[derive(Debug, Default)]
pub struct Trims {
    of_partition: HashMap<DisklessPartitionId, Trim>,
}

#[derive(Debug, Default)]
struct Trim {
    /// Number of rows added, less those for which a piece was walked.
    added: usize,
    /// Offset at which the next piece begins.
    next: i64,
}

impl Trims {
    /// Notes that a row was added.
    pub fn added(&mut self, id: DisklessPartitionId) {
        self.of_partition.entry(id).or_default().added += 1;
    }

    /// Returns a partition whose next piece is due, and the offset at which the piece begins; `None` if no piece is
    /// due.
    pub fn due(&self) -> Option<(DisklessPartitionId, i64)> {
        let due = self.of_partition.iter().find(|(_, trim)| trim.added >= ADDED_MAX);
        due.map(|(id, trim)| (*id, trim.next))
    }

    /// Notes that a piece is done, and that the next one begins at `next`.
    pub fn done(&mut self, id: DisklessPartitionId, next: i64) {
        if let Some(trim) = self.of_partition.get_mut(&id) {
            *trim = Trim { added: trim.added.saturating_sub(ADDED_MAX), next };
        }
    }

    /// Forgets a deleted partition.
    pub fn forget(&mut self, id: DisklessPartitionId) {
        self.of_partition.remove(&id);
    }

    /// Returns the number of partitions with progress.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.of_partition.len()
    }
}

/// Returns the first offsets of the rows that may be removed.
pub fn removable(rows: &[ProducerRowPlace], state: &PartitionState) -> Vec<i64> {
    let is_removable = |row: &&ProducerRowPlace| match state.producers.knows(row.producer_id) {
        _ if row.base_offset >= state.next_offset => false,
        true => !state.producers.needs(row.producer_id, row.base_offset..=row.last_base_offset),
        false => state.has_forgotten || row.producer_id <= state.expired_to,
    };
    rows.iter().filter(is_removable).map(|row| row.base_offset).collect()
}

/// Returns the offset at which the piece after these rows begins; 0 after the last piece.
pub fn next_piece(rows: &[ProducerRowPlace]) -> i64 {
    rows.last().filter(|_| rows.len() >= PIECE).map_or(0, |row| row.base_offset + 1)
}
