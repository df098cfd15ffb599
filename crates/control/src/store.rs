//! The seam to a back end: one lock, the commits of others, and a commit.
//!
//! A back end decides nothing. Its calls block, and come from the owner's thread alone. Why not asynchronous: SQLite
//! blocks, so that a thread of its own is there anyway; decisions on many topics take too long for a thread that serves
//! connections; and a future that is dropped between a write and its commit is one more state. A client of a database
//! over a network is driven from that thread, by a runtime of its own that runs while somebody waits for an answer,
//! each call with a time limit.
//!
//! Invariants: what is decided is decided under the lock and on the newest state; a version has one mark; an outcome
//! that is not known is looked up under the lock, which nobody gets before it is settled.

use std::time::Duration;

use fullbore_wire::Uuid;

use super::change::{Change, Version};
use fullbore_db::{CommitError, StoreError};

/// An open store of the metadata.
pub trait Store: Send + 'static {
    /// The lock, held. Dropped, it wrote nothing.
    type Transaction<'a>: Transaction
    where
        Self: 'a;

    /// Takes the lock that every change is made under, and says what was committed after the version `at`; `None` knows
    /// nothing. Connects anew where it must, within a time limit.
    fn begin(&mut self, at: Option<Version>) -> Result<(Self::Transaction<'_>, Progress), StoreError>;

    /// Says what was committed after the version `at`, to who only wants to know. Need not wait for the lock.
    fn look(&mut self, at: Option<Version>) -> Result<Progress, StoreError> {
        let (_, progress) = self.begin(at)?;
        Ok(progress)
    }

    /// How many beats this process of a broker has sent; `None` where nobody beats.
    fn beats_of(&mut self, _broker: i32, _process: Uuid) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Returns the newest number in its data folder that this process of a broker told; 0 if there is none.
    fn noted_by(&mut self, _broker: i32, _process: Uuid) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// The longest that a command may wait for its turn; then it is refused, so that callers do not pile up. `None` for
    /// a store that is always there, as one in this machine is.
    fn wait_max(&self) -> Option<Duration> {
        None
    }
}

/// The lock, held.
pub trait Transaction {
    /// Returns true if exactly this version was committed.
    fn includes(&mut self, version: Version) -> Result<bool, StoreError>;

    /// Writes the changes as this version, which follows the newest, and lets go of the lock.
    fn commit(self, changes: &[Change], version: Version) -> Result<(), CommitError>;
}

/// Commits after a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Each version, in order. Nothing where the version that is known is the newest.
    Since(Vec<Commit>),
    /// Too much to be told one by one: what makes the newest version from nothing.
    Whole(Commit),
}

/// A version, and what it changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub version: Version,
    pub changes: Vec<Change>,
}
