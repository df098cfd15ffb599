//! Sending a workload through our producer from one thread, at a rate or as fast as it goes.
//!
//! Latencies count from the intended time of each record: what a late sender or a full buffer holds back is in them
//! (no coordinated omission). Unthrottled there is no intended time but the moment before `send`, which is read once
//! per few records and after every wait; the time so read is never later than the true one.

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

/// Unthrottled, the clock is read once for this many records.
const RECORDS_PER_CLOCK_READ: u64 = 8;
/// Unthrottled, the sender looks whether it should stop before every so many records.
const RECORDS_PER_LOOK: u64 = 256;

/// How often acknowledgements are counted while the producer is flushed.
const COLLECT_EVERY: Duration = Duration::from_millis(100);
/// A paced sender looks this often whether it should stop.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// What to send.
pub struct Workload {
    /// To this topic; the producer chooses the partitions.
    pub topic: String,
    /// How many records.
    pub records: u64,
    /// No record is sent after this long, if it is given.
    pub duration: Option<Duration>,
    /// How many of them come before the steady state.
    pub warmup_records: u64,
    /// Records a second; below zero as fast as it goes.
    pub throughput: f64,
    /// The values of the records.
    pub payload: Payload,
    /// How often a window is reported.
    pub reporting_interval: Duration,
    /// The time after which a transaction is committed, where the producer has transactions.
    pub transaction_duration: Duration,
}

/// How a run went.
pub struct ProduceOutcome {
    /// Counts and latencies of what was acknowledged.
    pub produced: Produced,
    /// What was not.
    pub failed: Failed,
    /// When the last record was acknowledged or failed, or the run was stopped.
    pub ended: Instant,
    /// True if the run was stopped before every record had its result.
    pub stopped: bool,
}

/// Sends everything and waits for the acknowledgements, or until `stop` becomes true.
///
/// # Errors
/// A record that the producer does not take, as the topic does not exist or nothing moves for max.block.ms; a
/// transaction that is not committed.
pub async fn produce(
    producer: &Producer,
    workload: Workload,
    mut stop: watch::Receiver<bool>,
    on_window: impl FnMut(&IntervalCounts) + Send + 'static,
) -> Result<ProduceOutcome, ProduceFailure> {
    let mut transactions = Transactions::new(producer, workload.transaction_duration).await?;
    let mut pacer = Pacer::start(workload.throughput);
    let mut tracker = Tracker::new(Produced::new(pacer.start, workload.reporting_interval), on_window);
    let asked = stop.clone();
    let all = async {
        match send_all(&mut transactions, workload, &asked, &mut pacer, &mut tracker).await {
            Err(ProduceFailure::Send(refused @ SendError::TransactionFailed(_))) => {
                return Err(transactions.failure(refused).await);
            }
            sent => sent?,
        }
        let ended = async {
            // A run that is to stop leaves its transaction to be aborted.
            let committed = if *asked.borrow() { Ok(()) } else { transactions.finish().await };
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

/// Waits for what is in the producer's memory, which may take long, and counts meanwhile: counted at the end, partition
/// after partition, intervals would show a part of the records.
async fn flush<T>(flushed: impl Future<Output = T>, tracker: &mut Tracker) -> T {
    let mut flushed = pin!(flushed);
    loop {
        if let Ok(flushed) = tokio::time::timeout(COLLECT_EVERY, &mut flushed).await {
            return flushed;
        }
        tracker.collect();
    }
}

/// Resolves when the run should stop; never, if nobody can say so any more.
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
        // A sender that always finds room gives no other task its turn, so it looks by itself now and then.
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

/// Hands one record over, and says whether it had to wait for room; then what is done meanwhile is counted.
///
/// # Errors
/// The producer's.
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

/// Gives every record its turn. It blocks the thread, which should have nothing else to do.
pub struct Pacer {
    start: Instant,
    /// The wall clock at the start, so that a record's timestamp costs no clock read of its own.
    start_ms: i64,
    schedule: Schedule,
    now: Instant,
    /// The same in milliseconds since 1970.
    now_ms: i64,
}

impl Pacer {
    /// Starts now. `records_per_sec` below zero means as fast as it goes.
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

    /// Waits until record `number` should leave and says when that is, from which its latency counts; nothing if
    /// `stops` says meanwhile that it is to leave no more.
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

    /// The sender was held up, so that an unthrottled record after it has another time.
    pub fn has_waited(&mut self) {
        self.set(Instant::now());
    }

    /// When the first record was meant to leave.
    pub fn started_at(&self) -> Instant {
        self.start
    }
}

/// Sleeps, since a paced sender that spins would take a core from who is measured; not on once it is to stop. Whether
/// the time has come.
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

/// Linux wakes a sleeper up to 50 us late unless told otherwise, and that would count as latency.
fn wake_precisely() {
    // Where the system refuses, latencies are up to 50 us higher, which is no reason to stop.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}
