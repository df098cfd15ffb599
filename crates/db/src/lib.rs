//! Access to the databases that contain the metadata and the index of diskless topics: sessions, rows and errors.
//!
//! This crate contains only the PostgreSQL schema that the metadata and the index share. Invariant: errors distinguish
//! between a change that was not made and one that may have been made.

pub mod calls;
pub mod postgres;
pub mod sqlite;

use fullbore_host::start_retries::Retried;
use postgres::known_changes::Lacking;

/// A version of the metadata. Each commit creates a new version, so two equal versions come from the same commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// The version's number, which increases by 1 with each commit.
    pub number: u64,
    /// A random number that distinguishes two commits with the same `number`. Two such commits exist if the database
    /// was restored from an older backup.
    pub nonce: u64,
}

/// The reason why a call failed. The call has changed nothing in the store, unless the error was converted from
/// [`CommitError::Unknown`]: a commit with this outcome may have changed the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the disk is full")]
    Full,
    /// The store contains invalid data.
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Failed(String),
    /// The database cannot be reached or used at the moment.
    #[error("{0}")]
    Away(Outage),
    #[error("the database does not know version {0}: it was set back to an older state, or it is another database")]
    WentBack(u64),
    /// The database lacks changes to diskless topics that this process knows to be committed.
    #[error(
        "the database has only {found} of the {known} committed changes of broker {broker_id} to diskless topics: it \
         was set back to an older state, or it is another database", found = .0.found, known = .0.known,
        broker_id = .0.broker_id
    )]
    LacksChanges(Lacking),
}

impl Retried for StoreError {
    fn reason_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Away(outage) => Some(&mut outage.words),
            _ => None,
        }
    }
}

impl StoreError {
    /// Returns true if the same call may succeed a little later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Away(outage) if outage.is_transient)
    }

    /// Returns true if the database cannot be used now, but can be used again without a restart: it is away, or an
    /// older copy was restored in its place.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Away(_)) || self.is_behind()
    }

    /// Returns true if the database lacks commits that this process knows.
    pub fn is_behind(&self) -> bool {
        matches!(self, Self::WentBack(_) | Self::LacksChanges(_))
    }
}

/// The reason why a database cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct Outage {
    pub words: String,
    /// True if the same call may succeed a little later. False if a person must first correct the cause.
    pub is_transient: bool,
}

impl Outage {
    /// Creates an outage that lasts until a person corrects its cause.
    pub fn lasting(words: impl Into<String>) -> Self {
        Self { words: words.into(), is_transient: false }
    }
}

impl From<String> for Outage {
    /// Creates an outage that may end by itself.
    fn from(words: String) -> Self {
        Self { words, is_transient: true }
    }
}

impl From<&str> for Outage {
    /// Creates an outage that may end by itself.
    fn from(words: &str) -> Self {
        words.to_owned().into()
    }
}

/// The reason why a commit did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitError {
    /// The store has changed nothing.
    Refused(StoreError),
    /// The connection broke before the response arrived, or SQLite had an I/O error. The change may have been made, or
    /// may still be made.
    Unknown(String),
}

impl From<CommitError> for StoreError {
    /// Keeps only the reason, for callers that do not distinguish the two cases.
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Refused(error) => error,
            CommitError::Unknown(why) => Self::Away(why.into()),
        }
    }
}
