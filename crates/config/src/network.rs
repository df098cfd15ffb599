//! The broker's listeners, and the limits of memory and time for each connection.

use std::time::Duration;

use super::error::{ConfigError, Mistakes, Warning};
use super::listener::{Listener, ListenerTexts, parse_admin, parse_listeners};
use super::properties::Properties;
use super::reader::ConfigReader;
use super::ssl;

/// Settings of the broker's sockets.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// The listeners. There is at least one, and their names are distinct.
    pub listeners: Vec<Listener>,
    /// The host and port of the HTTP admin page; `None` if it is turned off.
    pub admin_listener: Option<(String, u16)>,
    /// fullbore.ssl.handshake.timeout.ms
    pub ssl_handshake_timeout_ms: u64,
    /// How long the broker waits between two checks for changed certificate files. With `None`, it never checks.
    pub ssl_reload_interval_ms: Option<u64>,
    /// The size of SO_SNDBUF. With `None`, the system chooses it.
    pub send_buffer_bytes: Option<usize>,
    /// The size of SO_RCVBUF. With `None`, the system chooses it.
    pub receive_buffer_bytes: Option<usize>,
    /// socket.listen.backlog.size
    pub listen_backlog: u32,
    /// Limits of each connection.
    pub connection: ConnectionLimits,
}

/// Limits of a single connection.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Maximum size of a request, in bytes (`socket.request.max.bytes`).
    pub request_bytes_max: usize,
    /// Maximum number of requests that are admitted but not yet answered.
    pub requests_max: usize,
    /// Maximum memory of the admitted requests and their responses, in bytes. A request that is larger than this limit
    /// is admitted if no other request is.
    pub bytes_max: usize,
    /// How long a connection may be idle before the broker closes it (`connections.max.idle.ms`). While a response is
    /// due, the connection does not count as idle.
    pub idle_max: Option<Duration>,
}

impl NetworkConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(
        values: &ConfigReader<F>,
        checked: &Properties,
    ) -> Result<(Self, Vec<Warning>), Mistakes> {
        let admin = "fullbore.admin.listener";
        let mut mistakes = Mistakes::default();
        let found = (
            mistakes.keep(read_listeners(values, checked)),
            mistakes.keep(parse_admin(admin, &values.text(admin).unwrap_or_default())),
        );
        let (Some((listeners, warnings)), Some(admin_listener)) = found else { return Err(mistakes) };
        let network = Self {
            listeners,
            admin_listener,
            ssl_handshake_timeout_ms: values.number("fullbore.ssl.handshake.timeout.ms"),
            ssl_reload_interval_ms: values.unless_minus_one("fullbore.ssl.reload.interval.ms"),
            send_buffer_bytes: values.unless_minus_one("socket.send.buffer.bytes"),
            receive_buffer_bytes: values.unless_minus_one("socket.receive.buffer.bytes"),
            listen_backlog: values.number("socket.listen.backlog.size"),
            connection: ConnectionLimits {
                request_bytes_max: values.number("socket.request.max.bytes"),
                requests_max: values.number("fullbore.connection.requests.max"),
                bytes_max: values.number("fullbore.connection.bytes.max"),
                idle_max: values.unless_minus_one("connections.max.idle.ms").map(Duration::from_millis),
            },
        };
        Ok((network, warnings))
    }
}

fn read_listeners<F>(
    values: &ConfigReader<F>,
    checked: &Properties,
) -> Result<(Vec<Listener>, Vec<Warning>), ConfigError>
where
    F: Fn(&str) -> Option<String>,
{
    let for_all = ssl::for_all(values);
    let listeners = values.text("listeners").unwrap_or_default();
    let advertised = values.text("advertised.listeners");
    let protocols = values.text("listener.security.protocol.map");
    let controllers = values.text("controller.listener.names");
    let texts = ListenerTexts {
        listeners: &listeners,
        advertised: advertised.as_deref(),
        protocols: protocols.as_deref(),
        controllers: controllers.as_deref(),
    };
    let (listeners, mut warnings) = parse_listeners(&texts, |name| ssl::of_listener(name, &for_all, checked))?;
    warnings.extend(ssl::in_vain(&listeners, checked));
    Ok((listeners, warnings))
}
