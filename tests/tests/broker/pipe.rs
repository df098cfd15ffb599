//! A named pipe in place of a file. It imitates a disk with slow reads: a reader waits until the test opens the pipe
//! for writing.

use fullbore_tests::wait_until;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// A file whose readers wait for the test.
pub struct Pipe {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Pipe {
    pub fn in_place_of(path: &Path) -> Pipe {
        let bytes = fs::read(path).expect("there is such a file");
        fs::remove_file(path).expect("removed");
        mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a named pipe");
        Pipe { path: path.to_owned(), bytes }
    }

    /// Waits until the broker opens the file. The broker continues once the test drops the returned writing end, after
    /// writing to it or not.
    pub fn wait_for_reader(&self) -> File {
        let mut pipe = None;
        wait_until("the broker reads the file", SOON, || {
            let opened =
                rustix::fs::open(&self.path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
            pipe = opened.ok().map(File::from);
            pipe.is_some()
        });
        pipe.expect("waited for it")
    }

    /// Restores the file and passes its content to the waiting reader.
    pub fn give(self, mut pipe: File) {
        self.put_back();
        pipe.write_all(&self.bytes).expect("fits into a pipe");
    }

    /// Restores the file for readers that open it later.
    pub fn put_back(&self) {
        let beside = self.path.with_extension("again");
        fs::write(&beside, &self.bytes).expect("written");
        fs::rename(&beside, &self.path).expect("in its place");
    }
}
