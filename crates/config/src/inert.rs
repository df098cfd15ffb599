//! Warnings and refusals for keys that have no effect here. The broker starts with an ordinary `server.properties` of
//! Kafka, and warns about each setting of this file that it does not use.
//!
//! The keys of Kafka 4.3 are in the table `kafka_keys`. This module has prefixes of keys that are not part of Kafka
//! 4.3. A key that is in no table and has none of these prefixes is reported as unknown. The broker refuses a key if a
//! user who sets it would otherwise believe the broker to be safer than it is.

use super::broker_keys::{broker_keys, meant_broker_key};
use super::error::{ConfigError, Warning};
use super::key::{Effect, Key};
use super::properties::Properties;
use super::topic_keys::topic_key;

use Effect::{Nothing, Refused};

const METADATA: &str = "has no effect: this broker keeps its metadata itself, without controllers or ZooKeeper";
const REMOVED: &str = "has no effect: Kafka 4 removed it too";
const SECURITY: &str = "SASL and access control are not offered yet; remove this key to run without them";

/// Prefixes of keys, each with the effect of all keys that begin with it. The first prefix that matches counts.
const FATES: &[(&str, Effect)] = &[
    ("zookeeper.", Nothing(METADATA)),
    ("broker.id.generation.enable", Nothing(METADATA)),
    ("reserved.broker.max.id", Nothing(METADATA)),
    ("control.plane.listener.name", Nothing(METADATA)),
    ("log.message.format.version", Nothing(REMOVED)),
    ("log.message.downconversion.enable", Nothing(REMOVED)),
    ("inter.broker.protocol.version", Nothing(REMOVED)),
    (
        "log.message.timestamp.difference.max.ms",
        Refused("Kafka 4 removed it; use log.message.timestamp.before.max.ms and .after.max.ms"),
    ),
    ("auto.include.jmx.reporter", Nothing("has no effect: metrics are at fullbore.admin.listener")),
    (
        "config.providers.",
        Refused("values are taken literally, because config providers are not supported; write out the values"),
    ),
    ("confluent.", Nothing("has no effect: not a key of Apache Kafka")),
    ("super.users", Refused(SECURITY)),
    ("allow.everyone.if.no.acl.found", Refused(SECURITY)),
    ("ssl.", Refused("is not a setting of TLS here or in Kafka")),
    ("sasl.", Refused(SECURITY)),
    ("listener.name.", Refused("only ssl.* can be set for a single listener; set others for all")),
];

/// Keys that have no effect here, but are set in the configuration files that Kafka 4 ships.
const STOCK: &[(&str, &str)] = &[
    ("process.roles", "broker,controller"),
    ("process.roles", "broker"),
    ("controller.quorum.bootstrap.servers", "localhost:9093"),
    ("num.network.threads", "3"),
    ("num.io.threads", "8"),
    ("share.coordinator.state.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.min.isr", "1"),
];

/// Replaces all warnings about unchanged values of Kafka's shipped configuration files by a single warning at the end
/// of the list.
pub(super) fn gather_stock(warnings: Vec<Warning>, typed: &Properties) -> Vec<Warning> {
    let is_stock = |warning: &Warning| {
        let value = typed.get(&warning.key).map(str::trim);
        STOCK.iter().any(|(key, stock)| *key == warning.key && value == Some(stock))
    };
    let (stock, mut rest): (Vec<_>, Vec<_>) = warnings.into_iter().partition(is_stock);
    if !stock.is_empty() {
        let keys: Vec<_> = stock.into_iter().map(|warning| warning.key).collect();
        rest.push(Warning { key: keys.join(", "), message: "as Kafka ships them; without effect here".to_owned() });
    }
    rest
}

/// Returns a warning if a known key has no effect, or an error if the broker refuses this value of the key. Returns
/// `Ok(None)` if the broker uses the value, or if it refuses only other values of the key.
pub(super) fn judge_known(key: &Key, value: &str) -> Result<Option<Warning>, ConfigError> {
    match key.effect {
        Effect::Honoured => Ok(None),
        Nothing(why) => Ok(Some(Warning { key: key.name.to_owned(), message: why.to_owned() })),
        Refused(_) => key.check_change(value).map(|_| None),
    }
}

/// Looks up the prefix of a key that is in no table. Returns a warning, or an error if the broker refuses such keys.
pub(super) fn judge_unknown(key: &str, value: &str) -> Result<Warning, ConfigError> {
    let warning = |message: String| Ok(Warning { key: key.to_owned(), message });
    let meant = meant_broker_key(key);
    match FATES.iter().find(|(start, _)| key.starts_with(start)) {
        // The error omits the value, which may be a secret under a misspelt name.
        Some(("ssl.", Refused(why))) => Err(ConfigError::of_key(key, format!("{why}{meant}"))),
        Some((_, Refused(why))) => Err(ConfigError::of_value(key, value, *why)),
        Some((_, Nothing(why))) => warning((*why).to_owned()),
        // Only Fullbore's own keys have this prefix, so an unknown one is a typing error.
        _ if key.starts_with("fullbore.") => {
            let message = format!("is not a key of this broker (docs/configuration.md lists all keys){meant}");
            Err(ConfigError::of_value(key, value, message))
        }
        _ => match topic_key(key).and_then(|topic| topic.synonyms.first()) {
            Some(broker) => {
                warning(format!("has no effect here, because it is a key of topics; the broker's key is {broker}"))
            }
            None => warning(format!("is not a key of this broker and has no effect{meant}")),
        },
    }
}

/// Returns the keys and prefixes without effect, for the documentation. The flag is true if the broker refuses the key,
/// and false if it only warns. The text is the reason.
pub(super) fn rows() -> impl Iterator<Item = (String, bool, &'static str)> {
    let known = broker_keys().map(|key| (key.name.to_owned(), key.effect));
    let starts = FATES
        .iter()
        .map(|(start, effect)| (format!("{start}{}", if start.ends_with('.') { "*" } else { "" }), *effect));
    known.chain(starts).filter_map(|(name, effect)| match effect {
        Effect::Honoured => None,
        Nothing(why) => Some((name, false, why.strip_prefix("has no effect: ").unwrap_or(why))),
        Refused(why) => Some((name, true, why)),
    })
}
