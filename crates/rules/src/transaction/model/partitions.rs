//! The partitions of the model: their open records, and the checks of writes and markers.

use super::super::{Markers, ProducerIdAndEpoch, TransactionVersion};
use std::collections::HashMap;

/// State that a partition has of a producer id.
#[derive(Clone, Copy, Debug)]
struct Known {
    epoch: i16,
    coordinator_epoch: i32,
}

/// The log of a partition. It has the producer id and the transaction of each open record.
#[derive(Debug, Default)]
pub struct Partition {
    known: HashMap<i64, Known>,
    open: Vec<(i64, usize)>,
}

/// The outcome of a marker.
#[derive(Debug, PartialEq)]
pub enum Marked {
    /// The marker is written. It gives the records of these transactions their outcome.
    Written(Vec<usize>),
    /// The marker was already written, and is not written twice.
    Again,
    /// The marker's coordinator has been replaced by another one.
    OldCoordinator,
    /// The epoch of the marker is below the producer's epoch. With TV2, the same epoch is refused as well if records
    /// are open.
    OldEpoch,
}

impl Partition {
    /// Appends a record of this transaction. Returns false if the producer is fenced.
    pub fn write(&mut self, producer: ProducerIdAndEpoch, transaction: usize) -> bool {
        let known = self.known.entry(producer.id).or_insert(Known { epoch: producer.epoch, coordinator_epoch: -1 });
        if producer.epoch < known.epoch {
            return false;
        }
        known.epoch = producer.epoch;
        self.open.push((producer.id, transaction));
        true
    }

    /// Appends a marker.
    pub fn mark(&mut self, markers: &Markers, takes_old_coordinators: bool) -> Marked {
        let coordinator_epoch = markers.decision.coordinator_epoch;
        let is_open = self.open.iter().any(|(id, _)| *id == markers.producer_id);
        let unknown = Known { epoch: -1, coordinator_epoch: -1 };
        let known = self.known.entry(markers.producer_id).or_insert(unknown);
        if coordinator_epoch < known.coordinator_epoch && !takes_old_coordinators {
            return Marked::OldCoordinator;
        }
        let is_new = match markers.transaction_version {
            TransactionVersion::V2 => markers.producer_epoch > known.epoch,
            _ => markers.producer_epoch >= known.epoch,
        };
        match is_new {
            false if markers.producer_epoch == known.epoch && !is_open => return Marked::Again,
            false => return Marked::OldEpoch,
            true => *known = Known { epoch: markers.producer_epoch, coordinator_epoch },
        }
        let (ended, open) = self.open.drain(..).partition(|(id, _)| *id == markers.producer_id);
        self.open = open;
        let ended: Vec<(i64, usize)> = ended;
        Marked::Written(ended.into_iter().map(|(_, transaction)| transaction).collect())
    }

    /// Returns how many records have no outcome yet.
    pub fn open(&self) -> usize {
        self.open.len()
    }
}
