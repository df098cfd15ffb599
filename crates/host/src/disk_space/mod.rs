//! Space on the disk of the data directory, and the disk reserve, which serves deletions on a full disk.
//! `hung` finds writes that do not return. `new_files` finds a directory that takes no new files, which other brokers
//! treat like a full disk.
//!
//! The reserve is a file that occupies space in advance. On a full disk, the broker releases parts of the reserve for
//! work that frees space. A deletion of topics or records is such work: it must be recorded first. Free space then goes
//! to the reserve before any other use: until the reserve is whole again, no other record or metadata is written. Not
//! here: the work that frees space, which belongs to retention and the control plane.
//!
//! Invariant: only [`DiskSpace::freeing`] uses space that the reserve has released. Every other writer needs a
//! [`WritePermit`], or only rewrites a few small files.

mod hung;
mod new_files;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fullbore_rules::cluster::room::DiskRoom;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::fs::{FallocateFlags, StatVfs, fallocate, statvfs};
use tokio::sync::watch;

use crate::files::{is_full, is_momentary};
use crate::log_rate_limit::LogRateLimit;
use hung::{HungChange, POLL_INTERVAL, WriteUnderWay, WritesUnderWay};
use new_files::NewFiles;
pub use new_files::make_file;

/// File of the reserve, in the data directory.
const FILE: &str = "disk-reserve";
/// File that is written and removed at once, to check whether the reported free space can be used.
const PROBE: &str = "disk-probe";
/// Divisor of the file system's size: the reserve is at most this part of the file system.
const SHARE: u64 = 16;
/// Size of a file system's block.
const BLOCK: u64 = 4096;
/// Fewest free bytes with which a full disk no longer counts as full.
const FREE_MIN: u64 = 256 << 10;
/// Fewest free bytes, beside the reserve, with which a broker rejoins ISRs.
const AMPLE_MIN: u64 = 1 << 20;
/// Divisors of the rest of the reserve: the first release frees a sixteenth of the rest, the second a quarter, the
/// third all of it. The first parts are small, so that a killed process leaves most of the reserve to its next start,
/// even if another program takes the released space.
const RELEASES: [u64; 3] = [16, 4, 1];
/// Shortest time without a failed write after which the log reports that the disk has space again.
const ROOM_TOLD_AFTER: Duration = Duration::from_secs(5);
/// Time between two attempts to allocate space that the system reports as free, but refuses.
const TAKE_EVERY: Duration = Duration::from_millis(100);

/// Space on the disk of one data directory.
#[derive(Debug)]
pub struct DiskSpace {
    folder: PathBuf,
    /// Size of the whole reserve, in bytes.
    wanted: u64,
    /// True if the reserve is whole. A [`WritePermit`] holds the read lock.
    whole: RwLock<bool>,
    /// Number of calls that free space with a released part of the reserve at the moment. The reserve is not made whole
    /// during these.
    releases: AtomicUsize,
    /// True from a write that found no space until a later check or append finds at least [`FREE_MIN`] bytes free.
    full: AtomicBool,
    /// True if the last check found enough free space, beside the reserve, to rejoin ISRs.
    ample: AtomicBool,
    /// Check whether the directory takes new files.
    files: NewFiles,
    /// Appends that have begun and not returned.
    writes: WritesUnderWay,
    /// True from the poll that finds a hung write until all hung writes have returned.
    hangs: watch::Sender<bool>,
    times: Mutex<Times>,
    /// Rate limit of the log line about a full disk.
    line: LogRateLimit,
}

/// Times of the last events on the disk.
#[derive(Debug, Default)]
struct Times {
    /// True if the last log line reported a full disk.
    says_full: bool,
    /// Time since which the disk has space; `None` while it is full.
    room: Option<Instant>,
    /// Time at which the system last refused space that it reports as free.
    refused: Option<Instant>,
}

fn is_within(at: Option<Instant>, time: Duration) -> bool {
    at.is_some_and(|at| at.elapsed() < time)
}

/// Permit for a write that frees no space. The reserve is not released while a permit exists.
pub struct WritePermit<'a> {
    _whole: RwLockReadGuard<'a, bool>,
    _append: Option<WriteUnderWay<'a>>,
}

/// Returns the size of the reserve for the setting `configured` on a file system of `total` bytes.
fn reserve_of(configured: u64, total: u64) -> u64 {
    configured.div_ceil(BLOCK).min(total / SHARE / BLOCK).saturating_mul(BLOCK)
}

