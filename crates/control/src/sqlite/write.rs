//! Writes changes as rows.

use std::collections::BTreeMap;

use fullbore_rules::sequence::PastTopics;
use fullbore_wire::Uuid;
use rusqlite::{Connection, params};

use super::super::change::{ACCEPTANCE, ACCEPTANCE_RESOURCE, Change, FEATURE_LEVEL, FEATURE_RESOURCE, Version};
use super::{brokers, partitions};
use fullbore_config::Resource;

/// Maximum number of versions whose nonces the file contains.
const MARKS_MAX: i64 = 100_000;

/// Writes all changes, and the new version.
pub fn all(connection: &Connection, changes: &[Change], version: Version) -> rusqlite::Result<()> {
    changes.iter().try_for_each(|change| one(connection, change))?;
    stamp(connection, version)
}

fn one(connection: &Connection, change: &Change) -> rusqlite::Result<()> {
    match change {
        Change::BrokerRegistered { id, node } => brokers::put(connection, *id, node),
        Change::TopicCreated { topic, name, partitions, overrides } => {
            let insert = "INSERT INTO topics (id, name) VALUES (?1, ?2)";
            connection.prepare_cached(insert)?.execute(params![topic.0, name])?;
            partitions::insert(connection, *topic, 0, partitions)?;
            topic_configs(connection, *topic, overrides)
        }
        Change::PartitionsChanged { topic, first, partitions } => {
            partitions::replace(connection, *topic, *first, partitions)
        }
        Change::LogEndReported { topic, partition, end } => partitions::put_end(connection, *topic, *partition, end),
        Change::TopicConfigured { topic, overrides } => {
            let delete = "DELETE FROM topic_configs WHERE topic_id = ?1";
            connection.prepare_cached(delete)?.execute(params![topic.0])?;
            topic_configs(connection, *topic, overrides)
        }
        Change::TopicDeleted(topic) => {
            let keep = "INSERT INTO deleted_topics (id, name, partitions) VALUES (?1, ?2, ?3)";
            connection.prepare_cached(keep)?.execute(params![topic.id.0, topic.name, topic.partitions])?;
            connection.prepare_cached("DELETE FROM topics WHERE id = ?1")?.execute(params![topic.id.0]).map(drop)
        }
        Change::DeletionFinished { topic } => {
            connection.prepare_cached("DELETE FROM deleted_topics WHERE id = ?1")?.execute(params![topic.0]).map(drop)
        }
        Change::NameRemembered { name, past } => past_topics(connection, name, past),
        Change::BrokerConfigured { broker, overrides } => broker_configs(connection, broker.is_none(), overrides),
        Change::ResourceConfigured { resource, name, overrides } => {
            resource_configs(connection, *resource, name, overrides)
        }
        Change::FeatureUpdated { name, level } => {
            let put = "INSERT OR REPLACE INTO resource_configs (resource_type, resource_name, name, value)
                 VALUES (?1, ?2, ?3, ?4)";
            let row = params![FEATURE_RESOURCE, name, FEATURE_LEVEL, level.to_string()];
            connection.prepare_cached(put)?.execute(row).map(drop)
        }
        Change::CopyAccepted(accepted) => {
            let put = "INSERT OR REPLACE INTO resource_configs (resource_type, resource_name, name, value)
                 VALUES (?1, ?2, ?3, ?4)";
            let row = params![ACCEPTANCE_RESOURCE, ACCEPTANCE, ACCEPTANCE, accepted.text()];
            connection.prepare_cached(put)?.execute(row).map(drop)
        }
        Change::ProducerIdsTaken { next } => {
            connection.execute("UPDATE cluster SET next_producer_id = ?1", params![next]).map(drop)
        }
    }
}

fn stamp(connection: &Connection, version: Version) -> rusqlite::Result<()> {
    let number = i64::try_from(version.number).expect("fewer than 2^63 changes were ever made");
    let insert = "INSERT INTO versions (version, mark) VALUES (?1, ?2)";
    connection.prepare_cached(insert)?.execute(params![number, version.nonce.cast_signed()])?;
    let forget = "DELETE FROM versions WHERE version <= ?1";
    connection.prepare_cached(forget)?.execute(params![number - MARKS_MAX])?;
    connection.prepare_cached("UPDATE cluster SET version = ?1")?.execute(params![number]).map(drop)
}

fn topic_configs(connection: &Connection, topic: Uuid, set: &BTreeMap<String, String>) -> rusqlite::Result<()> {
    let insert = "INSERT INTO topic_configs (topic_id, name, value) VALUES (?1, ?2, ?3)";
    let mut insert = connection.prepare_cached(insert)?;
    set.iter().try_for_each(|(name, value)| insert.execute(params![topic.0, name, value]).map(drop))
}

/// Replaces the deleted topics of a name.
fn past_topics(connection: &Connection, name: &str, past: &PastTopics) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM past_topics WHERE name = ?1")?.execute(params![name])?;
    let insert = "INSERT INTO past_topics (name, deleted_at, id, partitions, diskless, producer_ids_below)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let mut insert = connection.prepare_cached(insert)?;
    past.iter().try_for_each(|topic| {
        let deleted_at = i64::try_from(topic.deleted_at).expect("fewer than 2^63 changes were ever made");
        let (partitions, is_diskless) = (topic.partitions, topic.is_diskless);
        let row = params![name, deleted_at, topic.id.0, partitions, is_diskless, topic.producer_ids_below];
        insert.execute(row).map(drop)
    })
}

fn broker_configs(connection: &Connection, every: bool, set: &BTreeMap<String, String>) -> rusqlite::Result<()> {
    let delete = "DELETE FROM broker_configs WHERE every_broker = ?1";
    connection.prepare_cached(delete)?.execute(params![every])?;
    let insert = "INSERT INTO broker_configs (every_broker, name, value) VALUES (?1, ?2, ?3)";
    let mut insert = connection.prepare_cached(insert)?;
    set.iter().try_for_each(|(name, value)| insert.execute(params![every, name, value]).map(drop))
}

fn resource_configs(
    connection: &Connection,
    resource: Resource,
    of: &str,
    set: &BTreeMap<String, String>,
) -> rusqlite::Result<()> {
    let code = resource as i8;
    let delete = "DELETE FROM resource_configs WHERE resource_type = ?1 AND resource_name = ?2";
    connection.prepare_cached(delete)?.execute(params![code, of])?;
    let insert = "INSERT INTO resource_configs (resource_type, resource_name, name, value) VALUES (?1, ?2, ?3, ?4)";
    let mut insert = connection.prepare_cached(insert)?;
    set.iter().try_for_each(|(name, value)| insert.execute(params![code, of, name, value]).map(drop))
}
