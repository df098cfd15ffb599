//! The errors of a log's files.

use std::path::PathBuf;
use std::sync::Arc;

use crate::partition::error::{AppendError, ReadError};
use fullbore_host::files::is_full;
use fullbore_wire::Uuid;

/// A fault in a partition's files. Cloning it is cheap, because the broker stores the fault and returns it to several
/// callers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused an operation on a file.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: Arc<std::io::Error>,
    },
    /// Records that were acknowledged, or that come before acknowledged ones, are damaged or missing.
    #[error(
        "{path}: corrupt at byte {position}, where acknowledged records are: {why}; restore the file, or move this \
         file and the later ones away to continue without their records"
    )]
    Corrupt {
        /// The log file of the damaged segment.
        path: PathBuf,
        /// The position of the first bad batch in the file.
        position: u64,
        /// A description of the damage.
        why: String,
    },
    /// Offsets between two adjacent segments are missing.
    #[error(
        "{path}: offsets {from} to {last} are missing: {from:020}.log is gone, or the file before it was cut; \
         restore that file, or move {next:020}.log and all later files away"
    )]
    Gap {
        /// The partition's directory.
        path: PathBuf,
        /// The first missing offset.
        from: i64,
        /// The last missing offset.
        last: i64,
        /// The first offset of the segment after the gap.
        next: i64,
    },
    /// The directory has records, but its topic id is lost. The records may be of a deleted topic of the same name.
    #[error(
        "{path}: {why}, so the topic of the records is unknown; if they belong to this topic, write `version: 0` and \
         `topic_id: {topic_id}` to the file, otherwise move the directory away; then restart"
    )]
    TopicUnknown {
        /// The file with the topic id.
        path: PathBuf,
        /// A description of the damage.
        why: &'static str,
        /// The id that the metadata has for the topic with this name.
        topic_id: Uuid,
    },
    /// The log ends before the high watermark, so it lacks committed records that another replica has.
    #[error(
        "{path}: the log ends at offset {log_end}, but all records below offset {high_watermark} were committed: this \
         replica cannot lead until it has copied the missing records from a leader. If no replica with these records \
         can return, accept the loss with `fullbore topics elect-leaders --election-type unclean`"
    )]
    EndMissing {
        /// The partition's directory.
        path: PathBuf,
        /// The end of the log; 0 if there is no directory.
        log_end: i64,
        /// The high watermark from the checkpoint.
        high_watermark: i64,
    },
    /// The disk has lost writes at the end of the log, and another replica may have the lost records.
    #[error(
        "{path}: the disk has lost writes from byte {position} on ({why}): this replica cannot lead until it has copied \
         the missing records from a leader. If no other replica can return, accept the loss with `fullbore topics \
         elect-leaders --election-type unclean`"
    )]
    EndLost {
        /// The log file of the damaged segment.
        path: PathBuf,
        /// The position after the last good batch.
        position: u64,
        /// A description of the damage.
        why: String,
    },
    /// The partition has been deleted, or the broker is stopping.
    #[error("the partition was deleted, or the broker is stopping")]
    Gone,
}

impl StorageError {
    pub fn io(path: impl Into<PathBuf>, error: std::io::Error) -> Self {
        StorageError::Io { path: path.into(), error: Arc::new(error) }
    }

    /// Returns true if records may be missing at the end of the log that another replica has.
    pub fn lacks_end(&self) -> bool {
        matches!(self, StorageError::EndMissing { .. } | StorageError::EndLost { .. })
    }

    /// Returns true if the partition's files are damaged, so that another attempt to open them cannot succeed.
    pub fn is_damage(&self) -> bool {
        matches!(self, StorageError::Corrupt { .. } | StorageError::Gap { .. } | StorageError::TopicUnknown { .. })
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

/// The data directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct OpenError {
    /// The file or directory.
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
