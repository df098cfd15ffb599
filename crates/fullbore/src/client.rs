//! The shared parts of client commands: the cluster's address, and properties from files and the command line.

use crate::failure::Failure;
use crate::output;
use crate::patience::Patience;
use crate::profile;
use crate::properties::{BOOTSTRAP_SERVERS, Notice, bootstrap_of_shell, read_properties};
use crate::waiting;
use clap::Args;
use fullbore_client::Security;
use fullbore_client::blocking::Cluster;
use fullbore_config::Properties;
use fullbore_wire::did_you_mean;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The bootstrap server that is used if none is configured.
pub const BOOTSTRAP_DEFAULT: &str = "localhost:9092";
/// The property that chooses plain connections, TLS or SASL.
const SECURITY_PROTOCOL: &str = "security.protocol";

/// Flags of every client command: the cluster's address and client properties.
#[derive(Args, Debug)]
pub struct Where {
    /// Bootstrap brokers, host:port separated by commas [default: FULLBORE_BOOTSTRAP_SERVER, or localhost:9092].
    #[arg(short, long, value_name = "HOST:PORT,...")]
    bootstrap_server: Option<String>,
    /// A file of client properties; only bootstrap.servers, client.id, security.protocol and ssl.* are used.
    #[arg(long, value_name = "FILE")]
    command_config: Option<PathBuf>,
    /// A client property, which overrides the file; may be repeated.
    #[arg(short = 'X', long, value_name = "KEY=VALUE", value_parser = key_value)]
    command_property: Vec<(String, String)>,
    #[command(flatten)]
    patience: Patience,
}

impl Where {
    /// Returns the cluster that the flags name.
    ///
    /// # Errors
    /// Returns [`Failure`] if [`client_properties`] or [`cluster`] returns one.
    pub fn cluster(&self, client_id: &str) -> Result<Cluster, Failure> {
        let notice = |key: &str| without_effect(key, "this command", &[]);
        let properties = client_properties(self.command_config.as_deref(), &self.command_property, &notice)?;
        cluster(self.bootstrap_server.as_deref(), &properties, client_id, self.patience)
    }

    /// Uses the given values for flags that are missing on the command line.
    pub fn fall_back(&mut self, bootstrap_server: Option<String>, command_config: Option<PathBuf>) {
        self.bootstrap_server = self.bootstrap_server.take().or(bootstrap_server);
        self.command_config = self.command_config.take().or(command_config);
    }

    /// Returns the bootstrap brokers, if a flag names them.
    #[cfg(test)]
    pub fn named(&self) -> Option<&str> {
        self.bootstrap_server.as_deref()
    }

    /// Returns how long to wait for a response.
    pub fn patience(&self) -> Duration {
        self.patience.duration()
    }
}

/// Returns a client's properties. They come from the file, or from the profile if there is no file. Properties of the
/// command line override them.
///
/// # Errors
/// Returns [`Failure`] if the file cannot be read, or [`checked_properties`] returns one.
pub fn client_properties(
    file: Option<&Path>,
    flags: &[(String, String)],
    notice: Notice<'_>,
) -> Result<Properties, Failure> {
    checked_properties(file_or_profile(file, notice)?, flags, notice)
}

/// Returns the properties of the file or the profile, without printing notices. Callers are commands whose output must
/// contain nothing else.
///
/// # Errors
/// Fails if the file cannot be read, or if this program does not support its security settings.
pub fn quiet_properties(file: Option<&Path>, notice: Notice<'_>) -> Result<Properties, Failure> {
    let properties = file_or_profile(file, notice)?;
    check_security(&properties)?;
    Ok(properties)
}

fn file_or_profile(file: Option<&Path>, notice: Notice<'_>) -> Result<Properties, Failure> {
    if file.is_some() { read_properties(file) } else { profile::properties(notice) }
}

/// Returns `properties`, overridden by `flags`. Before it checks them, prints the notices of `notice` about their keys
/// to standard error, because a misspelt key may be the cause of an error.
///
/// # Errors
/// Fails on security settings that this program does not support. If the program ignored them, it could send secrets in
/// clear.
pub fn checked_properties(
    mut properties: Properties,
    flags: &[(String, String)],
    notice: Notice<'_>,
) -> Result<Properties, Failure> {
    for (key, value) in flags {
        properties.set(key.as_str(), value.as_str());
    }
    notices(&properties, notice).iter().for_each(output::remark);
    check_security(&properties)?;
    Ok(properties)
}

fn check_security(properties: &Properties) -> Result<(), Failure> {
    let protocol = properties.get(SECURITY_PROTOCOL).unwrap_or("PLAINTEXT");
    if !matches!(protocol, "PLAINTEXT" | "SSL") {
        return Err(Failure::new(format!(
            "{SECURITY_PROTOCOL}={protocol}: must be PLAINTEXT or SSL; SASL is not offered yet"
        )));
    }
    let in_vain = |(key, value): &(&str, &str)| {
        key.starts_with("sasl.") || (key.starts_with("ssl.") && protocol == "PLAINTEXT" && !value.is_empty())
    };
    let found = properties.iter().find(in_vain).map(|(key, _)| match key.starts_with("sasl.") {
        true => format!("{key}: SASL is not offered yet; leave it out"),
        false => format!("{key}: has no effect without {SECURITY_PROTOCOL}=SSL; set that as well, or leave {key} out"),
    });
    match found {
        Some(sentence) => Err(Failure::new(sentence)),
        None => Ok(()),
    }
}

