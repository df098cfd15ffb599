//! Room on the disk of the data directory: whether it is full, and the reserve that lets room be made.
//! `hung` finds writes that do not return, `new_files` directories that take no new files, which other brokers treat as
//! a full disk.
//!
//! The reserve is a file that takes up room while the disk has some. On a full disk, parts of it are released for work
//! that frees space, a deletion of topics or records, so that this can be recorded. Until the reserve is whole again,
//! which has precedence over every other use of room, no other record or metadata is written. Not here: the work that
//! frees space, which belongs to retention and the control plane.
//!
//! Invariant: room that the reserve has released is used only by
//! [`DiskSpace::freeing`]. Every other writer holds a [`WritePermit`] meanwhile, or rewrites a few small files.

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
/// File that is written for a moment, to check whether the free room can be used.
const PROBE: &str = "disk-probe";
/// Divisor of the file system's size that limits the reserve. A smaller file system than this many reserves keeps less.
const SHARE: u64 = 16;
/// Size of a file system's block.
const BLOCK: u64 = 4096;
/// Free bytes below which the disk stays full.
const FREE_MIN: u64 = 256 << 10;
/// Free bytes beside the reserve that a broker needs to rejoin ISRs.
const AMPLE_MIN: u64 = 1 << 20;
/// Divisors for the parts of the reserve that are released one after the other. A process that is killed then leaves
/// most of the reserve for its next start, even if another program takes the free room.
const RELEASES: [u64; 3] = [16, 4, 1];
/// Time without a failed write after which the log reports that there is room.
const ROOM_TOLD_AFTER: Duration = Duration::from_secs(5);
/// Time between two attempts to take up room that is reported as free but refused.
const TAKE_EVERY: Duration = Duration::from_millis(100);

/// Room on the disk of one data directory.
#[derive(Debug)]
pub struct DiskSpace {
    folder: PathBuf,
    /// Bytes of the whole reserve.
    wanted: u64,
    /// True if the reserve is whole. A writer holds the read lock while it writes.
    whole: RwLock<bool>,
    /// Number of works under way that free space with a part of the reserve: it is not taken back meanwhile.
    releases: AtomicUsize,
    /// True if a write found no room, and little has been freed since.
    full: AtomicBool,
    /// True if the last poll found more room than the reserve takes.
    ample: AtomicBool,
    /// State of new files in the directory.
    files: NewFiles,
    /// Appends under way.
    writes: WritesUnderWay,
    /// True from the poll that finds a hung write until all have returned.
    hangs: watch::Sender<bool>,
    times: Mutex<Times>,
    /// Rate limit of the log line about a full disk.
    line: LogRateLimit,
}

/// Times of the last events.
#[derive(Debug, Default)]
struct Times {
    /// True if the last log line reported a full disk.
    says_full: bool,
    /// Time since which there is room.
    room: Option<Instant>,
    /// Time at which the system refused room that it reports as free.
    refused: Option<Instant>,
}

fn is_within(at: Option<Instant>, time: Duration) -> bool {
    at.is_some_and(|at| at.elapsed() < time)
}

/// Right to write data that frees no space. The reserve is not released while a permit exists.
pub struct WritePermit<'a> {
    _whole: RwLockReadGuard<'a, bool>,
    _append: Option<WriteUnderWay<'a>>,
}

/// Returns the bytes to keep if `configured` bytes are set and the file system has `total` bytes.
fn reserve_of(configured: u64, total: u64) -> u64 {
    configured.div_ceil(BLOCK).min(total / SHARE / BLOCK).saturating_mul(BLOCK)
}

