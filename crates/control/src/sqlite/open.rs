//! Creates or checks the file `control.db`. If an older release wrote the file, upgrades its schema to this version's.

use std::path::Path;
use std::sync::Arc;

use fullbore_wire::Uuid;
use rusqlite::{Connection, OpenFlags, Transaction, params};

use super::super::error::OpenError;
use super::super::identity::Identity;
use super::{Sqlite, error};
use fullbore_config::BrokerConfig;
use fullbore_host::disk_space::DiskSpace;

pub const FILE: &str = "control.db";
/// The schema of the first release. Files with a smaller version are refused, because they come from builds before that
/// release.
const FIRST_SCHEMA: &str = include_str!("schema.sql");
/// The user_version that SQLite stores in a file with `FIRST_SCHEMA`.
const FIRST_VERSION: i64 = 10;
/// The statements that upgrade the schema by one version each.
const MIGRATIONS: [&str; 0] = [];
pub const SCHEMA_VERSION: i64 = FIRST_VERSION + MIGRATIONS.len() as i64;
/// The application id that marks a file as Fullbore's ("Full" in ASCII).
const APPLICATION_ID: i64 = 0x4675_6c6c;

/// Size of the write-ahead log, in pages of 4 KiB, from which on a commit copies it into the database file.
pub const CHECKPOINT_PAGES: i64 = if cfg!(test) { 16 } else { 4096 };
/// Maximum number of compiled statements that are cached.
const STATEMENTS_MAX: usize = 32;

impl Sqlite {
    /// Opens `control.db` in the directory. If the file does not exist, creates it with the id `new_cluster_id`. On a
    /// full disk, the database may use the disk reserve.
    pub fn open(
        directory: &Path,
        broker: &BrokerConfig,
        space: Arc<DiskSpace>,
        new_cluster_id: Uuid,
    ) -> Result<(Self, Identity), OpenError> {
        let open = || open(directory, broker, new_cluster_id);
        let (connection, identity) = space.freeing(|error: &OpenError| error.is_full(&space), open)?;
        Ok((Self { connection, space, node_id: broker.node.id }, identity))
    }
}

fn open(directory: &Path, broker: &BrokerConfig, new_cluster_id: Uuid) -> Result<(Connection, Identity), OpenError> {
    let file = directory.join(FILE);
    let unusable = |error: rusqlite::Error| refused(&file, &error);
    let mut connection = connect(&file).map_err(unusable)?;
    check_file(&connection, &file)?;
    let transaction = connection.transaction().map_err(unusable)?;
    let found = user_version(&transaction).map_err(unusable)?;
    if found < SCHEMA_VERSION {
        upgrade(&transaction, found).map_err(unusable)?;
    }
    if found == 0 {
        identify(&transaction, broker.node.id, new_cluster_id).map_err(unusable)?;
    }
    let cluster_id = cluster_id(&transaction, &file, broker)?;
    transaction.commit().map_err(unusable)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // A standalone broker has only one data directory, so the cluster's id is also the directory's id.
    Ok((connection, Identity { cluster_id, directory: cluster_id, used: None, store: file.into() }))
}

fn connect(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // Store temporary data in memory, so that deletions need no disk space for it.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(connection)
}

/// Refuses the file if it is damaged or belongs to another program, or if its schema is newer or was never released.
fn check_file(connection: &Connection, file: &Path) -> Result<(), OpenError> {
    let unusable = |reason: String| OpenError::Unusable { file: file.to_owned(), reason };
    let read = |error: rusqlite::Error| refused(file, &error);
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
        found if found != 0 && found < FIRST_VERSION => Err(OpenError::Unreleased { file: file.to_owned(), found }),
        _ => Ok(()),
    }
}

fn user_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Upgrades the schema from version `found` to the newest one. `found` is 0 for an empty file.
fn upgrade(transaction: &Transaction<'_>, found: i64) -> rusqlite::Result<()> {
    if found == 0 {
        transaction.execute_batch(FIRST_SCHEMA)?;
    }
    let done = usize::try_from(found - FIRST_VERSION).unwrap_or(0);
    MIGRATIONS.iter().skip(done).try_for_each(|migration| transaction.execute_batch(migration))?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)
}

/// Writes Fullbore's application id, the cluster's id and the broker's id to an empty file.
fn identify(transaction: &Transaction<'_>, node_id: i32, cluster_id: Uuid) -> rusqlite::Result<()> {
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.execute("INSERT INTO cluster VALUES (1, ?1, ?2, 0, 0)", params![cluster_id.to_string(), node_id])?;
    transaction.execute("INSERT INTO versions VALUES (0, random())", []).map(drop)
}

/// Returns the error for a file that cannot be used.
fn refused(file: &Path, error: &rusqlite::Error) -> OpenError {
    OpenError::of_store(file.to_owned(), error::failed(error))
}

/// Checks that the file belongs to this broker, and returns the cluster's id.
fn cluster_id(transaction: &Transaction<'_>, file: &Path, broker: &BrokerConfig) -> Result<Uuid, OpenError> {
    let file = file.to_owned();
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get(1)?));
    let (id, stored) = transaction
        .query_row("SELECT cluster_id, node_id FROM cluster", [], row)
        .map_err(|error| refused(&file, &error))?;
    if stored != broker.node.id {
        return Err(OpenError::OtherNode { file, stored, configured: broker.node.id });
    }
    Uuid::parse(&id).ok_or_else(|| OpenError::Unusable { file, reason: format!("'{id}' is not a cluster id") })
}
