//! The mistakes that a configuration can have.
//!
//! Each mistake is one line with the key, the refused value if there is one, and the reason, so that the user can
//! correct it.

use fullbore_tls::is_secret;
use std::fmt;

/// A mistake in a configuration, shown as `key=value: what is allowed`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The key with the mistake, or the number of the line if no key could be read from it.
    pub key: String,
    /// The value as typed; `None` if the mistake is not in a value.
    pub value: Option<String>,
    /// The allowed values, or the reason of the refusal.
    pub message: String,
}

impl ConfigError {
    /// Creates a mistake that reads `key=value: message`. The value is left out if it is a secret.
    pub fn of_value(key: &str, value: &str, message: impl Into<String>) -> Self {
        let value = (!is_secret(key)).then(|| value.to_owned());
        Self { key: key.into(), value, message: message.into() }
    }

    /// Creates a mistake that reads `key: message`.
    pub fn of_key(key: &str, message: impl Into<String>) -> Self {
        Self { key: key.into(), value: None, message: message.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={}: {}", self.key, value, self.message),
            None => write!(f, "{}: {}", self.key, self.message),
        }
    }
}

/// All mistakes of a configuration, one per line. A line begins with the place where the key was set, like
/// `server.properties:12: ` or `--set `, if the place is known.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Mistakes(Vec<(String, ConfigError)>);

impl Mistakes {
    /// Returns true if there are no mistakes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of mistakes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a mistake about a value that was set at `place`.
    pub fn add(&mut self, place: impl Into<String>, mistake: ConfigError) {
        self.0.push((place.into(), mistake));
    }

    /// Adds the mistakes that another check has found.
    pub fn append(&mut self, mut others: Mistakes) {
        self.0.append(&mut others.0);
    }

    /// Returns the value of a check that succeeded. If the check failed, adds its mistakes and returns None.
    pub(super) fn keep<T>(&mut self, found: Result<T, impl Into<Mistakes>>) -> Option<T> {
        found.map_err(|mistakes| self.append(mistakes.into())).ok()
    }

    /// Adds the mistakes of a second check, which ran without the values that the first check refused. Drops a mistake
    /// about a key that already has one, or whose message contains the name of such a key.
    pub(super) fn append_unrelated(&mut self, mut others: Mistakes) {
        let follows = |other: &ConfigError| {
            self.0.iter().any(|(_, first)| other.key == first.key || other.message.contains(&first.key))
        };
        others.0.retain(|(_, other)| !follows(other));
        self.append(others);
    }

    /// Sets the place of every mistake. `place_of` returns the place where a key was set.
    pub(super) fn place(&mut self, place_of: impl Fn(&str) -> String) {
        self.0.iter_mut().for_each(|(place, mistake)| *place = place_of(&mistake.key));
    }
}

impl From<ConfigError> for Mistakes {
    fn from(mistake: ConfigError) -> Self {
        Mistakes(vec![(String::new(), mistake)])
    }
}

impl std::error::Error for Mistakes {}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (place, mistake)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{place}{mistake}")?;
        }
        Ok(())
    }
}

/// A key that was set but has no effect. The broker logs each warning at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The key as typed, or several keys with commas between them.
    pub key: String,
    /// The reason why the key has no effect.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}
