//! The control plane's tables in SQLite: read once at start, then only written.
//!
//! No decisions: what is written here was accepted by `decide`. A commit that returned is on disk (write-ahead log,
//! `synchronous=FULL`); one that failed left nothing behind.

mod error;
mod kept;
#[cfg(test)]
pub(crate) mod older;
mod partitions;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fullbore_rules::replica::BrokerRegistration;
use fullbore_wire::{Text, Uuid};
use rusqlite::{Connection, OpenFlags, Transaction, params};

use super::command::DeletedTopic;
use super::error::OpenError;
use super::image::{Image, Topic};
use super::node::Node;
use crate::config::{BrokerConfig, DynamicConfig, Resource, TopicConfig, check_dynamic};

pub(super) use error::is_full;
pub use kept::{KeptInDatabase, KeptOffset, StoredGroup};

const FILE: &str = "control.db";
/// What each version of the schema changed, from version 1 on. SQLite's user_version says how many a file has.
const SCHEMAS: [&str; 6] = [
    include_str!("schema.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    // Version 5 takes away what must have been moved before, which may come later than those after it.
    "",
    include_str!("schema_6.sql"),
];
const SCHEMA_WITHOUT_GROUPS: &str = include_str!("schema_5.sql");
const SCHEMA_VERSION: i64 = SCHEMAS.len() as i64;
/// "Full" in ASCII: tells our files from other programs'.
const APPLICATION_ID: i64 = 0x4675_6c6c;

/// Pages of 4 KiB in the write-ahead log at which a commit moves them to the file.
pub(super) const CHECKPOINT_PAGES: i64 = if cfg!(test) { 16 } else { 4096 };
/// Statements that are kept compiled.
const STATEMENTS_MAX: usize = 32;

/// One change to the tables, accepted and not written yet.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Create(Arc<Topic>),
    Configure(Arc<Topic>),
    /// Its partitions from this number on are new.
    Grow(Arc<Topic>, usize),
    Delete(Uuid),
    /// Nothing is left of a deleted topic.
    ForgetDeleted(Uuid),
    ConfigureBrokers(Arc<DynamicConfig>),
    /// All that the resource of this name sets now.
    ConfigureResource(Resource, String, BTreeMap<String, String>),
    /// The first producer id of no block.
    NextProducerId(i64),
    /// The tables of groups.
    ForgetKept,
}

impl Change {
    /// Whether less is kept of the logs after it, or may be.
    pub fn frees_space(&self) -> bool {
        matches!(self, Change::Delete(_) | Change::Configure(_) | Change::ConfigureBrokers(_))
    }
}

/// What the tables held at start.
pub(super) struct Loaded {
    pub cluster_id: Uuid,
    /// Already bumped for this start.
    pub broker_epoch: i64,
    pub next_producer_id: i64,
    pub image: Image,
    /// What is still here of groups.
    pub kept: Option<KeptInDatabase>,
    pub deleted: Vec<DeletedTopic>,
}

/// The open database.
pub(super) struct Store {
    connection: Connection,
}

impl Store {
    /// Opens or creates `control.db` in the folder. A new one takes `new_cluster_id`.
    pub fn open(folder: &Path, broker: &BrokerConfig, new_cluster_id: Uuid) -> Result<(Self, Loaded), OpenError> {
        let file = folder.join(FILE);
        let unusable = |error: rusqlite::Error| error::refused(&file, &error);
        let mut connection = connect(&file).map_err(unusable)?;
        check_file(&connection, &file)?;
        let transaction = connection.transaction().map_err(unusable)?;
        let found = user_version(&transaction).map_err(unusable)?;
        upgrade(&transaction, found).map_err(unusable)?;
        if found == 0 {
            identify(&transaction, broker.node_id, new_cluster_id).map_err(unusable)?;
        }
        let kept = kept::take(&transaction).map_err(unusable)?;
        let loaded = Loaded { kept, ..load(&transaction, &file, broker)? };
        transaction.commit().map_err(unusable)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        Ok((Self { connection }, loaded))
    }

