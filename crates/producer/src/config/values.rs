//! The values of the settings, Kafka's defaults, and the check for contradictions.

use fullbore_client::{ClientConfig, ConfigError};
use fullbore_wire::batch::Compression;
use fullbore_wire::{has_port_too_large, split_host_port};
use std::time::Duration;

/// How many Produce requests a connection may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// As many requests as the estimate of the path's capacity allows (`pipe`).
    Auto,
    /// This fixed number of requests.
    Requests(usize),
}

/// The replicas that must have a batch before the broker acknowledges the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// No replica. The broker sends no response, so a lost batch goes unnoticed.
    None = 0,
    /// The leader alone.
    Leader = 1,
    /// Every in-sync replica (ISR).
    All = -1,
}

/// The settings of a producer. All fields are public, so [`ProducerConfig::check`] runs when the producer is made.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// The brokers to contact first, as host:port (bootstrap.servers).
    pub bootstrap_servers: Vec<String>,
    /// The settings of the connections.
    pub client: ClientConfig,
    /// acks.
    pub acks: Acks,
    /// enable.idempotence. `None` turns idempotence on, unless another setting contradicts it.
    pub enable_idempotence: Option<bool>,
    /// Maximum number of Produce requests in flight per connection (max.in.flight.requests.per.connection).
    pub max_in_flight: InFlight,
    /// The number of connections to each broker, or `None` to choose it automatically (connections.per.broker, a
    /// setting of Fullbore).
    pub connections_per_broker: Option<usize>,
    /// The size in bytes from which a batch is sent without lingering (batch.size).
    pub batch_size: usize,
    /// How long a smaller batch waits for more records (linger.ms).
    pub linger: Duration,
    /// The memory in bytes for records without an acknowledgement (buffer.memory).
    pub buffer_memory: usize,
    /// How long `send` waits for memory or metadata (max.block.ms).
    pub max_block: Duration,
    /// The maximum size in bytes of a request, and therefore also of a batch and of a record (max.request.size).
    pub max_request_size: usize,
    /// Maximum time from `send` to the result of a record (delivery.timeout.ms).
    pub delivery_timeout: Duration,
    /// The maximum number of attempts after the first one (retries).
    pub retries: u32,
    /// The pause before the first retry (retry.backoff.ms).
    pub retry_backoff: Duration,
    /// The maximum pause before a retry (retry.backoff.max.ms).
    pub retry_backoff_max: Duration,
    /// compression.type.
    pub compression: Compression,
    /// The level of the codec in use (compression.{gzip,lz4,zstd}.level), or `None` for the codec's default level.
    pub compression_level: Option<i32>,
    /// If true, records with keys are spread like records without keys (partitioner.ignore.keys).
    pub partitioner_ignore_keys: bool,
    /// The age at which the producer fetches metadata again (metadata.max.age.ms).
    pub metadata_max_age: Duration,
    /// transactional.id. If it is set, every record belongs to a transaction.
    pub transactional_id: Option<String>,
    /// How long a transaction may stay open before the coordinator aborts it (transaction.timeout.ms).
    pub transaction_timeout: Duration,
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
            transactional_id: None,
            transaction_timeout: Duration::from_secs(60),
        }
    }
}

impl ProducerConfig {
    /// Returns true if batches carry a producer id and sequence numbers.
    pub fn is_idempotent(&self) -> bool {
        let is_possible = self.acks == Acks::All && self.retries > 0;
        self.enable_idempotence.unwrap_or(is_possible || self.transactional_id.is_some())
    }

    /// Checks that no two settings contradict each other.
    ///
    /// # Errors
    /// Returns [`ConfigError`] with the first two settings that contradict each other.
    pub fn check(&self) -> Result<(), ConfigError> {
        let conflict = |first: String, second: String, why| Err(ConfigError::Conflict { first, second, why });
        self.client.security.check()?;
        if self.bootstrap_servers.is_empty() {
            return Err(ConfigError::Missing("bootstrap.servers"));
        }
        let is_address = |server: &str| split_host_port(server).is_some_and(|(host, _)| !host.is_empty());
        if let Some(wrong) = self.bootstrap_servers.iter().find(|server| !is_address(server)) {
            let allowed = match has_port_too_large(wrong) {
                true => "must have a port of at most 65535".to_owned(),
                false => "must be host:port, or [::1]:port, several with commas".to_owned(),
            };
            return Err(ConfigError::Value { key: "bootstrap.servers", value: wrong.clone(), allowed });
        }
        let idempotence = || "enable.idempotence=true".to_owned();
        if self.enable_idempotence == Some(true) && self.acks != Acks::All {
            return conflict(idempotence(), format!("acks={}", self.acks as i16), "idempotence needs acks=all");
        }
        if self.enable_idempotence == Some(true) && self.retries == 0 {
            return conflict(idempotence(), "retries=0".to_owned(), "idempotence needs retries above 0");
        }
        self.check_transactional()?;
        if self.max_in_flight == InFlight::Requests(0) {
            let (key, value) = ("max.in.flight.requests.per.connection", "0".to_owned());
            let allowed = "must be a number from 1, or auto: with 0 nothing could ever be sent".to_owned();
            return Err(ConfigError::Value { key, value, allowed });
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
                "a batch must fit a request; lower batch.size, or raise max.request.size too, at most to the max.message.bytes \
                 of the topics (1048588 unless set)",
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

    /// Checks that a producer with transactions is idempotent.
    fn check_transactional(&self) -> Result<(), ConfigError> {
        let Some(id) = &self.transactional_id else { return Ok(()) };
        let (second, why) = match (self.enable_idempotence, self.acks, self.retries) {
            (Some(false), ..) => ("enable.idempotence=false".to_owned(), "transactions need idempotence"),
            (_, acks @ (Acks::None | Acks::Leader), _) => {
                (format!("acks={}", acks as i16), "idempotence needs acks=all")
            }
            (.., 0) => ("retries=0".to_owned(), "idempotence needs retries above 0"),
            _ => return Ok(()),
        };
        Err(ConfigError::Conflict { first: format!("transactional.id={id}"), second, why })
    }
}
