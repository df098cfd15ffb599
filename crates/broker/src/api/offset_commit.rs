//! OffsetCommit 2-10: checks the topics and partitions, the committer, and the size of the metadata, then writes the
//! offsets.
//!
//! The group checks the committer and queues the write under one lock. Offsets of two generations are therefore written
//! in the order of the generations.

use super::call::{Call, Completion, Fault, Reply};
use crate::groups::{CommitOffset, Missing, OffsetAndMetadata, PendingCommit, TopicName};
use crate::node::CoordinatorServices;
use fullbore_control::{Image, Topic};
use fullbore_host::files::now_ms;
use fullbore_host::metrics::Metrics;
use fullbore_rules::group::Committer;
use fullbore_wire::apis::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponse,
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use fullbore_wire::{ErrorCode, Frame};
use std::sync::Arc;

/// First version that has topic ids instead of names.
const TOPIC_IDS: i16 = 10;
/// The retention time of a request that leaves the choice to the broker.
const BROKERS_RETENTION: i64 = -1;

/// Admits a commit. When this returns, the commit is queued and its order among the group's commits is fixed. It is
/// written together with other commits of the client, once an answer is awaited or the connection has no other work.
pub async fn admit(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Completion, Fault> {
    let request_bytes = call.reader.remaining();
    let request: OffsetCommitRequest = call.body(reply.version)?;
    let mut wanted = check(services, reply.version.number, &request);
    let metrics = services.metrics.clone();
    let answer = move |commit: &ValidCommit| commit.answer(&metrics, reply);
    if !wanted.is_any_known() {
        return answer(&wanted).map(Completion::Ready);
    }
    let offsets = std::mem::take(&mut wanted.offsets);
    let groups = &services.groups;
    let requested = match groups.prepare(Missing::Create, [&request.group_id]).await {
        Ok(()) => {
            let committer = committer(&request, reply.version.number);
            groups.commit(&request.group_id, &committer, None, offsets, &call.client.unwritten)
        }
        Err(code) => Err(code),
    };
    complete(wanted, requested, request_bytes, answer)
}

/// Returns the completion of a commit that was queued or refused. `request_bytes` is the size of the request.
pub fn complete(
    mut wanted: ValidCommit,
    requested: Result<PendingCommit, ErrorCode>,
    request_bytes: usize,
    answer: impl FnOnce(&ValidCommit) -> Result<Frame, Fault> + Send + 'static,
) -> Result<Completion, Fault> {
    match requested {
        Err(code) => {
            wanted.refuse_known(code);
            answer(&wanted).map(Completion::Ready)
        }
        Ok(requested) => {
            let held = request_bytes + requested.bytes();
            let answer = Box::pin(async move {
                match requested.done().await {
                    Ok(refused) => wanted.refuse(&refused),
                    Err(code) => wanted.refuse_known(code),
                }
                answer(&wanted)
            });
            Ok(Completion::Holding(answer, held))
        }
    }
}

/// The result of checking a request: the offsets that may be committed, and a response with the errors of the others.
#[derive(Default)]
pub struct ValidCommit {
    /// The offsets to commit. Their partitions exist, and their metadata is not too large.
    pub offsets: Vec<CommitOffset>,
    /// For each of `offsets`, the indexes of its topic and partition in the response.
    places: Vec<(usize, usize)>,
    /// The same indexes of the offsets whose metadata is too large.
    too_large: Vec<(usize, usize)>,
    /// The response, with the errors that the checks have found so far.
    pub response: OffsetCommitResponse,
}

impl ValidCommit {
    /// Returns true if at least one partition of the request exists.
    pub fn is_any_known(&self) -> bool {
        !self.places.is_empty() || !self.too_large.is_empty()
    }

    /// Sets the errors of offsets that could not be committed. Each pair is an index into `offsets` and an error.
    fn refuse(&mut self, refused: &[(usize, ErrorCode)]) {
        for (index, code) in refused {
            let (topic, partition) = self.places[*index];
            self.response.topics[topic].partitions[partition].error_code = *code;
        }
    }

    /// Sets the same error for every partition that exists, because no offset was committed.
    fn refuse_known(&mut self, code: ErrorCode) {
        for (topic, partition) in self.places.iter().chain(&self.too_large) {
            self.response.topics[*topic].partitions[*partition].error_code = code;
        }
    }

    /// Adds the offsets of the response to the metrics, by their errors.
    pub fn count(&self, metrics: &Metrics) {
        for partition in self.response.topics.iter().flat_map(|topic| &topic.partitions) {
            metrics.offset_committed(partition.error_code);
        }
    }

    fn answer(&self, metrics: &Metrics, reply: Reply) -> Result<Frame, Fault> {
        self.count(metrics);
        reply.frame::<OffsetCommitRequest>(&self.response)
    }
}

/// Checks the topics and partitions of a request, and the sizes of its metadata.
pub fn check(services: &CoordinatorServices, version: i16, request: &OffsetCommitRequest) -> ValidCommit {
    let image = services.metadata.control.image();
    let now = now_ms();
    let expires_ms = match request.retention_time_ms {
        BROKERS_RETENTION => None,
        retention => Some(now.saturating_add(retention)),
    };
    let mut wanted = ValidCommit::default();
    for (at, topic) in request.topics.iter().enumerate() {
        let found = find(&image, version, topic);
        let named = found.as_ref().ok().map(|found| TopicName { id: found.id, name: Arc::from(found.name.as_str()) });
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for (place, partition) in topic.partitions.iter().enumerate() {
            let index = partition.partition_index;
            let error_code = match &found {
                Err(code) => *code,
                Ok(found) if found.partition(index).is_none() => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
                Ok(_) if is_too_large(services, partition) => {
                    wanted.too_large.push((at, place));
                    ErrorCode::OFFSET_METADATA_TOO_LARGE
                }
                Ok(_) => {
                    let committed = committed(partition, now, expires_ms);
                    let topic = named.clone();
                    wanted.offsets.extend(topic.map(|topic| CommitOffset { topic, partition: index, committed }));
                    wanted.places.push((at, place));
                    ErrorCode::NONE
                }
            };
            partitions.push(OffsetCommitResponsePartition { partition_index: index, error_code, ..Default::default() });
        }
        let (name, topic_id) = (topic.name.clone(), topic.topic_id);
        wanted.response.topics.push(OffsetCommitResponseTopic { name, topic_id, partitions, ..Default::default() });
    }
    wanted
}

fn find<'i>(image: &'i Image, version: i16, topic: &OffsetCommitRequestTopic) -> Result<&'i Arc<Topic>, ErrorCode> {
    if version >= TOPIC_IDS {
        image.topic_by_id(topic.topic_id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)
    } else {
        image.topic(&topic.name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
    }
}

/// Returns true if the metadata is too large. As in Kafka, the limit counts Java characters.
fn is_too_large(services: &CoordinatorServices, partition: &OffsetCommitRequestPartition) -> bool {
    let max = services.metadata.config.groups.offsets.metadata_max_bytes;
    let metadata = partition.committed_metadata.as_deref().unwrap_or_default();
    metadata.len() > max && metadata.encode_utf16().count() > max
}

fn committed(partition: &OffsetCommitRequestPartition, now: i64, expires_ms: Option<i64>) -> OffsetAndMetadata {
    OffsetAndMetadata {
        offset: partition.committed_offset,
        leader_epoch: partition.committed_leader_epoch,
        metadata: partition.committed_metadata.as_deref().unwrap_or_default().into(),
        committed_ms: now,
        expires_ms,
    }
}

fn committer(request: &OffsetCommitRequest, version: i16) -> Committer<'_> {
    Committer {
        member_id: &request.member_id,
        instance_id: request.group_instance_id.as_deref(),
        generation: request.generation_id_or_member_epoch,
        version,
        is_transactional: false,
    }
}
