//! Number and size of a fetcher's fetches: both grow while that fills the link better.
//!
//! Pure: times are passed with each response. A leader that reads ahead gets a window of several fetches
//! ([`AheadPace`]). Any other leader gets larger and larger ones ([`SizePace`]), since the offset of the next fetch is
//! only known from the last response. Invariant: a pace only grows, and stays within the fetcher's share of
//! `fetch.buffer.memory` ([`FetchMemory`]), but for one response.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Largest number of fetches under way at a leader that reads ahead. Beyond it, responses become larger.
pub(super) const FETCHES_MAX: u64 = 32;
/// Number of first fetches at a leader that is further than `NEAR`, while the rate is unknown: TCP starts slowly.
const FETCHES_FIRST: u64 = 4;
const NEAR: Duration = Duration::from_millis(1);
/// Window, in products of bandwidth and delay. TCP doubles the bytes under way each round trip, and a fetch takes one
/// to have an effect.
const WINDOW_DELAYS: u64 = 4;
/// Bytes of one partition in a response up to which other partitions are added.
const PARTITION_SHARE: u32 = 256 << 10;
/// Divisor of a response's time: responses of a leader that does not read ahead are large enough once the wait for one
/// takes less than this part.
const WAITED_PART_MAX: u32 = 12;

/// `fetch.buffer.memory`: bytes that are requested and not read, in equal shares for all fetchers of a run.
#[derive(Debug)]
pub(super) struct FetchMemory {
    bytes: u64,
    fetchers: AtomicUsize,
}

/// Share of a fetcher.
#[derive(Debug)]
pub(super) struct FetchShare(Arc<FetchMemory>);

impl FetchMemory {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(FetchMemory { bytes, fetchers: AtomicUsize::new(0) })
    }

    /// Returns the share of one more fetcher, until it is dropped.
    pub(super) fn share(self: &Arc<Self>) -> FetchShare {
        self.fetchers.fetch_add(1, Ordering::Relaxed);
        FetchShare(self.clone())
    }
}

impl FetchShare {
    /// Returns the bytes of the share now.
    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes / self.0.fetchers.load(Ordering::Relaxed).max(1) as u64
    }
}

impl Drop for FetchShare {
    fn drop(&mut self) {
        self.0.fetchers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Times of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerTimes {
    /// Time at which its fetch was sent.
    pub(super) sent: Instant,
    /// Time from which the fetcher only waited for it.
    pub(super) awaited: Instant,
    /// Time at which its first bytes were read.
    pub(super) began: Instant,
    /// Time at which its last bytes were read.
    pub(super) ended: Instant,
    pub(super) bytes: u64,
}

/// Pace of a fetcher whose leader reads ahead.
#[derive(Debug)]
pub(super) struct AheadPace {
    /// Largest number of bytes of records in one response.
    answer_bytes: u32,
    answer_bytes_max: u32,
    /// Bytes to expect of a response: those of the last one, fewer than `answer_bytes` if most partitions have no
    /// records. u32::MAX after a small response, which had all records that there were.
    usual: u32,
    /// Bytes that should be under way.
    window: u64,
    /// Shortest time from a fetch to the first bytes of its response.
    delay: Option<Duration>,
    /// Time since which bytes are counted, at least for the delay, and their number.
    counted_since: Option<Instant>,
    counted: u64,
}

impl AheadPace {
    /// Makes a pace with responses of `first` bytes, which grow to `answer_bytes_max`.
    pub(super) fn new(first: u32, answer_bytes_max: u32) -> Self {
        let answer_bytes = first.min(answer_bytes_max).max(1);
        let window = u64::from(answer_bytes);
        let (delay, counted_since, counted) = (None, None, 0);
        AheadPace { answer_bytes, answer_bytes_max, usual: answer_bytes, window, delay, counted_since, counted }
    }

    /// Adapts to a response. Returns true if the next ones are larger.
    pub(super) fn answered(&mut self, answer: &AnswerTimes) -> bool {
        // A smaller response had all records that there were.
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

    /// Returns the number of fetches that should be under way, within a share of the memory.
    pub(super) fn fetches(&self, share: u64) -> u64 {
        let least = if self.delay.is_some_and(|delay| delay > NEAR) { FETCHES_FIRST } else { 1 };
        let answer_bytes = self.answer_bytes(share);
        let usual = u64::from(self.usual.min(answer_bytes));
        let window = self.window.max(least * usual);
        (window / usual).min(share / u64::from(answer_bytes)).clamp(1, FETCHES_MAX)
    }

    /// Returns the largest number of bytes of records in the next responses.
    pub(super) fn answer_bytes(&self, share: u64) -> u32 {
        self.answer_bytes.min(u32::try_from(share).unwrap_or(u32::MAX)).max(1)
    }

    /// Returns the bytes for one of `partitions`.
    pub(super) fn partition_bytes(&self, partitions: usize) -> u32 {
        let equal = self.answer_bytes / u32::try_from(partitions.max(1)).unwrap_or(u32::MAX);
        equal.max(PARTITION_SHARE).min(self.answer_bytes)
    }
}

/// Pace of a fetcher whose leader does not read ahead.
#[derive(Debug)]
pub(super) struct SizePace {
    /// Largest number of bytes of one partition in a response.
    partition_bytes: u32,
    answer_bytes_max: u32,
    /// Time at which the response before was read.
    before: Option<Instant>,
}

impl SizePace {
    /// Makes a pace that starts with `first` bytes of a partition.
    pub(super) fn new(first: u32, answer_bytes_max: u32) -> Self {
        SizePace { partition_bytes: first.min(answer_bytes_max).max(1), answer_bytes_max, before: None }
    }

    /// Adapts to a response with at most `of_a_partition` bytes of any partition.
    pub(super) fn answered(&mut self, answer: &AnswerTimes, of_a_partition: usize) {
        let before = self.before.replace(answer.ended).unwrap_or(answer.sent);
        let waited = answer.began.saturating_duration_since(answer.awaited.max(answer.sent));
        let took = answer.ended.saturating_duration_since(before);
        let is_full = of_a_partition as u64 >= u64::from(self.partition_bytes) * 3 / 4;
        if is_full && waited * WAITED_PART_MAX > took {
            self.partition_bytes = self.partition_bytes.saturating_mul(2).min(self.answer_bytes_max);
        }
    }

    /// Returns the largest number of bytes of records in the next response: half of the share, since one response is
    /// read while the next one arrives.
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
