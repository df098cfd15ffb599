//! Kafka's APIs, each in a file of its own. The comment of a file begins with the versions that are served. The checks
//! in a file follow the order of the request's fields.
//!
//! Produce, Fetch, OffsetFetch and the commits of offsets may complete after later requests of the same connection were
//! admitted. A request of any other API completes before the next one is admitted, so that clients see the order that
//! Kafka guarantees.
//!
//! An admitted request is carried out even if earlier responses have not been sent. Its effects do not depend on the
//! future in a [`Completion`], which only makes the response. Requests of thousands of entries do not run on the
//! threads that serve connections ([`wide`]).

mod add_offsets_to_txn;
mod add_partitions_to_txn;
mod alter_configs;
mod alter_partition_reassignments;
mod alter_replica_log_dirs;
mod alteration;
mod api_versions;
mod call;
mod client;
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
mod describe_transactions;
mod describe_user_scram_credentials;
#[cfg(test)]
mod docs;
mod elect_leaders;
mod end_txn;
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
mod response_size;
mod shown;
#[cfg(test)]
mod shown_tests;
mod sync_group;
mod topics;
mod txn_offset_commit;
mod update_features;
mod wide;
#[cfg(test)]
mod wide_tests;
mod write_txn_markers;

pub use call::{Admission, Answer, Call, Completion, Fault, Reply};
pub use client::Client;
pub use wide::room_of;

use std::sync::Arc;
use std::time::Duration;

use self::response_size::Measure;
use crate::node::Node;
use fullbore_host::unread_responses::{NoRoom, ResponseRoom};
use fullbore_wire::Frame;
use fullbore_wire::api::ApiKey;

/// Maximum time that a produce request waits for memory after its client has disconnected. Its admission is not
/// cancelled at once, because a client may close its connection right after a batch with acks=0, which must still be
/// written.
const HUNG_UP_PRODUCE_MAX: Duration = Duration::from_secs(30);
/// Maximum time that a request which only reads waits for room or a slot after its client has disconnected. A response
/// that is in progress already has the same time.
const HUNG_UP_READ_MAX: Duration = Duration::from_secs(5);

/// The end of a request's admission if its client has disconnected meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutClient {
    /// The admission goes on, because it never takes long or changes something.
    Admitted,
    /// The connection ends after this time, because no later batch may overtake this one.
    Ended(Duration),
    /// The request alone is given up after this time, because it matters only to its client.
    GivenUp(Duration),
}

impl WithoutClient {
    /// Returns the end for a request.
    ///
    /// JoinGroup and SyncGroup wait for other members during admission, perhaps for minutes. They cannot return
    /// [`Completion::Later`], because the client must be a member of the group when its next request, such as a
    /// Heartbeat, is admitted.
    pub fn of(frame: &[u8]) -> WithoutClient {
        let key = frame.first_chunk().map(|key| i16::from_be_bytes(*key)).and_then(ApiKey::from_code);
        match key {
            Some(ApiKey::JoinGroup | ApiKey::SyncGroup) => WithoutClient::GivenUp(Duration::ZERO),
            Some(ApiKey::Produce) => WithoutClient::Ended(HUNG_UP_PRODUCE_MAX),
            Some(ApiKey::ListOffsets | ApiKey::OffsetForLeaderEpoch) => WithoutClient::GivenUp(HUNG_UP_READ_MAX),
            Some(api) if response_size::is_estimated(api) => WithoutClient::GivenUp(HUNG_UP_READ_MAX),
            _ => WithoutClient::Admitted,
        }
    }

    /// Returns how long the admission may go on, or `None` if it goes on to its end.
    pub fn time(self) -> Option<Duration> {
        match self {
            WithoutClient::Admitted => None,
            WithoutClient::Ended(time) | WithoutClient::GivenUp(time) => Some(time),
        }
    }

    /// Returns true if only the request is given up, and later requests of the connection are still admitted.
    pub fn is_given_up(self) -> bool {
        matches!(self, WithoutClient::GivenUp(_))
    }
}

/// Admits a request. Returns `None` if it gets no response, as with acks=0.
///
/// # Errors
/// If the connection must be closed, returns the reason.
pub async fn admit(node: &Node, mut call: Call<'_>) -> Result<Option<Admission>, Fault> {
    call.client.note_request();
    let code = call.header.api_key;
    let api = ApiKey::from_code(code).ok_or(Fault::Api(code))?;
    let number = call.header.api_version;
    let (correlation_id, listener) = (call.header.correlation_id, call.listener);
    let Some(version) = api.version(number).filter(|_| number <= api_versions::max_of(&node.metadata, api)) else {
        if api == ApiKey::ApiVersions {
            let frame = api_versions::unsupported(&node.metadata, listener, correlation_id)?;
            return Ok(Some(Admission { api, completion: Completion::Ready(frame), room: None }));
        }
        return Err(Fault::Version { api, version: number });
    };
    let reply = Reply { version, correlation_id, listener };
    let (completion, room) = match wide::is_measured(&call.reader) {
        false => match response_size::of(node, &call, api, version, Measure::Memory) {
            response_bytes if wide::is_large(response_bytes) => {
                let bytes = call.reader.remaining() + response_bytes;
                Box::pin(dispatch_wide(api, node, &mut call, reply, bytes)).await?
            }
            _ => (dispatch(api, node, &mut call, reply).await?, None),
        },
        true => Box::pin(dispatch_measured(api, node, &mut call, reply)).await?,
    };
    if completion.is_some() && api != ApiKey::Produce {
        call.client.behind.note();
    }
    Ok(completion.map(|completion| Admission { api, completion, room }))
}

