//! A write on its way into the log.

use super::shard::{Records, Shard};
use super::unreplicated::Told;
use crate::partitions::{AppendError, FlushTicket};
use fullbore_wire::ErrorCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long the replicas may take (offsets.commit.timeout.ms in Kafka).
pub(super) const KEPT_WITHIN: Duration = Duration::from_secs(5);
const TIMED_OUT: AppendError = AppendError::Role(ErrorCode::REQUEST_TIMED_OUT);

/// Outcome of a write, and the flush that it still waits for.
type WriteOutcome<T> = (T, Option<FlushTicket>);

/// A write asked for. To drop it does not take it back.
pub struct PendingWrite<T> {
    shard: Arc<Shard>,
    /// None once it has come.
    outcome: Option<oneshot::Receiver<WriteOutcome<T>>>,
}

impl Shard {
    /// Asks for records to be kept. `told` is called once they are or cannot be, before the next write is told of, and
    /// what it returns goes to who awaits. It takes no lock that anybody holds while asking for a write. Nothing is
    /// appended before somebody awaits, calls [`Shard::flush`], or much waits.
    pub fn write<T: Send + 'static>(
        self: &Arc<Self>,
        records: Records,
        told: impl FnOnce(Result<(), AppendError>) -> T + Send + 'static,
    ) -> PendingWrite<T> {
        let (answer, pending) = oneshot::channel();
        let told: Told = Box::new(move |result| {
            let outcome = match result {
                Ok(durable) => (told(Ok(())), durable),
                Err(error) => (told(Err(error)), None),
            };
            // Who went away does not want to know.
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

    /// Appends it, together with what waits by then, and waits until it is kept: what was told of it.
    ///
    /// # Errors
    /// It is in the log, and cannot be brought to the disk as the topic asks for, or its replicas take long.
    pub async fn kept(mut self) -> Result<T, AppendError> {
        let mut outcome = self.arrived();
        if outcome.is_none() {
            // Others that are ready now ask first, and share the batch.
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
                        // Somebody is writing, which takes as long as the disk does.
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

    /// Appends the write, together with what waits by then, and returns its outcome if that is known at once.
    ///
    /// # Errors
    /// The write itself, if it waits for replicas, the disk, or another thread that appends it.
    pub fn kept_now(mut self) -> Result<T, PendingWrite<T>> {
        if self.shard.partition().phase().is_open() {
            self.shard.flush();
        }
        match self.arrived() {
            Some((told, None)) => Ok(told),
            Some(unflushed) => {
                let (answer, pending) = oneshot::channel();
                // The receiver is right here.
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
        // Nobody awaits it any more, and it is carried out all the same.
        if let Some(mut outcome) = self.outcome.take()
            && matches!(outcome.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        {
            self.shard.flush_elsewhere();
        }
    }
}
