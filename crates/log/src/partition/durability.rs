//! Durability of an appended batch: on the disk if the topic requires that, then on the other replicas if the client
//! requires that.
//!
//! Invariant: a ticket is resolved once its condition is met, or can never be met.

use std::fmt::Debug;
use std::sync::Arc;

use fullbore_rules::replica::Acknowledgement;
use fullbore_wire::ErrorCode;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::error::AppendError;
use super::flushed::FlushTicket;
use super::waiters::Registration;

/// Conditions before a batch is acknowledged: first the disk, then every in-sync replica.
#[derive(Debug, Clone, Default)]
pub struct Durability {
    /// Flush, if the topic requires it.
    pub flushed: Option<FlushTicket>,
    /// Replication, if the client requires it.
    pub replicated: Option<ReplicationTicket>,
}

impl Durability {
    /// Returns true if the response may be sent at once.
    pub fn is_nothing(&self) -> bool {
        self.flushed.is_none() && self.replicated.is_none()
    }

    /// Waits for the flush without a limit, and then for the replicas until `deadline`.
    ///
    /// # Errors
    /// [`AppendError`] if a condition is not met. The batch is in the leader's log nevertheless, and may be lost.
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

/// Ticket that resolves when a batch is on every in-sync replica, or can never be.
#[derive(Debug, Clone)]
pub struct ReplicationTicket {
    replica: Arc<dyn Acknowledges>,
    leader_epoch: i32,
    /// Offset after the batch.
    end_offset: i64,
}

/// Replica that knows which other replicas have a batch.
pub trait Acknowledges: Debug + Send + Sync {
    /// Registers a waiter, which is woken when the acknowledgement may have changed.
    fn register(&self, waiter: &Arc<Notify>) -> Registration;

    /// Returns whether all records before `end_offset` are on the in-sync replicas, if the leader of `leader_epoch` has
    /// appended them.
    fn acknowledgement(&self, leader_epoch: i32, end_offset: i64) -> Acknowledgement;

    /// Returns true once the broker stops, after which no caller waits any longer.
    fn is_stopping(&self) -> bool;
}

impl ReplicationTicket {
    /// Creates a ticket for all records before `end_offset`, appended in `leader_epoch`.
    pub fn new(replica: Arc<dyn Acknowledges>, leader_epoch: i32, end_offset: i64) -> ReplicationTicket {
        ReplicationTicket { replica, leader_epoch, end_offset }
    }

    /// Waits for the replicas, as long as this broker leads.
    ///
    /// # Errors
    /// [`AppendError::Role`] if this broker no longer leads, or too few replicas are in sync; [`AppendError::Gone`] if
    /// the partition is deleted, or the broker stops. The batch is in the log, and may be lost.
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
