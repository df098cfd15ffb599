//! The errors of settings, of a shared connection, of a cluster, and of a tool. The text of a tool's error is a
//! sentence that includes the user's next step.

use crate::protocol::ProtocolError;
use fullbore_wire::{DecodeError, EncodeError, ErrorCode, has_port_too_large};

/// The beginning of the error text if the name of a host does not resolve.
const UNKNOWN_HOST: &str = "no address is known for the host";

/// Replaces the error of a failed name resolution by one with this program's text.
pub(crate) fn unknown_host(error: &std::io::Error) -> std::io::Error {
    // The standard library's text names the failed action before the reason. Only the reason is kept.
    let text = error.to_string();
    let reason = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    std::io::Error::new(std::io::ErrorKind::NotFound, format!("{UNKNOWN_HOST} ({reason})"))
}

/// Returns the next step of a user who gets [`ClientError::Connect`].
fn next_step(source: &std::io::Error) -> &'static str {
    match source.to_string().starts_with(UNKNOWN_HOST) {
        true => "correct the name in --bootstrap-server, or in advertised.listeners of the broker that gave it",
        false => "start a broker with `fullbore serve`, or name one with --bootstrap-server",
    }
}

/// Returns the reason why a text is not an address, for [`ClientError::Address`].
fn address_mistake(text: &str) -> &'static str {
    match has_port_too_large(text) {
        true => "has a port above 65535",
        false => "is not host:port ([::1]:port of IPv6)",
    }
}

/// Maximum number of brokers in [`ClientError::NoBroker`].
const BROKERS_MAX: usize = 20;

/// Returns the clause of [`ClientError::NoBroker`] with the ids of the running brokers.
fn running_brokers(ids: &[i32]) -> String {
    let shown: Vec<String> = ids.iter().take(BROKERS_MAX).map(i32::to_string).collect();
    let shown = shown.join(", ");
    match ids.len().checked_sub(BROKERS_MAX) {
        None if ids.is_empty() => "no broker is running".to_owned(),
        None if ids.len() == 1 => format!("only broker {shown} is running"),
        None | Some(0) => format!("brokers {shown} are running"),
        Some(more) => format!("brokers {shown} and {more} more are running, which `fullbore info` lists"),
    }
}

