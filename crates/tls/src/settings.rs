//! Kafka's `ssl.*` settings that mean the same for clients and brokers. Each value is checked when it is set.
//!
//! The files that the settings name are not read here. Invariant: every accepted value is used, and every refusal names
//! the allowed values.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use crate::suites;
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};
use std::fmt;

/// A text that is never shown: a key, a password, or a certificate that is given as text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the secret text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// The text that is shown in place of a secret.
const HIDDEN: &str = "[hidden]";

/// Returns true if the value of the setting `key` must not be shown. These are Kafka's settings of type PASSWORD, all
/// names that contain `password`, `secret` or `jaas`, and `control.plane`, whose URL may contain a database's password.
pub fn is_secret(key: &str) -> bool {
    const INLINE: [&str; 3] = ["ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates"];
    let key = key.to_ascii_lowercase();
    ["password", "secret", "jaas"].iter().any(|word| key.contains(word))
        || INLINE.iter().any(|end| key.ends_with(end))
        || key == "control.plane"
}

/// The TLS settings of a client or of a listener. An empty text counts as unset, as in Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// PEM file with the private key and its certificates (`ssl.keystore.location`).
    pub(crate) keystore_location: Option<String>,
    /// Private key (`ssl.keystore.key`).
    pub(crate) keystore_key: Option<Secret>,
    /// The certificates for `ssl.keystore.key`, the leaf first (`ssl.keystore.certificate.chain`).
    pub(crate) keystore_chain: Option<Secret>,
    /// The password of an encrypted private key (`ssl.key.password`).
    pub(crate) key_password: Option<Secret>,
    /// PEM file with the trusted certificates (`ssl.truststore.location`).
    pub(crate) truststore_location: Option<String>,
    /// Trusted certificates as PEM text (`ssl.truststore.certificates`).
    pub(crate) truststore_certificates: Option<Secret>,
    /// True if TLS 1.2 is enabled (`ssl.enabled.protocols`).
    pub(crate) tls12: bool,
    /// True if TLS 1.3 is enabled (`ssl.enabled.protocols`).
    pub(crate) tls13: bool,
    /// True if no version after TLS 1.2 may be used (`ssl.protocol=TLSv1.2`).
    pub(crate) at_most_tls12: bool,
    /// The names of the allowed cipher suites (`ssl.cipher.suites`). All are allowed if the list is empty.
    pub(crate) cipher_suites: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            keystore_location: None,
            keystore_key: None,
            keystore_chain: None,
            key_password: None,
            truststore_location: None,
            truststore_certificates: None,
            tls12: true,
            tls13: true,
            at_most_tls12: false,
            cipher_suites: Vec::new(),
        }
    }
}

const STORES: &str = "must be PEM: other key stores are not supported (JKS is Kafka's default). Export the store to \
     PEM, and give the file to ssl.keystore.location or ssl.truststore.location, or the text to ssl.keystore.key and \
     ssl.keystore.certificate.chain or ssl.truststore.certificates";

impl Settings {
    /// The names of all settings that [`Settings::set`] accepts.
    pub const KEYS: [&'static str; 13] = [
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.truststore.password",
        "ssl.enabled.protocols",
        "ssl.protocol",
        "ssl.cipher.suites",
    ];

