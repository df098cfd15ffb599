//! Changes as statements: all of a transaction in one text, so that it is one round trip.
//!
//! Values stand in the text as literals. Invariant: nothing but [`Statements`] puts one there; a session has
//! `standard_conforming_strings` on.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use fullbore_rules::cluster::LogEnd;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::{Text, Uuid};

use super::super::change::{Change, Partitions, Version};
use super::super::node::RegisteredBroker;
use super::record;

/// Versions whose marks are kept.
pub const MARKS_MAX: i64 = 100_000;
/// Versions of which is kept what they changed.
pub const CHANGES_MAX: i64 = 10_000;
/// A version that changed more than this is read from the tables by who does not know it.
const CHANGES_BYTES_MAX: usize = 4 << 20;
/// A change of more than this is kept for a short time.
const LARGE_BYTES: usize = 32 << 10;
const LARGE_MAX: i64 = 100;
/// The channel on which a commit is told.
pub const CHANNEL: &str = "fullbore";
/// What stands for every broker.
pub const EVERY_BROKER: i32 = -1;

/// All that commits these changes as this version.
pub fn all(changes: &[Change], version: Version) -> String {
    let mut statements = Statements::default();
    changes.iter().for_each(|change| one(&mut statements, change));
    stamp(&mut statements, changes, version);
    statements.0
}

/// Statements with a semicolon behind each.
#[derive(Default)]
pub struct Statements(String);

impl Statements {
    /// Adds a statement, whose `?` are these values.
    fn add(&mut self, statement: &str, values: &[&dyn Value]) {
        self.fill(statement, values);
        self.0.push_str(";\n");
    }

    fn fill(&mut self, text: &str, values: &[&dyn Value]) {
        let mut parts = text.split('?');
        self.0.push_str(parts.next().unwrap_or_default());
        let mut values = values.iter();
        for part in parts {
            values.next().expect("a value for each ?").put(&mut self.0);
            self.0.push_str(part);
        }
        assert!(values.next().is_none(), "a ? for each value");
    }
}

/// What can stand in a statement.
trait Value {
    fn put(&self, statement: &mut String);
}

macro_rules! as_displayed {
    ($($number:ty),*) => {$(
        impl Value for $number {
            fn put(&self, statement: &mut String) {
                // Behind a minus that stands there already, another would begin a comment.
                let _ = write!(statement, "({self})");
            }
        }
    )*};
}
as_displayed!(i32, i64, u16, usize, bool);

impl Value for Option<i32> {
    fn put(&self, statement: &mut String) {
        match self {
            Some(number) => number.put(statement),
            None => statement.push_str("null"),
        }
    }
}

impl Value for Uuid {
    fn put(&self, statement: &mut String) {
        quote(statement, &self.to_string());
    }
}

impl Value for Vec<i32> {
    fn put(&self, statement: &mut String) {
        let ids: Vec<String> = self.iter().map(i32::to_string).collect();
        let _ = write!(statement, "'{{{}}}'", ids.join(","));
    }
}

/// Text that has no character 0: our own, or checked before.
impl Value for String {
    fn put(&self, statement: &mut String) {
        quote(statement, self);
    }
}

/// Text that clients may choose.
struct Typed<'a>(&'a str);

impl Value for Typed<'_> {
    fn put(&self, statement: &mut String) {
        match self.0.contains(['\\', '\0']) {
            true => quote(statement, &self.0.replace('\\', "\\\\").replace('\0', "\\0")),
            false => quote(statement, self.0),
        }
    }
}

/// What [`Typed`] has written.
pub fn as_typed(stored: &str) -> String {
    if !stored.contains('\\') {
        return stored.to_owned();
    }
    let mut typed = String::with_capacity(stored.len());
    let mut characters = stored.chars();
    while let Some(character) = characters.next() {
        typed.push(match character {
            '\\' if characters.next() == Some('0') => '\0',
            other => other,
        });
    }
    typed
}

