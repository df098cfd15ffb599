//! The permission to send batches of a transaction. The ledger issues it, and partitions check it.

use crate::window::ProducerIdAndEpoch;

/// The permission to send the batches of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransactionPass {
    /// The number of the transaction.
    pub(crate) number: u64,
    /// The producer id and epoch of the transaction's batches.
    pub(crate) identity: ProducerIdAndEpoch,
    /// True if a Produce request also adds its partitions to the transaction (`transaction.version` 2, KIP-890).
    pub(crate) adds_partitions: bool,
}
