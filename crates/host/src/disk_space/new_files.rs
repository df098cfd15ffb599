//! Check whether the data directory takes new files. After an append has failed for another reason than lack of space,
//! the next poll makes a file.
//!
//! Not here: disk space, and hung writes.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::files::{is_full, is_momentary};

/// Name of the file that the check makes.
const PROBE: &str = "new-file-probe";
/// Name of that file after the rename.
const RENAMED: &str = "new-file-probe.renamed";

/// Longest shortage of descriptors or memory that is tolerated. A leader that cannot roll its segments for longer is of
/// no use, like a leader with a hung write.
const SHORT_MAX: Duration = Duration::from_secs(4);

/// State of the check of one directory.
#[derive(Debug, Default)]
pub struct NewFiles {
    /// True if the next poll must make a file: an append has failed, or a shortage lasts.
    doubted: AtomicBool,
    refused: AtomicBool,
    /// Begin of the present shortage of descriptors or memory.
    short_since: Mutex<Option<Instant>>,
}

impl NewFiles {
    /// Requests that the next poll makes a file.
    pub fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// Returns true if the directory takes no new files, by the last poll that made one.
    pub fn are_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Makes a file if one was requested, or if the directory took none before. Logs a change.
    ///
    /// # Errors
    /// Error of the system if the disk is full.
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
            // The shortage may end soon: the next poll makes a file again.
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

/// Makes a file in a directory, renames it, and removes it. A new segment and a checkpoint need the same steps.
///
/// # Errors
/// Error of the system if one of the steps fails.
pub fn make_file(folder: &Path) -> io::Result<()> {
    let (probe, renamed) = (folder.join(PROBE), folder.join(RENAMED));
    let made = fs::write(&probe, PROBE).and_then(|()| fs::rename(&probe, &renamed));
    // Removes both names: a killed process may have left a file under either one.
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
