//! The table of the producer's settings: one row a key, with its default, its meaning and how it is read.

use super::{Acks, InFlight, ProducerConfig};
use crate::error::ConfigError;
use fullbore_wire::batch::Compression;
use fullbore_wire::did_you_mean;
use std::time::Duration;

/// One setting.
pub struct Key {
    /// Kafka's name.
    pub name: &'static str,
    /// Kafka's default, unless `doc` says otherwise; empty for none.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// Reads a value, or says what is allowed.
    pub(super) set: fn(&mut ProducerConfig, &str) -> Result<(), String>,
}

impl Key {
    /// Sets this one.
    ///
    /// # Errors
    /// What is allowed; a secret is not shown.
    pub(crate) fn apply(&self, config: &mut ProducerConfig, value: &str) -> Result<(), ConfigError> {
        (self.set)(config, value.trim()).map_err(|allowed| {
            let value = if fullbore_tls::is_secret(self.name) { "[hidden]" } else { value };
            ConfigError::Value { key: self.name, value: value.to_owned(), allowed }
        })
    }
}

macro_rules! keys {
    ($( $name:literal, $default:literal, $doc:literal, |$config:ident, $value:ident| $set:expr; )*) => {
        /// Every setting, by name.
        pub const KEYS: &[Key] = &[$( Key {
            name: $name,
            default: $default,
            doc: $doc,
            set: |$config, $value| { $set; Ok(()) },
        }, )*];
    };
}

keys! {
    "acks", "all", "Replicas that must have a batch before it is acknowledged: all (or -1), 1, 0.",
        |c, v| c.acks = acks(v)?;
    "batch.size", "16384", "A batch of this many bytes is sent at once. One that cannot leave yet keeps growing, up to max.request.size (Kafka's do not). 0: each record is a batch of its own.",
        |c, v| c.batch_size = size(v, 0)?;
    "bootstrap.servers", "", "host:port of brokers to ask first, separated by commas.",
        |c, v| c.bootstrap_servers = list(v);
    "buffer.memory", "33554432", "Bytes for records that are not acknowledged; when they are in use, send waits. Where a topic has several partitions, one of them may have four fifths at most, so that one that nobody can reach leaves room to the others.",
        |c, v| c.buffer_memory = size(v, 1)?;
    "client.id", "fullbore", "Sent with every request (Kafka's default is empty).",
        |c, v| c.client.client_id = v.to_owned();
    "compression.gzip.level", "", "1 to 9, or -1 for the codec's own; default -1.",
        |_c, v| level(v, 1, 9)?;
    "compression.lz4.level", "", "1 to 17; 9, the default, is the fast one, all others are slower and make less.",
        |_c, v| level(v, 1, 17)?;
    "compression.type", "none", "none, gzip, snappy, lz4 or zstd.",
        |c, v| c.compression = codec(v)?;
    "compression.zstd.level", "", "-131072 to 22; default 3.",
        |_c, v| level(v, -131_072, 22)?;
    "connections.max.idle.ms", "540000", "A connection without traffic for this long is closed.",
        |c, v| c.client.connections_max_idle = ms(v)?;
    "connections.per.broker", "auto", "Fullbore's own: connections to each broker, 1 to 16, or auto for one, and more where one is the limit (and max.in.flight.requests.per.connection is auto too). A partition keeps to one of them unless the broker puts batches back in order.",
        |c, v| c.connections_per_broker = lanes(v)?;
    "delivery.timeout.ms", "120000", "From send to success or failure at the latest.",
        |c, v| c.delivery_timeout = ms(v)?;
    "enable.idempotence", "true", "Each record once and in order, through any number of retries.",
        |c, v| c.enable_idempotence = Some(boolean(v)?);
    "linger.ms", "5", "How long a batch smaller than batch.size waits for more records.",
        |c, v| c.linger = ms(v)?;
    "max.block.ms", "60000", "How long send waits for memory or metadata.",
        |c, v| c.max_block = ms(v)?;
    "max.in.flight.requests.per.connection", "auto", "Produce requests without a response, per connection: a number, or auto for as many as the path holds (Kafka's default is 5). Above 5 is allowed with idempotence: what a broker says it remembers bounds each partition by itself.",
        |c, v| c.max_in_flight = in_flight(v)?;
    "max.request.size", "1048576", "The largest request in bytes, and so the largest batch and record.",
        |c, v| c.max_request_size = size(v, 1024)?;
    "metadata.max.age.ms", "300000", "Metadata older than this is asked for again.",
        |c, v| c.metadata_max_age = ms(v)?;
    "partitioner.ignore.keys", "false", "Spread records with keys like those without.",
        |c, v| c.partitioner_ignore_keys = boolean(v)?;
    "receive.buffer.bytes", "-1", "SO_RCVBUF; -1 leaves it, and its growth, to the system (Kafka's default is 32768).",
        |c, v| c.client.receive_buffer_bytes = socket_buffer(v)?;
    "reconnect.backoff.max.ms", "1000", "The longest pause between attempts to connect.",
        |c, v| c.client.reconnect_backoff_max = ms(v)?;
    "reconnect.backoff.ms", "50", "The first pause between attempts to connect.",
        |c, v| c.client.reconnect_backoff = ms(v)?;
    "request.timeout.ms", "30000", "A request without a response for this long ends its connection and is retried.",
        |c, v| c.client.request_timeout = ms(v)?;
    "retries", "2147483647", "Attempts after the first; delivery.timeout.ms is the better bound.",
        |c, v| c.retries = number(v, 0, i64::from(i32::MAX))? as u32;
    "retry.backoff.max.ms", "1000", "The longest pause before an attempt is repeated.",
        |c, v| c.retry_backoff_max = ms(v)?;
    "retry.backoff.ms", "100", "The first pause before an attempt is repeated.",
        |c, v| c.retry_backoff = ms(v)?;
    "security.protocol", "PLAINTEXT", "PLAINTEXT, or SSL for TLS. SASL is not offered yet.",
        |c, v| c.client.security.set("security.protocol", v)?;
    "send.buffer.bytes", "-1", "SO_SNDBUF; -1 leaves it, and its growth, to the system (Kafka's default is 131072).",
        |c, v| c.client.send_buffer_bytes = socket_buffer(v)?;
    "socket.connection.setup.timeout.ms", "10000", "How long connecting may take.",
        |c, v| c.client.connect_timeout = ms(v)?;
    "ssl.cipher.suites", "", "Cipher suites that may be used, by Java's names, with commas; empty for all.",
        |c, v| c.client.security.set("ssl.cipher.suites", v)?;
    "ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "Versions of TLS that may be used.",
        |c, v| c.client.security.set("ssl.enabled.protocols", v)?;
    "ssl.endpoint.identification.algorithm", "https", "https compares the broker's certificate with its host name; empty does not.",
        |c, v| c.client.security.set("ssl.endpoint.identification.algorithm", v)?;
    "ssl.engine.factory.class", "", "Refused: there is no Java here.",
        |c, v| c.client.security.set("ssl.engine.factory.class", v)?;
    "ssl.key.password", "", "The password of an encrypted private key (PKCS#8, PBES2).",
        |c, v| c.client.security.set("ssl.key.password", v)?;
    "ssl.keystore.certificate.chain", "", "The certificates of ssl.keystore.key as PEM text, the client's own first.",
        |c, v| c.client.security.set("ssl.keystore.certificate.chain", v)?;
    "ssl.keystore.key", "", "The client's private key as PEM text.",
        |c, v| c.client.security.set("ssl.keystore.key", v)?;
    "ssl.keystore.location", "", "A PEM file with the client's private key and its certificates.",
        |c, v| c.client.security.set("ssl.keystore.location", v)?;
    "ssl.keystore.password", "", "Must be left out: PEM has no password of a store.",
        |c, v| c.client.security.set("ssl.keystore.password", v)?;
    "ssl.keystore.type", "PEM", "PEM only (Kafka's default is JKS).",
        |c, v| c.client.security.set("ssl.keystore.type", v)?;
    "ssl.protocol", "TLSv1.3", "The highest version of TLS that may be used: TLSv1.3 or TLSv1.2.",
        |c, v| c.client.security.set("ssl.protocol", v)?;
    "ssl.truststore.certificates", "", "Certificates of the authorities to trust as PEM text.",
        |c, v| c.client.security.set("ssl.truststore.certificates", v)?;
    "ssl.truststore.location", "", "A PEM file with the certificates of the authorities to trust; without one, the system's.",
        |c, v| c.client.security.set("ssl.truststore.location", v)?;
    "ssl.truststore.password", "", "Must be left out: PEM has no password of a store.",
        |c, v| c.client.security.set("ssl.truststore.password", v)?;
    "ssl.truststore.type", "PEM", "PEM only (Kafka's default is JKS).",
        |c, v| c.client.security.set("ssl.truststore.type", v)?;
    "transactional.id", "", "Refused: transactions are not offered yet.",
        |_c, v| if !v.is_empty() { return Err("must be unset: this producer does not offer transactions yet".to_owned()); };
}

