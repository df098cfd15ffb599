//! Finds out whether the machine has booted since a data directory was last used. If it has, unflushed data may be
//! lost.
//!
//! When a process is killed, the page cache survives, so a bad batch is real damage. When the machine stops, unflushed
//! pages are lost in any order. Complete batches may then follow a hole, but no flush of these records was ever
//! acknowledged. Linux has an id for each boot. The directory stores the id of the boot in which it was last used.
//!
//! The broker's `Partitions` keeps the list of affected partitions. Invariant: two boots count as different only if
//! both ids are known.

use std::fs;
use std::io;
use std::path::Path;

use fullbore_rules::cluster::PreviousShutdown;

use super::files;

/// The name of the file in the data directory.
const FILE: &str = "boot-id";
/// The file in which Linux shows the id of the current boot.
const KERNEL: &str = "/proc/sys/kernel/random/boot_id";

/// Returns how the process that last used the directory ended. Must be called before the directory is used again. After
/// an unclean shutdown without a stored boot id, returns [`PreviousShutdown::Lost`], because the id may have been lost
/// together with other unflushed data.
pub fn previous_shutdown(data_dir: &Path) -> PreviousShutdown {
    if data_dir.join(files::CLEAN_SHUTDOWN).exists() {
        PreviousShutdown::Clean
    } else if Boots::look(data_dir).are_the_same() {
        PreviousShutdown::Killed
    } else {
        PreviousShutdown::Lost
    }
}

/// Removes the boot id from the directory. A restarted broker then assumes that the ends of the logs may be lost.
///
/// # Errors
/// Returns the system's error if the file cannot be removed.
pub fn forget(data_dir: &Path) -> io::Result<()> {
    match fs::remove_file(data_dir.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => files::sync_dir(data_dir),
    }
}

/// The boot in which the directory was last used, and the current one. `None` if an id is unknown.
#[derive(Debug, PartialEq, Eq)]
pub struct Boots {
    before: Option<String>,
    now: Option<String>,
}

impl Boots {
    /// Reads both ids.
    pub fn look(data_dir: &Path) -> Boots {
        Boots { before: read(&data_dir.join(FILE)), now: read(Path::new(KERNEL)) }
    }

    /// Returns true if the machine has booted since the directory was last used.
    pub fn differ(&self) -> bool {
        self.before.is_some() && self.now.is_some() && self.before != self.now
    }

    /// Returns true if the machine certainly has not booted since the directory was last used.
    pub fn are_the_same(&self) -> bool {
        self.before.is_some() && self.before == self.now
    }

    /// Writes the id of the current boot to the directory and flushes it. Without this flush, a power loss could remove
    /// the id, and the next recovery of the logs would treat the power loss as a kill. If the current id is unknown,
    /// removes the old id instead.
    pub fn keep(&self, data_dir: &Path) -> io::Result<()> {
        let path = data_dir.join(FILE);
        match &self.now {
            now if *now == self.before => return Ok(()),
            Some(now) => files::replace(&path, format!("{now}\n").as_bytes())?,
            None => fs::remove_file(path)?,
        }
        files::sync_dir(data_dir)
    }
}

/// Reads a boot id; `None` if the file does not have one.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    uuid::Uuid::try_parse(text.trim()).ok().map(|id| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "1e13afef-78e9-4ecf-8c22-3361d6cc60de";
    const OTHER: &str = "2e13afef-78e9-4ecf-8c22-3361d6cc60de";

    #[test]
    fn a_directory_without_a_known_boot_has_lost_its_end() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let dir = directory.path();
        assert_eq!(previous_shutdown(dir), PreviousShutdown::Lost);
        Boots::look(dir).keep(dir).expect("written");
        assert_eq!(previous_shutdown(dir), PreviousShutdown::Killed);
        fs::write(dir.join(FILE), "").expect("written");
        assert_eq!(previous_shutdown(dir), PreviousShutdown::Lost, "as a power cut may leave it");
        fs::write(dir.join(FILE), ONE).expect("written");
        assert_eq!(previous_shutdown(dir), PreviousShutdown::Lost);
        fs::write(dir.join(files::CLEAN_SHUTDOWN), "").expect("written");
        assert_eq!(previous_shutdown(dir), PreviousShutdown::Clean);
    }

    #[test]
    fn only_two_known_boots_differ() {
        let boots = |before: Option<&str>, now: Option<&str>| Boots {
            before: before.map(str::to_owned),
            now: now.map(str::to_owned),
        };
        assert!(boots(Some(ONE), Some(OTHER)).differ());
        for (before, now) in [(Some(ONE), Some(ONE)), (None, Some(ONE)), (Some(ONE), None), (None, None)] {
            assert!(!boots(before, now).differ(), "{before:?} {now:?}");
        }
    }

    #[test]
    fn a_kept_boot_id_is_read_back_and_a_boot_without_an_id_leaves_none() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let dir = directory.path();
        let file = dir.join(FILE);
        let keep = |before: Option<&str>, now: Option<&str>| {
            let boots = Boots { before: before.map(str::to_owned), now: now.map(str::to_owned) };
            boots.keep(dir).expect("written");
            read(&file)
        };
        assert_eq!(keep(None, None), None);
        assert_eq!(keep(None, Some(ONE)).as_deref(), Some(ONE));
        assert_eq!(keep(Some(ONE), Some(OTHER)).as_deref(), Some(OTHER));
        assert_eq!(keep(Some(OTHER), None), None);
        assert!(!file.exists());
        for damaged in ["", "nonsense", "1e13afef-78e9-4ecf-8c22-3361d6cc60d", "\0\0\0\0"] {
            fs::write(&file, damaged).expect("written");
            assert_eq!(Boots::look(dir).before, None, "{damaged:?}");
        }
    }
}
