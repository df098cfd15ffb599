//! Errors of settings, of a shared connection, of a cluster, and of a tool. The text of a tool's error is a sentence
//! with the user's next step.

use crate::protocol::ProtocolError;
use fullbore_wire::{DecodeError, EncodeError, ErrorCode, has_port_too_large};

/// Beginning of the text of a connection error if the host's name has no address.
const UNKNOWN_HOST: &str = "no address is known for the host";

/// Returns the failure of the look-up of a host with this program's text.
pub(crate) fn unknown_host(error: &std::io::Error) -> std::io::Error {
    // Removes the action, which the standard library puts before the reason.
    let text = error.to_string();
    let reason = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    std::io::Error::new(std::io::ErrorKind::NotFound, format!("{UNKNOWN_HOST} ({reason})"))
}

/// Returns the user's next step after [`ClientError::Connect`].
fn next_step(source: &std::io::Error) -> &'static str {
    match source.to_string().starts_with(UNKNOWN_HOST) {
        true => "correct the name in --bootstrap-server, or in advertised.listeners of the broker that gave it",
        false => "start a broker with `fullbore serve`, or name one with --bootstrap-server",
    }
}

/// Returns the reason why a text is no address, for [`ClientError::Address`].
fn address_mistake(text: &str) -> &'static str {
    match has_port_too_large(text) {
        true => "has a port above 65535",
        false => "is not host:port ([::1]:port of IPv6)",
    }
}

/// Error of a request to a broker, as a tool shows it.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Failed connection: no broker of the list answers.
    #[error("cannot connect to {address}: {source}; {}", next_step(source))]
    Connect {
        /// Address as `host:port`.
        address: String,
        /// Error of the last attempt.
        source: std::io::Error,
    },
    /// Failed TLS handshake with a host that answers.
    #[error("cannot connect to {address}: {source}")]
    Handshake {
        /// Address as `host:port`.
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
        /// Address as `host:port`.
        address: String,
        /// Error of the socket.
        source: std::io::Error,
    },
    /// Response that did not arrive in time.
    #[error("{address} gave no answer in {patience:?}; see whether it is stopped or overloaded")]
    Silent {
        /// Address as `host:port`.
        address: String,
        /// Time for which the client waited.
        patience: std::time::Duration,
    },
    /// Frame that is not a response.
    #[error("{address} answered {api} with bytes that are no response: {source}; is it a Kafka broker?")]
    Decode {
        /// Address as `host:port`.
        address: String,
        /// Name of the request's API.
        api: &'static str,
        /// Fault of the bytes or of the request.
        source: DecodeError,
    },
    /// Request that cannot be encoded.
    #[error("cannot encode the {api} request: {source}")]
    Encode {
        /// Name of the request's API.
        api: &'static str,
        /// Fault of the bytes or of the request.
        source: EncodeError,
    },
    /// Response that is longer than this program accepts.
    #[error("{address} announced a response of {len} bytes, more than {max}; is it a Kafka broker?")]
    TooLarge {
        /// Address as `host:port`.
        address: String,
        /// Number of bytes that the broker announced.
        len: u32,
        /// Largest accepted number of bytes.
        max: usize,
    },
    /// API of which broker and client have no version in common.
    #[error("{address} does not offer {api} in a version this program speaks; use a Kafka broker of 2.1 or later")]
    Version {
        /// Address as `host:port`.
        address: String,
        /// Name of the request's API.
        api: &'static str,
    },
    /// Error code of a broker.
    #[error("{what}: {message}")]
    Kafka {
        /// Description of the attempt that failed.
        what: String,
        /// Kafka's error code.
        code: ErrorCode,
        /// Message of the broker, or meaning of the code.
        message: String,
    },
    /// Topic that does not exist.
    #[error(
        "topic '{0}' does not exist; `fullbore topics list` shows those that do, `fullbore topics create` makes one"
    )]
    NoTopic(String),
    /// Group that does not exist: it has neither members nor offsets.
    #[error("consumer group '{0}' does not exist; `fullbore groups list` shows those that do")]
    NoGroup(String),
    /// Group whose members are not consumers, such as those of Kafka Connect.
    #[error("group '{id}' is not a consumer group ({protocol_type}); `fullbore groups list` shows those that are")]
    NotConsumers {
        /// Id of the group.
        id: String,
        /// Protocol type with which its members joined.
        protocol_type: String,
    },
    /// Broker id that no live broker has.
    #[error(
        "broker '{0}' does not exist or is not running; see the ids with `fullbore configs describe --entity-type brokers`"
    )]
    NoBroker(String),
    /// Partition without a leader.
    #[error("partition {partition} of topic '{topic}' has no leader; see whether its brokers are running")]
    NoLeader {
        /// Name of the topic.
        topic: String,
        /// Number of the partition.
        partition: i32,
    },
    /// Partition that the topic does not have.
    #[error("topic '{topic}' has no partition {partition}; it has 0 to {last}")]
    NoPartition {
        /// Name of the topic.
        topic: String,
        /// Number of the partition.
        partition: i32,
        /// Number of the topic's last partition.
        last: i32,
    },
    /// Transactional id that no coordinator has.
    #[error("transactional id '{0}' does not exist; `fullbore transactions list` shows those that do")]
    NoTransactionalId(String),
}

