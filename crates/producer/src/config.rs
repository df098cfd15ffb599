//! The producer's settings: Kafka's names and defaults, checked as a whole before anything starts.
//!
//! The table of keys is in `keys`; parser and documentation come from it. Invariant: a [`ProducerConfig`] that
//! passed [`ProducerConfig::check`] contradicts itself nowhere.

mod keys;

pub use keys::{notice, settings};

use fullbore_client::key;
use fullbore_client::{ClientConfig, ConfigError};
use fullbore_wire::batch::Compression;
use fullbore_wire::split_host_port;
use keys::KEYS;
use std::time::Duration;

/// How many Produce requests one connection may have without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// As many as the path holds.
    Auto,
    /// This many.
    Requests(usize),
}

/// How many replicas must have a batch before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Nobody answers; a lost batch is not noticed.
    None = 0,
    /// The leader.
    Leader = 1,
    /// Every replica in sync.
    All = -1,
}

/// A producer's settings. Fields are public; [`ProducerConfig::check`] runs when the producer is made.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// host:port of brokers to ask first (bootstrap.servers).
    pub bootstrap_servers: Vec<String>,
    /// The connections' settings.
    pub client: ClientConfig,
    /// acks.
    pub acks: Acks,
    /// enable.idempotence; `None` means on, unless another setting rules it out.
    pub enable_idempotence: Option<bool>,
    /// Produce requests without a response, per connection (max.in.flight.requests.per.connection).
    pub max_in_flight: InFlight,
    /// Connections to each broker; `None` for as many as are of use (connections.per.broker, Fullbore's own).
    pub connections_per_broker: Option<usize>,
    /// A batch of this size is worth sending at once (batch.size, bytes).
    pub batch_size: usize,
    /// How long a smaller batch waits for more records (linger.ms).
    pub linger: Duration,
    /// Memory for records that are not acknowledged (buffer.memory, bytes).
    pub buffer_memory: usize,
    /// How long `send` waits for memory or metadata (max.block.ms).
    pub max_block: Duration,
    /// The largest request, and so the largest batch and record (max.request.size, bytes).
    pub max_request_size: usize,
    /// From `send` to success or failure at the latest (delivery.timeout.ms).
    pub delivery_timeout: Duration,
    /// Attempts after the first (retries).
    pub retries: u32,
    /// The first pause before an attempt is repeated (retry.backoff.ms).
    pub retry_backoff: Duration,
    /// The longest such pause (retry.backoff.max.ms).
    pub retry_backoff_max: Duration,
    /// compression.type.
    pub compression: Compression,
    /// The level of the codec in use, or the codec's own (compression.{gzip,lz4,zstd}.level).
    pub compression_level: Option<i32>,
    /// Spread records with keys like those without (partitioner.ignore.keys).
    pub partitioner_ignore_keys: bool,
    /// Metadata older than this is asked for again (metadata.max.age.ms).
    pub metadata_max_age: Duration,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        ProducerConfig {
            bootstrap_servers: Vec::new(),
            client: ClientConfig::default(),
            acks: Acks::All,
            enable_idempotence: None,
            max_in_flight: InFlight::Auto,
            connections_per_broker: None,
            batch_size: 16384,
            linger: Duration::from_millis(5),
            buffer_memory: 33_554_432,
            max_block: Duration::from_secs(60),
            max_request_size: 1_048_576,
            delivery_timeout: Duration::from_secs(120),
            retries: i32::MAX as u32,
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            compression: Compression::None,
            compression_level: None,
            partitioner_ignore_keys: false,
            metadata_max_age: Duration::from_secs(300),
        }
    }
}

impl ProducerConfig {
    /// Kafka's defaults with these brokers to ask first, separated by commas.
    pub fn new(bootstrap_servers: &str) -> Self {
        ProducerConfig { bootstrap_servers: key::list(bootstrap_servers), ..Default::default() }
    }