/// The error of a request to a broker, as a tool shows it.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No broker of the list answers.
    #[error("cannot connect to {address}: {source}; {}", next_step(source))]
    Connect {
        /// Address as `host:port`.
        address: String,
        /// The error of the last attempt.
        source: std::io::Error,
    },
    /// The host answers, but the TLS handshake failed.
    #[error("cannot connect to {address}: {source}")]
    Handshake {
        /// Address as `host:port`.
        address: String,
        /// The reason, as a sentence.
        source: std::io::Error,
    },
    /// The text is not `host:port`.
    #[error(
        "{address:?} {}; write --bootstrap-server localhost:9092, several separated by commas",
        address_mistake(.0),
        address = .0
    )]
    Address(String),
    /// The connection broke.
    #[error("the connection to {address} broke: {source}; see the broker's log")]
    Io {
        /// Address as `host:port`.
        address: String,
        /// The error of the socket.
        source: std::io::Error,
    },
    /// The response did not arrive in time.
    #[error("{address} gave no answer in {patience:?}; check whether the broker is stopped or overloaded")]
    Silent {
        /// Address as `host:port`.
        address: String,
        /// How long the client waited.
        patience: std::time::Duration,
    },
    /// The received frame is not a response.
    #[error("{address} answered {api} with bytes that are no response: {source}; is it a Kafka broker?")]
    Decode {
        /// Address as `host:port`.
        address: String,
        /// The name of the request's API.
        api: &'static str,
        /// The fault of the bytes.
        source: DecodeError,
    },
    /// The request cannot be encoded.
    #[error("cannot encode the {api} request: {source}")]
    Encode {
        /// The name of the request's API.
        api: &'static str,
        /// The fault of the request.
        source: EncodeError,
    },
    /// The response is longer than this program accepts.
    #[error("{address} announced a response of {len} bytes, more than {max}; is it a Kafka broker?")]
    TooLarge {
        /// Address as `host:port`.
        address: String,
        /// How many bytes the broker announced.
        len: u32,
        /// How many bytes are accepted.
        max: usize,
    },
    /// Broker and client have no version of the API in common.
    #[error("{address} does not offer {api} in a version this program speaks; use a Kafka broker of 2.1 or later")]
    Version {
        /// Address as `host:port`.
        address: String,
        /// The name of the request's API.
        api: &'static str,
    },
    /// A broker answered with an error code.
    #[error("{what}: {message}")]
    Kafka {
        /// A description of the attempt that failed.
        what: String,
        /// Kafka's error code.
        code: ErrorCode,
        /// The broker's message, or the meaning of the code.
        message: String,
    },
    /// The topic does not exist.
    #[error(
        "topic '{0}' does not exist; `fullbore topics list` shows the existing topics, and `fullbore topics create` \
         creates one"
    )]
    NoTopic(String),
    /// The group does not exist: it has neither members nor committed offsets.
    #[error("consumer group '{0}' does not exist; `fullbore groups list` shows the existing groups")]
    NoGroup(String),
    /// The members of the group are not consumers, but Kafka Connect workers, for example.
    #[error("group '{id}' is not a consumer group ({protocol_type}); `fullbore groups list` shows those that are")]
    NotConsumers {
        /// The id of the group.
        id: String,
        /// The protocol type that its members joined with.
        protocol_type: String,
    },
    /// No live broker has this id.
    #[error("broker '{id}' does not exist or is not running; {}", running_brokers(.running))]
    NoBroker {
        /// The id, as the user has written it.
        id: String,
        /// The ids of the running brokers.
        running: Vec<i32>,
    },
    /// The partition has no leader.
    #[error(
        "partition {partition} of topic '{topic}' has no leader; check whether the brokers of its replicas are running"
    )]
    NoLeader {
        /// The name of the topic.
        topic: String,
        /// The number of the partition.
        partition: i32,
    },
    /// The topic does not have the partition.
    #[error("topic '{topic}' has no partition {partition}; it has 0 to {last}")]
    NoPartition {
        /// The name of the topic.
        topic: String,
        /// The number of the partition.
        partition: i32,
        /// The number of the topic's last partition.
        last: i32,
    },
    /// No coordinator has this transactional id.
    #[error("transactional id '{0}' does not exist; `fullbore transactions list` shows the existing ids")]
    NoTransactionalId(String),
}

impl ClientError {
    /// Converts a protocol error on the connection to this address.
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

    /// Creates the error for a code. The text is the broker's message if it sent one, or else the meaning of the code.
    pub fn kafka(what: impl Into<String>, code: ErrorCode, message: Option<&str>) -> Self {
        let message = message.filter(|text| !text.is_empty()).unwrap_or_else(|| code.message());
        ClientError::Kafka { what: what.into(), code, message: message.to_owned() }
    }

    /// Creates the error for a broker that is not `running`, where `running` has the ids of all running brokers.
    pub fn no_broker(id: impl ToString, running: impl IntoIterator<Item = i32>) -> Self {
        ClientError::NoBroker { id: id.to_string(), running: running.into_iter().collect() }
    }

    /// Creates the error for a code, with the code's name in the text. Used for requests that are retried. A user who
    /// waits for them may want to look up the name.
    pub fn refused(what: impl std::fmt::Display, code: ErrorCode) -> Self {
        ClientError::kafka(format!("{what}: {code}"), code, None)
    }

    /// Returns true if a retry may succeed, perhaps with another broker.
    pub fn is_retriable(&self) -> bool {
        match self {
            ClientError::Connect { .. }
            | ClientError::Io { .. }
            | ClientError::Silent { .. }
            | ClientError::NoLeader { .. } => true,
            ClientError::Kafka { code, .. } => code.is_retriable(),
            // New connections are closed by a broker that is stopping, and by a proxy in front of a broker that is
            // down. A later attempt may therefore succeed.
            ClientError::Handshake { source, .. } => source.kind() == std::io::ErrorKind::UnexpectedEof,
            _ => false,
        }
    }

    /// Returns true if the broker has closed the connection, as it does with idle ones (connections.max.idle.ms). A
    /// retry over a new connection may succeed.
    pub fn is_closed(&self) -> bool {
        use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let ClientError::Io { source, .. } = self else { return false };
        [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&source.kind())
    }
}

