//! Dynamic settings (KIP-226), which clients set for one broker or for all brokers of the cluster.
//!
//! The control plane stores these values. After each change, the broker computes the settings of topics, groups and the
//! log cleaner again, and its own settings in `live`. It reads every other setting only once, at its start.
//!
//! Invariant: every value here has passed [`check_dynamic`].

use std::collections::BTreeMap;

use super::broker_keys::{broker_key, meant_broker_key};
use super::error::ConfigError;
use super::key::{Effect, Key, Source};
use super::properties::Properties;

/// Values that were set while the broker ran, by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DynamicConfig {
    /// Values for this broker alone. They override those in `cluster`.
    pub broker: BTreeMap<String, String>,
    /// Values for every broker.
    pub cluster: BTreeMap<String, String>,
}

/// Empty dynamic settings, for a broker that has none.
pub(super) static NOTHING: DynamicConfig = DynamicConfig { broker: BTreeMap::new(), cluster: BTreeMap::new() };

/// All values that are set for a broker: the static ones and the dynamic ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct BrokerValues<'a> {
    /// The checked values of the file and the command line.
    pub properties: &'a Properties,
    pub dynamic: &'a DynamicConfig,
}

impl<'a> BrokerValues<'a> {
    /// The sources of values, beginning with the one that overrides the others.
    pub const LAYERS: [Source; 3] = [Source::DynamicBroker, Source::DynamicDefaultBroker, Source::StaticBroker];

    /// Returns the values with which a broker starts, before it has loaded any dynamic values.
    pub fn at_start(properties: &'a Properties) -> Self {
        Self { properties, dynamic: &NOTHING }
    }

    /// Returns the value that a single source sets for a key.
    pub fn get(&self, layer: Source, name: &str) -> Option<&'a str> {
        match layer {
            Source::DynamicBroker => self.dynamic.broker.get(name).map(String::as_str),
            Source::DynamicDefaultBroker => self.dynamic.cluster.get(name).map(String::as_str),
            _ => self.properties.get(name),
        }
    }
}

const OF_A_LISTENER: &str = "cannot be changed while the broker runs: a listener's settings are read at start, and its key, certificate and \
                            truststore files again when they change";

/// Returns the row of a key that may be set while the broker runs. Fails with the reason for any other key.
pub(super) fn dynamic_key(name: &str) -> Result<&'static Key, ConfigError> {
    let refused = |why: &str| Err(ConfigError::of_key(name, why));
    match broker_key(name) {
        Some(key) if key.dynamic => Ok(key),
        Some(Key { effect: Effect::Nothing(why) | Effect::Refused(why), .. }) => refused(why),
        Some(_) => {
            refused("cannot be changed while the broker runs; set it in the broker's properties and start it again")
        }
        None if name.starts_with("listener.name.") => refused(OF_A_LISTENER),
        None => refused(&format!("is not a key of this broker{}", meant_broker_key(name))),
    }
}

/// Checks every value, and returns them in canonical form.
pub fn check_dynamic(values: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ConfigError> {
    values.iter().map(|(name, value)| Ok((name.clone(), dynamic_key(name)?.check_change(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, value: &str) -> String {
        check_dynamic(&BTreeMap::from([(name.to_owned(), value.to_owned())])).expect_err("refused").to_string()
    }

    #[test]
    fn defaults_of_topics_are_dynamic_and_startup_keys_are_not() {
        for name in ["max.idempotence.batches.to.retain", "log.retention.ms", "message.max.bytes", "log.roll.ms"] {
            assert!(dynamic_key(name).is_ok(), "{name}");
        }
        for name in ["node.id", "listeners", "log.retention.hours", "num.partitions", "fullbore.produce.version.max"] {
            assert!(refusal(name, "1").starts_with(&format!("{name}: cannot be changed while the broker runs")));
        }
    }

    #[test]
    fn a_refused_change_has_its_reason() {
        for (name, why) in [
            ("num.io.threads", "has no effect: threads follow the number of cores"),
            ("authorizer.class.name", "SASL and access control are not offered yet"),
            (
                "listener.name.in.ssl.keystore.location",
                "cannot be changed while the broker runs: a listener's settings",
            ),
            ("ssl.keystore.location", "cannot be changed while the broker runs"),
        ] {
            assert!(refusal(name, "x").starts_with(&format!("{name}: {why}")), "{}", refusal(name, "x"));
        }
    }

    #[test]
    fn values_are_checked_as_at_start() {
        assert_eq!(
            refusal("max.idempotence.batches.to.retain", "4"),
            "max.idempotence.batches.to.retain=4: must be between 5 and 10000"
        );
        assert_eq!(refusal("no.such.key", "4"), "no.such.key: is not a key of this broker");
        let values = BTreeMap::from([("log.retention.ms".to_owned(), " 7 ".to_owned())]);
        assert_eq!(check_dynamic(&values).expect("valid")["log.retention.ms"], "7");
    }

    #[test]
    fn tuning_of_a_missing_login_may_be_set_as_with_kafka() {
        let values = BTreeMap::from([("sasl.kerberos.min.time.before.relogin".to_owned(), "58000".to_owned())]);
        assert_eq!(check_dynamic(&values).expect("valid"), values);
        assert!(refusal("sasl.kerberos.min.time.before.relogin", "x").contains("must be"));
        assert!(refusal("sasl.enabled.mechanisms", "PLAIN").contains("not offered yet"));
    }
}
