//! The lock that reserves a data directory for one broker process.
//!
//! Invariant: while a [`DirectoryLock`] exists, no other process on this machine has one for the same directory. The
//! lock ends with its process, even if the process is killed.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::error::OpenError;
use fullbore_host::files::is_full;

const FILE: &str = ".lock";
/// The file that Kafka's storage tool writes to each of its data directories. Fullbore never writes it.
const KAFKAS: &str = "meta.properties";

/// Proof that no other process uses the data directory. The broker drops it last.
#[derive(Debug)]
pub struct DirectoryLock {
    directory: PathBuf,
    file: File,
}

impl Drop for DirectoryLock {
    /// Unlocks the file explicitly. Closing it may not be enough, because a forked child has the file open until it
    /// executes another program.
    fn drop(&mut self) {
        // If this fails, closing the file unlocks the directory.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl DirectoryLock {
    /// Locks the directory, and creates it if it is missing. Refuses a directory of Apache Kafka and leaves it
    /// unchanged, because only Kafka's own metadata log lists its topics.
    pub fn take(directory: &Path) -> Result<Self, OpenError> {
        let broken = |source| OpenError::Directory { directory: directory.to_owned(), source };
        std::fs::create_dir_all(directory).map_err(|source| match source.kind() {
            ErrorKind::AlreadyExists => OpenError::NotADirectory { directory: directory.to_owned() },
            _ => broken(source),
        })?;
        let kafkas = directory.join(KAFKAS);
        if kafkas.exists() {
            return Err(OpenError::KafkaDirectory { file: kafkas });
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(FILE))
            .map_err(broken)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => (),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(OpenError::InUse { directory: directory.to_owned(), pid: pid_in(&mut file) });
            }
            Err(errno) => return Err(broken(errno.into())),
        }
        match write_pid(&mut file) {
            // Ignore that the pid cannot be written to a full disk. The lock works without it, since only the error
            // message of a second broker contains the pid.
            Err(error) if !is_full(&error) => return Err(broken(error)),
            _ => {}
        }
        Ok(Self { directory: directory.to_owned(), file })
    }

    /// Returns the locked directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// Returns the pid of the process that holds the lock, or "unknown" if that process has not written it yet.
fn pid_in(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(32).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_broker_of_a_directory_gets_the_pid_of_the_first() {
        let directory = tempfile::tempdir().expect("tempdir");
        let data = directory.path().join("a/b");
        let first = DirectoryLock::take(&data).expect("free");
        let error = DirectoryLock::take(&data).expect_err("taken").to_string();
        let expected =
            format!("data directory {} is used by another broker (pid {})", data.display(), std::process::id());
        assert_eq!(error, expected);
        drop(first);
        DirectoryLock::take(&data).expect("free again");
    }

    #[test]
    fn directory_is_unlocked_while_a_child_has_the_file_open() {
        let directory = tempfile::tempdir().expect("tempdir");
        let first = DirectoryLock::take(directory.path()).expect("free");
        let _of_child = first.file.try_clone().expect("a second descriptor");
        drop(first);
        DirectoryLock::take(directory.path()).expect("free again");
    }

    #[test]
    fn directory_of_apache_kafka_is_refused_and_unchanged() {
        let directory = tempfile::tempdir().expect("tempdir");
        let file = directory.path().join(KAFKAS);
        std::fs::write(&file, "version=1\ncluster.id=abc\n").expect("written");
        let error = DirectoryLock::take(directory.path()).expect_err("Kafka's").to_string();
        assert!(error.starts_with(&file.display().to_string()) && error.contains("set log.dirs"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 1);
    }

    #[test]
    fn directory_that_is_a_file_is_refused_by_name() {
        let file = tempfile::NamedTempFile::new().expect("tempfile");
        let error = DirectoryLock::take(file.path()).expect_err("not a directory").to_string();
        let named = format!("data directory {} is not a directory; set log.dirs ", file.path().display());
        assert!(error.starts_with(&named), "{error}");
    }
}
