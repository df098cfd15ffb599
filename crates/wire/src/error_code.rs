//! Kafka's error codes (class `org.apache.kafka.common.protocol.Errors`).

use crate::codec::{Codec, Reader, Version};
use crate::frame::Writer;
use crate::{DecodeError, EncodeError};
use std::fmt;

/// An error code of a message. Codes that this crate does not know are kept as numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(pub i16);

macro_rules! error_codes {
    ($( $code:literal $name:ident $retriable:literal $message:literal; )*) => {
        impl ErrorCode {
            $( #[doc = $message] pub const $name: ErrorCode = ErrorCode($code); )*

            /// Returns the name that Kafka gives the error; None if this crate does not know the code.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $code => Some(stringify!($name)), )*
                    _ => None,
                }
            }

            /// Returns a sentence that explains the error.
            pub fn message(self) -> &'static str {
                match self.0 {
                    $( $code => $message, )*
                    _ => "The server answered with an error code this program does not know.",
                }
            }

            /// Returns true if Kafka's clients may retry the request.
            pub fn is_retriable(self) -> bool {
                match self.0 {
                    $( $code => $retriable, )*
                    _ => false,
                }
            }
        }
    };
}

error_codes! {
    -1 UNKNOWN_SERVER_ERROR false "The server experienced an unexpected error.";
    0 NONE false "No error.";
    1 OFFSET_OUT_OF_RANGE false "The offset is outside the range the broker holds.";
    2 CORRUPT_MESSAGE true "The records fail their checksum, have an invalid size, or are otherwise corrupt.";
    3 UNKNOWN_TOPIC_OR_PARTITION true "The broker does not host this topic or partition.";
    4 INVALID_FETCH_SIZE false "The fetch size is invalid.";
    5 LEADER_NOT_AVAILABLE true "There is no leader for this partition at present.";
    6 NOT_LEADER_OR_FOLLOWER true "The broker is not the leader, or not a replica, of this partition.";
    7 REQUEST_TIMED_OUT true "The request timed out.";
    8 BROKER_NOT_AVAILABLE false "The broker is not available.";
    9 REPLICA_NOT_AVAILABLE true "The replica is not available for this partition.";
    10 MESSAGE_TOO_LARGE false "The batch is larger than the broker accepts.";
    11 STALE_CONTROLLER_EPOCH false "The controller moved to another broker.";
    12 OFFSET_METADATA_TOO_LARGE false "The offset commit's metadata is too large.";
    13 NETWORK_EXCEPTION true "The server disconnected before a response came.";
    14 COORDINATOR_LOAD_IN_PROGRESS true "The coordinator is loading.";
    15 COORDINATOR_NOT_AVAILABLE true "The coordinator is not available.";
    16 NOT_COORDINATOR true "This is not the right coordinator.";
    17 INVALID_TOPIC_EXCEPTION false "The topic name is not valid, or not allowed.";
    18 RECORD_LIST_TOO_LARGE false "The batch is larger than a segment.";
    19 NOT_ENOUGH_REPLICAS true "Fewer replicas are in sync than required.";
    20 NOT_ENOUGH_REPLICAS_AFTER_APPEND true "The records were written, but to fewer in-sync replicas than required.";
    21 INVALID_REQUIRED_ACKS false "acks is not 0, 1 or -1.";
    22 ILLEGAL_GENERATION false "The group generation is not valid.";
    23 INCONSISTENT_GROUP_PROTOCOL false "The member's protocols do not fit the group's.";
    24 INVALID_GROUP_ID false "The group id is not valid.";
    25 UNKNOWN_MEMBER_ID false "The coordinator does not know this member.";
    26 INVALID_SESSION_TIMEOUT false "The session timeout is outside the allowed range.";
    27 REBALANCE_IN_PROGRESS false "The group is rebalancing; rejoin.";
    28 INVALID_COMMIT_OFFSET_SIZE false "The offset commit is too large.";
    29 TOPIC_AUTHORIZATION_FAILED false "Not authorized for the topic.";
    30 GROUP_AUTHORIZATION_FAILED false "Not authorized for the group.";
    31 CLUSTER_AUTHORIZATION_FAILED false "Not authorized for the cluster.";
    32 INVALID_TIMESTAMP false "A record's timestamp is out of the acceptable range.";
    33 UNSUPPORTED_SASL_MECHANISM false "The broker does not support this SASL mechanism.";
    34 ILLEGAL_SASL_STATE false "The request is not valid in this SASL state.";
    35 UNSUPPORTED_VERSION false "This version of the API is not supported.";
    36 TOPIC_ALREADY_EXISTS false "A topic of this name exists.";
    37 INVALID_PARTITIONS false "The number of partitions is not valid.";
    38 INVALID_REPLICATION_FACTOR false "The replication factor is below 1 or above the number of brokers.";
    39 INVALID_REPLICA_ASSIGNMENT false "The replica assignment is not valid.";
    40 INVALID_CONFIG false "The configuration is not valid.";
    41 NOT_CONTROLLER true "This is not the controller.";
    42 INVALID_REQUEST false "The request is not well formed.";
    43 UNSUPPORTED_FOR_MESSAGE_FORMAT false "The message format does not support this.";
    44 POLICY_VIOLATION false "The request violates the policy.";
    45 OUT_OF_ORDER_SEQUENCE_NUMBER false "The sequence number is out of order.";
    46 DUPLICATE_SEQUENCE_NUMBER false "The sequence number was seen before.";
    47 INVALID_PRODUCER_EPOCH false "The producer epoch is older than the one known.";
    48 INVALID_TXN_STATE false "The transaction is not in a state for this.";
    49 INVALID_PRODUCER_ID_MAPPING false "The producer id does not belong to this transactional id.";
    50 INVALID_TRANSACTION_TIMEOUT false "The transaction timeout is 0, or above transaction.max.timeout.ms.";
    51 CONCURRENT_TRANSACTIONS true "Another operation on this transaction is in progress.";
    52 TRANSACTION_COORDINATOR_FENCED false "The transaction coordinator is fenced.";
    53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED false "Not authorized for the transactional id.";
    54 SECURITY_DISABLED false "Security is disabled.";
    55 OPERATION_NOT_ATTEMPTED false "The operation was not attempted.";
    56 KAFKA_STORAGE_ERROR true "The log could not be read or written.";
    57 LOG_DIR_NOT_FOUND false "The log directory does not exist.";
    58 SASL_AUTHENTICATION_FAILED false "SASL authentication failed.";
    59 UNKNOWN_PRODUCER_ID false "The producer id is not known.";
    60 REASSIGNMENT_IN_PROGRESS false "A partition reassignment is in progress.";
    61 DELEGATION_TOKEN_AUTH_DISABLED false "Delegation tokens are disabled.";
    62 DELEGATION_TOKEN_NOT_FOUND false "The delegation token does not exist.";
    63 DELEGATION_TOKEN_OWNER_MISMATCH false "The principal does not own the token.";
    64 DELEGATION_TOKEN_REQUEST_NOT_ALLOWED false "Delegation token requests are not allowed here.";
    65 DELEGATION_TOKEN_AUTHORIZATION_FAILED false "Not authorized for delegation tokens.";
    66 DELEGATION_TOKEN_EXPIRED false "The delegation token has expired.";
    67 INVALID_PRINCIPAL_TYPE false "The principal type is not supported.";
    68 NON_EMPTY_GROUP false "The group is not empty.";
    69 GROUP_ID_NOT_FOUND false "The group does not exist.";
    70 FETCH_SESSION_ID_NOT_FOUND true "The fetch session does not exist.";
    71 INVALID_FETCH_SESSION_EPOCH true "The fetch session epoch is not valid.";
    72 LISTENER_NOT_FOUND true "The leader has no listener of the same name.";
    73 TOPIC_DELETION_DISABLED false "Topic deletion is disabled.";
    74 FENCED_LEADER_EPOCH true "The leader epoch is older than the broker's.";
    75 UNKNOWN_LEADER_EPOCH true "The leader epoch is newer than the broker's.";
    76 UNSUPPORTED_COMPRESSION_TYPE false "The compression type is not supported.";
    77 STALE_BROKER_EPOCH false "The broker epoch has changed.";
    78 OFFSET_NOT_AVAILABLE true "The leader's high watermark has not caught up after an election.";
    79 MEMBER_ID_REQUIRED false "The group member must join with an id.";
    80 PREFERRED_LEADER_NOT_AVAILABLE true "The preferred leader is not available.";
    81 GROUP_MAX_SIZE_REACHED false "The group is full.";
    82 FENCED_INSTANCE_ID false "Another consumer with the same instance id has joined.";
    83 ELIGIBLE_LEADERS_NOT_AVAILABLE true "No eligible leader is available.";
    84 ELECTION_NOT_NEEDED true "No leader election is needed.";
    85 NO_REASSIGNMENT_IN_PROGRESS false "No partition reassignment is in progress.";
    86 GROUP_SUBSCRIBED_TO_TOPIC false "The group is subscribed to the topic.";
    87 INVALID_RECORD false "A record failed validation.";
    88 UNSTABLE_OFFSET_COMMIT true "Offsets that must be cleared are pending.";
    89 THROTTLING_QUOTA_EXCEEDED true "The throttling quota is exceeded.";
    90 PRODUCER_FENCED false "A newer producer uses the same transactional id.";
    91 RESOURCE_NOT_FOUND false "The resource does not exist.";
    92 DUPLICATE_RESOURCE false "The resource is named twice.";
    93 UNACCEPTABLE_CREDENTIAL false "The credential does not meet the criteria.";
    94 INCONSISTENT_VOTER_SET false "The voter set is inconsistent.";
    95 INVALID_UPDATE_VERSION false "The update version is not valid.";
    96 FEATURE_UPDATE_FAILED false "Features could not be updated.";
    97 PRINCIPAL_DESERIALIZATION_FAILURE false "A forwarded principal could not be read.";
    98 SNAPSHOT_NOT_FOUND false "The snapshot does not exist.";
    99 POSITION_OUT_OF_RANGE false "The position is outside the snapshot.";
    100 UNKNOWN_TOPIC_ID true "The broker does not know this topic id.";
    101 DUPLICATE_BROKER_REGISTRATION false "The broker id is in use.";
    102 BROKER_ID_NOT_REGISTERED false "The broker id is not registered.";
    103 INCONSISTENT_TOPIC_ID true "The topic id does not match the log's.";
    104 INCONSISTENT_CLUSTER_ID false "The cluster id does not match.";
    105 TRANSACTIONAL_ID_NOT_FOUND false "The transactional id does not exist.";
    106 FETCH_SESSION_TOPIC_ID_ERROR true "The fetch session mixes topic ids and names.";
    107 INELIGIBLE_REPLICA false "The replica may not join the in-sync set.";
    108 NEW_LEADER_ELECTED false "A new leader was elected.";
    109 OFFSET_MOVED_TO_TIERED_STORAGE false "The offset is in tiered storage.";
    110 FENCED_MEMBER_EPOCH false "The member epoch is fenced; rejoin.";
    111 UNRELEASED_INSTANCE_ID false "The instance id is still in use.";
    112 UNSUPPORTED_ASSIGNOR false "The assignor is not supported.";
    113 STALE_MEMBER_EPOCH false "The member epoch is stale.";
    114 MISMATCHED_ENDPOINT_TYPE false "The request went to the wrong kind of endpoint.";
    115 UNSUPPORTED_ENDPOINT_TYPE false "This kind of endpoint is not supported.";
    116 UNKNOWN_CONTROLLER_ID false "The controller id is not known.";
    117 UNKNOWN_SUBSCRIPTION_ID false "The telemetry subscription does not exist.";
    118 TELEMETRY_TOO_LARGE false "The telemetry is too large.";
    119 INVALID_REGISTRATION false "The registration is not valid.";
    120 TRANSACTION_ABORTABLE false "The transaction met an error and must be aborted.";
    121 INVALID_RECORD_STATE false "The record state is not valid.";
    122 SHARE_SESSION_NOT_FOUND true "The share session does not exist.";
    123 INVALID_SHARE_SESSION_EPOCH true "The share session epoch is not valid.";
    124 FENCED_STATE_EPOCH false "The share coordinator's state epoch does not match.";
    125 INVALID_VOTER_KEY false "The voter key does not match.";
    126 DUPLICATE_VOTER false "The voter exists.";
    127 VOTER_NOT_FOUND false "The voter does not exist.";
    128 INVALID_REGULAR_EXPRESSION false "The regular expression is not valid.";
    129 REBOOTSTRAP_REQUIRED false "The client's metadata is stale; bootstrap again.";
    130 STREAMS_INVALID_TOPOLOGY false "The topology is not valid.";
    131 STREAMS_INVALID_TOPOLOGY_EPOCH false "The topology epoch is not valid.";
    132 STREAMS_TOPOLOGY_FENCED false "The topology epoch is outdated.";
    133 SHARE_SESSION_LIMIT_REACHED true "The limit of share sessions is reached.";
    134 GROUP_DELETION_FAILED false "The group could not be deleted.";
}

impl ErrorCode {
    /// Returns true if this is an error.
    pub fn is_err(self) -> bool {
        self != ErrorCode::NONE
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {}", self.0),
        }
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({})", self.0)
    }
}

impl Codec for ErrorCode {
    fn size_min(v: Version) -> usize {
        i16::size_min(v)
    }
    fn encode(&self, w: &mut Writer, v: Version) -> Result<(), EncodeError> {
        self.0.encode(w, v)
    }
    fn decode(r: &mut Reader, v: Version) -> Result<Self, DecodeError> {
        i16::decode(r, v).map(ErrorCode)
    }
}
