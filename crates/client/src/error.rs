//! Errors of settings, of a shared connection, and of a cluster; and the sentence of a tool for its user, with the next
//! step.

use crate::protocol::ProtocolError;
use fullbore_wire::{DecodeError, EncodeError, ErrorCode, has_port_too_large};

/// Beginning of a connection error if the host's name has no address.
const UNKNOWN_HOST: &str = "no address is known for the host";

/// Returns the failure of a host's look-up in the words of this program.
pub(crate) fn unknown_host(error: &std::io::Error) -> std::io::Error {
    // The standard library puts the action before the reason.
    let text = error.to_string();
    let reason = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    std::io::Error::new(std::io::ErrorKind::NotFound, format!("{UNKNOWN_HOST} ({reason})"))
}

/// Returns the advice of [`ClientError::Connect`].
fn next_step(source: &std::io::Error) -> &'static str {
    match source.to_string().starts_with(UNKNOWN_HOST) {
        true => "correct the name in --bootstrap-server, or in advertised.listeners of the broker that gave it",
        false => "start a broker with `fullbore serve`, or name one with --bootstrap-server",
    }
}

/// Returns the reason of [`ClientError::Address`].
fn address_mistake(text: &str) -> &'static str {
    match has_port_too_large(text) {
        true => "has a port above 65535",
        false => "is not host:port ([::1]:port of IPv6)",
    }
}

/// Error of a request to a broker, as a tool shows it.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No broker of the list answers.
    #[error("cannot connect to {address}: {source}; {}", next_step(source))]
    Connect {
        /// Host and port.
        address: String,
        /// Error of the last attempt.
        source: std::io::Error,
    },
    /// The host answers, but there is no TLS session.
    #[error("cannot connect to {address}: {source}")]
    Handshake {
        /// Host and port.
        address: String,
        /// Reason as a sentence.
        source: std::io::Error,
    },
    /// Text that is not `host:port`.
    #[error(
        "{address:?} {}; write --bootstrap-server localhost:9092, several separated by commas",
        address_mistake(.0),
        address = .0
    )]
    Address(String),
    /// Connection that broke.
    #[error("the connection to {address} broke: {source}; see the broker's log")]
    Io {
        /// Host and port.
        address: String,
        /// Error of the socket.
        source: std::io::Error,
    },
    /// Response that did not arrive in time.
    #[error("{address} gave no answer in {patience:?}; see whether it is stopped or overloaded")]
    Silent {
        /// Host and port.
        address: String,
        /// Time for which the client waited.
        patience: std::time::Duration,
    },
    /// Frame that is not a response.
    #[error("{address} answered {api} with bytes that are no response: {source}; is it a Kafka broker?")]
    Decode {
        /// Host and port.
        address: String,
        /// The request.
        api: &'static str,
        /// The fault.
        source: DecodeError,
    },
    /// Request that cannot be encoded.
    #[error("cannot write {api}: {source}")]
    Encode {
        /// The request.
        api: &'static str,
        /// The fault.
        source: EncodeError,
    },
    /// Frame that would not fit in memory.
    #[error("{address} announced a response of {len} bytes, more than {max}; is it a Kafka broker?")]
    TooLarge {
        /// Host and port.
        address: String,
        /// Announced bytes.
        len: u32,
        /// Accepted bytes.
        max: usize,
    },
    /// The broker has no version in common.
    #[error("{address} does not offer {api} in a version this program speaks; use a Kafka broker of 2.1 or later")]
    Version {
        /// Host and port.
        address: String,
        /// The request.
        api: &'static str,
    },
    /// Kafka's error.
    #[error("{what}: {message}")]
    Kafka {
        /// Attempt that failed.
        what: String,
        /// Kafka's code.
        code: ErrorCode,
        /// The broker's message, or the code's meaning.
        message: String,
    },
    /// Topic that does not exist.
    #[error(
        "topic '{0}' does not exist; `fullbore topics list` shows those that do, `fullbore topics create` makes one"
    )]
    NoTopic(String),
    /// Group without members and offsets.
    #[error("consumer group '{0}' does not exist; `fullbore groups list` shows those that do")]
    NoGroup(String),
    /// Group whose members are not consumers, such as those of Kafka Connect.
    #[error("group '{id}' is not a consumer group ({protocol_type}); `fullbore groups list` shows those that are")]
    NotConsumers {
        /// The group.
        id: String,
        /// Protocol type that its members joined with.
        protocol_type: String,
    },
    /// No live broker has this id.
    #[error(
        "broker '{0}' does not exist or is not running; see the ids with `fullbore configs describe --entity-type brokers`"
    )]
    NoBroker(String),
    /// Partition without a leader.
    #[error("partition {partition} of topic '{topic}' has no leader; see whether its brokers are running")]
    NoLeader {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
    },
    /// Partition that the topic does not have.
    #[error("topic '{topic}' has no partition {partition}; it has 0 to {last}")]
    NoPartition {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The topic's last partition.
        last: i32,
    },
    /// Transactional id that no coordinator has.
    #[error("transactional id '{0}' does not exist; `fullbore transactions list` shows those that do")]
    NoTransactionalId(String),
}

