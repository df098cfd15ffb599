//! Errors of SQLite, and their meaning.

use rusqlite::ErrorCode;

use crate::{CommitError, StoreError};

/// Returns the error of a failed call. After a full disk and after errors of access or I/O, the contents are still
/// trusted; any other error counts as damage.
pub fn failed(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        _ if is_full(error) => StoreError::Full,
        Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure | ErrorCode::ReadOnly) => {
            StoreError::Failed(error.to_string())
        }
        _ => StoreError::Damaged(error.to_string()),
    }
}

/// Returns the error of a failed commit. After an I/O error the outcome is unknown: SQLite has undone the commit, but
/// the next start may find it complete on the disk.
pub fn not_committed(error: &rusqlite::Error) -> CommitError {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) if !is_full(error) => CommitError::Unknown(error.to_string()),
        _ => CommitError::Refused(failed(error)),
    }
}

/// Returns true if a write failed for lack of space: in the database, in its log, or in the log's index in shared
/// memory.
fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        error.code == ErrorCode::DiskFull || error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE
    })
}
