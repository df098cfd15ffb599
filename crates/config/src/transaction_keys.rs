//! The broker keys of transactions, and the settings of their coordinator.

use super::key::{Allowed, Key, Type};
use super::reader::ConfigReader;
use fullbore_rules::transaction::{TransactionSettings, TransactionVersion};

/// Maximum number of requests of a transactional id that wait until a change of the id's state is stored.
const WAITERS_MAX: usize = 64;

/// Rows of the table of broker keys: transactions.
pub(super) const TRANSACTION_KEYS: &[Key] = &[
    Key::int(
        "transaction.max.timeout.ms",
        Some("900000"),
        1,
        "The longest transaction.timeout.ms that a producer may request.",
    ),
    Key::int(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Some("10000"),
        1,
        "Time between two scans that abort transactions which are open for longer than their timeout, in milliseconds.",
    ),
    Key::int(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Some("3600000"),
        1,
        "Time between two scans for expired transactional ids, in milliseconds.",
    ),
    Key::int(
        "transactional.id.expiration.ms",
        Some("604800000"),
        1,
        "Time without a transaction after which a transactional id is forgotten, in milliseconds. Its next producer begins with a new producer id.",
    ),
    Key::new(
        "transaction.partition.verification.enable",
        Type::Boolean,
        Some("true"),
        "Whether the broker verifies with the coordinator that a partition is in the transaction, before a batch of an older client begins the transaction there (KIP-890).",
    )
    .dynamic(),
    Key::int(
        "transaction.state.log.num.partitions",
        Some("50"),
        1,
        "Partitions of __transaction_state, over which transactional ids are spread. Read when the topic is created, at the first use of a transaction.",
    )
    .allow(Allowed::Between(1, 1_000))
    .differs("at most 1000"),
    Key::int(
        "transaction.state.log.replication.factor",
        Some("3"),
        1,
        "Replicas of each partition of __transaction_state. Read when the topic is created. No transaction can begin before the cluster has this number of brokers.",
    )
    .allow(Allowed::Between(1, 32_767))
    .differs("1 for a standalone broker, whatever is set"),
    Key::int(
        "transaction.state.log.min.isr",
        Some("2"),
        1,
        "min.insync.replicas of __transaction_state. Read when the topic is created.",
    )
    .differs("1 for a standalone broker, whatever is set"),
    Key::int(
        "transaction.state.log.segment.bytes",
        Some("104857600"),
        1,
        "segment.bytes of __transaction_state. Read when the topic is created.",
    )
    .allow(Allowed::Between(1_048_576, 2_147_483_647))
    .differs("at least 1 MiB"),
    Key::int(
        "fullbore.transactional.ids.max",
        Some("1000000"),
        1,
        "Transactional ids that the broker coordinates; beyond this number a new id is refused.",
    )
    .differs("not a Kafka key"),
    Key::int(
        "fullbore.transaction.partitions.max",
        Some("10000"),
        1,
        "Partitions of one transaction; beyond this number no partition can be added.",
    )
    .differs("not a Kafka key"),
    Key::new(
        "fullbore.transaction.flush",
        Type::Boolean,
        Some("false"),
        "Whether the broker answers a commit only once the transaction is on disk. The transaction's records and offsets are flushed first, then the coordinator's decision; only then are markers written. In a cluster, leaders flush transactional batches before they answer Produce.",
    )
    .differs("not a Kafka key; has the effect of flush.messages=1 on __transaction_state and on the topics of transactions, with fewer flushes"),
];

/// Settings with which the broker creates the topic `__transaction_state`.
#[derive(Debug, Clone)]
pub struct TransactionLogConfig {
    pub partitions: i32,
    /// Number of replicas of each partition in a cluster.
    pub replication_factor: i16,
    /// The topic's `min.insync.replicas` in a cluster.
    pub min_isr: i32,
    pub segment_bytes: i32,
}

impl TransactionLogConfig {
    /// Returns the topic settings with which `__transaction_state` is created. They are the same as in Kafka.
    pub fn configs(&self, is_cluster: bool) -> Vec<(String, Option<String>)> {
        let (segment_bytes, min_isr) = (self.segment_bytes.to_string(), if is_cluster { self.min_isr } else { 1 });
        [
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            ("min.insync.replicas", &min_isr.to_string()),
            ("segment.bytes", &segment_bytes),
            ("unclean.leader.election.enable", "false"),
        ]
        .map(|(key, value)| (key.to_owned(), Some(value.to_owned())))
        .into()
    }
}

/// Settings of the transaction coordinator.
#[derive(Debug, Clone)]
pub struct TransactionConfig {
    pub log: TransactionLogConfig,
    /// Settings of the state machine of a transactional id.
    pub rules: TransactionSettings,
    pub ids_max: usize,
    pub id_expiration_ms: i64,
    pub abort_timed_out_interval_ms: u64,
    pub remove_expired_interval_ms: u64,
    /// fullbore.transaction.flush
    pub flushes: bool,
}

impl TransactionConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Self {
        Self {
            log: TransactionLogConfig {
                partitions: values.number("transaction.state.log.num.partitions"),
                replication_factor: values.number("transaction.state.log.replication.factor"),
                min_isr: values.number("transaction.state.log.min.isr"),
                segment_bytes: values.number("transaction.state.log.segment.bytes"),
            },
            rules: TransactionSettings {
                timeout_max_ms: values.number("transaction.max.timeout.ms"),
                partitions_max: values.number("fullbore.transaction.partitions.max"),
                waiters_max: WAITERS_MAX,
                server_version: TransactionVersion::V2,
            },
            ids_max: values.number("fullbore.transactional.ids.max"),
            id_expiration_ms: values.number("transactional.id.expiration.ms"),
            abort_timed_out_interval_ms: values.number("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            remove_expired_interval_ms: values.number("transaction.remove.expired.transaction.cleanup.interval.ms"),
            flushes: values.boolean("fullbore.transaction.flush"),
        }
    }
}
