//! Waits until an appended batch is durable: on the disk if the topic requires it, and on the other replicas if the
//! client requires it.
//!
//! Invariant: a wait ends once its condition is met, or can no longer be met.

use std::fmt::Debug;
use std::sync::Arc;

use fullbore_rules::replica::Acknowledgement;
use fullbore_wire::ErrorCode;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::error::AppendError;
use super::flushed::FlushTicket;
use super::waiters::Registration;

/// The conditions for acknowledging a batch. The disk comes first, then the in-sync replicas.
#[derive(Debug, Clone, Default)]
pub struct Durability {
    /// The flush, if the topic requires one.
    pub flushed: Option<FlushTicket>,
    /// The replication, if the client requires it.
    pub replicated: Option<ReplicationTicket>,
}

impl Durability {
    /// Returns true if the response can be sent at once.
    pub fn is_nothing(&self) -> bool {
        self.flushed.is_none() && self.replicated.is_none()
    }

    /// Waits for the flush, without a time limit, and then for the replicas until `deadline`.
    ///
    /// # Errors
    /// Returns [`AppendError`] if a condition is not met. The batch is in the leader's log anyway, but may be lost.
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

/// Waits until a batch is on every in-sync replica, or can no longer get there.
#[derive(Debug, Clone)]
pub struct ReplicationTicket {
    replica: Arc<dyn Acknowledges>,
    leader_epoch: i32,
    /// The offset after the batch.
    end_offset: i64,
}

/// A replica that knows which batches the other replicas have.
pub trait Acknowledges: Debug + Send + Sync {
    /// Registers a waiter, which is woken when the result of [`Acknowledges::acknowledgement`] may have changed.
    fn register(&self, waiter: &Arc<Notify>) -> Registration;

    /// Returns the state of all records before `end_offset` that the leader of `leader_epoch` has appended: are they on
    /// the in-sync replicas?
    fn acknowledgement(&self, leader_epoch: i32, end_offset: i64) -> Acknowledgement;

    /// Returns true once the broker is stopping. No caller waits after that.
    fn is_stopping(&self) -> bool;
}

impl ReplicationTicket {
    /// Creates a ticket for the records before `end_offset`, which were appended in `leader_epoch`.
    pub fn new(replica: Arc<dyn Acknowledges>, leader_epoch: i32, end_offset: i64) -> ReplicationTicket {
        ReplicationTicket { replica, leader_epoch, end_offset }
    }

    /// Waits for the replicas while this broker leads.
    ///
    /// # Errors
    /// Fails with [`AppendError::Role`] if this broker no longer leads or too few replicas are in sync. Fails with
    /// [`AppendError::Gone`] if the partition is deleted or the broker is stopping. The batch is in the log anyway, but
    /// may be lost.
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
