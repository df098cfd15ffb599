//! Counts the transactional ids by state and keeps track of the oldest open transaction. Both are updated when a state
//! changes, so a query costs the same for any number of ids.
//!
//! Each id counts with the state that it has after the last event of its state machine.

use super::{OldestOpen, TransactionCounts};
use fullbore_rules::transaction::{Transaction, TransactionState};
use fullbore_wire::Text;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many transactional ids are in each state, and the open transactions by age.
#[derive(Default)]
pub(super) struct Tally {
    by_state: [AtomicUsize; TransactionCounts::STATES.len()],
    /// The transactions that are open or still lack markers, each with its begin and its id.
    open: Mutex<BTreeSet<(i64, Text)>>,
}

/// The contribution of one id to the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// The index of the id's state in [`TransactionCounts::STATES`].
    state: Option<usize>,
    /// When the id's open transaction began, in milliseconds.
    open_since: Option<i64>,
}

impl Counted {
    fn of(transaction: &Transaction) -> Counted {
        let Ok(found) = transaction.describe() else { return Counted::default() };
        let is_open = found.state == TransactionState::Ongoing || found.state.is_prepared();
        Counted {
            state: TransactionCounts::STATES.iter().position(|state| *state == found.state),
            open_since: is_open.then_some(found.start_ms),
        }
    }
}

impl Tally {
    /// Updates the counts after a change of an id's `transaction`. Replaces `counted`, the id's contribution so far,
    /// with the new one. The caller holds the id's lock.
    pub fn count(&self, id: &Text, counted: &mut Counted, transaction: &Transaction) {
        let now = Counted::of(transaction);
        let before = std::mem::replace(counted, now);
        if now.state != before.state {
            // Counts the new state first, so that a count may be too high for a moment but never too low.
            now.state.and_then(|at| self.by_state.get(at)).inspect(|count| _ = count.fetch_add(1, Ordering::Relaxed));
            before
                .state
                .and_then(|at| self.by_state.get(at))
                .inspect(|count| _ = count.fetch_sub(1, Ordering::Relaxed));
        }
        if now.open_since != before.open_since {
            let mut open = self.open.lock();
            if let Some(since) = before.open_since {
                open.remove(&(since, id.clone()));
            }
            if let Some(since) = now.open_since {
                open.insert((since, id.clone()));
            }
        }
    }

    /// Returns the counts at `now_ms`.
    pub fn counts(&self, now_ms: i64) -> TransactionCounts {
        let oldest = self.open.lock().first().cloned();
        TransactionCounts {
            by_state: std::array::from_fn(|at| self.by_state.get(at).map_or(0, |count| count.load(Ordering::Relaxed))),
            oldest_open: oldest.map(|(since, transactional_id)| OldestOpen {
                transactional_id,
                age_ms: now_ms.saturating_sub(since).max(0),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_rules::transaction::{TransactionMetadata, TransactionSettings, TransactionVersion, Turn};

    const SETTINGS: TransactionSettings = TransactionSettings {
        timeout_max_ms: 900_000,
        partitions_max: 4,
        waiters_max: 3,
        server_version: TransactionVersion::V2,
    };

    fn in_state(state: TransactionState, start_ms: i64) -> Transaction {
        let record = TransactionMetadata {
            producer_id: 1,
            previous_producer_id: -1,
            next_producer_id: -1,
            producer_epoch: 0,
            last_producer_epoch: -1,
            timeout_ms: 1_000,
            state,
            partitions: Default::default(),
            start_ms,
            last_update_ms: start_ms,
            client_version: TransactionVersion::V2,
        };
        Transaction::load(0, record, &mut Turn { settings: &SETTINGS, now: start_ms, effects: &mut Vec::new() })
    }

    #[test]
    fn changes_of_state_update_the_counts_and_the_oldest_transaction() {
        let tally = Tally::default();
        let (a, b) = (Text::from_static("a"), Text::from_static("b"));
        let (mut of_a, mut of_b) = (Counted::default(), Counted::default());
        tally.count(&a, &mut of_a, &in_state(TransactionState::Ongoing, 700));
        tally.count(&b, &mut of_b, &in_state(TransactionState::Ongoing, 500));
        let counts = tally.counts(1_500);
        assert_eq!(counts.by_state, [0, 2, 0, 0, 0, 0]);
        assert_eq!(counts.oldest_open, Some(OldestOpen { transactional_id: b.clone(), age_ms: 1_000 }));
        tally.count(&b, &mut of_b, &in_state(TransactionState::CompleteCommit, 500));
        let counts = tally.counts(600);
        assert_eq!(counts.by_state, [0, 1, 0, 0, 1, 0]);
        assert_eq!(counts.oldest_open, Some(OldestOpen { transactional_id: a.clone(), age_ms: 0 }), "a step back");
        tally.count(&a, &mut of_a, &Transaction::new(0));
        tally.count(&b, &mut of_b, &Transaction::new(0));
        let counts = tally.counts(600);
        assert_eq!((counts.by_state, counts.oldest_open), ([0; 6], None));
    }
}
