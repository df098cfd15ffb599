//! What SQLite's errors mean.

use std::path::Path;

use rusqlite::ErrorCode;

use super::super::error::OpenError;

/// Why a file cannot be used. Only what SQLite says of the contents makes them suspect.
pub fn refused(file: &Path, error: &rusqlite::Error) -> OpenError {
    let file = file.to_owned();
    match error.sqlite_error_code() {
        _ if is_full(error) => OpenError::Full { file },
        Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure | ErrorCode::ReadOnly) => {
            OpenError::Refused { file, reason: error.to_string() }
        }
        _ => OpenError::Unusable { file, reason: error.to_string() },
    }
}

/// Whether there was no room for a write, to the files or to the index that is shared with other connections.
pub fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        error.code == ErrorCode::DiskFull || error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE
    })
}
