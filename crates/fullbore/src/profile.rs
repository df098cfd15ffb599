//! Reads the profile, a file of client properties for every client command whose flags name no other file.
//!
//! Invariant: flags and FULLBORE_BOOTSTRAP_SERVER override the profile. If a command does not use a key but others do,
//! it prints no notice about the key.

use crate::failure::Failure;
use crate::properties::{BOOTSTRAP_SERVERS, Notice, bootstrap_of_shell, read_properties};
use fullbore_client::ConsumerConfig;
use fullbore_config::Properties;
use fullbore_producer::config;
use std::ffi::OsString;
use std::path::PathBuf;

/// The environment variable that names the profile. If it is empty, there is no profile.
const VARIABLE: &str = "FULLBORE_PROFILE";
/// The default path of the profile in the user's configuration directory, if the variable is not set.
const FILE: &str = "fullbore/profile.properties";

/// Returns the properties of the profile, without those that only other commands use. The result is empty if there is
/// no profile.
///
/// # Errors
/// Fails if the file cannot be read. The default file may be absent.
pub fn properties(notice: Notice<'_>) -> Result<Properties, Failure> {
    let variable = |name: &str| std::env::var_os(name);
    let Some(path) = path(variable).filter(|path| variable(VARIABLE).is_some() || path.exists()) else {
        return Ok(Properties::default());
    };
    Ok(of_command(&read_properties(Some(&path))?, notice, bootstrap_of_shell().is_some()))
}

/// Returns the path of the profile, which depends on the environment. Returns `None` if there is no profile.
fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if variable(VARIABLE).is_some() {
        return set(VARIABLE);
    }
    let directory = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(directory.join(FILE))
}

/// Returns the properties of a profile for a command. Includes unknown properties, so that the command prints a notice
/// about them. If `names_cluster` is true, FULLBORE_BOOTSTRAP_SERVER names the cluster, so this leaves out the
/// profile's bootstrap servers.
fn of_command(profile: &Properties, notice: Notice<'_>, names_cluster: bool) -> Properties {
    let mut properties = Properties::default();
    for (key, value) in profile.iter() {
        let is_others = notice(key).is_some() && is_known(key);
        let is_overruled = names_cluster && key == BOOTSTRAP_SERVERS;
        if !is_others && !is_overruled {
            properties.set(key, value);
        }
    }
    properties
}

/// Returns true if any command uses this key.
fn is_known(key: &str) -> bool {
    config::notice(key).is_none() || ConsumerConfig::settings().any(|setting| setting.name == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_named_by_the_environment_replaces_the_default() {
        let path = |set: &[(&str, &str)]| {
            let set: Vec<(String, OsString)> =
                set.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
            path(|name| set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()))
                .map(|path| path.display().to_string())
        };
        let home = ("HOME", "/home/me");
        assert_eq!(path(&[]), None);
        assert_eq!(path(&[home]).as_deref(), Some("/home/me/.config/fullbore/profile.properties"));
        assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "/c")]).as_deref(), Some("/c/fullbore/profile.properties"));
        assert_eq!(path(&[home, (VARIABLE, "prod.properties")]).as_deref(), Some("prod.properties"));
        assert_eq!(path(&[home, (VARIABLE, "")]), None);
    }

    #[test]
    fn only_misspelt_keys_of_a_profile_are_reported() {
        let mut profile = Properties::default();
        for key in ["bootstrap.servers", "linger.ms", "fetch.min.bytes", "client.id", "linger.msec"] {
            profile.set(key, "1");
        }
        let notice = |key: &str| (![BOOTSTRAP_SERVERS, "client.id"].contains(&key)).then(|| "has no effect".to_owned());
        let keys = |names_cluster| {
            let taken = of_command(&profile, &notice, names_cluster);
            let mut keys: Vec<String> = taken.iter().map(|(key, _)| key.to_owned()).collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(false), ["bootstrap.servers", "client.id", "linger.msec"]);
        assert_eq!(keys(true), ["client.id", "linger.msec"]);
    }
}
