//! Remembers brokers that did not answer, so that the next search for any broker begins with other brokers.
//!
//! A broker that is cut off from the client costs each search that begins with it a second. Invariant: a broker is
//! remembered for at most [`FORGOTTEN_AFTER`], so that its metadata can show that another broker is behind.

use std::time::{Duration, Instant};

/// How long a broker is remembered.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);
/// Maximum number of brokers that are remembered.
const BROKERS_MAX: usize = 64;

/// The addresses of brokers whose last connection or request has got no answer in time, in the order of these times.
#[derive(Debug, Default)]
pub(crate) struct Unanswering(Vec<(String, Instant)>);

impl Unanswering {
    /// Notes that the broker at `address` has not answered.
    pub(crate) fn note(&mut self, address: &str, now: Instant) {
        self.answered(address);
        self.0.push((address.to_owned(), now));
        if self.0.len() > BROKERS_MAX {
            self.0.remove(0);
        }
    }

    /// Notes that the broker at `address` has answered.
    pub(crate) fn answered(&mut self, address: &str) {
        self.0.retain(|(noted, _)| noted != address);
    }

    /// Moves the noted addresses to the end, the one that was noted last behind the others.
    pub(crate) fn sort(&mut self, addresses: &mut [String], now: Instant) {
        self.0.retain(|(_, at)| now.saturating_duration_since(*at) < FORGOTTEN_AFTER);
        let place = |address: &String| self.0.iter().position(|(noted, _)| noted == address);
        addresses.sort_by_key(|address| place(address).map_or(0, |at| at + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_that_did_not_answer_come_last_for_a_while_or_until_they_answer() {
        let (mut unanswering, began) = (Unanswering::default(), Instant::now());
        let sorted = |unanswering: &mut Unanswering, now| {
            let mut addresses = ["a:1", "b:1", "c:1"].map(str::to_owned);
            unanswering.sort(&mut addresses, now);
            addresses
        };
        let later = began + Duration::from_secs(10);
        for (address, now) in [("a:1", began), ("b:1", began), ("a:1", later)] {
            unanswering.note(address, now);
        }
        assert_eq!(sorted(&mut unanswering, later), ["c:1", "b:1", "a:1"]);
        assert_eq!(sorted(&mut unanswering, began + FORGOTTEN_AFTER), ["b:1", "c:1", "a:1"]);
        unanswering.answered("a:1");
        assert_eq!(sorted(&mut unanswering, later), ["a:1", "b:1", "c:1"]);
        (0..1_000).for_each(|number| unanswering.note(&format!("d:{number}"), later));
        assert_eq!(unanswering.0.len(), BROKERS_MAX);
    }
}
