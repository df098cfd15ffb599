//! The keys of replication between brokers, and the settings read from them.
//!
//! Invariant: the listener for other brokers is one of the broker's own listeners.

use super::error::ConfigError;
use super::key::{Allowed, Key, Type};
use super::listener::Listener;
use super::reader::ConfigReader;
use std::time::Duration;

/// Rows of the table of broker keys: replication.
#[rustfmt::skip]
pub(super) const REPLICATION_KEYS: &[Key] = &[
    Key::new("inter.broker.listener.name", Type::String, None, "Listener over which brokers reach each other; all brokers of a cluster name the same one. If unset, the listener named PLAINTEXT, or the first listener if none has that name. Must be left out if security.inter.broker.protocol is set.")
        .differs("the first listener where there is no PLAINTEXT; TLS between brokers uses the ssl.* settings of this listener for both ends"),
    Key::new("security.inter.broker.protocol", Type::String, None, "Protocol of the listener between brokers: the broker uses the listener with the name PLAINTEXT or SSL. Must be left out if inter.broker.listener.name is set.")
        .allow(Allowed::OneOf(&["PLAINTEXT", "SSL"]))
        .differs("unset by default; SASL is not offered yet"),
    Key::new("ssl.endpoint.identification.algorithm", Type::String, Some("https"), "With https, this broker connects to another broker only if the certificate has the other broker's host name; if empty, host names are not checked.")
        .allow(Allowed::OneOf(&["https", ""]))
        .any_case()
        .differs("between brokers only; https, or empty"),
    Key::int("num.replica.fetchers", Some("1"), 1, "Connections to each other broker, to fetch the partitions that the other broker leads. Partitions that are not in sync are fetched over additional connections.")
        .allow(Allowed::Between(1, 64))
        .differs("at most 64, and read at the start"),
    Key::int("fullbore.replica.fetches.max", Some("8"), 1, "Fetches that a follower keeps in flight to a leader while records arrive, so that a record does not wait for an earlier round trip.")
        .allow(Allowed::Between(1, 256))
        .differs("not a Kafka key: Kafka has one in flight"),
    Key::int("replica.fetch.max.bytes", Some("1048576"), 0, "Bytes of one partition in one response to a follower; a first batch larger than this is still sent."),
    Key::int("replica.fetch.response.max.bytes", Some("10485760"), 0, "Bytes of all partitions in one response to a follower."),
    Key::int("replica.fetch.wait.max.ms", Some("500"), 1, "Longest time that a follower's fetch waits at the leader for something new, in milliseconds."),
    Key::int("replica.fetch.backoff.ms", Some("1000"), 0, "Longest pause before a partition or connection that has failed is retried, in milliseconds.")
        .differs("the first pause is 20 ms, and each later one is twice as long"),
    Key::int("replica.socket.timeout.ms", Some("30000"), 1, "Time that a follower waits for a response before it closes the connection, in milliseconds.")
        .differs("at least twice replica.fetch.wait.max.ms"),
    Key::boolean("auto.leader.rebalance.enable", "true", "Whether a broker of a cluster takes back the leadership of a partition of which it has the first replica, once this replica is in sync."),
    Key::long("leader.imbalance.check.interval.seconds", Some("300"), 1, "Time between two checks for partitions to take back, in seconds."),
];

/// Settings that this broker uses to replicate partitions, as a leader and as a follower.
#[derive(Debug, Clone)]
pub struct ReplicationConfig {
    /// Index in `listeners` of the listener that brokers use among themselves.
    pub listener: usize,
    /// True if the certificates of other brokers must match their host names.
    pub compares_names: bool,
    pub fetchers: u32,
    /// Maximum number of fetches in flight to one leader.
    pub fetches_max: usize,
    pub fetch_max_bytes: i32,
    pub response_max_bytes: i32,
    pub wait_max_ms: i32,
    pub backoff_max_ms: u64,
    pub socket_timeout_ms: u64,
    /// How long a follower may be behind its leader before it leaves the in-sync replicas (`replica.lag.time.max.ms`).
    pub lag_time_max: Duration,
    /// How long the broker waits between two searches for partitions whose preferred leader it is but that another
    /// broker leads. With `None`, it never searches.
    pub balance_interval: Option<Duration>,
}

