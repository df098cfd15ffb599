//! The metadata store of a standalone broker: an SQLite file.
//!
//! This module contains the SQL and the schema of that file, and interprets the errors of SQLite. It makes no
//! decisions: it writes changes as rows, and reads rows back as changes. A successful commit is on disk (write-ahead
//! log, `synchronous=FULL`), and a refused one changes nothing. After an I/O error, the outcome of a commit is unknown.
//! On a full disk, important changes may use the disk reserve.
//!
//! - `open`: the file, its schema and its identity.
//! - `read`: converts rows to changes.
//! - `write`: converts changes to rows. The rows of brokers and partitions are in `brokers` and `partitions`.

mod brokers;
mod open;
mod partitions;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use rusqlite::Connection;

use super::change::{Change, Version};
use super::store::{Commit, Progress, Store, Transaction};
use fullbore_db::{CommitError, StoreError};
use fullbore_host::disk_space::DiskSpace;

use fullbore_db::sqlite as error;
pub use open::FILE;

/// An open database.
pub struct Sqlite {
    connection: Connection,
    space: Arc<DiskSpace>,
    node_id: i32,
}

/// A transaction, which holds the database's lock until it is committed or dropped.
pub struct SqliteTransaction<'a> {
    store: &'a mut Sqlite,
    is_open: bool,
}

impl Store for Sqlite {
    type Transaction<'a> = SqliteTransaction<'a>;

    fn begin(&mut self, at: Option<Version>) -> Result<(SqliteTransaction<'_>, Progress), StoreError> {
        let mut transaction = SqliteTransaction { store: self, is_open: false };
        transaction.open().map_err(|error| error::failed(&error))?;
        let progress = transaction.store.progress(at)?;
        Ok((transaction, progress))
    }
}

impl Sqlite {
    /// Returns no commits if `at` is the newest version, and otherwise the whole state. The file needs no list of past
    /// changes, because only this broker writes to it.
    fn progress(&self, at: Option<Version>) -> Result<Progress, StoreError> {
        let failed = |error| error::failed(&error);
        let newest = read::newest(&self.connection).map_err(failed)?;
        if at == Some(newest) {
            return Ok(Progress::Since(Vec::new()));
        }
        if let Some(at) = at {
            let went_back = match read::nonce(&self.connection, at.number).map_err(failed)? {
                Some(nonce) => nonce != at.nonce,
                None => at.number >= newest.number,
            };
            if went_back {
                return Err(StoreError::WentBack(at.number));
            }
        }
        let changes = read::everything(&self.connection, self.node_id).map_err(failed)?;
        Ok(Progress::Whole(Commit { version: newest, changes }))
    }

    /// Executes a statement, and caches its compiled form for the next time.
    fn run(&self, statement: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(drop)
    }

    /// Copies as much of the write-ahead log into the database file as the disk has space for. Once all of it is
    /// copied, SQLite reuses the log from its start.
    fn begin_log_anew(&self) {
        // PASSIVE does not wait for readers. A reader that still uses a part of the log is no error.
        let moved = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = moved {
            tracing::debug!(%error, "cannot checkpoint control.db-wal");
        }
    }

    /// Changes the nonces of all versions, as if this were another file with the same version numbers.
    #[cfg(test)]
    pub fn mark_otherwise(&self) {
        self.connection.execute("UPDATE versions SET mark = random()", []).expect("written");
    }

    /// Makes all writes fail, like a disk that refuses them. With `refuse` false, writes succeed again.
    #[cfg(test)]
    pub fn refuse_writes(&self, refuse: bool) {
        self.connection.pragma_update(None, "query_only", refuse).expect("pragma");
    }
}

impl Transaction for SqliteTransaction<'_> {
    fn includes(&mut self, version: Version) -> Result<bool, StoreError> {
        let nonce = read::nonce(&self.store.connection, version.number);
        Ok(nonce.map_err(|error| error::failed(&error))? == Some(version.nonce))
    }

    fn commit(mut self, changes: &[Change], version: Version) -> Result<(), CommitError> {
        self.make_room_for(changes, version)
    }
}

impl SqliteTransaction<'_> {
    fn open(&mut self) -> rusqlite::Result<()> {
        if !self.is_open {
            self.store.run("BEGIN IMMEDIATE")?;
            self.is_open = true;
        }
        Ok(())
    }

    /// Commits the changes. On a full disk, the space of the write-ahead log is reused. If that is not enough,
    /// registrations and changes that free space may use the disk reserve.
    fn make_room_for(&mut self, changes: &[Change], version: Version) -> Result<(), CommitError> {
        let space = Arc::clone(&self.store.space);
        let has_reserve =
            changes.iter().any(|change| change.frees_space() || matches!(change, Change::BrokerRegistered { .. }));
        let is_full = |error: &CommitError| *error == CommitError::Refused(StoreError::Full);
        let mut written = {
            let admission = space.admit();
            if admission.is_none() && !has_reserve {
                return Err(CommitError::Refused(StoreError::Full));
            }
            match self.attempt(changes, version) {
                Err(error) if is_full(&error) => {
                    space.note_full();
                    self.store.begin_log_anew();
                    self.attempt(changes, version)
                }
                written => written,
            }
        };
        if has_reserve && written.as_ref().is_err_and(is_full) {
            written = space.freeing(is_full, || self.attempt(changes, version));
        }
        written
    }

    /// Writes either all changes or none. Takes the lock again if an earlier attempt has lost it. If another writer has
    /// committed in between, the write fails, because the version number already exists.
    fn attempt(&mut self, changes: &[Change], version: Version) -> Result<(), CommitError> {
        let written = self.open().and_then(|()| write::all(&self.store.connection, changes, version));
        let committed = written
            .map_err(|error| CommitError::Refused(error::failed(&error)))
            .and_then(|()| self.store.run("COMMIT").map_err(|error| error::not_committed(&error)));
        match committed {
            Ok(()) => self.is_open = false,
            Err(_) => self.close(),
        }
        committed
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            // This fails if SQLite has already rolled back. That does no harm, because no transaction is open then.
            let _ = self.store.run("ROLLBACK");
        }
    }
}

impl Drop for SqliteTransaction<'_> {
    fn drop(&mut self) {
        self.close();
    }
}