    /// Writes all changes and the image's epoch, or nothing.
    pub fn commit(&mut self, changes: &[Change], epoch: u64) -> rusqlite::Result<()> {
        self.run("BEGIN IMMEDIATE")?;
        let written = self.write(changes, epoch).and_then(|()| self.run("COMMIT"));
        if written.is_err() {
            // Nothing is open when SQLite has rolled back by itself.
            let _ = self.run("ROLLBACK");
        }
        written
    }

    fn write(&self, changes: &[Change], epoch: u64) -> rusqlite::Result<()> {
        changes.iter().try_for_each(|change| write(&self.connection, change))?;
        self.connection.execute("UPDATE cluster SET version = ?1", params![stored_epoch(epoch)])?;
        Ok(())
    }

    /// A statement that is not compiled again each time.
    fn run(&self, statement: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(drop)
    }

    /// Moves the write-ahead log to the file as far as there is room for that: a log that was moved as a whole is written over.
    pub fn begin_log_anew(&self) {
        if let Err(error) = move_pages(&self.connection) {
            tracing::debug!(%error, "control.db-wal stays as it is");
        }
    }

    /// Makes every write fail, as a full disk would, or lets it through again.
    #[cfg(test)]
    pub fn refuse_writes(&self, refuse: bool) {
        self.connection.pragma_update(None, "query_only", refuse).expect("pragma");
    }
}

/// Moves what it can without waiting for anybody: busy is no error.
fn move_pages(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

fn connect(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // What a deletion has to remember needs no room on the disk.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(connection)
}

/// Refuses a damaged file, another program's, and one of a newer schema.
fn check_file(connection: &Connection, file: &Path) -> Result<(), OpenError> {
    let unusable = |reason: String| OpenError::Unusable { file: file.to_owned(), reason };
    let read = |error: rusqlite::Error| error::refused(file, &error);
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(read)?;
    if verdict != "ok" {
        return Err(unusable(format!("it is damaged ({verdict})")));
    }
    let application: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(read)?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(read)?;
    if application != APPLICATION_ID && tables > 0 {
        return Err(unusable("it is not a Fullbore database".to_owned()));
    }
    match user_version(connection).map_err(read)? {
        found if found > SCHEMA_VERSION => {
            Err(OpenError::Newer { file: file.to_owned(), found, known: SCHEMA_VERSION })
        }
        _ => Ok(()),
    }
}

fn user_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Changes what the found version has otherwise; 0 is an empty file.
fn upgrade(transaction: &Transaction<'_>, found: i64) -> rusqlite::Result<()> {
    let known = usize::try_from(found).unwrap_or(0);
    SCHEMAS.iter().skip(known).try_for_each(|added| transaction.execute_batch(added))?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)
}

/// Makes an empty file ours.
fn identify(transaction: &Transaction<'_>, node_id: i32, cluster_id: Uuid) -> rusqlite::Result<()> {
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.execute("INSERT INTO cluster VALUES (1, ?1, ?2, 0, 0, 0)", params![cluster_id.to_string(), node_id])?;
    Ok(())
}

