//! Determines the number and size of a fetcher's fetches. Both grow as long as more bytes in flight raise the
//! throughput.
//!
//! The caller passes the times of each response. A leader that reads ahead gets a window of several fetches
//! ([`AheadPace`]). Any other leader gets one fetch of growing size ([`SizePace`]), since the offset of the next fetch
//! is only known from the last response. Invariants: a pace never shrinks its window or the size of its responses. The
//! requested bytes exceed the fetcher's share of `fetch.buffer.memory` ([`FetchMemory`]) by at most one response.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of fetches in flight at a leader that reads ahead. If the window needs more, responses become larger.
pub(super) const FETCHES_MAX: u64 = 32;
/// Minimum number of fetches in flight at a leader whose delay exceeds [`NEAR`]. The first measured rate would give too
/// few, because it is measured during TCP's slow start.
const FETCHES_FIRST: u64 = 4;
/// Maximum delay at which a leader counts as near.
const NEAR: Duration = Duration::from_millis(1);
/// The size of the window, as a multiple of bandwidth times delay. A larger window takes effect one round trip after
/// the measurement, and in this time TCP doubles its own bytes in flight. A smaller multiple would therefore slow TCP
/// down.
const WINDOW_DELAYS: u64 = 4;
/// The minimum number of bytes to request for one partition in a fetch of several partitions.
const PARTITION_SHARE: u32 = 256 << 10;
/// If a leader does not read ahead, responses stop growing once the wait for the first byte takes at most 1/12 of the
/// time of a whole response.
const WAITED_PART_MAX: u32 = 12;

/// The limit of requested and unread bytes (`fetch.buffer.memory`). All fetchers of a run have equal shares of it.
#[derive(Debug)]
pub(super) struct FetchMemory {
    bytes: u64,
    fetchers: AtomicUsize,
}

/// The share of one fetcher. Dropping this value gives the share to the other fetchers.
#[derive(Debug)]
pub(super) struct FetchShare(Arc<FetchMemory>);

impl FetchMemory {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(FetchMemory { bytes, fetchers: AtomicUsize::new(0) })
    }

    /// Returns the share of a new fetcher, which makes all other shares smaller.
    pub(super) fn share(self: &Arc<Self>) -> FetchShare {
        self.fetchers.fetch_add(1, Ordering::Relaxed);
        FetchShare(self.clone())
    }
}

impl FetchShare {
    /// Returns the present size of the share in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes / self.0.fetchers.load(Ordering::Relaxed).max(1) as u64
    }
}

impl Drop for FetchShare {
    fn drop(&mut self) {
        self.0.fetchers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The times of a response, and its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerTimes {
    /// When the fetch was sent.
    pub(super) sent: Instant,
    /// When the fetcher began to wait for the response.
    pub(super) awaited: Instant,
    /// When the first bytes of the response were read.
    pub(super) began: Instant,
    /// When the last bytes of the response were read.
    pub(super) ended: Instant,
    pub(super) bytes: u64,
}

/// The pace of a fetcher whose leader reads ahead.
#[derive(Debug)]
pub(super) struct AheadPace {
    /// Maximum number of bytes of records in one response.
    answer_bytes: u32,
    answer_bytes_max: u32,
    /// The expected size of a response in bytes: the size of the last one. It may be smaller than `answer_bytes` if
    /// most partitions have no records. `u32::MAX` after a small response, which contained all records of the leader
    /// and predicts nothing.
    usual: u32,
    /// How many bytes should be in flight.
    window: u64,
    /// The shortest measured time from a fetch to the first bytes of its response.
    delay: Option<Duration>,
    /// The start of the present measurement of the rate, and the bytes that have arrived since. A measurement takes at
    /// least one delay.
    counted_since: Option<Instant>,
    counted: u64,
}

impl AheadPace {
    /// Creates a pace that requests responses of `first` bytes at the start, and of up to `answer_bytes_max` later.
    pub(super) fn new(first: u32, answer_bytes_max: u32) -> Self {
        let answer_bytes = first.min(answer_bytes_max).max(1);
        let window = u64::from(answer_bytes);
        let (delay, counted_since, counted) = (None, None, 0);
        AheadPace { answer_bytes, answer_bytes_max, usual: answer_bytes, window, delay, counted_since, counted }
    }

    /// Adapts to a response. Returns true if later responses may be larger.
    pub(super) fn answered(&mut self, answer: &AnswerTimes) -> bool {
        // A smaller response contained all records that the leader had. Its size therefore does not predict the size of
        // the next ones.
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

    /// Returns how many fetches should be in flight, if the fetcher's share of the memory is `share` bytes.
    pub(super) fn fetches(&self, share: u64) -> u64 {
        let least = if self.delay.is_some_and(|delay| delay > NEAR) { FETCHES_FIRST } else { 1 };
        let answer_bytes = self.answer_bytes(share);
        let usual = u64::from(self.usual.min(answer_bytes));
        let window = self.window.max(least * usual);
        (window / usual).min(share / u64::from(answer_bytes)).clamp(1, FETCHES_MAX)
    }

    /// Returns how many bytes of records each of the next responses may have.
    pub(super) fn answer_bytes(&self, share: u64) -> u32 {
        self.answer_bytes.min(u32::try_from(share).unwrap_or(u32::MAX)).max(1)
    }

    /// Returns how many bytes each of `partitions` partitions may contribute to a response.
    pub(super) fn partition_bytes(&self, partitions: usize) -> u32 {
        let equal = self.answer_bytes / u32::try_from(partitions.max(1)).unwrap_or(u32::MAX);
        equal.max(PARTITION_SHARE).min(self.answer_bytes)
    }
}

/// The pace of a fetcher whose leader does not read ahead.
#[derive(Debug)]
pub(super) struct SizePace {
    /// Maximum number of bytes of one partition in a response.
    partition_bytes: u32,
    answer_bytes_max: u32,
    /// When the previous response was read.
    before: Option<Instant>,
}

impl SizePace {
    /// Creates a pace that requests `first` bytes of each partition at the start.
    pub(super) fn new(first: u32, answer_bytes_max: u32) -> Self {
        SizePace { partition_bytes: first.min(answer_bytes_max).max(1), answer_bytes_max, before: None }
    }

    /// Adapts to a response whose largest partition had `of_a_partition` bytes.
    pub(super) fn answered(&mut self, answer: &AnswerTimes, of_a_partition: usize) {
        let before = self.before.replace(answer.ended).unwrap_or(answer.sent);
        let waited = answer.began.saturating_duration_since(answer.awaited.max(answer.sent));
        let took = answer.ended.saturating_duration_since(before);
        let is_full = of_a_partition as u64 >= u64::from(self.partition_bytes) * 3 / 4;
        if is_full && waited * WAITED_PART_MAX > took {
            self.partition_bytes = self.partition_bytes.saturating_mul(2).min(self.answer_bytes_max);
        }
    }

    /// Returns how many bytes of records the next response may have. This is half of the share, because one response is
    /// read while the next one arrives.
    pub(super) fn answer_bytes(&self, share: u64) -> u32 {
        self.answer_bytes_max.min(u32::try_from(share / 2).unwrap_or(u32::MAX)).max(1)
    }

    /// Returns how many bytes each partition may have.
    pub(super) fn partition_bytes(&self, share: u64) -> u32 {
        self.partition_bytes.min(self.answer_bytes(share))
    }
}

#[cfg(test)]
mod tests;
