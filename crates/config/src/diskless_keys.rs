//! The keys of diskless topics: a part of the broker's table.
//!
//! Not a topic's own key (`topic_keys`). What Inkless calls by a name of its own is one setting under two names: the
//! row of its name has no default, and ours falls back on it.

use super::key::{Allowed, Key, Type};

const NOT_KAFKAS: &str = "not a Kafka key";
const INKLESS: &str = "not a Kafka key, but Inkless's";
const MIB: i64 = 1 << 20;

/// Settings with another name in Inkless: ours, and that one.
pub(super) const TWINS: &[(&str, &str)] = &[
    ("diskless.produce.buffer.max.bytes", "inkless.produce.buffer.max.bytes"),
    ("diskless.produce.commit.interval.ms", "inkless.produce.commit.interval.ms"),
    ("diskless.produce.max.upload.attempts", "inkless.produce.max.upload.attempts"),
    ("diskless.produce.upload.backoff.ms", "inkless.produce.upload.backoff.ms"),
    ("diskless.produce.upload.thread.pool.size", "inkless.produce.upload.thread.pool.size"),
    ("diskless.consume.cache.max.bytes", "inkless.consume.cache.max.bytes"),
    ("diskless.file.cleaner.interval.ms", "inkless.file.cleaner.interval.ms"),
    ("diskless.file.cleaner.retention.period.ms", "inkless.file.cleaner.retention.period.ms"),
];

const OBJECT_BYTES: Allowed = Allowed::Between(MIB, i32::MAX as i64);
const COMMIT_INTERVAL_MS: Allowed = Allowed::Between(1, 60_000);
const UPLOAD_ATTEMPTS: Allowed = Allowed::Between(1, 1000);
const UPLOAD_BACKOFF_MS: Allowed = Allowed::Between(0, 60_000);
const DELAY_MS: Allowed = Allowed::Between(0, 60_000);
const UPLOAD_SLOTS: Allowed = Allowed::Between(1, 1024);

