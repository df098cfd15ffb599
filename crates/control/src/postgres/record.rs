//! Converts the changes of a version to JSON and back.
//!
//! The records here mirror the types of `change`, so that those types can change while the JSON stays the same.
//! Invariant: reading a text returns the changes that were written, or an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::cluster::LogEndReport;
use fullbore_rules::replica::epochs::Position;
use fullbore_rules::replica::{BrokerRegistration, PartitionRegistration};
use fullbore_rules::sequence::PastTopic;
use fullbore_wire::{Text, Uuid};
use serde::{Deserialize, Serialize};

use super::super::change::{Change, CopyAcceptance, DeletedTopic, Partitions};
use super::super::node::{Endpoint, RegisteredBroker};
use fullbore_config::Resource;

/// Settings by name.
pub type SetConfigs = BTreeMap<String, String>;

/// The JSON form of a [`Change`].
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ChangeRecord {
    BrokerRegistered {
        id: i32,
        #[serde(flatten)]
        node: NodeRecord,
    },
    TopicCreated {
        id: String,
        name: String,
        partitions: Vec<RunRecord>,
        configs: SetConfigs,
    },
    PartitionsChanged {
        id: String,
        first: usize,
        partitions: Vec<RunRecord>,
    },
    #[serde(rename = "log_end_told")]
    LogEndReported {
        id: String,
        partition: i32,
        broker: i32,
        broker_epoch: i64,
        last_epoch: Option<i32>,
        end_offset: i64,
    },
    TopicConfigured {
        id: String,
        configs: SetConfigs,
    },
    TopicDeleted {
        id: String,
        name: String,
        partitions: i32,
    },
    DeletionFinished {
        id: String,
    },
    NameRemembered {
        name: String,
        past: Vec<PastRecord>,
    },
    BrokerConfigured {
        broker: Option<i32>,
        configs: SetConfigs,
    },
    ResourceConfigured {
        resource_type: i8,
        name: String,
        configs: SetConfigs,
    },
    FeatureUpdated {
        name: String,
        level: i16,
    },
    ProducerIdsTaken {
        next: i64,
    },
    CopyAccepted {
        version: u64,
        first_leader_epoch: i32,
        at_ms: i64,
    },
}

/// The JSON form of a [`RegisteredBroker`].
#[derive(Serialize, Deserialize)]
struct NodeRecord {
    epoch: i64,
    #[serde(rename = "folder")]
    directory: String,
    process: String,
    fenced: bool,
    shutting_down: bool,
    /// False if absent: before version 5 of the schema, brokers did not report a full disk.
    #[serde(default)]
    disk_full: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    rack: Option<String>,
    /// True if absent: before version 4 of the schema, brokers did not report this value, and all of them served
    /// diskless topics.
    #[serde(default = "always")]
    serves_diskless: bool,
    /// Host and port by listener name.
    endpoints: BTreeMap<String, (String, u16)>,
}

/// The JSON form of a [`PastTopic`].
#[derive(Serialize, Deserialize)]
struct PastRecord {
    id: String,
    partitions: i32,
    diskless: bool,
    deleted_at: u64,
    producer_ids_below: i64,
}

fn always() -> bool {
    true
}

/// Consecutive partitions with equal registrations.
#[derive(Serialize, Deserialize)]
struct RunRecord {
    count: usize,
    replicas: Vec<i32>,
    isr: Vec<i32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    elr: Vec<i32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost: Vec<i32>,
    leader: Option<i32>,
    leader_epoch: i32,
    partition_epoch: i32,
}

/// Maximum number of partitions in one record, which is more than any topic has.
const PARTITIONS_MAX: usize = 1 << 20;

/// Returns the changes as JSON.
pub fn write(changes: &[Change]) -> String {
    let records: Vec<ChangeRecord> = changes.iter().map(record).collect();
    serde_json::to_string(&records).expect("its keys are text, and it has no numbers that JSON lacks")
}

/// Reads changes from JSON.
///
/// # Errors
/// Returns the reason if the JSON cannot be read.
pub fn read(text: &str) -> Result<Vec<Change>, String> {
    let records: Vec<ChangeRecord> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    records.into_iter().map(change).collect()
}

