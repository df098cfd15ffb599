//! Write under way into the log of a shard.

use super::shard::{Records, Shard};
use super::unreplicated::AppendCallback;
use crate::partitions::{AppendError, FlushTicket};
use fullbore_wire::ErrorCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Longest wait for replicas (offsets.commit.timeout.ms in Kafka).
pub(super) const KEPT_WITHIN: Duration = Duration::from_secs(5);
const TIMED_OUT: AppendError = AppendError::Role(ErrorCode::REQUEST_TIMED_OUT);

/// Outcome of a write, and the flush to await, if there is one.
type WriteOutcome<T> = (T, Option<FlushTicket>);

/// Queued write. Dropping it does not cancel the write.
pub struct PendingWrite<T> {
    shard: Arc<Shard>,
    /// Receiver of the outcome; `None` once the outcome has come.
    outcome: Option<oneshot::Receiver<WriteOutcome<T>>>,
}

impl Shard {
    /// Queues a write of records. Calls `told` once the records are replicated or have failed, before the callback of
    /// the next write; the waiter gets the result of `told`. `told` must take no lock that a thread holds while it
    /// queues a write. The append begins once a caller waits or calls [`Shard::flush`], or the queue is long.
    pub fn write<T: Send + 'static>(
        self: &Arc<Self>,
        records: Records,
        told: impl FnOnce(Result<(), AppendError>) -> T + Send + 'static,
    ) -> PendingWrite<T> {
        let (answer, pending) = oneshot::channel();
        let told: AppendCallback = Box::new(move |result| {
            let outcome = match result {
                Ok(durable) => (told(Ok(())), durable),
                Err(error) => (told(Err(error)), None),
            };
            // A waiter that was dropped needs no outcome.
            let _ = answer.send(outcome);
        });
        self.ask(records, told);
        PendingWrite { shard: Arc::clone(self), outcome: Some(pending) }
    }
}

impl<T> PendingWrite<T> {
    /// Returns the shard of the write.
    pub fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Appends the write, together with all other waiting writes, and waits until it is replicated. Returns the result
    /// of the write's callback.
    ///
    /// # Errors
    /// [`AppendError`] if the flush that the topic requires fails, or replicas take longer than [`KEPT_WITHIN`]; the
    /// write is in the log all the same. An error of the append goes to the callback instead.
    pub async fn kept(mut self) -> Result<T, AppendError> {
        let mut outcome = self.arrived();
        if outcome.is_none() {
            // Other tasks that are ready now queue their writes first, and share the batch.
            tokio::task::yield_now().await;
            outcome = self.arrived();
        }
        let (told, durable) = match (outcome, self.outcome.take()) {
            (Some(outcome), _) => outcome,
            (None, Some(mut outcome)) => {
                self.shard.flush_soon().await;
                loop {
                    match timeout(KEPT_WITHIN, &mut outcome).await {
                        Ok(arrived) => break arrived.map_err(|_| AppendError::Gone)?,
                        Err(_) if !self.shard.is_replicated() => return Err(TIMED_OUT),
                        // All appended writes are replicated, so another thread is still appending this one: waits on.
                        Err(_) => {}
                    }
                }
            }
            (None, None) => return Err(AppendError::Gone),
        };
        if let Some(durable) = durable {
            durable.wait().await?;
        }
        Ok(told)
    }

    /// Appends the write, together with all other waiting writes, and returns its outcome if that is known at once.
    ///
    /// # Errors
    /// This write, for the caller to await, if it waits for replicas, the disk, or another thread that appends it.
    pub fn kept_now(mut self) -> Result<T, PendingWrite<T>> {
        if self.shard.partition().phase().is_open() {
            self.shard.flush();
        }
        match self.arrived() {
            Some((told, None)) => Ok(told),
            Some(unflushed) => {
                let (answer, pending) = oneshot::channel();
                // The receiver exists, so this cannot fail.
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
        // The write is appended although no task awaits it any more.
        if let Some(mut outcome) = self.outcome.take()
            && matches!(outcome.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        {
            self.shard.flush_elsewhere();
        }
    }
}
