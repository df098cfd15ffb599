//! Fences the clients of ids whose last records may have been lost in a power loss.
//!
//! An id may have had newer records than the last one on the disk. They may be of later transactions, or of later
//! epochs that clients already have. So no epoch may be assigned again, and no former client may continue. To ensure
//! this, the coordinator writes a record with the largest epoch for each id, so that the next InitProducerId allocates
//! another producer id. It aborts an undecided transaction with markers of that epoch, which also end later
//! transactions of the producer in the same partitions. A decision is first carried out in its own epoch.
//!
//! Transactions in partitions that no record lists are not handled here.
//!
//! Invariant: while an id is unsure, each of its records is a decision, or has the largest epoch or a new producer id.

use super::requests::Request;
use super::{Transaction, TransactionMetadata, TransactionState, Turn, as_loaded};
use std::sync::Arc;

impl Transaction {
    /// Creates a state machine from a record that might not be the id's last one, and begins to fence the id's clients.
    /// The caller continues with [`Transaction::fence_clients`].
    pub fn load_unsure(coordinator_epoch: i32, record: TransactionMetadata, turn: &mut Turn<'_>) -> Transaction {
        let mut transaction = Transaction::new(coordinator_epoch);
        transaction.state = as_loaded(record, turn.now).map(|state| Arc::new(state.retired()));
        transaction.is_unsure = transaction.state.is_some();
        transaction.write_markers_if_prepared(turn);
        transaction.fence_clients(turn);
        transaction
    }

    /// Continues to fence the clients of an unsure id, except during a transition. The caller must call this repeatedly
    /// while [`Transaction::is_unsure`] is true, because an append may fail.
    pub fn fence_clients(&mut self, turn: &mut Turn<'_>) {
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