impl DiskSpace {
    /// Allocates the reserve in an existing directory, as far as space allows.
    pub fn open(folder: &Path, reserve_bytes: u64) -> DiskSpace {
        let total = disk_of(folder).map_or(u64::MAX, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
        let wanted = reserve_of(reserve_bytes, total);
        if wanted != reserve_bytes {
            tracing::warn!(
                "fullbore.disk.reserve.bytes={reserve_bytes}: the broker keeps {wanted}: whole blocks of {BLOCK} bytes, at most a sixteenth of \
                 the file system of {}",
                folder.display()
            );
        }
        let space = DiskSpace {
            folder: folder.to_owned(),
            wanted,
            whole: RwLock::new(false),
            releases: AtomicUsize::new(0),
            full: AtomicBool::new(false),
            ample: AtomicBool::new(true),
            files: NewFiles::default(),
            writes: WritesUnderWay::default(),
            hangs: watch::Sender::new(false),
            times: Mutex::default(),
            line: LogRateLimit::default(),
        };
        if wanted == 0 {
            // Removes the reserve of an earlier process.
            let _ = fs::remove_file(space.path());
        }
        let taken = space.take(&mut space.whole.write());
        if !taken || space.is_tight() {
            space.note_full();
        }
        space
    }

    /// Returns the space of a disk without room for the reserve, which therefore stays incomplete.
    #[cfg(any(test, feature = "test-util"))]
    pub fn without_room(folder: &Path) -> DiskSpace {
        let space = DiskSpace { wanted: BLOCK, ..DiskSpace::open(folder, 0) };
        *space.whole.write() = false;
        space.times.lock().refused = Some(Instant::now() + Duration::from_secs(3600));
        space
    }

    /// Records the error of a write. Returns true if the error means that the disk is full.
    pub fn note(&self, error: &io::Error) -> bool {
        let is_full = is_full(error);
        if is_full {
            self.note_full();
        }
        is_full
    }

    /// Records that a write found no space, and logs this at a limited rate.
    pub fn note_full(&self) {
        self.full.store(true, Ordering::Relaxed);
        self.ample.store(false, Ordering::Relaxed);
        let mut times = self.times.lock();
        times.room = None;
        let is_due = self.line.due().is_some();
        // A line is also due after one that reported space: the last line always shows the current state.
        if is_due || !times.says_full {
            times.says_full = true;
            tracing::error!(
                folder = %self.folder.display(),
                free_bytes = self.free(),
                "the disk is full: records are refused until there is room; delete topics or records, set a smaller \
                 retention.ms or retention.bytes, or make room on this file system; no restart is needed"
            );
        }
    }

    /// Records that an append failed for another reason than lack of space. The next [`DiskSpace::check`] then finds
    /// out whether the directory takes new files.
    pub fn note_failed(&self) {
        self.files.doubt();
    }

    /// Returns true if the directory takes no new files. Appends then fail once they need a new segment.
    pub fn is_unwritable(&self) -> bool {
        self.files.are_refused()
    }

    /// Records a successful write of records. The disk no longer counts as full if the free bytes suffice, too: the
    /// write itself may have used only the rest of a block.
    pub fn note_written(&self) {
        if self.is_full() && !self.is_tight() {
            self.note_room();
        }
    }

    fn note_room(&self) {
        self.full.store(false, Ordering::Relaxed);
        self.times.lock().room.get_or_insert_with(Instant::now);
    }

    /// Logs that the disk has space once it has had some for [`ROOM_TOLD_AFTER`]. Without that wait, a write could take
    /// the last space, and the next line would report a full disk again.
    fn tell_room(&self) {
        let mut times = self.times.lock();
        if times.says_full && times.room.is_some_and(|since| since.elapsed() >= ROOM_TOLD_AFTER) {
            times.says_full = false;
            // A warning, so that a log that shows the error about the full disk also shows its end.
            tracing::warn!(folder = %self.folder.display(), free_bytes = self.free(), "the disk has room again");
        }
    }

    /// Returns true if the last write found no space, and little has been freed since.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Returns the present size of the reserve in bytes.
    pub fn reserved(&self) -> u64 {
        fs::metadata(self.path()).map_or(0, |file| file.blocks() * 512)
    }

    /// Returns true if at least half of the reserve is allocated.
    pub fn has_half(&self) -> bool {
        self.wanted > 0 && self.reserved() >= self.wanted / 2
    }

    /// Returns a permit to write. None if the reserve is not whole, and the disk has no space to make it whole.
    pub fn admit(&self) -> Option<WritePermit<'_>> {
        loop {
            let whole = self.whole.read();
            if *whole {
                return Some(WritePermit { _whole: whole, _append: None });
            }
            drop(whole);
            if !self.make_whole() {
                self.note_full();
                return None;
            }
        }
    }

