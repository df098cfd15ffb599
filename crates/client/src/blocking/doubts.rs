//! Remembers brokers that named stale leaders or coordinators, so that the next search for any broker begins with other
//! brokers.
//!
//! A broker that is cut off from the controller may keep answering requests from old metadata. Invariant: a search
//! tries every known broker, and the brokers in doubt after the others.

use std::time::{Duration, Instant};

/// The minimum time between the first two doubts. It doubles with each further doubt, because each doubt drops a
/// connection.
const DOUBT_EVERY: Duration = Duration::from_secs(1);
/// Upper bound of the minimum time between two doubts. After three times this bound without a doubt, the minimum time
/// is [`DOUBT_EVERY`] again.
const DOUBT_EVERY_MAX: Duration = Duration::from_secs(30);
/// Maximum number of brokers in doubt.
const DOUBTED_MAX: usize = 64;

/// The brokers in doubt.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubts {
    /// The address of the broker that the last search found.
    last: Option<String>,
    /// The addresses in doubt, in the order in which they were last doubted.
    doubted: Vec<String>,
    /// The time of the last doubt, and the minimum time until the next one.
    doubted_at: Option<(Instant, Duration)>,
}

impl Doubts {
    /// Notes that a search has led to `address`.
    pub(super) fn led_to(&mut self, address: &str) {
        self.last = Some(address.to_owned());
    }

    /// Puts the broker of the last search in doubt and returns true. If the last doubt is too recent, returns false and
    /// changes nothing.
    pub(super) fn doubt(&mut self, now: Instant) -> bool {
        let since = self.doubted_at.map(|(at, every)| (now.saturating_duration_since(at), every));
        let every = match since {
            Some((since, every)) if since < every => return false,
            Some((since, every)) if since < 3 * DOUBT_EVERY_MAX => (2 * every).min(DOUBT_EVERY_MAX),
            _ => DOUBT_EVERY,
        };
        self.doubted_at = Some((now, every));
        self.rotate(None);
        true
    }

    /// Puts the broker at `address` behind all others, or else the broker of the last search.
    pub(super) fn rotate(&mut self, address: Option<&str>) {
        let last = self.last.take();
        if let Some(last) = address.map(str::to_owned).or(last) {
            self.doubted.retain(|doubted| *doubted != last);
            self.doubted.push(last);
        }
        if self.doubted.len() > DOUBTED_MAX {
            self.doubted.remove(0);
        }
    }

    /// Moves addresses in doubt to the end, the newest doubt last.
    pub(super) fn sort(&self, addresses: &mut [String]) {
        let place = |address: &String| self.doubted.iter().position(|doubted| doubted == address);
        addresses.sort_by_key(|address| place(address).map_or(0, |at| at + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubted_brokers_come_last_and_each_gets_its_turn() {
        let (mut doubts, mut now) = (Doubts::default(), Instant::now());
        let mut led_to = Vec::new();
        for _ in 0..5 {
            let mut addresses = ["a:1", "b:1", "c:1"].map(str::to_owned);
            doubts.sort(&mut addresses);
            doubts.led_to(&addresses[0]);
            led_to.push(addresses[0].clone());
            assert!(doubts.doubt(now));
            assert!(!doubts.doubt(now), "too soon");
            now += DOUBT_EVERY_MAX;
        }
        assert_eq!(led_to, ["a:1", "b:1", "c:1", "a:1", "b:1"]);
    }

    #[test]
    fn doubts_that_do_not_help_become_rare_until_there_is_none_for_long() {
        let (mut doubts, began) = (Doubts::default(), Instant::now());
        let mut at_s = (0..200).filter(|s| doubts.doubt(began + Duration::from_secs(*s))).collect::<Vec<_>>();
        assert_eq!(at_s.split_off(6), [61, 91, 121, 151, 181]);
        assert_eq!(at_s, [0, 1, 3, 7, 15, 31]);
        let later = began + Duration::from_secs(181) + 3 * DOUBT_EVERY_MAX;
        assert!(doubts.doubt(later) && doubts.doubt(later + DOUBT_EVERY));
    }
}
