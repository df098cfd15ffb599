//! Why a cleaning has ended before its time.

use std::io;
use std::path::PathBuf;

use fullbore_wire::batch::BatchError;

/// The log is as it was, or as far cleaned as the last segment put in place.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// The broker stops.
    #[error("the broker stops")]
    Stopping,
    /// The partition was deleted, its segments were, or it is not to be compacted any more.
    #[error("the log has changed")]
    Changed,
    /// A batch that does not open; cleaning would lose what is in it.
    #[error("{path}: damaged at byte {position}: {why}")]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Position of the batch in it.
        position: u64,
        /// The damage.
        why: BatchError,
    },
    /// The system refused the last step, the names of files; the next start does it.
    #[error("files could not be renamed: {0}")]
    Unsettled(io::Error),
    /// The system refused; it may be over soon.
    #[error("{0}")]
    Io(#[from] io::Error),
}