impl DiskSpace {
    /// Allocates the reserve in an existing directory, as far as there is room.
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
            // Removes the reserve of an earlier run.
            let _ = fs::remove_file(space.path());
        }
        let taken = space.take(&mut space.whole.write());
        if !taken || space.is_tight() {
            space.note_full();
        }
        space
    }

    /// Returns a full disk whose reserve cannot be made whole.
    #[cfg(any(test, feature = "test-util"))]
    pub fn without_room(folder: &Path) -> DiskSpace {
        let space = DiskSpace { wanted: BLOCK, ..DiskSpace::open(folder, 0) };
        *space.whole.write() = false;
        space.times.lock().refused = Some(Instant::now() + Duration::from_secs(3600));
        space
    }

    /// Notes an error of a write. Returns true if it means that the disk is full.
    pub fn note(&self, error: &io::Error) -> bool {
        let is_full = is_full(error);
        if is_full {
            self.note_full();
        }
        is_full
    }

    /// Notes that a write found no room, and logs it at a limited rate.
    pub fn note_full(&self) {
        self.full.store(true, Ordering::Relaxed);
        self.ample.store(false, Ordering::Relaxed);
        let mut times = self.times.lock();
        times.room = None;
        let is_due = self.line.due().is_some();
        // The last line of the log always gives the current state.
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

    /// Notes that an append failed for another reason than room: the next poll makes a file.
    pub fn note_failed(&self) {
        self.files.doubt();
    }

    /// Returns true if no files, and so no segments, can be made in the directory: appends will fail.
    pub fn is_unwritable(&self) -> bool {
        self.files.are_refused()
    }

    /// Notes a successful write of records. Room for one write may be the rest of a block, so the free bytes are
    /// checked, too.
    pub fn note_written(&self) {
        if self.is_full() && !self.is_tight() {
            self.note_room();
        }
    }

    fn note_room(&self) {
        self.full.store(false, Ordering::Relaxed);
        self.times.lock().room.get_or_insert_with(Instant::now);
    }

    /// Logs that there is room once there has been some for a while. One write may find the last of it, and the next
    /// none.
    fn tell_room(&self) {
        let mut times = self.times.lock();
        if times.says_full && times.room.is_some_and(|since| since.elapsed() >= ROOM_TOLD_AFTER) {
            times.says_full = false;
            // The same level as the line that it ends.
            tracing::warn!(folder = %self.folder.display(), free_bytes = self.free(), "the disk has room again");
        }
    }

    /// Returns true if the last write found no room and little has been freed since.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the reserve takes up now.
    pub fn reserved(&self) -> u64 {
        fs::metadata(self.path()).map_or(0, |file| file.blocks() * 512)
    }

    /// Returns true if at least half of the reserve is allocated.
    pub fn has_half(&self) -> bool {
        self.wanted > 0 && self.reserved() >= self.wanted / 2
    }

    /// Returns the right to write; None if the reserve is not whole and there is no room to make it so.
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

    /// Admits an append to a log as [`DiskSpace::admit`] does, and counts it. An append is short, so a permit that is
    /// held for long means a hung disk.
    pub fn admit_append(&self) -> Option<WritePermit<'_>> {
        self.admit().map(|permit| WritePermit { _append: Some(self.writes.begin()), ..permit })
    }

    /// Does work that frees space, or that writes what such work needs. If it finds no room, parts of the
    /// reserve are released and the work is repeated. The caller holds no [`WritePermit`].
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

    /// Takes the reserve back during such work, if all of it fits: others may write again from then on.
    pub fn regain(&self) {
        let missing = self.wanted.saturating_sub(self.reserved());
        if self.free() >= missing.saturating_add(FREE_MIN) {
            self.take(&mut self.whole.write());
        }
    }

    /// Takes the reserve back, and checks whether the disk is still full. The housekeeping calls it regularly.
    pub fn check(&self) {
        if self.files.probe(&self.folder).is_err() {
            self.note_full();
        }
        let taken = self.make_whole();
        if self.is_tight() {
            // Other programs have filled the disk.
            self.note_full();
        } else if self.is_full() && taken && self.can_write() {
            self.note_room();
        }
        self.ample.store(taken && self.free() >= self.wanted.max(AMPLE_MIN), Ordering::Relaxed);
        self.tell_room();
    }

    /// Returns how much room there is, by the last poll and the writes since.
    pub fn room(&self) -> DiskRoom {
        match (self.is_full(), self.ample.load(Ordering::Relaxed)) {
            _ if self.hangs() => DiskRoom::Hung,
            _ if self.is_unwritable() => DiskRoom::Unwritable,
            (true, _) => DiskRoom::Full,
            (false, false) => DiskRoom::Tight,
            (false, true) => DiskRoom::Ample,
        }
    }

    /// Returns true if a write is hung: another write, or a wait for a lock that this one holds, would hang as well.
    pub fn hangs(&self) -> bool {
        self.writes.hangs()
    }

    /// Returns the least time for which a write has been hung; None if no write is.
    pub fn hung_for(&self) -> Option<Duration> {
        self.writes.hung_for()
    }

    /// Waits until a write is hung.
    pub async fn until_it_hangs(&self) {
        // Cannot fail: the sender is a field.
        let _ = self.hangs.subscribe().wait_for(|hangs| *hangs).await;
    }

    /// Polls for hung writes, forever, and logs them.
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

    /// Returns true if a probe can be written: a quota may leave less than the reported room.
    fn can_write(&self) -> bool {
        let probe = self.folder.join(PROBE);
        let written = File::create(&probe).and_then(|file| take_up(file, FREE_MIN));
        let _ = fs::remove_file(&probe);
        written.is_ok()
    }

    /// Returns true if hardly any room is free now.
    pub fn is_tight(&self) -> bool {
        self.free() < FREE_MIN
    }

    /// Releases `1/share` of the rest of the reserve.
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

    /// Makes the reserve whole. Returns true if it is. Waits for writers only if it has to allocate.
    fn make_whole(&self) -> bool {
        if *self.whole.read() {
            return true;
        }
        let mut whole = self.whole.write();
        self.releases.load(Ordering::SeqCst) == 0 && self.take(&mut whole)
    }

    /// Allocates the reserve as far as there is room. Returns true if it is whole.
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
            // The reserve only serves a full disk: writers do not wait for one that fails for another reason.
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

/// Counts a work in [`DiskSpace::releases`] until this is dropped.
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

/// Returns the figures of a directory's file system; None if it has no size.
fn disk_of(folder: &Path) -> Option<StatVfs> {
    statvfs(folder).ok().filter(|disk| disk.f_blocks > 0)
}

/// Allocates `bytes` for a file, or writes them where the file system cannot allocate.
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
            // There is room in this directory.
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
        // Not even the superuser can make files in a directory that does not exist.
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
