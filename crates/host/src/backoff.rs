//! Pauses between failed attempts. Each pause is twice as long as the one before, up to a limit. The length is partly
//! random, so that brokers that compete for a lock do not collide again.

use std::time::{Duration, Instant};

use crate::random_id;

/// A pause that doubles with each failure in a row.
#[derive(Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
    due: Option<Instant>,
}

impl Backoff {
    /// Creates a backoff whose pauses grow from `min` to `max`.
    pub fn new(min: Duration, max: Duration) -> Backoff {
        Backoff { min, max, next: min, due: None }
    }

    /// Returns true if no pause is running.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| now >= due)
    }

    /// Begins a pause of random length. See [`Backoff::length`].
    pub fn pause(&mut self, now: Instant) {
        self.due = Some(now + self.length());
    }

    /// Returns the random length of a pause, between half of the current length and the whole. The current length then
    /// doubles, up to the limit.
    pub fn length(&mut self) -> Duration {
        let drawn = random_id().0;
        let random = f64::from(u16::from_be_bytes([drawn[0], drawn[1]])) / f64::from(u16::MAX);
        let length = self.next.mul_f64(0.5 + random / 2.0);
        self.next = (self.next * 2).min(self.max);
        length
    }

    /// Ends the pause, because an attempt has succeeded. The next pause starts with the shortest length again.
    pub fn reset(&mut self) {
        self.next = self.min;
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_is_longer_until_one_succeeds() {
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(8));
        let mut backoff = Backoff::new(min, max);
        let now = Instant::now();
        assert!(backoff.is_due(now));
        for full in [min, min * 2, min * 4, max, max] {
            backoff.pause(now);
            assert!(!backoff.is_due(now + full.mul_f64(0.49)) && backoff.is_due(now + full), "{full:?}");
        }
        backoff.reset();
        assert!(backoff.is_due(now));
        backoff.pause(now);
        assert!(backoff.is_due(now + min));
    }
}
