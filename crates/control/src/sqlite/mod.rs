//! The control plane's store of a standalone broker: an SQLite file.
//!
//! All SQL, rows, schemas and meanings of SQLite's errors are here. No decisions: it writes decided changes, and
//! returns what it reads as changes. A successful commit is on disk (write-ahead log, `synchronous=FULL`); a failed one
//! leaves nothing behind. On a full disk, changes that must be written get space.
//!
//! - `open`: the file, its schema and its identity.
//! - `read`: rows as changes.
//! - `write`: changes as rows; `brokers` and `partitions` have theirs.

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

/// Open database.
pub struct Sqlite {
    connection: Connection,
    space: Arc<DiskSpace>,
    node_id: i32,
}

/// Lock on the database, until commit or drop.
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
    /// Returns the whole state, unless `at` is the newest version: the file has one writer, and keeps no changes of
    /// single versions.
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

    /// Executes a statement that is compiled once.
    fn run(&self, statement: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(drop)
    }

    /// Checkpoints the write-ahead log as far as there is disk space. A log that was checkpointed as a whole is
    /// overwritten from its start.
    fn begin_log_anew(&self) {
        // PASSIVE does not wait for readers, and returns no error if they hold a part.
        let moved = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = moved {
            tracing::debug!(%error, "cannot checkpoint control.db-wal");
        }
    }

    /// Gives every version another nonce, as versions of another file have.
    #[cfg(test)]
    pub fn mark_otherwise(&self) {
        self.connection.execute("UPDATE versions SET mark = random()", []).expect("written");
    }

    /// Makes every write fail, as on a disk that refuses writes, or lets writes succeed again.
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

    /// Commits. If the disk is full, reuses the space of the write-ahead log, and for changes that must be written also
    /// the reserve.
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

    /// Writes all changes, or nothing, and takes the lock again if an earlier attempt lost it. Another writer in
    /// between would have used the version's number, which is unique.
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
            // Nothing is open if SQLite has rolled back by itself.
            let _ = self.store.run("ROLLBACK");
        }
    }
}

impl Drop for SqliteTransaction<'_> {
    fn drop(&mut self) {
        self.close();
    }
}