    /// Returns a permit to append to a log, or None as [`DiskSpace::admit`] does. An append is short, so that a permit
    /// that exists for seconds means a hung disk.
    pub fn admit_append(&self) -> Option<WritePermit<'_>> {
        self.admit().map(|permit| WritePermit { _append: Some(self.writes.begin()), ..permit })
    }

    /// Runs `work`, which frees space or writes a record of that. If the work fails because of a full disk, releases a
    /// part of the reserve and runs the work again, up to three times. The caller must not hold a [`WritePermit`].
    pub fn freeing<T, E>(&self, is_full: impl Fn(&E) -> bool, mut work: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        let mut result = work();
        for share in RELEASES {
            match &result {
                Err(error) if is_full(error) => self.note_full(),
                _ => break,
            }
            let releasing = Releasing::begin(self);
            self.release(share);
            result = work();
            drop(releasing);
            self.make_whole();
        }
        result
    }

    /// Makes the reserve whole during the work of [`DiskSpace::freeing`], if there is space for all of it. Other
    /// writers can then get permits before the work ends.
    pub fn regain(&self) {
        let missing = self.wanted.saturating_sub(self.reserved());
        if self.free() >= missing.saturating_add(FREE_MIN) {
            self.take(&mut self.whole.write());
        }
    }

    /// Makes the reserve whole, if possible, and checks whether the disk is still full. The housekeeping calls this
    /// regularly.
    pub fn check(&self) {
        if self.files.probe(&self.folder).is_err() {
            self.note_full();
        }
        let taken = self.make_whole();
        if self.is_tight() {
            // Other programs may have filled the disk.
            self.note_full();
        } else if self.is_full() && taken && self.can_write() {
            self.note_room();
        }
        self.ample.store(taken && self.free() >= self.wanted.max(AMPLE_MIN), Ordering::Relaxed);
        self.tell_room();
    }

    /// Returns the state of the disk, by the last check and the writes since.
    pub fn room(&self) -> DiskRoom {
        match (self.is_full(), self.ample.load(Ordering::Relaxed)) {
            _ if self.hangs() => DiskRoom::Hung,
            _ if self.is_unwritable() => DiskRoom::Unwritable,
            (true, _) => DiskRoom::Full,
            (false, false) => DiskRoom::Tight,
            (false, true) => DiskRoom::Ample,
        }
    }

    /// Returns true if a write hangs. Another write, or a wait for a lock that the hung writer holds, would also hang.
    pub fn hangs(&self) -> bool {
        self.writes.hangs()
    }

    /// Returns the least time for which a write has hung; None if no write hangs.
    pub fn hung_for(&self) -> Option<Duration> {
        self.writes.hung_for()
    }

    /// Waits until a write hangs.
    pub async fn until_it_hangs(&self) {
        // Cannot fail: the sender is a field.
        let _ = self.hangs.subscribe().wait_for(|hangs| *hangs).await;
    }

    /// Polls forever for hung writes, and logs each change.
    pub async fn watch_writes(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let folder = self.folder.display();
            let changed = self.writes.poll(Instant::now());
            if let Some(change) = changed {
                self.hangs.send_replace(change == HungChange::Hangs);
            }
            match changed {
                Some(HungChange::Hangs) => tracing::error!(
                    %folder,
                    "the disk hangs: a write has not returned, and records are refused until it does; check the volume of the data directory"
                ),
                Some(HungChange::Answers) => {
                    tracing::warn!(%folder, "the disk answers again: each hung write has returned")
                }
                None => {}
            }
        }
    }

    /// Returns true if a probe file of [`FREE_MIN`] bytes can be written: a quota may leave less space than the system
    /// reports.
    fn can_write(&self) -> bool {
        let probe = self.folder.join(PROBE);
        let written = File::create(&probe).and_then(|file| take_up(file, FREE_MIN));
        let _ = fs::remove_file(&probe);
        written.is_ok()
    }

    /// Returns true if fewer than [`FREE_MIN`] bytes are free.
    pub fn is_tight(&self) -> bool {
        self.free() < FREE_MIN
    }

    /// Releases the `share`-th part of the rest of the reserve.
    fn release(&self, share: u64) {
        let mut whole = self.whole.write();
        *whole = false;
        let (path, left) = (self.path(), self.reserved() / share * (share - 1));
        let released = match left {
            0 => fs::remove_file(&path),
            left => File::options().write(true).open(&path).and_then(|file| file.set_len(left)),
        };
        if let Err(error) = released
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!(path = %path.display(), %error, "cannot release the reserve for a full disk: topics and records may not be deletable until there is room");
        }
    }

    /// Makes the reserve whole, if possible. Returns true if it is whole. Waits for permits of writers only if the
    /// reserve is not whole.
    fn make_whole(&self) -> bool {
        if *self.whole.read() {
            return true;
        }
        let mut whole = self.whole.write();
        self.releases.load(Ordering::SeqCst) == 0 && self.take(&mut whole)
    }

    /// Allocates the reserve as far as space allows. Returns true if it is whole.
    fn take(&self, whole: &mut bool) -> bool {
        if !*whole {
            *whole = self.wanted == 0 || self.allocate();
        }
        *whole
    }

    fn allocate(&self) -> bool {
        let (path, before) = (self.path(), self.reserved());
        let bytes = self.wanted.min(before.saturating_add(self.free()) / BLOCK * BLOCK);
        if bytes < self.wanted && bytes <= before || is_within(self.times.lock().refused, TAKE_EVERY) {
            return false;
        }
        let opened = File::options().write(true).create(true).truncate(false).open(&path);
        match opened.and_then(|file| take_up(file, bytes)) {
            Ok(()) => bytes == self.wanted,
            Err(error) if is_full(&error) || is_momentary(&error) => {
                self.times.lock().refused = Some(Instant::now());
                false
            }
            // Counts as whole: the reserve only serves a full disk, and writers need not wait for a file that fails for
            // another reason.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot allocate the reserve for a full disk: on a full disk, deletions may find no room either");
                let _ = fs::remove_file(&path);
                true
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Returns the bytes that this process may still write; the maximum if the system does not report them.
    fn free(&self) -> u64 {
        let is_root = rustix::process::geteuid().is_root();
        let blocks = |disk: &StatVfs| if is_root { disk.f_bfree } else { disk.f_bavail };
        disk_of(&self.folder).map_or(u64::MAX, |disk| blocks(&disk).saturating_mul(disk.f_frsize))
    }
}

/// Guard that counts a call in [`DiskSpace::releases`] until it is dropped.
struct Releasing<'a>(&'a DiskSpace);