fn record(change: &Change) -> ChangeRecord {
    match change {
        Change::BrokerRegistered { id, node } => ChangeRecord::BrokerRegistered { id: *id, node: node_record(node) },
        Change::TopicCreated { topic, name, partitions, overrides } => ChangeRecord::TopicCreated {
            id: topic.to_string(),
            name: name.clone(),
            partitions: run_records(partitions),
            configs: overrides.clone(),
        },
        Change::PartitionsChanged { topic, first, partitions } => {
            let partitions = run_records(partitions);
            ChangeRecord::PartitionsChanged { id: topic.to_string(), first: *first, partitions }
        }
        Change::LogEndReported { topic, partition, end } => ChangeRecord::LogEndReported {
            id: topic.to_string(),
            partition: *partition,
            broker: end.broker_id,
            broker_epoch: end.broker_epoch,
            last_epoch: end.position.last_epoch,
            end_offset: end.position.offset,
        },
        Change::TopicConfigured { topic, overrides } => {
            ChangeRecord::TopicConfigured { id: topic.to_string(), configs: overrides.clone() }
        }
        Change::TopicDeleted(DeletedTopic { id, name, partitions }) => {
            ChangeRecord::TopicDeleted { id: id.to_string(), name: name.clone(), partitions: *partitions }
        }
        Change::DeletionFinished { topic } => ChangeRecord::DeletionFinished { id: topic.to_string() },
        Change::NameRemembered { name, past } => {
            ChangeRecord::NameRemembered { name: name.clone(), past: past.iter().map(past_record).collect() }
        }
        Change::BrokerConfigured { broker, overrides } => {
            ChangeRecord::BrokerConfigured { broker: *broker, configs: overrides.clone() }
        }
        Change::ResourceConfigured { resource, name, overrides } => ChangeRecord::ResourceConfigured {
            resource_type: *resource as i8,
            name: name.clone(),
            configs: overrides.clone(),
        },
        Change::FeatureUpdated { name, level } => ChangeRecord::FeatureUpdated { name: name.clone(), level: *level },
        Change::ProducerIdsTaken { next } => ChangeRecord::ProducerIdsTaken { next: *next },
        Change::CopyAccepted(CopyAcceptance { version, first_leader_epoch, at_ms }) => {
            ChangeRecord::CopyAccepted { version: *version, first_leader_epoch: *first_leader_epoch, at_ms: *at_ms }
        }
    }
}

fn change(record: ChangeRecord) -> Result<Change, String> {
    Ok(match record {
        ChangeRecord::BrokerRegistered { id, node } => Change::BrokerRegistered { id, node: self::node(node)? },
        ChangeRecord::TopicCreated { id, name, partitions, configs } => Change::TopicCreated {
            topic: self::id(&id)?,
            name,
            partitions: self::partitions(partitions)?,
            overrides: configs,
        },
        ChangeRecord::PartitionsChanged { id, first, partitions } => {
            Change::PartitionsChanged { topic: self::id(&id)?, first, partitions: self::partitions(partitions)? }
        }
        ChangeRecord::LogEndReported { id, partition, broker, broker_epoch, last_epoch, end_offset } => {
            let position = Position { last_epoch, offset: end_offset };
            let end = LogEndReport { broker_id: broker, broker_epoch, position };
            Change::LogEndReported { topic: self::id(&id)?, partition, end }
        }
        ChangeRecord::TopicConfigured { id, configs } => {
            Change::TopicConfigured { topic: self::id(&id)?, overrides: configs }
        }
        ChangeRecord::TopicDeleted { id, name, partitions } => {
            Change::TopicDeleted(DeletedTopic { id: self::id(&id)?, name, partitions })
        }
        ChangeRecord::DeletionFinished { id } => Change::DeletionFinished { topic: self::id(&id)? },
        ChangeRecord::NameRemembered { name, past } => {
            let past = past.into_iter().map(past_topic).collect::<Result<_, _>>()?;
            Change::NameRemembered { name, past }
        }
        ChangeRecord::BrokerConfigured { broker, configs } => Change::BrokerConfigured { broker, overrides: configs },
        ChangeRecord::ResourceConfigured { resource_type, name, configs } => {
            let unknown = || format!("there is no type of resource {resource_type}");
            let resource = Resource::from_code(resource_type).ok_or_else(unknown)?;
            Change::ResourceConfigured { resource, name, overrides: configs }
        }
        ChangeRecord::FeatureUpdated { name, level } => Change::FeatureUpdated { name, level },
        ChangeRecord::ProducerIdsTaken { next } => Change::ProducerIdsTaken { next },
        ChangeRecord::CopyAccepted { version, first_leader_epoch, at_ms } => {
            Change::CopyAccepted(CopyAcceptance { version, first_leader_epoch, at_ms })
        }
    })
}

