//! Transactional id, with the requests that wait for its answers.

use super::room::{TransactionShare, TransactionsRoom};
use super::tally::Counted;
use crate::coordinator::{PendingAnswer, Shard, Waiting};
use fullbore_rules::transaction::{RequestTicket, Transaction, TransactionAnswer};
use fullbore_wire::Text;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Instant;

pub(super) struct Entry {
    pub id: Text,
    /// Shard that keeps the id.
    pub shard: Arc<Shard>,
    state: Mutex<EntryState>,
    /// Earliest time at which a task handles a deadline of the id, in ms; `i64::MAX` for none. Written under the id's
    /// lock.
    pub alarm: AtomicI64,
}

pub(super) struct EntryState {
    pub transaction: Transaction,
    waiting: Waiting<TransactionAnswer>,
    /// Share of the broker's memory budget.
    pub share: TransactionShare,
    /// True once the id is out of service.
    pub is_gone: bool,
    /// Share of the id in the counts of all ids.
    pub counted: Counted,
    /// Time at which the markers of a commit began to be written.
    pub marked_since: Option<Instant>,
}

impl Entry {
    pub fn new(id: Text, transaction: Transaction, shard: Arc<Shard>, room: &TransactionsRoom) -> Arc<Entry> {
        let state = EntryState {
            share: room.share(&id, transaction.partitions()),
            transaction,
            waiting: Waiting::default(),
            is_gone: false,
            counted: Counted::default(),
            marked_since: None,
        };
        Arc::new(Entry { id, shard, state: Mutex::new(state), alarm: AtomicI64::new(i64::MAX) })
    }

    pub fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock()
    }
}

impl EntryState {
    /// Returns a ticket and its pending answer.
    pub fn ticket(&mut self) -> (RequestTicket, PendingAnswer<TransactionAnswer>) {
        let (number, pending) = self.waiting.ticket();
        (RequestTicket(number), pending)
    }

    pub fn answer(&mut self, ticket: RequestTicket, answer: TransactionAnswer) {
        self.waiting.answer(ticket.0, answer);
    }
}
