//! Decides when a broker reports that it has lost the object store, and when it reports that the store responds again.
//!
//! A broker that has reported the loss is left out: it serves no diskless partition. A store that fails for all brokers
//! is no reason to leave any of them out. So the last broker that serves diskless partitions never reports a loss, and
//! a broker that was left out comes back if no other one serves them. The waits are those of [`RoomWatch`], so a store
//! that responds only now and then counts as lost. What happens to a single request is decided elsewhere.

use super::room::{DiskRoom, RoomReport, RoomWatch};

/// The state of the object store, as a broker finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// For several seconds, no request has succeeded: all have failed or made no progress.
    Lost,
    /// Requests fail, or the last probe has had no response.
    Unsure,
    /// The last probe succeeded, or no request has failed.
    Answers,
}

/// A report that a broker sends to its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreReport {
    /// The broker has lost the store.
    Lost,
    /// The store has responded for a while, or no other broker serves diskless partitions.
    Back,
}

/// Watches a broker's object store, and decides when to report its state.
#[derive(Clone, Debug, Default)]
pub struct StoreWatch(RoomWatch);

impl StoreWatch {
    /// Returns the report that is due at `now_ms` of a monotonic clock, if any. `is_left_out` is the broker's state in
    /// the metadata, and a report stays due until the metadata shows it. `others_serve` is true if another broker
    /// serves diskless partitions.
    pub fn report(
        &mut self,
        now_ms: i64,
        store: StoreState,
        is_left_out: bool,
        others_serve: bool,
    ) -> Option<StoreReport> {
        match (is_left_out, others_serve) {
            (true, false) => return Some(StoreReport::Back),
            (false, false) => return None,
            (_, true) => {}
        }
        let as_disk = match store {
            StoreState::Lost => DiskRoom::Hung,
            StoreState::Unsure => DiskRoom::Tight,
            StoreState::Answers => DiskRoom::Ample,
        };
        self.0.report(now_ms, as_disk, is_left_out, || false).map(|report| match report {
            RoomReport::Full => StoreReport::Lost,
            RoomReport::Room => StoreReport::Back,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::StoreReport::{Back, Lost};
    use super::*;

    /// Brokers that poll their stores every half second, one after another. Their reports take effect at once.
    struct Brokers {
        watches: Vec<StoreWatch>,
        serve: Vec<bool>,
        now_ms: i64,
    }

    impl Brokers {
        fn new(count: usize) -> Brokers {
            Brokers { watches: vec![StoreWatch::default(); count], serve: vec![true; count], now_ms: 0 }
        }

        /// Polls stores in these states for `for_ms`. Returns the reports, each with the time since the start.
        fn report(&mut self, for_ms: i64, stores: &[StoreState]) -> Vec<(i64, usize, StoreReport)> {
            let (began_ms, mut reports) = (self.now_ms, Vec::new());
            while self.now_ms < began_ms + for_ms {
                for (id, store) in stores.iter().enumerate() {
                    let others_serve = (0..self.serve.len()).any(|other| other != id && self.serve[other]);
                    let report = self.watches[id].report(self.now_ms, *store, !self.serve[id], others_serve);
                    if let Some(report) = report {
                        self.serve[id] = report == Back;
                        reports.push((self.now_ms - began_ms, id, report));
                    }
                }
                self.now_ms += 500;
            }
            reports
        }
    }

    #[test]
    fn broker_that_loses_the_store_is_left_out_until_it_has_responded_for_a_while() {
        let mut brokers = Brokers::new(2);
        assert_eq!(brokers.report(5_000, &[StoreState::Answers; 2]), []);
        assert_eq!(brokers.report(5_000, &[StoreState::Unsure, StoreState::Answers]), [], "it may be a moment");
        assert_eq!(brokers.report(60_000, &[StoreState::Lost, StoreState::Answers]), [(0, 0, Lost)]);
        assert_eq!(brokers.report(60_000, &[StoreState::Unsure, StoreState::Answers]), []);
        assert_eq!(brokers.report(60_000, &[StoreState::Answers; 2]), [(5_000, 0, Back)]);
    }

    #[test]
    fn all_brokers_lose_the_store_one_serves_on_and_nothing_flaps() {
        let mut brokers = Brokers::new(3);
        assert_eq!(brokers.report(600_000, &[StoreState::Lost; 3]), [(0, 0, Lost), (0, 1, Lost)]);
        assert_eq!(brokers.report(60_000, &[StoreState::Answers; 3]), [(5_000, 0, Back), (5_000, 1, Back)]);
    }

    #[test]
    fn last_serving_broker_leaves_another_comes_back_without_the_store() {
        let mut brokers = Brokers::new(2);
        brokers.report(1_000, &[StoreState::Lost, StoreState::Answers]);
        brokers.serve[1] = false;
        assert_eq!(brokers.report(10_000, &[StoreState::Lost]), [(0, 0, Back)]);
        brokers.serve[1] = true;
        assert_eq!(brokers.report(10_000, &[StoreState::Lost]), [(0, 0, Lost)]);
    }
}
