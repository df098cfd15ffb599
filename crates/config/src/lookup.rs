//! Looks up the value of a key: in the topic, the dynamic settings, the broker's properties, and the defaults.
//!
//! The result is a list of values, called a chain. The first value is in force. The chain is never empty if the key or
//! one of its synonyms has a default. All values have passed [`Key::check`] before.

use super::broker_keys::broker_key;
use super::dynamic::BrokerValues;
use super::key::{Key, Source};
use super::reader::ConfigReader;

/// A value that is set for a key or for one of its synonyms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigValue {
    /// The key for which the value is set: the requested key, or one of its synonyms.
    pub name: &'static str,
    pub value: String,
    pub source: Source,
    unit_ms: i64,
}

impl ConfigValue {
    fn new(key: &'static Key, value: &str, source: Source) -> Self {
        Self { name: key.name, value: value.to_owned(), source, unit_ms: key.unit_ms }
    }

    /// Converts the value to milliseconds if its key counts minutes or hours. Returns any other value unchanged.
    pub fn in_base_unit(&self) -> String {
        match self.value.parse::<i64>() {
            Ok(count) if self.unit_ms != 1 && count >= 0 => count.saturating_mul(self.unit_ms).to_string(),
            _ => self.value.clone(),
        }
    }
}

/// Returns the values of a broker key and its synonyms: first those that are set, by source, then the default.
pub(super) fn broker_chain(key: &'static Key, broker: BrokerValues<'_>) -> Vec<ConfigValue> {
    let rows: Vec<&'static Key> = std::iter::once(key).chain(named(key.synonyms)).collect();
    chain(&rows, broker)
}

/// Returns the values of a key of a topic, group or subscription. The resource's own value comes first, and then the
/// values of the broker keys that are the key's synonyms. If the broker's value applies only at the creation of a
/// topic, the key's own default comes instead.
pub(super) fn resource_chain(
    key: &'static Key,
    set: Option<(&str, Source)>,
    broker: BrokerValues<'_>,
) -> Vec<ConfigValue> {
    chain_beside(key, set, if key.at_creation { &[] } else { key.synonyms }, broker)
}

/// Returns the values of a key like [`resource_chain`], but uses the broker keys in `beside` instead of the key's
/// synonyms.
pub(super) fn chain_beside(
    key: &'static Key,
    set: Option<(&str, Source)>,
    beside: &'static [&'static str],
    broker: BrokerValues<'_>,
) -> Vec<ConfigValue> {
    let mut rows: Vec<&'static Key> = named(beside).collect();
    if rows.is_empty() {
        rows.push(key);
    }
    let own = set.map(|(value, source)| ConfigValue::new(key, value, source));
    own.into_iter().chain(chain(&rows, broker)).collect()
}

fn named(names: &'static [&'static str]) -> impl Iterator<Item = &'static Key> {
    names.iter().map(|name| broker_key(name).expect("a synonym is a row of the broker's table"))
}

fn chain(rows: &[&'static Key], broker: BrokerValues<'_>) -> Vec<ConfigValue> {
    let set_in = |layer: Source| {
        rows.iter().filter_map(move |key| Some(ConfigValue::new(key, broker.get(layer, key.name)?, layer)))
    };
    let default = rows.iter().find_map(|key| Some(ConfigValue::new(key, key.default?, Source::Default)));
    BrokerValues::LAYERS.into_iter().flat_map(set_in).chain(default).collect()
}

/// Returns a reader of the values that are in force on the broker.
pub(super) fn reader(values: BrokerValues<'_>) -> ConfigReader<impl Fn(&str) -> Option<String> + '_> {
    ConfigReader::new(move |name| Some(broker_chain(broker_key(name)?, values).first()?.in_base_unit()))
}