    /// Sets a setting by its name in Kafka.
    ///
    /// # Errors
    /// Returns a text with the allowed values if `value` is not one of them. Also fails if there is no such setting.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let value = value.trim();
        let text = (!value.is_empty()).then(|| value.to_owned());
        let secret = text.clone().map(Secret);
        match key {
            "ssl.keystore.type" | "ssl.truststore.type" => match value {
                "" | "PEM" => {}
                _ => return Err(STORES.to_owned()),
            },
            "ssl.keystore.location" => self.keystore_location = text,
            "ssl.keystore.key" => self.keystore_key = secret,
            "ssl.keystore.certificate.chain" => self.keystore_chain = secret,
            "ssl.key.password" => self.key_password = secret,
            "ssl.truststore.location" => self.truststore_location = text,
            "ssl.truststore.certificates" => self.truststore_certificates = secret,
            // PEM stores have no password, and Kafka also refuses one.
            "ssl.keystore.password" if text.is_some() => {
                return Err(
                    "must be left out: a PEM file has no store password; ssl.key.password is the password of the key"
                        .to_owned(),
                );
            }
            "ssl.truststore.password" if text.is_some() => {
                return Err("must be left out: a PEM file has no store password".to_owned());
            }
            "ssl.keystore.password" | "ssl.truststore.password" => {}
            "ssl.enabled.protocols" => (self.tls12, self.tls13) = protocols(value)?,
            "ssl.protocol" => match value {
                "TLSv1.3" => self.at_most_tls12 = false,
                "TLSv1.2" => self.at_most_tls12 = true,
                _ => return Err("must be TLSv1.3, or TLSv1.2 to use no newer version".to_owned()),
            },
            "ssl.cipher.suites" => self.cipher_suites = cipher_suites(value)?,
            _ => return Err("is not a setting of TLS".to_owned()),
        }
        Ok(())
    }

    /// Checks that the settings do not contradict each other.
    ///
    /// # Errors
    /// Returns the name of a setting that contradicts another one, and an explanation.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if self.keystore_location.is_some() && (self.keystore_key.is_some() || self.keystore_chain.is_some()) {
            return Err(("ssl.keystore.location", "contradicts ssl.keystore.key and ssl.keystore.certificate.chain"));
        }
        if self.keystore_key.is_some() != self.keystore_chain.is_some() {
            return Err(("ssl.keystore.key", "needs ssl.keystore.certificate.chain; set both or neither"));
        }
        if self.truststore_location.is_some() && self.truststore_certificates.is_some() {
            return Err(("ssl.truststore.location", "contradicts ssl.truststore.certificates"));
        }
        if self.at_most_tls12 && !self.tls12 {
            return Err(("ssl.protocol", "TLSv1.2 contradicts ssl.enabled.protocols, which does not contain TLSv1.2"));
        }
        match self.suites().is_empty() {
            true => Err(("ssl.cipher.suites", "has no suite of a protocol in ssl.enabled.protocols")),
            false => Ok(()),
        }
    }

    /// Returns the enabled versions of TLS, the newest first.
    pub(crate) fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        suites::versions(self.tls12, self.tls13 && !self.at_most_tls12)
    }

    /// Returns the allowed cipher suites that can be used with an enabled version of TLS.
    pub(crate) fn suites(&self) -> Vec<SupportedCipherSuite> {
        suites::suites(&self.cipher_suites, &self.versions())
    }

    /// Returns true if the settings have a certificate to send to the peer.
    pub fn has_identity(&self) -> bool {
        self.keystore_location.is_some() || self.keystore_key.is_some()
    }

    /// Returns true if the settings have certificates to trust.
    pub fn has_trust(&self) -> bool {
        self.truststore_location.is_some() || self.truststore_certificates.is_some()
    }

    /// Returns the files that the settings name. Users may replace them while the process runs.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.keystore_location.iter().chain(&self.truststore_location).map(String::as_str)
    }

    /// Returns a stamp for each file. A stamp changes when its file is replaced or written. The caller should take the
    /// stamps before it reads the files, so that it can detect every later change.
    pub fn stamps(&self) -> Vec<FileStamp> {
        let stamp = |found: Metadata| Some((found.modified().ok()?, found.len(), found.ino()));
        self.files().map(|file| std::fs::metadata(file).ok().and_then(stamp)).collect()
    }
}

/// When a file was last changed, with its size and inode; None if the file does not exist.
pub type FileStamp = Option<(SystemTime, u64, u64)>;

fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn protocols(value: &str) -> Result<(bool, bool), String> {
    let known = ["TLSv1.2", "TLSv1.3"];
    match list(value).find(|item| !known.contains(item)) {
        None if list(value).next().is_some() => {
            let has = |name| list(value).any(|item| item == name);
            Ok((has("TLSv1.2"), has("TLSv1.3")))
        }
        _ => Err("must be TLSv1.2, TLSv1.3, or both with a comma".to_owned()),
    }
}

