//! The producer's settings, with Kafka's names and defaults. They are checked as a whole before the producer starts.
//!
//! The table of keys is in `keys`. The parser and the documentation are generated from it. Invariant: the settings of a
//! [`ProducerConfig`] that passed [`ProducerConfig::check`] do not contradict each other.

mod keys;
mod values;

pub use keys::{notice, settings};
pub use values::{Acks, InFlight, ProducerConfig};

use fullbore_client::ConfigError;
use fullbore_client::key;
use keys::KEYS;

impl ProducerConfig {
    /// Returns Kafka's defaults with these bootstrap servers, separated by commas.
    pub fn new(bootstrap_servers: &str) -> Self {
        ProducerConfig { bootstrap_servers: key::list(bootstrap_servers), ..Default::default() }
    }

    /// Reads settings by Kafka's names. An unknown key only causes a warning in the log, as in Kafka's own clients.
    ///
    /// ```
    /// use fullbore_producer::{Acks, ProducerConfig};
    ///
    /// let settings = [("bootstrap.servers", "localhost:9092"), ("acks", "1")];
    /// let config = ProducerConfig::from_properties(settings).expect("valid");
    /// assert_eq!(config.acks, Acks::Leader);
    /// let error = ProducerConfig::from_properties([("acks", "2")]).expect_err("one of three").to_string();
    /// assert!(error.starts_with("acks=2: "), "{error}");
    /// ```
    ///
    /// # Errors
    /// Returns [`ConfigError`] for the first value that is not allowed, with its key and the allowed values.
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
        // Only the level of the codec in use is applied, so the order of the keys does not matter.
        config.compression_level = levels
            .into_iter()
            .find(|(name, _)| *name == format!("compression.{}.level", keys::codec_name(config.compression)))
            .and_then(|(_, value)| value.trim().parse().ok());
        config.check()?;
        Ok(config)
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

    /// Builds the text of docs/producer.md.
    fn page() -> String {
        let mut page = "\
# Producer configuration

Settings of the producer library, `fullbore produce` (`-X`), `perf produce` (`--command-property`, `--command-config`)
and `perf sweep` (`--set`, `--over`). Names and defaults are Kafka's. If a default differs, its line also shows Kafka's
default. Every command that connects to a cluster has the keys of connections (`bootstrap.servers`, `client.id`,
`security.protocol`, `ssl.*`).

Generated from the tables in `crates/producer/src/config/keys.rs` and `crates/client/src/{config,security}.rs`; a test
compares this page with them. To write it again: `UPDATE_DOCS=1 cargo test -p fullbore-producer committed_page`.

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
            (vec![("transactional.id", "t"), ("acks", "1")], ["transactional.id=t", "acks=1"]),
            (vec![("transactional.id", "t"), ("retries", "0")], ["transactional.id=t", "retries=0"]),
            (
                vec![("transactional.id", "t"), ("enable.idempotence", "false")],
                ["transactional.id=t", "enable.idempotence=false"],
            ),
            (vec![("delivery.timeout.ms", "30000")], ["delivery.timeout.ms=30000", "request.timeout.ms=30005"]),
            (vec![("buffer.memory", "1000")], ["buffer.memory=1000", "max.request.size=1048576"]),
            (vec![("batch.size", "2000000")], ["batch.size=2000000", "max.message.bytes of the topics (1048588"]),
        ] {
            let message = from(&pairs).unwrap_err().to_string();
            assert!(both.iter().all(|part| message.contains(part)), "{message}");
        }
    }

    #[test]
    fn value_out_of_range_is_refused_by_name_and_memory_has_no_upper_bound() {
        let message = from(&[("max.in.flight.requests.per.connection", "0")]).unwrap_err().to_string();
        let expected = "max.in.flight.requests.per.connection=0: must be a number from 1 to 2147483647, or auto";
        assert_eq!(message, expected);
        let mut config = ProducerConfig::new("h:1");
        config.max_in_flight = InFlight::Requests(0);
        let message = config.check().unwrap_err().to_string();
        assert!(message.contains("must be a number from 1") && !message.contains("retries"), "{message}");
        for memory in ["8589934592", "9223372036854775807"] {
            let config = from(&[("buffer.memory", memory)]).unwrap();
            assert_eq!(config.buffer_memory.to_string(), memory);
        }
    }

    #[test]
    fn weaker_acks_turn_the_default_idempotence_off() {
        assert!(from(&[]).unwrap().is_idempotent());
        assert!(!from(&[("acks", "1")]).unwrap().is_idempotent());
    }

    #[test]
    fn bad_value_fails_with_the_allowed_values_and_unknown_key_does_not() {
        let message = from(&[("acks", "2")]).unwrap_err().to_string();
        assert_eq!(message, "acks=2: must be all, -1, 1 or 0");
        let message = from(&[("transactional.id", "")]).unwrap_err().to_string();
        assert_eq!(message, "transactional.id=: must not be empty");
        let two_phases = from(&[("transaction.two.phase.commit.enable", "true")]).unwrap_err().to_string();
        assert!(two_phases.contains("does not offer two-phase commit"), "{two_phases}");
        assert!(from(&[("no.such.key", "1")]).is_ok());
    }

    #[test]
    fn notice_of_a_setting_without_effect_differs_from_that_of_an_unknown_one() {
        assert_eq!(notice("linger.ms"), None);
        let reported = |name: &str| notice(name).unwrap_or_default();
        assert_eq!(reported("linger.m"), "is not a producer setting and has no effect; did you mean linger.ms?");
        assert_eq!(reported("no.such.key"), "is not a producer setting and has no effect");
        for key in ["interceptor.classes", "ssl.provider"] {
            assert_eq!(reported(key), "has no effect on this producer");
        }
        let misspelt = "has no effect on this producer; did you mean ssl.truststore.location?";
        assert_eq!(reported("ssl.truststore.locaton"), misspelt);
    }

    #[test]
    fn the_level_is_that_of_the_codec_in_use() {
        let config =
            from(&[("compression.gzip.level", "9"), ("compression.type", "zstd"), ("compression.zstd.level", "5")]);
        assert_eq!(config.unwrap().compression_level, Some(5));
    }
}