/// The response of a request, and the memory reservation of the response if the request is wide.
type Dispatched = (Option<Completion>, Option<Arc<ResponseRoom>>);

/// Measures a request and carries it out. If it has many entries or a large response, it is carried out as a wide
/// request. The completion is `None` if there is no response.
async fn dispatch_measured(api: ApiKey, node: &Node, call: &mut Call<'_>, reply: Reply) -> Result<Dispatched, Fault> {
    let (measured, body_len) =
        (wide::measure(&node.wide, api, &call.reader, reply.version).await?, call.reader.remaining());
    let response_bytes = match measured {
        _ if !response_size::is_estimated(api) => 0,
        None => response_size::of(node, call, api, reply.version, Measure::Memory),
        Some(bytes) => {
            let estimate = async { response_size::of(node, call, api, reply.version, Measure::Memory) };
            node.wide.drive(bytes, estimate).await
        }
    };
    match measured {
        None if !wide::is_large(response_bytes) => Ok((dispatch(api, node, call, reply).await?, None)),
        measured => dispatch_wide(api, node, call, reply, measured.unwrap_or(body_len) + response_bytes).await,
    }
}

/// Carries out a request off the threads that serve connections. `bytes` is the memory that the request and its
/// response take.
///
/// If [`response_size`] estimates the response, memory for it is reserved first. The memory of any other response is
/// counted once the response is made. The completion is `None` if there is no response.
async fn dispatch_wide(
    api: ApiKey,
    node: &Node,
    call: &mut Call<'_>,
    reply: Reply,
    bytes: usize,
) -> Result<Dispatched, Fault> {
    let room = match api {
        ApiKey::Produce | ApiKey::Fetch => None,
        _ => Some(Arc::new(node.unread.room())),
    };
    let _turn = wide::command_turn(&node.wide, api).await;
    let is_estimated = response_size::is_estimated(api);
    let carry_out = async {
        let mut later = None;
        if let Some(room) = room.as_ref().filter(|_| is_estimated) {
            let encoded = response_size::of(node, call, api, reply.version, Measure::Encoded);
            match response_size::is_made_later(api) {
                false => room.reserve(encoded).await.map_err(|NoRoom| Fault::NoRoom)?,
                true => later = Some((Arc::clone(room), encoded)),
            }
        }
        Ok((dispatch(api, node, call, reply).await?, later))
    };
    let (admitted, later) = node.wide.drive(bytes, carry_out).await?;
    Ok((admitted.map(|completion| wide::driven(&node.wide, bytes, later, completion)), room))
}

/// Declares which APIs this broker serves: those with an arm in the one call of this macro. [`api_versions`] advertises
/// them.
macro_rules! serve {
    (|$node:ident, $call:ident, $reply:ident| $( $api:ident => $completion:expr, )*) => {
        /// The APIs that this broker serves, in key order. `fullbore_wire` can decode more APIs.
        pub const SERVED: &[ApiKey] = &[$( ApiKey::$api, )*];

        async fn dispatch(
            api: ApiKey,
            $node: &Node,
            $call: &mut Call<'_>,
            $reply: Reply,
        ) -> Result<Option<Completion>, Fault> {
            Ok(match api {
                $( ApiKey::$api => $completion, )*
                #[allow(unreachable_patterns, reason = "the wire may know an API that is not served")]
                _ => return Err(Fault::Api(api.code())),
            })
        }
    };
}

