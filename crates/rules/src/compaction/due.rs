//! Finds the dirty part of a log, and decides whether the log must be cleaned (Kafka's `LogCleanerManager`).
//!
//! Only the cleanable part of the log counts. It ends before the first closed segment that reaches beyond the last
//! stable offset, or that has a record younger than min.compaction.lag.ms. The log is clean up to the checkpoint of the
//! last cleaning. The rest of the cleanable part is dirty.

/// A closed segment, which gets no more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    pub base_offset: i64,
    /// The size of the segment in bytes.
    pub size: u64,
    /// The first timestamp of the segment's first batch, in ms. It is needed only if there is a max.compaction.lag.ms.
    pub first_timestamp: Option<i64>,
    /// The largest timestamp of the segment, in ms. It is needed only if there is a min.compaction.lag.ms.
    pub largest_timestamp: Option<i64>,
}

/// The facts about a log that decide on its cleaning.
#[derive(Clone, Copy, Debug)]
pub struct CleanableLog<'a> {
    /// The closed segments, in order.
    pub closed: &'a [Closed],
    /// The base offset of the active segment, at which the last closed segment ends.
    pub active_base: i64,
    pub log_start: i64,
    pub log_end: i64,
    /// The offset of the first record that is not replicated or may still be aborted.
    pub last_stable_offset: i64,
    /// The offset at which the last cleaning ended, if there was one.
    pub checkpoint: Option<i64>,
}

/// min.compaction.lag.ms and max.compaction.lag.ms of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lags {
    pub min_ms: i64,
    /// The maximum lag; `i64::MAX` if there is none.
    pub max_ms: i64,
}

/// The dirty part of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirty {
    /// The checkpoint of the last cleaning, or the log start if there is no checkpoint within the log.
    pub first_dirty: i64,
    /// The offset at which the cleanable part ends. This is the base offset of a segment.
    pub end: i64,
    pub clean_bytes: u64,
    pub dirty_bytes: u64,
    /// True if a closed segment above `first_dirty` begins with a batch that is older than max.compaction.lag.ms.
    pub is_overdue: bool,
    /// True if there is a checkpoint that is outside the log.
    pub is_reset: bool,
}

impl Dirty {
    /// Returns the share of dirty bytes among all bytes that a cleaning would read.
    pub fn ratio(&self) -> f64 {
        match self.clean_bytes + self.dirty_bytes {
            0 => 0.0,
            total => self.dirty_bytes as f64 / total as f64,
        }
    }

    /// Returns true if the log must be cleaned now. `min_ratio` is min.cleanable.dirty.ratio.
    pub fn is_due(&self, min_ratio: f64) -> bool {
        self.dirty_bytes > 0 && (self.is_overdue || self.ratio() > min_ratio)
    }
}

/// Returns the dirty part of the log at `now_ms`.
pub fn dirty(log: &CleanableLog<'_>, lags: Lags, now_ms: i64) -> Dirty {
    let known = log.checkpoint.filter(|offset| (log.log_start..=log.log_end).contains(offset));
    let first_dirty = known.unwrap_or(log.log_start);
    let end = end_of_cleanable(log, first_dirty, lags.min_ms, now_ms);
    let (mut clean_bytes, mut dirty_bytes) = (0, 0);
    let mut oldest = i64::MAX;
    for (segment, segment_end) in with_ends(log) {
        if segment.base_offset >= end {
            break;
        }
        // If the last cleaning ran out of memory, it ended in the middle of a segment. The whole segment then counts as
        // dirty.
        if segment_end <= first_dirty {
            clean_bytes += segment.size;
        } else {
            dirty_bytes += segment.size;
        }
    }
    for (segment, segment_end) in with_ends(log) {
        if segment_end > first_dirty {
            oldest = segment.first_timestamp.filter(|&time| time > 0).map_or(oldest, |time| oldest.min(time));
        }
    }
    let is_overdue = lags.max_ms != i64::MAX && oldest < now_ms.saturating_sub(lags.max_ms);
    let is_reset = log.checkpoint.is_some() && known.is_none();
    Dirty { first_dirty, end, clean_bytes, dirty_bytes, is_overdue, is_reset }
}

