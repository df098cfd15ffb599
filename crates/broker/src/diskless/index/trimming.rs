//! Rows of producers that are of no interest any more: those before what is retained of each.
//!
//! The rows of a partition are gone through piece by piece, twice as fast as they are added, so that no commit waits
//! long for it however many there are. Invariant: a row is removed only where none of its batches is retained of its
//! producer, nor is its last marker, nor opens its transaction; or where it is known that its producer is not known any
//! more. What was committed since the partition's state was read is left alone.

use std::collections::HashMap;

use fullbore_rules::commit::{DisklessPartitionId, PartitionState};

use super::store::ProducerRowPlace;

/// Rows that are added until the next piece is gone through.
const ADDED_MAX: usize = 1024;
/// Rows of a piece.
pub const PIECE: usize = 2 * ADDED_MAX;

/// How far partitions have been gone through.
#[derive(Debug, Default)]
pub struct Trims {
    of_partition: HashMap<DisklessPartitionId, Trim>,
}

#[derive(Debug, Default)]
struct Trim {
    /// Rows that were added, less those for which a piece was gone through.
    added: usize,
    /// Begin of the next piece.
    next: i64,
}

impl Trims {
    /// A row was added.
    pub fn added(&mut self, id: DisklessPartitionId) {
        self.of_partition.entry(id).or_default().added += 1;
    }

    /// A partition that is to be gone through, and from which offset on.
    pub fn due(&self) -> Option<(DisklessPartitionId, i64)> {
        let due = self.of_partition.iter().find(|(_, trim)| trim.added >= ADDED_MAX);
        due.map(|(id, trim)| (*id, trim.next))
    }

    /// A piece is done; where the next one begins.
    pub fn done(&mut self, id: DisklessPartitionId, next: i64) {
        if let Some(trim) = self.of_partition.get_mut(&id) {
            *trim = Trim { added: trim.added.saturating_sub(ADDED_MAX), next };
        }
    }

    /// Forgets a deleted partition.
    pub fn forget(&mut self, id: DisklessPartitionId) {
        self.of_partition.remove(&id);
    }

    /// The number of partitions of which something is kept.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.of_partition.len()
    }
}

/// Which of these rows may be removed, by the offsets at which they begin.
pub fn removable(rows: &[ProducerRowPlace], state: &PartitionState) -> Vec<i64> {
    let is_removable = |row: &&ProducerRowPlace| match state.producers.knows(row.producer_id) {
        _ if row.base_offset >= state.next_offset => false,
        true => !state.producers.needs(row.producer_id, row.base_offset..=row.last_base_offset),
        false => state.has_forgotten || row.producer_id <= state.expired_to,
    };
    rows.iter().filter(is_removable).map(|row| row.base_offset).collect()
}

/// Returns the begin of the piece behind these rows; 0 after the last piece.
pub fn next_piece(rows: &[ProducerRowPlace]) -> i64 {
    rows.last().filter(|_| rows.len() >= PIECE).map_or(0, |row| row.base_offset + 1)
}
