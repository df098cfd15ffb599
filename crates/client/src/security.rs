//! The settings `security.protocol` and `ssl.*`, which every client in this repository has. They select plain
//! connections or TLS, and the keys and certificates.
//!
//! SASL is refused. Invariant: a new connection uses the present contents of the key and certificate files. If these
//! cannot be loaded, the connection uses the contents that were loaded last.

use crate::error::ConfigError;
use crate::key::Setting;
use fullbore_tls::{Connector, FileStamp, MaterialError, Settings};
use parking_lot::Mutex;
use std::sync::Arc;

/// The security of a client's connections.
#[derive(Clone, Debug, Default)]
pub struct Security {
    is_tls: bool,
    any_host_name: bool,
    settings: Settings,
    connector: Arc<Mutex<Option<Loaded>>>,
}

/// A TLS connector, with the stamps of the files from which it was loaded. A changed stamp shows that a file has
/// changed.
#[derive(Debug)]
struct Loaded {
    stamps: Vec<FileStamp>,
    connector: Connector,
}

/// The name of the setting that selects TLS.
const PROTOCOL: &str = "security.protocol";

/// The settings of security, with their defaults and meanings.
const SETTINGS: [Setting; 16] = [
    setting("security.protocol", "PLAINTEXT", "PLAINTEXT, or SSL for TLS. SASL is not offered yet."),
    setting(
        "ssl.cipher.suites",
        "",
        "Cipher suites that may be used, by Java's names, separated by commas. If empty, all may be used.",
    ),
    setting("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "Versions of TLS that may be used."),
    setting(
        "ssl.endpoint.identification.algorithm",
        "https",
        "With https, the host name is checked against the broker's certificate; if empty, it is not checked.",
    ),
    setting("ssl.engine.factory.class", "", "Refused: there is no Java here."),
    setting("ssl.key.password", "", "The password of an encrypted private key (PKCS#8, PBES2)."),
    setting(
        "ssl.keystore.certificate.chain",
        "",
        "The certificates of ssl.keystore.key as PEM text, the client's own first.",
    ),
    setting("ssl.keystore.key", "", "The client's private key as PEM text."),
    setting("ssl.keystore.location", "", "A PEM file with the client's private key and its certificates."),
    setting("ssl.keystore.password", "", "Must be left out: a PEM file has no store password."),
    setting("ssl.keystore.type", "PEM", "PEM only (Kafka's default is JKS)."),
    setting("ssl.protocol", "TLSv1.3", "The highest version of TLS that may be used: TLSv1.3 or TLSv1.2."),
    setting("ssl.truststore.certificates", "", "Certificates of the authorities to trust as PEM text."),
    setting(
        "ssl.truststore.location",
        "",
        "A PEM file with the certificates of the authorities to trust; without one, the system's.",
    ),
    setting("ssl.truststore.password", "", "Must be left out: a PEM file has no store password."),
    setting("ssl.truststore.type", "PEM", "PEM only (Kafka's default is JKS)."),
];

const fn setting(name: &'static str, default: &'static str, doc: &'static str) -> Setting {
    Setting { name, default, doc }
}

impl Security {
    /// Reads the security settings from these properties and ignores all other properties. Used by clients that are not
    /// producers.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if a value is not allowed, if settings contradict each other, or if keys or certificates
    /// cannot be used.
    pub fn from_properties<'a>(properties: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, ConfigError> {
        let mut security = Security::default();
        for (name, value) in properties {
            security.set(name, value)?;
        }
        security.check()?;
        Ok(security)
    }

    /// Creates TLS from settings that the caller has read. With `compares_names`, the certificate of a server must
    /// match the host name.
    pub fn tls(settings: Settings, compares_names: bool) -> Self {
        Security { is_tls: true, any_host_name: !compares_names, settings, ..Security::default() }
    }

    /// Returns the settings of security.
    pub fn settings() -> impl Iterator<Item = Setting> {
        SETTINGS.into_iter()
    }

    /// Sets one setting by its name in Kafka. Returns false if it is not a setting of security.
    ///
    /// # Errors
    /// Returns [`ConfigError::Value`] with the allowed values, if the value is not allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ConfigError> {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else { return Ok(false) };
        self.take(name, value.trim()).map_err(|allowed| setting.refused(value, allowed))?;
        Ok(true)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        // The connector was loaded with the old settings, so it is dropped.
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

    /// Returns true if connections are TLS.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Checks that the settings do not contradict each other, and loads keys and certificates.
    ///
    /// # Errors
    /// Returns [`ConfigError`] with the setting, if it cannot be used.
    pub fn check(&self) -> Result<(), ConfigError> {
        let contradiction =
            |(key, reason): (&str, &str)| MaterialError { setting: key.to_owned(), reason: reason.to_owned() };
        self.settings.check().map_err(contradiction)?;
        self.connector()?;
        Ok(())
    }

    /// Returns the connector of TLS sessions, or `None` if connections are plain.
    ///
    /// # Errors
    /// Returns [`MaterialError`] if keys or certificates cannot be used and none were loaded before.
    pub fn connector(&self) -> Result<Option<Connector>, MaterialError> {
        if !self.is_tls {
            return Ok(None);
        }
        let stamps = self.settings.stamps();
        let mut kept = self.connector.lock();
        if let Some(loaded) = kept.as_ref().filter(|loaded| loaded.stamps == stamps) {
            return Ok(Some(loaded.connector.clone()));
        }
        match (Connector::load(&self.settings, !self.any_host_name), &*kept) {
            (Ok(connector), _) => {
                *kept = Some(Loaded { stamps, connector: connector.clone() });
                Ok(Some(connector))
            }
            (Err(_), Some(before)) => Ok(Some(before.connector.clone())),
            (Err(error), None) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Security, String> {
        Security::from_properties(pairs.iter().copied()).map_err(|error| error.to_string())
    }

    #[test]
    fn security_protocol_chooses_plain_or_tls() {
        assert!(!of(&[]).expect("plain").is_tls());
        assert!(!of(&[("security.protocol", "PLAINTEXT"), ("linger.ms", "never")]).expect("plain").is_tls());
        let any_case = [("security.protocol", "ssl"), ("ssl.endpoint.identification.algorithm", "HTTPS")];
        assert!(of(&any_case).expect("as Kafka's clients take it").is_tls());
        let refusal = of(&[("security.protocol", "SASL_SSL")]).expect_err("not offered");
        assert_eq!(refusal, "security.protocol=SASL_SSL: must be PLAINTEXT or SSL: SASL is not offered yet");
    }

    #[test]
    fn new_or_replaced_files_are_used_by_the_next_connection() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let file = directory.path().join("ca.pem");
        let path = file.to_str().expect("text").to_owned();
        let settings = [("security.protocol", "SSL"), ("ssl.truststore.location", path.as_str())];
        let mut security = Security::default();
        settings.iter().for_each(|(name, value)| assert_eq!(security.set(name, value), Ok(true)));
        security.connector().expect_err("there is no file");
        let read_at = |contents: &str| {
            std::fs::write(&file, contents).expect("written");
            security.connector().expect("something can be used");
            security.connector.lock().as_ref().map(|loaded| loaded.stamps.clone())
        };
        let one = read_at(&fullbore_tests::pki::Authority::new("one").pem());
        let another = read_at(&fullbore_tests::pki::Authority::new("another one").pem());
        assert_ne!(one, another);
        assert_eq!(read_at("nonsense"), another, "the last that could be used");
    }

    #[test]
    fn a_wrong_setting_is_reported_with_its_key_and_without_secrets() {
        let ssl = ("security.protocol", "SSL");
        for (pairs, expected) in [
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
            let refusal = of(&pairs).expect_err(expected);
            assert!(refusal.contains(expected) && !refusal.contains("TOPSECRET"), "{refusal}");
        }
    }
}
