//! Settings and limits of transactions.

use super::state::TransactionVersion;

/// Settings and limits of transactions, the same for each id of a broker.
#[derive(Clone, Copy, Debug)]
pub struct TransactionSettings {
    /// Kafka's `transaction.max.timeout.ms`: the largest timeout of a client.
    pub timeout_max_ms: i32,
    /// Partitions of one transaction. More are refused: TRANSACTION_ABORTABLE with TV2, else POLICY_VIOLATION.
    pub partitions_max: usize,
    /// Requests of one id that wait for a transition. More are answered CONCURRENT_TRANSACTIONS at once.
    pub waiters_max: usize,
    /// Level of the feature `transaction.version`: the protocol by which the coordinator itself aborts.
    pub server_version: TransactionVersion,
}
