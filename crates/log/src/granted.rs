//! The largest idempotence window that producers of a partition may still count on, in a file beside its log.
//!
//! Not here: the windows themselves, which are in the newest producer snapshot and in the batches after it. A replay of
//! these batches needs this largest window, since the setting may have become smaller.
//!
//! Invariant: unless the machine loses power, the file has at least the size of every producer's window. Without the
//! file, that size is [`WINDOW_MIN`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fullbore_rules::sequence::{WINDOW_MAX, WINDOW_MIN};

use super::files::replace_unsynced;

const FILE: &str = "producer-window-checkpoint";

/// Largest window, as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted(usize);

impl Granted {
    /// Window of a directory without the file.
    pub const LEAST: Granted = Granted(WINDOW_MIN);

    /// Reads the file; a damaged file counts as missing.
    ///
    /// # Errors
    /// [`io::Error`] if the file cannot be read, for example for lack of descriptors. The window is then unknown.
    pub fn load(dir: &Path) -> io::Result<Granted> {
        let bytes = match fs::read(path(dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Granted::LEAST),
            read => read?,
        };
        let window = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse::<usize>().ok());
        Ok(Granted(window.unwrap_or(WINDOW_MIN).clamp(WINDOW_MIN, WINDOW_MAX)))
    }

    /// Returns the window's size in batches.
    pub fn window(self) -> usize {
        self.0
    }

    /// Raises the window to `window`, if that is larger. Must be called before a batch is appended with this window.
    /// The file reaches the disk with the next flush.
    pub fn raise(&mut self, dir: &Path, window: usize) -> io::Result<()> {
        if window > self.0 { self.set(dir, window) } else { Ok(()) }
    }

    /// Lowers the window to `window`, the largest size of any producer's window. Must be called only after a snapshot
    /// of all windows is written.
    pub fn lower(&mut self, dir: &Path, window: usize) -> io::Result<()> {
        if window < self.0 { self.set(dir, window) } else { Ok(()) }
    }

    fn set(&mut self, dir: &Path, window: usize) -> io::Result<()> {
        replace_unsynced(&path(dir), format!("{window}\n").as_bytes())?;
        self.0 = window;
        Ok(())
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_window_written_is_read() {
        let dir = tempfile::tempdir().expect("temporary folder");
        assert_eq!(Granted::load(dir.path()).expect("read"), Granted::LEAST);
        let mut granted = Granted::LEAST;
        granted.raise(dir.path(), 5).expect("written");
        assert!(!path(dir.path()).exists(), "the smallest window needs no file");
        granted.raise(dir.path(), 64).expect("written");
        granted.raise(dir.path(), 20).expect("written");
        assert_eq!((granted, Granted::load(dir.path()).expect("read")), (Granted(64), Granted(64)));
        granted.lower(dir.path(), 20).expect("written");
        assert_eq!(Granted::load(dir.path()).expect("read"), Granted(20));
        for damaged in ["", "many", "-1", "4", "99999999999999999999"] {
            fs::write(path(dir.path()), damaged).expect("written");
            assert_eq!(Granted::load(dir.path()).expect("read"), Granted::LEAST, "{damaged}");
        }
        fs::write(path(dir.path()), "123456").expect("written");
        assert_eq!(Granted::load(dir.path()).expect("read"), Granted(WINDOW_MAX));
    }

    #[test]
    fn an_unreadable_window_is_an_error_and_not_the_least() {
        let dir = tempfile::tempdir().expect("temporary folder");
        fs::create_dir(path(dir.path())).expect("created");
        assert!(Granted::load(dir.path()).is_err());
    }
}
