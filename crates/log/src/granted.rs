//! Stores the largest idempotence window (number of remembered batches) that any producer of a partition may still rely
//! on. The value is in a file next to the log.
//!
//! When a log is opened, the windows themselves are restored from the newest producer snapshot and the batches after
//! it. The topic's setting may have become smaller since these batches were written. The replay of the batches
//! therefore uses the stored value if it is larger than the setting.
//!
//! Invariant: the file's value is at least the size of every producer's window, unless the machine loses power. If
//! there is no file, the value is [`WINDOW_MIN`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fullbore_rules::sequence::{WINDOW_MAX, WINDOW_MIN};

use super::files::replace_unsynced;

const FILE: &str = "producer-window-checkpoint";

/// The largest idempotence window of the partition's producers, as stored in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted(usize);

impl Granted {
    /// The value that applies if the directory has no file.
    pub const LEAST: Granted = Granted(WINDOW_MIN);

    /// Reads the file. If it is damaged, it counts as missing.
    ///
    /// # Errors
    /// Returns the system's error, for example for lack of descriptors. The window is then unknown.
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

    /// Raises the stored value to `window` if that is larger. Must be called before a batch is appended with this
    /// window. The file reaches the disk with the next flush.
    pub fn raise(&mut self, dir: &Path, window: usize) -> io::Result<()> {
        if window > self.0 { self.set(dir, window) } else { Ok(()) }
    }

    /// Lowers the stored value to `window`, which must be the largest window of any producer. Call this only after a
    /// snapshot of all windows has been written.
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
        let dir = tempfile::tempdir().expect("temporary directory");
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
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(path(dir.path())).expect("created");
        assert!(Granted::load(dir.path()).is_err());
    }
}
