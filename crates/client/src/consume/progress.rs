//! Progress of a run: its lanes write it, any thread reads it.

use super::deleted::{DeletedOffsets, DeletedRanges};
use super::waiting::UnreadPartitions;
use fullbore_wire::Text;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Counts of all lanes together.
#[derive(Debug)]
pub struct ConsumeProgress {
    started: Instant,
    records: AtomicU64,
    bytes: AtomicU64,
    /// Microseconds after `started` at which the last records came.
    last_record_us: AtomicU64,
    /// Lanes whose records go to their sinks just now, which may take as long as those like.
    feeding: AtomicUsize,
    first_fetch: OnceLock<Instant>,
    finished: OnceLock<SystemTime>,
    stop: AtomicBool,
    records_wanted: u64,
    trouble: Mutex<Option<String>>,
    pub(super) waiting: UnreadPartitions,
    /// Events without a remedy that are not shown yet.
    notices: Mutex<Vec<String>>,
    deleted: Mutex<BTreeSet<Text>>,
    deleted_offsets: Mutex<DeletedRanges>,
}

impl ConsumeProgress {
    pub(super) fn new(records_wanted: u64, deleted: BTreeSet<Text>) -> Self {
        ConsumeProgress {
            started: Instant::now(),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            last_record_us: AtomicU64::new(0),
            feeding: AtomicUsize::new(0),
            first_fetch: OnceLock::new(),
            finished: OnceLock::new(),
            stop: AtomicBool::new(false),
            records_wanted,
            trouble: Mutex::default(),
            waiting: UnreadPartitions::default(),
            notices: Mutex::default(),
            deleted: Mutex::new(deleted),
            deleted_offsets: Mutex::default(),
        }
    }

    /// Why some partition is not being read just now.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Takes the notices to show: partitions that will not be read any more, and why.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn notice(&self, what: String) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Removes a notice that does not hold any more.
    pub(super) fn take_back(&self, what: &str) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).retain(|notice| notice != what);
    }

    /// Takes the offsets that were skipped since the last call, since their records were deleted before they were read.
    pub fn take_deleted_offsets(&self) -> Vec<DeletedOffsets> {
        self.deleted_offsets.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn skipped(&self, deleted: DeletedOffsets) {
        self.deleted_offsets.lock().unwrap_or_else(PoisonError::into_inner).add(deleted);
    }

    /// The topics that were deleted while they were read, and are not there again.
    pub fn deleted(&self) -> BTreeSet<Text> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The topic was deleted; whether that is news.
    pub(super) fn set_deleted(&self, topic: &Text) -> bool {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner).insert(topic.clone())
    }

    /// The topic is there again.
    pub(super) fn is_back(&self, topic: &Text) {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
    }

    /// Records read so far.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Bytes of their keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// From the start until the first fetch was sent; `None` before that.
    pub fn setup(&self) -> Option<Duration> {
        self.first_fetch.get().map(|first| *first - self.started)
    }

    /// For how long no record has come; while somebody takes records this says nothing of who sends them.
    pub(super) fn idle(&self) -> Duration {
        // What a lane counts is seen by whoever sees that it is done.
        if self.feeding.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        self.started.elapsed().saturating_sub(Duration::from_micros(self.last_record_us.load(Ordering::Relaxed)))
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Tells every lane to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// A fetch is sent.
    pub(super) fn fetches(&self) {
        self.first_fetch.get_or_init(Instant::now);
    }

    /// All that was wanted is read.
    pub(super) fn finish(&self) {
        self.finished.get_or_init(SystemTime::now);
    }

    /// When that was.
    pub(super) fn finished(&self) -> Option<SystemTime> {
        self.finished.get().copied()
    }

    /// A lane begins to give its sinks what came.
    pub(super) fn feed(&self) {
        self.feeding.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the lane has read an answer, and counted it.
    pub(super) fn fed(&self) {
        self.feeding.fetch_sub(1, Ordering::Release);
    }

    /// Counts one response's records; the one that reaches the number wanted ends the run.
    pub(super) fn count(&self, records: u64, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let before = self.records.fetch_add(records, Ordering::Relaxed);
        self.last_record_us.store(self.started.elapsed().as_micros() as u64, Ordering::Relaxed);
        if before + records >= self.records_wanted {
            self.finish();
            self.stop();
        }
    }
}
