//! The reasons why the control plane cannot start. Each text is one line, and names the file or database.
//!
//! A broker that gets one of these errors does not start. `command` defines the refusals of commands.

use std::path::PathBuf;

use fullbore_wire::Uuid;

use super::identity::StoreName;
use super::image::Inapplicable;
use fullbore_db::StoreError;
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::start_retries::Retried;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("data directory {}: {source}", directory.display())]
    Directory { directory: PathBuf, source: std::io::Error },
    #[error(
        "data directory {} is not a directory; set log.dirs (--data-dir) to a directory, which the broker creates if it is missing",
        directory.display()
    )]
    NotADirectory { directory: PathBuf },
    #[error("data directory {} is used by another broker (pid {pid})", directory.display())]
    InUse { directory: PathBuf, pid: String },
    #[error("{} marks this directory as Apache Kafka's, which Fullbore cannot use; set log.dirs to another directory", file.display())]
    KafkaDirectory { file: PathBuf },
    #[error("{} cannot be used: {reason}; restore it from a copy, or move it away to start without topics", file.display())]
    Unusable { file: PathBuf, reason: String },
    #[error("{} is intact, but the disk is full: free at least a megabyte on that file system, and start again", file.display())]
    Full { file: PathBuf },
    #[error("{} cannot be opened: {reason}; check the disk and the permissions of this file and its directory", file.display())]
    Refused { file: PathBuf, reason: String },
    #[error("{} has schema {found} of a build before the first release, which this Fullbore does not read; run that build, or move the file away to start without topics", file.display())]
    Unreleased { file: PathBuf, found: i64 },
    #[error("{} was written by a newer Fullbore (schema {found}, this one knows {known}); run that version", file.display())]
    Newer { file: PathBuf, found: i64, known: i64 },
    #[error("{} belongs to node.id={stored}, but node.id={configured} is set", file.display())]
    OtherNode { file: PathBuf, stored: i32, configured: i32 },
    #[error("{store}: {source}")]
    Inapplicable { store: StoreName, source: Box<Inapplicable> },
    /// The cluster's database cannot be used. The start may be retried if `is_transient` is true.
    #[error("{database}: {reason}")]
    Database { database: String, reason: String, is_transient: bool },
    #[error("{key}: {reason}")]
    Setting { key: &'static str, reason: String },
    #[error("{} cannot be used: {source}; without this file, the directory cannot be distinguished from another \
         broker's", file.display())]
    DirectoryIdentity { file: PathBuf, source: std::io::Error },
    #[error("{} belongs to cluster {stored}, but {database} has cluster {found}; set control.plane and log.dirs to \
         those of one cluster", file.display())]
    OtherCluster { file: PathBuf, stored: Uuid, database: String, found: Uuid },
    #[error("{} marks this directory as that of a broker in a cluster; set control.plane to its database, or log.dirs to another directory", file.display())]
    OfCluster { file: PathBuf },
    #[error("{} marks this directory as that of a standalone broker, which cannot join a cluster; set log.dirs to another directory", file.display())]
    OnOneMachine { file: PathBuf },
    #[error("{0}")]
    NotRegistered(String),
    /// A request to stop the start came before the broker with this id was registered.
    #[error("the start of broker {0} was stopped before the broker was registered")]
    Stopped(i32),
    #[error("cannot start the control thread: {0}")]
    Thread(std::io::Error),
}

impl Retried for OpenError {
    fn reason_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Database { reason, .. } => Some(reason),
            _ => None,
        }
    }
}

impl OpenError {
    /// Converts an error of the named store into a reason why the broker cannot start.
    pub fn of_store(store: impl Into<StoreName>, error: StoreError) -> Self {
        let file = match store.into() {
            StoreName::File(file) => file,
            StoreName::Database(database) => {
                let remedy = match error {
                    StoreError::WentBack(_) | StoreError::LacksChanges(_) => {
                        "; restore the newest backup, or run fullbore admin accept-copy to go on without the missing changes"
                    }
                    _ => "",
                };
                let is_transient = error.is_transient();
                return Self::Database { database, reason: format!("{error}{remedy}"), is_transient };
            }
        };
        match error {
            StoreError::Full => Self::Full { file },
            StoreError::Failed(reason) => Self::Refused { file, reason },
            StoreError::Away(outage) => Self::Refused { file, reason: outage.words },
            StoreError::Damaged(_) | StoreError::WentBack(_) | StoreError::LacksChanges(_) => {
                Self::Unusable { file, reason: error.to_string() }
            }
        }
    }

    /// Returns true if the same start may succeed a little later, since the cluster's database was not available.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Database { is_transient: true, .. })
    }

    /// Returns true if a write failed because the disk is full. Also checks `space`, because SQLite gives no reason if
    /// it cannot create a file.
    pub fn is_full(&self, space: &DiskSpace) -> bool {
        matches!(self, Self::Full { .. }) || matches!(self, Self::Refused { .. }) && space.is_tight()
    }
}
