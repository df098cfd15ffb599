//! Permission to send batches of a transaction: the ledger issues it and partitions obey it.

use crate::window::ProducerIdAndEpoch;

/// Permission for batches of one transaction to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransactionPass {
    /// Number of the transaction.
    pub(crate) number: u64,
    /// Identity of the transaction's batches.
    pub(crate) identity: ProducerIdAndEpoch,
    /// True if a Produce request adds its partitions to the transaction (`transaction.version` 2, KIP-890).
    pub(crate) adds_partitions: bool,
}
