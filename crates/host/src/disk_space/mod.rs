//! Watches the free space on the data directory's disk, and manages the disk reserve for deletions on a full disk.
//!
//! `hung` detects writes that do not return. `new_files` detects that no files can be created, which has the same
//! consequences as a full disk. `place` detects that the directory was moved or unmounted.
//!
//! The reserve is a file that occupies space in advance. On a full disk, the broker releases parts of it for work that
//! frees space, because even a deletion must first be recorded on the disk. Space that becomes free first refills the
//! reserve. Until the reserve is complete again, no other records or metadata are written. Retention and the control
//! plane do the work that frees space.
//!
//! Invariant: only [`DiskSpace::freeing`] uses space that the reserve has released. All other writers need a
//! [`WritePermit`], unless they only rewrite a few small files.

mod hung;
mod new_files;
mod place;

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
use place::Place;

/// The name of the reserve's file in the data directory.
const FILE: &str = "disk-reserve";
/// The name of a file that the broker writes and removes at once, to test whether it can really use the free space.
const PROBE: &str = "disk-probe";
/// The reserve takes at most this fraction of the file system (one sixteenth).
const SHARE: u64 = 16;
/// The size of a block of the file system.
const BLOCK: u64 = 4096;
/// Minimum number of free bytes at which a full disk no longer counts as full.
const FREE_MIN: u64 = 256 << 10;
/// Minimum number of free bytes, in addition to the reserve, at which a broker may rejoin ISRs.
const AMPLE_MIN: u64 = 1 << 20;
/// The fraction of the remaining reserve that each attempt releases: a sixteenth, then a quarter, then all of it. The
/// first attempts release little, because another program might use up the released space. If the broker is then
/// killed, most of the reserve is left for its next start.
const RELEASES: [u64; 3] = [16, 4, 1];
/// How long a disk must have had space again before the log reports this.
const ROOM_LOGGED_AFTER: Duration = Duration::from_secs(5);
/// Minimum time after a refused attempt to allocate the reserve until the next attempt.
const TAKE_EVERY: Duration = Duration::from_millis(100);

/// The space on the disk of one data directory.
#[derive(Debug)]
pub struct DiskSpace {
    directory: PathBuf,
    place: Place,
    /// The size of the complete reserve in bytes.
    wanted: u64,
    /// True if the reserve is complete. Each [`WritePermit`] holds the read lock, so that the reserve is not released
    /// during a write.
    whole: RwLock<bool>,
    /// Number of running calls that free space with the help of a released part of the reserve. Until they have ended,
    /// other writers do not complete the reserve.
    releases: AtomicUsize,
    /// True after a write has failed on the full disk, until at least [`FREE_MIN`] bytes are free again.
    full: AtomicBool,
    /// True if the last check found enough free space, in addition to the reserve, to rejoin ISRs.
    ample: AtomicBool,
    /// The test of whether files can be created in the directory.
    files: NewFiles,
    /// The running appends, to detect those that hang.
    writes: WritesUnderWay,
    /// True if the last poll found a write that hangs.
    hangs: watch::Sender<bool>,
    times: Mutex<Times>,
    /// The rate limit of log lines about a full disk.
    line: LogRateLimit,
    /// The rate limit of log lines about a shortage of descriptors or memory.
    shortage_line: LogRateLimit,
}

/// Recent events on the disk, which decide when the log reports them and when the reserve is allocated again.
#[derive(Debug, Default)]
struct Times {
    /// True if the last log line reported a full disk.
    says_full: bool,
    /// When the disk last stopped being full; `None` while the disk is full.
    room: Option<Instant>,
    /// When the system last refused to allocate the reserve.
    refused: Option<Instant>,
    /// True if the last attempt to complete the reserve found no descriptor or memory.
    is_short: bool,
}

fn is_within(at: Option<Instant>, time: Duration) -> bool {
    at.is_some_and(|at| at.elapsed() < time)
}

/// Allows a write that does not free space. The reserve is not released while such a permit exists.
pub struct WritePermit<'a> {
    _whole: RwLockReadGuard<'a, bool>,
    _append: Option<WriteUnderWay<'a>>,
}

