//! Listeners of the broker, and bounds of a connection's memory and time.

use std::time::Duration;

use super::error::{ConfigError, Mistakes, Warning};
use super::listener::{Listener, ListenerTexts, parse_admin, parse_listeners};
use super::properties::Properties;
use super::reader::ConfigReader;
use super::ssl;

/// The settings of sockets.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// Listeners, at least one, with distinct names.
    pub listeners: Vec<Listener>,
    /// Host and port of the HTTP page; `None` turns it off.
    pub admin_listener: Option<(String, u16)>,
    /// fullbore.ssl.handshake.timeout.ms
    pub ssl_handshake_timeout_ms: u64,
    /// Time between two checks for changed files; `None` never checks.
    pub ssl_reload_interval_ms: Option<u64>,
    /// `None` leaves SO_SNDBUF to the system.
    pub send_buffer_bytes: Option<usize>,
    /// `None` leaves SO_RCVBUF to the system.
    pub receive_buffer_bytes: Option<usize>,
    /// socket.listen.backlog.size
    pub listen_backlog: u32,
    /// Bounds of each connection.
    pub connection: ConnectionLimits,
}

/// Limits of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Most bytes of one request (`socket.request.max.bytes`).
    pub request_bytes_max: usize,
    /// Most requests admitted and not yet answered.
    pub requests_max: usize,
    /// Most bytes that admitted requests and their responses hold in memory; one request is always admitted.
    pub bytes_max: usize,
    /// Longest time without a byte from or to the client while no response is due (`connections.max.idle.ms`).
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