/// Returns the cluster that is named by `flag`, by the properties, or by default. Its connections have the security of
/// the properties. Late responses are reported on standard error.
///
/// # Errors
/// Fails if an address is malformed, or if the security settings cannot be used.
pub fn cluster(
    flag: Option<&str>,
    properties: &Properties,
    client_id: &str,
    patience: Patience,
) -> Result<Cluster, Failure> {
    let cluster = quiet_cluster(flag, properties, client_id, patience.duration())?;
    waiting::report_late_responses(cluster.awaited(), patience)?;
    Ok(cluster)
}

/// Returns a cluster like [`cluster`], but late responses are not reported.
///
/// # Errors
/// Returns [`Failure`] if an address is malformed, or the security settings cannot be used.
pub fn quiet_cluster(
    flag: Option<&str>,
    properties: &Properties,
    client_id: &str,
    patience: Duration,
) -> Result<Cluster, Failure> {
    let security = Security::from_properties(properties.iter())?;
    let client_id = properties.get("client.id").unwrap_or(client_id);
    Ok(Cluster::new(&bootstrap_servers(flag, properties), client_id)?.secured(security).patient(patience))
}

/// Returns the bootstrap brokers. The flag takes precedence over the property, and the property over
/// FULLBORE_BOOTSTRAP_SERVER. If all are missing, returns the default.
pub fn bootstrap_servers(flag: Option<&str>, properties: &Properties) -> String {
    let typed = flag.or_else(|| properties.get(BOOTSTRAP_SERVERS)).map(str::to_owned);
    typed.or_else(bootstrap_of_shell).unwrap_or_else(|| BOOTSTRAP_DEFAULT.to_owned())
}

/// Returns one line for each property without effect. The line does not contain the value, because a misspelt key may
/// have a secret value.
pub fn notices(properties: &Properties, notice: Notice<'_>) -> Vec<String> {
    // There are no notices for serializers, which scripts for Java's clients set, or for SASL, which another check
    // refuses.
    let is_other =
        |key: &str| key.ends_with(".serializer") || key.ends_with(".deserializer") || key.starts_with("sasl.");
    let mine = properties.iter().filter(|(key, _)| !is_other(key));
    mine.filter_map(|(key, _)| Some(format!("{key}: {}", notice(key)?))).collect()
}

/// Returns a notice if property `key` has no effect in `tool`: it is neither a property of every client nor one of
/// `own`.
pub fn without_effect(key: &str, tool: &str, own: &[&'static str]) -> Option<String> {
    let of_clients = Security::settings().map(|setting| setting.name).chain([BOOTSTRAP_SERVERS, "client.id"]);
    let known: Vec<&str> = of_clients.chain(own.iter().copied()).collect();
    (!known.contains(&key)).then(|| format!("has no effect on {tool}{}", did_you_mean(key, known)))
}

/// Parses `key=value`, as in `--config` and `--command-property`. The value may contain further `=`.
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
    fn the_flag_overrides_the_property_and_the_property_the_default() {
        let mut properties = Properties::default();
        assert_eq!(bootstrap_servers(None, &properties), "localhost:9092");
        properties.set(BOOTSTRAP_SERVERS, "a:1");
        assert_eq!(bootstrap_servers(None, &properties), "a:1");
        assert_eq!(bootstrap_servers(Some("b:2"), &properties), "b:2");
    }

    #[test]
    fn unsupported_security_is_refused() {
        let of = |key: &str, value: &str| client_properties(None, &[(key.into(), value.into())], &|_| None);
        for protocol in ["SASL_PLAINTEXT", "SASL_SSL", "ssl"] {
            let refusal = of("security.protocol", protocol).expect_err(protocol).to_string();
            assert!(
                refusal.starts_with(&format!("security.protocol={protocol}: must be PLAINTEXT or SSL")),
                "{refusal}"
            );
        }
        // Each of these keys is refused if security.protocol is missing. If it were ignored, secrets could be sent in
        // clear.
        for key in ["sasl.jaas.config", "sasl.mechanism", "ssl.truststore.location"] {
            let refusal = of(key, "secret").expect_err(key).to_string();
            assert!(refusal.starts_with(key) && !refusal.contains("secret"), "{refusal}");
        }
        of("security.protocol", "PLAINTEXT").expect("that is spoken");
        of("security.protocol", "SSL").expect("that is spoken");
    }

    #[test]
    fn a_property_without_effect_is_reported_without_its_value() {
        let mut properties = Properties::default();
        for key in ["bootstrap.servers", "security.protocl", "fetch.min.byte", "fetch.max.bytes", "value.deserializer"]
        {
            properties.set(key, "secret");
        }
        let notice = |key: &str| without_effect(key, "this consumer", &["fetch.min.bytes", "fetch.max.bytes"]);
        let reported = [
            "fetch.min.byte: has no effect on this consumer; did you mean fetch.min.bytes?",
            "security.protocl: has no effect on this consumer; did you mean security.protocol?",
        ];
        let mut found = notices(&properties, &notice);
        found.sort();
        assert_eq!(found, reported);
    }

    #[test]
    fn values_keep_further_equal_signs() {
        assert_eq!(key_value("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(key_value("=b").is_err());
    }
}
