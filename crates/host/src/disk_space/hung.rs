//! Detects writes to the data directory's disk that hang, for example because the file system is frozen or a network
//! volume is gone.
//!
//! Time is divided into rounds, and each write is counted in the round in which it begins. A round ends when all writes
//! of the previous round have returned. If a round lasts for seconds, a write of the previous round hangs. Only polls
//! read a clock, so that writes stay cheap.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a write may take before it counts as hung. A healthy disk may need one or two seconds, for example for a
/// commit of its journal or if a volume is throttled. A leader waits much longer before it drops a follower from the
/// ISR (`replica.lag.time.max.ms`, 30 s).
const HUNG_AFTER: Duration = Duration::from_secs(4);
/// The time between two polls. If a poll is much later, the process itself was stopped. The poll then adds only two
/// intervals to the time for which a write may have hung.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Counts the writes that have begun and not returned yet.
#[derive(Debug)]
pub struct WritesUnderWay {
    /// The number of the current round.
    round: AtomicUsize,
    /// The numbers of running writes that began in even rounds, and of those that began in odd rounds.
    under_way: [AtomicUsize; 2],
    polled: Mutex<LastPoll>,
    hangs: AtomicBool,
}

#[derive(Debug)]
struct LastPoll {
    at: Instant,
    /// How long the round had lasted at the last poll.
    lasts: Duration,
}

/// A running write. It counts as running until this guard is dropped.
pub struct WriteUnderWay<'a>(&'a AtomicUsize);

/// The change since the previous poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HungChange {
    /// A write hangs.
    Hangs,
    /// All hung writes have returned.
    Answers,
}

impl Default for WritesUnderWay {
    fn default() -> WritesUnderWay {
        WritesUnderWay {
            round: AtomicUsize::new(1),
            under_way: Default::default(),
            polled: Mutex::new(LastPoll { at: Instant::now(), lasts: Duration::ZERO }),
            hangs: AtomicBool::new(false),
        }
    }
}

impl WritesUnderWay {
    /// Counts a write until the returned guard is dropped.
    pub fn begin(&self) -> WriteUnderWay<'_> {
        let count = &self.under_way[self.round.load(Relaxed) & 1];
        count.fetch_add(1, Relaxed);
        WriteUnderWay(count)
    }

    /// Checks at the time `now` whether a write hangs, and returns the change since the previous poll, if there is one.
    /// The caller must poll every [`POLL_INTERVAL`].
    pub fn poll(&self, now: Instant) -> Option<HungChange> {
        let mut polled = self.polled.lock();
        let passed = now.saturating_duration_since(polled.at);
        polled.lasts += passed.min(POLL_INTERVAL * 2);
        polled.at = now;
        let round = self.round.load(Relaxed);
        if self.under_way[(round - 1) & 1].load(Relaxed) == 0 {
            self.round.store(round + 1, Relaxed);
            polled.lasts = Duration::ZERO;
        }
        let hangs = polled.lasts >= HUNG_AFTER;
        let hung = self.hangs.swap(hangs, Relaxed);
        (hung != hangs).then_some(if hangs { HungChange::Hangs } else { HungChange::Answers })
    }

    /// Returns true if the last poll found a hung write.
    pub fn hangs(&self) -> bool {
        self.hangs.load(Relaxed)
    }

    /// Returns the minimum time for which a write has been hanging; `None` if no write hangs.
    pub fn hung_for(&self) -> Option<Duration> {
        self.hangs().then(|| self.polled.lock().lasts)
    }
}

impl Drop for WriteUnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls for the given time. Returns the changes, and how long after the start each was found.
    fn polls(writes: &WritesUnderWay, now: &mut Instant, time: Duration) -> Vec<(Duration, HungChange)> {
        let began = *now;
        let mut changes = Vec::new();
        while *now < began + time {
            *now += POLL_INTERVAL;
            changes.extend(writes.poll(*now).map(|change| (*now - began, change)));
        }
        changes
    }

    #[test]
    fn a_long_write_is_hung_until_it_returns() {
        let (writes, mut now) = (WritesUnderWay::default(), Instant::now());
        assert_eq!(polls(&writes, &mut now, HUNG_AFTER * 3), [], "nobody writes");
        let hung = writes.begin();
        let found = polls(&writes, &mut now, HUNG_AFTER * 3);
        assert!(
            matches!(found[..], [(after, HungChange::Hangs)] if after <= HUNG_AFTER + 2 * POLL_INTERVAL),
            "{found:?}"
        );
        assert!(writes.hung_for().is_some_and(|time| time >= HUNG_AFTER * 2));
        drop(hung);
        assert_eq!(polls(&writes, &mut now, POLL_INTERVAL), [(POLL_INTERVAL, HungChange::Answers)]);
        assert_eq!(writes.hung_for(), None);
    }

    #[test]
    fn overlapping_writes_without_a_break_are_not_hung() {
        let (writes, mut now) = (WritesUnderWay::default(), Instant::now());
        let mut before = writes.begin();
        for _ in 0..100 {
            let next = writes.begin();
            assert_eq!(polls(&writes, &mut now, HUNG_AFTER / 4), []);
            before = next;
        }
        drop(before);
        assert_eq!(writes.under_way.iter().map(|count| count.load(Relaxed)).sum::<usize>(), 0);
    }

    #[test]
    fn a_hung_write_is_found_among_others() {
        let (writes, mut now) = (WritesUnderWay::default(), Instant::now());
        let _hung = writes.begin();
        let mut found = Vec::new();
        for _ in 0..40 {
            drop(writes.begin());
            found.extend(polls(&writes, &mut now, POLL_INTERVAL));
        }
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_process_that_stood_still_has_no_hung_write() {
        let (writes, mut now) = (WritesUnderWay::default(), Instant::now());
        let write = writes.begin();
        polls(&writes, &mut now, POLL_INTERVAL * 2);
        now += HUNG_AFTER * 10;
        assert_eq!(writes.poll(now), None);
        drop(write);
        assert_eq!(polls(&writes, &mut now, HUNG_AFTER), []);
    }
}
