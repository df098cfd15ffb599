//! The table of broker keys, with the names, types, defaults and ranges of Apache Kafka 4.3.
//!
//! The keys of topics are in `topic_keys`, and Kafka's keys that have no effect here are in `kafka_keys`. `ssl` checks
//! the values of the TLS keys. `broker` reads every key of this table, unless the key accepts only one value.

use super::cleaner_keys::CLEANER_KEYS;
use super::diskless_keys::DISKLESS_KEYS;
use super::group_keys::GROUP_KEYS;
use super::kafka_keys::KAFKA_KEYS;
use super::key::{Allowed, Effect, Key, Type};
use super::replication::REPLICATION_KEYS;
use super::topic_keys::{
    CODECS, GZIP_LEVELS, LZ4_LEVELS, OPENS_TO, PRODUCE_VALIDATION, PRODUCE_VALIDATION_DOC, VALIDATIONS, ZSTD_LEVELS,
};
use super::transaction_keys::TRANSACTION_KEYS;
use fullbore_wire::did_you_mean;
use std::collections::HashMap;
use std::sync::LazyLock;

const INT_MAX: i64 = i32::MAX as i64;
const LONG_MAX: &str = "9223372036854775807";
pub(super) const MINUTE_MS: i64 = 60_000;
pub(super) const HOUR_MS: i64 = 3_600_000;

const PEM_ONLY: &str = "JKS, Kafka's default, and PKCS12 are not read: export to PEM, and name the files with ssl.keystore.location and \
                        ssl.truststore.location, or give the text with ssl.keystore.key, ssl.keystore.certificate.chain and ssl.truststore.certificates";

