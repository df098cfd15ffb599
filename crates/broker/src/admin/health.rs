//! Whether the broker serves. Not here: whether it serves well, which the metrics tell.

use crate::node::Node;
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
    #[error(
        "{0} partitions take no records until the next start: a write or an fsync has failed; see the broker's log"
    )]
    Partitions(usize),
    #[error(
        "the disk of the data folder {0} is full and records are refused: delete topics or records, set a smaller retention.ms or \
         retention.bytes, or make room on this file system"
    )]
    DiskFull(PathBuf),
    #[error("the data folder {folder} cannot be written: {error}")]
    DataFolder { folder: PathBuf, error: io::Error },
}

/// Looks at the broker. Asks the system about the data folder, so it may block.
///
/// # Errors
/// The first thing found wrong.
pub(super) fn health(broker: &Node) -> Result<(), Unhealthy> {
    let stopping = *broker.stopping().borrow();
    let folder = &broker.config.data_dir;
    judge(stopping, broker.control.is_serving(), broker.partitions.failed_partitions(), broker.space.is_full(), folder)
}

fn judge(stopping: bool, control_serves: bool, failed: usize, full: bool, folder: &Path) -> Result<(), Unhealthy> {
    if stopping {
        return Err(Unhealthy::Stopping);
    }
    if !control_serves {
        return Err(Unhealthy::Control);
    }
    if failed > 0 {
        return Err(Unhealthy::Partitions(failed));
    }
    if full {
        return Err(Unhealthy::DiskFull(folder.to_owned()));
    }
    data_folder(folder)
}

/// Gone, read-only (as Linux remounts a failing disk) or not ours.
fn data_folder(folder: &Path) -> Result<(), Unhealthy> {
    access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| Unhealthy::DataFolder { folder: folder.to_owned(), error: error.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let said = |stopping, control_serves, failed, folder: &Path| {
            judge(stopping, control_serves, failed, false, folder).map_err(|unhealthy| unhealthy.to_string())
        };
        assert_eq!(said(false, true, 0, folder.path()), Ok(()));
        assert_eq!(said(true, false, 0, folder.path()), Err("stopping".to_owned()));
        assert!(said(false, false, 0, folder.path()).is_err_and(|why| why.contains("control thread")));
        assert!(said(false, true, 3, folder.path()).is_err_and(|why| why.starts_with("3 partitions")));
        let full = judge(false, true, 0, true, folder.path()).map_err(|unhealthy| unhealthy.to_string());
        assert!(full.is_err_and(|why| why.contains("is full") && why.contains("delete topics")));
        let gone = folder.path().join("gone");
        assert!(said(false, true, 0, &gone).is_err_and(|why| why.contains("gone cannot be written")));
    }
}
