//! Removes old producer rows, those before the retained batches of each producer.
//!
//! The GC goes through the rows of a partition in small steps, so that commits do not wait long. For each row that
//! commits add, the GC reads two rows, so it keeps up with the commits.
//!
//! Invariant: a row stays if it contains a retained batch, its producer's last marker, or the first batch of its
//! producer's open transaction. A row also stays if it was committed after the partition's state was read. The rows of
//! an unknown producer stay, unless this producer may have been forgotten.

use std::collections::HashMap;

use fullbore_rules::commit::{DisklessPartitionId, PartitionState};

use super::store::ProducerRowPlace;

/// Number of added rows after which the next step in a partition is due.
const ADDED_MAX: usize = 1024;
/// Maximum number of rows that one step reads.
pub const PIECE: usize = 2 * ADDED_MAX;

/// The progress of the GC in each partition.
#[derive(Debug, Default)]
pub struct Trims {
    of_partition: HashMap<DisklessPartitionId, Trim>,
}

#[derive(Debug, Default)]
struct Trim {
    /// The number of added rows, minus [`ADDED_MAX`] for each finished step.
    added: usize,
    /// The offset at which the next step begins.
    next: i64,
}

impl Trims {
    /// Records that a row was added.
    pub fn added(&mut self, id: DisklessPartitionId) {
        self.of_partition.entry(id).or_default().added += 1;
    }

    /// Returns a partition in which a step of the GC is due, and the offset at which this step begins. Returns `None`
    /// if no step is due in any partition.
    pub fn due(&self) -> Option<(DisklessPartitionId, i64)> {
        let due = self.of_partition.iter().find(|(_, trim)| trim.added >= ADDED_MAX);
        due.map(|(id, trim)| (*id, trim.next))
    }

    /// Records that a step is done. The next one begins at `next`.
    pub fn done(&mut self, id: DisklessPartitionId, next: i64) {
        if let Some(trim) = self.of_partition.get_mut(&id) {
            *trim = Trim { added: trim.added.saturating_sub(ADDED_MAX), next };
        }
    }

    /// Forgets a deleted partition.
    pub fn forget(&mut self, id: DisklessPartitionId) {
        self.of_partition.remove(&id);
    }

    /// Returns the number of partitions whose progress is stored.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.of_partition.len()
    }
}

/// Returns the first offsets of those rows that may be removed.
pub fn removable(rows: &[ProducerRowPlace], state: &PartitionState) -> Vec<i64> {
    let is_removable = |row: &&ProducerRowPlace| match state.producers.knows(row.producer_id) {
        _ if row.base_offset >= state.next_offset => false,
        true => !state.producers.needs(row.producer_id, row.base_offset..=row.last_base_offset),
        false => state.has_forgotten || row.producer_id <= state.expired_to,
    };
    rows.iter().filter(is_removable).map(|row| row.base_offset).collect()
}

/// Returns the offset at which the next step begins. Returns 0 if `rows` ended at the last row of the partition.
pub fn next_piece(rows: &[ProducerRowPlace]) -> i64 {
    rows.last().filter(|_| rows.len() >= PIECE).map_or(0, |row| row.base_offset + 1)
}
