//! Writes to the disk of the data folder that do not come back: a frozen file system, a dead network volume.
//!
//! A write counts in the round in which it began, and a round lasts until no write of the round before it is under way.
//! A round that lasts tells of a write that hangs, and no clock is asked where a write begins. Not here: what the
//! broker does then.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time after which a write hangs. Several times what a busy disk takes for one (a journal's commit, a throttled
/// volume: a second or two), and far less than the time for which leaders wait for a follower
/// (`replica.lag.time.max.ms`, 30 s).
const HUNG_AFTER: Duration = Duration::from_secs(4);
/// Time between two looks. Where more has passed, the process stood still, and the rest does not count.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Writes under way.
#[derive(Debug)]
pub struct WritesUnderWay {
    /// The number of the round.
    round: AtomicUsize,
    /// Writes under way of even rounds, and of odd ones.
    under_way: [AtomicUsize; 2],
    looked: Mutex<LastLook>,
    hangs: AtomicBool,
}

#[derive(Debug)]
struct LastLook {
    at: Instant,
    /// Time for which the round lasts.
    lasts: Duration,
}

/// A write, until this is dropped.
pub struct WriteUnderWay<'a>(&'a AtomicUsize);

/// A change that a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HungChange {
    /// A write hangs.
    Hangs,
    /// Each write that hung has come back.
    Answers,
}

impl Default for WritesUnderWay {
    fn default() -> WritesUnderWay {
        WritesUnderWay {
            round: AtomicUsize::new(1),
            under_way: Default::default(),
            looked: Mutex::new(LastLook { at: Instant::now(), lasts: Duration::ZERO }),
            hangs: AtomicBool::new(false),
        }
    }
}

impl WritesUnderWay {
    /// Begins a write.
    pub fn begin(&self) -> WriteUnderWay<'_> {
        let count = &self.under_way[self.round.load(Relaxed) & 1];
        count.fetch_add(1, Relaxed);
        WriteUnderWay(count)
    }

    /// Looks for writes that hang; to be called each [`LOOK_EVERY`]. Returns what has changed.
    pub fn look(&self, now: Instant) -> Option<HungChange> {
        let mut looked = self.looked.lock();
        let passed = now.saturating_duration_since(looked.at);
        looked.lasts += passed.min(LOOK_EVERY * 2);
        looked.at = now;
        let round = self.round.load(Relaxed);
        if self.under_way[(round - 1) & 1].load(Relaxed) == 0 {
            self.round.store(round + 1, Relaxed);
            looked.lasts = Duration::ZERO;
        }
        let hangs = looked.lasts >= HUNG_AFTER;
        let hung = self.hangs.swap(hangs, Relaxed);
        (hung != hangs).then_some(if hangs { HungChange::Hangs } else { HungChange::Answers })
    }

    /// Returns true if the last look has found a write that hangs.
    pub fn hangs(&self) -> bool {
        self.hangs.load(Relaxed)
    }

    /// Returns for how long a write has hung at least; None if none hangs.
    pub fn hung_for(&self) -> Option<Duration> {
        self.hangs().then(|| self.looked.lock().lasts)
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

    /// Looks for `time`. Returns the changes, and how long after the begin each was found.
    fn looks(writes: &WritesUnderWay, now: &mut Instant, time: Duration) -> Vec<(Duration, HungChange)> {
        let began = *now;
        let mut changes = Vec::new();
        while *now < began + time {
            *now += LOOK_EVERY;
            changes.extend(writes.look(*now).map(|change| (*now - began, change)));
        }
        changes
    }

    #[test]
    fn write_under_way_for_long_it_hangs_until_it_comes_back() {
        let (writes, mut now) = (WritesUnderWay::default(), Instant::now());
        assert_eq!(looks(&writes, &mut now, HUNG_AFTER * 3), [], "nobody writes");
        let hung = writes.begin();
        let found = looks(&writes, &mut now, HUNG_AFTER * 3);
        assert!(matches!(found[..], [(after, HungChange::Hangs)] if after <= HUNG_AFTER + 2 * LOOK_EVERY), "{found:?}");
        assert!(writes.hung_for().is_some_and(|time| time >= HUNG_AFTER * 2));
        drop(hung);
        assert_eq!(looks(&writes, &mut now, LOOK_EVERY), [(LOOK_EVERY, HungChange::Answers)]);
        assert_eq!(writes.hung_for(), None);
    }

    #[test]
    fn writes_follow_each_other_without_a_break_none_hangs() {
        let (writes, mut now) = (WritesUnderWay::default(), Instant::now());
        let mut before = writes.begin();
        for _ in 0..100 {
            let next = writes.begin();
            assert_eq!(looks(&writes, &mut now, HUNG_AFTER / 4), []);
            before = next;
        }
        drop(before);
        assert_eq!(writes.under_way.iter().map(|count| count.load(Relaxed)).sum::<usize>(), 0);
    }

    #[test]
    fn others_write_one_write_hangs_it_is_found() {
        let (writes, mut now) = (WritesUnderWay::default(), Instant::now());
        let _hung = writes.begin();
        let mut found = Vec::new();
        for _ in 0..40 {
            drop(writes.begin());
            found.extend(looks(&writes, &mut now, LOOK_EVERY));
        }
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn process_stood_still_during_a_write_it_does_not_hang() {
        let (writes, mut now) = (WritesUnderWay::default(), Instant::now());
        let write = writes.begin();
        looks(&writes, &mut now, LOOK_EVERY * 2);
        now += HUNG_AFTER * 10;
        assert_eq!(writes.look(now), None);
        drop(write);
        assert_eq!(looks(&writes, &mut now, HUNG_AFTER), []);
    }
}
