//! Databases as the control plane and the index of diskless topics use them: sessions, rows and errors.
//!
//! Not what is read and written, which is theirs, but for the schema that both share in PostgreSQL. Invariant: an error says whether what was
//! asked for may have been done.

pub mod calls;
pub mod postgres;
pub mod sqlite;

/// Why a store did not do what it was asked for. It changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the disk is full")]
    Full,
    /// Its contents are suspect.
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Failed(String),
    /// It cannot be reached or used, or not now.
    #[error("{0}")]
    Away(String),
    #[error("it does not know version {0}: it went back to an older state, or is another one")]
    WentBack(u64),
}

/// What became of a commit that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitError {
    /// It was not made.
    Refused(StoreError),
    /// It may have been made, or may still be: the connection broke before the answer came.
    Unknown(String),
}

impl From<CommitError> for StoreError {
    /// To who may only be told why.
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Refused(error) => error,
            CommitError::Unknown(why) => Self::Away(why),
        }
    }
}
