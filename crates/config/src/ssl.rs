//! The TLS settings of a listener. `ssl.*` applies to all listeners, and `listener.name.<name>.ssl.*` overrides it, as
//! in Kafka.
//!
//! No file is read here. Invariant: an SSL listener has a certificate, its settings do not contradict each other, and a
//! setting that no listener uses is reported.

use super::broker_keys::broker_key;
use super::error::{ConfigError, Warning};
use super::key::Key;
use super::listener::{Listener, ListenerTls};
use super::properties::Properties;
use super::reader::ConfigReader;
use fullbore_tls::{ClientAuth, Settings};

const PREFIX: &str = "listener.name.";
const CLIENT_AUTH: &str = "ssl.client.auth";

/// A TLS key with the prefix of a listener, such as `listener.name.internal.ssl.keystore.location`.
pub(super) struct OfOneListener {
    /// The row of the same key without the prefix.
    pub key: &'static Key,
    /// The full name of the key, with the name of the listener in lower case.
    pub canonical: String,
}

/// Returns every key of TLS.
fn keys() -> impl Iterator<Item = &'static str> {
    Settings::KEYS.into_iter().chain([CLIENT_AUTH])
}

/// Parses a name of the form `listener.name.<name>.ssl.*`. Returns `None` for every other key.
pub(super) fn of_one_listener(name: &str) -> Option<OfOneListener> {
    let (listener, key) = name.strip_prefix(PREFIX)?.split_once('.')?;
    let key = keys().find(|known| *known == key)?;
    let canonical = own_name(listener, key);
    Some(OfOneListener { key: broker_key(key)?, canonical })
}

fn own_name(listener: &str, key: &str) -> String {
    format!("{PREFIX}{}.{key}", listener.to_ascii_lowercase())
}

/// Returns the TLS values that apply to all listeners.
pub(super) fn for_all<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Vec<(&'static str, String)> {
    keys().filter_map(|key| Some((key, values.text(key)?))).collect()
}

