//! Collects reads of files that failed because of the disk. A thread that reads, for example to send a response, does
//! not know the partition of the file. Housekeeping takes the failed reads from here and finds their partitions.
//!
//! Invariant: at most [`KEPT_MAX`] failures are kept, and further ones are dropped. If the cause of a dropped failure
//! persists, a later read fails as well and is recorded.

use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// Maximum number of failures that are kept until they are taken.
const KEPT_MAX: usize = 64;

/// A range of a file that could not be read.
#[derive(Debug)]
pub struct FailedRead {
    pub path: PathBuf,
    pub position: u64,
    pub len: usize,
    pub error: io::Error,
    /// True if the reader of the file logs the error itself.
    pub is_logged: bool,
}

/// The failed reads that housekeeping has not taken yet.
#[derive(Debug, Default)]
pub struct FailedReads(Mutex<Vec<FailedRead>>);

impl FailedReads {
    /// Notes a failed read if the disk or the file system is the cause, as with EIO. Errors of sockets, a lack of
    /// descriptors and the end of the file do not count.
    pub fn note(&self, file: &File, position: u64, len: usize, error: &io::Error, is_logged: bool) {
        let Some(code) = error.raw_os_error().filter(|code| is_of_disk(*code)) else { return };
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return };
        let mut kept = self.0.lock();
        if kept.len() < KEPT_MAX {
            kept.push(FailedRead { path, position, len, error: io::Error::from_raw_os_error(code), is_logged });
        }
    }

    /// Returns the failures since the last call.
    pub fn take(&self) -> Vec<FailedRead> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Returns true for errors that only a disk or a file system returns.
fn is_of_disk(code: i32) -> bool {
    [libc::EIO, libc::EUCLEAN, libc::EBADMSG, libc::ENODATA, libc::ESTALE, libc::EREMOTEIO].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_disk_are_kept_with_the_path_up_to_a_limit() {
        let (file, failed) = (tempfile::NamedTempFile::new().expect("a file"), FailedReads::default());
        let note = |code| failed.note(file.as_file(), 7, 9, &io::Error::from_raw_os_error(code), false);
        [libc::EPIPE, libc::ECONNRESET, libc::EMFILE, libc::ENOMEM].into_iter().for_each(note);
        failed.note(file.as_file(), 7, 9, &io::ErrorKind::UnexpectedEof.into(), false);
        assert!(failed.take().is_empty());
        (0..KEPT_MAX + 5).for_each(|_| note(libc::EIO));
        let taken = failed.take();
        assert_eq!((taken.len(), taken[0].position, taken[0].len), (KEPT_MAX, 7, 9));
        assert_eq!(taken[0].path, file.path().canonicalize().expect("there"));
        assert!(failed.take().is_empty());
    }
}
