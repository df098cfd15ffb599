//! From a record to its answer: hands records to the producer, and keeps each delivery until its result is known.
//!
//! Invariant: results are looked at in the order of the records, and no more than [`PENDING_MAX`] wait to be.

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

/// Records whose results are not known or not looked at yet.
const PENDING_MAX: usize = 1 << 18;
/// How long what was read may take to be sent and acknowledged after SIGTERM, and after Ctrl-C where brokers are slow.
const INTERRUPTED_PATIENCE: Duration = Duration::from_secs(10);
/// The same after Ctrl-C where brokers have answered fast so far.
const CTRL_C_PATIENCE: Duration = Duration::from_millis(300);
/// How long printing the verdict may take.
const VERDICT: Duration = Duration::from_millis(100);
/// Answers are printed when they are this many bytes, or nothing else is to be done.
const ANSWERS_BYTES: usize = 64 << 10;

/// What is printed of each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// Nothing.
    None,
    /// Topic, partition and offset, separated by tabs.
    Text,
    /// An object a line.
    Json,
}

/// Where a record stood.
#[derive(Clone, Debug)]
pub struct InputPosition {
    /// The file, as the user named it; none for standard input.
    pub file: Option<Rc<str>>,
    /// `line` or `record`.
    pub unit: &'static str,
    /// From 1.
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
    /// The most it takes in a batch of its own.
    size: usize,
    /// When results were last looked at before.
    begun: Instant,
    delivery: Delivery,
}

/// First record that failed.
struct FirstFailure {
    place: InputPosition,
    error: String,
    too_large: Option<TooLarge>,
}

/// End of the transaction that is open when no more records come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
    Commit,
    Abort,
}

/// The records under way.
pub struct Sending<'a> {
    producer: &'a Producer,
    runtime: &'a Runtime,
    stop: &'a Stop,
    answers: Answers,
    /// `None` for records outside of transactions.
    transactions: Option<Transactions<'a>>,
    /// Sentences on transactions that are not committed.
    uncommitted: Option<String>,
    pending: VecDeque<SentRecord>,
    printed: Vec<u8>,
    /// When results were last looked at.
    looked: Instant,
    /// The longest time that a record took until its result was seen.
    slowest: Duration,
    /// When patience ends; none until the user asks to end.
    ends_at: Option<Instant>,
    /// Acknowledged records.
    pub written: u64,
    /// Records that failed after they were taken.
    pub failed: u64,
    first_failure: Option<FirstFailure>,
}

/// How long the records under way are waited for from now on, since the user asks to end: after Ctrl-C as long as a
/// record has taken so far, so that a broker that has stopped is not waited for.
fn patience_with(stop: &Stop, slowest: Duration) -> Duration {
    let share = (2 * slowest).clamp(CTRL_C_PATIENCE, INTERRUPTED_PATIENCE);
    stop.allow(share + VERDICT);
    stop.time_left(INTERRUPTED_PATIENCE, share)
}

/// Reason why a record was not taken, or why no more records are.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The producer's error of the record.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The producer's error of its transaction.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// The transaction before was not committed, in words.
    #[error("{0}")]
    Uncommitted(String),
}

/// Returns true if `send` may succeed by waiting.
fn may_wait(error: &SendError) -> bool {
    matches!(error, SendError::Full | SendError::NoMetadata | SendError::NoPartition { .. })
}

/// What became of a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// The record is on its way.
    Taken,
    /// The user asked to end, and patience is over.
    Stopped,
}

impl<'a> Sending<'a> {
    /// Nothing sent yet.
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

    /// Sends within transactions of at most `records` from now on. Returns false if the user requested the end first.
    ///
    /// # Errors
    /// The producer's.
    pub fn begin_transactions(&mut self, settings: TransactionSettings, records: Option<u64>) -> Result<bool, Failure> {
        let begun = self.in_time(Transactions::init(self.producer, settings, records));
        self.transactions = begun.transpose().map_err(Failure::new)?;
        Ok(self.transactions.is_some())
    }

    /// Hands a record to the producer; `None` as [`Sending::in_time`].
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

    /// Hands a record to the producer within a transaction, and commits that if it is full.
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
        // An earlier record or the coordinator has failed the transaction: this record is no cause.
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

    /// Commits the open transaction, or aborts it, and waits for every outcome. Returns sentences on those that are not
    /// committed.
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

    /// Hands a record over; waits while there is no memory for it or its topic is not known yet.
    ///
    /// # Errors
    /// The record was not taken.
    pub fn send(&mut self, place: InputPosition, topic: &Rc<str>, record: ProducerRecord<'_>) -> Result<Sent, Refusal> {
        let size = HEADER_LEN + record_size_max(record.key, record.value, record.headers);
        let Some(delivery) = self.hand_over(record) else { return Ok(Sent::Stopped) };
        let delivery = delivery?;
        self.pending.push_back(SentRecord { place, topic: topic.clone(), size, begun: self.looked, delivery });
        if self.pending.len() >= PENDING_MAX {
            self.settle();
            if self.pending.len() >= PENDING_MAX {
                // What lingers goes out too.
                if self.in_time(self.producer.flush()).is_none() {
                    return Ok(Sent::Stopped);
                }
                self.settle();
            }
        }
        Ok(Sent::Taken)
    }

    /// What `event` gives; none when it has not come a while after the user asked to end.
    fn in_time<T>(&mut self, event: impl Future<Output = T>) -> Option<T> {
        let mut asked = self.stop.receiver();
        let (stop, slowest, ends_at) = (self.stop, self.slowest, &mut self.ends_at);
        let patience = async {
            // An error would mean that nobody can ask any more.
            if asked.wait_for(|asked| *asked).await.is_err() {
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

    /// Returns true if something waits for its answer.
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Looks at the results that are there.
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

    /// Prints the answers gathered.
    pub fn print(&mut self) {
        if !self.printed.is_empty() {
            output::bytes(&self.printed);
            self.printed.clear();
        }
    }

    fn answer(&mut self, done: &SentRecord, result: Result<RecordMetadata, ProduceError>) {
        match &result {
            Ok(_) => self.written += 1,
            // The record failed with its transaction, which has a sentence of its own.
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

    /// Waits for every result: as long as the producer may take, or a while after the user's request to end. The open
    /// transaction ends as `end` has it.
    pub fn finish(&mut self, end: TransactionEnd) {
        let sentences = self.end_transactions(end);
        self.uncommitted = (!sentences.is_empty()).then(|| sentences.join("; "));
        self.in_time(self.producer.flush());
        self.settle();
        self.print();
    }

    /// What the command ends with; `refused` is why reading ended early, `advice` what to do where a record was too
    /// large.
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
            // A failed record is the cause of the refusals after it.
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

/// Returns a sentence on a transaction without its full stop, and without the error of the first failed record: the
/// record has its own sentence.
fn without_repeat(sentence: &str, first_error: Option<&str>) -> String {
    let repeated = first_error.map(|error| format!(": a record of the transaction failed: {error}"));
    let sentence = repeated.map_or_else(|| sentence.to_owned(), |repeated| sentence.replace(&repeated, ""));
    sentence.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::without_repeat;

    #[test]
    fn record_has_a_sentence_of_its_own_the_transaction_does_not_repeat_it() {
        let sentence = "a transaction of 2 records was not committed: a record of the transaction failed: refused.";
        assert_eq!(without_repeat(sentence, Some("refused.")), "a transaction of 2 records was not committed");
        assert_eq!(without_repeat(sentence, None), sentence.trim_end_matches('.'));
        assert_eq!(without_repeat("line 1: refused.", Some("refused.")), "line 1: refused");
    }
}
