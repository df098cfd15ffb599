//! Settings and limits of transactions.

use super::state::TransactionVersion;

/// Settings and limits of transactions, which are the same for each id of a broker.
#[derive(Clone, Copy, Debug)]
pub struct TransactionSettings {
    /// Maximum transaction timeout that a client may request, in ms (Kafka's `transaction.max.timeout.ms`).
    pub timeout_max_ms: i32,
    /// Maximum number of partitions in a transaction. Further partitions are refused with TRANSACTION_ABORTABLE in TV2,
    /// and with POLICY_VIOLATION otherwise.
    pub partitions_max: usize,
    /// Maximum number of requests of an id that wait for a transition. Further requests get CONCURRENT_TRANSACTIONS at
    /// once.
    pub waiters_max: usize,
    /// The level of the feature `transaction.version`. The coordinator's own aborts use this version.
    pub server_version: TransactionVersion,
}
