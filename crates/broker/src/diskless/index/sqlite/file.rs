//! The file of the index of one broker: made, brought to this version's schema, connected to.
//!
//! Not what is read and written there, which is [`super`]'s. Invariant: what is opened has the schema of this version.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::control::{StoreError, sqlite_failed};

/// In the data folder.
pub const NAME: &str = "diskless.db";
const SCHEMA: &str = include_str!("schema.sql");
const SCHEMA_VERSION: i64 = 1 + UPGRADES.len() as i64;
/// What each version changed, from version 2 on.
const UPGRADES: [&str; 3] = [
    "ALTER TABLE partitions ADD COLUMN expired_to INTEGER NOT NULL DEFAULT -1;",
    "ALTER TABLE partitions ADD COLUMN topic TEXT;
     CREATE INDEX partitions_by_name ON partitions (topic, partition_index);
     CREATE TABLE predecessors (topic TEXT NOT NULL, partition_index INTEGER NOT NULL, partition INTEGER NOT NULL UNIQUE,
       PRIMARY KEY (topic, partition_index)) STRICT, WITHOUT ROWID;",
    "CREATE TABLE store (singleton INTEGER PRIMARY KEY CHECK (singleton = 1), store_id TEXT NOT NULL) STRICT;",
];
/// Bytes of a page. A commit to many partitions changes two pages of each, of which it adds a line to: small ones are less to write.
const PAGE: i64 = 1024;
/// Bytes of the write-ahead log at which a commit moves it to the file itself, if nobody has done so between commits.
const WAL_MAX: i64 = 32 << 20;
/// Bytes of pages that a connection keeps in memory.
const CACHE_MAX: i64 = 16 << 20;
/// Statements that are kept compiled.
const STATEMENTS_MAX: usize = 32;

/// Opens the file of this folder, or makes it.
///
/// # Errors
/// The disk, or what is in the file.
pub fn open(folder: &Path) -> Result<Connection, StoreError> {
    let failed = |error: rusqlite::Error| sqlite_failed(&error);
    let connection = connect(folder).map_err(failed)?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    let made = match usize::try_from(version) {
        Ok(0) => make(&connection, SCHEMA),
        Ok(older) if older <= UPGRADES.len() => make(&connection, &UPGRADES[older - 1..].concat()),
        _ if version == SCHEMA_VERSION => Ok(()),
        _ => {
            let other = format!("{NAME} has schema {version}, this Fullbore knows {SCHEMA_VERSION}");
            return Err(StoreError::Failed(other));
        }
    };
    made.map_err(failed)?;
    Ok(connection)
}

fn make(connection: &Connection, statements: &str) -> rusqlite::Result<()> {
    connection.execute_batch(&format!("BEGIN IMMEDIATE; {statements} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT"))
}

/// Connects to the file of this folder, whatever is in it.
///
/// # Errors
/// What SQLite says.
pub fn connect(folder: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(folder.join(NAME), flags)?;
    // Of a file that is there already this changes nothing.
    connection.pragma_update(None, "page_size", PAGE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", WAL_MAX / PAGE)?;
    connection.pragma_update(None, "cache_size", CACHE_MAX / PAGE)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

/// Moves the write-ahead log to the file itself. What a reader still needs stays; the next time, or a commit, moves that.
///
/// # Errors
/// What SQLite says.
pub fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Makes the file what it was in an older version.
#[cfg(test)]
pub fn make_older(connection: &Connection, version: usize) {
    let steps = [
        "ALTER TABLE partitions DROP COLUMN expired_to; PRAGMA user_version = 1",
        "DROP INDEX partitions_by_name; DROP TABLE predecessors; ALTER TABLE partitions DROP COLUMN topic; PRAGMA user_version = 2",
        "DROP TABLE store; PRAGMA user_version = 3",
    ];
    for step in steps[version - 1..].iter().rev() {
        connection.execute_batch(step).expect("altered");
    }
}
