//! Settings and limits of transactions.

use super::state::TransactionVersion;

/// Settings and limits of transactions, the same for each id of a broker.
#[derive(Clone, Copy, Debug)]
pub struct TransactionSettings {
    /// Largest transaction timeout of a client (Kafka's `transaction.max.timeout.ms`).
    pub timeout_max_ms: i32,
    /// Most partitions of one transaction. Further partitions are refused with TRANSACTION_ABORTABLE in TV2, else with
    /// POLICY_VIOLATION.
    pub partitions_max: usize,
    /// Most requests of one id that wait for a transition. Further requests get CONCURRENT_TRANSACTIONS at once.
    pub waiters_max: usize,
    /// Level of the feature `transaction.version`: the version by which the coordinator itself aborts.
    pub server_version: TransactionVersion,
}
