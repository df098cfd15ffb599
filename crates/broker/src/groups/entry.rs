//! Group, with the requests that wait for its answers.
//!
//! Invariant: a ticket is in `waiting` from when it is handed out until its answer is sent.

use crate::coordinator::Shard;
use fullbore_rules::group::{Effect, Group, GroupAnswer, RequestTicket};
use fullbore_wire::{ErrorCode, Text};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize};
use tokio::sync::oneshot;

pub(super) struct Entry {
    pub id: Text,
    /// Shard that keeps the group.
    pub shard: Arc<Shard>,
    inner: Mutex<EntryState>,
    /// The earliest deadline the timer has for this group; `i64::MAX` for none. Written under the group's lock.
    pub alarm: AtomicI64,
    /// The group's commits on their way. They are counted under its lock, and not any more once their offsets are seen.
    pub commits: AtomicUsize,
}

pub(super) struct EntryState {
    pub group: Group,
    pub waiting: HashMap<RequestTicket, oneshot::Sender<GroupAnswer>>,
    tickets: u64,
    /// Bytes that the group last held for its members.
    pub bytes: usize,
    /// Effects not done yet, in order; while there are any, a task writes a snapshot.
    pub outbox: VecDeque<Effect>,
    /// True while a task writes a snapshot.
    pub is_keeping: bool,
    /// True once the group is out of service.
    pub is_gone: bool,
}

impl Entry {
    pub fn new(id: Text, group: Group, shard: Arc<Shard>) -> Arc<Self> {
        let inner = EntryState {
            group,
            waiting: HashMap::new(),
            tickets: 0,
            bytes: 0,
            outbox: VecDeque::new(),
            is_keeping: false,
            is_gone: false,
        };
        let (inner, alarm) = (Mutex::new(inner), AtomicI64::new(i64::MAX));
        Arc::new(Entry { id, shard, inner, alarm, commits: AtomicUsize::new(0) })
    }

    pub fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.inner.lock()
    }
}

impl EntryState {
    /// A ticket, and who waits for its answer.
    pub fn ticket(&mut self) -> (RequestTicket, PendingAnswer) {
        let ticket = RequestTicket(self.tickets);
        self.tickets += 1;
        let (answer, pending) = oneshot::channel();
        self.waiting.insert(ticket, answer);
        (ticket, PendingAnswer(Err(pending)))
    }

    /// Answers everybody who waits that the coordinator is not there.
    pub fn refuse_all(&mut self) {
        for (_, answer) in std::mem::take(&mut self.waiting) {
            // Who went away does not want to know.
            let _ = answer.send(GroupAnswer::Refused(ErrorCode::COORDINATOR_NOT_AVAILABLE));
        }
    }

    /// Answers who waits; who went away does not want to know.
    pub fn answer(&mut self, ticket: RequestTicket, answer: GroupAnswer) {
        if let Some(waiting) = self.waiting.remove(&ticket) {
            let _ = waiting.send(answer);
        }
    }
}

/// An answer to come.
pub struct PendingAnswer(Result<ErrorCode, oneshot::Receiver<GroupAnswer>>);

impl PendingAnswer {
    pub(super) fn refused(code: ErrorCode) -> Self {
        PendingAnswer(Ok(code))
    }

    /// Waits for it.
    pub async fn answer(self) -> GroupAnswer {
        match self.0 {
            Ok(code) => GroupAnswer::Refused(code),
            Err(pending) => pending.await.unwrap_or(GroupAnswer::Refused(ErrorCode::COORDINATOR_NOT_AVAILABLE)),
        }
    }
}