impl Value for Option<&Text> {
    fn put(&self, statement: &mut String) {
        match self {
            Some(text) => Typed(text.as_str()).put(statement),
            None => statement.push_str("null"),
        }
    }
}

fn quote(statement: &mut String, text: &str) {
    statement.push('\'');
    statement.push_str(&text.replace('\'', "''"));
    statement.push('\'');
}

/// A text as a literal.
pub fn literal(text: &impl Display) -> String {
    let mut literal = String::new();
    Typed(&text.to_string()).put(&mut literal);
    literal
}

fn one(statements: &mut Statements, change: &Change) {
    match change {
        Change::BrokerRegistered { id, node } => broker(statements, *id, node),
        Change::TopicCreated { topic, name, partitions, overrides } => {
            statements.add("INSERT INTO fullbore.topics (id, name) VALUES (?, ?)", &[topic, &Typed(name)]);
            insert_partitions(statements, *topic, 0, partitions);
            topic_configs(statements, *topic, overrides);
        }
        Change::PartitionsChanged { topic, first, partitions } => {
            replace_partitions(statements, *topic, *first, partitions);
        }
        Change::LogEndTold { topic, partition, end } => log_end(statements, *topic, *partition, end),
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
        Change::ProducerIdsTaken { next } => {
            statements.add("UPDATE fullbore.cluster SET next_producer_id = ?", &[next]);
        }
        // Nothing was ever kept of groups here.
        Change::GroupsMoved => {}
    }
}

fn settings(set: &BTreeMap<String, String>, mut put: impl FnMut(&dyn Value, &dyn Value)) {
    set.iter().for_each(|(name, value)| put(&Typed(name), &Typed(value)));
}

fn topic_configs(statements: &mut Statements, topic: Uuid, set: &BTreeMap<String, String>) {
    let insert = "INSERT INTO fullbore.topic_configs (topic_id, name, value) VALUES (?, ?, ?)";
    settings(set, |name, value| statements.add(insert, &[&topic, name, value]));
}

/// Instead of what there was of it.
fn broker(statements: &mut Statements, id: i32, node: &RegisteredBroker) {
    let of = node.registration;
    let insert = "INSERT INTO fullbore.brokers (broker_id, epoch, folder, process, fenced, shutting_down, rack, serves_diskless)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (broker_id) DO UPDATE SET epoch = excluded.epoch, folder = excluded.folder,
        process = excluded.process, fenced = excluded.fenced, shutting_down = excluded.shutting_down, rack = excluded.rack,
        serves_diskless = excluded.serves_diskless";
    let rack = node.rack.as_ref();
    let (fenced, stopping) = (of.is_fenced, of.is_shutting_down);
    let serves = node.serves_diskless;
    statements.add(insert, &[&id, &of.epoch, &node.folder, &node.process, &fenced, &stopping, &rack, &serves]);
    statements.add("DELETE FROM fullbore.broker_endpoints WHERE broker_id = ?", &[&id]);
    let insert = "INSERT INTO fullbore.broker_endpoints (broker_id, listener, host, port) VALUES (?, ?, ?, ?)";
    for (listener, at) in &node.endpoints {
        statements.add(insert, &[&id, &Typed(listener), &Typed(at.host.as_str()), &at.port]);
    }
}

/// Writes those of a topic from the number `first` on, instead of what there was of these numbers.
fn replace_partitions(statements: &mut Statements, topic: Uuid, first: usize, partitions: &Partitions) {
    let end = first + partitions.len();
    cut(statements, topic, first);
    cut(statements, topic, end);
    let delete = "DELETE FROM fullbore.partitions WHERE topic_id = ? AND first >= ? AND first < ?";
    statements.add(delete, &[&topic, &first, &end]);
    let forget = "DELETE FROM fullbore.log_ends WHERE topic_id = ? AND partition >= ? AND partition < ?";
    for (number, count, _) in record::runs(partitions).into_iter().filter(|(.., of)| of.leader.is_some()) {
        statements.add(forget, &[&topic, &(first + number), &(first + number + count)]);
    }
    insert_partitions(statements, topic, first, partitions);
}

