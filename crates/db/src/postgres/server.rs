//! The address and credentials of the database, from the URL in `control.plane`.
//!
//! `session` opens the connections. Invariant: the password is sent only to the server, and does not appear in log
//! lines or errors.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fullbore_tls::MaterialError;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::hosts::Hosts;
use super::known_changes::KnownChanges;
use super::settings::SessionSettings;
use super::tls::{Encryption, MakeSession};
use super::url::{self, BadServer};
use crate::calls::CountedCalls;
use fullbore_config::PlaneSettings;
use fullbore_host::files::{SETTINGS_FILE_MAX, read_text};
use fullbore_host::log_rate_limit::LogRateLimit;

/// The port for a URL without a port.
pub const PORT: u16 = 5432;
/// Minimum idle time before a keepalive is sent. The operating system counts this time in whole seconds.
const KEEPALIVE_MIN: Duration = Duration::from_secs(1);

/// The address and credentials of a database.
#[derive(Clone)]
pub struct Server {
    /// The connection's parameters. They do not include a password that is in a file.
    pub config: Config,
    /// The hosts of `config`.
    pub hosts: Hosts,
    encryption: Encryption,
    password_file: Option<PathBuf>,
    /// The time limit of one call.
    pub call_max: Duration,
    /// Counts the calls. `None` if they are not counted.
    pub counted: Option<CountedCalls>,
    /// The changes to diskless topics that this process knows to be committed to the database.
    pub changes: Arc<KnownChanges>,
    /// Limits the rate of log lines about a pooler.
    pub pooled: Arc<LogRateLimit>,
    shown: String,
}

impl Server {
    /// Reads the URL, and the TLS files that are given in it.
    ///
    /// # Errors
    /// Returns [`BadServer`] if the URL or a file is invalid. The reason does not quote the URL.
    pub fn new(settings: &PlaneSettings, application: &str) -> Result<Self, BadServer> {
        let (url, parameters) = url::take(settings.url())?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            // Use only the text before the first colon. The rest comes from the error's source and would quote the URL.
            let words = error.to_string();
            let words = words.split(':').next().unwrap_or("invalid");
            BadServer(format!("{words}; control.plane must have the form postgres://user@host:{PORT}/database"))
        })?;
        if config.get_hosts().is_empty() {
            config.host("localhost");
        }
        if config.get_hosts().len() > 1 {
            // With several hosts, such as a primary and its standbys, the client chooses the one that accepts writes.
            config.target_session_attrs(tokio_postgres::config::TargetSessionAttrs::ReadWrite);
        }
        let call_max = Duration::from_millis(settings.timeout_ms);
        let encryption = parameters.apply(&mut config)?;
        // Read the TLS files now, so that the broker does not start with unusable files.
        encryption.load().map_err(unusable)?;
        if config.get_application_name().is_none() {
            config.application_name(application);
        }
        config
            .tcp_user_timeout(call_max)
            .keepalives(true)
            .keepalives_idle(call_max.max(KEEPALIVE_MIN))
            .keepalives_interval(Duration::from_secs(1))
            .keepalives_retries(5);
        let hosts = Hosts::new(&config);
        config.connect_timeout(share(call_max, &hosts));
        let shown = shown(&config);
        let password_file = settings.password_file.clone();
        Ok(Self {
            config,
            hosts,
            encryption,
            password_file,
            call_max,
            counted: None,
            changes: Arc::default(),
            pooled: Arc::default(),
            shown,
        })
    }

    /// Adds a counter for the calls to this server.
    pub fn counted(self, calls: CountedCalls) -> Self {
        Self { counted: Some(calls), ..self }
    }

    /// Shares `changes` with the other connections of this process to the same database.
    pub fn knowing(self, changes: Arc<KnownChanges>) -> Self {
        Self { changes, ..self }
    }

    /// Returns the address and the database's name, without user and password.
    pub fn name(&self) -> &str {
        &self.shown
    }

    /// Returns the time limit of one host during an attempt to connect. The hosts share the time limit of a call, so
    /// that a silent host leaves time for the others.
    pub fn host_max(&self) -> Duration {
        share(self.call_max, &self.hosts)
    }

    /// Returns the configuration of a new session with the host at this index. The configuration has the parameters of
    /// the URL and `settings`. Reads the files with the password, the authorities and the certificate again, since they
    /// may have changed.
    ///
    /// # Errors
    /// Returns [`BadServer`] if a file cannot be read or used.
    pub fn session(&self, host: usize, settings: Option<&SessionSettings>) -> Result<(Config, MakeSession), BadServer> {
        let mut config = self.hosts.only(&self.config, host);
        if let Some(file) = &self.password_file {
            let unreadable = |error| BadServer(format!("control.plane.password.file={}: {error}", file.display()));
            let password = read_text(file, SETTINGS_FILE_MAX).map_err(unreadable)?;
            config.password(password.trim_end_matches(['\r', '\n']));
        }
        if let Some(settings) = settings {
            let theirs = config.get_options().unwrap_or_default().to_owned();
            config.options(format!("{theirs} {}", settings.options()).trim());
        }
        Ok((config, self.encryption.load().map_err(unusable)?))
    }
}

fn share(call_max: Duration, hosts: &Hosts) -> Duration {
    call_max / u32::try_from(hosts.count()).unwrap_or(u32::MAX)
}

fn unusable(error: MaterialError) -> BadServer {
    BadServer(format!("TLS to PostgreSQL: {error}"))
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
