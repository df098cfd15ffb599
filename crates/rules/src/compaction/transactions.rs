//! Follows the transactions of a log while a cleaning reads its batches in the order of offsets. Finds aborted data,
//! and markers of transactions whose data is all gone (Kafka's `CleanedTransactionMetadata`).
//!
//! The caller reads the list of aborted transactions in the indexes of the segments.
//!
//! Invariant: a marker counts as empty only if no data batch of its transaction was read. A data batch without records
//! counts as well, and so does one that this cleaning removes.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::sequence::AbortedTransaction;

use super::Horizon;

/// The transactions at a position of a log: those that are open there, and the aborted ones that begin later.
#[derive(Debug, Default)]
pub struct TransactionScan {
    /// The aborted transactions that begin later, by their first offset.
    ahead: BTreeMap<i64, AbortedTransaction>,
    /// The aborted transactions that are open here, by producer.
    aborted: HashMap<i64, OpenAborted>,
    /// The producers with an open transaction here that has data and that was not added as an aborted one.
    committed: HashSet<i64>,
}

#[derive(Debug)]
struct OpenAborted {
    transaction: AbortedTransaction,
    has_data: bool,
}

/// The result of a marker: whether the log still had data of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkedData {
    /// Data of the transaction was read. For an aborted transaction, this contains its entry in the index of aborted
    /// transactions, if the index has it.
    Some(Option<AbortedTransaction>),
    /// No data of the transaction was read.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerFate {
    /// The marker stays as it is.
    Stays,
    /// The marker stays, and its delete horizon is set.
    SetsHorizon,
    /// The marker is removed. If its batch is the last one of its producer, the batch stays without records.
    Goes,
}

impl TransactionScan {
    /// Adds aborted transactions. Before the caller reads a batch, it must have added all aborted transactions that
    /// contain the batch. It may add a transaction again before the transaction's marker is read.
    pub fn add(&mut self, aborted: impl IntoIterator<Item = AbortedTransaction>) {
        self.ahead.extend(aborted.into_iter().map(|transaction| (transaction.first_offset, transaction)));
    }

    /// Notes that a data batch was read. Returns true if its records are aborted.
    pub fn is_aborted(&mut self, producer_id: i64, last_offset: i64, is_transactional: bool) -> bool {
        self.begin_upto(last_offset);
        if !is_transactional {
            return false;
        }
        match self.aborted.get_mut(&producer_id) {
            Some(open) => {
                open.has_data = true;
                true
            }
            None => {
                self.committed.insert(producer_id);
                false
            }
        }
    }

    /// Ends a transaction whose marker was read. Returns whether data of it was read.
    pub fn ended_by(&mut self, producer_id: i64, offset: i64, is_commit: bool) -> MarkedData {
        self.begin_upto(offset);
        let has_committed = self.committed.remove(&producer_id);
        let aborted = if is_commit { None } else { self.aborted.remove(&producer_id) };
        match aborted.filter(|open| open.has_data) {
            Some(open) => MarkedData::Some(Some(open.transaction)),
            // The index may lack an aborted transaction. Its data then counts as committed.
            None if has_committed => MarkedData::Some(None),
            None => MarkedData::None,
        }
    }

    fn begin_upto(&mut self, offset: i64) {
        while let Some(first) = self.ahead.first_entry()
            && *first.key() <= offset
        {
            let transaction = first.remove();
            let new = || OpenAborted { transaction, has_data: false };
            self.aborted.entry(transaction.producer_id).or_insert_with(new);
        }
    }
}

/// Decides what happens to a marker whose batch still has its record (KIP-534). A marker without data stays until its
/// delete horizon, which is delete.retention.ms after the cleaning that set it.
pub fn marker_fate(data: MarkedData, horizon: Horizon, now_ms: i64) -> MarkerFate {
    match (data, horizon) {
        (MarkedData::Some(_), _) => MarkerFate::Stays,
        (MarkedData::None, Horizon::Unset) => MarkerFate::SetsHorizon,
        (MarkedData::None, horizon) if horizon.has_passed(now_ms) => MarkerFate::Goes,
        (MarkedData::None, _) => MarkerFate::Stays,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aborted(producer_id: i64, first_offset: i64, last_offset: i64) -> AbortedTransaction {
        AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset: last_offset + 1 }
    }

    #[test]
    fn aborted_transaction_aborts_data_from_its_first_offset_to_its_marker() {
        let mut scan = TransactionScan::default();
        let first = aborted(7, 10, 20);
        scan.add([first, aborted(8, 30, 40)]);
        assert!(!scan.is_aborted(7, 9, true), "committed before");
        assert_eq!(scan.ended_by(7, 9, true), MarkedData::Some(None));
        assert!(scan.is_aborted(7, 11, true) && !scan.is_aborted(8, 12, true) && !scan.is_aborted(9, 13, false));
        scan.add([first, aborted(8, 30, 40)]);
        assert_eq!(scan.ended_by(7, 20, false), MarkedData::Some(Some(first)));
        assert_eq!(scan.ended_by(8, 21, true), MarkedData::Some(None));
        assert!(!scan.is_aborted(7, 31, true) && scan.is_aborted(8, 32, true));
        assert_eq!(scan.ended_by(8, 40, false), MarkedData::Some(Some(aborted(8, 30, 40))));
        assert_eq!(scan.ended_by(7, 41, true), MarkedData::Some(None));
    }

    #[test]
    fn no_data_was_read_the_marker_is_empty() {
        let mut scan = TransactionScan::default();
        scan.add([aborted(7, 10, 20)]);
        assert_eq!(scan.ended_by(7, 20, false), MarkedData::None);
        assert_eq!(scan.ended_by(7, 21, true), MarkedData::None);
        assert!(!scan.is_aborted(7, 22, false), "plain");
        assert_eq!(scan.ended_by(7, 23, true), MarkedData::None);
        assert!(!scan.is_aborted(7, 24, true));
        assert_eq!(scan.ended_by(7, 25, false), MarkedData::Some(None), "the index lacks it");
    }

    #[test]
    fn empty_marker_is_removed_once_its_horizon_has_passed() {
        let fate = |data, horizon| marker_fate(data, horizon, 1000);
        assert_eq!(fate(MarkedData::Some(None), Horizon::At(0)), MarkerFate::Stays);
        assert_eq!(fate(MarkedData::None, Horizon::Unset), MarkerFate::SetsHorizon);
        assert_eq!(fate(MarkedData::None, Horizon::At(1001)), MarkerFate::Stays);
        assert_eq!(fate(MarkedData::None, Horizon::At(1000)), MarkerFate::Goes);
    }
}
