//! The state of a diskless partition as one broker knows it: the offsets, and the positions of the newest records.
//!
//! A partition is ready as soon as the index has created it. The view has the position of an extent (a run of batches)
//! only while its bytes are in memory. All records are stored with the leader epoch 0, because the index alone decides
//! their order. Clients get the leader epoch of the metadata instead.
//!
//! The bytes of records are in [`super::cache`].
//!
//! Invariant: all records before the next offset are committed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use fullbore_wire::Uuid;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::index::PartitionRow;
use fullbore_config::{TimestampType, TopicConfig};
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_log::partition::error::{AppendError, ReadError};
use fullbore_log::partition::outcome::Appended;
use fullbore_log::partition::read::{EpochEnd, Isolation, LogOffsets};
use fullbore_log::partition::waiters::{Registration, Waiters};

/// A diskless partition as a single broker knows it.
pub struct PartitionView {
    topic: Arc<str>,
    topic_id: Uuid,
    index: i32,
    config: RwLock<Arc<TopicConfig>>,
    /// The leader epoch in the metadata. It is larger than the leader epochs of deleted topics of the same name.
    leader_epoch: AtomicI32,
    /// The internal id in the index. Unset until the index has created the partition.
    number: OnceLock<DisklessPartitionId>,
    ready: Notify,
    records: Mutex<KnownRecords>,
    waiters: Arc<Waiters>,
    is_gone: AtomicBool,
    lost: LogRateLimit,
}

/// The records of a partition, as far as this broker knows them.
#[derive(Debug, Default)]
struct KnownRecords {
    log_start: i64,
    next_offset: i64,
    last_stable_offset: i64,
    /// The offset of the newest marker that aborted a transaction, or -1 if there is none.
    aborted_to: i64,
    bytes: i64,
    max_timestamp: i64,
    /// The extents by their first offsets. An extent is added when its commit is known and its bytes are in memory.
    runs: BTreeMap<i64, KnownRun>,
    /// The range of offsets that ends with the newest extent and has no missing extent.
    unbroken: Range<i64>,
    /// Total bytes of all extents that were ever added.
    run_bytes: u64,
    /// The time and the error of the last read that failed. `None` before the first failure.
    failed: Option<(Instant, ReadError)>,
    /// The time at which the newest answered refresh was requested. `None` before the first answer.
    refreshed: Option<Instant>,
}

/// An extent, with the total bytes of all extents that were added before it and of the extent itself.
#[derive(Debug)]
struct KnownRun {
    run: Arc<BatchRun>,
    bytes_with_it: u64,
}

/// The offsets of a partition at one moment. They determine which records a consumer may read.
#[derive(Clone, Copy, Debug)]
pub struct ReadBounds {
    /// The log start, the high watermark and the log end. The last two are equal.
    pub offsets: LogOffsets,
    /// The offset before which all transactions are decided.
    pub last_stable_offset: i64,
    /// The offset of the newest marker that aborted a transaction. No record after this marker is aborted.
    pub aborted_to: i64,
}

impl ReadBounds {
    /// Returns the offset after the last record that a consumer may read.
    pub fn end(&self, isolation: Isolation) -> i64 {
        match isolation {
            Isolation::ReadUncommitted => self.offsets.high_watermark,
            Isolation::ReadCommitted => self.last_stable_offset,
        }
    }
}

impl PartitionView {
    /// Creates the view of a partition, which the index may not have created yet.
    pub(super) fn new(topic: Arc<str>, topic_id: Uuid, index: i32, config: Arc<TopicConfig>) -> PartitionView {
        PartitionView {
            topic,
            topic_id,
            index,
            config: RwLock::new(config),
            leader_epoch: AtomicI32::new(0),
            number: OnceLock::new(),
            ready: Notify::new(),
            records: Mutex::new(KnownRecords { aborted_to: -1, ..KnownRecords::default() }),
            waiters: Arc::default(),
            is_gone: AtomicBool::new(false),
            lost: LogRateLimit::default(),
        }
    }

    /// Returns the leader epoch of the metadata, which clients get with all records.
    pub fn leader_epoch(&self) -> i32 {
        self.leader_epoch.load(Ordering::Relaxed)
    }

    /// Sets the leader epoch.
    pub(super) fn set_leader_epoch(&self, leader_epoch: i32) {
        self.leader_epoch.store(leader_epoch, Ordering::Relaxed);
    }

