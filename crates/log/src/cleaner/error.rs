//! The reasons why a compaction ends early.

use std::io;
use std::path::PathBuf;

use fullbore_wire::batch::BatchError;

/// The reason why a compaction ends early. The log is then unchanged, or compacted up to the last segment that was
/// replaced.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// The broker is stopping.
    #[error("the broker stops")]
    Stopping,
    /// The partition or its segments were deleted, or the topic is no longer compacted.
    #[error("the log has changed")]
    Changed,
    /// A batch cannot be read, and compaction would lose its records.
    #[error("{path}: damaged at byte {position}: {why}")]
    Damaged {
        /// The log file of the segment.
        path: PathBuf,
        /// The position of the batch in the file.
        position: u64,
        /// The error in the batch.
        why: BatchError,
    },
    /// The new files could not be renamed, which is the last step. The broker's next start repeats this step.
    #[error("cannot rename the compacted files: {0}; the next start renames them")]
    Unsettled(io::Error),
    /// The operating system refused an operation on a file. The cause may be temporary.
    #[error("{0}")]
    Io(#[from] io::Error),
}
