//! What the broker does for each Kafka API, one file an API. Each opens with its versions and reads as a list of
//! checks in wire order.
//!
//! Produce, Fetch and the commits of offsets are admitted at once and may complete later; every other API completes before
//! the next request of its connection is admitted, so that clients see Kafka's ordering. What is admitted is carried out
//! whatever stands before its answer: what happens only when a completion is awaited has no effect outside of its answer.

mod alter_configs;
mod alter_partition_reassignments;
mod alter_replica_log_dirs;
mod alteration;
mod api_versions;
mod consumer_group_describe;
mod consumer_group_heartbeat;
mod create_acls;
mod create_partitions;
mod create_topics;
mod delete_acls;
mod delete_groups;
mod delete_records;
mod delete_topics;
mod describe_acls;
mod describe_client_quotas;
mod describe_cluster;
mod describe_configs;
mod describe_groups;
mod describe_log_dirs;
mod describe_producers;
mod describe_quorum;
mod describe_topic_partitions;
mod describe_user_scram_credentials;
#[cfg(test)]
mod docs;
mod elect_leaders;
mod features;
mod fetch;
mod find_coordinator;
mod get_telemetry_subscriptions;
mod heartbeat;
mod incremental_alter_configs;
mod init_producer_id;
mod join_group;
#[cfg(test)]
mod leadership_tests;
mod leave_group;
mod list_config_resources;
mod list_groups;
mod list_offsets;
mod list_partition_reassignments;
mod list_transactions;
mod metadata;
mod nodes;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod offset_for_leader_epoch;
mod operations;
mod produce;
mod push_telemetry;
mod sync_group;
mod topics;
mod update_features;

pub use fetch::sessions::Sessions;
pub use produce::Decompression;

use crate::broker::Shared;
use crate::control::{Control, Refusal, shown};
use crate::coordinator::Unwritten;
use fullbore_wire::api::{ApiKey, Request, RequestHeader, decode_request, encode_response};
use fullbore_wire::{DecodeError, EncodeError, ErrorCode, Frame, Part, Reader, Text, Version};
use std::collections::HashSet;
use std::future::Future;
use std::hash::Hash;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why a connection is closed instead of answered.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The request header is malformed.
    #[error("malformed request header: {0}")]
    Header(DecodeError),
    /// An API this broker does not serve.
    #[error("API key {0} is not served")]
    Api(i16),
    /// A version outside the advertised range.
    #[error("{} version {version} is not served", api.name())]
    Version {
        /// The API.
        api: ApiKey,
        /// The version asked for.
        version: i16,
    },
    /// The body is not what the header says.
    #[error("malformed {} request: {error}", api.name())]
    Body {
        /// The API.
        api: ApiKey,
        /// What is wrong.
        error: DecodeError,
    },
    /// The answer cannot be said in the version asked for.
    #[error("answer to {}: {error}", api.name())]
    Answer {
        /// The API.
        api: ApiKey,
        /// What is wrong.
        error: EncodeError,
    },
    /// A produce with acks=0 failed; closing is the only way to tell.
    #[error("produce with acks=0 failed: {0}")]
    Unacknowledged(fullbore_wire::ErrorCode),
}

/// An answer to be awaited.
pub type Answer = Pin<Box<dyn Future<Output = Result<Frame, Fault>> + Send>>;

/// An answer on its way.
pub enum Completion {
    /// Known at admission.
    Ready(Frame),
    /// Known later; nothing happens unless it is awaited.
    Later(Answer),
    /// Known later, and until then so many bytes are held, whatever the size of the request.
    Holding(Answer, usize),
}

impl Completion {
    /// Bytes of memory held until the answer is out, for a request of `request_len` bytes.
    pub fn bytes_held(&self, request_len: usize) -> usize {
        match self {
            Completion::Ready(frame) => frame.parts.iter().filter(|p| matches!(p, Part::Bytes(_))).map(Part::len).sum(),
            Completion::Later(_) => request_len,
            Completion::Holding(_, held) => *held,
        }
    }
}

/// Who is at the other end of a connection.
pub struct Client {
    /// Its address.
    pub peer: SocketAddr,
    /// What it says it is, by ApiVersions (KIP-511); empty until then.
    pub software_name: Text,
    /// And its version.
    pub software_version: Text,
    /// When it was told the APIs' versions, until its next request.
    told_versions: Option<Instant>,
    /// From that to its next request: a round trip or longer, since a client needs the answer for what it sends next.
    pub round_trip: Option<Duration>,
    /// What it has asked groups to keep and does not await yet.
    pub unwritten: Arc<Unwritten>,
}

