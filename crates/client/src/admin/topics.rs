//! Creates, lists, describes and deletes topics. The requests go to any broker of the cluster.

use crate::blocking::{Cluster, check_topic};
use crate::error::ClientError;
use fullbore_wire::apis::create_partitions::{
    CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic,
};
use fullbore_wire::apis::create_topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use fullbore_wire::apis::delete_topics::{DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest};
use fullbore_wire::apis::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use fullbore_wire::apis::describe_topic_partitions::{DescribeTopicPartitionsRequest, TopicRequest};
use fullbore_wire::apis::metadata::{MetadataResponsePartition, MetadataResponseTopic};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::HashSet;

/// The resource type of a topic in DescribeConfigs.
const RESOURCE_TOPIC: i8 = 2;
/// Maximum number of topics in one DescribeConfigs request. Brokers limit the size of a response, so the settings of
/// more topics might not fit.
const TOPICS_PER_ANSWER: usize = 1_000;
/// The setting that makes a topic diskless.
const DISKLESS_ENABLE: &str = "diskless.enable";
/// The config source in DescribeConfigs that marks a default value.
const SOURCE_DEFAULT: i8 = 5;

/// A topic as `topics describe` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// The topic's name.
    pub name: Text,
    /// The topic's id. Zero from brokers before 2.8.
    pub topic_id: Uuid,
    /// The partitions, sorted by number.
    pub partitions: Vec<TopicPartitionInfo>,
    /// The configurations whose value is not the default.
    pub configs: Vec<(Text, Text)>,
    /// The min.insync.replicas in force. `None` for a diskless topic, where the setting has no effect.
    pub min_in_sync: Option<usize>,
}

impl TopicDescription {
    fn new(name: &Text, topic_id: Uuid, partitions: Vec<TopicPartitionInfo>) -> Self {
        TopicDescription { name: name.clone(), topic_id, partitions, configs: Vec::new(), min_in_sync: None }
    }
}

/// A partition as `topics describe` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPartitionInfo {
    /// The number of the partition.
    pub partition: i32,
    /// The broker id of the leader, or `None` if no live broker leads.
    pub leader: Option<i32>,
    /// The brokers that have a replica of the partition.
    pub replicas: Vec<i32>,
    /// The replicas that are in sync with the leader (ISR).
    pub in_sync: Vec<i32>,
    /// The replicas that may lead although they left the ISR (ELR). `None` from brokers before 3.7.
    pub eligible: Option<Vec<i32>>,
    /// The last known members of the ELR (LastKnownElr). `None` from brokers before 3.7.
    pub last_known_eligible: Option<Vec<i32>>,
    /// The replicas on brokers that are not alive.
    pub offline: Vec<i32>,
}

/// The layout of a new topic: either its numbers of partitions and replicas, or the brokers of each partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionLayout {
    /// The numbers of partitions and replicas. If a number is `None`, the broker chooses it.
    Counts {
        /// The number of partitions.
        partitions: Option<i32>,
        /// The number of replicas of each partition.
        replication_factor: Option<i16>,
    },
    /// The brokers of each partition. The first one is the preferred leader.
    Assigned(Vec<Vec<i32>>),
}

/// Creates a topic. If a number is `None`, the broker chooses it.
///
/// # Errors
/// Returns [`ClientError`] if the broker refuses the topic, or the connection fails.
pub fn create_topic(
    cluster: &mut Cluster,
    name: &str,
    partitions: Option<i32>,
    replication_factor: Option<i16>,
    configs: &[(String, String)],
) -> Result<(), ClientError> {
    create_topic_as(cluster, name, &PartitionLayout::Counts { partitions, replication_factor }, configs)
}

/// Creates a topic with this layout.
///
/// # Errors
/// Returns [`ClientError`] if the broker refuses the topic, for example with TOPIC_ALREADY_EXISTS, or the connection
/// fails.
pub fn create_topic_as(
    cluster: &mut Cluster,
    name: &str,
    layout: &PartitionLayout,
    configs: &[(String, String)],
) -> Result<(), ClientError> {
    let config = |(key, value): &(String, String)| CreatableTopicConfig {
        name: key.as_str().into(),
        value: Some(value.as_str().into()),
        ..Default::default()
    };
    let (partitions, replication_factor, assigned) = match layout {
        PartitionLayout::Counts { partitions, replication_factor } => (*partitions, *replication_factor, &[][..]),
        PartitionLayout::Assigned(assigned) => (None, None, &assigned[..]),
    };
    let assignment = |(partition_index, broker_ids): (i32, &Vec<i32>)| CreatableReplicaAssignment {
        partition_index,
        broker_ids: broker_ids.clone(),
        ..Default::default()
    };
    let topic = CreatableTopic {
        name: name.into(),
        num_partitions: partitions.unwrap_or(-1),
        replication_factor: replication_factor.unwrap_or(-1),
        assignments: (0..).zip(assigned).map(assignment).collect(),
        configs: configs.iter().map(config).collect(),
        ..Default::default()
    };
    let request =
        CreateTopicsRequest { topics: vec![topic], timeout_ms: cluster.change_timeout_ms(), ..Default::default() };
    let response = cluster.call(&request)?;
    match response.topics.iter().find(|topic| topic.error_code.is_err()) {
        Some(failed) => {
            let message = failed.error_message.as_deref();
            Err(ClientError::kafka(format!("cannot create topic '{name}'"), failed.error_code, message))
        }
        None => Ok(()),
    }
}

