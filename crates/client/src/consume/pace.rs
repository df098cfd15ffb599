//! How much a lane asks for at a time, and in how many fetches: both grow while they keep the link from being full.
//!
//! Pure: times come in with each answer. A leader that reads ahead is asked for a window of several answers
//! ([`AheadPace`]), any other one for larger and larger answers ([`SizePace`]), since the offset of its next fetch is
//! in the answer before. Invariant: a pace only grows; what a lane asks for stays within its share of
//! `fetch.buffer.memory` ([`FetchMemory`]), but for one answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Fetches under way at a leader that reads ahead. With more to ask for answers become larger.
pub(super) const FETCHES_MAX: u64 = 32;
/// Fetches under way at a leader that is further than this, before anything is known of the rate: TCP begins slowly.
const FETCHES_FIRST: u64 = 4;
const NEAR: Duration = Duration::from_millis(1);
/// The window, in products of bandwidth and delay: TCP doubles what is under way each round trip, and a fetch takes
/// one to have an effect.
const WINDOW_DELAYS: u64 = 4;
/// Bytes of a partition in an answer to which others' are added.
const PARTITION_SHARE: u32 = 256 << 10;
/// An answer of a leader that does not read ahead is large enough once waiting for it takes less than this part of
/// the time.
const WAITED_PART_MAX: u32 = 12;

/// `fetch.buffer.memory`: bytes that are asked for and not read, in equal shares for all lanes of a run.
#[derive(Debug)]
pub(super) struct FetchMemory {
    bytes: u64,
    lanes: AtomicUsize,
}

/// A lane's share of it.
#[derive(Debug)]
pub(super) struct FetchShare(Arc<FetchMemory>);

impl FetchMemory {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(FetchMemory { bytes, lanes: AtomicUsize::new(0) })
    }

    /// The share of one more lane, until it is dropped.
    pub(super) fn share(self: &Arc<Self>) -> FetchShare {
        self.lanes.fetch_add(1, Ordering::Relaxed);
        FetchShare(self.clone())
    }
}

impl FetchShare {
    /// Bytes, at the moment.
    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes / self.0.lanes.load(Ordering::Relaxed).max(1) as u64
    }
}

