//! Passes records to the producer, and stores each delivery until its result was read.
//!
//! Invariant: results are read in the order of the records. At most [`PENDING_MAX`] deliveries are stored.

use super::too_large::TooLarge;
use super::transactions::Transactions;
use crate::failure::{Failure, records_were_written};
use crate::output;
use crate::pipe::json;
use crate::stop::Stop;
use crate::transactional::TransactionSettings;
use fullbore_producer::{
    Delivery, ProduceError, Producer, ProducerRecord, RecordMetadata, SendError, TransactionError,
};
use fullbore_wire::batch::{HEADER_LEN, record_size_max};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::Instant;

/// Maximum number of records whose results were not read yet.
const PENDING_MAX: usize = 1 << 18;
/// How long the command waits after SIGTERM for the acknowledgements of records in flight. After Ctrl-C it waits this
/// long only if brokers are slow.
const INTERRUPTED_PATIENCE: Duration = Duration::from_secs(10);
/// The minimum time after Ctrl-C for which the command waits for acknowledgements. If brokers have been slow so far, it
/// waits longer.
const CTRL_C_PATIENCE: Duration = Duration::from_millis(300);
/// How much longer the command may run after this wait, to print its result.
const VERDICT: Duration = Duration::from_millis(100);
/// The size at which answers are printed, in bytes. If there is no input at the moment, fewer bytes are printed at
/// once.
const ANSWERS_BYTES: usize = 64 << 10;

/// The form of the answer that is printed for each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// No answer is printed.
    None,
    /// A line with topic, partition and offset, separated by tabs.
    Text,
    /// A line with a JSON object.
    Json,
}

/// The position of a record in the input.
#[derive(Clone, Debug)]
pub struct InputPosition {
    /// The name of the file as the user typed it, or `None` for standard input.
    pub file: Option<Rc<str>>,
    /// The noun for a record of the input in messages: `line` or `record`.
    pub unit: &'static str,
    /// The number of the record, counted from 1.
    pub number: u64,
}

impl std::fmt::Display for InputPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{file}, {} {}", self.unit, self.number),
            None => write!(f, "{} {}", self.unit, self.number),
        }
    }
}

struct SentRecord {
    place: InputPosition,
    topic: Rc<str>,
    /// The maximum size of a batch with only this record, in bytes.
    size: usize,
    /// The approximate time of the send: when results were last checked before it.
    begun: Instant,
    delivery: Delivery,
}

/// The first record that failed.
struct FirstFailure {
    place: InputPosition,
    error: String,
    too_large: Option<TooLarge>,
}

/// How to end the open transaction when no more records follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
    Commit,
    Abort,
}

/// The producer and its records in flight.
pub struct Sending<'a> {
    producer: &'a Producer,
    runtime: &'a Runtime,
    stop: &'a Stop,
    answers: Answers,
    /// The transactions to which the records belong, or `None` if they are sent without transactions.
    transactions: Option<Transactions<'a>>,
    /// Sentences about transactions that were not committed.
    uncommitted: Option<String>,
    pending: VecDeque<SentRecord>,
    printed: Vec<u8>,
    /// When results were last checked.
    looked: Instant,
    /// The longest time that any record took from its send until its result was read.
    slowest: Duration,
    /// When the command stops waiting for records. `None` until the user stops the command.
    ends_at: Option<Instant>,
    /// How many records were acknowledged.
    pub written: u64,
    /// How many records failed after the producer had accepted them. Does not count records that failed only because
    /// their transaction was aborted.
    pub failed: u64,
    first_failure: Option<FirstFailure>,
}

/// Returns how long to wait for records in flight after a stop by the user. After Ctrl-C this is twice the time of the
/// slowest earlier record, within limits, so that the command does not wait long for a dead broker.
fn patience_with(stop: &Stop, slowest: Duration) -> Duration {
    let share = (2 * slowest).clamp(CTRL_C_PATIENCE, INTERRUPTED_PATIENCE);
    stop.allow(share + VERDICT);
    stop.time_left(INTERRUPTED_PATIENCE, share)
}

