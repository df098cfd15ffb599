//! Converts changes to statements. The statements of a transaction are sent as one text, so they need only one round
//! trip.

use std::collections::BTreeMap;

use fullbore_rules::cluster::LogEndReport;
use fullbore_rules::sequence::PastTopics;
use fullbore_wire::Uuid;

use super::super::change::{
    ACCEPTANCE, ACCEPTANCE_RESOURCE, Change, CopyAcceptance, FEATURE_LEVEL, FEATURE_RESOURCE, Version,
};
use super::super::node::RegisteredBroker;
use super::record;
use super::registrations::Registrations;
use fullbore_db::postgres::statements::{Statements, Typed, Value};

/// Maximum number of versions whose nonces the database stores.
pub const MARKS_MAX: i64 = 100_000;
/// Maximum number of versions whose changes the database stores.
pub const CHANGES_MAX: i64 = 10_000;
/// Maximum size in bytes of a version's changes in the database. Larger changes are not stored, so brokers that lack
/// the version read the whole state.
const CHANGES_BYTES_MAX: usize = 4 << 20;
/// Changes of more bytes than this count as large. The database erases them sooner than other changes.
const LARGE_BYTES: usize = 32 << 10;
/// Number of the newest versions whose large changes the database stores.
const LARGE_MAX: i64 = 100;
/// The PostgreSQL channel on which brokers are notified of commits.
pub const CHANNEL: &str = "fullbore";
/// The broker id under which the settings for all brokers are stored.
pub const EVERY_BROKER: i32 = -1;

/// Returns the statements that commit these changes as this version.
pub fn all(changes: &[Change], version: Version) -> String {
    let mut statements = Statements::default();
    let mut registered = Registrations::default();
    for change in changes {
        match change {
            Change::PartitionsChanged { topic, first, partitions } => {
                if !registered.add(*topic, *first, partitions) {
                    std::mem::take(&mut registered).write(&mut statements);
                    registered.add(*topic, *first, partitions);
                }
            }
            change => {
                std::mem::take(&mut registered).write(&mut statements);
                one(&mut statements, change);
            }
        }
    }
    registered.write(&mut statements);
    stamp(&mut statements, changes, version);
    statements.text()
}

fn one(statements: &mut Statements, change: &Change) {
    match change {
        Change::BrokerRegistered { id, node } => broker(statements, *id, node),
        Change::TopicCreated { topic, name, partitions, overrides } => {
            statements.add("INSERT INTO fullbore.topics (id, name) VALUES (?, ?)", &[topic, &Typed(name)]);
            let mut created = Registrations::default();
            created.add(*topic, 0, partitions);
            created.insert(statements);
            topic_configs(statements, *topic, overrides);
        }
        Change::PartitionsChanged { .. } => unreachable!("they are gathered"),
        Change::LogEndReported { topic, partition, end } => log_end(statements, *topic, *partition, end),
        Change::TopicConfigured { topic, overrides } => {
            statements.add("DELETE FROM fullbore.topic_configs WHERE topic_id = ?", &[topic]);
            topic_configs(statements, *topic, overrides);
        }
        Change::TopicDeleted(topic) => {
            let keep = "INSERT INTO fullbore.deleted_topics (id, name, partitions) VALUES (?, ?, ?)";
            statements.add(keep, &[&topic.id, &Typed(&topic.name), &topic.partitions]);
            statements.add("DELETE FROM fullbore.topics WHERE id = ?", &[&topic.id]);
        }
        Change::DeletionFinished { topic } => {
            statements.add("DELETE FROM fullbore.deleted_topics WHERE id = ?", &[topic]);
        }
        Change::NameRemembered { name, past } => past_topics(statements, name, past),
        Change::BrokerConfigured { broker, overrides } => {
            let whom = broker.unwrap_or(EVERY_BROKER);
            statements.add("DELETE FROM fullbore.broker_configs WHERE broker_id = ?", &[&whom]);
            let insert = "INSERT INTO fullbore.broker_configs (broker_id, name, value) VALUES (?, ?, ?)";
            settings(overrides, |name, value| statements.add(insert, &[&whom, name, value]));
        }
        Change::ResourceConfigured { resource, name: of, overrides } => {
            let (code, of) = (i32::from(*resource as i8), Typed(of));
            let delete = "DELETE FROM fullbore.resource_configs WHERE resource_type = ? AND resource_name = ?";
            statements.add(delete, &[&code, &of]);
            let insert = "INSERT INTO fullbore.resource_configs (resource_type, resource_name, name, value)
                VALUES (?, ?, ?, ?)";
            settings(overrides, |name, value| statements.add(insert, &[&code, &of, name, value]));
        }
        Change::FeatureUpdated { name, level } => {
            let (code, of) = (i32::from(FEATURE_RESOURCE), Typed(name));
            let delete = "DELETE FROM fullbore.resource_configs WHERE resource_type = ? AND resource_name = ?";
            statements.add(delete, &[&code, &of]);
            let insert = "INSERT INTO fullbore.resource_configs (resource_type, resource_name, name, value)
                VALUES (?, ?, ?, ?)";
            statements.add(insert, &[&code, &of, &Typed(FEATURE_LEVEL), &Typed(&level.to_string())]);
        }
        Change::ProducerIdsTaken { next } => {
            statements.add("UPDATE fullbore.cluster SET next_producer_id = ?", &[next]);
        }
        Change::CopyAccepted(accepted) => copy_acceptance(statements, accepted),
    }
}

