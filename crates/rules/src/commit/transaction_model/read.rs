//! Reads the log as a consumer at read_committed does.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{DisklessPartitionId, Entry, World};
use crate::sequence::AbortedTransaction;

/// The result of reading the whole log of a partition.
#[derive(Default)]
struct Reading {
    /// The sequences that the consumer gets, by transaction.
    delivered: BTreeMap<usize, Vec<i32>>,
    /// The transactions that have ended, each with the offset of its first marker.
    ended: HashMap<usize, i64>,
    /// The transactions that are still open, each with the offset of its first record.
    open: HashMap<usize, i64>,
}

impl World {
    /// Reads a log up to its last stable offset. Checks that all transactions before it are decided, and that the
    /// committed ones are delivered.
    pub(super) fn read(&self, partition: DisklessPartitionId, stable: i64) -> Result<(), String> {
        let aborted: Vec<_> =
            self.aborted.iter().filter(|of| of.partition == partition).map(|of| of.transaction).collect();
        if !aborted.is_sorted_by_key(|of| of.last_offset) || !aborted.is_sorted_by_key(|of| of.last_stable_offset) {
            return Err("aborted transactions are not in order".into());
        }
        let mut reading = Reading::default();
        for (&(_, offset), entry) in self.logs.range((partition, 0)..(partition + 1, 0)) {
            match *entry {
                Entry::Marker { transaction } => {
                    reading.open.remove(&transaction);
                    reading.ended.entry(transaction).or_insert(offset);
                }
                Entry::Record { transaction, .. } if reading.ended.contains_key(&transaction) => {
                    return Err(format!("transaction {transaction} goes on at {offset}, behind its marker"));
                }
                Entry::Record { transaction, sequence } => {
                    reading.open.entry(transaction).or_insert(offset);
                    let producer_id = self.transactions[transaction].client as i64;
                    let is_in = |of: &AbortedTransaction| {
                        of.producer_id == producer_id && (of.first_offset..=of.last_offset).contains(&offset)
                    };
                    if offset < stable && !aborted.iter().any(is_in) {
                        reading.delivered.entry(transaction).or_default().push(sequence);
                    }
                }
            }
        }
        if let Some((transaction, first)) = reading.open.iter().find(|(_, first)| **first < stable) {
            return Err(format!("{stable} is stable, and transaction {transaction} is open from {first} on"));
        }
        self.check_delivered(&reading, stable)
    }

    fn check_delivered(&self, reading: &Reading, stable: i64) -> Result<(), String> {
        let empty = Vec::new();
        let ended: HashSet<_> = reading.ended.iter().filter(|(_, at)| **at < stable).map(|(of, _)| *of).collect();
        for (at, of) in self.transactions.iter().enumerate() {
            let sequences = reading.delivered.get(&at).unwrap_or(&empty);
            let is_whole = sequences.len() == of.batches || !ended.contains(&at);
            let is_right = match of.decision {
                Some(true) => is_whole && sequences.is_sorted_by(|one, next| next - one == 1),
                _ => sequences.is_empty(),
            };
            if !is_right {
                return Err(format!(
                    "transaction {at} with {} batches is decided {:?}, and read as {sequences:?}",
                    of.batches, of.decision
                ));
            }
        }
        Ok(())
    }
}
