//! Room on the disk of the data folder: whether it is full, who is told, and the reserve that lets room be made. `hung`
//! is of writes that the disk does not answer. A folder in which no files can be made counts as a full disk for other
//! brokers.
//!
//! The reserve is a file of its own that takes up room while all is well. On a full disk as much as it takes is given
//! up for what frees space, a deletion of topics or records, so that this can be written down; until it is whole again,
//! which takes all room there is, nothing else may write: no records, no other metadata. Not what frees space, which is
//! retention's and the control plane's.
//!
//! Invariant: room that the reserve has given up is used only by [`DiskSpace::freeing`]; every other writer holds a
//! [`WritePermit`] meanwhile, or writes a few small files over and over.

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
use hung::{HungChange, LOOK_EVERY, WriteUnderWay, WritesUnderWay};
use new_files::NewFiles;
pub use new_files::make_file;

/// In the data folder.
const FILE: &str = "disk-reserve";
/// Beside it for a moment, to see whether what is said to be free can be had.
const PROBE: &str = "disk-probe";
/// A file system so many times the reserve or larger gives all of it; a smaller one the same share.
const SHARE: u64 = 16;
/// The size of a file system's block.
const BLOCK: u64 = 4096;
/// The least that must be free for the disk not to be called full any more.
const FREE_MIN: u64 = 256 << 10;
/// The least room beside the reserve with which a broker is in ISRs again.
const AMPLE_MIN: u64 = 1 << 20;
/// The parts that are given up one after the other. A process that is killed then leaves most of it for its next start,
/// even if another program takes what is free.
const RELEASES: [u64; 3] = [16, 4, 1];
/// So long after the last write that found no room it is said that there is some.
const ROOM_TOLD_AFTER: Duration = Duration::from_secs(5);
/// Between two tries to take up room that is said to be free and cannot be had.
const TAKE_EVERY: Duration = Duration::from_millis(100);

/// The room on one data folder's disk.
#[derive(Debug)]
pub struct DiskSpace {
    folder: PathBuf,
    /// Bytes of the reserve when it is whole.
    wanted: u64,
    /// True if the reserve is whole; a writer holds it for reading while it writes.
    whole: RwLock<bool>,
    /// Number of works that free space with a part of the reserve: it is not taken back meanwhile.
    releases: AtomicUsize,
    /// True if a write has found no room, and there is not much yet.
    full: AtomicBool,
    /// True if the last look found more room than the reserve takes.
    ample: AtomicBool,
    /// Files that can be made, or not.
    files: NewFiles,
    /// Appends under way.
    writes: WritesUnderWay,
    /// True once a write hangs, until none does.
    hangs: watch::Sender<bool>,
    times: Mutex<Times>,
    /// Limit of log lines about it.
    line: LogRateLimit,
}

/// When things happened last.
#[derive(Debug, Default)]
struct Times {
    /// True if it has not been told since that it is over.
    says_full: bool,
    /// Since when there is room.
    room: Option<Instant>,
    /// There was less room to take up than is said to be free.
    refused: Option<Instant>,
}

fn is_within(at: Option<Instant>, time: Duration) -> bool {
    at.is_some_and(|at| at.elapsed() < time)
}

/// The right to write what frees nothing. The reserve is not given up while there is one.
pub struct WritePermit<'a> {
    _whole: RwLockReadGuard<'a, bool>,
    _append: Option<WriteUnderWay<'a>>,
}

/// Bytes that are kept where so many are configured, on a file system of so many.
fn reserve_of(configured: u64, total: u64) -> u64 {
    configured.div_ceil(BLOCK).min(total / SHARE / BLOCK).saturating_mul(BLOCK)
}

