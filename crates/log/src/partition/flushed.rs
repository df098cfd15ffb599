//! How those who wait learn that what they have written is on the disk.

use tokio::sync::watch;

use super::error::AppendError;

/// Resolves when the batch is on the disk, or can never be.
#[derive(Debug, Clone)]
pub struct FlushTicket {
    upto: i64,
    flushed: watch::Receiver<Flushed>,
}

/// How far a partition is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// Every record before this offset.
    Upto(i64),
    /// A flush has failed: what is on the disk cannot be known before the next start.
    Failed,
}

impl FlushTicket {
    /// Creates a ticket for all records before an offset.
    pub fn new(upto: i64, flushed: watch::Receiver<Flushed>) -> FlushTicket {
        FlushTicket { upto, flushed }
    }

    /// Waits for the flush that covers the batch.
    ///
    /// # Errors
    /// [`AppendError::Storage`] if it failed: the batch may be lost in a crash.
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