/// The broker keys of this module, in the order of the documentation.
const KEYS: &[Key] = &[
    // Identity and addresses.
    Key::int("node.id", Some("1"), 0, "This broker's number in the cluster.")
        .or_else(&["broker.id"])
        .differs("has a default"),
    Key::int("broker.id", None, 0, "Older name of node.id.").differs("unset by default"),
    Key::new("broker.rack", Type::String, None, "The rack or availability zone of this broker, as clients see it. In a cluster, clients of diskless topics are sent to brokers of their own zone. A client names its zone in client.id, as in app,diskless_az=ZONE, or a consumer in client.rack."),
    Key::new("log.dirs", Type::List, Some("fullbore-data"), "The data directory. Created when missing.")
        .or_else(&["log.dir"])
        .differs("exactly one directory, and the default is not under /tmp"),
    Key::new("log.dir", Type::List, None, "Older name of log.dirs.").differs("unset by default"),
    Key::new("listeners", Type::List, Some("PLAINTEXT://127.0.0.1:9092"),
        "Addresses to listen on: NAME://host:port, separated by commas. Port 0 takes a free port.")
        .differs("loopback by default; PLAINTEXT and SSL"),
    Key::new("advertised.listeners", Type::List, None,
        "Addresses that clients connect to, by listener name. If unset, the addresses of listeners. Required if a listener binds every interface.")
        .differs("a listener without a host needs this key; nothing is guessed from the machine's name"),
    Key::new("listener.security.protocol.map", Type::String, None,
        "NAME:PROTOCOL pairs for listeners whose names are not protocols.")
        .differs("PLAINTEXT and SSL are the protocols a listener may use"),
    Key::new("controller.listener.names", Type::List, None,
        "Names of listeners that the broker does not open. In Kafka they belong to controllers, which this broker does not need.")
        .differs("there is no controller, so its listeners are skipped"),
    Key::new("fullbore.admin.listener", Type::String, Some("127.0.0.1:9644"),
        "host:port of the HTTP page with /metrics, /readyz and /livez; empty turns it off.")
        .differs("not a Kafka key"),
    Key::new("control.plane", Type::String, Some("sqlite"), "Store of the metadata. sqlite: the file control.db in the data directory, for a single broker. postgres://user@host:5432/database: a database that all brokers of a cluster share. The URL may have a password and, as for libpq, sslmode=disable, prefer, require, verify-ca or verify-full, and sslrootcert=FILE. That file is read again for each connection. DescribeConfigs shows the URL without user and password.")
        .differs("not a Kafka key: there are no controllers"),
    Key::new("control.plane.password.file", Type::String, None, "File with the password of control.plane, read again for each connection.")
        .differs("not a Kafka key"),
    Key::int("control.plane.timeout.ms", Some("5000"), 100, "Longest time of one call to PostgreSQL, in milliseconds. A broker that freezes while it holds the lock on the metadata loses the lock after half of this time.")
        .allow(Allowed::Between(100, 600_000))
        .differs("not a Kafka key"),
    Key::int("broker.session.timeout.ms", Some("9000"), 1, "Time without a heartbeat after which the cluster considers a broker failed, in milliseconds."),
    Key::int("broker.heartbeat.interval.ms", Some("500"), 1, "Time between two heartbeats of a broker of a cluster, in milliseconds. A broker sends at least eight in broker.session.timeout.ms, whatever is set here.")
        .differs("Kafka's default is 2000; here a heartbeat also polls for changes of the metadata"),
    Key::int("initial.broker.registration.timeout.ms", Some("60000"), 0, "How long a starting broker of a cluster retries if PostgreSQL cannot be used at the moment, in milliseconds. The broker then ends with the last error. An error that a retry cannot cure, such as a wrong password, ends the start at once.")
        .differs("at least 0; 0 turns retries off"),
    Key::boolean("fullbore.lost.directory.accept", "false", "True if this broker may start with a new data directory although it had the only complete replica of a partition. The records that no other replica has are then lost.")
        .differs("not a Kafka key: Kafka never starts with a data directory without meta.properties"),
    // TLS. Each of these keys may also be set for a single listener, as listener.name.<name in lower case>.ssl...
    Key::new("ssl.keystore.type", Type::String, Some("PEM"), "Format of ssl.keystore.location.")
        .allow(Allowed::OneOf(&["PEM"]))
        .differs(PEM_ONLY),
    Key::new("ssl.keystore.location", Type::String, None, "A PEM file with the private key and its certificates, the broker's own first. Read again when it changes.")
        .differs("read again when the file changes, without an AlterConfigs"),
    Key::new("ssl.keystore.key", Type::Password, None, "The private key as PEM text, instead of a file."),
    Key::new("ssl.keystore.certificate.chain", Type::Password, None, "The certificates of ssl.keystore.key as PEM text, the broker's own first."),
    Key::new("ssl.keystore.password", Type::Password, None, "Must be left out: a PEM file has no store password."),
    Key::new("ssl.key.password", Type::Password, None, "The password of an encrypted private key (PKCS#8, PBES2)."),
    Key::new("ssl.truststore.type", Type::String, Some("PEM"), "Format of ssl.truststore.location.")
        .allow(Allowed::OneOf(&["PEM"]))
        .differs(PEM_ONLY),
    Key::new("ssl.truststore.location", Type::String, None, "A PEM file with the authorities whose client certificates are accepted. Read again when it changes.")
        .differs("needed with ssl.client.auth: there is no default one; read again when the file changes"),
    Key::new("ssl.truststore.certificates", Type::Password, None, "The authorities' certificates as PEM text, instead of a file."),
    Key::new("ssl.truststore.password", Type::Password, None, "Must be left out: a PEM file has no store password."),
    Key::new("ssl.client.auth", Type::String, Some("none"), "Whether a client must present a certificate. A certificate that it presents must be valid.")
        .allow(Allowed::OneOf(&["none", "requested", "required"])),
    Key::new("ssl.enabled.protocols", Type::List, Some("TLSv1.2,TLSv1.3"), "The versions of TLS that may be used.")
        .differs("TLSv1.2 and TLSv1.3 only"),
    Key::new("ssl.protocol", Type::String, Some("TLSv1.3"), "The highest version of TLS that may be used.")
        .allow(Allowed::OneOf(&["TLSv1.3", "TLSv1.2"])),
    Key::new("ssl.cipher.suites", Type::List, Some(""), "The cipher suites that may be used, by Java's names; empty for all that are offered.")
        .differs("AES-GCM and ChaCha20-Poly1305 with ephemeral keys only"),
    Key::long("fullbore.ssl.handshake.timeout.ms", Some("10000"), 1, "A connection whose TLS handshake takes longer is closed.")
        .differs("not a Kafka key"),
    Key::new("fullbore.ssl.reload.interval.ms", Type::Long, Some("10000"), "Time between two checks of key, certificate and truststore files for changes, in milliseconds; -1 never checks.")
        .allow(Allowed::MinusOneOr(10, i64::MAX))
        .differs("not a Kafka key"),
    // Connections.
    Key::int("socket.request.max.bytes", Some("104857600"), 1, "The largest request accepted, in bytes; a larger one closes the connection."),
    Key::new("socket.send.buffer.bytes", Type::Int, Some("-1"), "SO_SNDBUF of client connections in bytes; -1 leaves the size to the system.")
        .allow(Allowed::MinusOneOr(1, INT_MAX))
        .differs("-1 by default: a fixed size turns the system's autotuning off, which slows down distant clients"),
    Key::new("socket.receive.buffer.bytes", Type::Int, Some("-1"), "SO_RCVBUF of client connections in bytes; -1 leaves the size to the system.")
        .allow(Allowed::MinusOneOr(1, INT_MAX))
        .differs("-1 by default: a fixed size turns the system's autotuning off, which slows down distant clients"),
    Key::int("socket.listen.backlog.size", Some("50"), 1, "Connections that may wait in the operating system until the broker accepts them."),
    Key::int("max.connections", Some("2147483647"), 0, "Connections open at a time, over all listeners. Where there are several listeners, a connection to inter.broker.listener.name is never refused.").dynamic(),
    Key::int("max.connections.per.ip", Some("2147483647"), 0, "Connections open at a time from one address.").dynamic(),
    Key::new("max.connections.per.ip.overrides", Type::String, Some(""), "Exceptions to max.connections.per.ip: address:count, separated by commas; IPv6 addresses in brackets.")
        .differs("addresses only, no host names")
        .dynamic(),
    Key::new("connections.max.idle.ms", Type::Long, Some("600000"), "Time without a byte in either direction after which a connection is closed, in milliseconds. The broker closes it at most an eighth later; -1 never closes it.")
        .allow(Allowed::MinusOneOr(1, i64::MAX))
        .differs("a client that waits for a response is not idle"),
    Key::int("fullbore.worker.threads", Some("0"), 0, "Threads that serve connections; 0 is one per core of the machine. Brokers that share a machine handle more requests if each of them has fewer threads; fullbore cluster up divides the cores among them.")
        .allow(Allowed::Between(0, 1024))
        .differs("not a Kafka key: each thread reads, executes and answers requests, where Kafka has num.network.threads and num.io.threads"),
    Key::int("fullbore.connection.requests.max", Some("1024"), 1, "Requests of one connection that are read and not answered yet. At this limit, the broker stops reading from the connection.")
        .allow(Allowed::Between(1, 65_536))
        .differs("not a Kafka key: Kafka serves one request of a connection at a time"),
    Key::int("fullbore.connection.bytes.max", Some("104857600"), 1, "Bytes held in memory for the requests of one connection that are read and not answered yet, or for responses that wait to be sent. At this limit, the broker stops reading from the connection. The bytes of all requests but Produce and Fetch count sixteen times, since clients need few of those in flight. One request is always admitted, whatever its size.")
        .differs("not a Kafka key"),
    // Topics.
    Key::int("num.partitions", Some("1"), 1, "Partitions of a topic created without a number.")
        .allow(Allowed::Between(1, 100_000))
        .differs("at most 100,000"),
    Key::int("default.replication.factor", Some("1"), 1, "Replication factor of a topic created without one.")
        .allow(Allowed::Between(1, 32_767))
        .differs("1 for a standalone broker"),
    Key::boolean("auto.create.topics.enable", "true", "Whether a request for an unknown topic creates it."),
    Key::boolean("delete.topic.enable", "true", "Whether topics may be deleted."),
    // Broker-wide defaults of topic settings.
    Key::int("message.max.bytes", Some("1048588"), 0, "The largest record batch accepted, in bytes, as it is on disk.").dynamic(),
    Key::int("log.segment.bytes", Some("1073741824"), 1_048_576, "Size at which a segment of the log is closed and a new one begun.").dynamic(),
    Key::long("log.roll.ms", None, 1, "Age at which a segment of the log is closed and a new one begun, in milliseconds.").or_else(&["log.roll.hours"]).dynamic(),
    Key::int("log.roll.hours", Some("168"), 1, "Age at which a segment of the log is closed and a new one begun, in hours; used when log.roll.ms is not set.").in_units_of_ms(HOUR_MS),
    Key::long("log.roll.jitter.ms", None, 0, "Maximum random time that is subtracted from log.roll.ms, in milliseconds.")
        .allow(Allowed::Between(0, 0))
        .or_else(&["log.roll.jitter.hours"])
        .differs("no jitter")
        .dynamic(),
    Key::int("log.roll.jitter.hours", Some("0"), 0, "Maximum random time that is subtracted from log.roll.ms, in hours; used when log.roll.jitter.ms is not set.").allow(Allowed::Between(0, 0)).differs("no jitter"),
    Key::int("log.index.interval.bytes", Some("4096"), 0, "Bytes of log between two entries of its index.").dynamic(),
    Key::int("log.index.size.max.bytes", Some("10485760"), 4, "The largest size of an index file; a full one closes its segment.").dynamic(),
    Key::new("log.retention.ms", Type::Long, None, "Records older than this are deleted, in milliseconds; -1 keeps them.")
        .allow(Allowed::MinusOneOr(1, i64::MAX))
        .or_else(&["log.retention.minutes", "log.retention.hours"])
        .dynamic(),
    Key::new("log.retention.minutes", Type::Int, None, "Records older than this are deleted, in minutes; -1 keeps them. Used when log.retention.ms is not set.")
        .allow(Allowed::MinusOneOr(1, INT_MAX))
        .in_units_of_ms(MINUTE_MS),
    Key::new("log.retention.hours", Type::Int, Some("168"), "Records older than this are deleted, in hours; -1 keeps them. Used when neither log.retention.ms nor log.retention.minutes is set.")
        .allow(Allowed::MinusOneOr(1, INT_MAX))
        .in_units_of_ms(HOUR_MS),
    Key::long("log.retention.bytes", Some("-1"), -1, "Size of a partition past which its oldest segments are deleted; -1 keeps them.")
        .differs("numbers below -1 are refused")
        .dynamic(),
    Key::long("fullbore.disk.reserve.bytes", Some("8388608"), 0,
        "Size of the file disk-reserve in the data directory, in whole blocks of 4,096 bytes and at most a sixteenth of the file system. On a full disk the broker shrinks this file for requests that free space, such as DeleteTopics. Until the file has its full size again, the broker refuses records and other changes of metadata. With 0 there is no reserve, and a full disk may refuse deletions as well.")
        .differs("not a Kafka key"),
    Key::long("fullbore.page.cache.kept.bytes", Some("134217728"), -1,
        "How many bytes of the broker's newest records stay in the page cache, on machines where a growing page cache is expensive. These are virtual machines whose host takes free memory back. The broker recognises them by the processor time that its writes take. Older records are read from the disk. If consumers read older records again and again, the broker keeps those in the cache as well, for ten minutes and in up to half of the memory. -1 leaves the page cache to the system, as on other machines.")
        .allow(Allowed::MinusOneOr(16 << 20, i64::MAX))
        .differs("not a Kafka key"),
    Key::long("log.retention.check.interval.ms", Some("300000"), 1, "Time between two checks for segments to delete, in milliseconds."),
    Key::long("log.segment.delete.delay.ms", Some("60000"), 0, "Time between taking a segment out of use and deleting its files, in milliseconds.").dynamic(),
    Key::new("log.cleanup.policy", Type::List, Some("delete"), "Treatment of old records. delete: they are deleted. compact: the newest record of each key stays. Both may be set; an empty list keeps all records.")
        .allow(Allowed::SomeOf(&["compact", "delete"]))
        .dynamic(),
    Key::new("log.message.timestamp.type", Type::String, Some("CreateTime"), "Clock of a record's timestamp: the producer's (CreateTime) or the broker's (LogAppendTime).")
        .allow(Allowed::OneOf(&["CreateTime", "LogAppendTime"]))
        .dynamic(),
    Key::long("log.message.timestamp.before.max.ms", Some(LONG_MAX), 0, "How far a producer's timestamp may lie behind the broker's clock, in milliseconds; a batch with an older timestamp is refused.")
        .differs("with fullbore.produce.validation=header only the header's timestamps of a compressed batch are checked")
        .dynamic(),
    Key::long("log.message.timestamp.after.max.ms", Some("3600000"), 0, "How far a producer's timestamp may lie ahead of the broker's clock, in milliseconds; a batch with a later timestamp is refused.")
        .differs("with fullbore.produce.validation=header only the header's timestamps of a compressed batch are checked")
        .dynamic(),
    Key::long("log.flush.interval.messages", Some(LONG_MAX), 1, "Number of unflushed records at which the broker flushes a partition. The batch that reaches this number is acknowledged only after the flush.").dynamic(),
    Key::long("log.flush.interval.ms", None, 0, "The longest time a record stays unflushed, in milliseconds.").or_else(&["log.flush.scheduler.interval.ms"]).dynamic(),
    Key::long("log.flush.scheduler.interval.ms", Some(LONG_MAX), 0, "The longest time a record stays unflushed, in milliseconds; used when log.flush.interval.ms is not set.")
        .differs("a record is flushed when it has reached this age; there is no periodic flush"),
    Key::boolean("log.preallocate", "false", "Whether segment files take their full size when created.")
        .allow(Allowed::OneOf(&["false"]))
        .differs("not offered")
        .dynamic(),
    Key::new("compression.gzip.level", Type::Int, Some("-1"), "The level of gzip where compression.type=gzip makes the broker compress; -1 is the codec's own.")
        .allow(GZIP_LEVELS)
        .dynamic(),
    Key::new("compression.lz4.level", Type::Int, Some("9"), "The level of LZ4 where compression.type=lz4 makes the broker compress; 9 is the fast one; all others are slower and compress better.")
        .allow(LZ4_LEVELS)
        .dynamic(),
    Key::new("compression.type", Type::String, Some("producer"), "Codec in which records are stored: producer keeps the producer's; any other value is the codec itself. A batch with another codec is decompressed, checked and compressed again.")
        .allow(CODECS)
        .differs(OPENS_TO)
        .dynamic(),
    Key::new("compression.zstd.level", Type::Int, Some("3"), "The level of zstd where compression.type=zstd makes the broker compress.")
        .allow(ZSTD_LEVELS)
        .dynamic(),
    Key::int("min.insync.replicas", Some("1"), 1, "In-sync replicas that a write with acks=all requires; with fewer it fails. A partition never requires more than it has replicas.").dynamic(),
    Key::boolean("unclean.leader.election.enable", "false", "Whether a replica that lacks acknowledged records may become leader when no other is available.").dynamic(),
    // Producers and consumers.
    Key::int("producer.id.expiration.ms", Some("86400000"), 1, "Time without a batch after which a partition forgets an idempotent producer, in milliseconds.").dynamic(),
    Key::long("replica.lag.time.max.ms", Some("30000"), 0, "Time that a follower may be behind before it leaves the in-sync replicas, in milliseconds."),
    Key::long("replica.high.watermark.checkpoint.interval.ms", Some("5000"), 0, "Time between two checkpoints of the high watermarks, in milliseconds."),
    Key::int("num.recovery.threads.per.data.dir", Some("2"), 1, "Threads that open logs. The broker opens a log at its first use, but after a crash it opens all logs at its start.")
        .allow(Allowed::Between(1, 64))
        .differs("at most 64, and read at the start"),
    Key::int("producer.id.expiration.check.interval.ms", Some("600000"), 1, "Time between two checks for idempotent producers to forget, in milliseconds."),
    Key::int("fullbore.producers.max", Some("1000000"), 1, "Idempotent producers that the broker remembers, each counted once per partition. Beyond this number, the broker forgets the producers that have sent no batch for the longest time. Producers of diskless topics do not count.")
        .differs("not a Kafka key"),
    Key::int("max.idempotence.batches.to.retain", Some("5"), 5, "Last batches of an idempotent producer that a partition remembers, to recognise a retry. Clients with KIP-1269 receive this number, and may have as many batches of a partition in flight, counted from the oldest unacknowledged batch.")
        .allow(Allowed::Between(5, 10_000))
        .differs("KIP-1269, which is in no release of Kafka yet")
        .dynamic(),
    Key::new(PRODUCE_VALIDATION, Type::String, Some("records"), PRODUCE_VALIDATION_DOC)
        .allow(VALIDATIONS)
        .dynamic()
        .differs("not a Kafka key"),
    Key::int("fullbore.produce.version.max", Some("14"), 13, "Largest version of Produce that the broker offers to clients. In version 14, responses report how many batches of a producer a partition retains, so that clients can have more than five in flight.")
        .allow(Allowed::Between(13, 14))
        .differs("not a Kafka key"),
    Key::int("fullbore.reorder.batches.max", Some("1024"), 0, "Out-of-order batches per producer and partition that wait for the batches before them, which are sent over other connections. Producers receive this number; with 0 the broker holds no such batches and sends no number. A number above max.idempotence.batches.to.retain has no additional effect.")
        .allow(Allowed::Between(0, 10_000))
        .differs("not a Kafka key: Kafka refuses an out-of-order batch"),
    Key::long("fullbore.reorder.bytes.max", Some("67108864"), 0, "Bytes of out-of-order batches that the whole broker holds. Beyond this limit, such batches are refused. One producer may take at most half of the bytes that the others leave.")
        .differs("not a Kafka key"),
    Key::int("fullbore.reorder.wait.ms", Some("10000"), 1, "Longest time that an out-of-order batch waits, in milliseconds; then it is refused.")
        .allow(Allowed::Between(1, 3_600_000))
        .differs("not a Kafka key"),
    Key::int("offset.metadata.max.bytes", Some("4096"), 0, "Largest metadata of a committed offset, in bytes."),
    Key::int("offsets.retention.minutes", Some("10080"), 1, "Time that committed offsets are kept, in minutes. The time begins when their group becomes empty. For clients outside groups, and for topics that a group no longer reads, the time begins with the commit.")
        .in_units_of_ms(MINUTE_MS),
    Key::long("offsets.retention.check.interval.ms", Some("600000"), 1, "Time between two checks for committed offsets to forget, in milliseconds."),
    Key::int("fullbore.offsets.max", Some("1000000"), 1, "Committed offsets of all groups together. Beyond this number, a commit for a further partition is refused with INVALID_COMMIT_OFFSET_SIZE.")
        .differs("not a Kafka key"),
    Key::long("fullbore.offsets.metadata.bytes.max", Some("67108864"), 0, "Bytes of the metadata of committed offsets, of all groups together. Beyond this limit, a commit whose metadata is longer than the metadata that it replaces is refused with INVALID_COMMIT_OFFSET_SIZE.")
        .differs("not a Kafka key"),
    Key::int("max.request.partition.size.limit", Some("2000"), 1, "Partitions in one response to DescribeTopicPartitions."),
    Key::int("max.incremental.fetch.session.cache.slots", Some("1000"), 0, "Incremental fetch sessions kept at a time."),
    Key::int("telemetry.max.bytes", Some("1048576"), 1, "The largest push of a client's own metrics (KIP-714), compressed."),
    Key::int("fetch.max.bytes", Some("57671680"), 1024, "Largest response to a Fetch, in bytes; a first batch larger than this is still sent."),
];

/// Every table of broker keys, in the order of the documentation.
const TABLES: [&[Key]; 7] =
    [KEYS, REPLICATION_KEYS, CLEANER_KEYS, DISKLESS_KEYS, GROUP_KEYS, TRANSACTION_KEYS, KAFKA_KEYS];

/// Returns every key that a broker's properties may set.
pub fn broker_keys() -> impl Iterator<Item = &'static Key> {
    TABLES.into_iter().flatten()
}

/// Returns the suggestion of [`did_you_mean`] for the unknown name `name`, or no text if no broker key is similar.
pub(super) fn meant_broker_key(name: &str) -> String {
    did_you_mean(name, broker_keys().map(|key| key.name))
}

/// Returns the broker keys that have an effect.
pub(super) fn honoured_keys() -> impl Iterator<Item = &'static Key> {
    broker_keys().filter(|key| key.effect == Effect::Honoured)
}

/// Returns the row of a broker key; None if there is no such key.
pub(super) fn broker_key(name: &str) -> Option<&'static Key> {
    static BY_NAME: LazyLock<HashMap<&str, &Key>> =
        LazyLock::new(|| broker_keys().map(|key| (key.name, key)).collect());
    BY_NAME.get(name).copied()
}
