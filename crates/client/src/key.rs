//! Tables of settings. Each row has the key of a setting, its default, its meaning and its parser.
//!
//! Each crate has a table of its own settings. Parsers and documentation are generated from these tables. Invariant:
//! the error for a refused value names the key and the allowed values, but never contains a secret.

use crate::error::ConfigError;
use std::time::Duration;

/// The description of a setting for users.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Kafka's name of the setting.
    pub name: &'static str,
    /// The default. If Kafka's default is another one, `doc` names that. Empty if there is no default, or if `doc`
    /// describes it.
    pub default: &'static str,
    /// The effect of the setting.
    pub doc: &'static str,
}

/// A row of a table, which describes a setting of the configuration `C`.
pub struct Key<C> {
    /// The description for users.
    pub setting: Setting,
    /// Parses and sets a value, or returns a sentence with the allowed values.
    pub set: fn(&mut C, &str) -> Result<(), String>,
}

/// Creates a table. A row has the name, the default, the meaning, and the code that sets a value.
#[macro_export]
macro_rules! keys {
    ($( $name:literal, $default:literal, $doc:literal, |$config:ident, $value:ident| $set:expr; )*) => {
        &[$( $crate::key::Key {
            setting: $crate::key::Setting { name: $name, default: $default, doc: $doc },
            set: |$config, $value| { $set; Ok(()) },
        }, )*]
    };
}

impl Setting {
    /// Returns the error for a refused value.
    pub(crate) fn refused(&self, value: &str, allowed: String) -> ConfigError {
        let value = if fullbore_tls::is_secret(self.name) { "[hidden]" } else { value };
        ConfigError::Value { key: self.name, value: value.to_owned(), allowed }
    }
}

/// Sets one setting by its name. Returns false if the table has no setting of this name.
///
/// # Errors
/// Returns [`ConfigError::Value`] with the allowed values, if the value is not allowed.
pub fn set<C>(table: &[Key<C>], config: &mut C, name: &str, value: &str) -> Result<bool, ConfigError> {
    let Some(key) = table.iter().find(|key| key.setting.name == name) else { return Ok(false) };
    (key.set)(config, value.trim()).map_err(|allowed| key.setting.refused(value, allowed))?;
    Ok(true)
}

/// Splits a list at its commas.
pub fn list(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Parses a whole number from `min` to `max`.
///
/// # Errors
/// Returns a text with the allowed values if `value` is not one of them.
pub fn number(value: &str, min: i64, max: i64) -> Result<i64, String> {
    let parsed = value.parse().ok().filter(|n| (min..=max).contains(n));
    parsed.ok_or_else(|| format!("must be a number from {min} to {max}"))
}

/// Parses a size, which is a whole number of at least `min`.
///
/// # Errors
/// Returns a text with the allowed values if `value` is not one of them.
pub fn size(value: &str, min: i64) -> Result<usize, String> {
    number(value, min, i64::from(i32::MAX)).map(|n| n as usize)
}

/// Parses a time in milliseconds.
///
/// # Errors
/// Returns a text with the allowed values if `value` is not one of them.
pub fn ms(value: &str) -> Result<Duration, String> {
    number(value, 0, i64::from(i32::MAX)).map(|n| Duration::from_millis(n as u64))
}

/// Parses true or false.
///
/// # Errors
/// Returns a text with the allowed values if `value` is neither.
pub fn boolean(value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}
