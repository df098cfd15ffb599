//! Reasons for the early end of a cleaning.

use std::io;
use std::path::PathBuf;

use fullbore_wire::batch::BatchError;

/// Reason for an early end. The log is unchanged, or is cleaned up to the last segment that was replaced.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// The broker stops.
    #[error("the broker stops")]
    Stopping,
    /// The partition or its segments were deleted, or the topic is no longer compacted.
    #[error("the log has changed")]
    Changed,
    /// A batch that cannot be read; cleaning would lose its records.
    #[error("{path}: damaged at byte {position}: {why}")]
    Damaged {
        /// Log file of the segment.
        path: PathBuf,
        /// Position of the batch in the file.
        position: u64,
        /// Fault of the batch.
        why: BatchError,
    },
    /// The system refused the last step, the renaming of files; the broker's next start repeats this step.
    #[error("cannot rename the cleaned files: {0}; the next start repeats it")]
    Unsettled(io::Error),
    /// The system refused an operation on a file; the cause may be temporary.
    #[error("{0}")]
    Io(#[from] io::Error),
}
