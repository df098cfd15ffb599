//! Decides when a slow request gets a second try beside the first one, and limits the number of second tries.
//!
//! The PUT of an object delays all later commits, and a GET delays its reader. A few requests take several times the
//! usual time. If such a request is sent a second time, the second try is likely to end first.
//!
//! If the whole store is slow, second tries must not double its load. Each second try therefore costs credit. Ten
//! successful requests earn the credit for one second try, and so does each second in which no request makes progress.
//! If the second try ends first, only the first one was slow, and the credit is given back. If the first try ends
//! first, the store as a whole is slow, and the credit is spent.
//!
//! This module has no clock and does no I/O.

use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of durations that are kept for each class of requests; older ones are dropped. Their median is the
/// usual time of the class.
const SEEN_MAX: usize = 64;
/// How many durations of a class must be known before it has a usual time.
const SEEN_MIN: usize = 8;
/// The ratio of the usual time of a request to the wait for its second try: the wait is 2.5 times the usual time.
pub(super) const USUAL_OF_WAIT: f64 = 2.0 / 5.0;
/// Minimum time before a second try starts.
const WAIT_MIN: Duration = Duration::from_millis(20);
/// Maximum number of second tries that saved credit allows at once.
pub(super) const BURST: u32 = 4;
/// How many successful requests earn the credit for one second try.
pub(super) const ONE_IN: u32 = 10;

/// Limits between the classes of requests, in bytes: the first class has the requests below the first limit. Each class
/// has its own durations, because large requests take longer on a narrow link.
const CLASSES: [u64; 3] = [256 << 10, 1 << 20, 4 << 20];

/// The durations of earlier tries, and the credit for second tries.
#[derive(Debug)]
pub struct Hedging {
    /// The newest durations of each class of [`CLASSES`].
    seen: [VecDeque<Duration>; CLASSES.len() + 1],
    /// The credit for second tries, in successful requests. A second try costs [`ONE_IN`].
    credit: u32,
    /// The end of the time without progress that has already earned credit. While requests make progress, `take` sets
    /// it to now.
    credited_at: Duration,
}

impl Default for Hedging {
    fn default() -> Self {
        Hedging { seen: Default::default(), credit: BURST * ONE_IN, credited_at: Duration::ZERO }
    }
}

impl Hedging {
    /// Records that a try of a request with `bytes` bytes took `took`.
    pub fn note(&mut self, took: Duration, bytes: u64) {
        let seen = &mut self.seen[class_of(bytes)];
        if seen.len() == SEEN_MAX {
            seen.pop_front();
        }
        seen.push_back(took);
        self.credit = (self.credit + 1).min(BURST * ONE_IN);
    }

    /// Returns how long a request of `bytes` bytes may take before it gets a second try. The wait is computed from the
    /// usual time of the request's class, or of the next larger class that has one. Returns `None` if there is none.
    pub fn wait(&self, bytes: u64) -> Option<Duration> {
        let seen = self.seen[class_of(bytes)..].iter().find(|seen| seen.len() >= SEEN_MIN)?;
        let mut seen: Vec<_> = seen.iter().copied().collect();
        let at = seen.len() / 2;
        let (_, usual, _) = seen.select_nth_unstable(at);
        Some(usual.div_f64(USUAL_OF_WAIT).max(WAIT_MIN))
    }

    /// Takes the credit for one second try. Returns false if there is not enough credit. `now` is the time since a
    /// fixed moment, the same in all calls. `is_silent` is true while no request makes progress.
    pub fn take(&mut self, now: Duration, is_silent: bool) -> bool {
        if !is_silent {
            self.credited_at = now;
        }
        let seconds = now.saturating_sub(self.credited_at).as_secs();
        self.credited_at += Duration::from_secs(seconds);
        let earned = u32::try_from(seconds).unwrap_or(BURST).min(BURST) * ONE_IN;
        self.credit = (self.credit + earned).min(BURST * ONE_IN);
        let may = self.credit >= ONE_IN;
        self.credit -= if may { ONE_IN } else { 0 };
        may
    }

    /// Gives back the credit for the `tries` second tries of one request, because the last of them succeeded before the
    /// first try.
    pub fn give_back(&mut self, tries: u32) {
        self.credit = tries.saturating_mul(ONE_IN).saturating_add(self.credit).min(BURST * ONE_IN);
    }
}

fn class_of(bytes: u64) -> usize {
    CLASSES.iter().take_while(|from| bytes >= **from).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn request_takes_two_and_a_half_times_the_usual_it_takes_too_long() {
        let mut hedging = Hedging::default();
        (1..SEEN_MIN).for_each(|_| hedging.note(MS(100), 1));
        assert_eq!(hedging.wait(1), None);
        hedging.note(MS(3000), 1);
        assert_eq!(hedging.wait(1), Some(MS(250)), "one that hung changes nothing");
        assert_eq!(hedging.wait(8 << 20), None, "larger ones may take longer");
        (0..SEEN_MAX).for_each(|_| hedging.note(MS(1), 1));
        assert_eq!(hedging.wait(1), Some(WAIT_MIN));
        (0..SEEN_MIN).for_each(|_| hedging.note(MS(4000), 8 << 20));
        assert_eq!(
            [1, 300 << 10, 8 << 20].map(|bytes| hedging.wait(bytes)),
            [Some(WAIT_MIN), Some(MS(10_000)), Some(MS(10_000))]
        );
    }

    #[test]
    fn all_requests_are_late_few_get_a_second_try() {
        let mut hedging = Hedging::default();
        assert_eq!((0..10).filter(|_| hedging.take(MS(500), true)).count(), 4);
        let sent_again = (0..1000).filter(|_| {
            hedging.note(MS(100), 1);
            hedging.take(MS(500), true)
        });
        assert_eq!(sent_again.count(), 100);
        assert_eq!((0..100).filter(|at| hedging.take(MS(1000 + at * 100), true)).count(), 10, "one a second");
        assert_eq!((0..10).filter(|_| hedging.take(MS(1_000_000), true)).count(), 4);
        assert_eq!((0..10).filter(|_| hedging.take(MS(2_000_000), false)).count(), 0, "others progress");
    }

    #[test]
    fn second_try_overtakes_its_credit_is_given_back() {
        let mut hedging = Hedging::default();
        assert_eq!((0..10).filter(|_| hedging.take(MS(500), false)).count(), 4);
        hedging.give_back(3);
        assert_eq!((0..10).filter(|_| hedging.take(MS(500), false)).count(), 3);
        hedging.give_back(u32::MAX);
        assert_eq!((0..10).filter(|_| hedging.take(MS(500), false)).count(), 4, "and no more than a burst");
    }
}
