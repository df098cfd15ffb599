//! Calls of the operating system that several parts share: transient errors, the clock, the priority of threads.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// The log's target of lines that tell what was changed, and by whom.
pub const CHANGES: &str = "fullbore::changes";

/// The nice level of threads that nobody waits for, or that take long.
const NICE: i32 = 10;

/// Lets the threads that serve connections go first where there are too few processors for all: on Linux a thread has a
/// nice level of its own.
pub fn give_way() {
    if let Err(error) = setpriority_process(Some(gettid()), NICE) {
        tracing::debug!(%error, "a thread in the background runs at the priority of all others");
    }
}

/// The system's clock, in ms; for what no request brings its time to.
pub fn now_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |time| time.as_millis() as i64)
}

/// Replaces a file as a whole, and has it on the disk before it has the name.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_beside(path, |file| file.write_all(bytes).and_then(|()| file.sync_data()))
}

/// Replaces a file as a whole. It reaches the disk with the next flush.
pub fn replace_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_beside(path, |file| file.write_all(bytes))
}

fn write_beside(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let beside = path.with_added_extension("tmp");
    let written = File::create(&beside).and_then(|mut file| write(&mut file)).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // Gives back the room it took; a start removes it as well.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Removes a file and frees its blocks at once, also while it is open: a client may take an answer from it for as long
/// as it likes. Readers then find the end of the file. A file with another name (a hard link) stays whole under that
/// name.
///
/// # Errors
/// What the system says; the file has its name then.
pub fn remove_for_good(path: &Path) -> io::Result<()> {
    // Opened by its name, which is gone next. A file that cannot be opened for another reason is only unlinked.
    let file = match File::options().write(true).open(path) {
        Err(error) if is_momentary(&error) => return Err(error),
        opened => opened.ok(),
    };
    fs::remove_file(path)?;
    let emptied = file.map_or(Ok(()), |file| if is_removed(&file) { file.set_len(0) } else { Ok(()) });
    if let Err(error) = emptied {
        tracing::warn!(path = %path.display(), %error, "cannot empty a removed file: its room is free once nobody reads it");
    }
    Ok(())
}

/// Returns true if the open file has no name any more.
pub fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

/// Returns true if the system refused a write because there is no room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns true if the system refused for want of descriptors or memory, which may be over in a moment.
pub fn is_momentary(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOMEM].contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_removed_file_that_is_open_keeps_no_blocks_unless_it_has_another_name() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        for has_link in [false, true] {
            fs::write(&path, vec![1; 1 << 20]).expect("written");
            if has_link {
                fs::hard_link(&path, &link).expect("linked");
            }
            let reader = File::open(&path).expect("opened");
            remove_for_good(&path).expect("removed");
            assert!(!path.exists());
            let (len, blocks) = reader.metadata().map(|left| (left.len(), left.blocks())).expect("open");
            if has_link {
                assert_eq!(len, 1 << 20);
                assert!(fs::read(&link).expect("whole").iter().all(|byte| *byte == 1));
            } else {
                assert_eq!((len, blocks), (0, 0));
                assert_eq!(reader.read_at(&mut [0], 7).expect("no error"), 0);
            }
        }
        assert_eq!(remove_for_good(&path).expect_err("gone").kind(), io::ErrorKind::NotFound);
    }
}
