//! The table of the producer's own settings. Each row has the key, its default, its meaning and its parser.
//!
//! The settings of connections are not here, because every client has them.

use super::values::{Acks, InFlight, ProducerConfig};
use fullbore_client::ClientConfig;
use fullbore_client::key::{Key, Setting, boolean, list, ms, number, size};
use fullbore_wire::batch::Compression;
use fullbore_wire::did_you_mean;

/// The producer's own settings, by name.
pub(super) const KEYS: &[Key<ProducerConfig>] = fullbore_client::keys! {
    "acks", "all", "Which replicas must have a batch before the leader acknowledges it: all in sync (all or -1), the \
         leader (1), or none (0).",
        |c, v| c.acks = acks(v)?;
    "batch.size", "16384", "A batch that reaches this many bytes is sent before linger.ms has passed. While a batch \
         cannot be sent, it grows up to max.request.size (unlike in Kafka). With 0, each batch has one record.",
        |c, v| c.batch_size = size(v, 0)?;
    "bootstrap.servers", "", "host:port of the brokers to which the client connects first, separated by commas.",
        |c, v| c.bootstrap_servers = list(v);
    "buffer.memory", "33554432", "Memory in bytes for records that are not acknowledged; send waits while this memory \
         is in use. If a topic has several partitions, each of them may use at most four fifths, so that an \
         unreachable partition leaves memory to the others.",
        |c, v| c.buffer_memory = number(v, 1, i64::MAX)? as usize;
    "compression.gzip.level", "", "1 to 9, or -1 (the default) for the default level of the codec.",
        |_c, v| level(v, 1, 9)?;
    "compression.lz4.level", "", "1 to 17. 9, the default, is the fast level; all others are slower and compress more.",
        |_c, v| level(v, 1, 17)?;
    "compression.type", "none", "none, gzip, snappy, lz4 or zstd.",
        |c, v| c.compression = codec(v)?;
    "compression.zstd.level", "", "-131072 to 22; default 3.",
        |_c, v| level(v, -131_072, 22)?;
    "connections.per.broker", "auto", "Number of connections to each broker, 1 to 16, or auto; Kafka has no such \
         setting. auto begins with one connection. If max.in.flight.requests.per.connection is auto too, the producer \
         adds connections as long as they limit throughput. A partition uses several connections only if the broker \
         can put its batches in order.",
        |c, v| c.connections_per_broker = lanes(v)?;
    "delivery.timeout.ms", "120000", "Longest time from send to success or failure.",
        |c, v| c.delivery_timeout = ms(v)?;
    "enable.idempotence", "true", "With true, each record is written once and in order, however many retries are \
         needed.",
        |c, v| c.enable_idempotence = Some(boolean(v)?);
    "linger.ms", "5", "Time for which a batch smaller than batch.size waits for more records.",
        |c, v| c.linger = ms(v)?;
    "max.block.ms", "60000", "Longest time for which send waits for memory or metadata.",
        |c, v| c.max_block = ms(v)?;
    "max.in.flight.requests.per.connection", "auto", "Maximum number of Produce requests on a connection that have no \
         response yet, or auto for as many as fill the path (Kafka's default is 5). More than 5 are allowed even with \
         idempotence: the number of batches that the broker remembers limits each partition separately.",
        |c, v| c.max_in_flight = in_flight(v)?;
    "max.request.size", "1048576", "Largest request in bytes, and so the largest batch and record.",
        |c, v| c.max_request_size = size(v, 1024)?;
    "metadata.max.age.ms", "300000", "Age at which metadata is fetched again.",
        |c, v| c.metadata_max_age = ms(v)?;
    "partitioner.ignore.keys", "false", "With true, the producer chooses a record's partition as if the record had no \
         key.",
        |c, v| c.partitioner_ignore_keys = boolean(v)?;
    "retries", "2147483647", "Maximum number of attempts after the first. Prefer to limit the time of all attempts by delivery.timeout.ms.",
        |c, v| c.retries = number(v, 0, i64::from(i32::MAX))? as u32;
    "retry.backoff.max.ms", "1000", "Longest pause before an attempt is repeated.",
        |c, v| c.retry_backoff_max = ms(v)?;
    "retry.backoff.ms", "100", "First pause before an attempt is repeated.",
        |c, v| c.retry_backoff = ms(v)?;
    "transaction.timeout.ms", "60000", "The coordinator aborts a transaction that is open for longer than this. A broker allows transaction.max.timeout.ms at most.",
        |c, v| c.transaction_timeout = ms(v)?;
    "transaction.two.phase.commit.enable", "false", "true is refused: two-phase commit (KIP-939) is not offered.",
        |_c, v| if boolean(v)? { return Err("must be false: this producer does not offer two-phase commit".to_owned()); };
    "transactional.id", "", "Makes the producer transactional: every record belongs to a transaction of this id. The \
         id outlives the producer: a new producer with the same id fences the previous one.",
        |c, v| c.transactional_id = Some(transactional_id(v)?);
};

