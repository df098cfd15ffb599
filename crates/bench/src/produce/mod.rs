//! Sends a workload through our producer from one thread, at a rate or as fast as possible.
//!
//! Latencies count from the intended time of each record, so that they include the time that a record waits for a late
//! sender or a full buffer (no coordinated omission). Without a rate, the intended time is the moment before `send`.
//! The clock is read only once every few records and after every wait, so an intended time may be slightly early, but
//! never late.

mod tracker;
mod transactions;

pub use tracker::{Failed, Tracker};
pub use transactions::{ProduceFailure, TRANSACTION_DURATION};

use crate::measure::{IntervalCounts, Produced};
use crate::workload::{Payload, Schedule};
use fullbore_producer::{Delivery, Producer, ProducerRecord, SendError};
use std::num::NonZeroU64;
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use transactions::Transactions;

/// How many records are sent without a rate before the clock is read again.
const RECORDS_PER_CLOCK_READ: u64 = 8;
/// How many records are sent without a rate before `stop` is checked again.
const RECORDS_PER_LOOK: u64 = 256;

/// How often acknowledgements are counted while the producer is flushed.
const COLLECT_EVERY: Duration = Duration::from_millis(100);
/// How often a paced sender checks `stop`.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The workload of one run.
pub struct Workload {
    /// The topic. The producer chooses the partitions.
    pub topic: String,
    /// How many records to send.
    pub records: u64,
    /// How long records are sent, or `None` for no limit.
    pub duration: Option<Duration>,
    /// How many records are sent before the steady state.
    pub warmup_records: u64,
    /// How many records to send per second. Below zero there is no limit.
    pub throughput: f64,
    /// The values of the records.
    pub payload: Payload,
    /// The time between two reported windows.
    pub reporting_interval: Duration,
    /// How long a transaction lasts before it is committed, if the producer has transactions.
    pub transaction_duration: Duration,
}

/// The outcome of a run.
pub struct ProduceOutcome {
    /// The counts and latencies of acknowledged records.
    pub produced: Produced,
    /// The records that were not acknowledged.
    pub failed: Failed,
    /// When the last record was acknowledged or failed, or the run was stopped.
    pub ended: Instant,
    /// True if the run was stopped before every record had its result.
    pub stopped: bool,
}

/// Sends all records and waits for the acknowledgements, or until `stop` becomes true.
///
/// # Errors
/// Fails if a transaction cannot be committed, or if the producer does not accept a record. The producer refuses a
/// record if the topic does not exist, or if memory stays full for max.block.ms.
pub async fn produce(
    producer: &Producer,
    workload: Workload,
    mut stop: watch::Receiver<bool>,
    on_window: impl FnMut(&IntervalCounts) + Send + 'static,
) -> Result<ProduceOutcome, ProduceFailure> {
    let mut transactions = Transactions::new(producer, workload.transaction_duration).await?;
    let mut pacer = Pacer::start(workload.throughput);
    let mut tracker = Tracker::new(Produced::new(pacer.start, workload.reporting_interval), on_window);
    let requested = stop.clone();
    let all = async {
        match send_all(&mut transactions, workload, &requested, &mut pacer, &mut tracker).await {
            Err(ProduceFailure::Send(refused @ SendError::TransactionFailed(_))) => {
                return Err(transactions.failure(refused).await);
            }
            sent => sent?,
        }
        let ended = async {
            // If the run was stopped, the open transaction is not committed but aborted.
            let committed = if *requested.borrow() { Ok(()) } else { transactions.finish().await };
            producer.flush().await;
            committed
        };
        flush(ended, &mut tracker).await
    };
    tokio::select! {
        biased;
        () = stopped(&mut stop) => {}
        sent = all => sent?,
    }
    let ended = Instant::now();
    if *stop.borrow() {
        let (produced, failed) = tracker.abandon();
        return Ok(ProduceOutcome { produced, failed, ended, stopped: true });
    }
    let (produced, failed) = tracker.finish().await;
    Ok(ProduceOutcome { produced, failed, ended: Instant::now(), stopped: false })
}

/// Flushes the producer, which may take long, and counts acknowledgements during the flush. If they were counted
/// afterwards, one partition after another, a reported interval would lack the records of later partitions.
async fn flush<T>(flushed: impl Future<Output = T>, tracker: &mut Tracker) -> T {
    let mut flushed = pin!(flushed);
    loop {
        if let Ok(flushed) = tokio::time::timeout(COLLECT_EVERY, &mut flushed).await {
            return flushed;
        }
        tracker.collect();
    }
}

/// Resolves when the run must stop. Never resolves once the sender of `stop` is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending().await
    }
}

