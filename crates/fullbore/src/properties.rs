//! The sources of client properties: files, and the environment variable that names the cluster.

use crate::failure::Failure;
use fullbore_config::Properties;
use fullbore_host::files::{SETTINGS_FILE_MAX, read_text};
use std::path::Path;

/// The property that names the cluster.
pub const BOOTSTRAP_SERVERS: &str = "bootstrap.servers";
/// The environment variable that names the cluster if neither a flag nor a property does.
const BOOTSTRAP_VARIABLE: &str = "FULLBORE_BOOTSTRAP_SERVER";

/// A function that takes a key and returns a notice for the user, or `None` if the key has an effect.
pub type Notice<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads the properties of a file in Java's format. Without a file, the result is empty.
pub fn read_properties(file: Option<&Path>) -> Result<Properties, Failure> {
    let Some(path) = file else { return Ok(Properties::default()) };
    let text = read_text(path, SETTINGS_FILE_MAX)
        .map_err(|error| Failure::new(format!("cannot read the properties file {}: {error}", path.display())))?;
    Properties::parse(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Returns the value of FULLBORE_BOOTSTRAP_SERVER, unless it is unset or empty.
pub fn bootstrap_of_shell() -> Option<String> {
    std::env::var(BOOTSTRAP_VARIABLE).ok().filter(|servers| !servers.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_key_after_a_byte_order_mark_is_found() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(file.path(), "\u{feff}bootstrap.servers=host:9092\r\n").expect("written");
        let properties = read_properties(Some(file.path())).expect("valid");
        assert_eq!(properties.get(BOOTSTRAP_SERVERS), Some("host:9092"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let failure = read_properties(Some(Path::new("/no/such.properties"))).expect_err("missing");
        assert!(failure.to_string().contains("/no/such.properties"));
    }
}
