//! The folder of a cluster: what is where, and that one command at a time is at work there.

use super::broker::BrokerFile;
use super::postgres::OwnPostgres;
use crate::failure::Failure;
use clap::Args;
use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of a cluster unless told.
pub const FOLDER_DEFAULT: &str = "./fullbore-cluster";

/// Which cluster.
#[derive(Args, Debug)]
pub struct FolderArg {
    /// The cluster's folder.
    #[arg(long, value_name = "DIR", default_value = FOLDER_DEFAULT)]
    pub data_dir: PathBuf,
}

/// How long its processes may take.
#[derive(Args, Clone, Copy, Debug)]
pub struct ClusterPatience {
    /// Milliseconds to wait for the brokers.
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

impl ClusterPatience {
    /// As a duration.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.timeout)
    }
}

/// See the module. Others wait for this to be dropped.
pub struct ClusterFolder {
    /// Without links, so that every command names a broker's file alike.
    pub path: PathBuf,
    /// True if it was made for this command.
    is_new: bool,
    _lock: File,
}

impl ClusterFolder {
    /// That of a cluster to be, which is made if it is missing.
    ///
    /// # Errors
    /// It cannot be made, or another command is at work there.
    pub fn made(path: &Path) -> Result<Self, Failure> {
        let is_new = !path.exists();
        let of_it = |error: io::Error| Failure::new(format!("cannot make the folder {}: {error}", path.display()));
        fs::create_dir_all(path).map_err(of_it)?;
        if is_new {
            // PostgreSQL may run as another user, and has its own folder below.
            fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(of_it)?;
        }
        Self::locked(path, is_new)
    }

    /// That of a cluster that there is, and its brokers.
    ///
    /// # Errors
    /// There is none, or another command is at work there.
    pub fn existing(path: &Path) -> Result<(Self, Vec<BrokerFile>), Failure> {
        let none = || {
            let shown = path.display();
            Failure::new(format!(
                "there is no cluster in {shown}; `fullbore cluster up` makes one, --data-dir names another"
            ))
        };
        if !path.is_dir() {
            return Err(none());
        }
        let folder = Self::locked(path, false)?;
        let brokers = BrokerFile::all(&folder.path)?;
        // A kill may have left its PostgreSQL alone.
        let is_none = brokers.is_empty() && !OwnPostgres::of(&folder.path).is_there();
        if is_none { Err(none()) } else { Ok((folder, brokers)) }
    }

    fn locked(path: &Path, is_new: bool) -> Result<Self, Failure> {
        let shown = path.display();
        let of_it = |error: io::Error| Failure::new(format!("cannot use the folder {shown}: {error}"));
        let path = fs::canonicalize(path).map_err(of_it)?;
        let lock = File::open(&path).map_err(of_it)?;
        match lock.try_lock() {
            Ok(()) => Ok(ClusterFolder { path, is_new, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::new(format!("another `fullbore cluster` is at work in {shown}; wait for it")))
            }
            Err(TryLockError::Error(error)) => Err(of_it(error)),
        }
    }

    /// Takes the folder away again if it was made for this command and nothing is in it.
    pub fn leave(&self) {
        if self.is_new {
            // What is in it stays, and with it the folder.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b");
        let first = ClusterFolder::made(&path).expect("made");
        let told = ClusterFolder::made(&path).err().expect("in use").to_string();
        assert!(told.starts_with("another `fullbore cluster` is at work in "), "{told}");
        first.leave();
        drop(first);
        assert!(!path.exists());
        let told = ClusterFolder::existing(&path).err().expect("none").to_string();
        assert!(told.starts_with(&format!("there is no cluster in {}; `fullbore cluster up` makes", path.display())));
        ClusterFolder::made(&path).expect("made again");
        assert!(ClusterFolder::existing(&path).is_err(), "no broker");
    }
}