impl Client {
    /// One that has said nothing yet.
    pub fn new(peer: SocketAddr, unwritten: Arc<Unwritten>) -> Self {
        let (software_name, software_version) = (Text::default(), Text::default());
        Client { peer, software_name, software_version, told_versions: None, round_trip: None, unwritten }
    }

    /// A request of it has come.
    fn note_request(&mut self) {
        if let Some(told) = self.told_versions.take() {
            self.round_trip = Some(told.elapsed());
        }
    }
}

/// One request being admitted.
pub struct Call<'a> {
    /// The broker.
    pub broker: &'a Arc<Shared>,
    /// Who sent it.
    pub client: &'a mut Client,
    /// The index of the listener it came through: tells which address the client can reach.
    pub listener: usize,
    /// The request's header.
    pub header: RequestHeader,
    /// At the body.
    pub reader: Reader,
}

/// What an answer needs of its request.
#[derive(Clone, Copy)]
pub struct Reply {
    version: Version,
    correlation_id: i32,
    /// The index of the listener it came through: tells which addresses the client can reach.
    listener: usize,
}

impl Reply {
    /// The frame of a response.
    ///
    /// # Errors
    /// [`Fault::Answer`].
    pub fn frame<R: Request>(self, response: &R::Response) -> Result<Frame, Fault> {
        encode_response::<R>(response, self.version, self.correlation_id)
            .map_err(|error| Fault::Answer { api: R::KEY, error })
    }
}

impl Call<'_> {
    /// The control plane, asked by this client.
    fn control(&self) -> Control {
        let by = match self.header.client_id.as_deref() {
            Some(id) if !id.is_empty() => format!("{} ({})", self.client.peer, shown(id)),
            _ => self.client.peer.to_string(),
        };
        self.broker.control.asked_by(&by)
    }

    /// The request's body.
    fn body<R: Request>(&mut self, version: Version) -> Result<R, Fault> {
        decode_request(&mut self.reader, version).map_err(|error| Fault::Body { api: R::KEY, error })
    }
}

/// The first of elements with the same key, in order: a long list of one thing must not cost its length in answers.
fn once<T, K: Hash + Eq>(elements: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut seen = HashSet::with_capacity(elements.len());
    elements.into_iter().filter(|element| seen.insert(key(element))).collect()
}

/// Whether an answer to this request may have to wait for other clients, for minutes: a member of a group waits for the
/// others. It is waited for at admission, not as a [`Completion::Later`]: what the same client sends behind it, say a
/// Heartbeat, must find the group as it is once the member has joined. In exchange the connection looks whether the
/// client is still there.
pub fn waits_for_others(frame: &[u8]) -> bool {
    let key = frame.first_chunk().map(|key| i16::from_be_bytes(*key)).and_then(ApiKey::from_code);
    matches!(key, Some(ApiKey::JoinGroup | ApiKey::SyncGroup))
}

/// What an answer says of an outcome: its code, and words where there is an error.
fn told(outcome: Result<(), Refusal>) -> (ErrorCode, Option<Text>) {
    match outcome {
        Ok(()) => (ErrorCode::NONE, None),
        Err(refusal) => (refusal.code, Some(Text::from(refusal.message))),
    }
}

/// Admits a request. `None` when it is not to be answered (acks=0).
///
/// # Errors
/// When the connection must be closed.
pub async fn admit(mut call: Call<'_>) -> Result<Option<(ApiKey, Completion)>, Fault> {
    call.client.note_request();
    let code = call.header.api_key;
    let api = ApiKey::from_code(code).ok_or(Fault::Api(code))?;
    let number = call.header.api_version;
    let (correlation_id, listener) = (call.header.correlation_id, call.listener);
    let Some(version) = api.version(number).filter(|_| number <= api_versions::max_of(call.broker, api)) else {
        if api == ApiKey::ApiVersions {
            return Ok(Some((
                api,
                Completion::Ready(api_versions::unsupported(call.broker, listener, correlation_id)?),
            )));
        }
        return Err(Fault::Version { api, version: number });
    };
    let completion = dispatch(api, &mut call, Reply { version, correlation_id, listener }).await?;
    Ok(completion.map(|completion| (api, completion)))
}

