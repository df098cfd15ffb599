//! The broker keys of compaction, and the cleaner's settings that are read from them.

use super::cleaner::CleanerSettings;
use super::key::{Allowed, Key, Type};
use super::reader::ConfigReader;

/// Rows of the table of broker keys: compaction.
#[rustfmt::skip]
pub(super) const CLEANER_KEYS: &[Key] = &[
    Key::boolean("log.cleaner.enable", "true", "Whether logs are compacted at all."),
    Key::int("log.cleaner.threads", Some("1"), 0, "Threads that compact logs.")
        .allow(Allowed::Between(0, 64))
        .dynamic()
        .differs("at most 64"),
    Key::long("log.cleaner.dedupe.buffer.size", Some("134217728"), 1_048_577, "Memory for the keys of the logs being compacted, in bytes, shared by all threads. Allocated while a log is compacted; a key takes 24 bytes.")
        .dynamic()
        .differs("the broker requires more than 1 MiB for each thread, but checks this only at the start, not when the key changes later"),
    Key::new("log.cleaner.io.buffer.load.factor", Type::Double, Some("0.9"), "Share of log.cleaner.dedupe.buffer.size that keys may fill. A log with more keys is compacted in several passes.")
        .allow(Allowed::Share)
        .dynamic()
        .differs("between 0 and 1"),
    Key::int("log.cleaner.io.buffer.size", Some("524288"), 0, "Memory for reading and writing the logs being compacted, in bytes, shared by all threads.").dynamic(),
    Key::new("log.cleaner.io.max.bytes.per.second", Type::Double, Some("1.7976931348623157E308"), "Bytes a second that all threads together read and write.")
        .allow(Allowed::Positive)
        .dynamic()
        .differs("more than 0"),
    Key::long("log.cleaner.backoff.ms", Some("15000"), 0, "Time that a thread waits when no log needs compaction, in milliseconds.").dynamic(),
    // Broker-wide defaults of topic settings.
    Key::new("log.cleaner.min.cleanable.ratio", Type::Double, Some("0.5"), "A log is compacted when more than this share of it is dirty, that is, was written since its last compaction.")
        .allow(Allowed::Share)
        .dynamic(),
    Key::long("log.cleaner.min.compaction.lag.ms", Some("0"), 0, "Least time that a record stays uncompacted, in milliseconds.").dynamic(),
    Key::long("log.cleaner.max.compaction.lag.ms", Some("9223372036854775807"), 1, "Most time that a record stays uncompacted, in milliseconds, whatever share of the log is dirty.").dynamic(),
    Key::long("log.cleaner.delete.retention.ms", Some("86400000"), 0, "Time that a tombstone, a record without a value, stays after the first compaction that read it, in milliseconds.").dynamic(),
];

pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> CleanerSettings {
    CleanerSettings {
        enable: values.boolean("log.cleaner.enable"),
        threads: values.number("log.cleaner.threads"),
        dedupe_buffer_bytes: values.number("log.cleaner.dedupe.buffer.size"),
        dedupe_load_factor: values.double("log.cleaner.io.buffer.load.factor"),
        io_buffer_bytes: values.number("log.cleaner.io.buffer.size"),
        io_max_bytes_per_second: values.double("log.cleaner.io.max.bytes.per.second"),
        backoff_ms: values.number("log.cleaner.backoff.ms"),
    }
}
