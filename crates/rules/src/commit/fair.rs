//! Start-time fair queueing: decides in which order the bytes of several producers are served.
//!
//! A unit is a number of bytes of one producer that are served together. Virtual time is counted in bytes. A unit
//! starts at the end of the producer's previous unit, or now if the previous unit has ended. Units are served in the
//! order of their starts or of their ends. So a producer with little to send overtakes the backlogs of others, and all
//! backlogs are served at the same rate. In the order of the ends, a small unit also overtakes the larger units of any
//! number of other producers, unless they started long before it.
//!
//! The clock moves with the bytes that are served, divided by the number of producers. So units of new producers, which
//! all start now, cannot hold it still and starve the producers that were served before.
//!
//! The callers store the units and sort them. Invariant: each unit of a producer starts later than the producer's
//! previous unit, unless a caller delays the previous one ([`FairClock::begin_from`]).

use std::collections::HashMap;
use std::hash::Hash;

/// Producers whose last unit has ended are removed from time to time: when twice as many producers are stored as after
/// the last removal, plus this number.
const SWEEP_AFTER: usize = 64;

/// A clock that counts virtual time in bytes. `K` identifies a producer.
#[derive(Debug)]
pub struct FairClock<K> {
    now: u64,
    /// The end of the newest unit of each producer.
    ends: HashMap<K, u64>,
    /// The length of `ends` at which producers whose last unit has ended are removed.
    sweep_at: usize,
}

impl<K> Default for FairClock<K> {
    fn default() -> FairClock<K> {
        FairClock { now: 0, ends: HashMap::new(), sweep_at: SWEEP_AFTER }
    }
}

impl<K: Eq + Hash> FairClock<K> {
    /// Returns the time at which a producer's next unit, of `cost` bytes, starts.
    pub fn begin(&mut self, producer: K, cost: usize) -> u64 {
        self.begin_from(producer, cost, 0)
    }

    /// Returns the time at which a producer's next unit, of `cost` bytes, starts, but not before `earliest`. The
    /// producer's later units do not wait for `earliest`.
    pub fn begin_from(&mut self, producer: K, cost: usize, earliest: u64) -> u64 {
        let end = self.ends.entry(producer).or_insert(self.now);
        let start = self.now.max(*end);
        *end = start.saturating_add(cost.max(1) as u64);
        start.max(earliest)
    }

    /// Returns true if the producer's last unit ended before now, so that the producer was served less than others.
    pub fn is_idle(&self, producer: &K) -> bool {
        self.ends.get(producer).is_none_or(|end| *end < self.now)
    }

    /// Takes back the producer's last unit, which starts at `start`, because it will not be served.
    pub fn take_back(&mut self, producer: K, start: u64) {
        self.ends.insert(producer, start);
    }

    /// Moves the clock after units of `bytes` bytes in total were served. The clock reaches at least `start`, the start
    /// of the last unit that was served or of the first one that still waits.
    pub fn serve(&mut self, start: u64, bytes: usize) {
        let each = bytes / self.ends.len().max(1);
        self.now = self.now.saturating_add(each as u64).max(start);
        if self.ends.len() >= self.sweep_at {
            self.ends.retain(|_, end| *end > self.now);
            self.sweep_at = 2 * self.ends.len() + SWEEP_AFTER;
        }
    }

    /// Removes all producers and resets the virtual time. The caller must not have any waiting units.
    pub fn reset(&mut self) {
        *self = FairClock::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves the first `count` units in the order of their starts. Returns their producers.
    fn served<K: Copy + Ord + Hash>(
        clock: &mut FairClock<K>,
        units: &mut Vec<(u64, usize, K)>,
        count: usize,
    ) -> Vec<K> {
        units.sort();
        let served: Vec<_> = units.drain(..count).collect();
        served.iter().for_each(|(start, cost, _)| clock.serve(*start, *cost));
        served.into_iter().map(|(.., producer)| producer).collect()
    }

    #[test]
    fn a_newcomer_is_served_before_backlogs() {
        let mut clock = FairClock::default();
        let mut units: Vec<_> = (0..20).map(|at| (clock.begin(at % 2, 100), 100, at % 2)).collect();
        assert_eq!(served(&mut clock, &mut units, 4), [0, 1, 0, 1]);
        units.push((clock.begin(9, 1), 1, 9));
        assert_eq!(served(&mut clock, &mut units, 1), [9]);
    }

    #[test]
    fn backlogs_share_by_bytes() {
        let mut clock = FairClock::default();
        let mut units: Vec<_> = (0..40).map(|_| (clock.begin(1, 100), 100, 1)).collect();
        units.extend((0..400).map(|_| (clock.begin(2, 10), 10, 2)));
        let first = served(&mut clock, &mut units, 110);
        let large = first.iter().filter(|producer| **producer == 1).count();
        assert!((9..=11).contains(&large), "{large} of 100 bytes beside {} of 10", first.len() - large);
    }

    #[test]
    fn new_producers_keep_coming_one_that_was_served_before_is_served_again() {
        let mut clock = FairClock::default();
        let mut units = vec![(clock.begin(0, 100), 100, 0)];
        assert_eq!(served(&mut clock, &mut units, 1), [0]);
        units.push((clock.begin(0, 100), 100, 0));
        for round in 0..3 {
            let ids = 1 + round * 300..301 + round * 300;
            units.extend(ids.map(|id| (clock.begin(id, 900_000), 900_000, id)));
            if served(&mut clock, &mut units, 10).contains(&0) {
                return;
            }
        }
        panic!("it waits behind each new producer");
    }

    #[test]
    fn units_of_a_producer_keep_their_order() {
        let mut clock = FairClock::default();
        let starts: Vec<_> = [5, 0, 7, 1].map(|cost| clock.begin(1, cost)).into();
        assert!(starts.is_sorted_by(|one, next| one < next), "{starts:?}");
        clock.serve(1000, 1);
        assert_eq!(clock.begin(1, 1), 1000);
    }

    #[test]
    fn unit_is_delayed_later_units_of_its_producer_are_not() {
        let mut clock = FairClock::default();
        assert_eq!((clock.begin_from(1, 10, 500), clock.begin_from(1, 10, 0)), (500, 10));
        clock.serve(700, 0);
        assert_eq!(clock.begin_from(1, 10, 500), 700);
    }

    #[test]
    fn last_unit_is_taken_back_the_next_one_starts_in_its_place() {
        let mut clock = FairClock::default();
        let starts: Vec<_> = [5, 7].map(|cost| clock.begin(1, cost)).into();
        clock.take_back(1, starts[1]);
        assert_eq!(clock.begin(1, 1), starts[1]);
    }

    #[test]
    fn last_unit_ended_before_now_the_producer_is_idle() {
        let mut clock = FairClock::default();
        assert!(clock.is_idle(&1));
        let start = clock.begin(1, 5);
        clock.serve(start + 5, 0);
        assert!(!clock.is_idle(&1));
        clock.serve(start + 6, 0);
        assert!(clock.is_idle(&1));
    }

    #[test]
    fn served_producers_are_forgotten() {
        let mut clock = FairClock::default();
        for producer in 0..100_000 {
            let start = clock.begin(producer, 1);
            clock.serve(start + 1, 1);
        }
        assert!(clock.ends.len() <= 2 * SWEEP_AFTER, "{}", clock.ends.len());
    }
}