/// Parses an id.
fn id(text: &str) -> Result<Uuid, String> {
    Uuid::parse(text).ok_or_else(|| format!("'{text}' is not an id"))
}

fn past_record(topic: &PastTopic) -> PastRecord {
    PastRecord {
        id: topic.id.to_string(),
        partitions: topic.partitions,
        diskless: topic.is_diskless,
        deleted_at: topic.deleted_at,
        producer_ids_below: topic.producer_ids_below,
    }
}

fn past_topic(record: PastRecord) -> Result<PastTopic, String> {
    Ok(PastTopic {
        id: id(&record.id)?,
        partitions: record.partitions,
        is_diskless: record.diskless,
        deleted_at: record.deleted_at,
        producer_ids_below: record.producer_ids_below,
    })
}

fn node_record(node: &RegisteredBroker) -> NodeRecord {
    NodeRecord {
        epoch: node.registration.epoch,
        directory: node.directory.to_string(),
        process: node.process.to_string(),
        fenced: node.registration.is_fenced,
        shutting_down: node.registration.is_shutting_down,
        disk_full: node.registration.is_full,
        rack: node.rack.as_ref().map(Text::to_string),
        serves_diskless: node.serves_diskless,
        endpoints: node.endpoints.iter().map(|(name, at)| (name.clone(), (at.host.to_string(), at.port))).collect(),
    }
}

fn node(record: NodeRecord) -> Result<RegisteredBroker, String> {
    let endpoint = |(host, port): (String, u16)| Endpoint { host: Text::from(host), port };
    Ok(RegisteredBroker {
        registration: BrokerRegistration {
            epoch: record.epoch,
            is_fenced: record.fenced,
            is_shutting_down: record.shutting_down,
            is_full: record.disk_full,
        },
        directory: id(&record.directory)?,
        process: id(&record.process)?,
        rack: record.rack.map(Text::from),
        serves_diskless: record.serves_diskless,
        endpoints: record.endpoints.into_iter().map(|(name, at)| (name, endpoint(at))).collect(),
    })
}

/// Groups consecutive partitions with equal registrations. Returns the first partition number, the number of partitions
/// and the registration of each group.
pub fn runs(partitions: &Partitions) -> Vec<(usize, usize, &Arc<PartitionRegistration>)> {
    let mut runs: Vec<(usize, usize, &Arc<PartitionRegistration>)> = Vec::new();
    for (number, registered) in partitions.iter().enumerate() {
        match runs.last_mut() {
            Some((_, count, before)) if Arc::ptr_eq(before, registered) || before == &registered => *count += 1,
            _ => runs.push((number, 1, registered)),
        }
    }
    runs
}

fn run_records(partitions: &Partitions) -> Vec<RunRecord> {
    let run = |(_, count, of): (usize, usize, &Arc<PartitionRegistration>)| RunRecord {
        count,
        replicas: of.replicas.clone(),
        isr: of.isr.clone(),
        elr: of.elr.clone(),
        lost: of.lost.clone(),
        leader: of.leader,
        leader_epoch: of.leader_epoch,
        partition_epoch: of.partition_epoch,
    };
    runs(partitions).into_iter().map(run).collect()
}

fn partitions(runs: Vec<RunRecord>) -> Result<Partitions, String> {
    let mut partitions = Partitions::new();
    for run in runs {
        let RunRecord { count, replicas, isr, elr, lost, leader, leader_epoch, partition_epoch } = run;
        if count > PARTITIONS_MAX {
            return Err(format!("{count} partitions are more than a topic may have"));
        }
        let registered =
            Arc::new(PartitionRegistration { replicas, isr, elr, lost, leader, leader_epoch, partition_epoch });
        (0..count).for_each(|_| partitions.push_back(Arc::clone(&registered)));
    }
    Ok(partitions)
}