// A connection's task is as large as the largest future in it. Large futures are therefore boxed, except in the APIs
// that carry records.
serve! { |node, call, reply|
    Produce => {
        let request = call.body(reply.version)?;
        produce::admit(call, &node.produce, request, reply).await?
    },
    Fetch => {
        let request = call.body(reply.version)?;
        Some(fetch::admit(call, &node.fetch, request, reply).await?)
    },
    ListOffsets => ready(list_offsets::handle(call, &node.metadata, &node.partitions, &node.long_work, reply).await?),
    Metadata => ready(metadata::handle(call, &node.metadata, reply).await?),
    OffsetCommit => Some(offset_commit::admit(call, &node.coordinators, reply).await?),
    OffsetFetch => Some(offset_fetch::admit(call, &node.coordinators, reply).await?),
    FindCoordinator => ready(Box::pin(find_coordinator::handle(call, &node.coordinators, reply)).await?),
    JoinGroup => ready(join_group::handle(call, &node.coordinators, &node.wide, reply).await?),
    Heartbeat => ready(heartbeat::handle(call, &node.coordinators, reply).await?),
    LeaveGroup => ready(leave_group::handle(call, &node.coordinators, reply).await?),
    SyncGroup => ready(sync_group::handle(call, &node.coordinators, reply).await?),
    DescribeGroups => ready(describe_groups::handle(call, &node.coordinators, reply).await?),
    ListGroups => ready(list_groups::handle(call, &node.coordinators, reply).await?),
    ApiVersions => ready(api_versions::handle(call, &node.metadata, reply)?),
    CreateTopics => ready(create_topics::handle(call, &node.metadata, reply).await?),
    DeleteTopics => ready(delete_topics::handle(call, &node.metadata, &node.partitions, reply).await?),
    DeleteRecords => ready(delete_records::handle(call, &node.metadata, &node.partitions, reply).await?),
    InitProducerId => ready(Box::pin(init_producer_id::handle(call, &node.coordinators, reply)).await?),
    OffsetForLeaderEpoch => {
        ready(offset_for_leader_epoch::handle(call, &node.metadata, &node.partitions, reply).await?)
    },
    AddPartitionsToTxn => {
        ready(Box::pin(add_partitions_to_txn::handle(call, &node.coordinators, &node.partitions, reply)).await?)
    },
    AddOffsetsToTxn => ready(Box::pin(add_offsets_to_txn::handle(call, &node.coordinators, reply)).await?),
    EndTxn => ready(Box::pin(end_txn::handle(call, &node.coordinators, reply)).await?),
    WriteTxnMarkers => ready(Box::pin(write_txn_markers::handle(call, &node.coordinators, reply)).await?),
    TxnOffsetCommit => Some(Box::pin(txn_offset_commit::admit(call, &node.coordinators, reply)).await?),
    DescribeAcls => ready(describe_acls::handle(call, reply)?),
    CreateAcls => ready(create_acls::handle(call, reply)?),
    DeleteAcls => ready(delete_acls::handle(call, reply)?),
    DescribeConfigs => ready(describe_configs::handle(call, &node.observation, reply)?),
    AlterConfigs => ready(alter_configs::handle(call, &node.observation, reply).await?),
    AlterReplicaLogDirs => ready(alter_replica_log_dirs::handle(call, &node.metadata, reply)?),
    DescribeLogDirs => ready(describe_log_dirs::handle(call, &node.metadata, &node.partitions, &node.wide, reply).await?),
    CreatePartitions => ready(create_partitions::handle(call, &node.metadata, reply).await?),
    DeleteGroups => ready(delete_groups::handle(call, &node.coordinators, reply).await?),
    ElectLeaders => ready(Box::pin(elect_leaders::handle(call, &node.metadata, &node.wide, reply)).await?),
    IncrementalAlterConfigs => ready(incremental_alter_configs::handle(call, &node.observation, reply).await?),
    AlterPartitionReassignments => ready(alter_partition_reassignments::handle(call, &node.metadata, reply)?),
    ListPartitionReassignments => ready(list_partition_reassignments::handle(call, reply)?),
    OffsetDelete => ready(offset_delete::handle(call, &node.coordinators, reply).await?),
    DescribeClientQuotas => ready(describe_client_quotas::handle(call, reply)?),
    DescribeUserScramCredentials => ready(describe_user_scram_credentials::handle(call, reply)?),
    DescribeQuorum => ready(describe_quorum::handle(call, &node.metadata, reply)?),
    UpdateFeatures => ready(Box::pin(update_features::handle(call, &node.metadata, reply)).await?),
    DescribeCluster => ready(describe_cluster::handle(call, &node.metadata, reply)?),
    DescribeProducers => {
        ready(Box::pin(describe_producers::handle(call, &node.metadata, &node.partitions, reply)).await?)
    },
    DescribeTransactions => ready(Box::pin(describe_transactions::handle(call, &node.coordinators, reply)).await?),
    ListTransactions => ready(Box::pin(list_transactions::handle(call, &node.coordinators, &node.wide, reply)).await?),
    ConsumerGroupHeartbeat => ready(consumer_group_heartbeat::handle(call, &node.coordinators, reply).await?),
    ConsumerGroupDescribe => ready(consumer_group_describe::handle(call, &node.coordinators, reply).await?),
    GetTelemetrySubscriptions => ready(get_telemetry_subscriptions::handle(call, &node.observation, reply)?),
    PushTelemetry => ready(push_telemetry::handle(call, &node.observation, reply)?),
    ListConfigResources => ready(list_config_resources::handle(call, &node.metadata, reply)?),
    DescribeTopicPartitions => ready(describe_topic_partitions::handle(call, &node.metadata, reply)?),
}

fn ready(frame: Frame) -> Option<Completion> {
    Some(Completion::Ready(frame))
}