    /// Returns the topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the topic's id.
    pub fn topic_id(&self) -> Uuid {
        self.topic_id
    }

    /// Returns the partition's number within its topic.
    pub fn index(&self) -> i32 {
        self.index
    }

    /// Returns the current settings of the topic.
    pub fn config(&self) -> Arc<TopicConfig> {
        self.config.read().clone()
    }

    /// Returns how many batches of each producer the topic's settings retain.
    pub(super) fn window(&self) -> usize {
        self.config.read().producer_state_batches_to_retain
    }

    pub(super) fn configure(&self, config: &Arc<TopicConfig>) {
        *self.config.write() = Arc::clone(config);
    }

    /// Returns the internal id in the index, or `None` if the index has not created the partition yet.
    pub fn number(&self) -> Option<DisklessPartitionId> {
        self.number.get().copied()
    }

    /// Applies the row of the partition that the index has created. The partition is then ready.
    pub(super) fn make_ready(&self, row: &PartitionRow) {
        self.moved(row, Vec::new());
        if self.number.set(row.id).is_ok() {
            self.ready.notify_waiters();
            self.waiters.wake();
        }
    }

    /// Returns true if the index has created the partition.
    pub fn is_ready(&self) -> bool {
        self.number.get().is_some()
    }

    /// Waits until the index has created the partition, or the partition is deleted.
    pub async fn opened(&self) {
        loop {
            let ready = self.ready.notified();
            if self.is_ready() || self.is_gone() {
                return;
            }
            ready.await;
        }
    }

    /// Marks the partition as deleted and wakes its waiters for the last time.
    pub(super) fn retire(&self) {
        self.is_gone.store(true, Ordering::SeqCst);
        self.records.lock().runs.clear();
        self.ready.notify_waiters();
        self.waiters.end();
    }

    /// Returns true if the partition's topic is deleted.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }

    pub(super) fn gone(&self) -> AppendError {
        if self.is_gone() { AppendError::Deleted } else { AppendError::Gone }
    }

    /// Registers `waiter`. It is woken each time that records are committed or their bytes arrive, until the caller
    /// drops the returned registration.
    pub fn register(&self, waiter: &Arc<Notify>) -> Registration {
        Registration::new(&self.waiters, waiter)
    }

    /// Wakes the registered waiters.
    pub(super) fn wake(&self) {
        self.waiters.wake();
    }
}

/// Access to the partition's records.
impl PartitionView {
    /// Returns the answer for a duplicate of a batch that was appended at `base_offset` with `timestamp`.
    pub(super) fn appended_before(&self, base_offset: i64, timestamp: i64) -> Appended {
        let is_log_append_time = self.config().message_timestamp_type == TimestampType::LogAppendTime;
        self.appended(base_offset, if is_log_append_time { timestamp } else { -1 })
    }

    /// Returns the answer for a batch that was appended at `base_offset`.
    pub(super) fn appended(&self, base_offset: i64, log_append_time_ms: i64) -> Appended {
        Appended {
            base_offset,
            log_append_time_ms,
            log_start_offset: self.records.lock().log_start,
            batches_retained: self.window(),
        }
    }

    /// Applies a row of the index, and adds the extents `runs` of the newest records.
    pub(super) fn moved(&self, row: &PartitionRow, runs: Vec<Arc<BatchRun>>) {
        let mut known = self.records.lock();
        // Answers may arrive in another order than the requests were sent. An older row must not lower an offset.
        known.log_start = known.log_start.max(row.log_start);
        known.max_timestamp = known.max_timestamp.max(row.max_timestamp);
        known.last_stable_offset = known.last_stable_offset.max(row.last_stable_offset());
        known.aborted_to = known.aborted_to.max(row.aborted_to);
        if row.next_offset >= known.next_offset {
            (known.next_offset, known.bytes) = (row.next_offset, row.bytes);
        }
        if !self.is_gone() {
            runs.into_iter().for_each(|run| known.insert(run));
        }
    }

    /// Records that the view is at least as new as the index was at `requested`.
    pub(super) fn refreshed(&self, requested: Instant) {
        let mut known = self.records.lock();
        known.refreshed = known.refreshed.max(Some(requested));
    }

    /// Returns true if the view is at least as new as the index was at `time`.
    pub(super) fn is_refreshed_since(&self, time: Instant) -> bool {
        self.records.lock().refreshed.is_some_and(|requested| requested >= time)
    }

