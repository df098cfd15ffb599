//! Transactional id, with the requests that wait for its answers.
//!
//! Invariant: a ticket is in `waiting` from when it is handed out until its answer is sent.

use super::room::{TransactionShare, TransactionsRoom};
use crate::coordinator::Shard;
use fullbore_rules::transaction::{RequestTicket, Transaction, TransactionAnswer};
use fullbore_wire::{ErrorCode, Text};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use tokio::sync::oneshot;

pub(super) struct Entry {
    pub id: Text,
    /// Shard that keeps the id.
    pub shard: Arc<Shard>,
    state: Mutex<EntryState>,
    /// The earliest time at which a task looks at the id, in ms; `i64::MAX` for none. Written under the id's lock.
    pub alarm: AtomicI64,
}

pub(super) struct EntryState {
    pub transaction: Transaction,
    waiting: HashMap<RequestTicket, oneshot::Sender<TransactionAnswer>>,
    tickets: u64,
    /// Share in the room of the broker.
    pub share: TransactionShare,
    /// True once the id is out of service.
    pub is_gone: bool,
}

impl Entry {
    pub fn new(id: Text, transaction: Transaction, shard: Arc<Shard>, room: &TransactionsRoom) -> Arc<Entry> {
        let share = room.share(&id, transaction.partitions());
        let state = EntryState { transaction, waiting: HashMap::new(), tickets: 0, share, is_gone: false };
        Arc::new(Entry { id, shard, state: Mutex::new(state), alarm: AtomicI64::new(i64::MAX) })
    }

    pub fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock()
    }
}

impl EntryState {
    /// Returns a ticket, and the answer to come.
    pub fn ticket(&mut self) -> (RequestTicket, PendingAnswer) {
        let ticket = RequestTicket(self.tickets);
        self.tickets += 1;
        let (answer, pending) = oneshot::channel();
        self.waiting.insert(ticket, answer);
        (ticket, PendingAnswer(pending))
    }

    /// Sends an answer; a client that went away needs none.
    pub fn answer(&mut self, ticket: RequestTicket, answer: TransactionAnswer) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            let _ = waiting.send(answer);
        }
        if self.waiting.is_empty() {
            self.waiting.shrink_to_fit();
        }
    }
}

/// An answer to come.
pub struct PendingAnswer(oneshot::Receiver<TransactionAnswer>);

impl PendingAnswer {
    /// Waits for the answer.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE if the broker stops before.
    pub async fn answer(self) -> Result<TransactionAnswer, ErrorCode> {
        self.0.await.map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE)
    }
}
