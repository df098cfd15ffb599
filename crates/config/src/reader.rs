//! Reads typed values by the names of their keys.
//!
//! A function returns the text of each key, so this module does not depend on the source of the values. Every value has
//! passed [`Key::check`](super::Key::check) before. If a value cannot be parsed, that is a bug, and the reader panics.

use std::cell::RefCell;
use std::collections::BTreeSet;

/// Reads typed values by name. Remembers the names, so that a test can find keys that are never read.
pub(super) struct ConfigReader<F> {
    value_of: F,
    requested: RefCell<BTreeSet<&'static str>>,
}

impl<F: Fn(&str) -> Option<String>> ConfigReader<F> {
    pub fn new(value_of: F) -> Self {
        Self { value_of, requested: RefCell::default() }
    }

    /// Returns the text of a key; None if the key is unset and has no default.
    pub fn text(&self, name: &'static str) -> Option<String> {
        self.requested.borrow_mut().insert(name);
        (self.value_of)(name)
    }

    pub fn boolean(&self, name: &'static str) -> bool {
        self.text(name).is_some_and(|value| value == "true")
    }

    /// Returns a number in the width that the caller needs. The range in the table ensures that the number fits.
    pub fn number<N: TryFrom<i64>>(&self, name: &'static str) -> N {
        let value = self.text(name).and_then(|value| value.parse::<i64>().ok());
        value.and_then(|n| N::try_from(n).ok()).unwrap_or_else(|| panic!("{name}: the table has a checked number"))
    }

    /// Returns a number with a fraction.
    pub fn double(&self, name: &'static str) -> f64 {
        let value = self.text(name).and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("{name}: the table has a checked number"))
    }

    /// Returns a number, or None if it is -1.
    pub fn unless_minus_one<N: TryFrom<i64>>(&self, name: &'static str) -> Option<N> {
        match self.number::<i64>(name) {
            -1 => None,
            _ => Some(self.number(name)),
        }
    }

    /// Returns a number, or None if it is the largest 64-bit number, which means "never" in Kafka.
    pub fn unless_max<N: TryFrom<i64>>(&self, name: &'static str) -> Option<N> {
        match self.number::<i64>(name) {
            i64::MAX => None,
            _ => Some(self.number(name)),
        }
    }

    #[cfg(test)]
    pub fn requested(&self) -> BTreeSet<&'static str> {
        self.requested.borrow().clone()
    }
}
