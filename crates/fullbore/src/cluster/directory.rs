//! The directory of a cluster on this machine, and its lock, so that only one command at a time uses the directory.

use super::broker::BrokerFile;
use super::postgres::OwnPostgres;
use crate::failure::Failure;
use crate::patience::Patience;
use clap::Args;
use rustix::fs::statvfs;
use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The default directory of a cluster.
pub const DIRECTORY_DEFAULT: &str = "./fullbore-cluster";

/// The free space in MiB below which a failed start may be due to the disk. `initdb` needs about 40 MiB, and frees them
/// when it fails.
const ROOM_MIN_MIB: u64 = 64;

/// Flag that names the cluster.
#[derive(Args, Debug)]
pub struct DirectoryArg {
    /// The cluster's directory.
    #[arg(long, value_name = "DIR", default_value = DIRECTORY_DEFAULT)]
    pub data_dir: PathBuf,
}

/// Maximum time that `cluster up` waits for the brokers to become ready, and `cluster down` for the processes to end.
#[derive(Args, Clone, Copy, Debug)]
pub struct ClusterPatience {
    /// Milliseconds to wait for the brokers.
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

impl ClusterPatience {
    /// Returns the time limit as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.timeout)
    }

    /// Returns the time limit as that of a single answer.
    pub fn of_answers(self) -> Patience {
        Patience::of_ms(self.timeout)
    }
}

/// A locked directory of a cluster. Until this is dropped, other commands that use the directory fail.
pub struct ClusterDirectory {
    /// The path without symbolic links. Every broker has it in its command line, and later commands use it to recognise
    /// the broker's process.
    pub path: PathBuf,
    /// True if this command made the directory.
    is_new: bool,
    _lock: File,
}

impl ClusterDirectory {
    /// Creates the directory unless it exists, and locks it.
    ///
    /// # Errors
    /// Fails if the directory cannot be created, or if another command has locked it.
    pub fn made(path: &Path) -> Result<Self, Failure> {
        let is_new = !path.exists();
        let of_it = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Failure::new(format!("{} is not a directory; set --data-dir to one, or to a new name", path.display()))
            }
            _ => Failure::new(format!("cannot make the directory {}: {error}", path.display())),
        };
        fs::create_dir_all(path).map_err(of_it)?;
        if is_new {
            // Other users may enter the directory, because PostgreSQL may run in a subdirectory as another user.
            fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(of_it)?;
        }
        Self::locked(path, is_new)
    }

    /// Locks the directory of an existing cluster and returns its brokers.
    ///
    /// # Errors
    /// Fails if there is no cluster in the directory, or if another command has locked it.
    pub fn existing(path: &Path) -> Result<(Self, Vec<BrokerFile>), Failure> {
        let none = || {
            let shown = path.display();
            Failure::new(format!(
                "there is no cluster in {shown}; create one with `fullbore cluster up`, or name another directory \
                 with --data-dir"
            ))
        };
        if !path.is_dir() {
            return Err(none());
        }
        let directory = Self::locked(path, false)?;
        let brokers = BrokerFile::all(&directory.path)?;
        // If there is a PostgreSQL but no broker, a command was killed while it created the cluster.
        let is_none = brokers.is_empty() && !OwnPostgres::of(&directory.path).is_there();
        if is_none { Err(none()) } else { Ok((directory, brokers)) }
    }

    fn locked(path: &Path, is_new: bool) -> Result<Self, Failure> {
        let shown = path.display();
        let of_it = |error: io::Error| Failure::new(format!("cannot use the directory {shown}: {error}"));
        let path = fs::canonicalize(path).map_err(of_it)?;
        let lock = File::open(&path).map_err(of_it)?;
        match lock.try_lock() {
            Ok(()) => Ok(ClusterDirectory { path, is_new, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::new(format!("another `fullbore cluster` uses {shown}; wait until it ends")))
            }
            Err(TryLockError::Error(error)) => Err(of_it(error)),
        }
    }

    /// Returns a clause about the disk of the directory if the disk is full or almost full.
    pub fn lack_of_room(&self) -> Option<String> {
        let disk = statvfs(&self.path).ok().filter(|disk| disk.f_blocks > 0)?;
        // Some file systems do not count inodes. They have zero of them.
        let has_inode = disk.f_files == 0 || disk.f_favail > 0;
        lack(&self.path, if has_inode { disk.f_bavail.saturating_mul(disk.f_frsize) } else { 0 })
    }

    /// Removes the directory again if this command created it and it is empty.
    pub fn leave(&self) {
        if self.is_new {
            // This fails if the directory is not empty, as intended.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

fn lack(directory: &Path, free_bytes: u64) -> Option<String> {
    let shown = directory.display();
    match free_bytes >> 20 {
        0 => Some(format!("the disk of {shown} is full")),
        mib if mib < ROOM_MIN_MIB => Some(format!("the disk of {shown} has only {mib} MiB left")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named() {
        let of = |free_bytes| lack(Path::new("/c"), free_bytes);
        assert_eq!(of(4096).as_deref(), Some("the disk of /c is full"));
        assert_eq!(of((8 << 20) - 1).as_deref(), Some("the disk of /c has only 7 MiB left"));
        assert_eq!(of(64 << 20), None);
    }

    #[test]
    fn a_second_command_in_one_directory_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a/b");
        let first = ClusterDirectory::made(&path).expect("made");
        let reported = ClusterDirectory::made(&path).err().expect("in use").to_string();
        assert!(reported.starts_with("another `fullbore cluster` uses "), "{reported}");
        first.leave();
        drop(first);
        assert!(!path.exists());
        let reported = ClusterDirectory::existing(&path).err().expect("none").to_string();
        assert!(
            reported.starts_with(&format!(
                "there is no cluster in {}; create one with `fullbore cluster up`",
                path.display()
            ))
        );
        ClusterDirectory::made(&path).expect("made again");
        assert!(ClusterDirectory::existing(&path).is_err(), "no broker");
        let file = directory.path().join("file");
        fs::write(&file, "").expect("written");
        let reported = ClusterDirectory::made(&file).err().expect("a file").to_string();
        assert!(reported.starts_with(&format!("{} is not a directory; set --data-dir ", file.display())), "{reported}");
    }
}
