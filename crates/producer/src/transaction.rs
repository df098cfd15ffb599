//! The interface for applications that use transactions: begin, send, send_offsets, commit, abort.
//!
//! Transactions are a mode of [`Producer`] and not a type of their own, so that code such as the tools works with and
//! without them. [`Transaction::commit`] and [`Transaction::abort`] consume the transaction, so that no record can be
//! sent after them.
//!
//! Invariant: a transaction that is dropped is aborted.

use crate::delivery::Delivery;
use crate::error::{NO_TRANSACTIONAL_ID, SendError, TransactionError};
use crate::ledger::{GroupMetadata, OffsetsRequest, Phase, TransactionLedger, TransactionOffset};
use crate::producer::Producer;
use crate::record::ProducerRecord;
use crate::scope::{TransactionScope, Wish};
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// The error of a producer without a transactional.id.
const NO_ID: TransactionError = TransactionError::State(NO_TRANSACTIONAL_ID);

impl Producer {
    /// Gets a producer id for the transactional.id. This fences other producers with that id and aborts their open
    /// transaction. Waits for at most max.block.ms.
    ///
    /// # Errors
    /// Returns [`TransactionError::Timeout`] after max.block.ms. The next call continues the wait. Returns
    /// [`TransactionError::Coordinator`] if the coordinator refuses.
    pub async fn init_transactions(&self) -> Result<(), TransactionError> {
        let ledger = self.ledger()?;
        ledger.initialise();
        let initialised = || match ledger.phase() {
            Phase::New(None) | Phase::Initialising => None,
            Phase::New(Some(error)) | Phase::Fatal(error) => Some(Err(error)),
            Phase::Ready => Some(Ok(())),
        };
        self.until("get a producer id", None, initialised).await
    }

    /// Begins a transaction. The previous transaction may still be ending. Records of the new one are then gathered,
    /// and sent when the previous one has ended. If two transactions are still ending, waits for the end of the older
    /// one for up to max.block.ms.
    ///
    /// After a failed commit, new transactions fail as well, because they might commit offsets past the records of the
    /// failed one. They succeed again once the [`Ending`] of the failed commit has returned its error or was dropped.
    ///
    /// # Errors
    /// Returns [`TransactionError::State`] if the producer has no transactional.id or is not initialised, or if a
    /// transaction is open. Returns [`TransactionError::Timeout`] after max.block.ms. If a fatal error has ended the
    /// producer, returns that error.
    pub async fn begin(&self) -> Result<Transaction<'_>, TransactionError> {
        let ledger = self.ledger()?;
        let begun = || ledger.begin().transpose();
        let scope = self.until("begin a transaction", None, begun).await?;
        Ok(Transaction { producer: self, scope })
    }

    /// Returns true if the producer has a transactional.id, so that records belong to transactions.
    pub fn is_transactional(&self) -> bool {
        self.core.ledger.is_some()
    }

    fn ledger(&self) -> Result<&Arc<TransactionLedger>, TransactionError> {
        self.core.ledger.as_ref().ok_or(NO_ID)
    }

    /// Waits for up to max.block.ms until `look` returns a result. If the caller waits for the outcome of a
    /// transaction, `ending` is this transaction.
    async fn until<T>(
        &self,
        action: &'static str,
        ending: Option<&TransactionScope>,
        mut look: impl FnMut() -> Option<Result<T, TransactionError>>,
    ) -> Result<T, TransactionError> {
        let (ledger, started) = (self.ledger()?, Instant::now());
        let deadline = started.checked_add(self.core.config.max_block);
        loop {
            let changed = ledger.changed();
            if let Some(found) = look() {
                return found;
            }
            if !self.before(deadline, changed).await {
                let possibly_committed = ending.is_some_and(TransactionScope::is_possibly_committed);
                return Err(timed_out(action, started, ledger, possibly_committed));
            }
        }
    }

    /// Waits until every transaction has its outcome.
    pub(crate) async fn transactions_ended(&self) {
        let Some(ledger) = &self.core.ledger else { return };
        loop {
            let changed = ledger.changed();
            if ledger.is_idle() {
                return;
            }
            changed.await;
        }
    }
}

