//! The transactions of `produce`: one for each `--transaction-records` records, or a single one for all records.
//!
//! Invariant: while a transaction commits, records are already added to the next one. A third transaction begins only
//! when the outcome of the first one is known.

use crate::transactional::TransactionSettings;
use fullbore_producer::{Delivery, Ending, Producer, ProducerRecord, SendError, Transaction, TransactionError};
use std::time::{Duration, Instant};

/// The transactions of one run of `produce`.
pub struct Transactions<'a> {
    producer: &'a Producer,
    settings: TransactionSettings,
    /// Maximum number of records in a transaction.
    records_max: u64,
    open: Option<Transaction<'a>>,
    /// When the last transaction began.
    begun: Instant,
    /// How many records are in the open transaction.
    records: u64,
    ending: Option<Committing<'a>>,
    /// How many records are in a transaction whose abort was requested but not confirmed yet.
    aborting: u64,
    /// How many records were committed.
    pub committed: u64,
}

/// A transaction that is being committed.
struct Committing<'a> {
    ending: Ending<'a>,
    records: u64,
    begun: Instant,
}

impl<'a> Transactions<'a> {
    /// Initialises the producer's transactions.
    ///
    /// # Errors
    /// Returns a text about the error if the producer cannot initialise transactions.
    pub async fn init(
        producer: &'a Producer,
        settings: TransactionSettings,
        records_max: Option<u64>,
    ) -> Result<Self, String> {
        producer.init_transactions().await.map_err(|error| settings.cause(&error, Duration::ZERO))?;
        let (records_max, begun) = (records_max.unwrap_or(u64::MAX), Instant::now());
        Ok(Transactions {
            producer,
            settings,
            records_max,
            open: None,
            begun,
            records: 0,
            ending: None,
            aborting: 0,
            committed: 0,
        })
    }

    /// Returns the open transaction. Begins one if none is open.
    ///
    /// # Errors
    /// Returns [`TransactionError`] if the producer cannot begin a transaction.
    pub async fn open(&mut self) -> Result<&Transaction<'a>, TransactionError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                let open = self.producer.begin().await?;
                self.begun = Instant::now();
                open
            }
        };
        Ok(self.open.insert(open))
    }

    /// Sends a record in the open transaction, without waiting for memory. Returns `None` if no transaction is open.
    pub fn try_send(&self, record: ProducerRecord<'_>) -> Option<Result<Delivery, SendError>> {
        Some(self.open.as_ref()?.try_send(record))
    }

    /// Counts a record in the open transaction. Returns true if the transaction is full.
    pub fn sent(&mut self) -> bool {
        self.records += 1;
        self.records >= self.records_max
    }

    /// Begins to commit the open transaction, and waits for the outcome of the previous one.
    ///
    /// # Errors
    /// Returns a sentence about the previous transaction if it was not committed.
    pub async fn commit(&mut self) -> Result<(), String> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let ended = Committing { ending: open.commit(), records: std::mem::take(&mut self.records), begun: self.begun };
        let before = self.ending.replace(ended);
        self.settle(before).await
    }

    /// Waits for the outcome of the transaction that is being committed.
    ///
    /// # Errors
    /// Returns a sentence about that transaction if it was not committed.
    pub async fn settled(&mut self) -> Result<(), String> {
        let last = self.ending.take();
        self.settle(last).await
    }

    /// Ends the open transaction, which has failed. Returns a sentence about it, and also about the previous
    /// transaction if that was not committed.
    pub async fn failed(&mut self) -> String {
        let before = self.commit().await.err();
        let outcomes = [before, self.settled().await.err()];
        outcomes.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Returns a sentence about why no transaction can begin: the failure of the previous transaction, or `error` if
    /// that did not fail.
    pub async fn refused(&mut self, error: &TransactionError) -> String {
        let cause = format!("no further transaction can begin: {}", self.settings.cause(error, Duration::ZERO));
        self.settled().await.err().unwrap_or(cause)
    }

    async fn settle(&mut self, ending: Option<Committing<'a>>) -> Result<(), String> {
        let Some(Committing { ending, records, begun }) = ending else { return Ok(()) };
        match ending.wait().await {
            Ok(()) => {
                self.committed += records;
                Ok(())
            }
            Err(error) => Err(not_committed(records, &self.settings, &error, begun.elapsed())),
        }
    }

    /// Aborts the open transaction. Returns a sentence about it, unless it had no records.
    pub async fn abort(&mut self) -> Option<String> {
        let (open, records) = (self.open.take()?, std::mem::take(&mut self.records));
        self.aborting = records;
        let outcome = open.abort().await;
        self.aborting = 0;
        let records = (records > 0).then(|| counted(records))?;
        Some(match outcome {
            Ok(()) => format!("the open transaction of {records} was aborted"),
            Err(error) => {
                let cause = self.settings.cause(&error, self.begun.elapsed());
                format!(
                    "the open transaction of {records} was not ended here, so the coordinator aborts it at its \
                     timeout: {cause}"
                )
            }
        })
    }

    /// Returns sentences about the transactions whose outcome is unknown.
    pub fn unsure(&self) -> Vec<String> {
        let timeout_ms = self.settings.timeout().as_millis();
        let aborting = (self.aborting > 0).then(|| {
            format!(
                "the open transaction of {} was not aborted in time; its coordinator aborts it after \
                 transaction.timeout.ms={timeout_ms}, and readers at read_committed wait until then",
                counted(self.aborting)
            )
        });
        let committing = self.ending.as_ref().map(|Committing { records, .. }| {
            format!("a transaction of {} may or may not be committed", counted(*records))
        });
        aborting.into_iter().chain(committing).collect()
    }
}

fn counted(records: u64) -> String {
    if records == 1 { "1 record".to_owned() } else { format!("{records} records") }
}

fn not_committed(records: u64, settings: &TransactionSettings, error: &TransactionError, open_for: Duration) -> String {
    let (of, doubt) = (counted(records), if error.may_have_been_written() { " and may yet be" } else { "" });
    format!("a transaction of {of} was not committed{doubt}: {}", settings.cause(error, open_for))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_producer::ProducerConfig;

    #[test]
    fn a_commit_without_a_response_is_reported_as_doubtful() {
        let closed = |possibly_committed| TransactionError::Closed { possibly_committed };
        let config = [("bootstrap.servers", "h:1"), ("transactional.id", "a")];
        let config = ProducerConfig::from_properties(config).expect("valid");
        let settings = TransactionSettings::of(&config, "--transaction-records").expect("an id");
        let not_committed =
            |records, error: TransactionError| not_committed(records, &settings, &error, Duration::ZERO);
        let sure = not_committed(1, closed(false));
        assert!(sure.starts_with("a transaction of 1 record was not committed: "), "{sure}");
        let unsure = not_committed(2, closed(true));
        assert!(unsure.starts_with("a transaction of 2 records was not committed and may yet be: "), "{unsure}");
    }
}