/// The reason why a record was refused. The command then sends no more records.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The producer refused the record.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The transaction of the record failed in the producer.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// An earlier transaction was not committed. Contains a sentence about it.
    #[error("{0}")]
    Uncommitted(String),
}

/// Returns true if the send may succeed after a wait for memory or metadata.
fn may_wait(error: &SendError) -> bool {
    matches!(error, SendError::Full | SendError::NoMetadata | SendError::NoPartition { .. })
}

/// The outcome of [`Sending::send`].
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// The producer has accepted the record.
    Taken,
    /// The user has stopped the command, and the time for records in flight is over.
    Stopped,
}

impl<'a> Sending<'a> {
    /// Creates a sender that has not sent any record.
    pub fn new(producer: &'a Producer, runtime: &'a Runtime, stop: &'a Stop, answers: Answers) -> Self {
        Sending {
            producer,
            runtime,
            stop,
            answers,
            transactions: None,
            uncommitted: None,
            pending: VecDeque::new(),
            printed: Vec::new(),
            looked: Instant::now(),
            slowest: Duration::ZERO,
            ends_at: None,
            written: 0,
            failed: 0,
            first_failure: None,
        }
    }

    /// Initialises transactions. All later records are sent in transactions of at most `records` records. Returns false
    /// if the user stops the command first.
    ///
    /// # Errors
    /// Returns [`Failure`] if the producer cannot initialise transactions.
    pub fn begin_transactions(&mut self, settings: TransactionSettings, records: Option<u64>) -> Result<bool, Failure> {
        let begun = self.in_time(Transactions::init(self.producer, settings, records));
        self.transactions = begun.transpose().map_err(Failure::new)?;
        Ok(self.transactions.is_some())
    }

    /// Passes a record to the producer. Returns `None` if the time after a stop is over, as in [`Sending::in_time`].
    fn hand_over(&mut self, record: ProducerRecord<'_>) -> Option<Result<Delivery, Refusal>> {
        if let Some(mut transactions) = self.transactions.take() {
            let outcome = self.hand_over_in(&mut transactions, record);
            self.transactions = Some(transactions);
            return outcome;
        }
        let producer = self.producer;
        let sent = match producer.try_send(record) {
            Err(error) if may_wait(&error) => self.in_time(producer.send(record))?,
            sent => sent,
        };
        Some(sent.map_err(Refusal::from))
    }

    /// Passes a record to the producer in a transaction, and commits the transaction if it is then full. Returns `None`
    /// if the time after a stop is over, as in [`Sending::in_time`].
    fn hand_over_in(
        &mut self,
        transactions: &mut Transactions<'a>,
        record: ProducerRecord<'_>,
    ) -> Option<Result<Delivery, Refusal>> {
        let sent = match transactions.try_send(record) {
            Some(Ok(delivery)) => Ok(delivery),
            Some(Err(error)) if !may_wait(&error) => Err(error.into()),
            _ => self.in_time(async { Ok(transactions.open().await?.send(record).await?) })?,
        };
        // If the transaction has failed, its own error is returned, because not this record but an earlier one or the
        // coordinator is the cause.
        match &sent {
            Err(Refusal::Send(SendError::TransactionFailed(_))) => {
                return Some(Err(Refusal::Uncommitted(self.in_time(transactions.failed())?)));
            }
            Err(Refusal::Transaction(error)) => {
                return Some(Err(Refusal::Uncommitted(self.in_time(transactions.refused(error))?)));
            }
            _ => {}
        }
        if sent.is_ok() && transactions.sent() {
            let committed = self.in_time(transactions.commit())?;
            if let Err(sentence) = committed {
                return Some(Err(Refusal::Uncommitted(sentence)));
            }
        }
        Some(sent)
    }