/// Returns every setting, including the settings of the producer's connections.
pub fn settings() -> impl Iterator<Item = Setting> {
    KEYS.iter().map(|key| key.setting).chain(ClientConfig::settings())
}

/// Settings of Kafka's producer that this producer accepts and ignores.
const WITHOUT_EFFECT: &[&str] = &[
    "auto.include.jmx.reporter",
    "client.dns.lookup",
    "config.providers",
    "enable.metrics.push",
    "interceptor.classes",
    "key.serializer",
    "metadata.max.idle.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "partitioner.class",
    "security.providers",
    "socket.connection.setup.timeout.max.ms",
    "value.serializer",
];

/// Returns a notice for the user if the setting `name` has no effect.
pub fn notice(name: &str) -> Option<String> {
    if settings().any(|setting| setting.name == name) {
        return None;
    }
    if WITHOUT_EFFECT.contains(&name) {
        return Some("has no effect on this producer".to_owned());
    }
    let meant = did_you_mean(name, settings().map(|setting| setting.name).chain(WITHOUT_EFFECT.iter().copied()));
    Some(match name.starts_with("ssl.") || name.starts_with("sasl.") {
        true => format!("has no effect on this producer{meant}"),
        false => format!("is not a producer setting and has no effect{meant}"),
    })
}

fn transactional_id(value: &str) -> Result<String, String> {
    if value.is_empty() { Err("must not be empty".to_owned()) } else { Ok(value.to_owned()) }
}

fn lanes(value: &str) -> Result<Option<usize>, String> {
    match value {
        "auto" => Ok(None),
        number => {
            self::number(number, 1, 16).map(|n| Some(n as usize)).map_err(|allowed| format!("{allowed}, or auto"))
        }
    }
}

fn in_flight(value: &str) -> Result<InFlight, String> {
    match value {
        "auto" => Ok(InFlight::Auto),
        number => size(number, 1).map(InFlight::Requests).map_err(|allowed| format!("{allowed}, or auto")),
    }
}

fn level(value: &str, min: i64, max: i64) -> Result<i64, String> {
    if value == "-1" { Ok(-1) } else { number(value, min, max) }
}

fn acks(value: &str) -> Result<Acks, String> {
    match value {
        "all" | "-1" => Ok(Acks::All),
        "1" => Ok(Acks::Leader),
        "0" => Ok(Acks::None),
        _ => Err("must be all, -1, 1 or 0".to_owned()),
    }
}

const CODECS: [(&str, Compression); 5] = [
    ("none", Compression::None),
    ("gzip", Compression::Gzip),
    ("snappy", Compression::Snappy),
    ("lz4", Compression::Lz4),
    ("zstd", Compression::Zstd),
];

fn codec(value: &str) -> Result<Compression, String> {
    let found = CODECS.iter().find(|(name, _)| *name == value);
    found.map(|(_, codec)| *codec).ok_or_else(|| "must be none, gzip, snappy, lz4 or zstd".to_owned())
}

pub(super) fn codec_name(codec: Compression) -> &'static str {
    CODECS.iter().find(|(_, c)| *c == codec).expect("every codec is in the table").0
}
