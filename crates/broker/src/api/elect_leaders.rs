//! ElectLeaders 0-2. When the client gets the response, the elected leaders are in force.

use super::call::{Call, Fault, Reply, code_and_message, joined, once};
use super::wide::drive_command;
use crate::node::MetadataServices;
use fullbore_control::{ElectLeaders, ElectionKind, Image};
use fullbore_host::wide_work::WideWork;
use fullbore_wire::apis::elect_leaders::{
    ElectLeadersRequest, ElectLeadersResponse, PartitionResult, ReplicaElectionResult, TopicPartitions,
};
use fullbore_wire::{ErrorCode, Frame, Text};

/// The values of Kafka's `ElectionType`.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

pub async fn handle(
    call: &mut Call<'_>,
    metadata: &MetadataServices,
    wide: &WideWork,
    reply: Reply,
) -> Result<Frame, Fault> {
    let request: ElectLeadersRequest = call.body(reply.version)?;
    let kind = match request.election_type {
        PREFERRED => ElectionKind::Preferred,
        UNCLEAN => ElectionKind::Unclean,
        // The type is unknown. The request has at least version 1, because in version 0 the type is always decoded as 0
        // (`PREFERRED`).
        _ => return reply.frame::<ElectLeadersRequest>(&refused(named(request.topic_partitions.unwrap_or_default()))),
    };
    match request.topic_partitions {
        Some(requested) => elect(call, metadata, ElectLeaders { kind, topics: named(requested) }, true, reply).await,
        None => {
            let all = ElectLeaders { kind, topics: in_need(&metadata.control.image(), kind) };
            drive_command(wide, all.partition_count(), elect(call, metadata, all, false, reply)).await
        }
    }
}

/// Holds the elections and returns the response. With `lists_all`, the response names each requested partition.
/// Otherwise it leaves out partitions that need no election, as Kafka does for a request about all partitions.
async fn elect(
    call: &Call<'_>,
    metadata: &MetadataServices,
    command: ElectLeaders,
    lists_all: bool,
    reply: Reply,
) -> Result<Frame, Fault> {
    let mut response = ElectLeadersResponse::default();
    let requested = command.topics.clone();
    let mut outcomes = call.control(&metadata.control).elect_leaders(command).await.into_iter();
    for (topic, partitions) in requested {
        let mut partition_result = Vec::with_capacity(partitions.len());
        for (partition_id, outcome) in partitions.into_iter().zip(&mut outcomes) {
            let (error_code, error_message) = match outcome {
                Ok(_) => (ErrorCode::NONE, None),
                Err(refusal) if refusal.code == ErrorCode::ELECTION_NOT_NEEDED && !lists_all => continue,
                Err(refusal) => code_and_message(Err(refusal)),
            };
            partition_result.push(PartitionResult { partition_id, error_code, error_message, ..Default::default() });
        }
        if !partition_result.is_empty() {
            let result = ReplicaElectionResult { topic, partition_result, ..Default::default() };
            response.replica_election_results.push(result);
        }
    }
    reply.frame::<ElectLeadersRequest>(&response)
}

/// Returns the response to an unknown type of election. The request and each partition get the error (Kafka's
/// `ElectLeadersRequest.getErrorResponse`).
fn refused(requested: Vec<(Text, Vec<i32>)>) -> ElectLeadersResponse {
    let error_code = ErrorCode::INVALID_REQUEST;
    let of_partition = |partition_id| PartitionResult { partition_id, error_code, ..Default::default() };
    let of_topic = |(topic, partitions): (Text, Vec<i32>)| ReplicaElectionResult {
        topic,
        partition_result: partitions.into_iter().map(of_partition).collect(),
        ..Default::default()
    };
    let replica_election_results = requested.into_iter().map(of_topic).collect();
    ElectLeadersResponse { error_code, replica_election_results, ..Default::default() }
}

/// Returns each requested partition once, in the order of the request.
fn named(requested: Vec<TopicPartitions>) -> Vec<(Text, Vec<i32>)> {
    let requested =
        joined(requested, |topic| topic.topic.clone(), |topic, again| topic.partitions.extend(again.partitions));
    let topics = requested.into_iter().filter(|topic| !topic.partitions.is_empty());
    topics.map(|topic| (topic.topic, once(topic.partitions, |index| *index))).collect()
}

/// Returns the partitions that might need an election of this kind. Diskless partitions have no leader and are left
/// out.
fn in_need(image: &Image, kind: ElectionKind) -> Vec<(Text, Vec<i32>)> {
    let mut found = Vec::new();
    for topic in image.topics().filter(|topic| !topic.config.diskless) {
        let partitions = (0..).zip(&topic.partitions).filter(|(_, partition)| match kind {
            ElectionKind::Preferred => partition.leader != partition.replicas.first().copied(),
            ElectionKind::Unclean => partition.leader.is_none(),
        });
        let partitions: Vec<i32> = partitions.map(|(index, _)| index).collect();
        if !partitions.is_empty() {
            found.push((Text::from(topic.name.as_str()), partitions));
        }
    }
    found
}
