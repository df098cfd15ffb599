//! Notification of waiters that their records are on the disk.

use tokio::sync::watch;

use super::error::AppendError;

/// Ticket that resolves when a batch is on the disk, or can never be.
#[derive(Debug, Clone)]
pub struct FlushTicket {
    upto: i64,
    flushed: watch::Receiver<Flushed>,
}

/// State of a partition's flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// Every record before this offset is on the disk.
    Upto(i64),
    /// A flush has failed: the state of the disk is unknown until the broker's next start.
    Failed,
}

impl FlushTicket {
    /// Creates a ticket for all records before `upto`.
    pub fn new(upto: i64, flushed: watch::Receiver<Flushed>) -> FlushTicket {
        FlushTicket { upto, flushed }
    }

    /// Waits for the flush that covers the batch.
    ///
    /// # Errors
    /// [`AppendError::Storage`] if the flush failed: a crash may lose the batch.
    pub async fn wait(mut self) -> Result<(), AppendError> {
        let upto = self.upto;
        let done = |flushed: &Flushed| match flushed {
            Flushed::Upto(offset) => *offset >= upto,
            Flushed::Failed => true,
        };
        match self.flushed.wait_for(done).await.as_deref() {
            Ok(Flushed::Upto(_)) => Ok(()),
            _ => Err(AppendError::Storage),
        }
    }
}
