//! The settings that every session needs: the syntax of literals, durable commits, and time limits.
//!
//! A pooler in transaction mode ignores or refuses the settings of a session, so each transaction has to set them
//! again. Invariant: a session is used only if its settings are in effect.

use std::time::Duration;

use super::rows::{Rows, text};
use crate::StoreError;

/// A divisor: the server ends a transaction that was idle for a call's time limit divided by this number. A broker that
/// waits for the lock can then get it.
const FROZEN_PART: u32 = 2;
/// Settings that a transaction cannot set for itself. The server needs them before it reads the first statement, but
/// `SET LOCAL` is itself a statement.
const OF_SESSION: [&str; 3] =
    ["standard_conforming_strings", "default_transaction_isolation", "default_transaction_read_only"];
/// Settings that are not verified. No decision depends on them, and the server may return them in another form.
const UNIMPORTANT: [&str; 2] = ["client_min_messages", "search_path"];

/// The settings of a session, by name.
pub struct SessionSettings(Vec<(String, String)>);

impl SessionSettings {
    /// Creates the settings for a session with the time limit `call_max` for each call. Settings in `own`, in the form
    /// `-c name=value`, take precedence.
    pub fn new(call_max: Duration, own: &str) -> Self {
        let (ms, frozen_ms) = (call_max.as_millis().to_string(), (call_max / FROZEN_PART).as_millis().to_string());
        let every = [
            ("standard_conforming_strings", "on"),
            ("synchronous_commit", "on"),
            ("statement_timeout", ms.as_str()),
            ("lock_timeout", ms.as_str()),
            ("idle_in_transaction_session_timeout", frozen_ms.as_str()),
            ("client_min_messages", "error"),
            ("search_path", ""),
            ("default_transaction_isolation", "read committed"),
            ("default_transaction_read_only", "off"),
        ];
        let own: Vec<(&str, &str)> = own.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        let setting = |(name, usual): (&str, &str)| {
            let value = own.iter().find(|(of, _)| *of == name).map_or(usual, |(_, own)| *own);
            (name.to_owned(), value.to_owned())
        };
        Self(every.into_iter().map(setting).collect())
    }

    /// Returns the settings as the connection parameter `options`.
    pub fn options(&self) -> String {
        let options = self.0.iter().map(|(name, value)| format!("-c {name}={}", value.replace(' ', "\\ ")));
        options.collect::<Vec<_>>().join(" ")
    }

    /// Returns the query for the values in effect.
    pub fn question(&self) -> String {
        let names: Vec<_> = self.important().map(|(name, _)| format!("'{name}'")).collect();
        format!("SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ({})", names.join(", "))
    }

    fn important(&self) -> impl Iterator<Item = &(String, String)> {
        self.0.iter().filter(|(name, _)| !UNIMPORTANT.contains(&name.as_str()))
    }

    /// Checks the response to [`SessionSettings::question`]. Returns true if all settings are in effect, and false if
    /// each transaction has to set them.
    ///
    /// # Errors
    /// Returns a sentence for the operator if a setting is not in effect and a transaction cannot set it for itself.
    pub fn are_in_force(&self, rows: &Rows) -> Result<bool, String> {
        let found = rows.iter().map(|row| Ok((text(row, 0)?, text(row, 1)?)));
        let found: Vec<_> = found.collect::<Result<_, StoreError>>().map_err(|error| error.to_string())?;
        let mut are_all = true;
        for (name, value) in self.important() {
            if found.contains(&(name.as_str(), value.as_str())) {
                continue;
            }
            if OF_SESSION.contains(&name.as_str()) {
                return Err(format!(
                    "{name} is not {value}, and a pooler in front of the database keeps the broker from setting it; \
                     set it with ALTER ROLE ... SET {name} = '{value}'"
                ));
            }
            are_all = false;
        }
        Ok(are_all)
    }

    /// Returns `SET LOCAL` statements for one transaction, with all settings except those in `OF_SESSION`.
    pub fn of_transaction(&self) -> String {
        let of_it = self.0.iter().filter(|(name, _)| !OF_SESSION.contains(&name.as_str()));
        of_it.map(|(name, value)| format!("SET LOCAL {name} = '{value}'; ")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_settings_override_those_of_every_session() {
        let settings = SessionSettings::new(Duration::from_secs(5), "-c synchronous_commit=off");
        let (options, local) = (settings.options(), settings.of_transaction());
        assert!(
            options.contains("-c synchronous_commit=off -c statement_timeout=5000 -c lock_timeout=5000"),
            "{options}"
        );
        assert!(options.contains("-c idle_in_transaction_session_timeout=2500 "), "{options}");
        assert!(options.contains("-c default_transaction_isolation=read\\ committed "), "{options}");
        assert!(
            local.starts_with("SET LOCAL synchronous_commit = 'off'; SET LOCAL statement_timeout = '5000'; "),
            "{local}"
        );
        assert!(!local.contains("standard_conforming_strings"), "{local}");
    }
}
