//! Errors of settings, of a connection that many requests share, and of a cluster; and the sentence of a tool for its
//! user, with the next step.

use crate::protocol::ProtocolError;
use fullbore_wire::{DecodeError, EncodeError, ErrorCode, has_port_too_large};

/// The start of a connection error where the name of the host has no address.
const UNKNOWN_HOST: &str = "no address is known for the host";

/// The failure of a look-up of a host's name, in our words.
pub(crate) fn unknown_host(error: &std::io::Error) -> std::io::Error {
    // The standard library says first what it did, and then the reason.
    let text = error.to_string();
    let reason = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    std::io::Error::new(std::io::ErrorKind::NotFound, format!("{UNKNOWN_HOST} ({reason})"))
}

/// The advice of [`ClientError::Connect`].
fn next_step(source: &std::io::Error) -> &'static str {
    match source.to_string().starts_with(UNKNOWN_HOST) {
        true => "correct the name in --bootstrap-server, or in advertised.listeners of the broker that gave it",
        false => "start a broker with `fullbore serve`, or name one with --bootstrap-server",
    }
}

/// The reason of [`ClientError::Address`].
fn address_mistake(text: &str) -> &'static str {
    match has_port_too_large(text) {
        true => "has a port above 65535",
        false => "is not host:port ([::1]:port of IPv6)",
    }
}

/// Why a broker could not be asked or did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No broker of the list answers.
    #[error("cannot connect to {address}: {source}; {}", next_step(source))]
    Connect {
        /// Host and port.
        address: String,
        /// Why the last attempt failed.
        source: std::io::Error,
    },
    /// Somebody answers, but there is no TLS session.
    #[error("cannot connect to {address}: {source}")]
    Handshake {
        /// Host and port.
        address: String,
        /// Why, in words.
        source: std::io::Error,
    },
    /// Not `host:port`.
    #[error(
        "{address:?} {}; write --bootstrap-server localhost:9092, several separated by commas",
        address_mistake(.0),
        address = .0
    )]
    Address(String),
    /// The connection broke.
    #[error("the connection to {address} broke: {source}; see the broker's log")]
    Io {
        /// Host and port.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// An answer that did not come in time.
    #[error("{address} gave no answer in {patience:?}; see whether it is stopped or overloaded")]
    Silent {
        /// Host and port.
        address: String,
        /// How long it was waited for.
        patience: std::time::Duration,
    },
    /// A frame that is not a response.
    #[error("{address} answered {api} with bytes that are no response: {source}; is it a Kafka broker?")]
    Decode {
        /// Host and port.
        address: String,
        /// The request.
        api: &'static str,
        /// The fault.
        source: DecodeError,
    },
    /// A request that cannot be said.
    #[error("cannot write {api}: {source}")]
    Encode {
        /// The request.
        api: &'static str,
        /// The fault.
        source: EncodeError,
    },
    /// A frame that would not fit in memory.
    #[error("{address} announced a response of {len} bytes, more than {max}; is it a Kafka broker?")]
    TooLarge {
        /// Host and port.
        address: String,
        /// Bytes.
        len: u32,
        /// Bytes.
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
        /// The attempt.
        what: String,
        /// Kafka's code.
        code: ErrorCode,
        /// The broker's words, or the code's meaning.
        message: String,
    },
    /// Nobody has it.
    #[error(
        "topic '{0}' does not exist; `fullbore topics list` shows those that do, `fullbore topics create` makes one"
    )]
    NoTopic(String),
    /// Nobody is or was in it.
    #[error("consumer group '{0}' does not exist; `fullbore groups list` shows those that do")]
    NoGroup(String),
    /// A group whose members are no consumers, as those of Kafka Connect.
    #[error("group '{id}' is not a consumer group ({protocol_type}); `fullbore groups list` shows those that are")]
    NotConsumers {
        /// The group.
        id: String,
        /// The protocol type that its members joined with.
        protocol_type: String,
    },
    /// No broker that is alive has this id.
    #[error(
        "broker '{0}' does not exist or is not running; see the ids with `fullbore configs describe --entity-type brokers`"
    )]
    NoBroker(String),
    /// A partition cannot be used now.
    #[error("partition {partition} of topic '{topic}' has no leader; see whether its brokers are running")]
    NoLeader {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
    },
    /// A partition that the topic does not have.
    #[error("topic '{topic}' has no partition {partition}; it has 0 to {last}")]
    NoPartition {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The topic's last partition.
        last: i32,
    },
    /// A transactional id that no coordinator knows.
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

    /// Kafka's error with the broker's words when it sent some.
    pub fn kafka(what: impl Into<String>, code: ErrorCode, message: Option<&str>) -> Self {
        let message = message.filter(|text| !text.is_empty()).unwrap_or_else(|| code.message());
        ClientError::Kafka { what: what.into(), code, message: message.to_owned() }
    }

    /// Kafka's error with its name, for what is tried again: who waits wants to look it up.
    pub fn refused(what: impl std::fmt::Display, code: ErrorCode) -> Self {
        ClientError::kafka(format!("{what}: {code}"), code, None)
    }

    /// Returns true if trying again, perhaps with another broker, can help.
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

    /// Returns true if the broker has closed the connection, as it does with those that are not used for long
    /// (connections.max.idle.ms): a new one may serve.
    pub fn is_closed(&self) -> bool {
        use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let ClientError::Io { source, .. } = self else { return false };
        [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&source.kind())
    }
}

/// Settings a client cannot start with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A setting without a default that is not given.
    #[error("{0} must be set")]
    Missing(&'static str),
    /// A value that is not allowed.
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
        /// A property of them, with its value.
        first: String,
        /// The other, with its value.
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

/// Why a request has no response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectionError {
    /// No connection came about, so nothing was sent.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// host:port.
        address: String,
        /// The system's words.
        reason: String,
    },
    /// A broker answers, but it does not begin as it should: with TLS, or with the versions it serves.
    #[error("cannot connect to {address}: {reason}")]
    Handshake {
        /// host:port.
        address: String,
        /// The reason in words.
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
        /// The system's words, or what the broker did wrong.
        reason: String,
    },
    /// A request that cannot be made, or an answer that cannot be used.
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

/// Why the cluster could not be asked.
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
        /// The broker's words, or the code's meaning.
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
