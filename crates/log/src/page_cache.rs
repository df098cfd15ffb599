//! Decides how much of the written data stays in the page cache.
//!
//! The system caches as many pages as it has memory for, and consumers that are behind read from the cache. As long as
//! memory is cheap, the broker leaves this to the system. Some virtual machines have a host that takes free memory
//! back. Each additional page must then first come from the host, which takes several times as long as filling it. If
//! this slows down writes, the broker writes its data to the disk early and drops all but the newest pages. The next
//! writes can then reuse the dropped pages. Consumers that are further behind then read from the disk, without the page
//! cache (`crate::direct_io`). If readers keep returning to dropped data, the cache becomes larger by that amount (see
//! [`Ghosts`]).
//!
//! This module has no part in durability: it does not wait for the disk, and [`super::flush`] handles the disk's
//! errors. If pages cannot be dropped, they are left to the system.
//!
//! Lock: `queue`. No other lock is taken while it is held.

use std::collections::VecDeque;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Advice, fadvise};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::direct_io::Ghosts;

/// Size at which the log hands a written part of a file (a *stretch*) over to [`PageCache`].
const STRETCH: u64 = 4 << 20;
/// Minimum size of a written part of a file (a *stretch*) that is handed over. The system manages the pages of shorter
/// ones. There would be too many of them, because some files are closed soon after each write.
const STRETCH_MIN: u64 = 64 << 10;
/// Maximum number of stretches that are remembered.
const STRETCHES_MAX: usize = 64 << 10;
/// Maximum number of jobs that wait for the thread. Jobs beyond this limit are dropped, and their pages are left to the
/// system.
const JOBS_MAX: usize = 256;

/// Minimum size of a write whose time is measured. The time of a smaller write is mostly that of the system call.
const SAMPLE_MIN: usize = 8 << 10;
/// Minimum number of bytes between two measured writes. The limit is needed because reading the clock is also a system
/// call.
const SAMPLED_EVERY: usize = 64 << 10;
/// Limit for the time of a write, in nanoseconds per byte. A write that takes longer counts as expensive. Without new
/// pages from the host, copying the bytes takes a third of this limit even on a slow machine.
const DEAR_NS: u128 = 1;
/// Number of bytes of measured writes after which the broker decides whether most of these bytes were expensive.
const DECIDED_AFTER: u64 = 8 << 20;
/// How long the cache may not grow after most writes were expensive. By then the host may have given the machine all
/// its memory, so that growth is cheap.
const DECIDED_FOR: Duration = Duration::from_secs(600);

/// A part of a log file that was written without gaps.
#[derive(Debug, Clone)]
struct Stretch {
    /// The file. The reference is weak, so that a deleted or closed segment does not stay open.
    file: Weak<File>,
    from: u64,
    len: u64,
    sample: Sample,
}

/// Number of bytes in cheap and in expensive measured writes.
#[derive(Debug, Default, Clone, Copy)]
struct Sample {
    cheap: u64,
    dear: u64,
}

/// The written bytes of a log that are not yet handed over to the page cache's policy.
#[derive(Debug, Default)]
pub struct Written {
    open: Option<Stretch>,
    /// Stretches that are complete and can be handed over. There are at most two: the last of one file and the first of
    /// the next.
    ready: Vec<Stretch>,
    /// Number of bytes since the last measured write.
    untimed: usize,
}

/// Measures a write by the processor time of this thread. This time excludes waits for the disk or for a processor, so
/// that such a write does not count as expensive.
#[derive(Debug, Clone, Copy)]
pub struct ThreadClock {
    began: Timespec,
}

impl ThreadClock {
    fn start() -> ThreadClock {
        ThreadClock { began: clock_gettime(ClockId::ThreadCPUTime) }
    }

    fn elapsed(self) -> Duration {
        let passed = clock_gettime(ClockId::ThreadCPUTime) - self.began;
        Duration::try_from(passed).unwrap_or_default()
    }
}

impl Written {
    /// Returns a clock if the next write should be measured, and `None` otherwise.
    pub fn clock(&mut self, len: usize) -> Option<ThreadClock> {
        self.untimed += len;
        if len < SAMPLE_MIN || self.untimed < SAMPLED_EVERY {
            return None;
        }
        self.untimed = 0;
        Some(ThreadClock::start())
    }

