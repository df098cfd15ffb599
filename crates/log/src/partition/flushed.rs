//! Lets callers wait until their records are on the disk.

use tokio::sync::watch;

use super::error::AppendError;

/// Waits until a batch is on the disk, or can no longer get there.
#[derive(Debug, Clone)]
pub struct FlushTicket {
    upto: i64,
    flushed: watch::Receiver<Flushed>,
}

/// How far a partition has been flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// All records before this offset are on the disk.
    Upto(i64),
    /// A flush has failed. The state of the disk is unknown until the broker's next start.
    Failed,
}

impl FlushTicket {
    /// Creates a ticket for the records before `upto`.
    pub fn new(upto: i64, flushed: watch::Receiver<Flushed>) -> FlushTicket {
        FlushTicket { upto, flushed }
    }

    /// Waits for the flush that covers the batch.
    ///
    /// # Errors
    /// Fails with [`AppendError::Storage`] if the flush failed. A crash may then lose the batch.
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
