//! Reads commits from the database: either the commits after a given version, or the whole state.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fullbore_rules::cluster::LogEndReport;
use fullbore_rules::replica::epochs::Position;
use fullbore_rules::replica::{BrokerRegistration, PartitionRegistration};
use fullbore_rules::sequence::PastTopic;
use fullbore_wire::{Text, Uuid};

use super::super::change::{
    ACCEPTANCE_RESOURCE, Change, CopyAcceptance, DeletedTopic, FEATURE_RESOURCE, Partitions, Version,
};
use super::super::node::{Endpoint, RegisteredBroker};
use super::super::store::Commit;
use super::record::{self, SetConfigs};
use super::write::EVERY_BROKER;
use fullbore_config::Resource;
use fullbore_db::StoreError;
use fullbore_db::postgres::damaged;
use fullbore_db::postgres::rows::{DatabaseRow, Rows, flag, id, next, number, optional, optional_number, text};
use fullbore_db::postgres::statements::as_typed;

/// Maximum number of versions that a broker reads one by one. If it lacks more versions, it reads the whole state.
const SINCE_MAX: usize = if cfg!(test) { 8 } else { 1000 };
/// Maximum size in bytes of changes that a broker reads version by version. If they are larger, it reads the whole
/// state.
const SINCE_BYTES_MAX: usize = 16 << 20;

type Answers = std::vec::IntoIter<Rows>;

/// The commits after a version, if the database can list them.
pub enum Since {
    /// All commits after the version, in order.
    Commits(Vec<Commit>),
    /// The commits are too many to read one by one, or the database no longer has all of them. The caller should read
    /// the whole state.
    TooMuch,
    /// The database lacks a version that this broker has seen. It is an older copy or a different database.
    WentBack,
}

/// Returns the query for the versions from `at` on. [`since`] reads the response.
pub fn query_since(at: Version) -> String {
    format!(
        "SELECT version, mark,
           CASE WHEN sum(octet_length(changes)) OVER (ORDER BY version) <= {SINCE_BYTES_MAX} THEN changes END
         FROM fullbore.versions WHERE version >= {} ORDER BY version LIMIT {}",
        at.number,
        SINCE_MAX + 2
    )
}

/// Reads the response to [`query_since`].
pub fn since(at: Version, rows: &Rows) -> Result<Since, StoreError> {
    let Some((first, later)) = rows.split_first() else { return Ok(Since::WentBack) };
    let first = version(first)?;
    if first.number != at.number {
        return Ok(Since::TooMuch);
    }
    if first.nonce != at.nonce {
        return Ok(Since::WentBack);
    }
    if later.len() > SINCE_MAX {
        return Ok(Since::TooMuch);
    }
    let mut commits = Vec::with_capacity(later.len());
    for row in later {
        let Some(changes) = optional(row, 2)? else { return Ok(Since::TooMuch) };
        let version = version(row)?;
        let unreadable =
            |reason| damaged(format!("the changes of metadata version {} cannot be read: {reason}", version.number));
        commits.push(Commit { version, changes: record::read(changes).map_err(unreadable)? });
    }
    Ok(Since::Commits(commits))
}

/// The query for the number and nonce of the newest version. [`version`] reads the response.
pub const NEWEST: &str = "SELECT version, mark FROM fullbore.versions ORDER BY version DESC LIMIT 1";

/// Reads a version from the first two columns of a row.
pub fn version(row: &DatabaseRow) -> Result<Version, StoreError> {
    Ok(Version { number: number(row, 0)?, nonce: number::<i64>(row, 1)?.cast_unsigned() })
}