/// Settings of Kafka's producer that mean nothing to this one.
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
    "transaction.timeout.ms",
    "transaction.two.phase.commit.enable",
    "value.serializer",
];

/// What its user should know of a setting that does nothing; `None` for one that does.
pub fn notice(name: &str) -> Option<String> {
    if KEYS.iter().any(|key| key.name == name) {
        return None;
    }
    if WITHOUT_EFFECT.contains(&name) {
        return Some("has no effect on this producer".to_owned());
    }
    let meant = did_you_mean(name, KEYS.iter().map(|key| key.name).chain(WITHOUT_EFFECT.iter().copied()));
    Some(match name.starts_with("ssl.") || name.starts_with("sasl.") {
        true => format!("has no effect on this producer{meant}"),
        false => format!("is not a producer setting and has no effect{meant}"),
    })
}

pub(super) fn list(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn number(value: &str, min: i64, max: i64) -> Result<i64, String> {
    let parsed = value.parse().ok().filter(|n| (min..=max).contains(n));
    parsed.ok_or_else(|| format!("must be a number from {min} to {max}"))
}

fn size(value: &str, min: i64) -> Result<usize, String> {
    number(value, min, i64::from(i32::MAX)).map(|n| n as usize)
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
        number => size(number, 0).map(InFlight::Requests).map_err(|allowed| format!("{allowed}, or auto")),
    }
}

fn ms(value: &str) -> Result<Duration, String> {
    number(value, 0, i64::from(i32::MAX)).map(|n| Duration::from_millis(n as u64))
}

fn level(value: &str, min: i64, max: i64) -> Result<i64, String> {
    if value == "-1" { Ok(-1) } else { number(value, min, max) }
}

fn socket_buffer(value: &str) -> Result<Option<u32>, String> {
    let bytes = number(value, -1, i64::from(i32::MAX))?;
    Ok(u32::try_from(bytes).ok().filter(|bytes| *bytes > 0))
}

fn boolean(value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
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
