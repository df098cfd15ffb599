//! The transactions of a run. Each is committed after a configured duration, as in Kafka's `ProducerPerformance`.
//!
//! Invariant: while a transaction commits, records are already added to the next one. The outcome of every commit is
//! checked.

use fullbore_producer::{Delivery, Ending, Producer, ProducerRecord, SendError, Transaction, TransactionError};
use std::time::{Duration, Instant};

/// How long a transaction lasts by default before it is committed. Kafka's `DEFAULT_TRANSACTION_DURATION_MS`.
pub const TRANSACTION_DURATION: Duration = Duration::from_secs(3);

/// The reason why a run ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProduceFailure {
    /// The producer refused a record.
    #[error(transparent)]
    Send(#[from] SendError),
    /// A transaction was not committed.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
}

/// A sender of records, which uses transactions if the producer has a transactional id.
pub(super) struct Transactions<'a> {
    producer: &'a Producer,
    duration: Duration,
    open: Option<(Transaction<'a>, Instant)>,
    ending: Option<Ending<'a>>,
}

impl<'a> Transactions<'a> {
    pub(super) async fn new(producer: &'a Producer, duration: Duration) -> Result<Self, ProduceFailure> {
        if producer.is_transactional() {
            producer.init_transactions().await?;
        }
        Ok(Transactions { producer, duration, open: None, ending: None })
    }

    /// Returns true if records belong to transactions.
    pub(super) fn are_wanted(&self) -> bool {
        self.producer.is_transactional()
    }

    /// Begins a transaction if none is open. Its duration is counted from `now`.
    pub(super) async fn begin(&mut self, now: Instant) -> Result<(), ProduceFailure> {
        if self.open.is_none() {
            self.open = Some((self.producer.begin().await?, now));
        }
        Ok(())
    }

    /// Commits the transaction if it has been open for long enough.
    pub(super) async fn end_if_due(&mut self, now: Instant) -> Result<(), ProduceFailure> {
        match self.open.take_if(|(_, begun)| now.saturating_duration_since(*begun) >= self.duration) {
            Some((transaction, _)) => self.commit(transaction).await,
            None => Ok(()),
        }
    }

    async fn commit(&mut self, transaction: Transaction<'a>) -> Result<(), ProduceFailure> {
        let ending = transaction.commit();
        match self.ending.replace(ending) {
            Some(before) => Ok(before.await?),
            None => Ok(()),
        }
    }

    /// Commits the open transaction and waits for every outcome.
    pub(super) async fn finish(mut self) -> Result<(), ProduceFailure> {
        if let Some((transaction, _)) = self.open.take() {
            self.commit(transaction).await?;
        }
        match self.ending.take() {
            Some(last) => Ok(last.await?),
            None => Ok(()),
        }
    }

    /// Ends the open transaction after the producer has refused a record. Returns the error of the commit, which is the
    /// cause of the refusal, or `refused` if the commit succeeds.
    pub(super) async fn failure(self, refused: SendError) -> ProduceFailure {
        self.finish().await.err().unwrap_or(ProduceFailure::Send(refused))
    }

    /// Sends a record like [`Producer::try_send`], within the open transaction if there is one.
    pub(super) fn try_send(&self, record: ProducerRecord<'_>) -> Result<Delivery, SendError> {
        match &self.open {
            Some((transaction, _)) => transaction.try_send(record),
            None => self.producer.try_send(record),
        }
    }

    /// Sends a record like [`Producer::send`], within the open transaction if there is one.
    pub(super) async fn send(&self, record: ProducerRecord<'_>) -> Result<Delivery, SendError> {
        match &self.open {
            Some((transaction, _)) => transaction.send(record).await,
            None => self.producer.send(record).await,
        }
    }
}
