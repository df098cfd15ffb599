//! Sending a workload through our producer from one thread, at a rate or as fast as it goes.
//!
//! Latencies count from the intended time of each record: what a late sender or a full buffer holds back is in them
//! (no coordinated omission). Unthrottled there is no intended time but the moment before `send`, which is read once
//! per few records and after every wait; the time so read is never later than the true one.

mod tracker;

pub use tracker::{Failed, Tracker};

use crate::measure::{Produced, Window};
use crate::workload::{Payload, Schedule};
use fullbore_producer::{Delivery, Producer, Record, SendError};
use std::num::NonZeroU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Unthrottled, the clock is read once for this many records.
const RECORDS_PER_CLOCK_READ: u64 = 8;

/// What to send.
pub struct Workload {
    /// To this topic; the producer chooses the partitions.
    pub topic: String,
    /// How many records.
    pub records: u64,
    /// How many of them come before the steady state.
    pub warmup_records: u64,
    /// Records a second; below zero as fast as it goes.
    pub throughput: f64,
    /// Their values.
    pub payload: Payload,
    /// How often a window is reported.
    pub reporting_interval: Duration,
}

/// How a run went.
pub struct Outcome {
    /// Counts and latencies of what was acknowledged.
    pub produced: Produced,
    /// What was not.
    pub failed: Failed,
    /// When the last record was acknowledged or failed.
    pub ended: Instant,
}

/// Sends everything and waits for the acknowledgements.
///
/// # Errors
/// When the producer does not take a record: the topic does not exist, or nothing moves for max.block.ms.
pub async fn produce(
    producer: &Producer,
    mut workload: Workload,
    on_window: impl FnMut(&Window) + Send + 'static,
) -> Result<Outcome, SendError> {
    let clock = Clock::start();
    let schedule = Schedule::new(clock.start, workload.throughput);
    let mut tracker = Tracker::new(Produced::new(clock.start, workload.reporting_interval), on_window);
    let mut now = clock.start;
    if workload.throughput >= 0.0 {
        wake_precisely();
    }
    for number in 0..workload.records {
        match schedule.intended(number) {
            Some(intended) => {
                pause_until(intended, &mut tracker);
                now = intended;
            }
            None if number % RECORDS_PER_CLOCK_READ == 0 => now = Instant::now(),
            None => {}
        }
        let steady = workload.warmup_records > 0 && number >= workload.warmup_records;
        if steady && number == workload.warmup_records {
            tracker.start_steady(Instant::now());
        }
        let value = workload.payload.value(number);
        let record = Record::new(&workload.topic, value).timestamp(clock.epoch_ms(now));
        let (delivery, waited) = send(producer, record, &mut tracker).await?;
        tracker.sent(delivery, now, value.len() as u64, steady);
        if waited {
            now = Instant::now();
        }
    }
    producer.flush().await;
    let (produced, failed) = tracker.finish().await;
    Ok(Outcome { produced, failed, ended: Instant::now() })
}

/// Hands one record over, and says whether it had to wait for room.
async fn send(producer: &Producer, record: Record<'_>, tracker: &mut Tracker) -> Result<(Delivery, bool), SendError> {
    match producer.try_send(record) {
        Err(SendError::Full | SendError::NoMetadata) => {
            tracker.collect();
            Ok((producer.send(record).await?, true))
        }
        sent => Ok((sent?, false)),
    }
}

/// Both clocks at the start, so that a record's timestamp costs no second clock read.
struct Clock {
    start: Instant,
    start_ms: i64,
}

impl Clock {
    fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { start: Instant::now(), start_ms: since_epoch.as_millis() as i64 }
    }

    fn epoch_ms(&self, time: Instant) -> i64 {
        self.start_ms + time.saturating_duration_since(self.start).as_millis() as i64
    }
}

/// Sleeps, since a paced sender that spins would take a core from who is measured.
fn pause_until(intended: Instant, tracker: &mut Tracker) {
    let ahead = intended.saturating_duration_since(Instant::now());
    if !ahead.is_zero() {
        tracker.collect();
        std::thread::sleep(intended.saturating_duration_since(Instant::now()));
    }
}

/// Linux wakes a sleeper up to 50 us late unless told otherwise, and that would count as latency.
fn wake_precisely() {
    // Where the system refuses, latencies are up to 50 us higher, which is no reason to stop.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}
