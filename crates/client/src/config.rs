//! Settings of every connection: Kafka's names and defaults.
//!
//! Not here: `bootstrap.servers`, which the creator of a cluster passes, and the settings of TLS, which are in
//! [`security`](crate::security).

use crate::error::ConfigError;
use crate::key::{self, Key, Setting, ms, number};
use crate::security::Security;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Settings of every connection.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Name of the client, sent with every request (client.id).
    pub client_id: String,
    /// Longest wait for a response. After it, the request ends its connection (request.timeout.ms).
    pub request_timeout: Duration,
    /// Longest time that connecting may take (socket.connection.setup.timeout.ms).
    pub connect_timeout: Duration,
    /// Size of the send buffer (send.buffer.bytes); None lets the system choose and adapt it.
    pub send_buffer_bytes: Option<u32>,
    /// Size of the receive buffer (receive.buffer.bytes); None lets the system choose and adapt it.
    pub receive_buffer_bytes: Option<u32>,
    /// Longest time without traffic before a connection is closed (connections.max.idle.ms).
    pub connections_max_idle: Duration,
    /// Largest number of bytes of a response; a longer response ends the connection.
    pub response_bytes_max: usize,
    /// First pause after a failed attempt to connect (reconnect.backoff.ms).
    pub reconnect_backoff: Duration,
    /// Longest pause after a failed attempt to connect (reconnect.backoff.max.ms).
    pub reconnect_backoff_max: Duration,
    /// Plain connections, or TLS with its settings (security.protocol, ssl.*).
    pub security: Security,
    /// Addresses of relays by advertised address, both host:port: the client connects to the relay instead.
    /// Certificates and messages still have the advertised names. For tools; no key sets this field.
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

/// Settings of connections other than those of security, by name.
const KEYS: &[Key<ClientConfig>] = crate::keys! {
    "client.id", "fullbore", "Sent with every request (Kafka's default is empty).",
        |c, v| c.client_id = v.to_owned();
    "connections.max.idle.ms", "540000", "A connection without traffic for this long is closed.",
        |c, v| c.connections_max_idle = ms(v)?;
    "receive.buffer.bytes", "-1", "SO_RCVBUF; -1 leaves it, and its growth, to the system (Kafka's default is 32768).",
        |c, v| c.receive_buffer_bytes = socket_buffer(v)?;
    "reconnect.backoff.max.ms", "1000", "The longest pause between attempts to connect.",
        |c, v| c.reconnect_backoff_max = ms(v)?;
    "reconnect.backoff.ms", "50", "The first pause between attempts to connect.",
        |c, v| c.reconnect_backoff = ms(v)?;
    "request.timeout.ms", "30000", "A request without a response for this long ends its connection and is retried.",
        |c, v| c.request_timeout = ms(v)?;
    "send.buffer.bytes", "-1", "SO_SNDBUF; -1 leaves it, and its growth, to the system (Kafka's default is 131072).",
        |c, v| c.send_buffer_bytes = socket_buffer(v)?;
    "socket.connection.setup.timeout.ms", "10000", "Longest time for connecting, including the TLS handshake.",
        |c, v| c.connect_timeout = ms(v)?;
};

impl ClientConfig {
    /// Returns every setting of connections, including those of security.
    pub fn settings() -> impl Iterator<Item = Setting> {
        KEYS.iter().map(|key| key.setting).chain(Security::settings())
    }

    /// Sets one setting by its name in Kafka. Returns false if connections have no setting of this name.
    ///
    /// # Errors
    /// [`ConfigError::Value`] with the allowed values, if the value is not allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ConfigError> {
        Ok(key::set(KEYS, self, name, value)? || self.security.set(name, value)?)
    }
}

fn socket_buffer(value: &str) -> Result<Option<u32>, String> {
    let bytes = number(value, -1, i64::from(i32::MAX))?;
    Ok(u32::try_from(bytes).ok().filter(|bytes| *bytes > 0))
}