/// Returns the queries for the whole state, in the order in which [`everything`] reads the responses.
pub fn query_everything() -> String {
    format!(
        "{NEWEST};
         SELECT broker_id, listener, host, port FROM fullbore.broker_endpoints;
         SELECT broker_id, epoch, fenced, shutting_down, folder, process, rack, serves_diskless, disk_full
           FROM fullbore.brokers
           ORDER BY broker_id;
         SELECT next_producer_id FROM fullbore.cluster;
         SELECT broker_id, name, value FROM fullbore.broker_configs;
         SELECT resource_type, resource_name, name, value FROM fullbore.resource_configs;
         SELECT topic_id, name, value FROM fullbore.topic_configs;
         SELECT topic_id, count, replicas, isr, elr, lost, leader, leader_epoch, partition_epoch
           FROM fullbore.partitions ORDER BY topic_id, first;
         SELECT id, name FROM fullbore.topics;
         SELECT topic_id, partition, broker_id, broker_epoch, last_epoch, end_offset FROM fullbore.log_ends;
         SELECT id, name, partitions FROM fullbore.deleted_topics;
         SELECT name, id, partitions, diskless, deleted_at, producer_ids_below FROM fullbore.past_topics
           ORDER BY name, deleted_at"
    )
}

/// Returns the whole state as changes. The settings of brokers precede the topics, whose settings depend on them.
pub fn everything(mut answers: Answers) -> Result<Commit, StoreError> {
    let answers = &mut answers;
    let newest = next(answers)?;
    let version = version(newest.first().ok_or_else(|| damaged("the row of the newest version is missing"))?)?;
    let mut changes = Vec::new();
    brokers(answers, &mut changes)?;
    let next_producer_id: i64 = match next(answers)?.first() {
        Some(row) => number(row, 0)?,
        None => return Err(damaged("the row of the cluster is missing")),
    };
    if next_producer_id > 0 {
        changes.push(Change::ProducerIdsTaken { next: next_producer_id });
    }
    broker_configs(answers, &mut changes)?;
    resources(answers, &mut changes)?;
    topics(answers, &mut changes)?;
    log_ends(answers, &mut changes)?;
    for row in next(answers)? {
        let topic = DeletedTopic { id: id(&row, 0)?, name: as_typed(text(&row, 1)?), partitions: number(&row, 2)? };
        changes.push(Change::TopicDeleted(topic));
    }
    past_topics(answers, &mut changes)?;
    Ok(Commit { version, changes })
}

fn brokers(answers: &mut Answers, changes: &mut Vec<Change>) -> Result<(), StoreError> {
    let mut endpoints: HashMap<i32, BTreeMap<String, Endpoint>> = HashMap::new();
    for row in next(answers)? {
        let endpoint = Endpoint { host: Text::from(as_typed(text(&row, 2)?)), port: number(&row, 3)? };
        endpoints.entry(number(&row, 0)?).or_default().insert(as_typed(text(&row, 1)?), endpoint);
    }
    for row in next(answers)? {
        let broker = number(&row, 0)?;
        let registration = BrokerRegistration {
            epoch: number(&row, 1)?,
            is_fenced: flag(&row, 2)?,
            is_shutting_down: flag(&row, 3)?,
            is_full: flag(&row, 8)?,
        };
        let node = RegisteredBroker {
            registration,
            directory: id(&row, 4)?,
            process: id(&row, 5)?,
            rack: optional(&row, 6)?.map(|rack| Text::from(as_typed(rack))),
            serves_diskless: flag(&row, 7)?,
            endpoints: endpoints.remove(&broker).unwrap_or_default(),
        };
        changes.push(Change::BrokerRegistered { id: broker, node });
    }
    Ok(())
}

/// Reads the dynamic settings of brokers. Settings that apply to all brokers come first.
fn broker_configs(answers: &mut Answers, changes: &mut Vec<Change>) -> Result<(), StoreError> {
    let mut set: BTreeMap<Option<i32>, SetConfigs> = BTreeMap::new();
    for row in next(answers)? {
        let broker = Some(number(&row, 0)?).filter(|id| *id != EVERY_BROKER);
        set.entry(broker).or_default().insert(as_typed(text(&row, 1)?), as_typed(text(&row, 2)?));
    }
    changes.extend(set.into_iter().map(|(broker, overrides)| Change::BrokerConfigured { broker, overrides }));
    Ok(())
}