/// Returns the offset at which the cleanable part ends. This is the base offset of a segment.
fn end_of_cleanable(log: &CleanableLog<'_>, first_dirty: i64, min_lag_ms: i64, now_ms: i64) -> i64 {
    let too_new = now_ms.saturating_sub(min_lag_ms);
    for (segment, segment_end) in with_ends(log) {
        let is_new = min_lag_ms > 0
            && segment_end > first_dirty
            && segment.largest_timestamp.is_some_and(|timestamp| timestamp > too_new);
        if segment_end > log.last_stable_offset || is_new {
            return segment.base_offset;
        }
    }
    log.active_base
}

fn with_ends<'a>(log: &CleanableLog<'a>) -> impl Iterator<Item = (&'a Closed, i64)> {
    let active_base = log.active_base;
    let ends = log.closed.iter().skip(1).map(|next| next.base_offset).chain(std::iter::once(active_base));
    log.closed.iter().zip(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Lags = Lags { min_ms: 0, max_ms: i64::MAX };

    /// Returns `count` segments, each with 100 offsets and 10 bytes, one for every second.
    fn closed(count: i64) -> Vec<Closed> {
        let segment = |n| Closed {
            base_offset: n * 100,
            size: 10,
            first_timestamp: Some(n * 1000 + 1),
            largest_timestamp: Some(n * 1000 + 999),
        };
        (0..count).map(segment).collect()
    }

    fn facts(closed: &[Closed], checkpoint: Option<i64>) -> CleanableLog<'_> {
        let active_base = closed.len() as i64 * 100;
        let log_end = active_base + 50;
        CleanableLog { closed, active_base, log_start: 0, log_end, last_stable_offset: log_end, checkpoint }
    }

    #[test]
    fn log_never_cleaned_is_dirty_up_to_the_active_segment() {
        let closed = closed(4);
        let found = dirty(&facts(&closed, None), NONE, 10_000);
        assert_eq!((found.first_dirty, found.end, found.clean_bytes, found.dirty_bytes), (0, 400, 0, 40));
        assert!(found.is_due(0.5) && !found.is_reset && !found.is_overdue);
    }

    #[test]
    fn log_at_the_ratio_is_not_due_and_above_it_is() {
        let closed = closed(4);
        let found = dirty(&facts(&closed, Some(200)), NONE, 10_000);
        assert_eq!((found.clean_bytes, found.dirty_bytes, found.ratio()), (20, 20, 0.5));
        assert!(!found.is_due(0.5) && found.is_due(0.49));
        let found = dirty(&facts(&closed, Some(400)), NONE, 10_000);
        assert!(!found.is_due(0.0));
    }

    #[test]
    fn checkpoint_outside_the_log_is_ignored() {
        let closed = closed(4);
        let mut log = facts(&closed, Some(451));
        assert_eq!((dirty(&log, NONE, 0).first_dirty, dirty(&log, NONE, 0).is_reset), (0, true));
        (log.log_start, log.checkpoint) = (150, Some(100));
        assert_eq!((dirty(&log, NONE, 0).first_dirty, dirty(&log, NONE, 0).is_reset), (150, true));
    }

    #[test]
    fn new_and_unstable_records_are_not_cleanable() {
        let closed = closed(4);
        let lags = Lags { min_ms: 1500, ..NONE };
        assert_eq!(dirty(&facts(&closed, None), lags, 3498).end, 100);
        assert_eq!(dirty(&facts(&closed, None), lags, 3499).end, 200);
        let mut log = facts(&closed, None);
        log.last_stable_offset = 299;
        assert_eq!(dirty(&log, NONE, 10_000).end, 200);
        log.last_stable_offset = 300;
        assert_eq!(dirty(&log, NONE, 10_000).end, 300);
    }

    #[test]
    fn dirty_record_older_than_the_largest_lag_is_overdue_at_any_ratio() {
        let closed = closed(4);
        let lags = Lags { max_ms: 5000, ..NONE };
        let found = |now_ms| dirty(&facts(&closed, Some(300)), lags, now_ms);
        assert!(!found(8001).is_due(0.99));
        assert!(found(8002).is_due(0.99));
        assert!(!dirty(&facts(&closed, Some(400)), lags, 100_000).is_overdue);
    }
}
