//! New files in the data folder: found by making one, once an append has failed for another reason than room.
//!
//! Not here: room on the disk, and writes that hang.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::files::{is_full, is_momentary};

/// A file of its own, and its name once it is renamed.
const PROBE: &str = "new-file-probe";
const RENAMED: &str = "new-file-probe.renamed";

/// State of a folder that takes new files, or does not.
#[derive(Debug, Default)]
pub struct NewFiles {
    /// True if an append has failed since the last look.
    doubted: AtomicBool,
    refused: AtomicBool,
}

impl NewFiles {
    /// Has the next look make a file.
    pub fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// Returns true if the last look could make no file.
    pub fn are_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Makes a file where that is in doubt, and logs a change.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn look(&self, folder: &Path) -> io::Result<()> {
        if !self.doubted.swap(false, Ordering::Relaxed) && !self.are_refused() {
            return Ok(());
        }
        match make(folder) {
            Err(error) if is_full(&error) => return Err(error),
            // The next look tries again.
            Err(error) if is_momentary(&error) => self.doubt(),
            Err(error) => {
                if !self.refused.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        folder = %folder.display(),
                        %error,
                        "cannot make files in the data folder: partitions take no records once their segments are full; see to its \
                         permissions and its file system; nothing has to be started anew"
                    );
                }
            }
            Ok(()) => {
                if self.refused.swap(false, Ordering::Relaxed) {
                    tracing::warn!(folder = %folder.display(), "files can be made in the data folder again");
                }
            }
        }
        Ok(())
    }
}

/// Makes a file, as a new segment is, and renames it, as a checkpoint is.
fn make(folder: &Path) -> io::Result<()> {
    let (probe, renamed) = (folder.join(PROBE), folder.join(RENAMED));
    let made = fs::write(&probe, PROBE).and_then(|()| fs::rename(&probe, &renamed));
    // Both: a kill may have left either.
    [probe, renamed].iter().for_each(|path| _ = fs::remove_file(path));
    made
}