    /// Records a write of `len` bytes, after which the file has the length `end`.
    pub fn add(&mut self, file: &Arc<File>, end: u64, len: usize, clock: Option<ThreadClock>) {
        let took = clock.map(ThreadClock::elapsed);
        if self.open.as_ref().is_some_and(|open| !std::ptr::eq(open.file.as_ptr(), Arc::as_ptr(file))) {
            self.ready.extend(self.open.take());
        }
        let open = self.open.get_or_insert_with(|| Stretch {
            file: Arc::downgrade(file),
            from: end - len as u64,
            len: 0,
            sample: Sample::default(),
        });
        open.len = end - open.from;
        if let Some(took) = took {
            open.sample.add(len, took);
        }
        if open.len >= STRETCH {
            self.ready.extend(self.open.take());
        }
    }

    /// Returns true if there are stretches to hand over.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}

impl Sample {
    fn add(&mut self, len: usize, took: Duration) {
        let is_dear = took.as_nanos() > len as u128 * DEAR_NS;
        *if is_dear { &mut self.dear } else { &mut self.cheap } += len as u64;
    }
}

/// Decides whether the page cache may grow.
#[derive(Debug, Default)]
struct Growth {
    sample: Sample,
    stopped_at: Option<Instant>,
}

impl Growth {
    /// Records the cost of writes. Returns true if the cache may grow now.
    fn note(&mut self, sample: Sample, now: Instant) -> bool {
        if let Some(stopped_at) = self.stopped_at {
            if now.duration_since(stopped_at) < DECIDED_FOR {
                return false;
            }
            *self = Growth::default();
        }
        self.sample.cheap += sample.cheap;
        self.sample.dear += sample.dear;
        if self.sample.cheap + self.sample.dear >= DECIDED_AFTER {
            let decided = std::mem::take(&mut self.sample);
            self.stopped_at = (decided.dear > decided.cheap).then_some(now);
        }
        self.stopped_at.is_none()
    }
}

/// The policy for all logs in a data directory, and its queue of jobs.
#[derive(Debug)]
pub struct PageCache {
    /// How many bytes stay in the cache if growth is expensive. `None` leaves everything to the system.
    kept_max: Option<u64>,
    /// The ranges that were dropped, in case readers return to them.
    ghosts: Arc<Ghosts>,
    queue: Mutex<PageCacheQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PageCacheQueue {
    growth: Growth,
    /// The stretches (parts of files) that were written since the cache stopped growing and are still cached, oldest
    /// first. `kept_bytes` is their total size.
    kept: VecDeque<Stretch>,
    kept_bytes: u64,
    jobs: VecDeque<PageCacheJob>,
    /// True once a log line has reported that the page cache no longer grows.
    is_logged: bool,
    stopping: bool,
}

/// A job for the thread: advice to the system about a written part of a file.
#[derive(Debug)]
enum PageCacheJob {
    /// Begin to write the pages to the disk.
    Write(Stretch),
    /// Drop the pages, which should be on the disk by now.
    LetGo(Stretch),
}

impl PageCache {
    pub fn new(kept_max: Option<u64>, ghosts: Arc<Ghosts>) -> PageCache {
        PageCache { kept_max, ghosts, queue: Mutex::default(), changed: Condvar::new() }
    }

    /// Moves the finished stretches of a log from `written` to the queue; drops them if `kept_max` is `None`.
    pub fn take(&self, written: &mut Written) {
        let ready = written.ready.drain(..);
        let Some(kept_max) = self.kept_max else { return };
        let kept_max = kept_max.saturating_add(self.ghosts.wanted());
        let mut queue = self.queue.lock();
        for stretch in ready {
            queue.take(stretch, kept_max);
        }
        if !queue.jobs.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Starts the thread, which runs until [`PageCache::stop`].
    pub fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let cache = self.clone();
        std::thread::Builder::new().name("page-cache".to_owned()).spawn(move || cache.run())
    }

    /// Ends the thread. The remaining jobs are dropped, and their pages are left to the system.
    pub fn stop(&self) {
        self.queue.lock().stopping = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        while !queue.stopping {
            match queue.jobs.pop_front() {
                Some(job) => parking_lot::MutexGuard::unlocked(&mut queue, || job.run(&self.ghosts)),
                None => self.changed.wait(&mut queue),
            }
        }
    }
}

impl PageCacheQueue {
    fn take(&mut self, stretch: Stretch, kept_max: u64) {
        if self.growth.note(stretch.sample, Instant::now()) {
            (self.kept, self.kept_bytes) = (VecDeque::new(), 0);
            return;
        }
        if !std::mem::replace(&mut self.is_logged, true) {
            tracing::info!(
                kept_max,
                "growing the page cache is expensive on this machine: only the newest records stay in it"
            );
        }
        if stretch.len < STRETCH_MIN {
            return;
        }
        self.push(PageCacheJob::Write(stretch.clone()));
        self.kept_bytes += stretch.len;
        self.kept.push_back(stretch);
        while self.kept_bytes > kept_max || self.kept.len() > STRETCHES_MAX {
            let Some(oldest) = self.kept.pop_front() else { return };
            self.kept_bytes -= oldest.len;
            self.push(PageCacheJob::LetGo(oldest));
        }
    }