    /// Settings by Kafka's names. A key that is not known is a warning in the log, as in Kafka's own clients.
    ///
    /// ```
    /// use fullbore_producer::{Acks, ProducerConfig};
    ///
    /// let config = ProducerConfig::from_properties([("bootstrap.servers", "localhost:9092"), ("acks", "1")]).expect("valid");
    /// assert_eq!(config.acks, Acks::Leader);
    /// let error = ProducerConfig::from_properties([("acks", "2")]).expect_err("one of three").to_string();
    /// assert!(error.starts_with("acks=2: "), "{error}");
    /// ```
    ///
    /// # Errors
    /// The key, the value and what is allowed, for the first value that is not.
    pub fn from_properties<'a>(properties: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, ConfigError> {
        let mut config = ProducerConfig::default();
        let mut levels = Vec::new();
        for (name, value) in properties {
            if !key::set(KEYS, &mut config, name, value)? && !config.client.set(name, value)? {
                tracing::warn!(key = name, "this setting {}", notice(name).unwrap_or_default());
            }
            if name.starts_with("compression.") && name.ends_with(".level") {
                levels.push((name, value));
            }
        }
        // A level counts only for the codec in use, whichever came first.
        config.compression_level = levels
            .into_iter()
            .find(|(name, _)| *name == format!("compression.{}.level", keys::codec_name(config.compression)))
            .and_then(|(_, value)| value.trim().parse().ok());
        config.check()?;
        Ok(config)
    }

    /// Whether batches carry a producer id and sequence numbers.
    pub fn is_idempotent(&self) -> bool {
        self.enable_idempotence.unwrap_or(self.acks == Acks::All && self.retries > 0)
    }

    /// Looks for settings that contradict each other.
    ///
    /// # Errors
    /// The first contradiction, with both keys.
    pub fn check(&self) -> Result<(), ConfigError> {
        let conflict = |first: String, second: String, why| Err(ConfigError::Conflict { first, second, why });
        self.client.security.check()?;
        if self.bootstrap_servers.is_empty() {
            return Err(ConfigError::Missing("bootstrap.servers"));
        }
        let is_address = |server: &str| split_host_port(server).is_some_and(|(host, _)| !host.is_empty());
        if let Some(wrong) = self.bootstrap_servers.iter().find(|server| !is_address(server)) {
            let allowed = "must be host:port, or [::1]:port, several with commas".to_owned();
            return Err(ConfigError::Value { key: "bootstrap.servers", value: wrong.clone(), allowed });
        }
        let idempotence = || "enable.idempotence=true".to_owned();
        if self.enable_idempotence == Some(true) && self.acks != Acks::All {
            return conflict(idempotence(), format!("acks={}", self.acks as i16), "it needs acks=all");
        }
        if self.enable_idempotence == Some(true) && self.retries == 0 {
            return conflict(idempotence(), "retries=0".to_owned(), "it needs retries above 0");
        }
        let in_flight = "max.in.flight.requests.per.connection";
        if self.max_in_flight == InFlight::Requests(0) {
            return conflict(
                format!("{in_flight}=0"),
                format!("retries={}", self.retries),
                "nothing could ever be sent",
            );
        }
        let waits = self.linger + self.client.request_timeout;
        if self.delivery_timeout < waits {
            return conflict(
                format!("delivery.timeout.ms={}", self.delivery_timeout.as_millis()),
                format!("linger.ms + request.timeout.ms={}", waits.as_millis()),
                "the first must be at least the second",
            );
        }
        if self.batch_size > self.max_request_size {
            return conflict(
                format!("batch.size={}", self.batch_size),
                format!("max.request.size={}", self.max_request_size),
                "the first must be at most the second",
            );
        }
        if self.buffer_memory < self.max_request_size.max(self.batch_size) {
            return conflict(
                format!("buffer.memory={}", self.buffer_memory),
                format!("max.request.size={}", self.max_request_size),
                "the first must be at least the second, or the largest record never fits",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_client::key::Setting;

    fn from(pairs: &[(&str, &str)]) -> Result<ProducerConfig, ConfigError> {
        let base = [("bootstrap.servers", "localhost:9092")];
        ProducerConfig::from_properties(base.into_iter().chain(pairs.iter().copied()))
    }

    /// The text of docs/producer.md.
    fn page() -> String {
        let mut page = "\
# Producer configuration

What the producer library, `perf produce` (`--command-property`, `--command-config`) and `perf sweep` (`--set`, `--over`) take. Names
and defaults are Kafka's; where one differs, its line says so. The keys of connections (`bootstrap.servers`, `client.id`,
`security.protocol`, `ssl.*`) are also those of `perf consume` and `topics`. Generated from the tables in
`crates/producer/src/config/keys.rs` and `crates/client/src/{config,security}.rs`; a test compares this page with them. To write it
anew: `UPDATE_DOCS=1 cargo test -p fullbore-producer committed_page`.

| key | default | what it does |
|---|---|---|
"
        .to_owned();
        let mut settings: Vec<Setting> = settings().collect();
        settings.sort_by_key(|setting| setting.name);
        for Setting { name, default, doc } in settings {
            page += &format!("| `{name}` | {default} | {} |\n", doc.replace('|', "\\|"));
        }
        page
    }

    #[test]
    fn committed_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/producer.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap();
        assert!(
            committed == page(),
            "docs/producer.md is old: UPDATE_DOCS=1 cargo test -p fullbore-producer committed_page"
        );
    }

    #[test]
    fn the_table_and_the_defaults_agree() {
        let from_table = settings().filter(|key| !key.default.is_empty()).map(|key| (key.name, key.default));
        let base = [("bootstrap.servers", "h:1")];
        let set = ProducerConfig::from_properties(base.into_iter().chain(from_table)).unwrap();
        let mut plain = ProducerConfig::new("h:1");
        plain.enable_idempotence = Some(true);
        assert_eq!(format!("{set:?}"), format!("{plain:?}"));
    }

    #[test]
    fn contradictions_name_both_settings() {
        for (pairs, both) in [
            (vec![("enable.idempotence", "true"), ("acks", "1")], ["enable.idempotence", "acks=1"]),
            (vec![("enable.idempotence", "true"), ("retries", "0")], ["enable.idempotence", "retries=0"]),
            (vec![("max.in.flight.requests.per.connection", "0")], ["max.in.flight", "retries"]),
            (vec![("delivery.timeout.ms", "30000")], ["delivery.timeout.ms=30000", "request.timeout.ms=30005"]),
            (vec![("buffer.memory", "1000")], ["buffer.memory=1000", "max.request.size=1048576"]),
        ] {
            let message = from(&pairs).unwrap_err().to_string();
            assert!(both.iter().all(|part| message.contains(part)), "{message}");
        }
    }

    #[test]
    fn weaker_acks_turn_the_default_idempotence_off() {
        assert!(from(&[]).unwrap().is_idempotent());
        assert!(!from(&[("acks", "1")]).unwrap().is_idempotent());
    }

    #[test]
    fn bad_values_say_what_is_allowed_and_unknown_keys_do_not_fail() {
        let message = from(&[("acks", "2")]).unwrap_err().to_string();
        assert_eq!(message, "acks=2: must be all, -1, 1 or 0");
        assert!(from(&[("transactional.id", "t")]).unwrap_err().to_string().contains("transactions"));
        assert!(from(&[("no.such.key", "1")]).is_ok());
    }

    #[test]
    fn settings_without_effect_are_told_from_unknown_ones() {
        assert_eq!(notice("linger.ms"), None);
        let told = |name: &str| notice(name).unwrap_or_default();
        assert_eq!(told("linger.m"), "is not a producer setting and has no effect; did you mean linger.ms?");
        assert_eq!(told("no.such.key"), "is not a producer setting and has no effect");
        for key in ["interceptor.classes", "ssl.provider"] {
            assert_eq!(told(key), "has no effect on this producer");
        }
        let misspelt = "has no effect on this producer; did you mean ssl.truststore.location?";
        assert_eq!(told("ssl.truststore.locaton"), misspelt);
    }

    #[test]
    fn the_level_is_that_of_the_codec_in_use() {
        let config =
            from(&[("compression.gzip.level", "9"), ("compression.type", "zstd"), ("compression.zstd.level", "5")]);
        assert_eq!(config.unwrap().compression_level, Some(5));
    }
}