/// Increases the number of a topic's partitions to `count`. If `assigned` is given, it has the brokers of the new
/// partitions.
///
/// # Errors
/// Returns INVALID_PARTITIONS if `count` is not an increase, or another error of the broker or of the connection.
pub fn create_partitions(
    cluster: &mut Cluster,
    name: &Text,
    count: i32,
    assigned: Option<&[Vec<i32>]>,
) -> Result<(), ClientError> {
    let on = |brokers: &Vec<i32>| CreatePartitionsAssignment { broker_ids: brokers.clone(), ..Default::default() };
    let assignments = assigned.map(|assigned| assigned.iter().map(on).collect());
    let topic = CreatePartitionsTopic { name: name.clone(), count, assignments, ..Default::default() };
    let request =
        CreatePartitionsRequest { topics: vec![topic], timeout_ms: cluster.change_timeout_ms(), ..Default::default() };
    let response = cluster.call(&request)?;
    match response.results.iter().find(|result| result.error_code.is_err()) {
        Some(failed) => {
            let message = failed.error_message.as_deref();
            Err(ClientError::kafka(format!("cannot add partitions to topic '{name}'"), failed.error_code, message))
        }
        None => Ok(()),
    }
}

/// Returns the names of all topics in order. The flag beside a name is true if the topic is internal.
///
/// # Errors
/// Returns the error of the last attempt to connect, if no broker answers.
pub fn list_topics(cluster: &mut Cluster) -> Result<Vec<(Text, bool)>, ClientError> {
    let response = cluster.metadata(None)?;
    let named = |topic: MetadataResponseTopic| topic.name.map(|name| (name, topic.is_internal));
    let mut topics: Vec<(Text, bool)> = response.topics.into_iter().filter_map(named).collect();
    topics.sort();
    Ok(topics)
}

/// Returns the name of the topic with this id, or `None` if no topic has it.
///
/// # Errors
/// Returns the error of the last attempt to connect, if no broker answers.
pub fn topic_name(cluster: &mut Cluster, topic_id: Uuid) -> Result<Option<Text>, ClientError> {
    let response = cluster.metadata(None)?;
    Ok(response.topics.into_iter().find(|topic| topic.topic_id == topic_id).and_then(|topic| topic.name))
}

/// Deletes topics. Returns those that could not be deleted, with their errors.
///
/// # Errors
/// Returns the error of the last attempt to connect, if no broker answers.
pub fn delete_topics(cluster: &mut Cluster, names: &[Text]) -> Result<Vec<(Text, ClientError)>, ClientError> {
    let by_name = |name: &Text| DeleteTopicState { name: Some(name.clone()), ..Default::default() };
    let request = DeleteTopicsRequest {
        topics: names.iter().map(by_name).collect(),
        topic_names: names.to_vec(),
        timeout_ms: cluster.change_timeout_ms(),
        ..Default::default()
    };
    let response = cluster.call(&request)?;
    let failed = response.responses.into_iter().filter(|topic| topic.error_code.is_err());
    let why = |topic: DeletableTopicResult| {
        let name = topic.name.unwrap_or_default();
        let error = match topic.error_code {
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => ClientError::NoTopic(name.to_string()),
            code => ClientError::kafka(format!("cannot delete topic '{name}'"), code, topic.error_message.as_deref()),
        };
        (name, error)
    };
    Ok(failed.map(why).collect())
}

/// The default number of partitions in one response of [`describe_topics`], as in Kafka's tool.
pub const PARTITIONS_PER_ANSWER: i32 = 2000;

