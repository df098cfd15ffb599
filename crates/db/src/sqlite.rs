//! Errors of SQLite, and their meaning.

use rusqlite::ErrorCode;

use crate::{CommitError, StoreError};

/// Why something was not done. Only what SQLite says of the contents makes them suspect.
pub fn failed(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        _ if is_full(error) => StoreError::Full,
        Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure | ErrorCode::ReadOnly) => {
            StoreError::Failed(error.to_string())
        }
        _ => StoreError::Damaged(error.to_string()),
    }
}

/// Why there was no commit. One in which the disk failed is undone in this process; the next start may find it whole.
pub fn not_committed(error: &rusqlite::Error) -> CommitError {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) if !is_full(error) => CommitError::Unknown(error.to_string()),
        _ => CommitError::Refused(failed(error)),
    }
}

/// Returns true if there was no room for a write, to the files or to the index that is shared with other connections.
fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        error.code == ErrorCode::DiskFull || error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE
    })
}
