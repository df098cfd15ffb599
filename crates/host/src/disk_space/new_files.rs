//! New files in the data folder: found by making one, once an append has failed for another reason than room.
//!
//! Not here: room on the disk, and writes that hang.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::files::{is_full, is_momentary};

/// A file of its own, and its name once it is renamed.
const PROBE: &str = "new-file-probe";
const RENAMED: &str = "new-file-probe.renamed";

/// Time for which descriptors or memory may be short. A leader that cannot roll its segments for longer is of no use,
/// as where a write hangs.
const SHORT_MAX: Duration = Duration::from_secs(4);

/// State of a folder that takes new files, or does not.
#[derive(Debug, Default)]
pub struct NewFiles {
    /// True if an append has failed since the last look.
    doubted: AtomicBool,
    refused: AtomicBool,
    /// Begin of a shortage of descriptors or memory that lasts.
    short_since: Mutex<Option<Instant>>,
}

impl NewFiles {
    /// Makes the next look create a file.
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
            // The next look tries again.
            Err(_) if since.is_some_and(|since| now - since < SHORT_MAX) => self.doubt(),
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

/// Makes a file in a directory, as a new segment is, renames it, as a checkpoint is, and removes it.
///
/// # Errors
/// The error of the system.
pub fn make_file(folder: &Path) -> io::Result<()> {
    let (probe, renamed) = (folder.join(PROBE), folder.join(RENAMED));
    let made = fs::write(&probe, PROBE).and_then(|()| fs::rename(&probe, &renamed));
    // Both: a kill may have left either.
    [probe, renamed].iter().for_each(|path| _ = fs::remove_file(path));
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn descriptors_are_short_for_seconds_files_count_as_refused_until_one_is_made() {
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