    fn push(&mut self, job: PageCacheJob) {
        if self.jobs.len() < JOBS_MAX {
            self.jobs.push_back(job);
        }
    }
}

impl PageCacheJob {
    fn run(self, ghosts: &Ghosts) {
        let (PageCacheJob::Write(stretch) | PageCacheJob::LetGo(stretch)) = &self;
        let Some(file) = stretch.file.upgrade() else { return };
        match &self {
            PageCacheJob::Write(_) => begin_to_write(&file, stretch.from, stretch.len),
            // If the system ignores the advice, the pages just stay.
            PageCacheJob::LetGo(_) => {
                // Add the range to the list of dropped ranges first. A reader that needs the range right after the drop
                // must find it there.
                ghosts.add(&stretch.file, stretch.from, stretch.len);
                let _ = fadvise(&*file, stretch.from, NonZeroU64::new(stretch.len), Advice::DontNeed);
            }
        }
    }
}

/// Begins to write a range to the disk, with sync_file_range(2), and does not wait. Disk errors are reported to the
/// caller of fsync.
fn begin_to_write(file: &File, from: u64, len: u64) {
    let (Ok(from), Ok(len)) = (i64::try_from(from), i64::try_from(len)) else { return };
    // SAFETY: the arguments are three numbers and a descriptor, which stays open while `file` is borrowed.
    unsafe { libc::sync_file_range(file.as_raw_fd(), from, len, libc::SYNC_FILE_RANGE_WRITE) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct_io::{DirectReads, is_resident};
    use std::os::unix::fs::FileExt;

    const CHEAP: Duration = Duration::from_micros(5);
    const DEAR: Duration = Duration::from_micros(40);
    const WRITE: usize = 16 << 10;

    fn sample_of(writes: impl IntoIterator<Item = (usize, Duration)>) -> Sample {
        let mut sample = Sample::default();
        writes.into_iter().for_each(|(len, took)| sample.add(len, took));
        sample
    }

    #[test]
    fn growth_stops_where_most_large_writes_are_expensive_and_is_tried_again_after_a_while() {
        let began = Instant::now();
        let writes = DECIDED_AFTER as usize / WRITE;
        let mut growth = Growth::default();
        assert!(
            growth.note(sample_of((0..2 * writes).map(|at| (WRITE, if at % 5 < 2 { DEAR } else { CHEAP }))), began)
        );
        assert!(growth.note(sample_of((1..writes).map(|_| (WRITE, DEAR))), began), "not enough of them");
        assert!(!growth.note(sample_of([(WRITE, DEAR)]), began));
        assert!(!growth.note(sample_of((0..writes).map(|_| (WRITE, CHEAP))), began), "pages are used again");
        let later = began + DECIDED_FOR;
        assert!(growth.note(sample_of((1..writes).map(|_| (WRITE, DEAR))), later), "what was seen is of before");
        assert!(!growth.note(sample_of((0..writes).map(|_| (WRITE, DEAR))), later));
    }

    #[test]
    fn large_writes_are_timed_now_and_then_and_waiting_costs_nothing() {
        let mut written = Written::default();
        let timed = |written: &mut Written, len: usize, count: usize| {
            (0..count).filter(|_| written.clock(len).is_some()).count()
        };
        assert_eq!(timed(&mut written, 1 << 20, 5), 5);
        assert_eq!(timed(&mut written, 16 << 10, 100), 25);
        assert_eq!(timed(&mut written, SAMPLE_MIN - 1, 1000), 0, "calls, not pages");

        let clock = ThreadClock::start();
        std::thread::sleep(Duration::from_millis(30));
        let waited = clock.elapsed();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(30) && clock.elapsed() < Duration::from_millis(20) {}
        assert!(waited < Duration::from_millis(20), "{waited:?}");
        assert!(clock.elapsed() > waited, "work is counted");
    }

    #[test]
    fn written_bytes_are_handed_over_in_stretches_and_at_the_end_of_a_file() {
        let files = [tempfile::tempfile(), tempfile::tempfile()].map(|file| Arc::new(file.expect("temporary file")));
        let mut written = Written::default();
        written.add(&files[0], 1000, 100, None);
        assert!(!written.is_ready());
        written.add(&files[0], 900 + STRETCH, STRETCH as usize - 100, None);
        written.add(&files[0], 900 + STRETCH + 50, 50, None);
        written.add(&files[1], 70, 70, None);
        let ready: Vec<_> =
            written.ready.iter().map(|stretch| (stretch.file.as_ptr(), stretch.from, stretch.len)).collect();
        assert_eq!(ready, [(Arc::as_ptr(&files[0]), 900, STRETCH), (Arc::as_ptr(&files[0]), 900 + STRETCH, 50)]);
    }

    /// Writes the stretch with this number, and hands it over once it is on the disk.
    fn write(file: &Arc<File>, cache: &PageCache, number: u64) {
        file.write_all_at(&vec![7; STRETCH as usize], number * STRETCH).expect("written");
        file.sync_data().expect("on disk");
        let mut written = Written::default();
        written.add(file, (number + 1) * STRETCH, STRETCH as usize, None);
        cache.take(&mut written);
    }

    fn file_on_disk() -> (tempfile::TempDir, Arc<File>) {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("temporary directory");
        let file =
            File::options().read(true).write(true).create_new(true).open(directory.path().join("log")).expect("made");
        (directory, Arc::new(file))
    }

    #[test]
    fn expensive_memory_keeps_the_newest_pages_and_drops_the_rest() {
        let (_directory, file) = file_on_disk();
        let cache = Arc::new(PageCache::new(Some(STRETCH), Arc::default()));
        cache.queue.lock().growth.stopped_at = Some(Instant::now());
        let thread = cache.start().expect("started");
        let is_here = |number: u64| is_resident(&file, number * STRETCH, STRETCH as usize);
        write(&file, &cache, 0);
        assert!(is_here(0));
        write(&file, &cache, 1);
        let began = Instant::now();
        while is_here(0) {
            assert!(began.elapsed() < Duration::from_secs(20), "never let go of, or files here are always in memory");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_here(1));
        cache.stop();
        thread.join().expect("no panic");
    }

    #[tokio::test]
    async fn a_dropped_stretch_that_is_read_back_has_as_much_more_kept() {
        let (_directory, file) = file_on_disk();
        let cold = DirectReads::default();
        let cache = Arc::new(PageCache::new(Some(STRETCH), cold.ghosts().clone()));
        cache.queue.lock().growth.stopped_at = Some(Instant::now());
        let thread = cache.start().expect("started");
        (0..2).for_each(|number| write(&file, &cache, number));
        let began = Instant::now();
        while is_resident(&file, 0, STRETCH as usize) {
            assert!(began.elapsed() < Duration::from_secs(20), "never let go of, or files here are always in memory");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(cache.queue.lock().kept_bytes, STRETCH);
        cold.read(&file, 100, 100, 2 * STRETCH).await.expect("read").expect("not in memory");
        (2..5).for_each(|number| write(&file, &cache, number));
        assert_eq!(cache.queue.lock().kept_bytes, 2 * STRETCH);
        cache.stop();
        thread.join().expect("no panic");
    }

    #[test]
    fn cheap_memory_or_no_setting_gives_the_system_no_advice() {
        let (_directory, file) = file_on_disk();
        for cache in [PageCache::new(Some(STRETCH), Arc::default()), PageCache::new(None, Arc::default())] {
            (0..3).for_each(|number| write(&file, &cache, number));
            assert!(cache.queue.lock().jobs.is_empty());
        }
    }

    #[test]
    fn a_thread_that_does_not_keep_up_costs_bounded_memory() {
        let cache = PageCache::new(Some(2 * STRETCH), Arc::default());
        cache.queue.lock().growth.stopped_at = Some(Instant::now());
        let file = Arc::new(tempfile::tempfile().expect("temporary file"));
        let mut written = Written::default();
        for number in 1..=JOBS_MAX as u64 {
            written.add(&file, number * STRETCH, STRETCH as usize, None);
            cache.take(&mut written);
        }
        let queue = cache.queue.lock();
        assert_eq!((queue.jobs.len(), queue.kept.len(), queue.kept_bytes), (JOBS_MAX, 2, 2 * STRETCH));
    }

    #[test]
    fn files_that_are_closed_after_each_write_cost_bounded_memory() {
        let cache = PageCache::new(Some(u64::MAX), Arc::default());
        cache.queue.lock().growth.stopped_at = Some(Instant::now());
        let mut written = Written::default();
        let mut write = |len: u64| {
            let file = Arc::new(File::open("/dev/null").expect("there"));
            written.add(&file, len, len as usize, None);
            cache.take(&mut written);
        };
        (0..100).for_each(|_| write(STRETCH_MIN - 1));
        write(STRETCH_MIN);
        assert!(cache.queue.lock().kept.is_empty(), "left to the system");
        (0..STRETCHES_MAX + 100).for_each(|_| write(STRETCH_MIN));
        assert_eq!(cache.queue.lock().kept.len(), STRETCHES_MAX);
    }
}
