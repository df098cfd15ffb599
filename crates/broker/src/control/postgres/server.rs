//! Where the database is and how it is reached: from the URL of `control.plane`.
//!
//! Not connections, which are `session`'s. Invariant: the password is in no text but what is sent to the server.

use std::path::PathBuf;
use std::time::Duration;

use fullbore_tls::{MaterialError, Settings};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::tls::{Encryption, MakeSession};
use crate::config::PlaneSettings;
use crate::metrics::CountedCalls;

/// The port of a URL that names none.
pub const PORT: u16 = 5432;
/// The system counts in seconds.
const KEEPALIVE_MIN: Duration = Duration::from_secs(1);
/// A holder of the lock that does not go on for this part of the time limit loses it, so that who waits gets it.
const FROZEN_PART: u32 = 2;

/// The database and how it is reached.
#[derive(Clone)]
pub struct Server {
    /// Without the password, where that is in a file.
    pub config: Config,
    encryption: Encryption,
    password_file: Option<PathBuf>,
    /// How long one call may take.
    pub call_max: Duration,
    /// Who counts what is asked of it, if anybody does.
    pub counted: Option<CountedCalls>,
    shown: String,
}

/// What is wrong with a URL, or with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadServer(pub String);

impl Server {
    /// Reads the URL, and what TLS needs.
    ///
    /// # Errors
    /// What is wrong with it, without it.
    pub fn new(settings: &PlaneSettings, application: &str) -> Result<Self, BadServer> {
        let (url, parameters) = take_tls(settings.url());
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            // Its source would quote what could not be read.
            let words = error.to_string();
            let words = words.split(':').next().unwrap_or("invalid");
            BadServer(format!("{words}; control.plane is as postgres://user@host:{PORT}/database"))
        })?;
        if config.get_hosts().is_empty() {
            config.host("localhost");
        }
        if config.get_hosts().len() > 1 {
            // Of a primary and its standbys, the one that may be written to.
            config.target_session_attrs(tokio_postgres::config::TargetSessionAttrs::ReadWrite);
        }
        let call_max = Duration::from_millis(settings.timeout_ms);
        let encryption = parameters.apply(&mut config)?;
        // What cannot be used is told at the start.
        encryption.load().map_err(unusable)?;
        config
            .application_name(application)
            .tcp_user_timeout(call_max)
            .keepalives(true)
            .keepalives_idle(call_max.max(KEEPALIVE_MIN))
            .keepalives_interval(Duration::from_secs(1))
            .keepalives_retries(5);
        // Who does not answer leaves time for the others.
        let hosts = u32::try_from(config.get_hosts().len()).unwrap_or(u32::MAX).max(1);
        config.connect_timeout(call_max / hosts);
        let shown = shown(&config);
        let password_file = settings.password_file.clone();
        Ok(Self { config, encryption, password_file, call_max, counted: None, shown })
    }

    /// The same, over a connection whose calls are counted.
    pub fn counted(self, calls: CountedCalls) -> Self {
        Self { counted: Some(calls), ..self }
    }

    /// Without user and password.
    pub fn name(&self) -> &str {
        &self.shown
    }

    /// What a new session needs: the password and the authorities as they are now, and these settings besides its own.
    ///
    /// # Errors
    /// The file with the password, or that with the authorities.
    pub fn session(&self, settings: &str) -> Result<(Config, MakeSession), BadServer> {
        let mut config = self.config.clone();
        if let Some(file) = &self.password_file {
            let unreadable = |error| BadServer(format!("control.plane.password.file={}: {error}", file.display()));
            let password = std::fs::read_to_string(file).map_err(unreadable)?;
            config.password(password.trim_end_matches(['\r', '\n']));
        }
        let ours = session_settings(self.call_max);
        let theirs = config.get_options().unwrap_or_default().to_owned();
        config.options(format!("{theirs} {ours} {settings}").trim());
        Ok((config, self.encryption.load().map_err(unusable)?))
    }
}

fn unusable(error: MaterialError) -> BadServer {
    BadServer(format!("TLS to PostgreSQL: {error}"))
}

/// What every session has: how literals are read, that a commit is on the disk, and how long anything may take.
fn session_settings(call_max: Duration) -> String {
    let ms = call_max.as_millis();
    let frozen_ms = (call_max / FROZEN_PART).as_millis();
    format!(
        "-c standard_conforming_strings=on -c synchronous_commit=on -c statement_timeout={ms} -c lock_timeout={ms} \
         -c idle_in_transaction_session_timeout={frozen_ms} -c client_min_messages=error -c search_path= \
         -c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off"
    )
}

fn shown(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(PORT);
    let host = |(at, host): (usize, &Host)| match host {
        Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", port(at)),
        Host::Tcp(name) => format!("{name}:{}", port(at)),
        Host::Unix(path) => format!("{}:{}", path.display(), port(at)),
    };
    let hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("postgres://{}/{database}", hosts.join(","))
}

/// The parameters of a URL that are about TLS, which the client of PostgreSQL does not know all of.
#[derive(Default)]
struct TlsParameters {
    mode: Option<String>,
    root_certificates: Option<String>,
}

/// Takes them out of the URL.
fn take_tls(url: &str) -> (String, TlsParameters) {
    let mut parameters = TlsParameters::default();
    let Some((address, query)) = url.split_once('?') else { return (url.to_owned(), parameters) };
    let mut left = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("sslmode", mode)) => parameters.mode = Some(mode.to_owned()),
            Some(("sslrootcert", file)) => parameters.root_certificates = Some(decoded(file)),
            _ => left.push(parameter),
        }
    }
    let rest = if left.is_empty() { address.to_owned() } else { format!("{address}?{}", left.join("&")) };
    (rest, parameters)
}

/// A text with `%2F` and the like as what it stands for.
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

impl TlsParameters {
    /// As libpq has them: without verification unless that is asked for, or authorities are named.
    fn apply(self, config: &mut Config) -> Result<Encryption, BadServer> {
        let has_roots = self.root_certificates.is_some();
        let (mode, verifies, check_host_name) = match self.mode.as_deref().unwrap_or("prefer") {
            "disable" => (SslMode::Disable, false, false),
            "allow" | "prefer" => (SslMode::Prefer, has_roots, false),
            "require" => (SslMode::Require, has_roots, false),
            "verify-ca" => (SslMode::Require, true, false),
            "verify-full" => (SslMode::Require, true, true),
            other => {
                let known = "disable, prefer, require, verify-ca or verify-full";
                return Err(BadServer(format!("sslmode={other}: must be {known}")));
            }
        };
        config.ssl_mode(mode);
        if mode == SslMode::Disable {
            return Ok(Encryption::Off);
        }
        let mut settings = Settings::default();
        if let Some(file) = self.root_certificates.filter(|file| file != "system") {
            settings.set("ssl.truststore.location", &file).map_err(BadServer)?;
        }
        Ok(Encryption::On { settings, verifies, check_host_name })
    }
}