impl<'a> Releasing<'a> {
    fn begin(space: &'a DiskSpace) -> Releasing<'a> {
        space.releases.fetch_add(1, Ordering::SeqCst);
        Releasing(space)
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        self.0.releases.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the figures of a directory's file system; None if the file system reports no size.
fn disk_of(folder: &Path) -> Option<StatVfs> {
    statvfs(folder).ok().filter(|disk| disk.f_blocks > 0)
}

/// Allocates `bytes` for a file, or writes as many bytes if the file system cannot allocate.
fn take_up(file: File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)?;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => {
            io::copy(&mut io::Read::take(io::repeat(0xf5), bytes), &mut { file }).map(drop)
        }
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> io::Error {
        io::ErrorKind::StorageFull.into()
    }

    #[test]
    fn a_full_disk_releases_the_reserve_to_work_that_frees_space_and_takes_it_back() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let reserve = folder.path().join(FILE);
        let space = DiskSpace::open(folder.path(), 1 << 20);
        assert_eq!(fs::metadata(&reserve).expect("there").len(), 1 << 20);
        assert!(space.admit().is_some() && !space.is_full());
        for (enough, tries_needed) in [((1 << 20) - 65536, 2), (1 << 19, 4), (0, 4)] {
            let mut tries = 0;
            let freed = space.freeing(is_full, || {
                tries += 1;
                if space.reserved() > enough { Err(full()) } else { Ok(()) }
            });
            assert!(freed.is_ok() && tries == tries_needed && space.is_full(), "{tries} for {enough}");
            assert_eq!(space.reserved(), 1 << 20, "there is room, so it is taken back at once");
        }
        space.check();
        assert!(!space.is_full(), "what cannot be had is not called room, and what can be is at once");
        space.note_full();
        space.note_written();
        assert!(!space.is_full());
    }

    #[test]
    fn a_released_part_is_not_taken_back_before_the_work_regains_it() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let space = DiskSpace::open(folder.path(), 1 << 20);
        let freed = space.freeing(is_full, || {
            let reserved = space.reserved();
            if reserved == 1 << 20 {
                return Err(full());
            }
            assert!(space.admit().is_none());
            space.check();
            assert_eq!(space.reserved(), reserved, "nobody took it back");
            // This directory has space.
            space.regain();
            assert!(space.admit().is_some() && space.reserved() == 1 << 20);
            Ok(())
        });
        assert!(freed.is_ok());
        assert!(space.admit().is_some() && space.reserved() == 1 << 20);
    }