    /// Ends the open transaction as `end` demands, and waits for the outcome of every transaction. Returns sentences
    /// about those that were not committed.
    fn end_transactions(&mut self, end: TransactionEnd) -> Vec<String> {
        let Some(mut transactions) = self.transactions.take() else { return Vec::new() };
        let ended = self.in_time(async {
            let mut sentences = Vec::new();
            match end {
                TransactionEnd::Commit => sentences.extend(transactions.commit().await.err()),
                TransactionEnd::Abort => sentences.extend(transactions.abort().await),
            }
            sentences.extend(transactions.settled().await.err());
            sentences
        });
        let sentences = ended.unwrap_or_else(|| transactions.unsure());
        self.transactions = Some(transactions);
        sentences
    }

    /// Sends a record. Waits while the producer has no memory or the topic is unknown.
    ///
    /// # Errors
    /// Returns [`Refusal`] if the record was refused.
    pub fn send(&mut self, place: InputPosition, topic: &Rc<str>, record: ProducerRecord<'_>) -> Result<Sent, Refusal> {
        let size = HEADER_LEN + record_size_max(record.key, record.value, record.headers);
        let Some(delivery) = self.hand_over(record) else { return Ok(Sent::Stopped) };
        let delivery = delivery?;
        self.pending.push_back(SentRecord { place, topic: topic.clone(), size, begun: self.looked, delivery });
        if self.pending.len() >= PENDING_MAX {
            self.settle();
            if self.pending.len() >= PENDING_MAX {
                // The flush also sends batches that linger, and waits until all records have a result.
                if self.in_time(self.producer.flush()).is_none() {
                    return Ok(Sent::Stopped);
                }
                self.settle();
            }
        }
        Ok(Sent::Taken)
    }

