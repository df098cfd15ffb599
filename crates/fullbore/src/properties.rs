//! Where client properties come from: files, and the variable that names the cluster.

use crate::failure::Failure;
use fullbore_config::Properties;
use std::path::Path;

/// The property that names the cluster.
pub const BOOTSTRAP_SERVERS: &str = "bootstrap.servers";
/// The variable that names the cluster where no flag and no property does.
const BOOTSTRAP_VARIABLE: &str = "FULLBORE_BOOTSTRAP_SERVER";

/// What the user of a command should know of a property with this key; `None` if it counts.
pub type Notice<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The properties of a file in Java's format; an empty set without one.
pub fn read_properties(file: Option<&Path>) -> Result<Properties, Failure> {
    let Some(path) = file else { return Ok(Properties::default()) };
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("cannot read the properties file {}: {error}", path.display())))?;
    Properties::parse(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// FULLBORE_BOOTSTRAP_SERVER, if it names a broker.
pub fn bootstrap_of_shell() -> Option<String> {
    std::env::var(BOOTSTRAP_VARIABLE).ok().filter(|servers| !servers.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named() {
        let failure = read_properties(Some(Path::new("/no/such.properties"))).expect_err("missing");
        assert!(failure.to_string().contains("/no/such.properties"));
    }
}
