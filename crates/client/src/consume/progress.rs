//! The progress of a run. Its fetchers write the counts, and any thread reads them.

use super::deleted::{DeletedOffsets, DeletedRanges};
use super::waiting::UnreadPartitions;
use fullbore_wire::Text;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The counts of all fetchers together, and the events to show.
#[derive(Debug)]
pub struct ConsumeProgress {
    started: Instant,
    records: AtomicU64,
    bytes: AtomicU64,
    /// When the last records were read, in microseconds since `started`.
    last_record_us: AtomicU64,
    /// The number of fetchers that are passing records to their sinks. A sink may block for any time.
    feeding: AtomicUsize,
    first_fetch: OnceLock<Instant>,
    finished: OnceLock<SystemTime>,
    stop: AtomicBool,
    records_wanted: u64,
    trouble: Mutex<Option<String>>,
    pub(super) waiting: UnreadPartitions,
    /// Notices to the user that need no reaction.
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

    /// Returns the reason why a partition is not being read, or `None` if all partitions are being read.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Removes and returns the notices to show to the user. They are about records or partitions that are not read, and
    /// give the reasons.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn notice(&self, what: String) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Removes the notice `what`, which no longer holds.
    pub(super) fn take_back(&self, what: &str) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).retain(|notice| notice != what);
    }

    /// Removes and returns the offsets that were skipped since the last call, because their records were deleted before
    /// they were read.
    pub fn take_deleted_offsets(&self) -> Vec<DeletedOffsets> {
        self.deleted_offsets.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn skipped(&self, deleted: DeletedOffsets) {
        self.deleted_offsets.lock().unwrap_or_else(PoisonError::into_inner).add(deleted);
    }

    /// Returns the topics that were deleted during the run and not recreated.
    pub fn deleted(&self) -> BTreeSet<Text> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that a topic was deleted. Returns false if this was known already.
    pub(super) fn set_deleted(&self, topic: &Text) -> bool {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner).insert(topic.clone())
    }

    /// Notes that a topic exists again.
    pub(super) fn is_back(&self, topic: &Text) {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
    }

    /// Returns how many records were read.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Returns the total size of the keys and values of all records that were read.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how long the run took until its first fetch, or `None` before the first fetch.
    pub fn setup(&self) -> Option<Duration> {
        self.first_fetch.get().map(|first| *first - self.started)
    }

    /// Returns the time since the last record was read. Returns zero while a sink takes records, because the wait is
    /// then not the brokers' fault.
    pub(super) fn idle(&self) -> Duration {
        // `Acquire` ensures that a thread that sees the end of a fetcher's sinks also sees the records that this
        // fetcher has counted.
        if self.feeding.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        self.started.elapsed().saturating_sub(Duration::from_micros(self.last_record_us.load(Ordering::Relaxed)))
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Requests every fetcher to stop.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Notes that a fetch is sent.
    pub(super) fn fetches(&self) {
        self.first_fetch.get_or_init(Instant::now);
    }

    /// Notes that all planned records were read.
    pub(super) fn finish(&self) {
        self.finished.get_or_init(SystemTime::now);
    }

    /// Returns when all planned records had been read, or `None` before that.
    pub(super) fn finished(&self) -> Option<SystemTime> {
        self.finished.get().copied()
    }

    /// Notes that a fetcher begins to pass records to its sinks.
    pub(super) fn feed(&self) {
        self.feeding.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the sinks of a fetcher have taken the records of a response. The caller must count these records
    /// first.
    pub(super) fn fed(&self) {
        self.feeding.fetch_sub(1, Ordering::Release);
    }

    /// Counts the records of one response. The response that reaches the planned number ends the run.
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