fn cipher_suites(value: &str) -> Result<Vec<String>, String> {
    let known = suites::names();
    match list(value).find(|item| !known.iter().any(|name| name == item)) {
        Some(unknown) => Err(format!("has {unknown}; must be some of {}", known.join(", "))),
        None => Ok(list(value).map(str::to_owned).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let mut settings = Settings::default();
        pairs.iter().try_for_each(|(key, value)| settings.set(key, value))?;
        settings.check().map(|()| settings).map_err(|(key, message)| format!("{key}: {message}"))
    }

    #[test]
    fn secrets_are_not_shown() {
        let settings = set(&[
            ("ssl.keystore.key", "TOPSECRET"),
            ("ssl.keystore.certificate.chain", "TOPSECRET"),
            ("ssl.key.password", "TOPSECRET"),
            ("ssl.truststore.certificates", "TOPSECRET"),
        ]);
        let shown = format!("{settings:?}");
        assert!(!shown.contains("TOPSECRET") && shown.contains("[hidden]"), "{shown}");
        for key in ["ssl.key.password", "listener.name.x.ssl.keystore.key", "sasl.jaas.config", "SSL.Keystore.Password"]
        {
            assert!(is_secret(key), "{key}");
        }
        assert!(!is_secret("ssl.keystore.location"));
    }

    #[test]
    fn other_stores_are_refused_with_the_keys_of_pem() {
        for (key, value) in [("ssl.keystore.type", "JKS"), ("ssl.truststore.type", "PKCS12")] {
            let refusal = set(&[(key, value)]).expect_err(value);
            assert!(
                refusal.starts_with("must be PEM") && refusal.contains("ssl.keystore.certificate.chain"),
                "{refusal}"
            );
        }
        assert!(set(&[("ssl.keystore.password", "x")]).expect_err("of a store").contains("ssl.key.password"));
        assert!(set(&[("ssl.keystore.password", ""), ("ssl.keystore.type", "PEM")]).is_ok());
    }

    #[test]
    fn contradictions_name_both_keys() {
        for (pairs, both) in [
            (
                vec![("ssl.keystore.location", "f"), ("ssl.keystore.key", "k")],
                ["ssl.keystore.location", "ssl.keystore.key"],
            ),
            (vec![("ssl.keystore.key", "k")], ["ssl.keystore.key", "ssl.keystore.certificate.chain"]),
            (
                vec![("ssl.protocol", "TLSv1.2"), ("ssl.enabled.protocols", "TLSv1.3")],
                ["ssl.protocol", "ssl.enabled.protocols"],
            ),
            (
                vec![("ssl.enabled.protocols", "TLSv1.2"), ("ssl.cipher.suites", "TLS_AES_128_GCM_SHA256")],
                ["ssl.cipher.suites", "ssl.enabled.protocols"],
            ),
        ] {
            let refusal = set(&pairs).expect_err(both[0]);
            assert!(both.iter().all(|key| refusal.contains(key)), "{refusal}");
        }
    }

    #[test]
    fn protocols_and_suites_by_javas_names() {
        let settings =
            set(&[("ssl.enabled.protocols", "TLSv1.2, TLSv1.3"), ("ssl.protocol", "TLSv1.2")]).expect("valid");
        assert!(settings.tls12 && settings.at_most_tls12);
        for value in ["TLSv1.1", "", "TLSv1.2,SSLv3"] {
            assert!(set(&[("ssl.enabled.protocols", value)]).expect_err(value).contains("TLSv1.2, TLSv1.3"));
        }
        let refusal = set(&[("ssl.cipher.suites", "TLS_RSA_WITH_NULL_MD5")]).expect_err("not offered");
        assert!(refusal.contains("TLS_AES_256_GCM_SHA384") && refusal.contains("TLS_ECDHE_RSA_WITH_AES"), "{refusal}");
    }
}
