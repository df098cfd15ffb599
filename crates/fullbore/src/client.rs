//! What the client commands share: where the cluster is, and properties from files and the command line.

use crate::failure::Failure;
use fullbore_broker::config::Properties;
use std::path::Path;

/// Where a command looks for a broker when nothing says so.
pub const BOOTSTRAP_DEFAULT: &str = "localhost:9092";
/// The property that names the cluster.
pub const BOOTSTRAP_SERVERS: &str = "bootstrap.servers";
/// The property that asks for TLS or SASL.
pub const SECURITY_PROTOCOL: &str = "security.protocol";

/// The properties of a file in Java's format; an empty set without one.
fn read_properties(file: Option<&Path>) -> Result<Properties, Failure> {
    let Some(path) = file else { return Ok(Properties::default()) };
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("cannot read the properties file {}: {error}", path.display())))?;
    Properties::parse(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// A client's properties: the command line's before those of the file.
///
/// # Errors
/// A file that cannot be read, or security this program does not speak: what should be secret must not go out in clear.
pub fn client_properties(file: Option<&Path>, flags: &[(String, String)]) -> Result<Properties, Failure> {
    let mut properties = read_properties(file)?;
    for (key, value) in flags {
        properties.set(key.as_str(), value.as_str());
    }
    let is_secure = |(key, value): &(&str, &str)| match *key {
        SECURITY_PROTOCOL => *value != "PLAINTEXT",
        _ => key.starts_with("ssl.") || key.starts_with("sasl."),
    };
    // The protocol says most, wherever it stands.
    let secure = properties.iter().filter(is_secure).max_by_key(|(key, _)| *key == SECURITY_PROTOCOL);
    match secure {
        Some((SECURITY_PROTOCOL, value)) => Err(Failure::new(format!(
            "{SECURITY_PROTOCOL}={value}: must be PLAINTEXT; TLS and SASL are not offered yet"
        ))),
        Some((key, _)) => Err(Failure::new(format!("{key}: TLS and SASL are not offered yet; leave it out"))),
        None => Ok(properties),
    }
}

/// The flag, or the property, or the default.
pub fn bootstrap_servers(flag: Option<&str>, properties: &Properties) -> String {
    flag.or_else(|| properties.get(BOOTSTRAP_SERVERS)).unwrap_or(BOOTSTRAP_DEFAULT).to_owned()
}

/// `key=value` as `--config` and `--command-property` take it; the value may hold further `=`.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("must be KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_comes_before_the_property_before_the_default() {
        let mut properties = Properties::default();
        assert_eq!(bootstrap_servers(None, &properties), "localhost:9092");
        properties.set(BOOTSTRAP_SERVERS, "a:1");
        assert_eq!(bootstrap_servers(None, &properties), "a:1");
        assert_eq!(bootstrap_servers(Some("b:2"), &properties), "b:2");
    }

    #[test]
    fn a_missing_file_is_named() {
        let failure = read_properties(Some(Path::new("/no/such.properties"))).expect_err("missing");
        assert!(failure.to_string().contains("/no/such.properties"));
    }

    #[test]
    fn security_that_is_not_spoken_is_refused() {
        let of = |key: &str, value: &str| client_properties(None, &[(key.into(), value.into())]);
        for protocol in ["SSL", "SASL_PLAINTEXT", "SASL_SSL", "ssl"] {
            let refusal = of("security.protocol", protocol).expect_err(protocol).to_string();
            assert!(refusal.starts_with(&format!("security.protocol={protocol}: must be PLAINTEXT")), "{refusal}");
        }
        for key in ["sasl.jaas.config", "sasl.mechanism", "ssl.truststore.location"] {
            let refusal = of(key, "secret").expect_err(key).to_string();
            assert!(refusal.starts_with(key) && !refusal.contains("secret"), "{refusal}");
        }
        of("security.protocol", "PLAINTEXT").expect("that is spoken");
    }

    #[test]
    fn values_keep_further_equal_signs() {
        assert_eq!(key_value("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(key_value("=b").is_err());
    }
}
