//! A transactional id, with the requests that wait for its answers.

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
    /// The shard that stores the id.
    pub shard: Arc<Shard>,
    state: Mutex<EntryState>,
    /// The earliest deadline of the id for which a task waits, in milliseconds, or `i64::MAX` if there is none. Written
    /// under the id's lock.
    pub alarm: AtomicI64,
}

pub(super) struct EntryState {
    pub transaction: Transaction,
    waiting: Waiting<TransactionAnswer>,
    /// The id's share of the broker's memory budget.
    pub share: TransactionShare,
    /// True once the id was removed from the table.
    pub is_gone: bool,
    /// The share of the id in the counts of the `Tally`.
    pub counted: Counted,
    /// When the broker began to write the markers of a commit. `None` for an abort, or once all markers are written.
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
    /// Creates a ticket for a request, and its pending answer.
    pub fn ticket(&mut self) -> (RequestTicket, PendingAnswer<TransactionAnswer>) {
        let (number, pending) = self.waiting.ticket();
        (RequestTicket(number), pending)
    }

    pub fn answer(&mut self, ticket: RequestTicket, answer: TransactionAnswer) {
        self.waiting.answer(ticket.0, answer);
    }
}
