//! DeleteTopics 1-6. From version 6 on a topic is named by name or id.

use super::{Call, Fault, Reply};
use crate::classic::Logs;
use crate::control::TopicRef;
use fullbore_wire::apis::delete_topics::{
    DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::time::Duration;
use tokio::time::timeout;

/// How long an answer waits at most for folders to be out of the way.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: DeleteTopicsRequest = call.body(reply.version)?;
    let asked: Vec<DeleteTopicState> = if reply.version.number >= 6 {
        request.topics
    } else {
        let by_name = |name| DeleteTopicState { name: Some(name), ..Default::default() };
        request.topic_names.into_iter().map(by_name).collect()
    };
    let targets = asked.iter().map(target).collect();
    let outcomes = call.broker.control.delete_topics(targets).await;
    let patience = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)).min(WAIT_MAX);
    let deleted = outcomes.iter().flatten().map(|topic| topic.id);
    // It is decided, and carried out whoever waits.
    let _ = timeout(patience, carried_out(&call.broker.logs, deleted)).await;
    let responses = asked
        .into_iter()
        .zip(outcomes)
        .map(|(asked, outcome)| match outcome {
            Ok(topic) => DeletableTopicResult {
                name: Some(Text::from(topic.name.as_str())),
                topic_id: topic.id,
                error_code: ErrorCode::NONE,
                ..Default::default()
            },
            Err(refusal) => DeletableTopicResult {
                name: asked.name,
                topic_id: asked.topic_id,
                error_code: refusal.code,
                error_message: Some(Text::from(refusal.message)),
                ..Default::default()
            },
        })
        .collect();
    reply.frame::<DeleteTopicsRequest>(&DeleteTopicsResponse { responses, ..Default::default() })
}

async fn carried_out(logs: &Logs, topics: impl Iterator<Item = Uuid>) {
    for id in topics {
        logs.deleted(id).await;
    }
}

fn target(asked: &DeleteTopicState) -> TopicRef {
    match &asked.name {
        Some(name) => TopicRef::Name(name.to_string()),
        None => TopicRef::Id(asked.topic_id),
    }
}
