//! The trait of the metadata stores. A store takes a lock, reads the commits of other brokers, and commits changes.
//!
//! A store makes no decisions. Its calls block, and only the writer thread makes them. Asynchronous calls would not
//! help, for three reasons. SQLite blocks, and needs a thread anyway. Decisions on many topics take too long for a
//! thread that serves connections. And a caller could drop a future between a write and its commit, which would be one
//! more case to handle. A store on a network database has its own runtime on the writer thread, and a time limit for
//! each call.
//!
//! Invariants: decisions are made under the lock and on the newest state. If the outcome of a commit is unknown, the
//! writer takes the lock and searches for the commit by its nonce. The lock is granted only after that commit has
//! either succeeded or failed.

use std::time::Duration;

use fullbore_wire::Uuid;

use super::change::{Change, Version};
use fullbore_db::{CommitError, StoreError};

/// An open metadata store.
pub trait Store: Send + 'static {
    /// A transaction, which holds the store's lock. If it is dropped without a commit, it writes nothing.
    type Transaction<'a>: Transaction
    where
        Self: 'a;

    /// Takes the lock for all changes. Returns the commits after version `at`, or all commits if `at` is `None`.
    /// Reconnects to the database if necessary, within a time limit.
    fn begin(&mut self, at: Option<Version>) -> Result<(Self::Transaction<'_>, Progress), StoreError>;

    /// Returns the commits after version `at`. A store may do this without taking the lock.
    fn read_since(&mut self, at: Option<Version>) -> Result<Progress, StoreError> {
        let (_, progress) = self.begin(at)?;
        Ok(progress)
    }

    /// Returns the number of heartbeats that this process of the broker has sent, or `None` if the store has no
    /// heartbeats.
    fn heartbeats_of(&mut self, _broker: i32, _process: Uuid) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Returns the newest heartbeat number that this process of the broker has sent, or 0 if it has sent none. Each
    /// number is written to the data directory before it is sent.
    fn noted_by(&mut self, _broker: i32, _process: Uuid) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Returns how long a command may wait in the queue before it is refused. The limit prevents callers from piling up
    /// while the store is unavailable. Returns `None` for a store on this machine, which is always available.
    fn wait_max(&self) -> Option<Duration> {
        None
    }
}

/// A transaction, which holds the store's lock.
pub trait Transaction {
    /// Returns true if exactly this version was committed.
    fn includes(&mut self, version: Version) -> Result<bool, StoreError>;

    /// Commits the changes as this version, and releases the lock. The version must be the one after the newest.
    fn commit(self, changes: &[Change], version: Version) -> Result<(), CommitError>;
}

/// The commits after a given version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The commits one by one, in order. Empty if there are none.
    Since(Vec<Commit>),
    /// All changes that lead from an empty image to the newest version. A store returns them if it cannot list the
    /// commits one by one.
    Whole(Commit),
}

/// A committed version, and the changes that it made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub version: Version,
    pub changes: Vec<Change>,
}
