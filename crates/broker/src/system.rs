//! What several parts ask of the operating system: which of its errors pass, the clock, the priority of threads.

use std::fs::{self, File};
use std::io::{self, Write};
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

/// Whether the system refused a write because there is no room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether the system refused for want of descriptors or memory, which may be over in a moment.
pub fn is_momentary(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOMEM].contains(&errno))
}
