//! Counts the files that were set aside, for metrics.
//!
//! An operator may remove these files while the broker runs. For each count, the broker therefore scans again all
//! directories that had such files at the last scan. Invariant: a directory is remembered from a scan that finds files
//! until a scan that finds none.

use crate::files::{ASIDE, LOG, parse_offset_name};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Number and size of the files that were set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAside {
    /// Number of files.
    pub files: u64,
    /// Total size of the files in bytes.
    pub bytes: u64,
}

/// The directories in a data directory that have files set aside.
#[derive(Debug, Default)]
pub struct SetAsideDirectories {
    directories: Mutex<HashMap<PathBuf, SetAside>>,
    all_known: AtomicBool,
}

impl SetAsideDirectories {
    /// Records that the broker now knows all partitions that earlier processes have left. Housekeeping may then scan
    /// their directories.
    pub fn set_all_known(&self) {
        self.all_known.store(true, Relaxed);
    }

    /// Returns true once all partitions of earlier processes are known.
    pub fn is_all_known(&self) -> bool {
        self.all_known.load(Relaxed)
    }

    /// Scans a partition's directory, and returns the number and size of its files that were set aside.
    pub fn look(&self, dir: &Path) -> SetAside {
        let found = count(dir);
        let mut directories = self.directories.lock();
        match found {
            Ok(SetAside { files: 0, .. }) => {
                directories.remove(dir);
                SetAside::default()
            }
            Ok(found) => *directories.entry(dir.to_owned()).insert_entry(found).get(),
            // The scan failed, for example for lack of descriptors, so keep the last count.
            Err(_) => directories.get(dir).copied().unwrap_or_default(),
        }
    }

    /// Counts the files in a directory if the last scan found any there. Otherwise returns 0 without reading the
    /// directory.
    pub fn of(&self, dir: &Path) -> SetAside {
        let is_known = self.directories.lock().contains_key(dir);
        if is_known { self.look(dir) } else { SetAside::default() }
    }

    /// Counts the files in all directories that had some.
    pub fn total(&self) -> SetAside {
        let known: Vec<PathBuf> = self.directories.lock().keys().cloned().collect();
        let each = known.iter().map(|dir| self.look(dir));
        each.fold(SetAside::default(), |sum, one| SetAside {
            files: sum.files + one.files,
            bytes: sum.bytes + one.bytes,
        })
    }
}

fn count(dir: &Path) -> io::Result<SetAside> {
    let mut found = SetAside::default();
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let suffix = name.to_str().and_then(parse_offset_name).map_or("", |(_, suffix)| suffix);
        let number =
            suffix.strip_prefix(LOG).and_then(|rest| rest.strip_prefix('.')).and_then(|rest| rest.strip_prefix(ASIDE));
        if number.is_some_and(|number| number.parse::<u64>().is_ok()) {
            match entry.metadata() {
                Ok(metadata) => found = SetAside { files: found.files + 1, bytes: found.bytes + metadata.len() },
                // An operator has removed the file in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_set_aside_are_counted_until_an_operator_removes_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let (with, without) = (directory.path().join("t-0"), directory.path().join("t-1"));
        let (first, second) =
            (with.join(format!("{:020}.log.aside-1", 7)), with.join(format!("{:020}.log.aside-2", 9)));
        for dir in [&with, &without] {
            fs::create_dir(dir).expect("made");
            for other in [format!("{:020}.log", 0), format!("{:020}.log.aside-3.tmp", 0), "x.log.aside-1".to_owned()] {
                fs::write(dir.join(other), "other").expect("written");
            }
        }
        fs::write(&first, "12345").expect("written");
        let found = SetAsideDirectories::default();
        assert_eq!(found.of(&with), SetAside::default(), "nobody has looked");
        for dir in [&with, &without, &directory.path().join("absent-0")] {
            found.look(dir);
        }
        assert_eq!(found.directories.lock().len(), 1);
        fs::write(&second, "123").expect("written");
        let both = SetAside { files: 2, bytes: 8 };
        assert_eq!((found.of(&with), found.of(&without), found.total()), (both, SetAside::default(), both));
        fs::remove_file(first).expect("removed");
        assert_eq!(found.total(), SetAside { files: 1, bytes: 3 });
        fs::remove_dir_all(&with).expect("removed");
        assert_eq!(found.total(), SetAside::default());
        assert!(found.directories.lock().is_empty());
    }
}