/// Adds the statement that replaces the newest acceptance of an older copy.
pub fn copy_acceptance(statements: &mut Statements, accepted: &CopyAcceptance) {
    let put = "INSERT INTO fullbore.resource_configs (resource_type, resource_name, name, value)
        VALUES (?, ?, ?, ?) ON CONFLICT (resource_type, resource_name, name) DO UPDATE SET value = excluded.value";
    let name = Typed(ACCEPTANCE);
    statements.add(put, &[&i32::from(ACCEPTANCE_RESOURCE), &name, &name, &Typed(&accepted.text())]);
}

/// Adds the statements that replace the deleted topics of a name.
fn past_topics(statements: &mut Statements, name: &str, past: &PastTopics) {
    statements.add("DELETE FROM fullbore.past_topics WHERE name = ?", &[&Typed(name)]);
    let insert = "INSERT INTO fullbore.past_topics (name, deleted_at, id, partitions, diskless, producer_ids_below)
        VALUES (?, ?, ?, ?, ?, ?)";
    for topic in past.iter() {
        let deleted_at = i64::try_from(topic.deleted_at).expect("fewer than 2^63 changes were ever made");
        let (partitions, is_diskless) = (&topic.partitions, &topic.is_diskless);
        let row: [&dyn Value; 6] =
            [&Typed(name), &deleted_at, &topic.id, partitions, is_diskless, &topic.producer_ids_below];
        statements.add(insert, &row);
    }
}

fn settings(set: &BTreeMap<String, String>, mut put: impl FnMut(&dyn Value, &dyn Value)) {
    set.iter().for_each(|(name, value)| put(&Typed(name), &Typed(value)));
}

fn topic_configs(statements: &mut Statements, topic: Uuid, set: &BTreeMap<String, String>) {
    let insert = "INSERT INTO fullbore.topic_configs (topic_id, name, value) VALUES (?, ?, ?)";
    settings(set, |name, value| statements.add(insert, &[&topic, name, value]));
}

/// Adds the statements that replace the rows of a broker.
fn broker(statements: &mut Statements, id: i32, node: &RegisteredBroker) {
    let of = node.registration;
    let insert = "INSERT INTO fullbore.brokers
          (broker_id, epoch, folder, process, fenced, shutting_down, disk_full, rack, serves_diskless)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (broker_id) DO UPDATE SET epoch = excluded.epoch, folder = excluded.folder,
        process = excluded.process, fenced = excluded.fenced, shutting_down = excluded.shutting_down, disk_full = excluded.disk_full,
        rack = excluded.rack, serves_diskless = excluded.serves_diskless";
    let rack = node.rack.as_ref();
    let (fenced, stopping, full) = (of.is_fenced, of.is_shutting_down, of.is_full);
    let serves = node.serves_diskless;
    statements
        .add(insert, &[&id, &of.epoch, &node.directory, &node.process, &fenced, &stopping, &full, &rack, &serves]);
    statements.add("DELETE FROM fullbore.broker_endpoints WHERE broker_id = ?", &[&id]);
    let insert = "INSERT INTO fullbore.broker_endpoints (broker_id, listener, host, port) VALUES (?, ?, ?, ?)";
    for (listener, at) in &node.endpoints {
        statements.add(insert, &[&id, &Typed(listener), &Typed(at.host.as_str()), &at.port]);
    }
}

/// Adds the statement that stores the end of a broker's log of the partition, and replaces the broker's earlier report.
fn log_end(statements: &mut Statements, topic: Uuid, partition: i32, end: &LogEndReport) {
    let put = "INSERT INTO fullbore.log_ends (topic_id, partition, broker_id, broker_epoch, last_epoch, end_offset)
        VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (topic_id, partition, broker_id) DO UPDATE SET
        broker_epoch = excluded.broker_epoch, last_epoch = excluded.last_epoch, end_offset = excluded.end_offset";
    let LogEndReport { broker_id, broker_epoch, position } = end;
    statements.add(put, &[&topic, &partition, broker_id, broker_epoch, &position.last_epoch, &position.offset]);
}

fn stamp(statements: &mut Statements, changes: &[Change], version: Version) {
    let newest = i64::try_from(version.number).expect("fewer than 2^63 changes were ever made");
    let nonce = version.nonce.cast_signed();
    let serialized = record::write(changes);
    let insert = "INSERT INTO fullbore.versions (version, mark, at, changes) VALUES (?, ?, clock_timestamp(), ";
    statements.fill(insert, &[&newest, &nonce]);
    match serialized.len() <= CHANGES_BYTES_MAX {
        true => statements.add("?)", &[&serialized]),
        false => statements.add("null)", &[]),
    }
    statements.add("DELETE FROM fullbore.versions WHERE version <= ?", &[&(newest - MARKS_MAX)]);
    let forget = "UPDATE fullbore.versions SET changes = null WHERE version = ?";
    statements.add(forget, &[&(newest - CHANGES_MAX)]);
    let forget_large = format!("{forget} AND octet_length(changes) > {LARGE_BYTES}");
    statements.add(&forget_large, &[&(newest - LARGE_MAX)]);
    statements.add("UPDATE fullbore.cluster SET version = ?", &[&newest]);
    statements.add("SELECT pg_notify(?, ?)", &[&CHANNEL.to_owned(), &newest.to_string()]);
}