    #[test]
    fn a_reserve_is_whole_blocks_and_at_most_a_sixteenth() {
        for (configured, total, kept) in [
            (0, 1 << 30, 0),
            (1, 1 << 30, BLOCK),
            (5000, 1 << 30, 2 * BLOCK),
            (8 << 20, 1 << 30, 8 << 20),
            (8 << 20, 48 << 20, 3 << 20),
            (u64::MAX, 1 << 30, 64 << 20),
            (u64::MAX, u64::MAX, u64::MAX / SHARE / BLOCK * BLOCK),
            (8 << 20, 1000, 0),
        ] {
            assert_eq!(reserve_of(configured, total), kept, "{configured} of {total}");
        }
    }

    #[test]
    fn the_last_log_line_gives_the_state_of_the_disk() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let space = DiskSpace::open(folder.path(), 0);
        let says_full = || space.times.lock().says_full;
        space.note_full();
        assert!(says_full());
        space.note_written();
        space.check();
        assert!(!space.is_full() && says_full(), "it may be the last of it");
        space.note_full();
        assert!(space.times.lock().room.is_none() && says_full());
        space.note_written();
        space.times.lock().room = Instant::now().checked_sub(ROOM_TOLD_AFTER);
        space.check();
        assert!(!says_full());
        space.note_full();
        assert!(says_full(), "however soon it is full again");
    }

    #[test]
    fn a_write_without_room_makes_room_ample_only_after_the_next_poll() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let space = DiskSpace::open(folder.path(), 4096);
        assert_eq!(space.room(), DiskRoom::Ample);
        space.note_full();
        assert_eq!(space.room(), DiskRoom::Full);
        space.note_written();
        assert_eq!(space.room(), DiskRoom::Tight, "it may be the last of it");
        space.check();
        assert_eq!(space.room(), DiskRoom::Ample);
        let narrow = DiskSpace::without_room(folder.path());
        narrow.check();
        assert_ne!(narrow.room(), DiskRoom::Ample, "the reserve is not whole");
    }

    #[test]
    fn a_failed_append_makes_the_directory_unwritable_until_a_file_can_be_made() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("made");
        let space = DiskSpace::open(&data, 0);
        space.note_failed();
        space.check();
        assert_eq!(space.room(), DiskRoom::Ample, "another reason");
        // A removed directory takes no files, even from the superuser.
        fs::remove_dir_all(&data).expect("removed");
        space.check();
        assert_eq!(space.room(), DiskRoom::Ample, "nothing has failed");
        space.note_failed();
        space.check();
        assert_eq!((space.room(), space.is_full()), (DiskRoom::Unwritable, false));
        fs::create_dir(&data).expect("made");
        space.check();
        assert_eq!(space.room(), DiskRoom::Ample);
        assert_eq!(fs::read_dir(&data).expect("read").count(), 0, "no probe is left");
    }

    #[test]
    fn other_errors_leave_the_reserve_alone() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let space = DiskSpace::open(folder.path(), 4096);
        let refused = space.freeing(is_full, || {
            assert!(folder.path().join(FILE).exists());
            Err::<(), _>(io::Error::from(io::ErrorKind::NotFound))
        });
        assert!(refused.is_err() && !space.is_full());
    }

    #[test]
    fn a_reserve_of_zero_bytes_admits_every_writer() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let space = DiskSpace::open(folder.path(), 0);
        assert!(space.admit().is_some() && space.freeing(is_full, || Ok::<_, io::Error>(1)).is_ok());
        assert!(!folder.path().join(FILE).exists());
    }
}
