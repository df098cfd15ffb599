//! What an append is answered with, and what the answer waits for: the disk, where the topic asks for that, and then the other
//! replicas, where the client does.
//!
//! Invariant: a ticket is resolved once what it waits for has happened, or never can.

use std::fmt::Debug;
use std::sync::Arc;

use fullbore_rules::replica::Acknowledgement;
use fullbore_wire::ErrorCode;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::error::AppendError;
use super::flushed::FlushTicket;
use super::waiters::Registration;

/// A batch that is in the log, now or since its first sending.
#[derive(Debug, Clone)]
pub struct Appended {
    /// The offset of its first record.
    pub base_offset: i64,
    /// The broker's time of the append in ms; -1 where the producer's timestamps count.
    pub log_append_time_ms: i64,
    /// The first offset of the partition.
    pub log_start_offset: i64,
    /// Batches remembered of each producer, as was set when it was appended.
    pub batches_retained: usize,
    /// What is to be awaited before the answer; `None` if it may leave at once.
    pub ticket: Option<AnswerTicket>,
}

/// How far a batch must be before its append is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// In the leader's log.
    Leader,
    /// In the logs of all replicas in sync, which are at least the least ISR.
    All,
}

/// What an answer waits for: first that the batch is on the disk, where the topic asks for that, and then that it is on every
/// replica in sync, where the client does.
#[derive(Debug, Clone)]
pub struct AnswerTicket {
    pub flushed: Option<FlushTicket>,
    pub replicated: Option<ReplicationTicket>,
}

impl AnswerTicket {
    /// Waits for all of it; for the replicas not longer than until then.
    ///
    /// # Errors
    /// [`AppendError`]; the batch is in the leader's log all the same, and may be lost.
    pub async fn wait(self, deadline: tokio::time::Instant) -> Result<(), AppendError> {
        if let Some(flushed) = self.flushed {
            flushed.wait().await?;
        }
        match self.replicated {
            Some(replicated) => timeout_at(deadline, replicated.wait())
                .await
                .unwrap_or(Err(AppendError::Role(ErrorCode::REQUEST_TIMED_OUT))),
            None => Ok(()),
        }
    }
}

/// Resolves when a batch is on every replica in sync, or it is known that it may never be.
#[derive(Debug, Clone)]
pub struct ReplicationTicket {
    replica: Arc<dyn Acknowledges>,
    leader_epoch: i32,
    /// The offset after the batch.
    end_offset: i64,
}

/// Who knows how far a batch is on the other replicas.
pub trait Acknowledges: Debug + Send + Sync {
    /// Wakes a waiter when that may have changed.
    fn register(&self, waiter: &Arc<Notify>) -> Registration;

    /// Whether all before an offset, appended by the leader of an epoch, is on every replica in sync.
    fn acknowledgement(&self, leader_epoch: i32, end_offset: i64) -> Acknowledgement;

    /// Whether nobody is to wait any longer, since the broker stops.
    fn is_stopping(&self) -> bool;
}

impl ReplicationTicket {
    /// One for all before `end_offset`, appended in this epoch.
    pub fn new(replica: Arc<dyn Acknowledges>, leader_epoch: i32, end_offset: i64) -> ReplicationTicket {
        ReplicationTicket { replica, leader_epoch, end_offset }
    }

    /// Waits for it, for as long as this broker leads.
    ///
    /// # Errors
    /// [`AppendError`]; the batch is in the log, and may be lost.
    pub async fn wait(self) -> Result<(), AppendError> {
        let waiter = Arc::new(Notify::new());
        let registered = self.replica.register(&waiter);
        loop {
            let is_over = registered.is_over() || self.replica.is_stopping();
            match self.replica.acknowledgement(self.leader_epoch, self.end_offset) {
                Acknowledgement::Done => return Ok(()),
                _ if is_over => return Err(AppendError::Gone),
                Acknowledgement::Wait => waiter.notified().await,
                Acknowledgement::Refused(code) => return Err(AppendError::Role(code)),
            }
        }
    }
}
