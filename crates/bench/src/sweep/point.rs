//! A point of a sweep, with the resolved settings of the producer, the topic, the workload and the link.
//!
//! The module `run` measures points. Invariant: a later value of a setting replaces an earlier one, so that an axis
//! overrides `--set`, and `--set` overrides a file.

use super::setting::{self, Setting};
use fullbore_producer::{ConfigError, ProducerConfig};
use std::time::Duration;

/// The link between the producer and the brokers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkSpec {
    /// The round-trip time. Zero adds no delay.
    pub rtt: Duration,
    /// The bytes per second of each direction, or `None` for no limit.
    pub bytes_per_sec: Option<u64>,
}

impl LinkSpec {
    /// Returns true if there is no link between producer and brokers.
    pub fn is_direct(&self) -> bool {
        *self == LinkSpec::default()
    }
}

/// The settings of one point.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The producer settings, by Kafka's names.
    pub properties: Vec<(String, String)>,
    /// The topic configurations, by Kafka's names.
    pub topic: Vec<(String, String)>,
    /// The number of partitions of the topic. `None` uses the broker's default.
    pub partitions: Option<i32>,
    /// The number of replicas of each partition. `None` uses the broker's default.
    pub replication_factor: Option<i16>,
    /// The size of each value, in bytes.
    pub record_size: usize,
    /// The number of records after which a measurement ends. `None` if it ends after a time.
    pub records: Option<u64>,
    /// How many records to send per second. Below zero there is no limit.
    pub throughput: f64,
    /// The link between producer and brokers.
    pub link: LinkSpec,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            properties: Vec::new(),
            topic: Vec::new(),
            partitions: Some(1),
            replication_factor: None,
            record_size: 1000,
            records: None,
            throughput: -1.0,
            link: LinkSpec::default(),
        }
    }
}

impl Setup {
    /// Sets one value.
    ///
    /// # Errors
    /// Returns `name=value: ` with the allowed values if the value is not allowed. Producer and topic settings are not
    /// checked here.
    pub fn set(&mut self, setting: &Setting, value: &str) -> Result<(), String> {
        let done = match setting {
            Setting::Producer(key) => {
                put(&mut self.properties, key, value);
                Ok(())
            }
            Setting::Topic(config) => {
                put(&mut self.topic, config, value);
                Ok(())
            }
            Setting::Partitions => setting::partitions(value).map(|count| self.partitions = Some(count)),
            Setting::ReplicationFactor => setting::replicas(value).map(|count| self.replication_factor = Some(count)),
            Setting::RecordSize => setting::record_size(value).map(|size| self.record_size = size),
            Setting::Records => setting::whole(value, 1, u64::MAX).map(|records| self.records = Some(records)),
            Setting::Throughput => setting::throughput(value).map(|rate| self.throughput = rate),
            Setting::Rtt => setting::rtt(value).map(|rtt| self.link.rtt = rtt),
            Setting::Bandwidth => setting::bandwidth(value).map(|bytes| self.link.bytes_per_sec = bytes),
        };
        done.map_err(|allowed| format!("{}={value}: {allowed}", setting.name()))
    }

    /// Checks a value without regard to other settings.
    ///
    /// # Errors
    /// Returns an error message if [`Setup::set`] or the producer refuses the value.
    pub fn check(setting: &Setting, value: &str) -> Result<(), String> {
        if let Setting::Producer(key) = setting {
            let pairs = [("bootstrap.servers", "localhost:9092"), (key.as_str(), value)];
            return match ProducerConfig::from_properties(pairs) {
                Err(refused @ ConfigError::Value { .. }) => Err(refused.to_string()),
                // A contradiction to a default is no error here, because the point may set that other setting as well.
                _ => Ok(()),
            };
        }
        Setup::default().set(setting, value)
    }

    /// Returns the producer's settings for this point.
    ///
    /// # Errors
    /// Fails at the first value that is not allowed, or at the first contradiction between two settings.
    pub fn producer(&self, bootstrap_servers: &str) -> Result<ProducerConfig, ConfigError> {
        let servers = [("bootstrap.servers", bootstrap_servers)];
        let pairs = self.properties.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        ProducerConfig::from_properties(pairs.chain(servers))
    }
}

fn put(pairs: &mut Vec<(String, String)>, key: &str, value: &str) {
    match pairs.iter_mut().find(|(known, _)| known == key) {
        Some(pair) => pair.1 = value.to_owned(),
        None => pairs.push((key.to_owned(), value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_reaches_its_place_and_the_last_value_counts() {
        let mut setup = Setup::default();
        for (name, value) in [
            ("acks", "1"),
            ("acks", "all"),
            ("linger", "7"),
            ("flush.messages", "1"),
            ("partitions", "9"),
            ("replication-factor", "3"),
            ("record-size", "64"),
            ("records", "10"),
            ("throughput", "1000"),
            ("rtt", "20ms"),
            ("bandwidth", "200mbit"),
        ] {
            setup.set(&Setting::parse(name).expect(name), value).expect(name);
        }
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let expected = Setup {
            properties: vec![pair("acks", "all"), pair("linger.ms", "7")],
            topic: vec![pair("flush.messages", "1")],
            partitions: Some(9),
            replication_factor: Some(3),
            record_size: 64,
            records: Some(10),
            throughput: 1000.0,
            link: LinkSpec { rtt: Duration::from_millis(20), bytes_per_sec: Some(25_000_000) },
        };
        assert_eq!(setup, expected);
        assert_eq!(setup.producer("h:1").expect("valid").linger.as_millis(), 7);
    }

    #[test]
    fn a_bad_value_is_refused_at_once_and_a_contradiction_at_its_point() {
        let acks = Setting::parse("acks").expect("known");
        assert_eq!(Setup::check(&acks, "2"), Err("acks=2: must be all, -1, 1 or 0".to_owned()));
        let idempotence = Setting::parse("enable.idempotence").expect("known");
        let mut setup = Setup::default();
        for (setting, value) in [(&acks, "1"), (&idempotence, "true")] {
            Setup::check(setting, value).expect("allowed by itself");
            setup.set(setting, value).expect("taken");
        }
        let refusal = setup.producer("h:1").expect_err("contradiction").to_string();
        assert!(refusal.contains("enable.idempotence=true contradicts acks=1"), "{refusal}");
    }
}