impl ClientError {
    /// Returns the error of a protocol fault on the connection to this address.
    pub(crate) fn of_protocol(error: ProtocolError, address: &str) -> Self {
        let address = address.to_owned();
        match error {
            ProtocolError::Unsupported(api) => ClientError::Version { address, api },
            ProtocolError::Refused(code) => ClientError::kafka(format!("{address} refused ApiVersions"), code, None),
            ProtocolError::Encode { api, source } => ClientError::Encode { api, source },
            ProtocolError::Decode { api, source } => ClientError::Decode { address, api, source },
            ProtocolError::TooLong { len, max } => ClientError::TooLarge { address, len, max },
            ProtocolError::NotDue(_) => ClientError::Io { address, source: std::io::Error::other(error) },
        }
    }

    /// Returns Kafka's error with the broker's message if it sent one, else the code's meaning.
    pub fn kafka(what: impl Into<String>, code: ErrorCode, message: Option<&str>) -> Self {
        let message = message.filter(|text| !text.is_empty()).unwrap_or_else(|| code.message());
        ClientError::Kafka { what: what.into(), code, message: message.to_owned() }
    }

    /// Returns Kafka's error with its name, for a request that is retried: a waiting user may want to look it up.
    pub fn refused(what: impl std::fmt::Display, code: ErrorCode) -> Self {
        ClientError::kafka(format!("{what}: {code}"), code, None)
    }

    /// Returns true if another attempt, perhaps with another broker, may succeed.
    pub fn is_retriable(&self) -> bool {
        match self {
            ClientError::Connect { .. }
            | ClientError::Io { .. }
            | ClientError::Silent { .. }
            | ClientError::NoLeader { .. } => true,
            ClientError::Kafka { code, .. } => code.is_retriable(),
            _ => false,
        }
    }

    /// Returns true if the broker has closed the connection, as it does with idle ones (connections.max.idle.ms): a new
    /// one may serve.
    pub fn is_closed(&self) -> bool {
        use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let ClientError::Io { source, .. } = self else { return false };
        [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&source.kind())
    }
}

/// Error of settings with which a client cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Setting without a default that is not set.
    #[error("{0} must be set")]
    Missing(&'static str),
    /// Value that is not allowed.
    #[error("{key}={value}: {allowed}")]
    Value {
        /// The setting.
        key: &'static str,
        /// The refused value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// Two settings that exclude each other.
    #[error("{first} contradicts {second}: {why}")]
    Conflict {
        /// The first setting, with its value.
        first: String,
        /// The second setting, with its value.
        second: String,
        /// The rule.
        why: &'static str,
    },
    /// Settings of TLS that contradict each other; keys or certificates that cannot be used.
    #[error("{0}")]
    Security(#[from] fullbore_tls::MaterialError),
    /// The system refused the client's thread.
    #[error("the client's thread does not start: {0}")]
    Thread(String),
}

/// Reason why a request has no response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectionError {
    /// Failed attempt to connect; nothing was sent.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// host:port.
        address: String,
        /// The system's error.
        reason: String,
    },
    /// A broker answers, but not with TLS, or not with its API versions, as a connection starts.
    #[error("cannot connect to {address}: {reason}")]
    Handshake {
        /// host:port.
        address: String,
        /// Reason as a sentence.
        reason: String,
    },
    /// The connection had ended before the request was written.
    #[error("the connection to {0} is closed")]
    NotSent(String),
    /// The connection ended after the request, or part of it, was written.
    #[error("the connection to {address} ended before the response: {reason}")]
    Disconnected {
        /// host:port.
        address: String,
        /// The system's error, or the broker's fault.
        reason: String,
    },
    /// Request that cannot be made, or response that cannot be used.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

impl ConnectionError {
    /// Returns true if another attempt, perhaps elsewhere or later, may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Handshake { .. } | Self::NotSent(_) | Self::Disconnected { .. })
    }

    /// Returns true if the broker may have acted on the request.
    pub fn may_have_been_received(&self) -> bool {
        matches!(self, Self::Disconnected { .. } | Self::Protocol(ProtocolError::Decode { .. }))
    }
}

/// Reason why a request to the cluster has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MetadataError {
    /// No broker answered.
    #[error("no broker answered; the last error: {0}")]
    Connection(#[from] ConnectionError),
    /// The broker is not in the cluster's metadata.
    #[error("broker {0} is not known")]
    UnknownBroker(i32),
    /// The cluster answered with an error.
    #[error("the cluster answered {0}")]
    Broker(ErrorCode),
    /// The cluster names no coordinator.
    #[error("the cluster answered {code}: {message}")]
    Coordinator {
        /// Kafka's code.
        code: ErrorCode,
        /// The broker's message, or the code's meaning.
        message: String,
    },
}

impl MetadataError {
    /// Returns the error as a command shows it to its user; `servers` is the bootstrap list.
    pub fn for_user(self, servers: &str) -> ClientError {
        let other = |reason: String| std::io::Error::other(reason);
        let error = match self {
            MetadataError::Connection(error) => error,
            MetadataError::Broker(code) => return ClientError::kafka(format!("cannot ask {servers}"), code, None),
            MetadataError::Coordinator { code, message } => {
                return ClientError::kafka(format!("cannot find the coordinator with {servers}"), code, Some(&message));
            }
            MetadataError::UnknownBroker(_) => return ClientError::Address(servers.to_owned()),
        };
        match error {
            ConnectionError::Connect { address, reason } => ClientError::Connect { address, source: other(reason) },
            ConnectionError::Handshake { address, reason } => ClientError::Handshake { address, source: other(reason) },
            ConnectionError::Disconnected { address, reason } => ClientError::Io { address, source: other(reason) },
            ConnectionError::NotSent(address) => ClientError::Io { address, source: other("it is closed".to_owned()) },
            ConnectionError::Protocol(error) => ClientError::of_protocol(error, servers),
        }
    }
}