impl DiskSpace {
    /// Takes the reserve in a folder, which exists, unless there is no room for it.
    pub fn open(folder: &Path, reserve_bytes: u64) -> DiskSpace {
        let total = disk_of(folder).map_or(u64::MAX, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
        let wanted = reserve_of(reserve_bytes, total);
        if wanted != reserve_bytes {
            tracing::warn!(
                "fullbore.disk.reserve.bytes={reserve_bytes}: {wanted} are kept: whole blocks of {BLOCK}, and no more than a sixteenth of \
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
            // What an earlier run kept, if it did.
            let _ = fs::remove_file(space.path());
        }
        let taken = space.take(&mut space.whole.write());
        if !taken || space.is_tight() {
            space.note_full();
        }
        space
    }

    /// On a disk without room for the reserve.
    #[cfg(any(test, feature = "test-util"))]
    pub fn without_room(folder: &Path) -> DiskSpace {
        let space = DiskSpace { wanted: BLOCK, ..DiskSpace::open(folder, 0) };
        *space.whole.write() = false;
        space.times.lock().refused = Some(Instant::now() + Duration::from_secs(3600));
        space
    }

    /// Takes note of an error; whether the disk is full.
    pub fn note(&self, error: &io::Error) -> bool {
        let is_full = is_full(error);
        if is_full {
            self.note_full();
        }
        is_full
    }

    /// Takes note that there was no room for a write, and says so, now and then.
    pub fn note_full(&self) {
        self.full.store(true, Ordering::Relaxed);
        self.ample.store(false, Ordering::Relaxed);
        let mut times = self.times.lock();
        times.room = None;
        let is_due = self.line.due().is_some();
        // Who reads the last line knows how it is.
        if is_due || !times.says_full {
            times.says_full = true;
            tracing::error!(
                folder = %self.folder.display(),
                free_bytes = self.free(),
                "the disk is full, and records are refused until there is room: delete topics or records, set a smaller \
                 retention.ms or retention.bytes, or make room on this file system; nothing has to be started anew"
            );
        }
    }

    /// Notes that an append has failed for another reason than room: the next look makes a file.
    pub fn note_failed(&self) {
        self.files.doubt();
    }

    /// Returns true if no files can be made in the folder: no segment, so that appends fail sooner or later.
    pub fn is_unwritable(&self) -> bool {
        self.files.are_refused()
    }

    /// Takes note that there was room for records, which is not much where it is only the rest of a page.
    pub fn note_written(&self) {
        if self.is_full() && !self.is_tight() {
            self.note_room();
        }
    }

    fn note_room(&self) {
        self.full.store(false, Ordering::Relaxed);
        self.times.lock().room.get_or_insert_with(Instant::now);
    }

    /// Says that there is room once that has lasted: a write may find the last of it, and the next one none.
    fn tell_room(&self) {
        let mut times = self.times.lock();
        if times.says_full && times.room.is_some_and(|since| since.elapsed() >= ROOM_TOLD_AFTER) {
            times.says_full = false;
            // As loud as what it takes back.
            tracing::warn!(folder = %self.folder.display(), free_bytes = self.free(), "the disk has room again");
        }
    }

    /// Returns true if the last write found no room, and there has not been much since.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Bytes that the reserve takes up now.
    pub fn reserved(&self) -> u64 {
        fs::metadata(self.path()).map_or(0, |file| file.blocks() * 512)
    }

    /// Returns true if at least half of the reserve is there.
    pub fn has_half(&self) -> bool {
        self.wanted > 0 && self.reserved() >= self.wanted / 2
    }

    /// The right to write, unless the reserve was given up and there is no room for it yet.
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

    /// Admits as [`DiskSpace::admit`] does, an append to a log, which takes little time: a permit that is held for long
    /// shows a disk that hangs.
    pub fn admit_append(&self) -> Option<WritePermit<'_>> {
        self.admit().map(|permit| WritePermit { _append: Some(self.writes.begin()), ..permit })
    }

    /// Does what frees space, or what must be on the disk for that: where it finds no room, with as much of the reserve
    /// as it takes. The caller holds no [`WritePermit`].
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

    /// Takes the reserve back while its holder still works, where all of it fits: others may write again from then on.
    pub fn regain(&self) {
        let missing = self.wanted.saturating_sub(self.reserved());
        if self.free() >= missing.saturating_add(FREE_MIN) {
            self.take(&mut self.whole.write());
        }
    }

    /// To be called now and then: takes the reserve back, and sees whether the disk is still full.
    pub fn look(&self) {
        if self.files.look(&self.folder).is_err() {
            self.note_full();
        }
        let taken = self.make_whole();
        if self.is_tight() {
            // Others have filled it.
            self.note_full();
        } else if self.is_full() && taken && self.can_write() {
            self.note_room();
        }
        self.ample.store(taken && self.free() >= self.wanted.max(AMPLE_MIN), Ordering::Relaxed);
        self.tell_room();
    }

    /// Returns how much room there is, by the last look and the writes since.
    pub fn room(&self) -> DiskRoom {
        match (self.is_full(), self.ample.load(Ordering::Relaxed)) {
            _ if self.hangs() => DiskRoom::Hung,
            _ if self.is_unwritable() => DiskRoom::Unwritable,
            (true, _) => DiskRoom::Full,
            (false, false) => DiskRoom::Tight,
            (false, true) => DiskRoom::Ample,
        }
    }

    /// Returns true if a write hangs: who writes next, or wants a lock that this write holds, would hang as well.
    pub fn hangs(&self) -> bool {
        self.writes.hangs()
    }

    /// Returns for how long a write has hung at least; None if none hangs.
    pub fn hung_for(&self) -> Option<Duration> {
        self.writes.hung_for()
    }

    /// Waits until a write hangs.
    pub async fn until_it_hangs(&self) {
        // The sender is here.
        let _ = self.hangs.subscribe().wait_for(|hangs| *hangs).await;
    }

    /// Looks for writes that hang, for ever, and logs them.
    pub async fn watch_writes(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let folder = self.folder.display();
            let changed = self.writes.look(Instant::now());
            if let Some(change) = changed {
                self.hangs.send_replace(change == HungChange::Hangs);
            }
            match changed {
                Some(HungChange::Hangs) => tracing::error!(
                    %folder,
                    "the disk hangs: a write has not come back, and records are refused until it does; see whether the volume of the data folder answers"
                ),
                Some(HungChange::Answers) => {
                    tracing::warn!(%folder, "the disk answers again: each write that hung has come back")
                }
                None => {}
            }
        }
    }

