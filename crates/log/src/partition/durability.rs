//! Durability of an appended batch: on the disk, where the topic wants that, and then on the other replicas, where the
//! client does.
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

/// Waits before a batch is acknowledged: first for the disk, then for every replica in sync.
#[derive(Debug, Clone, Default)]
pub struct Durability {
    /// The flush, where the topic wants that.
    pub flushed: Option<FlushTicket>,
    /// The replicas, where the client wants that.
    pub replicated: Option<ReplicationTicket>,
}

impl Durability {
    /// Returns true if the answer may leave at once.
    pub fn is_nothing(&self) -> bool {
        self.flushed.is_none() && self.replicated.is_none()
    }

    /// Waits for all of it; for the replicas until `deadline`.
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

/// A replica that knows how far a batch is on the others.
pub trait Acknowledges: Debug + Send + Sync {
    /// Wakes a waiter when that may have changed.
    fn register(&self, waiter: &Arc<Notify>) -> Registration;

    /// Returns how far all before an offset, appended by the leader of an epoch, is on the replicas in sync.
    fn acknowledgement(&self, leader_epoch: i32, end_offset: i64) -> Acknowledgement;

    /// Returns true once the broker stops: no caller waits any longer.
    fn is_stopping(&self) -> bool;
}

impl ReplicationTicket {
    /// Creates a ticket for all records before `end_offset`, appended in this epoch.
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