impl ReplicationConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(
        values: &ConfigReader<F>,
        listeners: &[Listener],
    ) -> Result<ReplicationConfig, ConfigError> {
        Ok(ReplicationConfig {
            listener: listener(values, listeners)?,
            compares_names: values.text("ssl.endpoint.identification.algorithm").is_some_and(|name| !name.is_empty()),
            fetchers: values.number("num.replica.fetchers"),
            fetches_max: values.number("fullbore.replica.fetches.max"),
            fetch_max_bytes: values.number("replica.fetch.max.bytes"),
            response_max_bytes: values.number("replica.fetch.response.max.bytes"),
            wait_max_ms: values.number("replica.fetch.wait.max.ms"),
            backoff_max_ms: values.number("replica.fetch.backoff.ms"),
            socket_timeout_ms: values.number("replica.socket.timeout.ms"),
            lag_time_max: Duration::from_millis(values.number("replica.lag.time.max.ms")),
            balance_interval: values
                .boolean("auto.leader.rebalance.enable")
                .then(|| Duration::from_secs(values.number("leader.imbalance.check.interval.seconds"))),
        })
    }
}

/// Returns the index of the listener that brokers use among themselves.
fn listener<F: Fn(&str) -> Option<String>>(
    values: &ConfigReader<F>,
    listeners: &[Listener],
) -> Result<usize, ConfigError> {
    let (by_name, by_protocol) = ("inter.broker.listener.name", "security.inter.broker.protocol");
    let typed = |key| values.text(key).filter(|value| !value.is_empty());
    let (key, name) = match (typed(by_name), typed(by_protocol)) {
        (Some(name), Some(_)) => {
            let message = format!("must be left out because {by_protocol} is set, or leave {by_protocol} out");
            return Err(ConfigError::of_value(by_name, &name, message));
        }
        (Some(name), None) => (by_name, name),
        (None, Some(protocol)) => (by_protocol, protocol),
        (None, None) => {
            return Ok(listeners.iter().position(|listener| listener.name == "PLAINTEXT").unwrap_or(0));
        }
    };
    let place = listeners.iter().position(|listener| listener.name.eq_ignore_ascii_case(&name));
    place.ok_or_else(|| ConfigError::of_value(key, &name, "must be the name of a listener in listeners"))
}

#[cfg(test)]
mod tests {
    use super::super::{BrokerConfig, Properties};

    fn parse(text: &str) -> Result<usize, String> {
        let listeners =
            "listeners=OUT://h:1,PLAINTEXT://h:2,IN://h:3\nlistener.security.protocol.map=OUT:PLAINTEXT,IN:PLAINTEXT\n";
        let typed = Properties::parse(&format!("{listeners}{text}")).expect("properties");
        let config = BrokerConfig::from_properties(&typed).map_err(|error| error.to_string());
        config.map(|(config, _)| config.replication.listener)
    }

    #[test]
    fn the_listener_between_brokers() {
        assert_eq!(parse(""), Ok(1));
        assert_eq!(parse("inter.broker.listener.name=in"), Ok(2));
        assert_eq!(parse("security.inter.broker.protocol=PLAINTEXT"), Ok(1));
        for (text, expected) in [
            ("inter.broker.listener.name=OTHER", "must be the name of a listener in listeners"),
            ("security.inter.broker.protocol=SSL", "must be the name of a listener in listeners"),
            ("inter.broker.listener.name=IN\nsecurity.inter.broker.protocol=PLAINTEXT", "must be left out because"),
        ] {
            assert!(parse(text).expect_err(text).contains(expected), "{text}");
        }
    }
}