    /// Returns true if there is not only said to be room: a quota may leave less.
    fn can_write(&self) -> bool {
        let probe = self.folder.join(PROBE);
        let written = File::create(&probe).and_then(|file| take_up(file, FREE_MIN));
        let _ = fs::remove_file(&probe);
        written.is_ok()
    }

    /// Returns true if there is hardly any room now.
    pub fn is_tight(&self) -> bool {
        self.free() < FREE_MIN
    }

    /// Gives up one of so many parts of what there is of the reserve.
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
            tracing::error!(path = %path.display(), %error, "the reserve for a full disk is not given up");
        }
    }

    /// Makes the reserve whole; whether it is. Waits for those who write only where there is something to do.
    fn make_whole(&self) -> bool {
        if *self.whole.read() {
            return true;
        }
        let mut whole = self.whole.write();
        self.releases.load(Ordering::SeqCst) == 0 && self.take(&mut whole)
    }

    /// Makes the reserve whole, or as large as there is room for; whether it is whole.
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
            // It is for a full disk only: nobody waits for one that cannot be had for another reason.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no reserve for a full disk");
                let _ = fs::remove_file(&path);
                true
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Bytes that this process may still write; what cannot be asked is much.
    fn free(&self) -> u64 {
        let is_root = rustix::process::geteuid().is_root();
        let blocks = |disk: &StatVfs| if is_root { disk.f_bfree } else { disk.f_bavail };
        disk_of(&self.folder).map_or(u64::MAX, |disk| blocks(&disk).saturating_mul(disk.f_frsize))
    }
}

/// Counts a work in [`DiskSpace::releases`] until it is dropped.
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

/// Returns the system's figures of a directory's file system; `None` of one without a size.
fn disk_of(folder: &Path) -> Option<StatVfs> {
    statvfs(folder).ok().filter(|disk| disk.f_blocks > 0)
}

/// Allocates `bytes` for a file. Writes to it where the file system cannot allocate.
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
    fn what_frees_space_has_the_reserve_and_nothing_else_is_admitted_meanwhile() {
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
        space.look();
        assert!(!space.is_full(), "what cannot be had is not called room, and what can be is at once");
        space.note_full();
        space.note_written();
        assert!(!space.is_full());
    }

    #[test]
    fn what_frees_space_keeps_the_part_it_has_while_others_want_to_write() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let space = DiskSpace::open(folder.path(), 1 << 20);
        let freed = space.freeing(is_full, || {
            let reserved = space.reserved();
            if reserved == 1 << 20 {
                return Err(full());
            }
            assert!(space.admit().is_none());
            space.look();
            assert_eq!(space.reserved(), reserved, "nobody took it back");
            // There is room in this folder.
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
    fn what_was_last_said_of_the_disk_is_how_it_is() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let space = DiskSpace::open(folder.path(), 0);
        let says_full = || space.times.lock().says_full;
        space.note_full();
        assert!(says_full());
        space.note_written();
        space.look();
        assert!(!space.is_full() && says_full(), "it may be the last of it");
        space.note_full();
        assert!(space.times.lock().room.is_none() && says_full());
        space.note_written();
        space.times.lock().room = Instant::now().checked_sub(ROOM_TOLD_AFTER);
        space.look();
        assert!(!says_full());
        space.note_full();
        assert!(says_full(), "however soon it is full again");
    }

    #[test]
    fn write_finds_no_room_there_is_ample_room_only_after_the_next_look() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let space = DiskSpace::open(folder.path(), 4096);
        assert_eq!(space.room(), DiskRoom::Ample);
        space.note_full();
        assert_eq!(space.room(), DiskRoom::Full);
        space.note_written();
        assert_eq!(space.room(), DiskRoom::Tight, "it may be the last of it");
        space.look();
        assert_eq!(space.room(), DiskRoom::Ample);
        let narrow = DiskSpace::without_room(folder.path());
        narrow.look();
        assert_ne!(narrow.room(), DiskRoom::Ample, "the reserve is not whole");
    }

    #[test]
    fn append_fails_the_folder_is_unwritable_until_a_file_can_be_made() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let data = folder.path().join("data");
        fs::create_dir(&data).expect("made");
        let space = DiskSpace::open(&data, 0);
        space.note_failed();
        space.look();
        assert_eq!(space.room(), DiskRoom::Ample, "another reason");
        // A folder that takes no files, from the superuser neither.
        fs::remove_dir_all(&data).expect("removed");
        space.look();
        assert_eq!(space.room(), DiskRoom::Ample, "nothing has failed");
        space.note_failed();
        space.look();
        assert_eq!((space.room(), space.is_full()), (DiskRoom::Unwritable, false));
        fs::create_dir(&data).expect("made");
        space.look();
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
    fn a_reserve_of_nothing_admits_everybody() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let space = DiskSpace::open(folder.path(), 0);
        assert!(space.admit().is_some() && space.freeing(is_full, || Ok::<_, io::Error>(1)).is_ok());
        assert!(!folder.path().join(FILE).exists());
    }
}
