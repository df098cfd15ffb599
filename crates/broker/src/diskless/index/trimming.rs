//! Rows of producers that are of no interest any more: those before what is retained of each.
//!
//! The rows of a partition are gone through piece by piece, twice as fast as they are added, so that nobody waits long for it however many there
//! are. Invariant: a row is removed only where a newer one of its producer begins no later than what is retained.

use std::collections::HashMap;

use fullbore_rules::commit::{DisklessPartitionId, PartitionState};

/// After so many rows that were added, the next piece is gone through.
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
    /// Rows that were added since the last piece.
    added: usize,
    /// Where the next piece begins.
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

    /// It is done up to this offset.
    pub fn done(&mut self, id: DisklessPartitionId, next: i64) {
        self.of_partition.insert(id, Trim { added: 0, next });
    }

    /// It is gone.
    pub fn forget(&mut self, id: DisklessPartitionId) {
        self.of_partition.remove(&id);
    }

    /// The number of partitions of which something is kept.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.of_partition.len()
    }
}

/// Which of these rows, each with the offset at which it begins and its producer, may be removed; they are in the order of their offsets.
pub fn removable(rows: &[(i64, i64)], state: &PartitionState) -> Vec<i64> {
    let mut newer: HashMap<i64, i64> = HashMap::new();
    let mut removable = Vec::new();
    for (base_offset, producer_id) in rows.iter().rev() {
        let retained_from = state.producers.retained_from(*producer_id).unwrap_or(i64::MAX);
        if newer.insert(*producer_id, *base_offset).is_some_and(|newer| newer <= retained_from) {
            removable.push(*base_offset);
        }
    }
    removable
}

/// Where the piece behind these rows begins: at the last of them, which no newer one was seen of; at the beginning after the last piece.
pub fn next_piece(rows: &[(i64, i64)]) -> i64 {
    rows.last().filter(|_| rows.len() >= PIECE).map_or(0, |(base_offset, _)| *base_offset)
}