/// A part of the broker's table.
#[rustfmt::skip]
pub(super) const DISKLESS_KEYS: &[Key] = &[
    Key::boolean("log.diskless.enable", "false", "Whether a topic that is created without diskless.enable is diskless. Internal topics never are, and topics that there are stay what they are.")
        .differs("not a Kafka key; in a cluster it needs diskless.storage"),
    Key::new("diskless.storage", Type::String, None, "Where the records of diskless topics are: a folder, as a path or file:///path, or a bucket of S3, as s3://bucket/prefix. Unset, it is the folder diskless in log.dirs. In a cluster it must be set for there to be diskless topics, and be the same for all brokers: a folder that they share, or a bucket.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.s3.endpoint.url", Type::String, None, "Where an object store that speaks S3 and is not Amazon's is reached, as http://host:port or https://host:port.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.s3.region", Type::String, None, "The region of the bucket. Unset, it is AWS_REGION of the environment, or else us-east-1.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.s3.path.style.access.enabled", Type::Boolean, None, "Whether the bucket is named in the path of URLs and not in their host. Unset, it is where diskless.storage.s3.endpoint.url is set.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.s3.ssl.truststore.location", Type::String, None, "A file of certificates in PEM: authorities that are trusted beside the system's, where the store's https has a private one.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.s3.conditional.put.enabled", Type::Boolean, None, "Whether the bucket is claimed by a PUT with If-None-Match: *, by which one of two clusters that begin with it at once is refused. Unset, it is tried, and a store that answers 501 is claimed without.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.aws.access.key.id", Type::String, None, "The access key of S3. Unset, the usual chain is asked: AWS_ACCESS_KEY_ID and the other variables of the environment, the profile in ~/.aws/credentials (read again when it changes), a web identity, the container, the instance.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.aws.secret.access.key", Type::Password, None, "The secret of diskless.storage.aws.access.key.id.")
        .differs(NOT_KAFKAS),
    Key::int("diskless.produce.buffer.max.bytes", Some("8388608"), MIB, "Bytes of batches at which an object of diskless topics is closed and uploaded.")
        .allow(OBJECT_BYTES)
        .or_else(&["inkless.produce.buffer.max.bytes"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.produce.buffer.max.bytes", None, MIB, "Inkless's name of diskless.produce.buffer.max.bytes.")
        .allow(OBJECT_BYTES)
        .differs(INKLESS),
    Key::int("diskless.produce.commit.interval.ms", Some("250"), 1, "Time after its first batch at which such an object is closed and uploaded, however small it is.")
        .allow(COMMIT_INTERVAL_MS)
        .or_else(&["inkless.produce.commit.interval.ms"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.produce.commit.interval.ms", None, 1, "Inkless's name of diskless.produce.commit.interval.ms.")
        .allow(COMMIT_INTERVAL_MS)
        .differs(INKLESS),
    Key::int("diskless.puts.per.second.max", Some("10"), 0, "While fewer objects a second than this were uploaded, one is closed early when an upload slot is idle. Full and due objects always go. One with the marker of a transaction, or with its last records where the producer says so, is closed early under a ceiling of its own, of as many a second. 0 closes none early.")
        .allow(Allowed::Between(0, 10_000))
        .differs(NOT_KAFKAS),
    Key::int("diskless.produce.max.upload.attempts", Some("3"), 1, "How often the upload of an object is tried before its batches are refused.")
        .allow(UPLOAD_ATTEMPTS)
        .or_else(&["inkless.produce.max.upload.attempts"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.produce.max.upload.attempts", None, 1, "Inkless's name of diskless.produce.max.upload.attempts.")
        .allow(UPLOAD_ATTEMPTS)
        .differs(INKLESS),
    Key::int("diskless.produce.upload.backoff.ms", Some("10"), 0, "The pause before an upload is tried again, in milliseconds.")
        .allow(UPLOAD_BACKOFF_MS)
        .or_else(&["inkless.produce.upload.backoff.ms"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.produce.upload.backoff.ms", None, 0, "Inkless's name of diskless.produce.upload.backoff.ms.")
        .allow(UPLOAD_BACKOFF_MS)
        .differs(INKLESS),
    Key::int("diskless.produce.upload.thread.pool.size", Some("8"), 1, "Uploads of objects in flight, at most: fewer at the start, and while they take seconds and fewer carry as many bytes.")
        .allow(UPLOAD_SLOTS)
        .or_else(&["inkless.produce.upload.thread.pool.size"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.produce.upload.thread.pool.size", None, 1, "Inkless's name of diskless.produce.upload.thread.pool.size.")
        .allow(UPLOAD_SLOTS)
        .differs(INKLESS),
    Key::long("diskless.produce.memory.bytes", Some("134217728"), MIB, "Bytes of batches of diskless topics that are not committed yet, of the whole broker; past it, reading from producers pauses. So it does for a producer that has half of what the others leave. At least diskless.produce.buffer.max.bytes.")
        .differs(NOT_KAFKAS),
    Key::long("diskless.consume.cache.max.bytes", Some("134217728"), 0, "Bytes of objects kept in memory for consumers of diskless topics.")
        .or_else(&["inkless.consume.cache.max.bytes"])
        .differs(NOT_KAFKAS),
    Key::long("inkless.consume.cache.max.bytes", None, 0, "Inkless's name of diskless.consume.cache.max.bytes.")
        .differs(INKLESS),
    Key::int("diskless.file.cleaner.interval.ms", Some("30000"), 1, "Time between two looks for objects that nobody uses any more, which are deleted.")
        .or_else(&["inkless.file.cleaner.interval.ms"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.file.cleaner.interval.ms", None, 1, "Inkless's name of diskless.file.cleaner.interval.ms.")
        .differs(INKLESS),
    Key::int("diskless.file.cleaner.retention.period.ms", Some("60000"), 1, "How long an object is kept after its last record was deleted, for those who have found it before and read it.")
        .or_else(&["inkless.file.cleaner.retention.period.ms"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.file.cleaner.retention.period.ms", None, 1, "Inkless's name of diskless.file.cleaner.retention.period.ms.")
        .differs(INKLESS),
    Key::int("fullbore.diskless.put.delay.ms", Some("0"), 0, "For trials: how much longer each PUT takes, so that it is as slow as a store that is far away.")
        .allow(DELAY_MS)
        .differs(NOT_KAFKAS),
    Key::int("fullbore.diskless.get.delay.ms", Some("0"), 0, "The same of each GET.")
        .allow(DELAY_MS)
        .differs(NOT_KAFKAS),
    Key::int("diskless.producer.state.batches.to.retain", Some("128"), 5, "What max.idempotence.batches.to.retain is for other topics: the last batches of an idempotent producer that a partition of a diskless topic remembers, where the topic does not set producer.state.batches.to.retain.")
        .allow(Allowed::Between(5, 10_000))
        .differs(NOT_KAFKAS),
];
