//! The broker keys of diskless topics.
//!
//! The topic key `diskless.enable` is in `topic_keys`. If a setting has another name in Inkless, users may set it under
//! either name. The key with Inkless's name has no default. If only this key is set, the setting under our name gets
//! its value.

use super::key::{Allowed, Key, Type};

const NOT_KAFKAS: &str = "not a Kafka key";
const INKLESS: &str = "not a Kafka key, but Inkless's";
const MIB: i64 = 1 << 20;

/// Settings that have another name in Inkless, as pairs of our name and Inkless's.
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

/// Rows of the table of broker keys: diskless topics.
#[rustfmt::skip]
pub(super) const DISKLESS_KEYS: &[Key] = &[
    Key::boolean("log.diskless.enable", "false", "Whether a topic created without diskless.enable is diskless. Internal topics never are, and existing topics stay as they are.")
        .differs("not a Kafka key; in a cluster it needs diskless.storage"),
    Key::new("diskless.storage", Type::String, None, "Store of the records of diskless topics: a directory, as a path or file:///path, or a bucket of S3, as s3://bucket/prefix. If unset, the directory diskless in log.dirs. A cluster with diskless topics needs it, with the same value on all brokers: a directory that they share, or a bucket.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.s3.endpoint.url", Type::String, None, "Address of an object store with S3's API that is not Amazon's, as http://host:port or https://host:port.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.s3.region", Type::String, None, "The region of the bucket. If unset, AWS_REGION of the environment, or else us-east-1.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.s3.path.style.access.enabled", Type::Boolean, None, "True if URLs have the bucket's name in the path, false if in the host name. If unset, true if diskless.storage.s3.endpoint.url is set.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.s3.ssl.truststore.location", Type::String, None, "PEM file with certificates of authorities that are trusted beside the system's, for a store with a private authority.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.s3.conditional.put.enabled", Type::Boolean, None, "Whether the broker writes the ownership marker, the object that names the bucket's cluster, by a PUT with If-None-Match: *. If two clusters take a bucket at the same time, the store then refuses one of them. If unset, the broker tries this header, and repeats the PUT without it if the store answers 501.")
        .differs(NOT_KAFKAS),
    Key::new("diskless.storage.aws.access.key.id", Type::String, None, "Access key of S3. If unset, the broker follows the usual chain: AWS_ACCESS_KEY_ID and the other variables of the environment, the profile in ~/.aws/credentials, a web identity, the container, the instance. The profile is read again when it changes.")
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
    Key::int("diskless.produce.commit.interval.ms", Some("250"), 1, "Time from the first batch of an object of diskless topics until the object is closed and uploaded, whatever its size; in milliseconds.")
        .allow(COMMIT_INTERVAL_MS)
        .or_else(&["inkless.produce.commit.interval.ms"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.produce.commit.interval.ms", None, 1, "Inkless's name of diskless.produce.commit.interval.ms.")
        .allow(COMMIT_INTERVAL_MS)
        .differs(INKLESS),
    Key::int("diskless.puts.per.second.max", Some("10"), 0, "Uploads a second up to which objects are uploaded early. While the rate of all uploads is lower and an upload slot is idle, an object is uploaded before it is full or due. Full and due objects are always uploaded. Objects with a transaction's marker, or with records that the producer flags as a transaction's last, have a second limit of the same size. With 0 no object is uploaded early.")
        .allow(Allowed::Between(0, 10_000))
        .differs(NOT_KAFKAS),
    Key::int("diskless.produce.max.upload.attempts", Some("3"), 1, "Attempts to upload an object before its batches are refused.")
        .allow(UPLOAD_ATTEMPTS)
        .or_else(&["inkless.produce.max.upload.attempts"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.produce.max.upload.attempts", None, 1, "Inkless's name of diskless.produce.max.upload.attempts.")
        .allow(UPLOAD_ATTEMPTS)
        .differs(INKLESS),
    Key::int("diskless.produce.upload.backoff.ms", Some("10"), 0, "Pause before the next attempt to upload an object, in milliseconds.")
        .allow(UPLOAD_BACKOFF_MS)
        .or_else(&["inkless.produce.upload.backoff.ms"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.produce.upload.backoff.ms", None, 0, "Inkless's name of diskless.produce.upload.backoff.ms.")
        .allow(UPLOAD_BACKOFF_MS)
        .differs(INKLESS),
    Key::int("diskless.produce.upload.thread.pool.size", Some("8"), 1, "Maximum number of uploads at a time. The broker begins with two. While uploads take seconds, the broker lowers the number, as long as fewer uploads carry as many bytes in total.")
        .allow(UPLOAD_SLOTS)
        .or_else(&["inkless.produce.upload.thread.pool.size"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.produce.upload.thread.pool.size", None, 1, "Inkless's name of diskless.produce.upload.thread.pool.size.")
        .allow(UPLOAD_SLOTS)
        .differs(INKLESS),
    Key::long("diskless.produce.memory.bytes", Some("134217728"), MIB, "Maximum number of bytes of uncommitted batches of diskless topics on this broker. At this limit the broker stops reading from producers. The batches of one connection that wait for an upload may take half of the memory that the other connections leave; beyond that, the broker stops reading from this connection. Must be at least diskless.produce.buffer.max.bytes.")
        .differs(NOT_KAFKAS),
    Key::long("diskless.consume.cache.max.bytes", Some("134217728"), 0, "Bytes of objects kept in memory for consumers of diskless topics.")
        .or_else(&["inkless.consume.cache.max.bytes"])
        .differs(NOT_KAFKAS),
    Key::long("inkless.consume.cache.max.bytes", None, 0, "Inkless's name of diskless.consume.cache.max.bytes.")
        .differs(INKLESS),
    Key::int("diskless.file.cleaner.interval.ms", Some("30000"), 1, "Time between two scans that delete unused objects, in milliseconds.")
        .or_else(&["inkless.file.cleaner.interval.ms"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.file.cleaner.interval.ms", None, 1, "Inkless's name of diskless.file.cleaner.interval.ms.")
        .differs(INKLESS),
    Key::int("diskless.file.cleaner.retention.period.ms", Some("60000"), 1, "Time that an object is kept after its last record was deleted, for readers that have already found it; in milliseconds.")
        .or_else(&["inkless.file.cleaner.retention.period.ms"])
        .differs(NOT_KAFKAS),
    Key::int("inkless.file.cleaner.retention.period.ms", None, 1, "Inkless's name of diskless.file.cleaner.retention.period.ms.")
        .differs(INKLESS),
    Key::int("fullbore.diskless.put.delay.ms", Some("0"), 0, "For experiments: delay added to each PUT, as of a distant store; in milliseconds.")
        .allow(DELAY_MS)
        .differs(NOT_KAFKAS),
    Key::int("fullbore.diskless.get.delay.ms", Some("0"), 0, "For experiments: delay added to each GET, as of a distant store; in milliseconds.")
        .allow(DELAY_MS)
        .differs(NOT_KAFKAS),
    Key::int("diskless.producer.state.batches.to.retain", Some("128"), 5, "Last batches of an idempotent producer that a partition of a diskless topic remembers, unless the topic sets producer.state.batches.to.retain. For other topics this is max.idempotence.batches.to.retain.")
        .allow(Allowed::Between(5, 10_000))
        .differs(NOT_KAFKAS),
];
