//! The settings of every connection, with Kafka's names and defaults.
//!
//! The creator of a cluster passes `bootstrap.servers`, and the settings of TLS are in [`security`](crate::security).

use crate::error::ConfigError;
use crate::key::{self, Key, Setting, ms, number};
use crate::security::Security;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The settings of every connection.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The name of the client, which is sent with every request (client.id).
    pub client_id: String,
    /// How long a request may wait for its response before the connection is closed (request.timeout.ms).
    pub request_timeout: Duration,
    /// How long connecting may take (socket.connection.setup.timeout.ms).
    pub connect_timeout: Duration,
    /// The size of the send buffer (send.buffer.bytes). `None` lets the system choose and adapt it.
    pub send_buffer_bytes: Option<u32>,
    /// The size of the receive buffer (receive.buffer.bytes). `None` lets the system choose and adapt it.
    pub receive_buffer_bytes: Option<u32>,
    /// How long a connection may be idle before it is closed (connections.max.idle.ms).
    pub connections_max_idle: Duration,
    /// Maximum size of a response, in bytes. A larger response ends the connection.
    pub response_bytes_max: usize,
    /// The pause after the first failed attempt to connect (reconnect.backoff.ms).
    pub reconnect_backoff: Duration,
    /// The maximum pause after a failed attempt to connect (reconnect.backoff.max.ms).
    pub reconnect_backoff_max: Duration,
    /// Plain connections, or TLS with its settings (security.protocol, ssl.*).
    pub security: Security,
    /// Relays by advertised address, both as host:port. The client connects to the relay instead of the advertised
    /// address, but checks certificates for the advertised name and shows that name in messages. Only tools set this
    /// field, so it has no key.
    pub detours: Arc<HashMap<String, String>>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            client_id: "fullbore".to_owned(),
            request_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            connections_max_idle: Duration::from_secs(540),
            response_bytes_max: 100 << 20,
            reconnect_backoff: Duration::from_millis(50),
            reconnect_backoff_max: Duration::from_secs(1),
            security: Security::default(),
            detours: Arc::default(),
        }
    }
}

/// The connection settings by name, without the security settings.
const KEYS: &[Key<ClientConfig>] = crate::keys! {
    "client.id", "fullbore", "Name of the client, sent with every request (Kafka's default is empty).",
        |c, v| c.client_id = v.to_owned();
    "connections.max.idle.ms", "540000", "A connection without traffic for this long is closed.",
        |c, v| c.connections_max_idle = ms(v)?;
    "receive.buffer.bytes", "-1", "SO_RCVBUF; -1 leaves the size to the system (Kafka's default is 32768).",
        |c, v| c.receive_buffer_bytes = socket_buffer(v)?;
    "reconnect.backoff.max.ms", "1000", "The longest pause between attempts to connect.",
        |c, v| c.reconnect_backoff_max = ms(v)?;
    "reconnect.backoff.ms", "50", "The first pause between attempts to connect.",
        |c, v| c.reconnect_backoff = ms(v)?;
    "request.timeout.ms", "30000", "A request without a response for this long ends its connection and is retried.",
        |c, v| c.request_timeout = ms(v)?;
    "send.buffer.bytes", "-1", "SO_SNDBUF; -1 leaves the size to the system (Kafka's default is 131072).",
        |c, v| c.send_buffer_bytes = socket_buffer(v)?;
    "socket.connection.setup.timeout.ms", "10000", "Longest time for connecting, including the TLS handshake.",
        |c, v| c.connect_timeout = ms(v)?;
};

impl ClientConfig {
    /// Returns all connection settings, including the security settings.
    pub fn settings() -> impl Iterator<Item = Setting> {
        KEYS.iter().map(|key| key.setting).chain(Security::settings())
    }

    /// Sets one setting by its name in Kafka. Returns false if connections have no setting of this name.
    ///
    /// # Errors
    /// Returns [`ConfigError::Value`] with the allowed values, if the value is not allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ConfigError> {
        Ok(key::set(KEYS, self, name, value)? || self.security.set(name, value)?)
    }
}

fn socket_buffer(value: &str) -> Result<Option<u32>, String> {
    let bytes = number(value, -1, i64::from(i32::MAX))?;
    Ok(u32::try_from(bytes).ok().filter(|bytes| *bytes > 0))
}