fn load(transaction: &Transaction<'_>, file: &Path, broker: &BrokerConfig) -> Result<Loaded, OpenError> {
    let unusable = |reason: String| OpenError::Unusable { file: file.to_owned(), reason };
    let read = |error: rusqlite::Error| error::refused(file, &error);
    let bumped = "UPDATE cluster SET broker_epoch = broker_epoch + 1
                  RETURNING cluster_id, node_id, version, broker_epoch, next_producer_id";
    let (id, node_id, version, broker_epoch, next_producer_id) = transaction
        .query_row(bumped, [], |row| {
            Ok((row.get::<_, String>(0)?, row.get(1)?, row.get::<_, i64>(2)?, row.get(3)?, row.get(4)?))
        })
        .map_err(read)?;
    if node_id != broker.node_id {
        return Err(OpenError::OtherNode { file: file.to_owned(), stored: node_id, configured: broker.node_id });
    }
    let cluster_id = Uuid::parse(&id).ok_or_else(|| unusable(format!("'{id}' is not a cluster id")))?;
    let version = u64::try_from(version).map_err(|_| unusable(format!("its version is {version}")))?;
    let mut image = Image::with_epoch(version);
    let dynamic = load_dynamic(transaction).map_err(read)?;
    let refused = |source| OpenError::BrokerConfig { file: file.to_owned(), source };
    check_dynamic(&dynamic.broker).and(check_dynamic(&dynamic.cluster)).map_err(refused)?;
    image.set_dynamic(broker, Arc::new(dynamic)).map_err(refused)?;
    let refused = |source| OpenError::ResourceConfig { file: file.to_owned(), source };
    for ((resource, name), set) in load_resources(transaction).map_err(read)? {
        image.set_resource(broker, (resource, &name), set).map_err(refused)?;
    }
    image.put_node(node_id, this_node(broker, broker_epoch));
    let mut overrides = load_configs(transaction).map_err(read)?;
    let mut partitions = partitions::load(transaction).map_err(read)?;
    for (id, name) in load_topics(transaction).map_err(read)? {
        let overrides = overrides.remove(&id).unwrap_or_default();
        let refused = |source| OpenError::TopicConfig { file: file.to_owned(), topic: name.clone(), source };
        let config = Arc::new(TopicConfig::resolve(broker, image.dynamic(), &overrides).map_err(refused)?);
        let partitions = partitions.remove(&id).unwrap_or_default();
        image.put(Arc::new(Topic { name, id: Uuid(id), partitions, overrides, config }));
    }
    let deleted = load_deleted(transaction).map_err(read)?;
    Ok(Loaded { cluster_id, broker_epoch, next_producer_id, image, kept: None, deleted })
}

/// This broker as it registers itself. Where clients reach it is known once its listeners are bound.
fn this_node(broker: &BrokerConfig, epoch: i64) -> Node {
    Node {
        registration: BrokerRegistration { epoch, is_fenced: false, is_shutting_down: false },
        rack: broker.rack.as_deref().map(Text::from),
        endpoints: BTreeMap::new(),
    }
}

