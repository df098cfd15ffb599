//! `control.plane`: where the metadata is stored.
//!
//! No connection to the database is made here. Invariant: the password in a URL is never shown.

use std::fmt;
use std::path::PathBuf;

use super::error::ConfigError;
use super::reader::ConfigReader;

/// Key that names the store of the metadata.
pub(super) const CONTROL_PLANE: &str = "control.plane";
/// Value for a standalone broker, which keeps the metadata in a file of its own.
const ON_ONE_MACHINE: &str = "sqlite";
const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// Settings of this broker's membership in a cluster.
#[derive(Debug, Clone)]
pub struct MembershipConfig {
    /// The database of the cluster. With `None`, the broker is standalone and keeps its metadata in a file.
    pub control_plane: Option<PlaneSettings>,
    /// How long a broker counts as alive after a heartbeat (`broker.session.timeout.ms`).
    pub session_timeout_ms: u64,
    /// How long a broker waits between two heartbeats (`broker.heartbeat.interval.ms`).
    pub heartbeat_interval_ms: u64,
    /// How long a start retries calls to the database (`initial.broker.registration.timeout.ms`).
    pub registration_timeout_ms: u64,
    /// True if this broker may start with a new data directory although it had the only complete replica of a partition
    /// (`fullbore.lost.directory.accept`).
    pub accepts_lost_directory: bool,
}

impl MembershipConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Result<Self, ConfigError> {
        Ok(Self {
            control_plane: PlaneSettings::read(values)?,
            session_timeout_ms: values.number("broker.session.timeout.ms"),
            heartbeat_interval_ms: values.number("broker.heartbeat.interval.ms"),
            registration_timeout_ms: values.number("initial.broker.registration.timeout.ms"),
            accepts_lost_directory: values.boolean("fullbore.lost.directory.accept"),
        })
    }
}

/// The database in which a cluster keeps its metadata.
#[derive(Clone, PartialEq, Eq)]
pub struct PlaneSettings {
    url: String,
    /// A file with the password, to be used instead of a password in the URL. The file is read again for each
    /// connection.
    pub password_file: Option<PathBuf>,
    /// Maximum time of a call to the database.
    pub timeout_ms: u64,
}

impl fmt::Debug for PlaneSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_user(&self.url))
    }
}

impl PlaneSettings {
    /// Returns the settings of the database at `url`.
    pub fn new(url: &str, password_file: Option<PathBuf>, timeout_ms: u64) -> Self {
        Self { url: url.to_owned(), password_file, timeout_ms }
    }

    /// Returns the URL, including the password if the URL has one.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Reads the settings. Returns None if the broker is standalone.
    fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Result<Option<Self>, ConfigError> {
        let url = values.text(CONTROL_PLANE).unwrap_or_default();
        let password_file = values.text("control.plane.password.file").filter(|file| !file.is_empty());
        let timeout_ms = values.number("control.plane.timeout.ms");
        if url == ON_ONE_MACHINE {
            return match password_file {
                Some(_) => {
                    Err(ConfigError::of_key("control.plane.password.file", "needs control.plane=postgres://..."))
                }
                None => Ok(None),
            };
        }
        if !is_database(&url) {
            let message = "must be sqlite, or have the form postgres://user@host:5432/database";
            return Err(ConfigError::of_key(CONTROL_PLANE, message));
        }
        Ok(Some(Self::new(&url, password_file.map(PathBuf::from), timeout_ms)))
    }
}

/// Returns true if `url` has the scheme of a PostgreSQL URL, so that the broker belongs to a cluster.
pub(super) fn is_database(url: &str) -> bool {
    SCHEMES.iter().any(|scheme| url.starts_with(scheme))
}

/// Returns the parts of a URL that may be shown, which are the host, the port and the database.
pub(super) fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return if url == ON_ONE_MACHINE { url.to_owned() } else { "[hidden]".to_owned() };
    };
    let (address, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    match address.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{host}"),
        // A question mark in the password has ended `address` too early, so `address` may contain a part of the
        // password.
        None if parameters.contains('@') => "[hidden]".to_owned(),
        None => format!("{scheme}://{address}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::dynamic::NOTHING;
    use super::super::{BrokerConfig, Properties, describe_broker};
    use super::*;

    fn read(text: &str) -> Result<BrokerConfig, String> {
        let typed = Properties::parse(text).expect("valid");
        BrokerConfig::from_properties(&typed).map(|(config, _)| config).map_err(|mistakes| mistakes.to_string())
    }

    #[test]
    fn the_password_of_a_url_is_not_shown() {
        for url in [
            "postgres://ann:pass:wo@rd@db:5432/fullbore?sslmode=require",
            "postgresql://ann@db/fullbore?password=pass:wo@rd&user=x",
            "postgres://ann:pass:wo@rd@db/fullbore?options=-c%20a%3Db",
        ] {
            let config = read(&format!("control.plane={url}")).expect("valid");
            let entries = describe_broker(&config, &NOTHING);
            let entry = entries.iter().find(|entry| entry.name == CONTROL_PLANE).expect("there");
            let shown = format!("{config:?} {entry:?}");
            assert!(!shown.contains("pass:") && !shown.contains("ann") && shown.contains("://db"), "{shown}");
            assert_eq!(config.membership.control_plane.expect("set").url(), url);
        }
        let refused = read("control.plane=mysql://ann:password@db/x").expect_err("refused");
        assert_eq!(refused, "control.plane: must be sqlite, or have the form postgres://user@host:5432/database");
        assert_eq!(read("").expect("valid").membership.control_plane, None);
    }
}
