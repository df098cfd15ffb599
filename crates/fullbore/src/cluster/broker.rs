//! A broker of a cluster on this machine: its configuration file and its process.
//!
//! Invariant: only the file's owner can read it, since it may contain a password.

use super::process::Daemon;
use crate::failure::Failure;
use fullbore_config::Properties;
use fullbore_host::files::{SETTINGS_FILE_MAX, read_text};
use fullbore_wire::split_host_port;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first line of a broker's file.
const HEAD: &str = "# A broker of `fullbore cluster`. Changes take effect at the broker's next start; comments are \
 lost when `cluster up` writes this file again.\n";

/// The key of the address at which a broker serves its metrics.
pub const ADMIN_LISTENER: &str = "fullbore.admin.listener";

/// A broker, as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerFile {
    /// The node id, which is part of the file's name.
    pub id: u32,
    pub properties: Properties,
}

impl BrokerFile {
    /// Returns the brokers of a directory, sorted by id.
    ///
    /// # Errors
    /// Fails if a file cannot be read.
    pub fn all(directory: &Path) -> Result<Vec<BrokerFile>, Failure> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let id = path.file_name().and_then(|name| id_of(name.to_str()?));
            if let Some(id) = id {
                found.insert(id, Self::read(id, &path)?);
            }
        }
        Ok(found.into_values().collect())
    }

    fn read(id: u32, path: &Path) -> Result<BrokerFile, Failure> {
        let shown = path.display().to_string();
        let text = read_text(path, SETTINGS_FILE_MAX)
            .map_err(|error| Failure::new(format!("cannot read {shown}: {error}")))?;
        match Properties::parse_file(&shown, &text) {
            (properties, mistakes) if mistakes.is_empty() => Ok(BrokerFile { id, properties }),
            (_, mistakes) => Err(mistakes.into()),
        }
    }

    /// Returns the broker's address for clients as `host:port`. Uses the first listener. Returns `None` if there is
    /// none.
    pub fn address(&self) -> Option<String> {
        let listener = self.properties.get("listeners")?.split(',').next()?;
        Some(listener.rsplit("://").next()?.trim().to_owned())
    }

    /// Checks that the file has an address for clients. The address can only be missing if a user has changed the file.
    ///
    /// # Errors
    /// Returns a sentence about the file and the key, with the remedy.
    pub fn check_address(&self, directory: &Path) -> Result<(), Failure> {
        let address = self.address();
        let host_and_port = address.as_deref().and_then(split_host_port);
        if host_and_port.is_some_and(|(host, _)| !host.is_empty()) {
            return Ok(());
        }
        let lacks = match address {
            None => "has no `listeners`".to_owned(),
            Some(address) => format!("has {address:?} in `listeners`, which is not host:port"),
        };
        Err(Failure::new(format!(
            "cannot use {}: it {lacks}; restore the file, or remove it and let `fullbore cluster up --brokers COUNT` write it again",
            path(directory, self.id).display()
        )))
    }

    /// Returns the address of the broker's metrics as `host:port`. Returns `None` if they are off, or if the system
    /// chooses the port.
    pub fn admin_address(&self) -> Option<&str> {
        let address = self.properties.get(ADMIN_LISTENER)?.trim();
        (!address.is_empty() && !address.ends_with(":0")).then_some(address)
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// Returns the system's error if the file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), Failure> {
        write(directory, self.id, &format!("{HEAD}{}", self.properties.to_text()))
    }
}

/// Writes this text to the file of a broker.
///
/// # Errors
/// Returns [`Failure`] if the file cannot be written.
pub fn write(directory: &Path, id: u32, text: &str) -> Result<(), Failure> {
    let (path, new) = (path(directory, id), directory.join(format!(".broker-{id}.properties.new")));
    let write = || -> io::Result<()> {
        // If a killed command has left this file, it is removed, because its permissions may be wrong.
        if new.exists() {
            fs::remove_file(&new)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)
    };
    write().map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))
}

/// Returns the text of a broker's file.
///
/// # Errors
/// Returns the system's error if the file cannot be read.
pub fn text(directory: &Path, id: u32) -> Result<String, Failure> {
    let path = path(directory, id);
    read_text(&path, SETTINGS_FILE_MAX)
        .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))
}

/// Returns N for a file name `broker-N.properties`, and `None` for any other name.
fn id_of(name: &str) -> Option<u32> {
    let id = name.strip_prefix("broker-")?.strip_suffix(".properties")?;
    id.parse().ok().filter(|number: &u32| *number > 0 && number.to_string() == id)
}

/// Returns the path of a broker's file.
pub fn path(directory: &Path, id: u32) -> PathBuf {
    directory.join(format!("broker-{id}.properties"))
}

/// Returns the process of a broker.
pub fn daemon(directory: &Path, id: u32) -> Daemon {
    Daemon {
        name: format!("broker {id}"),
        pid_file: directory.join(format!("broker-{id}.pid")),
        words: words(directory, id),
        log: directory.join(format!("broker-{id}.log")),
    }
}

/// Returns the command that starts a broker with `program`.
pub fn command(program: &Path, directory: &Path, id: u32) -> Command {
    let mut command = Command::new(program);
    command.args(words(directory, id));
    command
}

fn words(directory: &Path, id: u32) -> Vec<OsString> {
    vec!["serve".into(), "--config".into(), path(directory, id).into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_readable_by_their_owner_only_and_read_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut properties = Properties::default();
        properties.set("listeners", "PLAINTEXT://127.0.0.1:9093");
        properties.set("control.plane", "postgres://ann:pass\\word#=@db/x");
        let brokers = [12, 2].map(|id| BrokerFile { id, properties: properties.clone() });
        fs::write(directory.path().join(".broker-2.properties.new"), "of a kill").expect("written");
        for broker in &brokers {
            broker.write(directory.path()).expect("written");
            let mode = fs::metadata(path(directory.path(), broker.id)).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        for other in ["broker-1.log", "broker-x.properties", "broker-01.properties", "broker-0.properties"] {
            fs::write(directory.path().join(other), "node.id=1").expect("written");
        }
        let found = BrokerFile::all(directory.path()).expect("read");
        let ids: Vec<u32> = found.iter().map(|broker| broker.id).collect();
        assert_eq!(ids, [2, 12]);
        let values = |properties: &Properties| properties.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let both: [Vec<(String, String)>; 2] = [values(&found[0].properties), values(&properties)];
        assert_eq!(both[0], both[1]);
        assert_eq!(found[0].address().as_deref(), Some("127.0.0.1:9093"));
    }

    #[test]
    fn a_malformed_file_is_named_in_the_error() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(path(directory.path(), 1), "a=\\u1").expect("written");
        let reported = BrokerFile::all(directory.path()).expect_err("broken").to_string();
        assert!(reported.contains("broker-1.properties:1: a"), "{reported}");
    }
}
