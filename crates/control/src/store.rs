//! Storage trait of the control plane: takes a lock, reads the commits of other brokers, and commits.
//!
//! A back end decides nothing. Its calls block, and come from the writer thread alone. There are three reasons against
//! asynchronous calls: SQLite blocks, and needs a thread anyway. Decisions on many topics take too long for a thread
//! that serves connections. A caller could drop a future between a write and its commit, which would be one more case
//! to handle. The back end of a database over a network has a runtime on the writer thread, and a time limit for each
//! call.
//!
//! Invariants: decisions are made under the lock and on the newest state. A version has one nonce. After a commit with
//! unknown outcome, the writer takes the lock and looks for the commit. The back end grants the lock only once that
//! commit is made or has failed.

use std::time::Duration;

use fullbore_wire::Uuid;

use super::change::{Change, Version};
use fullbore_db::{CommitError, StoreError};

/// Open store of the metadata.
pub trait Store: Send + 'static {
    /// Held lock. Its drop without a commit writes nothing.
    type Transaction<'a>: Transaction
    where
        Self: 'a;

    /// Takes the lock for all changes, and returns the commits after version `at`. Without `at`, returns all of them.
    /// Reconnects if necessary, within a time limit.
    fn begin(&mut self, at: Option<Version>) -> Result<(Self::Transaction<'_>, Progress), StoreError>;

    /// Returns the commits after version `at`. Need not take the lock.
    fn read_since(&mut self, at: Option<Version>) -> Result<Progress, StoreError> {
        let (_, progress) = self.begin(at)?;
        Ok(progress)
    }

    /// Returns the number of heartbeats that this process of the broker has sent; None for a store without heartbeats.
    fn beats_of(&mut self, _broker: i32, _process: Uuid) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Returns the newest number of the data directory that this process of the broker sent with a heartbeat; 0 if
    /// there is none.
    fn noted_by(&mut self, _broker: i32, _process: Uuid) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Returns the longest wait of a queued command. A command that waits longer is refused, so that callers do not
    /// pile up. None for a store on this machine, which is always available.
    fn wait_max(&self) -> Option<Duration> {
        None
    }
}

/// Held lock.
pub trait Transaction {
    /// Returns true if exactly this version was committed.
    fn includes(&mut self, version: Version) -> Result<bool, StoreError>;

    /// Commits the changes as this version, and releases the lock. The version must follow the newest one.
    fn commit(self, changes: &[Change], version: Version) -> Result<(), CommitError>;
}

/// Commits after a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Each commit, in order; empty if the known version is the newest.
    Since(Vec<Commit>),
    /// Changes that make the newest version from the empty one, if the store cannot list the commits one by one.
    Whole(Commit),
}

/// Version and its changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub version: Version,
    pub changes: Vec<Change>,
}
