//! Creates the index file of a broker, upgrades it from the schema of the first release, and opens connections to it.
//!
//! Reads and writes of rows are in [`super`].
//!
//! Invariant: an opened file has the schema of this version and every change that this broker has counted. If a frame
//! of the write-ahead log has a wrong checksum, SQLite silently drops this frame and all later commits. A file that
//! lacks counted changes is refused before anything is written to it, so its log can still be repaired.

use std::fs;
use std::io;
use std::path::Path;

use fullbore_wire::Uuid;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::super::noted::{ChangeCounts, FILE as NOTED_CHANGES, Lacking, NotedChanges, lacking};
use fullbore_db::StoreError;
use fullbore_db::sqlite::failed as sqlite_failed;

/// The name of the file in the data directory.
pub const NAME: &str = "diskless.db";
/// The statements that create the tables of the first release. Files with an older schema are refused, because no
/// release has written them.
const FIRST_SCHEMA: &str = include_str!("schema.sql");
/// The `user_version` of a file with the tables of the first release.
const FIRST_VERSION: i64 = 5;
/// The statements that upgrade the schema, one version at a time.
const MIGRATIONS: [&str; 1] = [TRANSACTIONS];
/// The upgrade to schema version 6, in which rows of producers may be transactional or markers.
const TRANSACTIONS: &str = include_str!("schema_6.sql");
const SCHEMA_VERSION: i64 = FIRST_VERSION + MIGRATIONS.len() as i64;
/// Size of a page in bytes. A commit changes two pages for each partition and adds only one entry to each of them. With
/// small pages, it therefore writes fewer bytes.
const PAGE: i64 = 1024;
/// Size of the write-ahead log in bytes at which a commit copies the log into the file. Usually, a checkpoint between
/// commits copies it earlier.
const WAL_MAX: i64 = 32 << 20;
/// Maximum size of a connection's page cache, in bytes.
const CACHE_MAX: i64 = 16 << 20;
/// Maximum number of compiled statements that a connection keeps.
const STATEMENTS_MAX: usize = 32;

/// The reason why the index file cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFileError {
    /// The file is an older copy, or its write-ahead log is damaged.
    #[error("{0}")]
    Lacks(Lacking),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<rusqlite::Error> for OpenFileError {
    fn from(error: rusqlite::Error) -> OpenFileError {
        OpenFileError::Store(sqlite_failed(&error))
    }
}

/// Opens or creates the index file in a directory. Also opens the file that counts this broker's changes.
///
/// # Errors
/// Returns an [`OpenFileError`] if the disk fails or the contents of the file are refused.
pub fn open(directory: &Path, cluster_id: Uuid, broker_id: i32) -> Result<(Connection, NotedChanges), OpenFileError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full,
        _ => StoreError::Failed(error.to_string()),
    };
    if !directory.join(NAME).try_exists().map_err(failed)? {
        begin_note_anew(directory).map_err(failed)?;
    }
    let connection = connect(directory)?;
    // If the file is refused below, its log must stay. Without this setting, closing the only connection would copy the
    // readable part of the log into the file and remove the log.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if let Some(refused) = refused_version(version) {
        return Err(StoreError::Failed(refused).into());
    }
    let noted = NotedChanges::open(directory, cluster_id, broker_id).map_err(failed)?;
    let found = ChangeCounts::from([(broker_id, if version == 0 { 0 } else { changes(&connection)? })]);
    if let Some(lacks) = lacking(&noted.counts(), &found) {
        return Err(OpenFileError::Lacks(lacks));
    }
    if version < SCHEMA_VERSION {
        upgrade(&connection, version)?;
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    noted.raise(&found);
    Ok((connection, noted))
}

