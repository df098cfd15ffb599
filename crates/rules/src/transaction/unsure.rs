//! Ids whose last records a power cut may have taken.
//!
//! A record on the disk may then be followed by others that are gone: of later epochs, which clients have been given,
//! and of later transactions. So no epoch up to the largest may be given out again, and no client of before may go
//! on: each id gets the largest epoch on record, at which the next InitProducerId takes another producer id. A
//! transaction that was not decided is aborted by markers with that epoch, which end also later transactions of the
//! producer in the same partitions. What was decided is carried out first, in its own epoch.
//!
//! Not here: transactions in partitions that no record names.
//!
//! Invariant: while an id is unsure, each record of it is a decision, or has the largest epoch or a new producer id.

use super::requests::Request;
use super::{Transaction, TransactionMetadata, TransactionState, Turn, as_loaded};
use std::sync::Arc;

impl Transaction {
    /// Returns an id as a record has it that may not be its last, and begins to fence its clients.
    /// [`Transaction::settle`] goes on with that.
    pub fn load_unsure(coordinator_epoch: i32, record: TransactionMetadata, turn: &mut Turn<'_>) -> Transaction {
        let mut transaction = Transaction::new(coordinator_epoch);
        transaction.state = as_loaded(record).map(|state| Arc::new(state.retired()));
        transaction.is_unsure = transaction.state.is_some();
        transaction.write_markers_if_prepared(turn);
        transaction.settle(turn);
        transaction
    }

    /// Goes on to fence the clients of an id that is unsure, unless a transition is under way. To be called again while
    /// [`Transaction::is_unsure`]: a record may not have been kept.
    pub fn settle(&mut self, turn: &mut Turn<'_>) {
        if !self.is_unsure || !self.is_idle() {
            return;
        }
        match self.state.as_deref() {
            Some(state) if state.state == TransactionState::Ongoing => self.decide(Request::TimeOut, None, turn),
            Some(state) => {
                let next = state.clone();
                self.persist(Some(next), Vec::new(), turn);
            }
            None => self.is_unsure = false,
        }
    }
}