fn load_topics(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<([u8; 16], String)>> {
    let mut query = transaction.prepare("SELECT id, name FROM topics")?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

fn load_deleted(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<DeletedTopic>> {
    let mut query = transaction.prepare("SELECT id, name, partitions FROM deleted_topics")?;
    let rows = query
        .query_map([], |row| Ok(DeletedTopic { id: Uuid(row.get(0)?), name: row.get(1)?, partitions: row.get(2)? }))?;
    rows.collect()
}

fn load_configs(transaction: &Transaction<'_>) -> rusqlite::Result<BTreeMap<[u8; 16], BTreeMap<String, String>>> {
    let mut query = transaction.prepare("SELECT topic_id, name, value FROM topic_configs")?;
    let mut rows = query.query([])?;
    let mut configs: BTreeMap<[u8; 16], BTreeMap<String, String>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        configs.entry(row.get(0)?).or_default().insert(row.get(1)?, row.get(2)?);
    }
    Ok(configs)
}

fn write(transaction: &Connection, change: &Change) -> rusqlite::Result<()> {
    match change {
        Change::Create(topic) => {
            let insert = "INSERT INTO topics (id, name) VALUES (?1, ?2)";
            transaction.prepare_cached(insert)?.execute(params![topic.id.0, topic.name])?;
            partitions::insert(transaction, topic, 0)?;
            write_configs(transaction, topic)
        }
        Change::Configure(topic) => {
            transaction
                .prepare_cached("DELETE FROM topic_configs WHERE topic_id = ?1")?
                .execute(params![topic.id.0])?;
            write_configs(transaction, topic)
        }
        Change::Grow(topic, first) => partitions::insert(transaction, topic, *first),
        Change::Delete(id) => {
            let keep = "INSERT INTO deleted_topics (id, name, partitions)
                        SELECT id, name, (SELECT sum(count) FROM partitions WHERE topic_id = ?1) FROM topics WHERE id = ?1";
            transaction.prepare_cached(keep)?.execute(params![id.0])?;
            transaction.prepare_cached("DELETE FROM topics WHERE id = ?1")?.execute(params![id.0])?;
            Ok(())
        }
        Change::ForgetDeleted(id) => {
            transaction.prepare_cached("DELETE FROM deleted_topics WHERE id = ?1")?.execute(params![id.0])?;
            Ok(())
        }
        Change::ConfigureBrokers(dynamic) => write_dynamic(transaction, dynamic),
        Change::ConfigureResource(resource, name, set) => write_resource(transaction, *resource, name, set),
        Change::NextProducerId(next) => {
            transaction.execute("UPDATE cluster SET next_producer_id = ?1", params![next])?;
            Ok(())
        }
        Change::ForgetKept => kept::forget(transaction),
    }
}

fn write_configs(transaction: &Connection, topic: &Topic) -> rusqlite::Result<()> {
    let mut insert =
        transaction.prepare_cached("INSERT INTO topic_configs (topic_id, name, value) VALUES (?1, ?2, ?3)")?;
    for (name, value) in &topic.overrides {
        insert.execute(params![topic.id.0, name, value])?;
    }
    Ok(())
}

fn load_dynamic(transaction: &Transaction<'_>) -> rusqlite::Result<DynamicConfig> {
    let mut query = transaction.prepare("SELECT every_broker, name, value FROM broker_configs")?;
    let mut rows = query.query([])?;
    let mut dynamic = DynamicConfig::default();
    while let Some(row) = rows.next()? {
        let values = if row.get(0)? { &mut dynamic.cluster } else { &mut dynamic.broker };
        values.insert(row.get(1)?, row.get(2)?);
    }
    Ok(dynamic)
}

fn write_dynamic(transaction: &Connection, dynamic: &DynamicConfig) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM broker_configs", [])?;
    let mut insert =
        transaction.prepare_cached("INSERT INTO broker_configs (every_broker, name, value) VALUES (?1, ?2, ?3)")?;
    for (every_broker, values) in [(false, &dynamic.broker), (true, &dynamic.cluster)] {
        for (name, value) in values {
            insert.execute(params![every_broker, name, value])?;
        }
    }
    Ok(())
}

/// Types that this version does not know stay where they are.
fn load_resources(
    transaction: &Transaction<'_>,
) -> rusqlite::Result<BTreeMap<(Resource, String), BTreeMap<String, String>>> {
    let mut query = transaction.prepare("SELECT resource_type, resource_name, name, value FROM resource_configs")?;
    let mut rows = query.query([])?;
    let mut resources: BTreeMap<(Resource, String), BTreeMap<String, String>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        if let Some(resource) = Resource::from_code(row.get(0)?) {
            resources.entry((resource, row.get(1)?)).or_default().insert(row.get(2)?, row.get(3)?);
        }
    }
    Ok(resources)
}

fn write_resource(
    transaction: &Connection,
    resource: Resource,
    of: &str,
    set: &BTreeMap<String, String>,
) -> rusqlite::Result<()> {
    let code = resource as i8;
    let delete = "DELETE FROM resource_configs WHERE resource_type = ?1 AND resource_name = ?2";
    transaction.prepare_cached(delete)?.execute(params![code, of])?;
    let insert = "INSERT INTO resource_configs (resource_type, resource_name, name, value) VALUES (?1, ?2, ?3, ?4)";
    let mut insert = transaction.prepare_cached(insert)?;
    for (name, value) in set {
        insert.execute(params![code, of, name, value])?;
    }
    Ok(())
}

fn stored_epoch(epoch: u64) -> i64 {
    i64::try_from(epoch).expect("fewer than 2^63 changes were ever made")
}
