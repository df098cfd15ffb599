//! When a PUT that hangs is sent again beside itself.
//!
//! All commits behind an object wait for its PUT, and stores have a long tail: what takes several times the usual is likely to be overtaken by another
//! try. A store that is slow altogether must not be loaded twice, so that only few may be sent again.
//!
//! Not here: clocks and bytes.

use std::collections::VecDeque;
use std::time::Duration;

/// PUTs whose median is the usual time.
const SEEN_MAX: usize = 64;
/// Before so many are seen, none is usual.
const SEEN_MIN: usize = 8;
/// The least that is waited.
const WAIT_MIN: Duration = Duration::from_millis(20);
/// How many may be sent again beside each other, and out of how many in the long run.
const BURST: u32 = 4;
const ONE_IN: u32 = 10;

/// What PUTs take, and how many more may be sent again.
#[derive(Debug)]
pub struct Hedging {
    seen: VecDeque<Duration>,
    /// In parts of [`ONE_IN`].
    credit: u32,
}

impl Default for Hedging {
    fn default() -> Self {
        Hedging { seen: VecDeque::new(), credit: BURST * ONE_IN }
    }
}

impl Hedging {
    /// A PUT has taken so long.
    pub fn note(&mut self, took: Duration) {
        if self.seen.len() == SEEN_MAX {
            self.seen.pop_front();
        }
        self.seen.push_back(took);
        self.credit = (self.credit + 1).min(BURST * ONE_IN);
    }

    /// After what time a PUT takes too long; `None` while that is not known.
    pub fn wait(&self) -> Option<Duration> {
        if self.seen.len() < SEEN_MIN {
            return None;
        }
        let mut seen: Vec<_> = self.seen.iter().copied().collect();
        let (_, usual, _) = seen.select_nth_unstable(self.seen.len() / 2);
        Some((*usual * 5 / 2).max(WAIT_MIN))
    }

    /// Whether one may be sent again now, which then counts.
    pub fn take(&mut self) -> bool {
        let may = self.credit >= ONE_IN;
        self.credit -= if may { ONE_IN } else { 0 };
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn what_takes_two_and_a_half_times_the_usual_takes_too_long() {
        let mut hedging = Hedging::default();
        (1..SEEN_MIN).for_each(|_| hedging.note(MS(100)));
        assert_eq!(hedging.wait(), None);
        hedging.note(MS(3000));
        assert_eq!(hedging.wait(), Some(MS(250)), "one that hung changes nothing");
        (0..SEEN_MAX).for_each(|_| hedging.note(MS(1)));
        assert_eq!(hedging.wait(), Some(WAIT_MIN));
    }

    #[test]
    fn few_are_sent_again() {
        let mut hedging = Hedging::default();
        assert_eq!((0..10).filter(|_| hedging.take()).count(), 4);
        let sent_again = (0..1000).filter(|_| {
            hedging.note(MS(100));
            hedging.take()
        });
        assert_eq!(sent_again.count(), 100);
    }
}
