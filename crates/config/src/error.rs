//! Mistakes of a configuration, each one line that a user can act on.
//!
//! Not here: checks. Every message names the key and, where there is one, the refused value.

use fullbore_tls::is_secret;
use std::fmt;

/// A configuration that is refused: `key=value: what is allowed`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The key at fault, or a line of the file where no key could be read.
    pub key: String,
    /// The value as typed; `None` where the fault is not in a value.
    pub value: Option<String>,
    /// The allowed values, or the reason of a refusal.
    pub message: String,
}

impl ConfigError {
    /// Returns `key=value: message`, or `key: message` where the value is a secret.
    pub fn of_value(key: &str, value: &str, message: impl Into<String>) -> Self {
        let value = (!is_secret(key)).then(|| value.to_owned());
        Self { key: key.into(), value, message: message.into() }
    }

    /// Returns `key: message`.
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

/// All mistakes of a configuration, one line each. A line begins with the place of its key, `server.properties:12: ` or
/// `--set `, or with nothing where that is unknown.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Mistakes(Vec<(String, ConfigError)>);

impl Mistakes {
    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of mistakes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a mistake of a value that was set at `place`.
    pub fn add(&mut self, place: impl Into<String>, mistake: ConfigError) {
        self.0.push((place.into(), mistake));
    }

    /// Adds the mistakes of another check.
    pub fn append(&mut self, mut others: Mistakes) {
        self.0.append(&mut others.0);
    }

    /// Returns the value. If it was refused, adds its mistakes and returns None.
    pub(super) fn keep<T>(&mut self, found: Result<T, impl Into<Mistakes>>) -> Option<T> {
        found.map_err(|mistakes| self.append(mistakes.into())).ok()
    }

    /// Adds the mistakes of a second check, which ran without the values that the first check refused. Leaves out
    /// mistakes that follow from a mistake of the first check.
    pub(super) fn append_unrelated(&mut self, mut others: Mistakes) {
        let follows = |other: &ConfigError| {
            self.0.iter().any(|(_, first)| other.key == first.key || other.message.contains(&first.key))
        };
        others.0.retain(|(_, other)| !follows(other));
        self.append(others);
    }

    /// Sets the place of each mistake's key.
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

/// Key that was set and has no effect, with the reason. Shown at start, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Key as typed; several keys are joined by commas.
    pub key: String,
    /// Reason why it has no effect.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}