/// One declaration for what is served and what is advertised: an API with an arm is both, any other is neither.
macro_rules! serve {
    (|$call:ident, $reply:ident| $( $api:ident => $completion:expr, )*) => {
        /// The APIs this broker serves, in key order. The wire knows more.
        pub const SERVED: &[ApiKey] = &[$( ApiKey::$api, )*];

        async fn dispatch(api: ApiKey, $call: &mut Call<'_>, $reply: Reply) -> Result<Option<Completion>, Fault> {
            Ok(match api {
                $( ApiKey::$api => $completion, )*
                #[allow(unreachable_patterns, reason = "the wire may know an API that is not served")]
                _ => return Err(Fault::Api(api.code())),
            })
        }
    };
}

serve! { |call, reply|
    Produce => produce::admit(call.broker, call.body(reply.version)?, call.header.client_id.as_deref(), reply).await?,
    Fetch => Some(fetch::admit(call.broker, call.body(reply.version)?, reply)?),
    ListOffsets => ready(list_offsets::handle(call, reply).await?),
    Metadata => ready(metadata::handle(call, reply).await?),
    OffsetCommit => Some(offset_commit::admit(call, reply).await?),
    OffsetFetch => Some(offset_fetch::admit(call, reply).await?),
    FindCoordinator => ready(find_coordinator::handle(call, reply).await?),
    JoinGroup => ready(join_group::handle(call, reply).await?),
    Heartbeat => ready(heartbeat::handle(call, reply).await?),
    LeaveGroup => ready(leave_group::handle(call, reply).await?),
    SyncGroup => ready(sync_group::handle(call, reply).await?),
    DescribeGroups => ready(describe_groups::handle(call, reply).await?),
    ListGroups => ready(list_groups::handle(call, reply).await?),
    ApiVersions => ready(api_versions::handle(call, reply)?),
    CreateTopics => ready(create_topics::handle(call, reply).await?),
    DeleteTopics => ready(delete_topics::handle(call, reply).await?),
    DeleteRecords => ready(delete_records::handle(call, reply).await?),
    InitProducerId => ready(init_producer_id::handle(call, reply).await?),
    OffsetForLeaderEpoch => ready(offset_for_leader_epoch::handle(call, reply).await?),
    DescribeAcls => ready(describe_acls::handle(call, reply)?),
    CreateAcls => ready(create_acls::handle(call, reply)?),
    DeleteAcls => ready(delete_acls::handle(call, reply)?),
    DescribeConfigs => ready(describe_configs::handle(call, reply)?),
    AlterConfigs => ready(alter_configs::handle(call, reply).await?),
    AlterReplicaLogDirs => ready(alter_replica_log_dirs::handle(call, reply)?),
    DescribeLogDirs => ready(describe_log_dirs::handle(call, reply).await?),
    CreatePartitions => ready(create_partitions::handle(call, reply).await?),
    DeleteGroups => ready(delete_groups::handle(call, reply).await?),
    ElectLeaders => ready(elect_leaders::handle(call, reply)?),
    IncrementalAlterConfigs => ready(incremental_alter_configs::handle(call, reply).await?),
    AlterPartitionReassignments => ready(alter_partition_reassignments::handle(call, reply)?),
    ListPartitionReassignments => ready(list_partition_reassignments::handle(call, reply)?),
    OffsetDelete => ready(offset_delete::handle(call, reply).await?),
    DescribeClientQuotas => ready(describe_client_quotas::handle(call, reply)?),
    DescribeUserScramCredentials => ready(describe_user_scram_credentials::handle(call, reply)?),
    DescribeQuorum => ready(describe_quorum::handle(call, reply)?),
    UpdateFeatures => ready(update_features::handle(call, reply)?),
    DescribeCluster => ready(describe_cluster::handle(call, reply)?),
    DescribeProducers => ready(describe_producers::handle(call, reply).await?),
    ListTransactions => ready(list_transactions::handle(call, reply)?),
    ConsumerGroupHeartbeat => ready(consumer_group_heartbeat::handle(call, reply).await?),
    ConsumerGroupDescribe => ready(consumer_group_describe::handle(call, reply).await?),
    GetTelemetrySubscriptions => ready(get_telemetry_subscriptions::handle(call, reply)?),
    PushTelemetry => ready(push_telemetry::handle(call, reply)?),
    ListConfigResources => ready(list_config_resources::handle(call, reply)?),
    DescribeTopicPartitions => ready(describe_topic_partitions::handle(call, reply)?),
}

fn ready(frame: Frame) -> Option<Completion> {
    Some(Completion::Ready(frame))
}
