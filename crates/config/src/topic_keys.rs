//! The table of topic keys, which CreateTopics and IncrementalAlterConfigs can set.
//!
//! If a topic does not set a key, the broker key that is listed as its synonym applies. Every key here is read by
//! `topic`, accepts only one value, or has no effect and accepts only its default.

use super::key::{Allowed, Key, Type};

/// The values of the broker key and the topic key compression.type. The ranges of the levels below also apply to both
/// broker keys and topic keys.
pub(super) const CODECS: Allowed = Allowed::OneOf(&["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]);
pub(super) const GZIP_LEVELS: Allowed = Allowed::MinusOneOr(1, 9);
pub(super) const LZ4_LEVELS: Allowed = Allowed::Between(1, 17);
pub(super) const ZSTD_LEVELS: Allowed = Allowed::Between(-131_072, 22);
pub(super) const OPENS_TO: &str =
    "a decompressed batch may have up to twice max.message.bytes; this limit is never below 64 MiB or above 256 MiB";
const NO_QUOTAS: &str = "quotas are not offered yet";
const TIERED: &str = "tiered storage is not offered";

/// The values of fullbore.produce.validation, for the broker key and the topic's key.
pub(super) const VALIDATIONS: Allowed = Allowed::OneOf(&["records", "header"]);
/// Key that chooses how compressed batches are checked.
pub(super) const PRODUCE_VALIDATION: &str = "fullbore.produce.validation";
pub(super) const PRODUCE_VALIDATION_DOC: &str = "How the broker checks a compressed batch that it stores as sent. records: it decompresses the batch once, counts the records and refuses what a consumer could not read. header: it trusts the batch's header, which saves processor time; a broken producer can then stop every consumer of a partition. Batches of compacted topics are always decompressed.";
const BELIEVED: &str =
    "with fullbore.produce.validation=header only the header's timestamps of a compressed batch are checked";

/// Key that makes a topic diskless.
pub const DISKLESS_ENABLE: &str = "diskless.enable";
/// The older name of [`DISKLESS_ENABLE`] in Inkless. No setting is stored under this name.
pub const INKLESS_ENABLE: &str = "inkless.enable";
/// Key that sets how many batches of each producer a partition remembers.
pub(super) const BATCHES_TO_RETAIN: &str = "producer.state.batches.to.retain";

/// The keys that a topic may set, in the order of the documentation.
pub static TOPIC_KEYS: &[Key] = &[
    Key::new("cleanup.policy", Type::List, None, "Treatment of old records. delete: they are deleted. compact: the newest record of each key stays. Both may be set; an empty list keeps all records. A compacted topic refuses records without a key.")
        .allow(Allowed::SomeOf(&["compact", "delete"]))
        .or_else(&["log.cleanup.policy"])
        .differs(OPENS_TO),
    Key::new("compression.gzip.level", Type::Int, None, "The level of gzip where compression.type=gzip makes the broker compress; -1 is the codec's own.")
        .allow(GZIP_LEVELS)
        .or_else(&["compression.gzip.level"]),
    Key::new("compression.lz4.level", Type::Int, None, "The level of LZ4 where compression.type=lz4 makes the broker compress; 9 is the fast one; all others are slower and compress better.")
        .allow(LZ4_LEVELS)
        .or_else(&["compression.lz4.level"]),
    Key::new("compression.type", Type::String, None, "Codec in which records are stored: producer keeps the producer's; any other value is the codec itself. A batch with another codec is decompressed, checked and compressed again.")
        .allow(CODECS)
        .or_else(&["compression.type"])
        .differs(OPENS_TO),
    Key::new("compression.zstd.level", Type::Int, None, "The level of zstd where compression.type=zstd makes the broker compress.")
        .allow(ZSTD_LEVELS)
        .or_else(&["compression.zstd.level"]),
    Key::long("delete.retention.ms", None, 0, "Time that a tombstone, a record without a value, stays after the first compaction that read it, in milliseconds.")
        .or_else(&["log.cleaner.delete.retention.ms"]),
    Key::boolean(DISKLESS_ENABLE, "false", "Whether the topic is diskless: its records are in an object store (diskless.storage), which replicates them. Fixed when the topic is created; inkless.enable is the same key. A diskless topic has a replication factor of 1 and cannot be compacted yet; min.insync.replicas, segment.* and flush.* have no effect on it. Internal topics are never diskless.")
        .or_else(&["log.diskless.enable"])
        .at_creation()
        .differs("not a Kafka key; in a cluster it needs diskless.storage"),
    Key::long("file.delete.delay.ms", None, 0, "Time between taking a segment out of use and deleting its files, in milliseconds.")
        .or_else(&["log.segment.delete.delay.ms"]),
    Key::long(
        "flush.messages",
        None,
        1,
        "Number of unflushed records at which the broker flushes a partition. The batch that reaches this number is acknowledged only after the flush.",
    )
    .or_else(&["log.flush.interval.messages"]),
    Key::long("flush.ms", None, 0, "The longest time a record stays unflushed, in milliseconds.")
        .or_else(&["log.flush.interval.ms", "log.flush.scheduler.interval.ms"]),
    Key::new(PRODUCE_VALIDATION, Type::String, None, PRODUCE_VALIDATION_DOC)
        .allow(VALIDATIONS)
        .or_else(&[PRODUCE_VALIDATION])
        .differs("not a Kafka key"),
    Key::int(
        "index.interval.bytes",
        None,
        0,
        "Bytes of log between two entries of its index; more than 1 MiB counts as 1 MiB.",
    )
        .or_else(&["log.index.interval.bytes"]),
    Key::long("max.compaction.lag.ms", None, 1, "Most time that a record stays uncompacted, in milliseconds, whatever share of the log is dirty.")
        .or_else(&["log.cleaner.max.compaction.lag.ms"])
        .differs("also closes a segment without new records"),
    Key::int("max.message.bytes", None, 0, "The largest record batch accepted, in bytes, as it is on disk.")
        .or_else(&["message.max.bytes"]),
    Key::long(
        "message.timestamp.after.max.ms",
        None,
        0,
        "How far a producer's timestamp may lie ahead of the broker's clock, in milliseconds; a batch with a later timestamp is refused.",
    )
    .or_else(&["log.message.timestamp.after.max.ms"])
    .differs(BELIEVED),
    Key::long("message.timestamp.before.max.ms", None, 0, "How far a producer's timestamp may lie behind the broker's clock, in milliseconds; a batch with an older timestamp is refused.")
        .or_else(&["log.message.timestamp.before.max.ms"])
        .differs(BELIEVED),
    Key::new(
        "message.timestamp.type",
        Type::String,
        None,
        "Clock of a record's timestamp: the producer's (CreateTime) or the broker's (LogAppendTime).",
    )
    .allow(Allowed::OneOf(&["CreateTime", "LogAppendTime"]))
    .or_else(&["log.message.timestamp.type"]),
    Key::new("min.cleanable.dirty.ratio", Type::Double, None, "A log is compacted when more than this share of it is dirty, that is, was written since its last compaction.")
        .allow(Allowed::Share)
        .or_else(&["log.cleaner.min.cleanable.ratio"]),
    Key::long("min.compaction.lag.ms", None, 0, "Least time that a record stays uncompacted, in milliseconds.")
        .or_else(&["log.cleaner.min.compaction.lag.ms"]),
    Key::int(
        "min.insync.replicas",
        None,
        1,
        "In-sync replicas that a write with acks=all requires; with fewer it fails. A partition never requires more than it has replicas.",
    )
    .or_else(&["min.insync.replicas"]),
    Key::boolean("preallocate", "false", "Whether segment files take their full size when created.")
        .allow(Allowed::OneOf(&["false"]))
        .or_else(&["log.preallocate"])
        .differs("not offered"),
    Key::int(
        BATCHES_TO_RETAIN,
        None,
        5,
        "Last batches of an idempotent producer that a partition remembers, to recognise a retry. Clients with KIP-1269 receive this number, and may have as many batches of a partition in flight, counted from the oldest unacknowledged batch. A diskless topic without this setting has the broker's diskless.producer.state.batches.to.retain.",
    )
    .allow(Allowed::Between(5, 10_000))
    .or_else(&["max.idempotence.batches.to.retain"])
    .differs("KIP-1269, which is in no release of Kafka yet"),
    Key::long(
        "retention.bytes",
        None,
        -1,
        "Size of a partition past which its oldest segments are deleted; -1 keeps them.",
    )
    .or_else(&["log.retention.bytes"])
    .differs("numbers below -1 are refused"),
    Key::long("retention.ms", None, -1, "Records older than this are deleted, in milliseconds; -1 keeps them.")
        .or_else(&["log.retention.ms", "log.retention.minutes", "log.retention.hours"]),
    Key::int("segment.bytes", None, 1_048_576, "Size at which a segment of the log is closed and a new one begun.")
        .or_else(&["log.segment.bytes"]),
    Key::int("segment.index.bytes", None, 4, "The largest size of an index file; a full one closes its segment.")
        .or_else(&["log.index.size.max.bytes"]),
    Key::long("segment.jitter.ms", None, 0, "Maximum random time that is subtracted from segment.ms, in milliseconds.")
        .allow(Allowed::Between(0, 0))
        .or_else(&["log.roll.jitter.ms", "log.roll.jitter.hours"])
        .differs("no jitter"),
    Key::long("segment.ms", None, 1, "Age at which a segment of the log is closed and a new one begun, in milliseconds.")
        .or_else(&["log.roll.ms", "log.roll.hours"]),
    Key::boolean(
        "unclean.leader.election.enable",
        "false",
        "Whether a replica that lacks acknowledged records may become leader when no other is available.",
    )
    .or_else(&["unclean.leader.election.enable"]),
    // Kafka's topic keys that accept only their default here.
    Key::refused("leader.replication.throttled.replicas", Type::List, Some(""), Allowed::Any, NO_QUOTAS),
    Key::refused("follower.replication.throttled.replicas", Type::List, Some(""), Allowed::Any, NO_QUOTAS),
    Key::refused("remote.storage.enable", Type::Boolean, Some("false"), Allowed::Any, TIERED),
    Key::refused("remote.log.copy.disable", Type::Boolean, Some("false"), Allowed::Any, TIERED),
    Key::refused("remote.log.delete.on.disable", Type::Boolean, Some("false"), Allowed::Any, TIERED),
    Key::refused("local.retention.bytes", Type::Long, Some("-2"), Allowed::Between(-2, i64::MAX), TIERED)
        .or_else(&["log.local.retention.bytes"]),
    Key::refused("local.retention.ms", Type::Long, Some("-2"), Allowed::Between(-2, i64::MAX), TIERED)
        .or_else(&["log.local.retention.ms"]),
];

/// Returns the row of a topic key; None if there is no such key.
pub(super) fn topic_key(name: &str) -> Option<&'static Key> {
    TOPIC_KEYS.iter().find(|key| key.name == name)
}
