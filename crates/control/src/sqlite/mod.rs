//! The control plane's store on one machine: a file of SQLite.
//!
//! Here alone are SQL, rows, schemas and what SQLite's errors mean. No decisions: what is written was decided before,
//! and what is read goes out as changes. A commit that returned is on disk (write-ahead log, `synchronous=FULL`); one
//! that failed left nothing behind. Where the disk is full, room is made for what must be written.
//!
//! - `open`: the file, its schema and what it says of itself.
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

/// The open database.
pub struct Sqlite {
    connection: Connection,
    space: Arc<DiskSpace>,
    node_id: i32,
}

/// The lock on the database, while it is open.
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
    /// There is one writer, so that there is no record of single versions: who knows another than the newest reads
    /// everything.
    fn progress(&self, at: Option<Version>) -> Result<Progress, StoreError> {
        let failed = |error| error::failed(&error);
        let newest = read::newest(&self.connection).map_err(failed)?;
        if at == Some(newest) {
            return Ok(Progress::Since(Vec::new()));
        }
        if let Some(at) = at {
            let went_back = match read::mark(&self.connection, at.number).map_err(failed)? {
                Some(mark) => mark != at.mark,
                None => at.number >= newest.number,
            };
            if went_back {
                return Err(StoreError::WentBack(at.number));
            }
        }
        let changes = read::everything(&self.connection, self.node_id).map_err(failed)?;
        Ok(Progress::Whole(Commit { version: newest, changes }))
    }

    /// A statement that is not compiled again each time.
    fn run(&self, statement: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(drop)
    }

    /// Moves the write-ahead log to the file as far as there is room for that: a log that was moved as a whole is
    /// written over.
    fn begin_log_anew(&self) {
        // Without waiting for anybody: busy is no error.
        let moved = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = moved {
            tracing::debug!(%error, "control.db-wal stays as it is");
        }
    }

    /// Gives every version another mark, as those of another file have.
    #[cfg(test)]
    pub fn mark_otherwise(&self) {
        self.connection.execute("UPDATE versions SET mark = random()", []).expect("written");
    }

    /// Makes every write fail, as a disk would that refuses them, or lets it through again.
    #[cfg(test)]
    pub fn refuse_writes(&self, refuse: bool) {
        self.connection.pragma_update(None, "query_only", refuse).expect("pragma");
    }
}

impl Transaction for SqliteTransaction<'_> {
    fn includes(&mut self, version: Version) -> Result<bool, StoreError> {
        let mark = read::mark(&self.store.connection, version.number);
        Ok(mark.map_err(|error| error::failed(&error))? == Some(version.mark))
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

    /// On a full disk, first with the room that the write-ahead log has, and what must be written with the reserve.
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

    /// Writes everything, or nothing; another attempt needs the lock again. Whoever has had it meanwhile has taken the
    /// version's number, which is there once.
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
            // Nothing is open when SQLite has rolled back by itself.
            let _ = self.store.run("ROLLBACK");
        }
    }
}

impl Drop for SqliteTransaction<'_> {
    fn drop(&mut self) {
        self.close();
    }
}