async fn send_all(
    transactions: &mut Transactions<'_>,
    mut workload: Workload,
    stop: &watch::Receiver<bool>,
    pacer: &mut Pacer,
    tracker: &mut Tracker,
) -> Result<(), ProduceFailure> {
    let (paced, is_transactional) = (workload.throughput >= 0.0, transactions.are_wanted());
    for number in 0..workload.records {
        // As long as memory is free, the sender never yields to other tasks. It therefore checks `stop` itself now and
        // then.
        if (paced || number.is_multiple_of(RECORDS_PER_LOOK)) && *stop.borrow() {
            break;
        }
        let Some(intended) = pacer.turn(number, tracker, || *stop.borrow()) else { break };
        if workload.duration.is_some_and(|duration| intended >= pacer.start + duration) {
            break;
        }
        let steady = workload.warmup_records > 0 && number >= workload.warmup_records;
        if steady && number == workload.warmup_records {
            tracker.start_steady(Instant::now());
        }
        let value = workload.payload.value(number);
        let record = ProducerRecord::new(&workload.topic, value).timestamp(pacer.now_ms);
        if is_transactional {
            transactions.begin(intended).await?;
        }
        let (delivery, waited) = match transactions.try_send(record) {
            Err(SendError::Full | SendError::NoMetadata) => {
                tracker.collect();
                (transactions.send(record).await?, true)
            }
            sent => (sent?, false),
        };
        tracker.sent(delivery, intended, value.len() as u64, steady);
        if is_transactional {
            transactions.end_if_due(intended).await?;
        }
        if waited {
            pacer.has_waited();
        }
    }
    Ok(())
}

/// Sends one record. Returns its delivery, and true if the send had to wait for memory. Before such a wait, counts the
/// records that are acknowledged or failed.
///
/// # Errors
/// Returns [`SendError`] if the producer refuses the record.
pub async fn send(
    producer: &Producer,
    record: ProducerRecord<'_>,
    tracker: &mut Tracker,
) -> Result<(Delivery, bool), SendError> {
    match producer.try_send(record) {
        Err(SendError::Full | SendError::NoMetadata) => {
            tracker.collect();
            Ok((producer.send(record).await?, true))
        }
        sent => Ok((sent?, false)),
    }
}

/// The pace of the records. Waiting for a record's time blocks the thread, so the thread should have no other work.
pub struct Pacer {
    start: Instant,
    /// The wall-clock time of the start, from which timestamps of records are computed without reading the clock again.
    start_ms: i64,
    schedule: Schedule,
    now: Instant,
    /// `now` in milliseconds since 1970.
    now_ms: i64,
}

impl Pacer {
    /// Creates a pacer whose first record is due now. `records_per_sec` below zero means no limit.
    pub fn start(records_per_sec: f64) -> Self {
        if records_per_sec >= 0.0 {
            wake_precisely();
        }
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = Instant::now();
        let schedule = Schedule::new(start, records_per_sec);
        let start_ms = since_epoch.as_millis() as i64;
        Pacer { start, start_ms, schedule, now: start, now_ms: start_ms }
    }

    /// Waits for the intended send time of record `number` and returns it. The record's latency is measured from this
    /// time. Returns `None` if `stops` returns true first.
    pub fn turn(&mut self, number: u64, tracker: &mut Tracker, stops: impl Fn() -> bool) -> Option<Instant> {
        match self.schedule.intended(number) {
            Some(intended) => {
                if !pause_until(intended, tracker, stops) {
                    return None;
                }
                self.set(intended);
            }
            None if number.is_multiple_of(RECORDS_PER_CLOCK_READ) => self.set(Instant::now()),
            None => {}
        }
        Some(self.now)
    }

    fn set(&mut self, now: Instant) {
        self.now = now;
        self.now_ms = self.start_ms + now.saturating_duration_since(self.start).as_millis() as i64;
    }

    /// Notes that the sender has waited. Without a rate, the next record then gets a new intended time.
    pub fn has_waited(&mut self) {
        self.set(Instant::now());
    }

    /// Returns the intended send time of the first record.
    pub fn started_at(&self) -> Instant {
        self.start
    }
}

/// Sleeps until `intended`. Returns false if `stops` returns true first. It does not spin, because that would take a
/// core from the measured programs.
fn pause_until(intended: Instant, tracker: &mut Tracker, stops: impl Fn() -> bool) -> bool {
    while intended > Instant::now() {
        if stops() {
            return false;
        }
        tracker.collect();
        std::thread::sleep(intended.saturating_duration_since(Instant::now()).min(PAUSE_MAX));
    }
    true
}

/// Makes sleeps precise. By default Linux wakes a thread up to 50 us late, which would count as latency.
fn wake_precisely() {
    // If the system refuses, latencies are up to 50 us higher, which is acceptable.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}
