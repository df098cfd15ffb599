//! Settings and limits of transactions.

use super::state::TransactionVersion;

/// Settings and limits of transactions, the same for each id of a broker.
#[derive(Clone, Copy, Debug)]
pub struct TransactionSettings {
    /// Largest timeout of a client (Kafka's `transaction.max.timeout.ms`).
    pub timeout_max_ms: i32,
    /// Largest number of partitions of one transaction. More are refused with TRANSACTION_ABORTABLE in TV2, else
    /// POLICY_VIOLATION.
    pub partitions_max: usize,
    /// Largest number of requests of one id that wait for a transition. More get CONCURRENT_TRANSACTIONS at once.
    pub waiters_max: usize,
    /// Level of the feature `transaction.version`: the version by which the coordinator itself aborts.
    pub server_version: TransactionVersion,
}
