//! Check whether new files can be made in the data directory: a poll makes one after an append has failed for another
//! reason than room.
//!
//! Not here: room on the disk, and hung writes.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::files::{is_full, is_momentary};

/// Names of the file that the check makes, before and after it renames it.
const PROBE: &str = "new-file-probe";
const RENAMED: &str = "new-file-probe.renamed";

/// Time for which descriptors or memory may be short. A leader that cannot roll its segments for longer is of no use,
/// like one with a hung write.
const SHORT_MAX: Duration = Duration::from_secs(4);

/// State of a directory that takes new files, or does not.
#[derive(Debug, Default)]
pub struct NewFiles {
    /// True if an append has failed since the last poll.
    doubted: AtomicBool,
    refused: AtomicBool,
    /// Begin of the current shortage of descriptors or memory.
    short_since: Mutex<Option<Instant>>,
}

impl NewFiles {
    /// Makes the next poll create a file.
    pub fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// Returns true if the last poll could make no file.
    pub fn are_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Makes a file if an append or the last poll failed, and logs a change.
    ///
    /// # Errors
    /// The error of a disk without room.
    pub fn probe(&self, folder: &Path) -> io::Result<()> {
        if !self.doubted.swap(false, Ordering::Relaxed) && !self.are_refused() {
            return Ok(());
        }
        self.note(make_file(folder), Instant::now(), folder)
    }

    fn note(&self, made: io::Result<()>, now: Instant, folder: &Path) -> io::Result<()> {
        let is_short = made.as_ref().is_err_and(is_momentary);
        let since = {
            let mut short_since = self.short_since.lock();
            *short_since = is_short.then(|| short_since.unwrap_or(now));
            *short_since
        };
        match made {
            Err(error) if is_full(&error) => return Err(error),
            // The next poll tries again.
            Err(_) if since.is_some_and(|since| now - since < SHORT_MAX) => self.doubt(),
            Err(error) => {
                if !self.refused.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        folder = %folder.display(),
                        %error,
                        "cannot make files in the data directory: partitions take no records once their segments are full; check its \
                         permissions and its file system; no restart is needed"
                    );
                }
            }
            Ok(()) => {
                if self.refused.swap(false, Ordering::Relaxed) {
                    tracing::warn!(folder = %folder.display(), "files can be made in the data directory again");
                }
            }
        }
        Ok(())
    }
}

/// Makes a file in a directory, as for a new segment, renames it, as for a checkpoint, and removes it.
///
/// # Errors
/// The error of the system.
pub fn make_file(folder: &Path) -> io::Result<()> {
    let (probe, renamed) = (folder.join(PROBE), folder.join(RENAMED));
    let made = fs::write(&probe, PROBE).and_then(|()| fs::rename(&probe, &renamed));
    // Removes both names: a killed process may have left either.
    [probe, renamed].iter().for_each(|path| _ = fs::remove_file(path));
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_long_shortage_of_descriptors_refuses_files_until_one_is_made() {
        let (files, began, folder) = (NewFiles::default(), Instant::now(), Path::new("."));
        let after = |ms, made| files.note(made, began + Duration::from_millis(ms), folder).expect("there is room");
        let short = || Err(Errno::MFILE.into());
        after(0, short());
        after(3_900, short());
        assert!(!files.are_refused(), "a shortage may pass");
        after(3_950, Ok(()));
        after(5_000, short());
        after(8_900, short());
        assert!(!files.are_refused(), "another one");
        after(9_000, short());
        assert!(files.are_refused());
        after(10_000, Ok(()));
        assert!(!files.are_refused());
    }
}