    /// Returns true if the view was refreshed at least once.
    pub(super) fn was_refreshed(&self) -> bool {
        self.records.lock().refreshed.is_some()
    }

    /// Removes an extent whose bytes are no longer in memory.
    pub(super) fn forget_run(&self, base_offset: i64) {
        self.records.lock().runs.remove(&base_offset);
    }

    /// Returns the adjacent extents in memory, from the extent with `offset` up to the first gap. Returns none if no
    /// extent contains `offset`.
    ///
    /// There is a gap if the answer to a commit was lost. The broker learns the new end of the partition later, but not
    /// the extents of this commit.
    pub(super) fn runs_from(&self, offset: i64) -> Vec<Arc<BatchRun>> {
        let known = self.records.lock();
        let Some(KnownRun { run, .. }) = known.run_with(offset) else { return Vec::new() };
        let mut next = run.base_offset;
        let is_next = |run: &Arc<BatchRun>| std::mem::replace(&mut next, run.end_offset()) == run.base_offset;
        let runs = known.runs.range(run.base_offset..).map(|(_, known)| Arc::clone(&known.run));
        runs.take_while(is_next).collect()
    }

    /// Returns the total bytes of the batches in `offsets`, including the whole batch that contains `offsets.start`.
    /// Returns `None` unless this view has all extents from there to the log end.
    pub(super) fn bytes_between(&self, offsets: Range<i64>) -> Option<u64> {
        let known = self.records.lock();
        let behind = if offsets.end < known.next_offset { known.bytes_from(offsets.end)? } else { 0 };
        Some(known.bytes_from(offsets.start)?.saturating_sub(behind))
    }

    /// Records that a read has failed, and wakes the waiters.
    pub(super) fn failed(&self, why: ReadError) {
        self.records.lock().failed = Some((Instant::now(), why));
        self.wake();
    }

    /// Logs that the object store cannot return the records in `offsets`.
    pub(super) fn lost(&self, offsets: Range<i64>, why: &str) {
        if let Some(left_out) = self.lost.due() {
            let (topic, partition, from, to) = (&*self.topic, self.index, offsets.start, offsets.end - 1);
            tracing::error!(
                topic,
                partition,
                from,
                to,
                why,
                left_out,
                "cannot read records of a diskless topic: consumers cannot get past these records; restore the \
                 object, or skip the records with fullbore consume --skip-bad-batches"
            );
        }
    }

    /// Returns the log start, the high watermark and the log end. The last two are equal.
    pub fn offsets(&self) -> LogOffsets {
        self.bounds().offsets
    }

    /// Returns the offsets that determine which records a consumer may read.
    pub fn bounds(&self) -> ReadBounds {
        let &KnownRecords { log_start, next_offset, last_stable_offset, aborted_to, .. } = &*self.records.lock();
        ReadBounds {
            offsets: LogOffsets { log_start, high_watermark: next_offset, log_end: next_offset },
            last_stable_offset,
            aborted_to,
        }
    }

    /// Returns the total bytes of the partition's extents in the index. The GC removes extents before the log start
    /// later, so some of them may be included.
    pub fn size(&self) -> u64 {
        u64::try_from(self.records.lock().bytes).unwrap_or(0)
    }

    /// Returns the error of the last failed read, or `None` if no read has failed at `time` or later.
    pub(super) fn failed_since(&self, time: Instant) -> Option<ReadError> {
        self.records.lock().failed.filter(|(at, _)| *at >= time).map(|(_, why)| why)
    }

    /// Returns the largest timestamp of all records that were ever appended, but at least 0.
    pub(super) fn largest_timestamp(&self) -> i64 {
        self.records.lock().max_timestamp
    }

    /// Returns the end of a leader epoch. The current epoch ends at the log end. An earlier epoch belongs to a deleted
    /// topic of the same name. It ends at the log start, so that a client reads the new topic from there. The end of a
    /// negative or later epoch is -1.
    pub fn epoch_end_offset(&self, leader_epoch: i32) -> EpochEnd {
        match leader_epoch.cmp(&self.leader_epoch()) {
            _ if leader_epoch < 0 => EpochEnd { leader_epoch: -1, end_offset: -1 },
            std::cmp::Ordering::Less => EpochEnd { leader_epoch, end_offset: self.offsets().log_start },
            std::cmp::Ordering::Equal => EpochEnd { leader_epoch, end_offset: self.offsets().log_end },
            std::cmp::Ordering::Greater => EpochEnd { leader_epoch: -1, end_offset: -1 },
        }
    }
}

