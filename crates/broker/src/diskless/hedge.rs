//! When a request that hangs is sent again beside itself.
//!
//! All commits behind an object wait for its PUT, and a reader for its GET. Stores have a long tail: a request that
//! takes several times the usual is likely to be overtaken by another try. A store that is slow altogether must not be
//! loaded twice, so that second tries need credit: for one in ten requests, and for one a second while the store is
//! silent. In a slow store the first try ends first. A second try that overtakes it shows that the first one hangs, and
//! costs nothing.
//!
//! Not here: clocks and bytes.

use std::collections::VecDeque;
use std::time::Duration;

/// Requests whose median is the usual time.
const SEEN_MAX: usize = 64;
/// Before so many are seen, none is usual.
const SEEN_MIN: usize = 8;
/// Part of the time after which a request takes too long that is the usual time.
pub(super) const USUAL_OF_WAIT: f64 = 2.0 / 5.0;
/// The least that is waited.
const WAIT_MIN: Duration = Duration::from_millis(20);
/// How many may be sent again beside each other, and out of how many in the long run.
pub(super) const BURST: u32 = 4;
pub(super) const ONE_IN: u32 = 10;

/// Bytes from which on a request is of the next class: on a narrow link larger ones take longer.
const CLASSES: [u64; 3] = [256 << 10, 1 << 20, 4 << 20];

/// The time that tries take, and how many more requests may be sent again.
#[derive(Debug)]
pub struct Hedging {
    /// By class of size.
    seen: [VecDeque<Duration>; CLASSES.len() + 1],
    /// In parts of [`ONE_IN`].
    credit: u32,
    /// The last second for which there was credit.
    credited_at: Duration,
}

impl Default for Hedging {
    fn default() -> Self {
        Hedging { seen: Default::default(), credit: BURST * ONE_IN, credited_at: Duration::ZERO }
    }
}

impl Hedging {
    /// Notes the time that a try of a request of this many bytes took.
    pub fn note(&mut self, took: Duration, bytes: u64) {
        let seen = &mut self.seen[class_of(bytes)];
        if seen.len() == SEEN_MAX {
            seen.pop_front();
        }
        seen.push_back(took);
        self.credit = (self.credit + 1).min(BURST * ONE_IN);
    }

    /// The time after which a request of this many bytes takes too long, by those of its class or of a larger one;
    /// `None` while that is not known.
    pub fn wait(&self, bytes: u64) -> Option<Duration> {
        let seen = self.seen[class_of(bytes)..].iter().find(|seen| seen.len() >= SEEN_MIN)?;
        let mut seen: Vec<_> = seen.iter().copied().collect();
        let at = seen.len() / 2;
        let (_, usual, _) = seen.select_nth_unstable(at);
        Some(usual.div_f64(USUAL_OF_WAIT).max(WAIT_MIN))
    }

    /// Takes the credit for one second try at `now`, if there is any. `now` is of any clock that begins at zero;
    /// `is_silent` is true while no request makes progress.
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

    /// Returns the credit for the second tries of one request, the last of which has overtaken the first try.
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
    fn what_takes_two_and_a_half_times_the_usual_takes_too_long() {
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
    fn few_are_sent_again() {
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
