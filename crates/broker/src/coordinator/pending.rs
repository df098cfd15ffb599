//! A write into a shard's log that is not finished yet.

use super::shard::{Records, Shard};
use super::unreplicated::AppendCallback;
use crate::partitions::{AppendError, FlushTicket};
use fullbore_wire::ErrorCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long a write waits for its replicas. Kafka's offsets.commit.timeout.ms has the same default.
pub(super) const KEPT_WITHIN: Duration = Duration::from_secs(5);
const TIMED_OUT: AppendError = AppendError::Role(ErrorCode::REQUEST_TIMED_OUT);

/// The result of a write's callback. If the topic requires a flush, also the ticket with which the caller waits for it.
type WriteOutcome<T> = (T, Option<FlushTicket>);

/// A write that has been queued. Dropping this value does not cancel the write.
pub struct PendingWrite<T> {
    shard: Arc<Shard>,
    /// Receives the outcome. `None` once the outcome was received.
    outcome: Option<oneshot::Receiver<WriteOutcome<T>>>,
}

impl Shard {
    /// Queues a write of records. `callback` is called once the records are replicated or have failed, and before the
    /// callback of the next write. The result of `callback` goes to the caller that waits for the write.
    ///
    /// A thread may hold locks while it queues a write, so `callback` must not take any of these locks. The append
    /// begins when a caller waits or calls [`Shard::flush`], or when the queue is long.
    pub fn write<T: Send + 'static>(
        self: &Arc<Self>,
        records: Records,
        callback: impl FnOnce(Result<(), AppendError>) -> T + Send + 'static,
    ) -> PendingWrite<T> {
        let (answer, pending) = oneshot::channel();
        let callback: AppendCallback = Box::new(move |result| {
            let outcome = match result {
                Ok(durable) => (callback(Ok(())), durable),
                Err(error) => (callback(Err(error)), None),
            };
            // If the receiver was dropped, no task needs the outcome.
            let _ = answer.send(outcome);
        });
        self.request(records, callback);
        PendingWrite { shard: Arc::clone(self), outcome: Some(pending) }
    }
}

impl<T> PendingWrite<T> {
    /// Returns the shard to which the records are written.
    pub fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Appends this write together with all other waiting writes, and waits until it is replicated. Returns the result
    /// of the write's callback.
    ///
    /// # Errors
    /// Returns an [`AppendError`] if the flush that the topic requires fails, or if the replicas take longer than
    /// [`KEPT_WITHIN`]. In both cases, the log contains the write. If the append itself fails, the callback gets the
    /// error instead.
    pub async fn kept(mut self) -> Result<T, AppendError> {
        let mut outcome = self.arrived();
        if outcome.is_none() {
            // Lets other tasks queue their writes first, so that these share the batch.
            tokio::task::yield_now().await;
            outcome = self.arrived();
        }
        let (result, durable) = match (outcome, self.outcome.take()) {
            (Some(outcome), _) => outcome,
            (None, Some(mut outcome)) => {
                self.shard.flush_soon().await;
                loop {
                    match timeout(KEPT_WITHIN, &mut outcome).await {
                        Ok(arrived) => break arrived.map_err(|_| AppendError::Gone)?,
                        Err(_) if !self.shard.is_replicated() => return Err(TIMED_OUT),
                        // All appended writes are replicated but this one has no outcome, so another thread is still
                        // appending it. Keeps waiting.
                        Err(_) => {}
                    }
                }
            }
            (None, None) => return Err(AppendError::Gone),
        };
        if let Some(durable) = durable {
            durable.wait().await?;
        }
        Ok(result)
    }

    /// Appends this write together with all other waiting writes. Returns the write's outcome if it is known at once.
    ///
    /// # Errors
    /// Returns the write itself if it must wait for replicas, for the disk, or for another thread that appends it. The
    /// caller can then await it.
    pub fn kept_now(mut self) -> Result<T, PendingWrite<T>> {
        if self.shard.partition().phase().is_open() {
            self.shard.flush();
        }
        match self.arrived() {
            Some((result, None)) => Ok(result),
            Some(unflushed) => {
                let (answer, pending) = oneshot::channel();
                // The receiver still exists, so sending cannot fail.
                let _ = answer.send(unflushed);
                self.outcome = Some(pending);
                Err(self)
            }
            None => Err(self),
        }
    }

    fn arrived(&mut self) -> Option<WriteOutcome<T>> {
        let outcome = self.outcome.as_mut()?.try_recv().ok()?;
        self.outcome = None;
        Some(outcome)
    }
}

impl<T> Drop for PendingWrite<T> {
    fn drop(&mut self) {
        // No task waits for this write any more, but it must still be appended.
        if let Some(mut outcome) = self.outcome.take()
            && matches!(outcome.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        {
            self.shard.flush_elsewhere();
        }
    }
}
