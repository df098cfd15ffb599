//! GC of the producer rows that precede the retained batches of each producer.
//!
//! The GC walks the rows of a partition piece by piece, so that no commit waits long. For each row that is added it
//! walks two rows, so that it keeps up.
//!
//! Invariant: a row stays if one of its batches is retained, is its producer's last marker, or began the producer's
//! open transaction. A row also stays if it was committed after the partition's state was read, or if its producer is
//! unknown and not known to be forgotten.

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
    /// Number of rows added, less [`ADDED_MAX`] for each piece that was walked.
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