/// Returns the TLS settings of a single listener.
pub(super) fn of_listener(
    name: &str,
    for_all: &[(&'static str, String)],
    checked: &Properties,
) -> Result<ListenerTls, ConfigError> {
    let mut tls = ListenerTls::default();
    for key in keys() {
        let own = own_name(name, key);
        let found = match checked.get(&own) {
            Some(value) => Some((own.as_str(), value)),
            None => for_all.iter().find(|(known, _)| *known == key).map(|(key, value)| (*key, value.as_str())),
        };
        let Some((typed_as, value)) = found else { continue };
        match (key, value) {
            (CLIENT_AUTH, "required") => tls.client_auth = ClientAuth::Required,
            (CLIENT_AUTH, "requested") => tls.client_auth = ClientAuth::Requested,
            (CLIENT_AUTH, _) => tls.client_auth = ClientAuth::None,
            _ => tls.settings.set(key, value).map_err(|message| ConfigError::of_value(typed_as, value, message))?,
        }
    }
    let refuse = |key: &str, message: String| Err(ConfigError::of_key(key, message));
    if let Err((key, message)) = tls.settings.check() {
        return refuse(key, format!("{message} (listener {name})"));
    }
    if !tls.settings.has_identity() {
        let message = format!(
            "must be set for listener {name}: a PEM file with the private key and its certificates; or \
             ssl.keystore.key and ssl.keystore.certificate.chain as text"
        );
        return refuse("ssl.keystore.location", message);
    }
    if tls.client_auth != ClientAuth::None && !tls.settings.has_trust() {
        let message = format!(
            "must be set for listener {name}, since {CLIENT_AUTH} requests certificates: a PEM file with the \
             authorities to accept; or ssl.truststore.certificates as text"
        );
        return refuse("ssl.truststore.location", message);
    }
    Ok(tls)
}

/// Returns warnings about settings that no listener uses.
pub(super) fn in_vain(listeners: &[Listener], checked: &Properties) -> Vec<Warning> {
    let is_tls = |name: &str| listeners.iter().any(|l| l.tls.is_some() && l.name.eq_ignore_ascii_case(name));
    let why = |key: &str| match key.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.')) {
        Some((name, _)) if !is_tls(name) => Some(format!("has no effect: no listener {name} is SSL")),
        None if keys().any(|known| known == key) && !listeners.iter().any(|l| l.tls.is_some()) => {
            Some("has no effect: no listener is SSL".to_owned())
        }
        _ => None,
    };
    checked.iter().filter_map(|(key, _)| Some(Warning { key: key.to_owned(), message: why(key)? })).collect()
}

#[cfg(test)]
mod tests {
    use super::super::dynamic::NOTHING;
    use super::super::{BrokerConfig, describe_broker};
    use super::*;

    const TWO: &str = "listeners=PLAINTEXT://h:1,IN://h:2,OUT://h:3\nlistener.security.protocol.map=IN:SSL,OUT:SSL\n";

    fn parse(text: &str) -> Result<(BrokerConfig, Vec<Warning>), String> {
        let typed = Properties::parse(text).expect("properties");
        BrokerConfig::from_properties(&typed).map_err(|error| error.to_string())
    }

    fn refusal(text: &str) -> String {
        parse(text).expect_err(text)
    }

    #[test]
    fn a_listeners_own_settings_come_first() {
        let (config, warnings) = parse(&format!(
            "{TWO}ssl.keystore.location=/all.pem\nlistener.name.in.ssl.keystore.location=/in.pem\n\
             listener.name.IN.ssl.client.auth=required\nlistener.name.in.ssl.truststore.location=/ca.pem"
        ))
        .expect("valid");
        assert!(warnings.is_empty(), "{warnings:?}");
        let files = |index: usize| -> Vec<_> {
            let tls = config.network.listeners[index].tls.as_ref().expect("SSL");
            tls.settings.files().map(str::to_owned).collect()
        };
        assert!(config.network.listeners[0].tls.is_none());
        assert_eq!(files(1), ["/in.pem", "/ca.pem"]);
        assert_eq!(files(2), ["/all.pem"]);
        let auth = |index: usize| config.network.listeners[index].tls.as_ref().expect("SSL").client_auth;
        assert_eq!((auth(1), auth(2)), (ClientAuth::Required, ClientAuth::None));
    }

    #[test]
    fn a_listener_needs_a_certificate_and_with_client_auth_a_truststore() {
        assert!(refusal("listeners=SSL://h:1").starts_with("ssl.keystore.location: must be set for listener SSL"));
        let requests = refusal("listeners=SSL://h:1\nssl.keystore.location=/k\nssl.client.auth=requested");
        assert!(requests.starts_with("ssl.truststore.location: must be set for listener SSL"), "{requests}");
        assert!(parse("listeners=SSL://h:1\nssl.keystore.key=k\nssl.keystore.certificate.chain=c").is_ok());
    }

    #[test]
    fn unsupported_settings_are_refused_with_the_reason() {
        let jks = refusal("ssl.keystore.type=JKS");
        assert!(jks.starts_with("ssl.keystore.type=JKS: must be PEM") && jks.contains("ssl.keystore.key"), "{jks}");
        let own = refusal(&format!("{TWO}listener.name.in.ssl.truststore.type=PKCS12"));
        assert!(own.starts_with("listener.name.in.ssl.truststore.type=PKCS12: must be PEM"), "{own}");
        for (text, expected) in [
            ("ssl.engine.factory.class=x", "Java"),
            ("listener.name.ssl.max.connections=1", "only ssl.*"),
            ("ssl.client.auth=maybe", "none or requested or required"),
            ("ssl.protocol=TLS", "TLSv1.3 or TLSv1.2"),
        ] {
            assert!(refusal(text).contains(expected), "{}", refusal(text));
        }
    }

    #[test]
    fn a_password_of_a_store_is_refused_without_being_shown() {
        let refusal = refusal("listeners=SSL://h:1\nssl.keystore.location=/k\nssl.keystore.password=TOPSECRET");
        assert!(refusal.starts_with("ssl.keystore.password: must be left out"), "{refusal}");
    }

    #[test]
    fn settings_that_no_listener_uses_are_reported() {
        let (_, warnings) =
            parse("ssl.keystore.location=/k\nlistener.name.plaintext.ssl.client.auth=none").expect("valid");
        let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "listener.name.plaintext.ssl.client.auth: has no effect: no listener plaintext is SSL",
                "ssl.keystore.location: has no effect: no listener is SSL",
            ]
        );
    }

    #[test]
    fn secrets_are_neither_described_nor_printed() {
        let (config, _) = parse(
            "listeners=SSL://h:1\nssl.keystore.key=TOPSECRET\nssl.keystore.certificate.chain=TOPSECRET\nssl.key.password=TOPSECRET\n\
             listener.name.ssl.ssl.truststore.certificates=TOPSECRET",
        )
        .expect("valid");
        assert!(!format!("{config:?}").contains("TOPSECRET"));
        for entry in describe_broker(&config, &NOTHING).iter().filter(|entry| entry.name.starts_with("ssl.")) {
            let holds = entry.value.as_deref() == Some("TOPSECRET");
            assert!(!holds || entry.sensitive, "{}", entry.name);
        }
    }
}
