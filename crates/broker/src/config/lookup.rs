//! Where a key's value comes from: the topic, what was set while the broker ran, its properties, or a default.
//!
//! Not checking: it reads values that passed [`Key::check`], and a value that did not is a broken
//! invariant. The first value of a chain is the one in force; every chain of a key with a default, its
//! own or a synonym's, has at least one.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::broker_keys::broker_key;
use super::dynamic::BrokerValues;
use super::key::{Key, Source};

/// One value that bears on a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The key that carries the value: the one asked for, or a synonym.
    pub name: &'static str,
    pub value: String,
    pub source: Source,
    unit_ms: i64,
}

impl Found {
    fn new(key: &'static Key, value: &str, source: Source) -> Self {
        Self { name: key.name, value: value.to_owned(), source, unit_ms: key.unit_ms }
    }

    /// The value in milliseconds where its key counts minutes or hours; else as it is.
    pub fn in_base_unit(&self) -> String {
        match self.value.parse::<i64>() {
            Ok(count) if self.unit_ms != 1 && count >= 0 => count.saturating_mul(self.unit_ms).to_string(),
            _ => self.value.clone(),
        }
    }
}

/// The values of a broker key and its synonyms: those set, by who set them, then one default.
pub(super) fn broker_chain(key: &'static Key, broker: BrokerValues<'_>) -> Vec<Found> {
    let rows: Vec<&'static Key> = std::iter::once(key).chain(synonyms(key)).collect();
    chain(&rows, broker)
}

/// The values of a key of a topic, group or the like: its own with who set it, then those of the broker's keys beside it.
pub(super) fn resource_chain(key: &'static Key, set: Option<(&str, Source)>, broker: BrokerValues<'_>) -> Vec<Found> {
    let mut rows: Vec<&'static Key> = synonyms(key).collect();
    if rows.is_empty() {
        rows.push(key);
    }
    let own = set.map(|(value, source)| Found::new(key, value, source));
    own.into_iter().chain(chain(&rows, broker)).collect()
}

fn synonyms(key: &'static Key) -> impl Iterator<Item = &'static Key> {
    key.synonyms.iter().map(|name| broker_key(name).expect("a synonym is a row of the broker's table"))
}

fn chain(rows: &[&'static Key], broker: BrokerValues<'_>) -> Vec<Found> {
    let set_in =
        |layer: Source| rows.iter().filter_map(move |key| Some(Found::new(key, broker.get(layer, key.name)?, layer)));
    let default = rows.iter().find_map(|key| Some(Found::new(key, key.default?, Source::Default)));
    BrokerValues::LAYERS.into_iter().flat_map(set_in).chain(default).collect()
}

/// Reads typed values by name, and remembers which names were asked for.
pub(super) struct Reader<F> {
    value_of: F,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    pub fn new(value_of: F) -> Self {
        Self { value_of, asked: RefCell::default() }
    }

    /// `None` when nobody set the key and it has no default.
    pub fn text(&self, name: &'static str) -> Option<String> {
        self.asked.borrow_mut().insert(name);
        (self.value_of)(name)
    }

    pub fn boolean(&self, name: &'static str) -> bool {
        self.text(name).is_some_and(|value| value == "true")
    }

    /// A number of whatever width the caller needs; the table's range keeps it inside.
    pub fn number<N: TryFrom<i64>>(&self, name: &'static str) -> N {
        let value = self.text(name).and_then(|value| value.parse::<i64>().ok());
        value.and_then(|n| N::try_from(n).ok()).unwrap_or_else(|| panic!("{name}: the table has a checked number"))
    }

    /// A number with a fraction.
    pub fn double(&self, name: &'static str) -> f64 {
        let value = self.text(name).and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("{name}: the table has a checked number"))
    }

    /// `None` for -1.
    pub fn unless_minus_one<N: TryFrom<i64>>(&self, name: &'static str) -> Option<N> {
        match self.number::<i64>(name) {
            -1 => None,
            _ => Some(self.number(name)),
        }
    }

    /// `None` for the largest 64-bit number, which Kafka uses for "never".
    pub fn unless_max<N: TryFrom<i64>>(&self, name: &'static str) -> Option<N> {
        match self.number::<i64>(name) {
            i64::MAX => None,
            _ => Some(self.number(name)),
        }
    }

    #[cfg(test)]
    pub fn asked(&self) -> BTreeSet<&'static str> {
        self.asked.borrow().clone()
    }
}
