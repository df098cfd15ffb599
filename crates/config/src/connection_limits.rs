//! What bounds the memory and the time of a connection.

use super::broker::BrokerConfig;
use std::time::Duration;

/// What one connection may use.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Bytes of one request (`socket.request.max.bytes`).
    pub request_bytes_max: usize,
    /// Requests admitted and not yet answered.
    pub requests_max: usize,
    /// Bytes those requests and their answers hold in memory; one is always let in.
    pub bytes_max: usize,
    /// Time without a byte from or to the client, while no answer is awaited (`connections.max.idle.ms`).
    pub idle_max: Option<Duration>,
}

impl From<&BrokerConfig> for ConnectionLimits {
    fn from(config: &BrokerConfig) -> Self {
        ConnectionLimits {
            request_bytes_max: config.socket_request_max_bytes,
            requests_max: config.connection_requests_max,
            bytes_max: config.connection_bytes_max,
            idle_max: config.connections_max_idle_ms.map(Duration::from_millis),
        }
    }
}