/// Returns the error of a call that has waited for max.block.ms without success.
fn timed_out(
    action: &'static str,
    started: Instant,
    ledger: &TransactionLedger,
    possibly_committed: bool,
) -> TransactionError {
    TransactionError::Timeout { action, waited: started.elapsed(), why: ledger.trouble(), possibly_committed }
}

/// An open transaction. Dropping this value aborts the transaction.
///
/// While this transaction commits, records of the next one can be gathered. [`Transaction::send_offsets`] commits
/// offsets of a consumer group with the records (KIP-447). Each error shows how to go on:
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use fullbore_producer::{Producer, ProducerRecord};
///
/// let settings = [("bootstrap.servers", "localhost:9092"), ("transactional.id", "import")];
/// let producer = Producer::from_properties(settings)?;
/// // Fences other producers of this id, and aborts their open transaction.
/// producer.init_transactions().await?;
/// let transaction = producer.begin().await?;
/// let delivery = transaction.send(ProducerRecord::new("events", b"hello")).await?;
/// let commit = transaction.commit();
/// let next = producer.begin().await?;
/// drop(next.send(ProducerRecord::new("events", b"again")).await?);
/// if let Err(error) = commit.wait().await {
///     let (again, is_over) = (error.is_retriable(), error.is_fatal());
///     eprintln!("{error}; wait again: {again}; begin again with a new producer: {is_over}");
///     return Err(error.into());
/// }
/// println!("offset {}", delivery.await?.offset);
/// next.commit().await?;
/// # Ok(()) }
/// ```
#[must_use = "a transaction that is dropped is aborted"]
pub struct Transaction<'a> {
    producer: &'a Producer,
    scope: Arc<TransactionScope>,
}

impl<'a> Transaction<'a> {
    /// Queues a record for sending, like [`Producer::send`].
    ///
    /// # Errors
    /// Returns [`SendError`] if the record is refused. The record was then certainly not written.
    pub async fn send(&self, record: ProducerRecord<'_>) -> Result<Delivery, SendError> {
        self.check()?;
        self.producer.send_in(record, Some(&self.scope)).await
    }

    /// Queues a record without waiting, like [`Producer::try_send`].
    ///
    /// # Errors
    /// Returns [`SendError::Full`], [`SendError::NoMetadata`] or [`SendError::NoPartition`] where `send` would wait.
    pub fn try_send(&self, record: ProducerRecord<'_>) -> Result<Delivery, SendError> {
        self.check()?;
        self.producer.try_send_in(record, Some(&self.scope))
    }

    fn check(&self) -> Result<(), SendError> {
        if !self.scope.has_failed() {
            return Ok(());
        }
        let why = self.scope.failure().map(|failure| failure.to_string());
        Err(SendError::TransactionFailed(why.unwrap_or_default()))
    }

    /// Commits a group's offsets with the transaction. The coordinator refuses them if the member was fenced, or if its
    /// generation is over (KIP-447). Waits for up to max.block.ms until the call is queued, and then for up to
    /// max.block.ms for the answer. The answer comes only after the previous transaction has ended.
    ///
    /// # Errors
    /// Returns [`TransactionError`] if the transaction has failed earlier or fails by this call, or
    /// [`TransactionError::Timeout`] if max.block.ms passes.
    pub async fn send_offsets(
        &self,
        offsets: &[TransactionOffset],
        group: &GroupMetadata,
    ) -> Result<(), TransactionError> {
        let ledger = self.producer.ledger()?;
        let (answer, answered) = oneshot::channel();
        let (number, group, offsets) = (self.scope.number, group.clone(), offsets.to_vec());
        let mut request = Some(OffsetsRequest { number, group, offsets, answer });
        let action = "commit offsets";
        let queued = || {
            if let Phase::Fatal(error) = ledger.phase() {
                return Some(Err(error));
            }
            match ledger.queue_offsets(request.take()?) {
                Ok(()) => Some(Ok(())),
                Err(full) => {
                    request = Some(full);
                    None
                }
            }
        };
        self.producer.until(action, None, queued).await?;
        let started = Instant::now();
        let deadline = started.checked_add(self.producer.core.config.max_block);
        let mut outcome = None;
        let in_time = self.producer.before(deadline, async { outcome = answered.await.ok() }).await;
        match outcome {
            Some(outcome) => outcome,
            None if in_time => Err(self.closed()),
            None => Err(timed_out(action, started, ledger, false)),
        }
    }

