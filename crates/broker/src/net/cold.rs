//! Ranges of a log that are not in memory: brought there by threads made for waiting, so that no thread that serves
//! connections waits for a disk.
//!
//! Not a cache, and no promise: the kernel may take a page back before it is sent, and then sendfile waits after all.
//! Invariant: at most [`BRINGING_MAX`] threads of the process wait for a disk here; whoever comes then waits without one.

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Ranges brought at one time. A disk serves no more at once; what waits longer than this is behind others that wait for it.
const BRINGING_MAX: usize = 16;

/// A range this short comes from a disk as one.
const TOGETHER: usize = 64 * 1024;

static BRINGING: Semaphore = Semaphore::const_new(BRINGING_MAX);

/// Returns when `len` bytes of the file, at least one, are probably in memory. Costs one short system call if they are, two
/// for a long range.
///
/// # Errors
/// Of the file.
pub async fn bring(file: &Arc<File>, position: u64, len: usize) -> io::Result<()> {
    let last = position + len as u64 - 1;
    if is_resident(file, last) && (len <= TOGETHER || is_resident(file, position)) {
        return Ok(());
    }
    let permit = BRINGING.acquire().await.expect("the semaphore is never closed");
    let file = Arc::clone(file);
    let brought = tokio::task::spawn_blocking(move || {
        let brought = read_away(&file, position, len);
        // Held to here: the thread waits on when the connection is gone.
        drop(permit);
        brought
    });
    brought.await.map_err(io::Error::other)?
}

/// Reads the range and copies nothing: in order, so that the system reads ahead as it would for the sendfile that follows.
fn read_away(file: &File, mut position: u64, len: usize) -> io::Result<()> {
    // Without it sendfile to the client waits, as it would.
    let Ok(null) = File::options().write(true).open("/dev/null") else { return Ok(()) };
    let end = position + len as u64;
    while position < end {
        let left = usize::try_from(end - position).unwrap_or(len);
        // At the file's end, whoever sends says what is wrong.
        if rustix::fs::sendfile(&null, file, Some(&mut position), left)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Whether the byte can be read without a disk. Yes, where the system does not tell: then sendfile waits, as it would.
fn is_resident(file: &File, position: u64) -> bool {
    let mut byte = [0];
    let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], position, ReadWriteFlags::NOWAIT);
    read != Err(Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Advice, fadvise};
    use std::io::Write;

    #[tokio::test]
    async fn what_was_not_in_memory_is_there_afterwards_and_a_range_past_the_end_is_no_error() {
        const LEN: usize = 3 << 20;
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("temporary folder");
        let path = folder.path().join("log");
        std::fs::write(&path, vec![1; LEN]).expect("written");
        let file = Arc::new(File::open(&path).expect("opened"));
        file.sync_all().expect("on disk");
        fadvise(&*file, 0, None, Advice::DontNeed).expect("advice is taken");
        let last = LEN as u64 - 1;
        let was_dropped = !is_resident(&file, last);
        bring(&file, 1 << 20, LEN - (1 << 20)).await.expect("read");
        assert!((1 << 20..LEN as u64).step_by(4096).chain([last]).all(|at| is_resident(&file, at)));
        if !was_dropped {
            // A file system in memory, or one that does not tell: nothing was shown above.
            let _ = writeln!(io::stderr(), "skipped: files here are always in memory");
        }
        bring(&file, last, 1 << 20).await.expect("read as far as it goes");
        bring(&file, last + 1, 1).await.expect("nothing to read");
    }
}