/// Describes the partitions and configurations of these topics, in this order. Each response has at most
/// `partitions_per_answer` partitions.
///
/// # Errors
/// Returns [`ClientError::NoTopic`] if a topic does not exist, or another error of the broker or of the connection.
pub fn describe_topics(
    cluster: &mut Cluster,
    names: &[Text],
    partitions_per_answer: i32,
) -> Result<Vec<TopicDescription>, ClientError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut described = match cluster.any()?.version::<DescribeTopicPartitionsRequest>() {
        Ok(_) => describe_by_pages(cluster, names, partitions_per_answer)?,
        Err(_) => describe_by_metadata(cluster, names)?,
    };
    // A leader that is not alive counts as no leader, as in Kafka's client.
    let alive: HashSet<i32> = cluster.brokers()?.into_iter().map(|broker| broker.id).collect();
    for topic in &mut described {
        topic.partitions.sort_by_key(|partition| partition.partition);
        topic
            .partitions
            .iter_mut()
            .for_each(|partition| partition.leader = partition.leader.filter(|id| alive.contains(id)));
    }
    add_configs(cluster, &mut described)?;
    Ok(described)
}

fn describe_by_metadata(cluster: &mut Cluster, names: &[Text]) -> Result<Vec<TopicDescription>, ClientError> {
    let metadata = cluster.metadata(Some(names))?;
    let describe = |name: &Text| {
        let found = metadata.topics.iter().find(|topic| topic.name.as_ref() == Some(name));
        let found = found.ok_or_else(|| ClientError::NoTopic(name.to_string()))?;
        check_topic(found.error_code, name)?;
        let partition = |found: &MetadataResponsePartition| TopicPartitionInfo {
            partition: found.partition_index,
            leader: (found.leader_id >= 0).then_some(found.leader_id),
            replicas: found.replica_nodes.clone(),
            in_sync: found.isr_nodes.clone(),
            eligible: None,
            last_known_eligible: None,
            offline: found.offline_replicas.clone(),
        };
        let partitions = found.partitions.iter().map(partition).collect();
        Ok(TopicDescription::new(name, found.topic_id, partitions))
    };
    names.iter().map(describe).collect()
}

/// Describes topics page by page. The partitions of a topic may continue on the next page.
fn describe_by_pages(
    cluster: &mut Cluster,
    names: &[Text],
    partitions_per_answer: i32,
) -> Result<Vec<TopicDescription>, ClientError> {
    let mut described: Vec<TopicDescription> =
        names.iter().map(|name| TopicDescription::new(name, Uuid::ZERO, Vec::new())).collect();
    let topics = names.iter().map(|name| TopicRequest { name: name.clone(), ..Default::default() }).collect();
    let mut request = DescribeTopicPartitionsRequest {
        topics,
        response_partition_limit: partitions_per_answer,
        ..Default::default()
    };
    loop {
        let response = cluster.call(&request)?;
        for found in response.topics {
            let name = found.name.unwrap_or_default();
            check_topic(found.error_code, &name)?;
            let Some(topic) = described.iter_mut().find(|topic| topic.name == name) else { continue };
            topic.topic_id = found.topic_id;
            topic.partitions.extend(found.partitions.into_iter().map(|found| TopicPartitionInfo {
                partition: found.partition_index,
                leader: (found.leader_id >= 0).then_some(found.leader_id),
                replicas: found.replica_nodes,
                in_sync: found.isr_nodes,
                eligible: found.eligible_leader_replicas,
                last_known_eligible: found.last_known_elr,
                offline: found.offline_replicas,
            }));
        }
        // A broker that returned the same cursor again would make this loop endless.
        if response.next_cursor.is_none() || response.next_cursor == request.cursor {
            return Ok(described);
        }
        request.cursor = response.next_cursor;
    }
}

fn add_configs(cluster: &mut Cluster, described: &mut [TopicDescription]) -> Result<(), ClientError> {
    described.chunks_mut(TOPICS_PER_ANSWER).try_for_each(|described| add_configs_of(cluster, described))
}

fn add_configs_of(cluster: &mut Cluster, described: &mut [TopicDescription]) -> Result<(), ClientError> {
    let resource = |topic: &TopicDescription| DescribeConfigsResource {
        resource_type: RESOURCE_TOPIC,
        resource_name: topic.name.clone(),
        ..Default::default()
    };
    let resources = described.iter().map(resource).collect();
    let response = cluster.call(&DescribeConfigsRequest { resources, ..Default::default() })?;
    for result in response.results {
        if result.error_code.is_err() {
            let what = format!("cannot read the configuration of topic '{}'", result.resource_name);
            return Err(ClientError::kafka(what, result.error_code, result.error_message.as_deref()));
        }
        let Some(topic) = described.iter_mut().find(|topic| topic.name == result.resource_name) else { continue };
        let value = |name: &str| result.configs.iter().find(|config| config.name == *name)?.value.as_deref();
        let min_in_sync = value("min.insync.replicas").filter(|_| value(DISKLESS_ENABLE) != Some("true"));
        topic.min_in_sync = min_in_sync.and_then(|min| min.parse().ok());
        let set = result.configs.into_iter().filter(|config| config.config_source != SOURCE_DEFAULT);
        topic.configs = set.map(|config| (config.name, config.value.unwrap_or_default())).collect();
    }
    Ok(())
}