impl KnownRecords {
    fn insert(&mut self, run: Arc<BatchRun>) {
        if run.base_offset != self.unbroken.end {
            self.unbroken.start = run.base_offset;
        }
        self.unbroken.end = run.end_offset();
        self.run_bytes += u64::from(run.bytes());
        self.runs.insert(run.base_offset, KnownRun { run, bytes_with_it: self.run_bytes });
    }

    fn bytes_from(&self, offset: i64) -> Option<u64> {
        if offset < self.unbroken.start || self.unbroken.end != self.next_offset {
            return None;
        }
        let KnownRun { run, bytes_with_it } = self.run_with(offset)?;
        Some(self.run_bytes - bytes_with_it + run.bytes_from(offset))
    }

    fn run_with(&self, offset: i64) -> Option<&KnownRun> {
        let (_, known) = self.runs.range(..=offset).next_back()?;
        (known.run.end_offset() > offset).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use fullbore_rules::commit::PackedBatch;

    use super::*;
    use fullbore_config::{BrokerConfig, Properties};

    #[test]
    fn lost_answer_to_a_commit_leaves_a_gap_the_newest_runs_end_before_it() {
        let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let view = PartitionView::new("topic".into(), Uuid([1; 16]), 0, Arc::new(config.topics.defaults));
        let row = PartitionRow {
            id: 1,
            log_start: 0,
            next_offset: 9,
            bytes: 0,
            max_timestamp: 0,
            has_forgotten: false,
            window: 5,
            expired_to: -1,
            first_unstable: None,
            aborted_to: -1,
        };
        let run = |base_offset, record_count| {
            let batches = vec![PackedBatch { size: 100, record_count, max_timestamp: 0 }];
            Arc::new(BatchRun { partition: 1, object: 1, base_offset, position: 0, max_timestamp_so_far: 0, batches })
        };
        // The index has committed offsets 5 and 6, but the answer was lost.
        view.moved(&row, vec![run(0, 3), run(3, 2), run(7, 2)]);
        let from = |offset| view.runs_from(offset).iter().map(|run| run.base_offset).collect::<Vec<_>>();
        assert_eq!((from(1), from(4), from(5), from(8)), (vec![0, 3], vec![3], vec![], vec![7]));
        let bytes = [1, 4, 5, 7, 8, 9].map(|offset| view.bytes_between(offset..9));
        assert_eq!(bytes, [None, None, None, Some(100), Some(100), None], "where nothing is missing up to the end");
        // The answer to an older commit arrives a second time.
        view.moved(&row, vec![run(0, 3)]);
        assert_eq!(view.bytes_between(0..9), None);
    }

    #[test]
    fn bytes_are_counted_from_a_batch_to_the_log_end() {
        let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let view = PartitionView::new("topic".into(), Uuid([1; 16]), 0, Arc::new(config.topics.defaults));
        let batch = |size| PackedBatch { size, record_count: 2, max_timestamp: 0 };
        let sizes: Vec<u32> = (0..40).map(|at| 100 + at).collect();
        for (at, sizes) in (0..).zip(sizes.chunks(4)) {
            let run = BatchRun {
                partition: 1,
                object: at,
                base_offset: 8 * at,
                position: 7,
                max_timestamp_so_far: 0,
                batches: sizes.iter().map(|size| batch(*size)).collect(),
            };
            let row = PartitionRow {
                id: 1,
                log_start: 0,
                next_offset: run.end_offset(),
                bytes: 0,
                max_timestamp: 0,
                has_forgotten: false,
                window: 5,
                expired_to: -1,
                first_unstable: None,
                aborted_to: -1,
            };
            view.moved(&row, vec![Arc::new(run)]);
        }
        for offset in 0..80 {
            let expected = sizes[offset / 2..].iter().sum::<u32>();
            assert_eq!(view.bytes_between(offset as i64..80), Some(u64::from(expected)), "from {offset} on");
        }
        let stable = sizes[3..9].iter().sum::<u32>();
        assert_eq!(view.bytes_between(7..18), Some(u64::from(stable)), "up to a last stable offset");
        view.forget_run(0);
        assert_eq!(
            (view.bytes_between(7..80), view.bytes_between(8..80)),
            (None, Some(u64::from(sizes[4..].iter().sum::<u32>())))
        );
    }
}
