//! Checks that the path of the data directory still leads to the directory that the broker has opened. If a directory
//! is moved or unmounted under a running broker, its path leads nowhere, or to another directory. The next start of the
//! broker would not find files that were created there.
//!
//! Invariant: the directory stays open, so that no other directory can get its inode number.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The error of a directory that is not at its path.
const MOVED: &str = "it was moved or unmounted; move it back to this path, or mount it there again";

/// A directory and the path under which it was opened.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    /// The directory; `None` if it could not be opened. [`Place::check`] then always succeeds.
    opened: Option<File>,
}

impl Place {
    pub fn open(path: &Path) -> Place {
        Place { path: path.to_owned(), opened: File::open(path).ok() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the path leads to the directory.
    ///
    /// # Errors
    /// Returns an error with the text [`MOVED`] if the path leads nowhere or to another directory. Returns the system's
    /// error if the check itself fails.
    pub fn check(&self) -> io::Result<()> {
        let Some(opened) = &self.opened else { return Ok(()) };
        let opened = opened.metadata()?;
        match fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (opened.dev(), opened.ino()) => Ok(()),
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Err(error),
            Ok(_) | Err(_) => Err(io::Error::other(MOVED)),
        }
    }
}
