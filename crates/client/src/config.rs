//! Settings of every connection: Kafka's names and defaults.
//!
//! Not here: `bootstrap.servers`, which the creator of a cluster gives, and how connections are secured (see
//! [`security`](crate::security)), though its settings are reached from here, too.

use crate::error::ConfigError;
use crate::key::{self, Key, Setting, ms, number};
use crate::security::Security;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Settings of every connection.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Sent with every request (client.id).
    pub client_id: String,
    /// A request without a response for this long ends its connection (request.timeout.ms).
    pub request_timeout: Duration,
    /// How long connecting may take (socket.connection.setup.timeout.ms).
    pub connect_timeout: Duration,
    /// SO_SNDBUF; `None` leaves it, and its growth, to the system (send.buffer.bytes).
    pub send_buffer_bytes: Option<u32>,
    /// SO_RCVBUF; `None` leaves it, and its growth, to the system (receive.buffer.bytes).
    pub receive_buffer_bytes: Option<u32>,
    /// A connection without traffic for this long is closed (connections.max.idle.ms).
    pub connections_max_idle: Duration,
    /// A longer response ends the connection.
    pub response_bytes_max: usize,
    /// The first pause after a failed connection attempt (reconnect.backoff.ms).
    pub reconnect_backoff: Duration,
    /// The longest such pause (reconnect.backoff.max.ms).
    pub reconnect_backoff_max: Duration,
    /// Plain connections, or TLS and with what (security.protocol, ssl.*).
    pub security: Security,
    /// Brokers to be reached at another address than the cluster tells, host:port to host:port: a relay in between.
    /// For tools; no key sets it, and names stay those of the cluster.
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

/// The settings of a connection itself, by name.
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
    "socket.connection.setup.timeout.ms", "10000", "How long connecting may take.",
        |c, v| c.connect_timeout = ms(v)?;
};

impl ClientConfig {
    /// Every setting of connections, those of security among them.
    pub fn settings() -> impl Iterator<Item = Setting> {
        KEYS.iter().map(|key| key.setting).chain(Security::settings())
    }

    /// Sets one by Kafka's name; whether connections have it.
    ///
    /// # Errors
    /// The key, the value and what is allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ConfigError> {
        Ok(key::set(KEYS, self, name, value)? || self.security.set(name, value)?)
    }
}

fn socket_buffer(value: &str) -> Result<Option<u32>, String> {
    let bytes = number(value, -1, i64::from(i32::MAX))?;
    Ok(u32::try_from(bytes).ok().filter(|bytes| *bytes > 0))
}