    /// Waits for `event` and returns its output. If the user stops the command, waits only for the time of
    /// [`patience_with`], and then returns `None`.
    fn in_time<T>(&mut self, event: impl Future<Output = T>) -> Option<T> {
        let mut requested = self.stop.receiver();
        let (stop, slowest, ends_at) = (self.stop, self.slowest, &mut self.ends_at);
        let patience = async {
            // An error means that no stop can follow, so the wait for `event` has no limit.
            if requested.wait_for(|requested| *requested).await.is_err() {
                std::future::pending::<()>().await;
            }
            let ends_at = *ends_at.get_or_insert_with(|| Instant::now() + patience_with(stop, slowest));
            tokio::time::sleep_until(ends_at).await;
        };
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                outcome = event => Some(outcome),
                () = patience => None,
            }
        })
    }

    /// Returns true if a record still waits for its result.
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Reads the results that are known, in the order of the records.
    pub fn settle(&mut self) {
        self.looked = Instant::now();
        while let Some(result) = self.pending.front().and_then(|first| first.delivery.try_result()) {
            let Some(done) = self.pending.pop_front() else { return };
            self.slowest = self.slowest.max(self.looked - done.begun);
            self.answer(&done, result);
            if self.printed.len() >= ANSWERS_BYTES {
                self.print();
            }
        }
    }

    /// Prints the answers that were not printed yet.
    pub fn print(&mut self) {
        if !self.printed.is_empty() {
            output::bytes(&self.printed);
            self.printed.clear();
        }
    }

    fn answer(&mut self, done: &SentRecord, result: Result<RecordMetadata, ProduceError>) {
        match &result {
            Ok(_) => self.written += 1,
            // The record failed only because its transaction was aborted. The sentence about the transaction reports
            // that.
            Err(ProduceError::Aborted { .. }) => {}
            Err(error) => {
                self.failed += 1;
                let failure = || FirstFailure {
                    place: done.place.clone(),
                    error: error.to_string(),
                    too_large: TooLarge::of(error, &done.topic, done.size),
                };
                self.first_failure.get_or_insert_with(failure);
            }
        }
        let out = &mut self.printed;
        match (self.answers, result) {
            (Answers::None, _) | (Answers::Text, Err(_)) => {}
            (Answers::Text, Ok(RecordMetadata { partition, offset, .. })) => {
                out.extend_from_slice(format!("{}\t{partition}\t{offset}\n", done.topic).as_bytes());
            }
            (Answers::Json, result) => {
                out.extend_from_slice(format!("{{\"{}\":{},\"topic\":", done.place.unit, done.place.number).as_bytes());
                json::string(&done.topic, out);
                match result {
                    Ok(RecordMetadata { partition, offset, timestamp }) => {
                        let written =
                            format!(",\"partition\":{partition},\"offset\":{offset},\"timestamp\":{timestamp}");
                        out.extend_from_slice(written.as_bytes());
                    }
                    Err(error) => {
                        out.extend_from_slice(b",\"error\":");
                        json::string(&error.to_string(), out);
                    }
                }
                out.extend_from_slice(b"}\n");
            }
        }
    }

    /// Ends the open transaction as `end` demands, and waits for every result. If the user has stopped the command,
    /// waits only for a limited time.
    pub fn finish(&mut self, end: TransactionEnd) {
        let sentences = self.end_transactions(end);
        self.uncommitted = (!sentences.is_empty()).then(|| sentences.join("; "));
        self.in_time(self.producer.flush());
        self.settle();
        self.print();
    }

    /// Returns the result of the command. `refused` is the reason why the command ended early. `advice` returns the
    /// remedy for a record that is too large.
    pub fn verdict(self, refused: Option<String>, advice: impl FnOnce(TooLarge) -> String) -> Result<(), Failure> {
        let unknown = self.pending.len() as u64;
        let (written, failed) = (self.written, self.failed);
        let transactional = self.transactions.map(|transactions| transactions.committed);
        let first_error = self.first_failure.as_ref().map(|first| first.error.clone());
        let failures = self.first_failure.map(|FirstFailure { place, error, too_large }| {
            let advice = too_large.filter(|_| !self.stop.is_signalled()).map(advice).unwrap_or_default();
            let first = format!("{place}: {}{advice}", error.trim_end_matches('.'));
            match failed {
                1 => format!("1 record failed: {first}"),
                _ => format!("{failed} records failed; the first: {first}"),
            }
        });
        let unsure = (unknown > 0).then(|| match unknown {
            1 => "1 record may or may not have been written".to_owned(),
            _ => format!("{unknown} records may or may not have been written"),
        });
        let unsure = unsure.filter(|_| transactional.is_none());
        let sentences = match transactional {
            // The failed record is named first, because it is the cause of later refusals.
            Some(_) => [failures, refused, unsure, self.uncommitted],
            None => [refused, failures, unsure, self.uncommitted],
        };
        let plain = |sentence: String| without_repeat(&sentence, first_error.as_deref());
        let sentences: Vec<String> = sentences.into_iter().flatten().map(plain).collect();
        let written = match transactional {
            Some(1) => "1 record was committed".to_owned(),
            Some(committed) => format!("{committed} records were committed"),
            None => records_were_written(written),
        };
        if self.stop.is_signalled() {
            let rest = sentences.iter().map(|sentence| format!("; {sentence}")).collect::<String>();
            return Err(Failure::interrupted(format!("interrupted; {written}{rest}")));
        }
        match sentences.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(format!("{}; {written}", sentences.join("; ")))),
        }
    }
}

/// Removes two parts from a sentence about a failed transaction: the full stop at its end, and the error of the first
/// failed record, which another sentence already contains.
fn without_repeat(sentence: &str, first_error: Option<&str>) -> String {
    let repeated = first_error.map(|error| format!(": a record of the transaction failed: {error}"));
    let sentence = repeated.map_or_else(|| sentence.to_owned(), |repeated| sentence.replace(&repeated, ""));
    sentence.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::without_repeat;

    #[test]
    fn the_sentence_of_a_transaction_does_not_repeat_the_records_error() {
        let sentence = "a transaction of 2 records was not committed: a record of the transaction failed: refused.";
        assert_eq!(without_repeat(sentence, Some("refused.")), "a transaction of 2 records was not committed");
        assert_eq!(without_repeat(sentence, None), sentence.trim_end_matches('.'));
        assert_eq!(without_repeat("line 1: refused.", Some("refused.")), "line 1: refused");
    }
}
