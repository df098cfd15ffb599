//! DeleteTopics 1-6. From version 6 on, a topic can also be identified by its id.

use super::call::{Call, Fault, Reply, words};
use crate::node::MetadataServices;
use crate::partitions::Partitions;
use fullbore_control::{Refusal, TopicRef};
use fullbore_wire::apis::delete_topics::{
    DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::time::Duration;
use tokio::time::timeout;

/// The longest wait for earlier deletions before this one begins, and then again for the removal of this one's
/// directories.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub async fn handle(
    call: &mut Call<'_>,
    metadata: &MetadataServices,
    hosted: &Partitions,
    reply: Reply,
) -> Result<Frame, Fault> {
    let request: DeleteTopicsRequest = call.body(reply.version)?;
    let requested: Vec<DeleteTopicState> = if reply.version.number >= 6 {
        request.topics
    } else {
        let by_name = |name| DeleteTopicState { name: Some(name), ..Default::default() };
        request.topic_names.into_iter().map(by_name).collect()
    };
    let meant: Vec<TopicRef> = requested.iter().flat_map(target).collect();
    let outcomes = match timeout(WAIT_MAX, hosted.deletions_have_room()).await {
        Ok(()) => call.control(&metadata.control).delete_topics(meant).await,
        Err(_) => vec![Err(too_many()); meant.len()],
    };
    let patience = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)).min(WAIT_MAX);
    let deleted = outcomes.iter().flatten().map(|topic| topic.id);
    // The deletion has been decided and will be carried out even if the client is gone.
    let _ = timeout(patience, carried_out(hosted, deleted)).await;
    let mut outcomes = outcomes.into_iter();
    let mut outcome_of = |requested: &DeleteTopicState| {
        target(requested).and_then(|_| outcomes.next().unwrap_or_else(|| Err(too_many())))
    };
    let responses = requested
        .into_iter()
        .map(|requested| (outcome_of(&requested), requested))
        .map(|(outcome, requested)| match outcome {
            Ok(topic) => DeletableTopicResult {
                name: Some(Text::from(topic.name.as_str())),
                topic_id: topic.id,
                error_code: ErrorCode::NONE,
                ..Default::default()
            },
            Err(refusal) => DeletableTopicResult {
                name: requested.name,
                topic_id: requested.topic_id,
                error_code: refusal.code,
                error_message: Some(words(refusal.message)),
                ..Default::default()
            },
        })
        .collect();
    reply.frame::<DeleteTopicsRequest>(&DeleteTopicsResponse { responses, ..Default::default() })
}

/// Returns the refusal of a deletion that has waited too long for earlier ones, as in Kafka's controller.
fn too_many() -> Refusal {
    let message = "Too many deleted topics wait for the removal of their files.";
    Refusal::new(ErrorCode::REQUEST_TIMED_OUT, message)
}

async fn carried_out(logs: &Partitions, topics: impl Iterator<Item = Uuid>) {
    for id in topics {
        logs.deleted(id).await;
    }
}

/// Returns the topic of an entry. An entry with both a name and an id is refused, because the two may belong to
/// different topics.
fn target(requested: &DeleteTopicState) -> Result<TopicRef, Refusal> {
    let refused = |message: &'static str| Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
    match (&requested.name, requested.topic_id.is_zero()) {
        (Some(name), true) => Ok(TopicRef::Name(name.clone())),
        (None, false) => Ok(TopicRef::Id(requested.topic_id)),
        (Some(_), false) => refused("You may not specify both topic name and topic id."),
        (None, true) => refused("Neither topic name nor id were specified."),
    }
}
