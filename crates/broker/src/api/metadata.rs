//! Metadata 0-13: returns brokers, topics and leaders. May create topics that the client requests by name.

use super::call::{Call, Fault, Reply, once};
use super::shown::Viewer;
use super::{nodes, operations};
use crate::node::MetadataServices;
use fullbore_control::{CreateTopic, CreateTopics, Topic, check_name, is_internal, may_be_auto_created};
use fullbore_wire::apis::metadata::{
    MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseBroker, MetadataResponsePartition,
    MetadataResponseTopic,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::sync::Arc;

pub async fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: MetadataRequest = call.body(reply.version)?;
    let version = reply.version.number;
    let everything = match &request.topics {
        None => true,
        // An empty list means all topics in version 0, and none in later versions.
        Some(topics) => version == 0 && topics.is_empty(),
    };
    let of_topics = operations::where_requested(request.include_topic_authorized_operations, operations::OF_A_TOPIC);
    let of_cluster =
        operations::where_requested(request.include_cluster_authorized_operations, operations::OF_THE_CLUSTER);
    let mut topics: Vec<_> = if everything {
        let image = metadata.control.image();
        let viewer = Viewer::of(call, metadata, &image);
        image.topics().map(|topic| describe(&viewer, topic)).collect()
    } else {
        // Before version 4 a client cannot turn off the creation of topics.
        let create = version < 4 || request.allow_auto_topic_creation;
        let wanted = once(request.topics.unwrap_or_default(), |topic| (topic.name.clone(), topic.topic_id));
        named(call, metadata, wanted, create, version).await
    };
    // As in Kafka, an unknown name has authorized operations, but an unknown id has none.
    for topic in topics.iter_mut().filter(|topic| topic.error_code != ErrorCode::UNKNOWN_TOPIC_ID) {
        topic.topic_authorized_operations = of_topics;
    }
    let image = metadata.control.image();
    let brokers = nodes::reached(metadata, &image, call.listener).map(|(node_id, node, at)| MetadataResponseBroker {
        node_id,
        host: at.host.clone(),
        port: i32::from(at.port),
        rack: node.rack.clone(),
        ..Default::default()
    });
    let response = MetadataResponse {
        brokers: brokers.collect(),
        cluster_id: Some(metadata.cluster_id.clone()),
        controller_id: metadata.config.node.id,
        topics,
        cluster_authorized_operations: of_cluster,
        ..Default::default()
    };
    reply.frame::<MetadataRequest>(&response)
}

/// Returns the requested topics in the order of the request. Missing ones are created first if that is allowed.
async fn named(
    call: &Call<'_>,
    metadata: &MetadataServices,
    wanted: Vec<MetadataRequestTopic>,
    create: bool,
    version: i16,
) -> Vec<MetadataResponseTopic> {
    let image = metadata.control.image();
    let creates = create && metadata.config.topics.auto_create && !image.stands_down();
    let missing: Vec<CreateTopic> = wanted
        .iter()
        .filter(|_| creates)
        .filter_map(|topic| topic.name.as_ref().filter(|name| topic.topic_id.is_zero() && image.topic(name).is_none()))
        .filter(|name| may_be_auto_created(name))
        .map(|name| CreateTopic {
            name: name.to_string(),
            num_partitions: -1,
            replication_factor: -1,
            ..Default::default()
        })
        .collect();
    let mut refused = std::collections::HashMap::new();
    if !missing.is_empty() {
        let names: Vec<String> = missing.iter().map(|topic| topic.name.clone()).collect();
        let outcomes =
            call.control(&metadata.control).create_topics(CreateTopics { topics: missing, validate_only: false }).await;
        for (name, outcome) in names.into_iter().zip(outcomes) {
            if let Err(refusal) = outcome {
                refused.insert(name, refusal.code);
            }
        }
    }
    let image = metadata.control.image();
    let viewer = Viewer::of(call, metadata, &image);
    wanted
        .into_iter()
        .map(|topic| {
            let name = topic.name.clone().unwrap_or_default();
            match super::topics::find(&image, &name, topic.topic_id) {
                Ok(found) => describe(&viewer, found),
                // Newer metadata may have the topic.
                Err(_) if image.stands_down() => unknown(topic, ErrorCode::LEADER_NOT_AVAILABLE, version),
                Err(code) => unknown(topic, refused.get(name.as_str()).copied().unwrap_or(code), version),
            }
        })
        .collect()
}

fn unknown(topic: MetadataRequestTopic, code: ErrorCode, version: i16) -> MetadataResponseTopic {
    let valid = topic.name.as_ref().is_none_or(|name| check_name(name).is_ok());
    let error_code = match code {
        _ if !valid => ErrorCode::INVALID_TOPIC_EXCEPTION,
        // Another request has created the topic since this one read the metadata. After this error the client retries
        // and finds the topic.
        ErrorCode::TOPIC_ALREADY_EXISTS => ErrorCode::LEADER_NOT_AVAILABLE,
        code => code,
    };
    MetadataResponseTopic {
        error_code,
        is_internal: topic.name.as_ref().is_some_and(|name| is_internal(name)),
        // An unknown topic id has no name. Versions before 12 cannot express null and get an empty name.
        name: if version >= 12 && !topic.topic_id.is_zero() { None } else { Some(topic.name.unwrap_or_default()) },
        topic_id: topic.topic_id,
        ..Default::default()
    }
}

fn describe(viewer: &Viewer<'_>, topic: &Arc<Topic>) -> MetadataResponseTopic {
    let partition = |partition_index: i32| {
        let shown = viewer.partition(topic, partition_index)?;
        Some(MetadataResponsePartition {
            error_code: shown.error_code,
            partition_index,
            leader_id: shown.leader_id,
            leader_epoch: shown.leader_epoch,
            replica_nodes: shown.replicas,
            isr_nodes: shown.isr,
            offline_replicas: shown.offline,
            ..Default::default()
        })
    };
    MetadataResponseTopic {
        error_code: ErrorCode::NONE,
        name: Some(Text::from(topic.name.as_str())),
        topic_id: Uuid(topic.id.0),
        is_internal: is_internal(&topic.name),
        partitions: (0..topic.partition_count()).filter_map(partition).collect(),
        ..Default::default()
    }
}
