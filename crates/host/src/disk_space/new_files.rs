//! Tests whether files can be created in the data directory. After an append has failed for another reason than a full
//! disk, the next poll tries to create a file. Each poll also checks that the path still leads to the directory.
//!
//! Other modules detect full disks and hanging writes.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::place::Place;
use crate::files::{is_full, is_momentary};

/// The name of the file that the check creates.
const PROBE: &str = "new-file-probe";
/// The name to which the check renames its file.
const RENAMED: &str = "new-file-probe.renamed";

/// How long a shortage of descriptors or memory may last before polls count as failed. A leader that cannot start new
/// segments for longer must be replaced, as if its disk hung.
const SHORT_MAX: Duration = Duration::from_secs(4);

/// The state of the check for one directory.
#[derive(Debug, Default)]
pub struct NewFiles {
    /// True if the next poll must create a file, because an append has failed or there is a shortage.
    doubted: AtomicBool,
    refused: AtomicBool,
    /// When the current shortage of descriptors or memory began; `None` if there is no shortage.
    short_since: Mutex<Option<Instant>>,
}

impl NewFiles {
    /// Makes the next poll create a file.
    pub fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// Returns true if the last poll failed. A poll that found only a brief shortage or a full disk does not count, so
    /// the result stays as it was.
    pub fn are_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Checks that the path leads to the directory. Then tries to create a file if [`NewFiles::doubt`] was called, or
    /// if the last poll failed. Logs when polls begin to fail, and when they succeed again.
    ///
    /// # Errors
    /// Returns the system's error if the disk is full.
    pub fn probe(&self, place: &Place) -> io::Result<()> {
        let is_doubted = self.doubted.swap(false, Ordering::Relaxed);
        let found = place.check();
        if found.is_ok() && !is_doubted && !self.are_refused() {
            return Ok(());
        }
        self.note(found.and_then(|()| make_file(place.path())), Instant::now(), place.path())
    }

    fn note(&self, made: io::Result<()>, now: Instant, directory: &Path) -> io::Result<()> {
        let is_short = made.as_ref().is_err_and(is_momentary);
        let since = {
            let mut short_since = self.short_since.lock();
            *short_since = is_short.then(|| short_since.unwrap_or(now));
            *short_since
        };
        match made {
            Err(error) if is_full(&error) => return Err(error),
            // The shortage may end soon, so the next poll tries again.
            Err(_) if since.is_some_and(|since| now - since < SHORT_MAX) => self.doubt(),
            Err(error) => {
                if !self.refused.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        folder = %directory.display(),
                        %error,
                        "cannot make files in the data directory: new partitions take no records, and others none once \
                         their segments are full; check the directory's path, permissions and file system; no restart \
                         is needed"
                    );
                }
            }
            Ok(()) => {
                if self.refused.swap(false, Ordering::Relaxed) {
                    tracing::warn!(folder = %directory.display(), "files can be made in the data directory again");
                }
            }
        }
        Ok(())
    }
}

/// Creates a file in the directory, renames it, and removes it. New segments and checkpoints need the same steps.
///
/// # Errors
/// Returns the system's error if one of the steps fails.
pub fn make_file(directory: &Path) -> io::Result<()> {
    let (probe, renamed) = (directory.join(PROBE), directory.join(RENAMED));
    let made = fs::write(&probe, PROBE).and_then(|()| fs::rename(&probe, &renamed));
    // Remove both names, because a killed process may have left a file with either of them.
    [probe, renamed].iter().for_each(|path| _ = fs::remove_file(path));
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_long_shortage_of_descriptors_refuses_files_until_one_is_made() {
        let (files, began, directory) = (NewFiles::default(), Instant::now(), Path::new("."));
        let after = |ms, made| files.note(made, began + Duration::from_millis(ms), directory).expect("there is room");
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