impl Drop for FetchShare {
    fn drop(&mut self) {
        self.0.lanes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Measured answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerTimes {
    /// When its fetch was sent.
    pub(super) sent: Instant,
    /// When the lane had nothing left to do but wait for it.
    pub(super) awaited: Instant,
    /// When its first bytes were read.
    pub(super) began: Instant,
    /// When its last bytes were.
    pub(super) ended: Instant,
    pub(super) bytes: u64,
}

/// The window of a lane whose leader reads ahead.
#[derive(Debug)]
pub(super) struct AheadPace {
    /// Bytes of records that one answer brings at most.
    answer_bytes: u32,
    answer_bytes_max: u32,
    /// Bytes of the last answer: fewer where most partitions have no records. No bound if it had all there was.
    usual: u32,
    /// Bytes to be under way.
    window: u64,
    /// The shortest time from a fetch to the first bytes of its answer.
    delay: Option<Duration>,
    /// Since when bytes are counted, at least for as long as the delay, and how many there are.
    counted_since: Option<Instant>,
    counted: u64,
}

impl AheadPace {
    /// Answers of this size at first, at most of that one.
    pub(super) fn new(first: u32, answer_bytes_max: u32) -> Self {
        let answer_bytes = first.min(answer_bytes_max).max(1);
        let window = u64::from(answer_bytes);
        let (delay, counted_since, counted) = (None, None, 0);
        AheadPace { answer_bytes, answer_bytes_max, usual: answer_bytes, window, delay, counted_since, counted }
    }

    /// Takes note of an answer. Returns true if the next ones are to be larger.
    pub(super) fn answered(&mut self, answer: &AnswerTimes) -> bool {
        // A smaller answer had all there was.
        let is_full = answer.bytes >= u64::from(PARTITION_SHARE / 2);
        self.usual = if is_full { u32::try_from(answer.bytes).unwrap_or(u32::MAX) } else { u32::MAX };
        let delay = answer.began.saturating_duration_since(answer.sent);
        let delay = *self.delay.insert(self.delay.map_or(delay, |least| least.min(delay)));
        let since = *self.counted_since.get_or_insert(answer.began);
        self.counted += answer.bytes;
        let took = answer.ended.saturating_duration_since(since);
        if took < delay {
            return false;
        }
        let a_delay = u128::from(self.counted) * delay.as_nanos() / took.as_nanos().max(1);
        self.window = self.window.max(u64::try_from(a_delay).unwrap_or(u64::MAX).saturating_mul(WINDOW_DELAYS));
        (self.counted_since, self.counted) = (Some(answer.ended), 0);
        let before = self.answer_bytes;
        while self.window / u64::from(self.answer_bytes) > FETCHES_MAX && self.answer_bytes < self.answer_bytes_max {
            self.answer_bytes = self.answer_bytes.saturating_mul(2).min(self.answer_bytes_max);
        }
        self.answer_bytes > before
    }

    /// Fetches to be under way within a share of the memory.
    pub(super) fn fetches(&self, share: u64) -> u64 {
        let least = if self.delay.is_some_and(|delay| delay > NEAR) { FETCHES_FIRST } else { 1 };
        let answer_bytes = self.answer_bytes(share);
        let usual = u64::from(self.usual.min(answer_bytes));
        let window = self.window.max(least * usual);
        (window / usual).min(share / u64::from(answer_bytes)).clamp(1, FETCHES_MAX)
    }

    /// Bytes of records that the next answers bring at most.
    pub(super) fn answer_bytes(&self, share: u64) -> u32 {
        self.answer_bytes.min(u32::try_from(share).unwrap_or(u32::MAX)).max(1)
    }

    /// Returns the bytes for one of `partitions`.
    pub(super) fn partition_bytes(&self, partitions: usize) -> u32 {
        let equal = self.answer_bytes / u32::try_from(partitions.max(1)).unwrap_or(u32::MAX);
        equal.max(PARTITION_SHARE).min(self.answer_bytes)
    }
}

/// The size of the answers of a leader that does not read ahead.
#[derive(Debug)]
pub(super) struct SizePace {
    /// Bytes of records that an answer brings of one partition at most.
    partition_bytes: u32,
    answer_bytes_max: u32,
    /// When the answer before was read.
    before: Option<Instant>,
}

impl SizePace {
    /// Begins with `first` bytes of a partition.
    pub(super) fn new(first: u32, answer_bytes_max: u32) -> Self {
        SizePace { partition_bytes: first.min(answer_bytes_max).max(1), answer_bytes_max, before: None }
    }

    /// Takes note of an answer with at most `of_a_partition` bytes of any partition.
    pub(super) fn answered(&mut self, answer: &AnswerTimes, of_a_partition: usize) {
        let before = self.before.replace(answer.ended).unwrap_or(answer.sent);
        let waited = answer.began.saturating_duration_since(answer.awaited.max(answer.sent));
        let took = answer.ended.saturating_duration_since(before);
        let is_full = of_a_partition as u64 >= u64::from(self.partition_bytes) * 3 / 4;
        if is_full && waited * WAITED_PART_MAX > took {
            self.partition_bytes = self.partition_bytes.saturating_mul(2).min(self.answer_bytes_max);
        }
    }

    /// Bytes of records that the next answer brings at most: half of the share, since one is read while the next one
    /// comes.
    pub(super) fn answer_bytes(&self, share: u64) -> u32 {
        self.answer_bytes_max.min(u32::try_from(share / 2).unwrap_or(u32::MAX)).max(1)
    }

    /// Returns the bytes for one partition.
    pub(super) fn partition_bytes(&self, share: u64) -> u32 {
        self.partition_bytes.min(self.answer_bytes(share))
    }
}

#[cfg(test)]
mod tests;
