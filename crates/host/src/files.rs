//! Helpers around the operating system that several crates share: replacing and removing files, kinds of errors, the
//! clock, and the priority of threads.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// The log target of lines that report a change, such as a new topic. If a client requested the change, the line names
/// that client.
pub const CHANGES: &str = "fullbore::changes";

/// Maximum size of a file of settings, of a password or of certificates, in bytes.
pub const SETTINGS_FILE_MAX: u64 = 4 << 20;
/// Maximum size of a file that contains a list, in bytes. One example is the list of all partitions with their offsets.
pub const LIST_FILE_MAX: u64 = 256 << 20;

/// The byte order mark of a UTF-8 file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The nice level of background threads.
const NICE: i32 = 10;

/// Lowers the priority of the calling thread. On a busy machine, threads that serve connections then run first. On
/// Linux, each thread has its own nice level.
pub fn give_way() {
    if let Err(error) = setpriority_process(Some(gettid()), NICE) {
        tracing::debug!(%error, "cannot lower the priority of a background thread");
    }
}

/// Returns the system's clock in ms since 1970.
pub fn now_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |time| time.as_millis() as i64)
}

/// Reads a file of at most `max` bytes. The file may be a pipe, or a device without an end.
///
/// # Errors
/// Returns the system's error, or one of kind [`io::ErrorKind::FileTooLarge`] for a larger file.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {max} bytes"))),
        false => Ok(bytes),
    }
}

/// Reads a text file of at most `max` bytes, like [`read`]. Leaves out the byte order mark that some editors write at
/// the start.
///
/// # Errors
/// Returns the errors of [`read`], or one of kind [`io::ErrorKind::InvalidData`] if the bytes are not UTF-8.
pub fn read_text(path: &Path, max: u64) -> io::Result<String> {
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text");
    let mut text = String::from_utf8(read(path, max)?).map_err(not_text)?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    Ok(text)
}

/// Replaces the whole file. The new content is on the disk before it gets the name `path`.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_beside(path, |file| file.write_all(bytes).and_then(|()| file.sync_data()))
}

/// Replaces the whole file without a flush, so that a power loss may lose the new content.
pub fn replace_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_beside(path, |file| file.write_all(bytes))
}

fn write_beside(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let beside = path.with_added_extension("tmp");
    let written = File::create(&beside).and_then(|mut file| write(&mut file)).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // Remove the incomplete file now to free its space. Otherwise it would stay until the next start of the
        // program.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Removes a file and frees its blocks at once, even if it is open. Otherwise a slow client that reads a response from
/// the file could keep the space occupied for a long time. The response to that client ends early, because the file is
/// then empty. If the file has another name (a hard link), it stays complete under that name.
///
/// # Errors
/// Returns the system's error if the file cannot be removed. The file then keeps its name.
pub fn remove_for_good(path: &Path) -> io::Result<()> {
    // Open the file while it still has its name. If opening fails for a lasting reason, remove the file without
    // emptying it.
    let file = match File::options().write(true).open(path) {
        Err(error) if is_momentary(&error) => return Err(error),
        opened => opened.ok(),
    };
    fs::remove_file(path)?;
    let emptied = file.map_or(Ok(()), |file| if is_removed(&file) { file.set_len(0) } else { Ok(()) });
    if let Err(error) = emptied {
        tracing::warn!(path = %path.display(), %error, "cannot empty a removed file: its space is free only after the last response that reads from the file");
    }
    Ok(())
}

/// Returns true if the open file no longer has a name.
pub fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

/// Returns true if the system refused a write because the disk is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns true if the system had no descriptor or memory left. Such a shortage may soon end.
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
    fn file_is_larger_than_its_limit_it_is_refused() {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(b"1234").expect("written");
        assert_eq!(read_text(file.path(), 4).expect("just small enough"), "1234");
        for (path, max) in [(file.path(), 3), (Path::new("/dev/zero"), 1 << 10)] {
            let refused = read_text(path, max).expect_err("too large");
            assert_eq!(
                (refused.kind(), refused.to_string()),
                (io::ErrorKind::FileTooLarge, format!("it is larger than {max} bytes"))
            );
        }
        file.write_all(b"\xff").expect("written");
        assert_eq!(read_text(file.path(), 9).expect_err("no text").kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn byte_order_mark_at_the_start_is_no_part_of_the_text() {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all("\u{feff}a=\u{feff}b\n".as_bytes()).expect("written");
        assert_eq!(read_text(file.path(), SETTINGS_FILE_MAX).expect("text"), "a=\u{feff}b\n");
    }

    #[test]
    fn an_open_file_that_is_removed_keeps_no_blocks_unless_it_is_linked() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
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
