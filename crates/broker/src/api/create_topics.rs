//! CreateTopics 2-7: creates topics, or only checks whether they could be created.

use super::call::{Call, Fault, Reply, words};
use crate::node::MetadataServices;
use fullbore_config::describe_topic;
use fullbore_control::{CreateTopic, CreateTopics, Image, Refusal, Topic};
use fullbore_wire::apis::create_topics::{
    CreatableTopic, CreatableTopicConfigs, CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text};

/// Maximum number of topics in one request, because the response contains all settings of each topic. Kafka limits the
/// partitions of a request to the same number (`ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`) and refuses with
/// the same error.
const TOPICS_MAX: usize = 10_000;

pub async fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: CreateTopicsRequest = call.body(reply.version)?;
    let wanted =
        CreateTopics { topics: request.topics.iter().map(wanted).collect(), validate_only: request.validate_only };
    let count = request.topics.len();
    let outcomes = if count > TOPICS_MAX {
        let message = format!("A request may create at most {TOPICS_MAX} topics, and this one has {count}.");
        vec![Err(Refusal::new(ErrorCode::POLICY_VIOLATION, message)); count]
    } else {
        call.control(&metadata.control).create_topics(wanted).await
    };
    let image = metadata.control.image();
    let topics = request
        .topics
        .into_iter()
        .zip(outcomes)
        .map(|(requested, outcome)| match outcome {
            Ok(topic) => created(metadata, &image, &topic),
            Err(refusal) => CreatableTopicResult {
                name: requested.name,
                error_code: refusal.code,
                error_message: Some(words(refusal.message)),
                ..Default::default()
            },
        })
        .collect();
    reply.frame::<CreateTopicsRequest>(&CreateTopicsResponse { topics, ..Default::default() })
}

fn wanted(topic: &CreatableTopic) -> CreateTopic {
    CreateTopic {
        name: topic.name.to_string(),
        num_partitions: topic.num_partitions,
        replication_factor: topic.replication_factor,
        assignments: topic.assignments.iter().map(|a| (a.partition_index, a.broker_ids.clone())).collect(),
        configs: topic
            .configs
            .iter()
            .map(|config| (config.name.to_string(), config.value.as_ref().map(|value| value.to_string())))
            .collect(),
    }
}

fn created(metadata: &MetadataServices, image: &Image, topic: &Topic) -> CreatableTopicResult {
    let configs = describe_topic(&metadata.config, image.dynamic(), &topic.overrides).unwrap_or_default();
    CreatableTopicResult {
        name: Text::from(topic.name.as_str()),
        topic_id: topic.id,
        num_partitions: topic.partition_count(),
        replication_factor: topic.replication_factor(),
        configs: Some(
            configs
                .into_iter()
                .map(|entry| CreatableTopicConfigs {
                    name: Text::from_static(entry.name),
                    value: entry.value.map(Text::from),
                    read_only: entry.read_only,
                    config_source: entry.source as i8,
                    is_sensitive: entry.sensitive,
                    ..Default::default()
                })
                .collect(),
        ),
        ..Default::default()
    }
}