/// Reads the settings of resources. Skips resource types that this version of Fullbore does not know.
fn resources(answers: &mut Answers, changes: &mut Vec<Change>) -> Result<(), StoreError> {
    let mut set: BTreeMap<(Resource, String), SetConfigs> = BTreeMap::new();
    for row in next(answers)? {
        let code = number(&row, 0)?;
        if code == FEATURE_RESOURCE {
            let level = as_typed(text(&row, 3)?).parse().ok();
            let name = as_typed(text(&row, 1)?);
            changes.extend(level.map(|level| Change::FeatureUpdated { name, level }));
        } else if code == ACCEPTANCE_RESOURCE {
            let unreadable = || damaged("the acceptance of a copy cannot be read");
            let accepted = CopyAcceptance::parse(text(&row, 3)?).ok_or_else(unreadable)?;
            changes.push(Change::CopyAccepted(accepted));
        } else if let Some(resource) = Resource::from_code(code) {
            let of = set.entry((resource, as_typed(text(&row, 1)?))).or_default();
            of.insert(as_typed(text(&row, 2)?), as_typed(text(&row, 3)?));
        }
    }
    let configured = |((resource, name), overrides)| Change::ResourceConfigured { resource, name, overrides };
    changes.extend(set.into_iter().map(configured));
    Ok(())
}

fn topics(answers: &mut Answers, changes: &mut Vec<Change>) -> Result<(), StoreError> {
    let mut configs: HashMap<Uuid, SetConfigs> = HashMap::new();
    for row in next(answers)? {
        configs.entry(id(&row, 0)?).or_default().insert(as_typed(text(&row, 1)?), as_typed(text(&row, 2)?));
    }
    let mut partitions: HashMap<Uuid, Partitions> = HashMap::new();
    let mut last = Arc::new(PartitionRegistration::default());
    for row in next(answers)? {
        let registered = registration(&row)?;
        if registered != *last {
            last = Arc::new(registered);
        }
        let of = partitions.entry(id(&row, 0)?).or_default();
        (0..number::<u32>(&row, 1)?).for_each(|_| of.push_back(Arc::clone(&last)));
    }
    for row in next(answers)? {
        let topic = id(&row, 0)?;
        changes.push(Change::TopicCreated {
            topic,
            name: as_typed(text(&row, 1)?),
            partitions: partitions.remove(&topic).unwrap_or_default(),
            overrides: configs.remove(&topic).unwrap_or_default(),
        });
    }
    Ok(())
}

fn log_ends(answers: &mut Answers, changes: &mut Vec<Change>) -> Result<(), StoreError> {
    for row in next(answers)? {
        let position = Position { last_epoch: optional_number(&row, 4)?, offset: number(&row, 5)? };
        let end = LogEndReport { broker_id: number(&row, 2)?, broker_epoch: number(&row, 3)?, position };
        changes.push(Change::LogEndReported { topic: id(&row, 0)?, partition: number(&row, 1)?, end });
    }
    Ok(())
}

fn past_topics(answers: &mut Answers, changes: &mut Vec<Change>) -> Result<(), StoreError> {
    let mut past: BTreeMap<String, Vec<PastTopic>> = BTreeMap::new();
    for row in next(answers)? {
        past.entry(as_typed(text(&row, 0)?)).or_default().push(PastTopic {
            id: id(&row, 1)?,
            partitions: number(&row, 2)?,
            is_diskless: flag(&row, 3)?,
            deleted_at: number(&row, 4)?,
            producer_ids_below: number(&row, 5)?,
        });
    }
    let remembered = |(name, past): (String, Vec<_>)| Change::NameRemembered { name, past: past.into_iter().collect() };
    changes.extend(past.into_iter().map(remembered));
    Ok(())
}

fn registration(row: &DatabaseRow) -> Result<PartitionRegistration, StoreError> {
    Ok(PartitionRegistration {
        replicas: ids(row, 2)?,
        isr: ids(row, 3)?,
        elr: ids(row, 4)?,
        lost: ids(row, 5)?,
        leader: optional_number(row, 6)?,
        leader_epoch: number(row, 7)?,
        partition_epoch: number(row, 8)?,
    })
}

/// Returns the broker ids in an array column. Such a column looks like `{1,2}`.
pub fn ids(row: &DatabaseRow, column: usize) -> Result<Vec<i32>, StoreError> {
    let array = text(row, column)?;
    let parse = |id: &str| id.parse().map_err(|_| damaged(format!("'{array}' is not a list of brokers")));
    array.trim_matches(['{', '}']).split(',').filter(|id| !id.is_empty()).map(parse).collect()
}