/// Returns the size of the reserve in bytes. `configured` is the setting, and `total` the size of the file system.
fn reserve_of(configured: u64, total: u64) -> u64 {
    configured.div_ceil(BLOCK).min(total / SHARE / BLOCK).saturating_mul(BLOCK)
}

impl DiskSpace {
    /// Allocates the reserve in an existing directory, or as much of it as possible.
    pub fn open(directory: &Path, reserve_bytes: u64) -> DiskSpace {
        let total = disk_of(directory).map_or(u64::MAX, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
        let wanted = reserve_of(reserve_bytes, total);
        if wanted != reserve_bytes {
            tracing::warn!(
                "fullbore.disk.reserve.bytes={reserve_bytes}: the broker reserves {wanted} bytes instead: whole \
                 blocks of {BLOCK} bytes, and at most a sixteenth of the file system that has {}",
                directory.display()
            );
        }
        let space = DiskSpace {
            directory: directory.to_owned(),
            place: Place::open(directory),
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
            shortage_line: LogRateLimit::default(),
        };
        if wanted == 0 {
            // The reserve is turned off, so remove the file of an earlier process.
            let _ = fs::remove_file(space.path());
        }
        let taken = space.take(&mut space.whole.write());
        if space.is_tight() {
            space.note_full();
        } else if !taken {
            space.note_incomplete();
        }
        space
    }

    /// Creates the state of a disk that has no space for the reserve. The reserve stays incomplete, because the next
    /// attempt to allocate it is more than an hour away.
    #[cfg(any(test, feature = "test-util"))]
    pub fn without_room(directory: &Path) -> DiskSpace {
        let space = DiskSpace { wanted: BLOCK, ..DiskSpace::open(directory, 0) };
        *space.whole.write() = false;
        space.times.lock().refused = Some(Instant::now() + Duration::from_secs(3600));
        space
    }

    /// Records the error of a write. Returns true if it means that the disk is full.
    pub fn note(&self, error: &io::Error) -> bool {
        let is_full = is_full(error);
        if is_full {
            self.note_full();
        }
        is_full
    }

    /// Records that a write has found no space. Logs this, but not too often.
    pub fn note_full(&self) {
        self.full.store(true, Ordering::Relaxed);
        self.ample.store(false, Ordering::Relaxed);
        let mut times = self.times.lock();
        times.room = None;
        let is_due = self.line.due().is_some();
        // If the last line reported free space, this line must be logged even beyond the limit. Otherwise the last line
        // in the log would be wrong.
        if is_due || !times.says_full {
            times.says_full = true;
            tracing::error!(
                folder = %self.directory.display(),
                free_bytes = self.free(),
                "the disk is full: records are refused until there is room; delete topics or records, set a smaller \
                 retention.ms or retention.bytes, or make room on this file system; no restart is needed"
            );
        }
    }

    /// Records that the reserve cannot be completed. The disk then counts as full, except during a shortage of
    /// descriptors or memory.
    fn note_incomplete(&self) {
        if !self.times.lock().is_short {
            self.note_full();
        } else if let Some(left_out) = self.shortage_line.due() {
            tracing::error!(
                folder = %self.directory.display(),
                left_out,
                "cannot open the reserve for a full disk: records are refused until there are descriptors and memory; raise \
                 the limit of open files; no restart is needed"
            );
        }
    }

    /// Records that the allocation of the reserve failed, and whether descriptors or memory were short.
    fn note_refused(&self, error: &io::Error) {
        let mut times = self.times.lock();
        times.refused = Some(Instant::now());
        times.is_short = is_momentary(error);
    }

    /// Records that an append has failed for another reason than a full disk. The next [`DiskSpace::check`] then finds
    /// out whether files can still be created.
    pub fn note_failed(&self) {
        self.files.doubt();
    }

    /// Checks that the path of the data directory still leads to the opened directory. Otherwise the broker must not
    /// create files in the directory, because its next start would not find them.
    ///
    /// # Errors
    /// Returns an error that names the cause and the remedy.
    pub fn check_place(&self) -> io::Result<()> {
        self.place.check()
    }

    /// Returns true if no files can be created in the directory, or if its path no longer leads to it. In both cases an
    /// append fails once it needs a new segment.
    pub fn is_unwritable(&self) -> bool {
        self.files.are_refused()
    }

    /// Must be called after records were written. If there is also enough free space, the disk no longer counts as
    /// full. The successful write alone proves little, since it may have used only the rest of a block.
    pub fn note_written(&self) {
        if self.is_full() && !self.is_tight() {
            self.note_room();
        }
    }

    fn note_room(&self) {
        self.full.store(false, Ordering::Relaxed);
        self.times.lock().room.get_or_insert_with(Instant::now);
    }

    /// Logs that the disk has space, once this has been true for [`ROOM_LOGGED_AFTER`]. Without this delay, the next
    /// write could fill the disk again, and the log would report a full disk right after.
    fn log_room(&self) {
        let mut times = self.times.lock();
        if times.says_full && times.room.is_some_and(|since| since.elapsed() >= ROOM_LOGGED_AFTER) {
            times.says_full = false;
            // The level is a warning, so that a log without info lines also shows that the reported full disk has space
            // again.
            tracing::warn!(folder = %self.directory.display(), free_bytes = self.free(), "the disk has room again");
        }
    }

    /// Returns true if a write has found no space, and not enough space was freed after it.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Returns the current size of the reserve in bytes.
    pub fn reserved(&self) -> u64 {
        fs::metadata(self.path()).map_or(0, |file| file.blocks() * 512)
    }

    /// Returns true if at least half of the reserve is allocated.
    pub fn has_half(&self) -> bool {
        self.wanted > 0 && self.reserved() >= self.wanted / 2
    }

    /// Returns a permit to write. Returns `None` if the reserve is incomplete and cannot be completed now.
    pub fn admit(&self) -> Option<WritePermit<'_>> {
        loop {
            let whole = self.whole.read();
            if *whole {
                return Some(WritePermit { _whole: whole, _append: None });
            }
            drop(whole);
            if !self.make_whole() {
                self.note_incomplete();
                return None;
            }
        }
    }