/// Instead of what the broker has told before.
fn log_end(statements: &mut Statements, topic: Uuid, partition: i32, end: &LogEnd) {
    let put = "INSERT INTO fullbore.log_ends (topic_id, partition, broker_id, broker_epoch, last_epoch, end_offset)
        VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (topic_id, partition, broker_id) DO UPDATE SET
        broker_epoch = excluded.broker_epoch, last_epoch = excluded.last_epoch, end_offset = excluded.end_offset";
    let LogEnd { broker_id, broker_epoch, position } = end;
    statements.add(put, &[&topic, &partition, broker_id, broker_epoch, &position.last_epoch, &position.offset]);
}

/// Makes two rows of one that has partitions on both sides of this number.
fn cut(statements: &mut Statements, topic: Uuid, at: usize) {
    let before = "topic_id = ? AND first + count > ?
        AND first = (SELECT max(first) FROM fullbore.partitions WHERE topic_id = ? AND first < ?)";
    let behind = format!(
        "INSERT INTO fullbore.partitions SELECT topic_id, ?, first + count - ?, replicas, isr, elr, lost, leader,
         leader_epoch, partition_epoch FROM fullbore.partitions WHERE {before}"
    );
    statements.add(&behind, &[&at, &at, &topic, &at, &topic, &at]);
    let shorter = format!("UPDATE fullbore.partitions SET count = ? - first WHERE {before}");
    statements.add(&shorter, &[&at, &topic, &at, &topic, &at]);
}

/// Writes those of a topic from the number `first` on, of which there are none.
fn insert_partitions(statements: &mut Statements, topic: Uuid, first: usize, partitions: &Partitions) {
    let runs: Vec<(usize, usize, &PartitionRegistration)> = record::runs(partitions)
        .into_iter()
        .map(|(number, count, registered)| (first + number, count, &**registered))
        .collect();
    let insert = "INSERT INTO fullbore.partitions
        (topic_id, first, count, replicas, isr, elr, lost, leader, leader_epoch, partition_epoch) VALUES ";
    let row = |(first, count, of): &'_ (usize, usize, &PartitionRegistration)| {
        let mut row = Statements::default();
        let values: [&dyn Value; 10] = [
            &topic,
            first,
            count,
            &of.replicas,
            &of.isr,
            &of.elr,
            &of.lost,
            &of.leader,
            &of.leader_epoch,
            &of.partition_epoch,
        ];
        row.fill("(?,?,?,?,?,?,?,?,?,?)", &values);
        row.0
    };
    if !runs.is_empty() {
        let rows: Vec<String> = runs.iter().map(row).collect();
        statements.0.push_str(insert);
        statements.0.push_str(&rows.join(","));
        statements.0.push_str(";\n");
    }
}

fn stamp(statements: &mut Statements, changes: &[Change], version: Version) {
    let newest = i64::try_from(version.number).expect("fewer than 2^63 changes were ever made");
    let mark = version.mark.cast_signed();
    let told = record::write(changes);
    let insert = "INSERT INTO fullbore.versions (version, mark, at, changes) VALUES (?, ?, clock_timestamp(), ";
    statements.fill(insert, &[&newest, &mark]);
    match told.len() <= CHANGES_BYTES_MAX {
        true => quote(&mut statements.0, &told),
        false => statements.0.push_str("null"),
    }
    statements.0.push_str(");\n");
    statements.add("DELETE FROM fullbore.versions WHERE version <= ?", &[&(newest - MARKS_MAX)]);
    let forget = "UPDATE fullbore.versions SET changes = null WHERE version = ?";
    statements.add(forget, &[&(newest - CHANGES_MAX)]);
    let forget_large = format!("{forget} AND octet_length(changes) > {LARGE_BYTES}");
    statements.add(&forget_large, &[&(newest - LARGE_MAX)]);
    statements.add("UPDATE fullbore.cluster SET version = ?", &[&newest]);
    statements.add("SELECT pg_notify(?, ?)", &[&CHANNEL.to_owned(), &newest.to_string()]);
}