    /// Queues a group's offsets for commit with the transaction, like [`Transaction::send_offsets`], but does not wait.
    /// The application can gather the next transaction in the meantime. If the offsets are refused, the transaction
    /// fails and its commit returns the error.
    ///
    /// # Errors
    /// Returns the error of the transaction if it has failed. Returns [`TransactionError::Full`] if 64 calls are queued
    /// already. The call then had no effect.
    pub fn queue_offsets(&self, offsets: &[TransactionOffset], group: &GroupMetadata) -> Result<(), TransactionError> {
        let ledger = self.producer.ledger()?;
        match (ledger.phase(), self.scope.failure()) {
            (Phase::Fatal(error), _) | (_, Some(error)) => return Err(error),
            _ => {}
        }
        let (answer, _) = oneshot::channel();
        let (number, group, offsets) = (self.scope.number, group.clone(), offsets.to_vec());
        let queued = ledger.queue_offsets(OffsetsRequest { number, group, offsets, answer });
        queued.map_err(|_| TransactionError::Full("64 earlier calls already wait until their offsets are committed"))
    }

    fn closed(&self) -> TransactionError {
        let closed = TransactionError::Closed { possibly_committed: false };
        self.scope.failure().unwrap_or(closed)
    }

    /// Commits the transaction. Its batches no longer linger, and when every record is acknowledged, the coordinator
    /// gets the request to commit. This happens even if the outcome is not awaited. If a record or the offsets failed,
    /// the transaction is aborted instead, and the outcome is that error.
    pub fn commit(self) -> Ending<'a> {
        self.end(Wish::Commit)
    }

    /// Aborts the transaction. Records without a result fail.
    pub fn abort(self) -> Ending<'a> {
        self.end(Wish::Abort)
    }

    fn end(self, wish: Wish) -> Ending<'a> {
        self.scope.end(wish);
        let action = if wish == Wish::Commit { "commit the transaction" } else { "abort the transaction" };
        Ending { producer: self.producer, wanted: WantedOutcome(self.scope.clone()), action }
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // After a commit or an abort this has no effect, because the first wish counts.
        self.scope.end(Wish::Abort);
    }
}

/// A transaction that is being committed or aborted. Await it to get the outcome.
#[must_use = "a commit may fail; await its outcome, or drop it on purpose"]
pub struct Ending<'a> {
    producer: &'a Producer,
    wanted: WantedOutcome,
    action: &'static str,
}

/// A transaction whose outcome the application wants as long as this value exists. `Drop` is implemented here because a
/// `Drop` of [`Ending`] itself would extend its borrow of the producer past its last use.
struct WantedOutcome(Arc<TransactionScope>);

impl Drop for WantedOutcome {
    fn drop(&mut self) {
        self.0.disregard();
    }
}

impl Ending<'_> {
    /// Waits for the outcome, for at most max.block.ms. May be called again after a timeout.
    ///
    /// # Errors
    /// Returns [`TransactionError`] if the transaction was not committed or aborted as requested.
    pub async fn wait(&self) -> Result<(), TransactionError> {
        let scope = &self.wanted.0;
        self.producer.until(self.action, Some(scope), || scope.outcome()).await
    }

    /// Returns the outcome, or `None` while there is none.
    pub fn outcome(&self) -> Option<Result<(), TransactionError>> {
        self.wanted.0.outcome()
    }
}

impl<'a> IntoFuture for Ending<'a> {
    type Output = Result<(), TransactionError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.wait().await })
    }
}
