//! In which boot of the machine a data folder was last used: whether what was not flushed may be gone.
//!
//! A killed process leaves the page cache whole, so that what is bad in a log afterwards was damaged. A machine that
//! stops loses of it what was not flushed, in any order: whole batches may then follow a hole, and nobody was promised
//! what is in it. Linux draws an id for each boot; the folder keeps the one in which it was last used.
//!
//! Not which partitions that concerns: [`Partitions`](crate::partitions::Partitions) has the list. Invariant: two boots
//! are told apart only if both are known.

use std::fs;
use std::io;
use std::path::Path;

use fullbore_rules::cluster::PreviousShutdown;

use super::files;

/// In the data folder.
const FILE: &str = "boot-id";
/// Linux's.
const KERNEL: &str = "/proc/sys/kernel/random/boot_id";

/// How the process that used the folder last has ended. To be asked before the folder is used again. A folder that does
/// not say in which boot it was used has lost that with what else was not flushed.
pub fn previous_shutdown(data_dir: &Path) -> PreviousShutdown {
    if data_dir.join(files::CLEAN_SHUTDOWN).exists() {
        PreviousShutdown::Clean
    } else if Boots::look(data_dir).are_the_same() {
        PreviousShutdown::Killed
    } else {
        PreviousShutdown::Lost
    }
}

/// The folder does not say any more in which boot it was used: the end of what it has counts as lost.
///
/// # Errors
/// What the system says.
pub fn forget(data_dir: &Path) -> io::Result<()> {
    match fs::remove_file(data_dir.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => files::sync_dir(data_dir),
    }
}

/// The boot in which the folder was last used, and this one; `None` where that cannot be said.
#[derive(Debug, PartialEq, Eq)]
pub struct Boots {
    before: Option<String>,
    now: Option<String>,
}

impl Boots {
    /// Reads both.
    pub fn look(data_dir: &Path) -> Boots {
        Boots { before: read(&data_dir.join(FILE)), now: read(Path::new(KERNEL)) }
    }

    /// Returns true if the machine has booted since the folder was last used.
    pub fn differ(&self) -> bool {
        self.before.is_some() && self.now.is_some() && self.before != self.now
    }

    /// Returns true if the machine is known not to have booted since the folder was last used.
    pub fn are_the_same(&self) -> bool {
        self.before.is_some() && self.before == self.now
    }

    /// Notes on the disk that this boot uses the directory. Without that a power cut would be taken for
    /// a kill.
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

/// An id as Linux writes it; anything else says nothing.
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
    fn who_does_not_know_in_which_boot_its_folder_was_used_has_lost_its_end() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let dir = folder.path();
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
    fn what_was_kept_is_found_and_a_boot_without_an_id_leaves_none() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let dir = folder.path();
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
