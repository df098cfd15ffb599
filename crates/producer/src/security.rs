//! `security.protocol` and `ssl.*`: whether connections are plain or TLS, and with which keys and certificates.
//!
//! Not SASL, which is refused. One place for every client of this repository. Invariant: the files are read once, at the
//! check or at the first connection, and every connection of a client uses what was read.

use crate::config::ProducerConfig;
use crate::config::{KEYS, Key};
use crate::error::ConfigError;
use fullbore_tls::{Connector, MaterialError, Settings};
use std::sync::{Arc, OnceLock};

/// How a client's connections are secured.
#[derive(Clone, Debug, Default)]
pub struct Security {
    is_tls: bool,
    any_host_name: bool,
    settings: Settings,
    connector: Arc<OnceLock<Result<Connector, MaterialError>>>,
}

/// The setting that chooses TLS.
const PROTOCOL: &str = "security.protocol";

impl Security {
    /// Reads the settings of security, and leaves every other alone: for clients that are no producers.
    ///
    /// # Errors
    /// A value that is not allowed, or a contradiction; keys or certificates that cannot be used.
    pub fn from_properties<'a>(properties: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, ConfigError> {
        let mut config = ProducerConfig::default();
        for (name, value) in properties {
            if let Some(key) = Security::keys().find(|key| key.name == name) {
                key.apply(&mut config, value)?;
            }
        }
        config.client.security.check()?;
        Ok(config.client.security)
    }

    /// The settings of security.
    pub fn keys() -> impl Iterator<Item = &'static Key> {
        KEYS.iter().filter(|key| key.name == PROTOCOL || key.name.starts_with("ssl."))
    }

    /// Sets one by Kafka's name.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        // What was read belongs to other settings.
        self.connector = Arc::default();
        match (name, value) {
            (PROTOCOL, _) if value.eq_ignore_ascii_case("PLAINTEXT") => self.is_tls = false,
            (PROTOCOL, _) if value.eq_ignore_ascii_case("SSL") => self.is_tls = true,
            (PROTOCOL, _) => return Err("must be PLAINTEXT or SSL: SASL is not offered yet".to_owned()),
            ("ssl.endpoint.identification.algorithm", _) if value.eq_ignore_ascii_case("https") => {
                self.any_host_name = false;
            }
            ("ssl.endpoint.identification.algorithm", "") => self.any_host_name = true,
            ("ssl.endpoint.identification.algorithm", _) => {
                return Err("must be https, or empty for any host name".to_owned());
            }
            ("ssl.engine.factory.class", "") => {}
            ("ssl.engine.factory.class", _) => return Err("must be unset: there is no Java here".to_owned()),
            _ => return self.settings.set(name, value),
        }
        Ok(())
    }

    /// Whether connections are TLS.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Looks for contradictions, and reads keys and certificates.
    ///
    /// # Errors
    /// The setting at fault.
    pub fn check(&self) -> Result<(), ConfigError> {
        let contradiction =
            |(key, reason): (&str, &str)| MaterialError { setting: key.to_owned(), reason: reason.to_owned() };
        self.settings.check().map_err(contradiction)?;
        self.connector()?;
        Ok(())
    }

    /// What begins TLS sessions; `None` for plain connections.
    ///
    /// # Errors
    /// Keys or certificates that cannot be used.
    pub fn connector(&self) -> Result<Option<&Connector>, MaterialError> {
        if !self.is_tls {
            return Ok(None);
        }
        let loaded = self.connector.get_or_init(|| Connector::load(&self.settings, !self.any_host_name));
        loaded.as_ref().map(Some).map_err(MaterialError::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Security, String> {
        Security::from_properties(pairs.iter().copied()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_protocol_decides() {
        assert!(!of(&[]).expect("plain").is_tls());
        assert!(!of(&[("security.protocol", "PLAINTEXT"), ("linger.ms", "never")]).expect("plain").is_tls());
        let any_case = [("security.protocol", "ssl"), ("ssl.endpoint.identification.algorithm", "HTTPS")];
        assert!(of(&any_case).expect("as Kafka's clients take it").is_tls());
        let refusal = of(&[("security.protocol", "SASL_SSL")]).expect_err("not offered");
        assert_eq!(refusal, "security.protocol=SASL_SSL: must be PLAINTEXT or SSL: SASL is not offered yet");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key_and_without_secrets() {
        let ssl = ("security.protocol", "SSL");
        for (pairs, says) in [
            (
                vec![ssl, ("ssl.truststore.location", "/no/such.pem")],
                "ssl.truststore.location=/no/such.pem: No such file",
            ),
            (vec![ssl, ("ssl.truststore.type", "JKS")], "ssl.truststore.type=JKS: must be PEM"),
            (vec![ssl, ("ssl.truststore.password", "TOPSECRET")], "ssl.truststore.password=[hidden]: must be left out"),
            (vec![ssl, ("ssl.keystore.key", "TOPSECRET")], "ssl.keystore.key: needs ssl.keystore.certificate.chain"),
            (vec![("ssl.endpoint.identification.algorithm", "ldap")], "must be https, or empty"),
            (vec![("ssl.engine.factory.class", "x.Y")], "no Java here"),
        ] {
            let refusal = of(&pairs).expect_err(says);
            assert!(refusal.contains(says) && !refusal.contains("TOPSECRET"), "{refusal}");
        }
    }
}
