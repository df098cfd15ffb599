//! Handles the parameters of a database URL that libpq supports but tokio-postgres does not. It reads the parameters
//! for TLS. It accepts any other parameter whose value changes nothing, and refuses the rest.
//!
//! tokio-postgres parses the remaining URL. Invariant: no error quotes a part of the URL that could belong to a
//! password.

use std::path::PathBuf;

use fullbore_tls::Settings;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::tls::{Encryption, OwnCertificate};

/// Parameters that tokio-postgres reads itself.
const PASSED_ON: [&str; 16] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "options",
    "password",
    "port",
    "tcp_user_timeout",
    "user",
];
/// The value of `sslrootcert` that means the system's authorities.
const SYSTEM: &str = "system";

/// The error for an invalid URL, or for an invalid file that is given in the URL. The text does not contain the
/// password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadServer(pub String);

/// The TLS parameters of a URL.
#[derive(Default)]
pub struct TlsParameters {
    mode: Option<String>,
    root_certificates: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
    key_password: Option<String>,
}

/// Splits the URL into the URL for tokio-postgres and the TLS parameters.
///
/// # Errors
/// Returns [`BadServer`] with the parameter's name if a parameter is unknown or not supported.
pub fn take(url: &str) -> Result<(String, TlsParameters), BadServer> {
    let mut parameters = TlsParameters::default();
    let Some((address, query)) = url.split_once('?') else { return Ok((url.to_owned(), parameters)) };
    let mut left = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if PASSED_ON.contains(&name) {
            left.push(parameter);
        } else if !parameters.take(name, decoded(value))? {
            // Show the name only if it looks like the name of a parameter. Other text could belong to a password with a
            // question mark.
            let may_be_shown =
                !query.contains('@') && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase());
            let shown = if may_be_shown { name } else { "a parameter" };
            return Err(BadServer(format!("{shown}: is not a parameter of PostgreSQL; leave it out of the URL")));
        }
    }
    let rest = if left.is_empty() { address.to_owned() } else { format!("{address}?{}", left.join("&")) };
    Ok((rest, parameters))
}

impl TlsParameters {
    /// Accepts a parameter. Returns false if libpq has no parameter of this name.
    ///
    /// # Errors
    /// Returns [`BadServer`] if the parameter or its value is not supported.
    fn take(&mut self, name: &str, value: String) -> Result<bool, BadServer> {
        let must = |what: &str| Err(BadServer(format!("{name}: must be {what}")));
        match (name, value.as_str()) {
            ("sslmode", _) => self.mode = Some(value),
            ("sslrootcert", _) => self.root_certificates = Some(value),
            ("sslcert", _) => self.certificate = Some(value),
            ("sslkey", _) => self.key = Some(value),
            ("sslpassword", _) => self.key_password = Some(value),
            ("gssencmode", "disable" | "prefer") | ("sslsni", "1") | ("sslnegotiation", "postgres") => {}
            ("client_encoding", "UTF8" | "utf8" | "auto") | ("sslcompression", "0") => {}
            ("target_session_attrs", "any" | "primary" | "read-write") | ("fallback_application_name", _) => {}
            ("gssencmode", _) => return must("disable or prefer, since Kerberos is not supported"),
            ("sslsni", _) => return must("1, since TLS always sends the server's name"),
            ("sslnegotiation", _) => return must("postgres"),
            ("client_encoding", _) => return must("UTF8"),
            ("sslcompression", _) => return must("0"),
            ("target_session_attrs", _) => return must("any, primary or read-write, since brokers write metadata"),
            (
                "gssdelegation"
                | "gsslib"
                | "krbsrvname"
                | "max_protocol_version"
                | "min_protocol_version"
                | "passfile"
                | "replication"
                | "require_auth"
                | "requirepeer"
                | "service"
                | "ssl_max_protocol_version"
                | "ssl_min_protocol_version"
                | "sslcertmode"
                | "sslcrl"
                | "sslcrldir"
                | "sslkeylogfile",
                _,
            ) => return Err(BadServer(format!("{name}: is not supported; leave it out of the URL"))),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets the TLS mode in `config`. As in libpq, certificates are verified if the mode requires it, or if the URL
    /// contains authorities.
    ///
    /// # Errors
    /// Returns [`BadServer`] if the mode is unknown, or if parameters contradict each other.
    pub fn apply(self, config: &mut Config) -> Result<Encryption, BadServer> {
        let is_of_system = self.root_certificates.as_deref() == Some(SYSTEM);
        let has_roots = self.root_certificates.is_some();
        let default = if is_of_system { "verify-full" } else { "prefer" };
        let (mode, verifies, check_host_name) = match self.mode.as_deref().unwrap_or(default) {
            "disable" => (SslMode::Disable, false, false),
            "verify-full" => (SslMode::Require, true, true),
            "allow" | "prefer" | "require" | "verify-ca" if is_of_system => {
                return Err(BadServer(format!("sslrootcert={SYSTEM}: needs sslmode=verify-full")));
            }
            "allow" | "prefer" => (SslMode::Prefer, has_roots, false),
            "require" => (SslMode::Require, has_roots, false),
            "verify-ca" => (SslMode::Require, true, false),
            _ => return Err(BadServer("sslmode: must be disable, prefer, require, verify-ca or verify-full".into())),
        };
        config.ssl_mode(mode);
        let own = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => {
                Some(OwnCertificate { certificate: PathBuf::from(certificate), key: PathBuf::from(key) })
            }
            (None, None) => None,
            (Some(_), None) => return Err(BadServer("sslcert: needs sslkey".into())),
            (None, Some(_)) => return Err(BadServer("sslkey: needs sslcert".into())),
        };
        if mode == SslMode::Disable {
            return Ok(Encryption::Off);
        }
        let mut settings = Settings::default();
        if let Some(file) = self.root_certificates.filter(|file| file != SYSTEM) {
            settings.set("ssl.truststore.location", &file).map_err(BadServer)?;
        }
        if let Some(password) = self.key_password {
            settings.set("ssl.key.password", &password).map_err(BadServer)?;
        }
        Ok(Encryption::On { settings: Box::new(settings), own, verifies, check_host_name })
    }
}

/// Decodes the percent encoding (`%2F`) in the text.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (*first == b'%', hex.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (true, Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