impl ClientError {
    /// Returns the client's error for a protocol fault on the connection to this address.
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

    /// Returns the error of a code, with the broker's message if it sent one, otherwise with the meaning of the code.
    pub fn kafka(what: impl Into<String>, code: ErrorCode, message: Option<&str>) -> Self {
        let message = message.filter(|text| !text.is_empty()).unwrap_or_else(|| code.message());
        ClientError::Kafka { what: what.into(), code, message: message.to_owned() }
    }

    /// Returns the error of a code with the code's name. For requests that are retried: a waiting user may want to look
    /// up the name.
    pub fn refused(what: impl std::fmt::Display, code: ErrorCode) -> Self {
        ClientError::kafka(format!("{what}: {code}"), code, None)
    }

    /// Returns true if a retry, perhaps with another broker, may succeed.
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

    /// Returns true if the broker has closed the connection, as it closes idle ones (connections.max.idle.ms). A retry
    /// over a new connection may succeed.
    pub fn is_closed(&self) -> bool {
        use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let ClientError::Io { source, .. } = self else { return false };
        [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&source.kind())
    }
}

/// Error of settings with which a client cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Missing value of a setting that has no default.
    #[error("{0} must be set")]
    Missing(&'static str),
    /// Value that is not allowed.
    #[error("{key}={value}: {allowed}")]
    Value {
        /// Name of the setting.
        key: &'static str,
        /// Refused value.
        value: String,
        /// Sentence with the allowed values.
        allowed: String,
    },
    /// Two settings that contradict each other.
    #[error("{first} contradicts {second}: {why}")]
    Conflict {
        /// First setting, with its value.
        first: String,
        /// Second setting, with its value.
        second: String,
        /// Rule that both break together.
        why: &'static str,
    },
    /// Settings of TLS that contradict each other, or keys or certificates that cannot be used.
    #[error("{0}")]
    Security(#[from] fullbore_tls::MaterialError),
    /// Refusal of the client's thread by the system.
    #[error("the client's thread does not start: {0}")]
    Thread(String),
}

/// Reason why a request has no response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectionError {
    /// Failed attempt to connect; nothing was sent.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// Address as `host:port`.
        address: String,
        /// Error of the system.
        reason: String,
    },
    /// Failed start of a connection to a host that answers: of TLS, or of the negotiation of API versions.
    #[error("cannot connect to {address}: {reason}")]
    Handshake {
        /// Address as `host:port`.
        address: String,
        /// Reason as a sentence.
        reason: String,
    },
    /// End of the connection before the request was written.
    #[error("the connection to {0} is closed")]
    NotSent(String),
    /// End of the connection after the request, or a part of it, was written.
    #[error("the connection to {address} ended before the response: {reason}")]
    Disconnected {
        /// Address as `host:port`.
        address: String,
        /// Error of the system, or fault of the broker.
        reason: String,
    },
    /// Request that cannot be encoded, or response that cannot be used.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

impl ConnectionError {
    /// Returns true if a retry, perhaps later or with another broker, may succeed.
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
    /// Failed requests to all brokers.
    #[error("no broker answered; the last error: {0}")]
    Connection(#[from] ConnectionError),
    /// Broker id that is not in the cluster's metadata.
    #[error("broker {0} is not known")]
    UnknownBroker(i32),
    /// Error code of a broker's response.
    #[error("the cluster answered {0}")]
    Broker(ErrorCode),
    /// Error code of a search for a coordinator.
    #[error("the cluster answered {code}: {message}")]
    Coordinator {
        /// Kafka's error code.
        code: ErrorCode,
        /// Message of the broker, or meaning of the code.
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
