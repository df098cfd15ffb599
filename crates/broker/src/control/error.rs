//! Why the control plane cannot start, one line each, with the file's name.
//!
//! Not refusals of commands: a broker that meets one of these does not serve.

use std::path::PathBuf;

use super::image::Inapplicable;
use super::store::StoreError;
use crate::space::Space;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("data folder {}: {source}", folder.display())]
    Folder { folder: PathBuf, source: std::io::Error },
    #[error("data folder {} is used by another broker (pid {pid})", folder.display())]
    InUse { folder: PathBuf, pid: String },
    #[error("{} says that this folder is Apache Kafka's, which is not taken over; set log.dirs to another folder", file.display())]
    KafkaFolder { file: PathBuf },
    #[error("{} cannot be used: {reason}; restore it from a copy, or move it away to start without topics", file.display())]
    Unusable { file: PathBuf, reason: String },
    #[error("{} is whole, but the disk is full: make room on that file system, a megabyte is enough, and start again", file.display())]
    Full { file: PathBuf },
    #[error("{} cannot be opened: {reason}; see to the disk and to the permissions of this file and its folder", file.display())]
    Refused { file: PathBuf, reason: String },
    #[error("{} was written by a newer Fullbore (schema {found}, this one knows {known}); run that version", file.display())]
    Newer { file: PathBuf, found: i64, known: i64 },
    #[error("{} belongs to node.id={stored}, but node.id={configured} is set", file.display())]
    OtherNode { file: PathBuf, stored: i32, configured: i32 },
    #[error("{}: {source}", file.display())]
    Inapplicable { file: PathBuf, source: Inapplicable },
    #[error("{0}")]
    NotRegistered(String),
    #[error("cannot start the control thread: {0}")]
    Thread(std::io::Error),
}

impl OpenError {
    /// Why the store in this file did not do what the start needs.
    pub fn of_store(file: PathBuf, error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::Full { file },
            StoreError::Failed(reason) => Self::Refused { file, reason },
            StoreError::Damaged(_) | StoreError::WentBack(_) => Self::Unusable { file, reason: error.to_string() },
        }
    }

    /// Whether there was no room for a write. Files that cannot be made are refused without a reason.
    pub fn is_full(&self, space: &Space) -> bool {
        matches!(self, Self::Full { .. }) || matches!(self, Self::Refused { .. }) && space.is_tight()
    }
}
