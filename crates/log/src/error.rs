//! Errors of a log's files.

use std::path::PathBuf;
use std::sync::Arc;

use crate::partition::error::{AppendError, ReadError};
use fullbore_host::files::is_full;

/// Fault of a partition's files. Cheap to clone, since it is kept and returned again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StorageError {
    /// The system refused an operation on a file.
    #[error("{path}: {error}")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// The system's error.
        error: Arc<std::io::Error>,
    },
    /// Damage or missing offsets at acknowledged records, or before such records.
    #[error(
        "{path}: corrupt at byte {position}, where acknowledged records are: {why}; restore the file, or move it \
         and those after it away to go on without their records"
    )]
    Corrupt {
        /// Log file of the segment.
        path: PathBuf,
        /// Position of the first bad batch in the file.
        position: u64,
        /// The damage.
        why: String,
    },
    /// Offsets between two segments are in no file.
    #[error(
        "{path}: offsets {from} to {last} are missing: {from:020}.log is gone, or the file before it was cut; \
         restore it, or move the log files from {next:020} on away"
    )]
    Gap {
        /// Directory of the partition.
        path: PathBuf,
        /// First missing offset.
        from: i64,
        /// Last missing offset.
        last: i64,
        /// Base offset of the segment behind the gap.
        next: i64,
    },
    /// Committed records are missing at the end of the log, and another replica has them.
    #[error(
        "{path}: it ends at offset {log_end}, and records below {high_watermark} were committed: another replica leads, and this one follows it"
    )]
    EndMissing {
        /// Directory of the partition.
        path: PathBuf,
        /// End of the log; 0 if there is no directory.
        log_end: i64,
        /// High watermark of the checkpoint.
        high_watermark: i64,
    },
    /// The partition is deleted, or the broker is stopping.
    #[error("the partition was deleted, or the broker is stopping")]
    Gone,
}

impl StorageError {
    pub fn io(path: impl Into<PathBuf>, error: std::io::Error) -> Self {
        StorageError::Io { path: path.into(), error: Arc::new(error) }
    }
}

impl From<&StorageError> for AppendError {
    fn from(error: &StorageError) -> Self {
        match error {
            StorageError::Gone => AppendError::Gone,
            StorageError::Io { error, .. } if is_full(error) => AppendError::Full,
            _ => AppendError::Storage,
        }
    }
}

impl From<&StorageError> for ReadError {
    fn from(error: &StorageError) -> Self {
        match error {
            StorageError::Gone => ReadError::Gone,
            _ => ReadError::Storage,
        }
    }
}

/// Error of a data directory that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct OpenError {
    /// File or directory.
    pub path: PathBuf,
    /// The system's error.
    pub error: std::io::Error,
}

impl From<StorageError> for AppendError {
    fn from(error: StorageError) -> Self {
        AppendError::from(&error)
    }
}

impl From<StorageError> for ReadError {
    fn from(error: StorageError) -> Self {
        ReadError::from(&error)
    }
}