/// Removes the file with the count of changes of an index that is lost, so that an empty index file can be created. If
/// the store still has the objects of the lost index, the broker refuses it later.
fn begin_note_anew(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(NOTED_CHANGES)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn changes(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("SELECT number FROM changes", [], |row| row.get(0))
}

/// Returns the reason why a file with this schema version is refused, or `None` if it is accepted. An empty file has
/// version 0.
fn refused_version(found: i64) -> Option<String> {
    match found {
        0 | FIRST_VERSION..=SCHEMA_VERSION => None,
        _ if found < FIRST_VERSION => Some(format!(
            "{NAME} has schema {found} of a build before the first release, which this Fullbore does not read; run that build, or move the \
             data directory away"
        )),
        _ => Some(format!("{NAME} has schema {found}, this Fullbore knows {SCHEMA_VERSION}")),
    }
}

/// Upgrades the schema from the version `found` to the current one.
fn upgrade(connection: &Connection, found: i64) -> rusqlite::Result<()> {
    let first = if found == 0 { FIRST_SCHEMA } else { "" };
    let done = usize::try_from(found - FIRST_VERSION).unwrap_or(0);
    let statements = [&[first], &MIGRATIONS[done..]].concat().concat();
    connection.execute_batch(&format!("BEGIN IMMEDIATE; {statements} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT"))
}

/// Connects to the file in a directory, without checking its contents.
///
/// # Errors
/// Returns a [`rusqlite::Error`] if the file cannot be opened.
pub fn connect(directory: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(directory.join(NAME), flags)?;
    // The page size has no effect on an existing file.
    connection.pragma_update(None, "page_size", PAGE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", WAL_MAX / PAGE)?;
    connection.pragma_update(None, "cache_size", CACHE_MAX / PAGE)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

/// Copies the write-ahead log into the file. The part that a reader still needs is copied by a later checkpoint or
/// commit.
///
/// # Errors
/// Returns a [`rusqlite::Error`] if the file cannot be written.
pub fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use fullbore_rules::commit::AppendedBatch;
    use fullbore_rules::sequence::Stamp;

    use super::super::super::store::{CommitQuestion, IndexStore};
    use super::super::SqliteIndex;
    use super::*;

    #[test]
    fn a_file_of_a_build_before_the_first_release_is_refused_and_stays_as_it_is() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        drop(SqliteIndex::open(directory.path()).expect("made"));
        let file = directory.path().join(NAME);
        for found in [1, 4] {
            let connection = Connection::open(&file).expect("opened");
            connection.pragma_update(None, "user_version", found).expect("set");
            drop(connection);
            let before = std::fs::read(&file).expect("read");
            let refused = SqliteIndex::open(directory.path()).err().expect("refused").to_string();
            assert!(
                refused.contains(&format!("diskless.db has schema {found} of a build before the first release")),
                "{refused}"
            );
            assert!(std::fs::read(&file).expect("read") == before, "it is changed");
        }
    }

    #[test]
    fn file_is_of_the_first_release_its_schema_is_brought_to_this_version_and_its_rows_are_read() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let connection = connect(directory.path()).expect("made");
        connection.execute_batch(FIRST_SCHEMA).expect("made");
        // The row has epoch 3, sequence 9, ten records from offset 0 on, and timestamp 5.
        let rows = "INSERT INTO partitions VALUES (1, x'01', 0, 0, 10, 100, 5, 0, -1, 'topic');
             INSERT INTO producers VALUES (1, 0, 7, 5, x'0003000000090000000a00000000000000000000000000000005');";
        connection.execute_batch(rows).expect("written");
        connection.pragma_update(None, "user_version", FIRST_VERSION).expect("set");
        drop(connection);
        for _ in 0..2 {
            let mut index = SqliteIndex::open(directory.path()).expect("opened");
            let row = index.partitions()[0];
            assert_eq!((row.next_offset, row.first_unstable, row.last_stable_offset()), (10, None, 10));
            let question = CommitQuestion { partitions: vec![(1, 0)], objects: Vec::new() };
            let found = index.begin(&question).expect("read");
            let stamp = Stamp { producer_id: 7, producer_epoch: 3, base_sequence: 9, record_count: 10 };
            assert_eq!(found.producers[0].batches.batches, [AppendedBatch::plain(stamp, 0, 5)]);
            index.abandon();
        }
        let version: i64 = connect(directory.path())
            .and_then(|of| of.pragma_query_value(None, "user_version", |row| row.get(0)))
            .expect("read");
        assert_eq!(version, SCHEMA_VERSION);
    }
}
