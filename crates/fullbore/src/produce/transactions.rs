//! The transactions of `produce`: each of `--transaction-records`, or one of all.
//!
//! Invariant: while one commits the next gathers; no third begins before the first has its outcome.

use fullbore_producer::{Delivery, Ending, Producer, ProducerRecord, SendError, Transaction, TransactionError};

/// Transactions of one run of `produce`.
pub struct Transactions<'a> {
    producer: &'a Producer,
    /// Records of a transaction at most.
    records_max: u64,
    open: Option<Transaction<'a>>,
    /// Records of the open one.
    records: u64,
    ending: Option<(Ending<'a>, u64)>,
    /// Records that are committed.
    pub committed: u64,
}

impl<'a> Transactions<'a> {
    /// Gets a producer id.
    ///
    /// # Errors
    /// The producer's.
    pub async fn init(producer: &'a Producer, records_max: Option<u64>) -> Result<Self, TransactionError> {
        producer.init_transactions().await?;
        let records_max = records_max.unwrap_or(u64::MAX);
        Ok(Transactions { producer, records_max, open: None, records: 0, ending: None, committed: 0 })
    }

    /// Returns the open transaction, which begins if there is none.
    ///
    /// # Errors
    /// The producer's.
    pub async fn open(&mut self) -> Result<&Transaction<'a>, TransactionError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => self.producer.begin().await?,
        };
        Ok(self.open.insert(open))
    }

    /// Hands a record over without waiting; `None` without an open transaction.
    pub fn try_send(&self, record: ProducerRecord<'_>) -> Option<Result<Delivery, SendError>> {
        Some(self.open.as_ref()?.try_send(record))
    }

    /// Counts a record of the open transaction. Returns true if the transaction is full.
    pub fn sent(&mut self) -> bool {
        self.records += 1;
        self.records >= self.records_max
    }

    /// Begins to commit the open transaction, and waits for the outcome of its predecessor.
    ///
    /// # Errors
    /// A sentence on the predecessor, if it is not committed.
    pub async fn commit(&mut self) -> Result<(), String> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let ended = (open.commit(), std::mem::take(&mut self.records));
        let before = self.ending.replace(ended);
        self.settle(before).await
    }

    /// Waits for the outcome of the transaction that commits.
    ///
    /// # Errors
    /// A sentence, if it is not committed.
    pub async fn settled(&mut self) -> Result<(), String> {
        let last = self.ending.take();
        self.settle(last).await
    }

    async fn settle(&mut self, ending: Option<(Ending<'a>, u64)>) -> Result<(), String> {
        let Some((ending, records)) = ending else { return Ok(()) };
        match ending.wait().await {
            Ok(()) => {
                self.committed += records;
                Ok(())
            }
            Err(error) => Err(not_committed(records, &error)),
        }
    }

    /// Aborts the open transaction. Returns a sentence on it, if it had records.
    pub async fn abort(&mut self) -> Option<String> {
        let (open, records) = (self.open.take()?, std::mem::take(&mut self.records));
        let outcome = open.abort().await;
        let records = (records > 0).then(|| counted(records))?;
        Some(match outcome {
            Ok(()) => format!("the open transaction of {records} was aborted"),
            Err(error) => format!("the open transaction of {records} is left to its timeout: {error}"),
        })
    }

    /// Returns a sentence on the transaction without an outcome.
    pub fn unsure(&self) -> Option<String> {
        let (_, records) = self.ending.as_ref()?;
        Some(format!("a transaction of {} may or may not be committed", counted(*records)))
    }
}

fn counted(records: u64) -> String {
    if records == 1 { "1 record".to_owned() } else { format!("{records} records") }
}

fn not_committed(records: u64, error: &TransactionError) -> String {
    let (of, doubt) = (counted(records), if error.may_have_been_written() { " and may yet be" } else { "" });
    format!("a transaction of {of} was not committed{doubt}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_without_an_answer_is_named_as_doubtful() {
        let closed = |possibly_committed| TransactionError::Closed { possibly_committed };
        let sure = not_committed(1, &closed(false));
        assert!(sure.starts_with("a transaction of 1 record was not committed: "), "{sure}");
        let unsure = not_committed(2, &closed(true));
        assert!(unsure.starts_with("a transaction of 2 records was not committed and may yet be: "), "{unsure}");
    }
}