    /// Returns a permit to append to a log, under the same conditions as [`DiskSpace::admit`]. If the append keeps the
    /// permit for seconds, the disk counts as hung.
    pub fn admit_append(&self) -> Option<WritePermit<'_>> {
        self.admit().map(|permit| WritePermit { _append: Some(self.writes.begin()), ..permit })
    }

    /// Runs `work`, which frees space or records that space will be freed. If `work` fails because the disk is full,
    /// releases a part of the reserve and runs `work` again, up to three times. The caller must not have a
    /// [`WritePermit`].
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

    /// Completes the reserve during a call of [`DiskSpace::freeing`], if there is enough space. Other writers can then
    /// get permits before that call has ended.
    pub fn regain(&self) {
        let missing = self.wanted.saturating_sub(self.reserved());
        if self.free() >= missing.saturating_add(FREE_MIN) {
            self.take(&mut self.whole.write());
        }
    }

    /// Completes the reserve if possible, and checks whether the disk is still full. Housekeeping calls this regularly.
    pub fn check(&self) {
        if self.files.probe(&self.place).is_err() {
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
        self.log_room();
    }

    /// Returns the state of the disk, from the results of the last check, the last poll and the latest writes.
    pub fn room(&self) -> DiskRoom {
        match (self.is_full(), self.ample.load(Ordering::Relaxed)) {
            _ if self.hangs() => DiskRoom::Hung,
            _ if self.is_unwritable() => DiskRoom::Unwritable,
            (true, _) => DiskRoom::Full,
            (false, false) => DiskRoom::Tight,
            (false, true) => DiskRoom::Ample,
        }
    }

    /// Returns true if a write hangs. Another write would hang as well, and so would a wait for a lock that the hung
    /// writer holds.
    pub fn hangs(&self) -> bool {
        self.writes.hangs()
    }

    /// Returns the minimum time for which a write has been hanging; `None` if no write hangs.
    pub fn hung_for(&self) -> Option<Duration> {
        self.writes.hung_for()
    }

    /// Waits until a write hangs.
    pub async fn until_it_hangs(&self) {
        // The wait cannot fail, because `self` owns the sender of the channel.
        let _ = self.hangs.subscribe().wait_for(|hangs| *hangs).await;
    }

    /// Polls for hung writes forever, and logs each change.
    pub async fn watch_writes(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let directory = self.directory.display();
            let changed = self.writes.poll(Instant::now());
            if let Some(change) = changed {
                self.hangs.send_replace(change == HungChange::Hangs);
            }
            match changed {
                Some(HungChange::Hangs) => tracing::error!(
                    folder = %directory,
                    "the disk hangs: a write has not returned, and records are refused until it returns; check the \
                     volume of the data directory"
                ),
                Some(HungChange::Answers) => {
                    tracing::warn!(folder = %directory, "the disk answers again: each hung write has returned")
                }
                None => {}
            }
        }
    }

    /// Returns true if a file of [`FREE_MIN`] bytes can really be written. With a quota, there may be less space than
    /// the system reports.
    fn can_write(&self) -> bool {
        let probe = self.directory.join(PROBE);
        let written = File::create(&probe).and_then(|file| take_up(file, FREE_MIN));
        let _ = fs::remove_file(&probe);
        written.is_ok()
    }

    /// Returns true if fewer than [`FREE_MIN`] bytes are free.
    pub fn is_tight(&self) -> bool {
        self.free() < FREE_MIN
    }

    /// Releases 1/`share` of the remaining reserve.
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
            tracing::error!(path = %path.display(), %error, "cannot release the disk reserve: deleting topics or records may fail until there is free space");
        }
    }

    /// Returns true if the reserve is complete. If it is incomplete, first waits for the end of all permits, and then
    /// tries to complete it. Returns false while a call of [`DiskSpace::freeing`] uses a released part of the reserve.
    fn make_whole(&self) -> bool {
        if *self.whole.read() {
            return true;
        }
        let mut whole = self.whole.write();
        self.releases.load(Ordering::SeqCst) == 0 && self.take(&mut whole)
    }

    /// Allocates as much of the reserve as possible. Returns true if it is complete.
    fn take(&self, whole: &mut bool) -> bool {
        if !*whole {
            *whole = self.wanted == 0 || self.allocate();
        }
        *whole
    }

    fn allocate(&self) -> bool {
        let (path, before) = (self.path(), self.reserved());
        let bytes = self.wanted.min(before.saturating_add(self.free()) / BLOCK * BLOCK);
        {
            let mut times = self.times.lock();
            if is_within(times.refused, TAKE_EVERY) {
                return false;
            }
            times.is_short = false;
        }
        if bytes < self.wanted && bytes <= before {
            return false;
        }
        let opened = File::options().write(true).create(true).truncate(false).open(&path);
        match opened.and_then(|file| take_up(file, bytes)) {
            Ok(()) => bytes == self.wanted,
            Err(error) if is_full(&error) || is_momentary(&error) => {
                self.note_refused(&error);
                false
            }
            // The reserve cannot be written, but the disk is not full. Treat the reserve as complete, so that writers
            // get permits. The broker needs the reserve only on a full disk.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot allocate the disk reserve: once the disk is full, deleting topics or records may fail as well");
                let _ = fs::remove_file(&path);
                true
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Returns how many bytes this process can still write; the maximum if the system does not report it.
    fn free(&self) -> u64 {
        let is_root = rustix::process::geteuid().is_root();
        let blocks = |disk: &StatVfs| if is_root { disk.f_bfree } else { disk.f_bavail };
        disk_of(&self.directory).map_or(u64::MAX, |disk| blocks(&disk).saturating_mul(disk.f_frsize))
    }
}

/// A guard that counts a running call in [`DiskSpace::releases`] until it is dropped.
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

/// Returns the statistics of the directory's file system; `None` if the file system reports no size.
fn disk_of(directory: &Path) -> Option<StatVfs> {
    statvfs(directory).ok().filter(|disk| disk.f_blocks > 0)
}

/// Allocates `bytes` for a file. If the file system cannot allocate space, writes the bytes instead.
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
mod tests;
