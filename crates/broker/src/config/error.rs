//! What can be wrong with a configuration, as one line a user can act on.
//!
//! Not the place where anything is checked. Every message names the key and, where there is one, the
//! value that was refused.

use fullbore_tls::is_secret;
use std::fmt;

/// A configuration that is refused: `key=value: what is allowed`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The key at fault, or a line of the file where no key could be read.
    pub key: String,
    /// The value as typed; `None` where the fault is not in a value.
    pub value: Option<String>,
    /// What is allowed, or why it cannot be had.
    pub message: String,
}

impl ConfigError {
    /// `key=value: message`, or `key: message` where the value is a secret.
    pub fn of_value(key: &str, value: &str, message: impl Into<String>) -> Self {
        let value = (!is_secret(key)).then(|| value.to_owned());
        Self { key: key.into(), value, message: message.into() }
    }

    /// `key: message`
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

/// A key that was set and changes nothing, with the reason. To be shown at start, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The key as typed, or several with commas.
    pub key: String,
    /// Why it changes nothing.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}
