//! Reads the whole state from the rows, as changes that lead from an empty image to the newest version.

use std::collections::{BTreeMap, HashMap};

use fullbore_rules::sequence::PastTopic;
use fullbore_wire::Uuid;
use rusqlite::{Connection, OptionalExtension};

use super::super::change::{
    ACCEPTANCE_RESOURCE, Change, CopyAcceptance, DeletedTopic, FEATURE_RESOURCE, Partitions, Version,
};
use super::{brokers, partitions};
use fullbore_config::Resource;

type Id = [u8; 16];
type Settings = BTreeMap<String, String>;

/// Returns the newest version.
pub fn newest(connection: &Connection) -> rusqlite::Result<Version> {
    let newest = "SELECT version, mark FROM cluster JOIN versions USING (version)";
    let row = connection.prepare_cached(newest)?.query_row([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
    Ok(Version { number: row.0, nonce: row.1.cast_unsigned() })
}

/// Returns the nonce of the version with this number. Returns `None` if that version does not exist, or is so old that
/// its nonce was deleted.
pub fn nonce(connection: &Connection, number: u64) -> rusqlite::Result<Option<u64>> {
    let query = "SELECT mark FROM versions WHERE version = ?1";
    let nonce = connection.prepare_cached(query)?.query_row([number], |row| row.get::<_, i64>(0)).optional()?;
    Ok(nonce.map(i64::cast_unsigned))
}

/// Returns the whole state as changes. The settings of brokers come before all other settings, which depend on them.
pub fn everything(connection: &Connection, node_id: i32) -> rusqlite::Result<Vec<Change>> {
    let mut changes = Vec::new();
    brokers::load(connection, &mut changes)?;
    let next: i64 = connection.query_row("SELECT next_producer_id FROM cluster", [], |row| row.get(0))?;
    if next > 0 {
        changes.push(Change::ProducerIdsTaken { next });
    }
    broker_configs(connection, node_id, &mut changes)?;
    resources(connection, &mut changes)?;
    topics(connection, &mut changes)?;
    partitions::load_ends(connection, &mut changes)?;
    deleted(connection, &mut changes)?;
    past_topics(connection, &mut changes)?;
    Ok(changes)
}

fn broker_configs(connection: &Connection, node_id: i32, changes: &mut Vec<Change>) -> rusqlite::Result<()> {
    let mut query = connection.prepare("SELECT every_broker, name, value FROM broker_configs")?;
    let mut rows = query.query([])?;
    let mut set: BTreeMap<Option<i32>, Settings> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let broker = if row.get(0)? { None } else { Some(node_id) };
        set.entry(broker).or_default().insert(row.get(1)?, row.get(2)?);
    }
    changes.extend(set.into_iter().map(|(broker, overrides)| Change::BrokerConfigured { broker, overrides }));
    Ok(())
}

/// Reads the settings of resources. Skips resource types that this version of Fullbore does not know.
fn resources(connection: &Connection, changes: &mut Vec<Change>) -> rusqlite::Result<()> {
    let mut query = connection.prepare("SELECT resource_type, resource_name, name, value FROM resource_configs")?;
    let mut rows = query.query([])?;
    let mut set: BTreeMap<(Resource, String), Settings> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let code = row.get(0)?;
        if code == FEATURE_RESOURCE {
            let level = row.get::<_, String>(3)?.parse().ok();
            let name = row.get(1)?;
            changes.extend(level.map(|level| Change::FeatureUpdated { name, level }));
        } else if code == ACCEPTANCE_RESOURCE {
            changes.extend(CopyAcceptance::parse(&row.get::<_, String>(3)?).map(Change::CopyAccepted));
        } else if let Some(resource) = Resource::from_code(code) {
            set.entry((resource, row.get(1)?)).or_default().insert(row.get(2)?, row.get(3)?);
        }
    }
    let configured = |((resource, name), overrides)| Change::ResourceConfigured { resource, name, overrides };
    changes.extend(set.into_iter().map(configured));
    Ok(())
}

fn topics(connection: &Connection, changes: &mut Vec<Change>) -> rusqlite::Result<()> {
    let mut overrides = topic_configs(connection)?;
    let mut partitions: HashMap<Id, Partitions> = partitions::load(connection)?;
    let mut query = connection.prepare("SELECT id, name FROM topics")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let id: Id = row.get(0)?;
        changes.push(Change::TopicCreated {
            topic: Uuid(id),
            name: row.get(1)?,
            partitions: partitions.remove(&id).unwrap_or_default(),
            overrides: overrides.remove(&id).unwrap_or_default(),
        });
    }
    Ok(())
}

fn topic_configs(connection: &Connection) -> rusqlite::Result<HashMap<Id, Settings>> {
    let mut query = connection.prepare("SELECT topic_id, name, value FROM topic_configs")?;
    let mut rows = query.query([])?;
    let mut configs: HashMap<Id, Settings> = HashMap::new();
    while let Some(row) = rows.next()? {
        configs.entry(row.get(0)?).or_default().insert(row.get(1)?, row.get(2)?);
    }
    Ok(configs)
}

fn deleted(connection: &Connection, changes: &mut Vec<Change>) -> rusqlite::Result<()> {
    let mut query = connection.prepare("SELECT id, name, partitions FROM deleted_topics")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let topic = DeletedTopic { id: Uuid(row.get(0)?), name: row.get(1)?, partitions: row.get(2)? };
        changes.push(Change::TopicDeleted(topic));
    }
    Ok(())
}

fn past_topics(connection: &Connection, changes: &mut Vec<Change>) -> rusqlite::Result<()> {
    let query = "SELECT name, id, partitions, diskless, deleted_at, producer_ids_below FROM past_topics
         ORDER BY name, deleted_at";
    let mut query = connection.prepare(query)?;
    let mut rows = query.query([])?;
    let mut past: BTreeMap<String, Vec<PastTopic>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        past.entry(row.get(0)?).or_default().push(PastTopic {
            id: Uuid(row.get(1)?),
            partitions: row.get(2)?,
            is_diskless: row.get(3)?,
            deleted_at: row.get::<_, i64>(4)?.cast_unsigned(),
            producer_ids_below: row.get(5)?,
        });
    }
    let remembered = |(name, past): (String, Vec<_>)| Change::NameRemembered { name, past: past.into_iter().collect() };
    changes.extend(past.into_iter().map(remembered));
    Ok(())
}
