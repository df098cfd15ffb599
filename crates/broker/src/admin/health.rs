//! Whether the broker serves. Not here: whether it serves well, which the metrics tell.

use crate::broker::Shared;
use rustix::fs::{Access, access};
use std::io;
use std::path::{Path, PathBuf};

/// Why a broker is not to be sent clients.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unhealthy {
    #[error("stopping")]
    Stopping,
    #[error("the control thread has ended; see the broker's log")]
    Control,
    #[error("the data folder {folder} cannot be written: {error}")]
    DataFolder { folder: PathBuf, error: io::Error },
}

/// Looks at the broker. Asks the system about the data folder, so it may block.
///
/// # Errors
/// The first thing found wrong.
pub(super) fn health(broker: &Shared) -> Result<(), Unhealthy> {
    if *broker.stopping().borrow() {
        return Err(Unhealthy::Stopping);
    }
    if !broker.control.is_serving() {
        return Err(Unhealthy::Control);
    }
    data_folder(&broker.config.data_dir)
}

/// Gone, read-only (as Linux remounts a failing disk) or not ours.
fn data_folder(folder: &Path) -> Result<(), Unhealthy> {
    access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| Unhealthy::DataFolder { folder: folder.to_owned(), error: error.into() })
}