/// The reason why a client cannot start with its settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A setting without a default has no value.
    #[error("{0} must be set")]
    Missing(&'static str),
    /// The value of a setting is not allowed.
    #[error("{key}={value}: {allowed}")]
    Value {
        /// The name of the setting.
        key: &'static str,
        /// The refused value.
        value: String,
        /// A sentence with the allowed values.
        allowed: String,
    },
    /// Two settings contradict each other.
    #[error("{first} contradicts {second}: {why}")]
    Conflict {
        /// The first setting, with its value.
        first: String,
        /// The second setting, with its value.
        second: String,
        /// The reason why the two settings contradict each other.
        why: &'static str,
    },
    /// The settings of TLS contradict each other, or its keys or certificates cannot be used.
    #[error("{0}")]
    Security(#[from] fullbore_tls::MaterialError),
    /// The system refused to start the client's thread.
    #[error("cannot start a thread of the client: {0}")]
    Thread(String),
}

/// The reason why a request has no response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectionError {
    /// Connecting failed, so nothing was sent.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// Address as `host:port`.
        address: String,
        /// The error of the system.
        reason: String,
    },
    /// The host answers, but TLS or the negotiation of API versions failed.
    #[error("cannot connect to {address}: {reason}")]
    Handshake {
        /// Address as `host:port`.
        address: String,
        /// The reason, as a sentence.
        reason: String,
    },
    /// The connection ended before the request was written.
    #[error("the connection to {0} is closed")]
    NotSent(String),
    /// The connection ended after at least a part of the request was written.
    #[error("the connection to {address} ended before the response: {reason}")]
    Disconnected {
        /// Address as `host:port`.
        address: String,
        /// The error of the system, or the fault of the broker.
        reason: String,
    },
    /// The request cannot be encoded, or its response cannot be used.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

impl ConnectionError {
    /// Returns true if a retry may succeed, perhaps later or with another broker.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Handshake { .. } | Self::NotSent(_) | Self::Disconnected { .. })
    }

    /// Returns true if the broker may have acted on the request.
    pub fn may_have_been_received(&self) -> bool {
        matches!(self, Self::Disconnected { .. } | Self::Protocol(ProtocolError::Decode { .. }))
    }
}

/// The reason why a request to the cluster has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MetadataError {
    /// The request failed at every broker.
    #[error("no broker answered; the last error: {0}")]
    Connection(#[from] ConnectionError),
    /// The cluster's metadata has no broker with this id.
    #[error("the metadata has no broker {0}")]
    UnknownBroker(i32),
    /// A broker answered with this error code.
    #[error("the cluster answered {0}")]
    Broker(ErrorCode),
    /// A broker answered FindCoordinator with an error code.
    #[error("the cluster answered {code}: {message}")]
    Coordinator {
        /// Kafka's error code.
        code: ErrorCode,
        /// The broker's message, or the meaning of the code.
        message: String,
    },
}

impl MetadataError {
    /// Converts the error into [`ClientError`], whose text a command shows to its user. `servers` is the bootstrap
    /// list.
    pub fn for_user(self, servers: &str) -> ClientError {
        let other = |reason: String| std::io::Error::other(reason);
        let error = match self {
            MetadataError::Connection(error) => error,
            MetadataError::Broker(code) => {
                return ClientError::kafka(format!("cannot get an answer from {servers}"), code, None);
            }
            MetadataError::Coordinator { code, message } => {
                return ClientError::kafka(format!("cannot find the coordinator with {servers}"), code, Some(&message));
            }
            MetadataError::UnknownBroker(_) => return ClientError::Address(servers.to_owned()),
        };
        match error {
            ConnectionError::Connect { address, reason } => ClientError::Connect { address, source: other(reason) },
            ConnectionError::Handshake { address, reason } => ClientError::Handshake { address, source: other(reason) },
            ConnectionError::Disconnected { address, reason } => ClientError::Io { address, source: other(reason) },
            ConnectionError::NotSent(address) => {
                ClientError::Io { address, source: other("the connection was closed".to_owned()) }
            }
            ConnectionError::Protocol(error) => ClientError::of_protocol(error, servers),
        }
    }
}
