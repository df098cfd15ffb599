//! A table of settings: one row a key, with its default, its meaning and how it is read.
//!
//! Parsers and documentation come from such tables, each crate's beside what it sets. Invariant: a value that is
//! refused is named with its key and what is allowed, and a secret is not shown.

use crate::error::ConfigError;
use std::time::Duration;

/// Description of a setting for users.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Kafka's name.
    pub name: &'static str,
    /// Kafka's default, unless `doc` says otherwise; empty for none.
    pub default: &'static str,
    /// Its effect.
    pub doc: &'static str,
}

/// Setting of `C`.
pub struct Key<C> {
    /// Description for users.
    pub setting: Setting,
    /// Reads a value, or says what is allowed.
    pub set: fn(&mut C, &str) -> Result<(), String>,
}

/// Makes a table: name, default, meaning, and what its value does.
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
    /// This value was refused, because only that is allowed.
    pub(crate) fn refused(&self, value: &str, allowed: String) -> ConfigError {
        let value = if fullbore_tls::is_secret(self.name) { "[hidden]" } else { value };
        ConfigError::Value { key: self.name, value: value.to_owned(), allowed }
    }
}

/// Sets one by its name; whether it is in the table.
///
/// # Errors
/// The key, the value unless it is a secret, and what is allowed.
pub fn set<C>(table: &[Key<C>], config: &mut C, name: &str, value: &str) -> Result<bool, ConfigError> {
    let Some(key) = table.iter().find(|key| key.setting.name == name) else { return Ok(false) };
    (key.set)(config, value.trim()).map_err(|allowed| key.setting.refused(value, allowed))?;
    Ok(true)
}

/// Values separated by commas.
pub fn list(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// A whole number between these.
///
/// # Errors
/// What is allowed.
pub fn number(value: &str, min: i64, max: i64) -> Result<i64, String> {
    let parsed = value.parse().ok().filter(|n| (min..=max).contains(n));
    parsed.ok_or_else(|| format!("must be a number from {min} to {max}"))
}

/// A number of bytes or of things.
///
/// # Errors
/// What is allowed.
pub fn size(value: &str, min: i64) -> Result<usize, String> {
    number(value, min, i64::from(i32::MAX)).map(|n| n as usize)
}

/// A time in milliseconds.
///
/// # Errors
/// What is allowed.
pub fn ms(value: &str) -> Result<Duration, String> {
    number(value, 0, i64::from(i32::MAX)).map(|n| Duration::from_millis(n as u64))
}

/// Yes or no.
///
/// # Errors
/// What is allowed.
pub fn boolean(value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}
