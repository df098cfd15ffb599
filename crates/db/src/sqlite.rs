//! Interprets the errors of SQLite.

use rusqlite::ErrorCode;

use crate::{CommitError, StoreError};

/// Converts the error of a failed call. A full disk or an inaccessible file does not count as damage of the file. Any
/// other error does.
pub fn failed(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        _ if is_full(error) => StoreError::Full,
        Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure | ErrorCode::ReadOnly) => {
            StoreError::Failed(error.to_string())
        }
        _ => StoreError::Damaged(error.to_string()),
    }
}

/// Converts the error of a failed commit. After an I/O error the outcome is unknown: SQLite has undone the commit in
/// memory, but its log on the disk may be complete. A restarted broker would then find the change committed.
pub fn not_committed(error: &rusqlite::Error) -> CommitError {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) if !is_full(error) => CommitError::Unknown(error.to_string()),
        _ => CommitError::Refused(failed(error)),
    }
}

/// Returns true if a write failed because the disk is full: a write to the database, to its log, or to the log's index
/// in shared memory.
fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        error.code == ErrorCode::DiskFull || error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE
    })
}
