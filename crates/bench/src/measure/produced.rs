//! The counts of a produce test: the whole run, the steady state after the warmup, and the window since the last
//! report.
//!
//! A line is printed for each window, as in Kafka's `ProducerPerformance.Stats`. A window ends with the first
//! acknowledgement after the reporting interval. Once the steady state has begun, only its own windows are reported.
//! Kafka's steady state begins when the first record after the warmup is sent. At that moment, a full buffer of warmup
//! records may still be in flight. Our steady state therefore begins with the last acknowledgement of a warmup record.
//! Invariant: every acknowledged record is counted in the whole exactly once.

use super::Latencies;
use std::time::{Duration, Instant};

/// Records of one batch that were sent at the same time and acknowledged together.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// The number of records.
    pub records: u64,
    /// The size of the records' keys and values, in bytes.
    pub bytes: u64,
    /// The time from the moment at which the records should have been sent to their acknowledgement.
    pub latency: Duration,
    /// True if the records were sent after the warmup.
    pub steady: bool,
}

/// The counts of one reporting interval.
#[derive(Clone, Debug)]
pub struct IntervalCounts {
    /// How many records were acknowledged.
    pub records: u64,
    /// The size of the keys and values of the acknowledged records, in bytes.
    pub bytes: u64,
    /// The length of the window.
    pub elapsed: Duration,
    /// The sum of the latencies of the acknowledged records, in microseconds.
    pub latency_us_sum: u128,
    /// The largest latency of the acknowledged records, in microseconds.
    pub latency_us_max: u64,
    /// True for the first window of the steady state.
    pub first_steady: bool,
}

/// The figures of one summary line.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How many records were acknowledged.
    pub records: u64,
    /// The size of the keys and values of the acknowledged records, in bytes.
    pub bytes: u64,
    /// The time from the first send, or from the end of the warmup, to the last acknowledgement.
    pub elapsed: Duration,
    /// The latencies of the acknowledged records.
    pub latencies: Latencies,
    /// True if the figures cover only the steady state. False if they cover the whole run.
    pub steady: bool,
}

/// The counts of the whole run, or of its steady state.
struct Series {
    /// When the first record of the series was sent.
    sent: Instant,
    /// The time from which the rate of the series is computed.
    started: Instant,
    /// When the last record of the series was acknowledged.
    last: Option<Instant>,
    records: u64,
    bytes: u64,
    latencies: Latencies,
    window_started: Instant,
    window: IntervalCounts,
    first_window: bool,
}

impl Series {
    fn new(now: Instant) -> Self {
        Series {
            sent: now,
            started: now,
            last: None,
            records: 0,
            bytes: 0,
            latencies: Latencies::default(),
            window_started: now,
            window: IntervalCounts::empty(),
            first_window: true,
        }
    }

    /// Moves the start of the steady state to `now`, when a warmup record was acknowledged.
    fn begin(&mut self, now: Instant) {
        self.started = self.started.max(now);
        self.window_started = self.started;
    }

    fn record(&mut self, batch: &Acknowledged, now: Instant) {
        let latency_us = batch.latency.as_micros() as u64;
        self.last = self.last.max(Some(now));
        self.records += batch.records;
        self.bytes += batch.bytes;
        self.latencies.record(latency_us, batch.records);
        self.window.records += batch.records;
        self.window.bytes += batch.bytes;
        self.window.latency_us_sum += u128::from(latency_us) * u128::from(batch.records);
        self.window.latency_us_max = self.window.latency_us_max.max(latency_us);
    }

    fn end_window(&mut self, now: Instant, interval: Duration) -> Option<IntervalCounts> {
        let elapsed = now.saturating_duration_since(self.window_started);
        if elapsed < interval || self.window.records == 0 {
            return None;
        }
        let mut ended = std::mem::replace(&mut self.window, IntervalCounts::empty());
        ended.elapsed = elapsed;
        ended.first_steady = std::mem::replace(&mut self.first_window, false);
        self.window_started = now;
        Some(ended)
    }

    fn summary(&self, now: Instant, steady: bool) -> Summary {
        // If all records of the series were acknowledged together with the last warmup record, the time is counted from
        // the first send.
        let started = if self.last > Some(self.started) { self.started } else { self.sent };
        Summary {
            records: self.records,
            bytes: self.bytes,
            elapsed: now.saturating_duration_since(started),
            latencies: self.latencies.clone(),
            steady,
        }
    }
}

impl IntervalCounts {
    fn empty() -> Self {
        IntervalCounts {
            records: 0,
            bytes: 0,
            elapsed: Duration::ZERO,
            latency_us_sum: 0,
            latency_us_max: 0,
            first_steady: false,
        }
    }
}

/// The counts of one run.
pub struct Produced {
    interval: Duration,
    whole: Series,
    steady: Option<Series>,
}

impl Produced {
    /// Creates the counts of a run that starts `now` and reports every `interval`.
    pub fn new(now: Instant, interval: Duration) -> Self {
        Produced { interval, whole: Series::new(now), steady: None }
    }

    /// Begins the steady state. Records that are sent from `now` on are counted both in the whole run and in the steady
    /// state.
    pub fn start_steady(&mut self, now: Instant) {
        self.steady.get_or_insert_with(|| Series::new(now));
    }

    /// Counts acknowledged records. If a window ended with them, returns it for a report.
    pub fn record(&mut self, batch: &Acknowledged, now: Instant) -> Option<IntervalCounts> {
        self.whole.record(batch, now);
        match &mut self.steady {
            Some(steady) if batch.steady => {
                steady.record(batch, now);
                return steady.end_window(now, self.interval);
            }
            Some(steady) if steady.records > 0 => return None,
            Some(steady) => steady.begin(now),
            None => {}
        }
        let window = self.whole.end_window(now, self.interval)?;
        Some(IntervalCounts { first_steady: false, ..window })
    }

    /// Returns when the last of the counted records was acknowledged, or `None` before that.
    pub fn last_acknowledged(&self) -> Option<Instant> {
        self.whole.last
    }

    /// Returns the figures of the whole run. If there was a warmup, those of the steady state follow.
    pub fn summaries(&self, now: Instant) -> impl Iterator<Item = Summary> + '_ {
        let steady = self.steady.iter().map(move |steady| steady.summary(now, true));
        std::iter::once(self.whole.summary(now, false)).chain(steady)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(records: u64, latency_ms: u64, steady: bool) -> Acknowledged {
        Acknowledged { records, bytes: records * 100, latency: Duration::from_millis(latency_ms), steady }
    }

    #[test]
    fn windows_end_with_the_first_acknowledgement_after_the_interval() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut produced = Produced::new(start, Duration::from_secs(5));
        assert!(produced.record(&batch(10, 2, false), at(4_999)).is_none());
        let window = produced.record(&batch(5, 8, false), at(5_001)).expect("due");
        assert_eq!((window.records, window.bytes, window.latency_us_max), (15, 1_500, 8_000));
        assert_eq!((window.latency_us_sum, window.elapsed.as_millis()), (60_000, 5_001));
        assert!(produced.record(&batch(1, 1, false), at(9_000)).is_none(), "a new window began");
        // Partitions are counted one after another, so an acknowledgement may be counted after a later one.
        produced.record(&batch(1, 1, false), at(8_000));
        assert_eq!(produced.last_acknowledged(), Some(at(9_000)));
    }

    #[test]
    fn the_steady_state_counts_only_records_sent_after_the_warmup() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut produced = Produced::new(start, Duration::from_secs(1));
        produced.record(&batch(100, 500, false), at(10));
        produced.start_steady(at(100));
        assert!(produced.record(&batch(50, 3, true), at(1_000)).is_none(), "a window of less than a second");
        assert!(produced.record(&batch(7, 500, false), at(5_000)).is_none(), "windows of the whole are over");
        let window = produced.record(&batch(50, 3, true), at(5_100)).expect("due");
        assert!(window.first_steady);
        assert_eq!(window.records, 100);
        assert!(!produced.record(&batch(1, 3, true), at(6_200)).expect("due").first_steady);
        let summaries: Vec<Summary> = produced.summaries(at(10_100)).collect();
        assert_eq!((summaries[0].records, summaries[0].steady, summaries[0].elapsed.as_millis()), (208, false, 10_100));
        assert_eq!((summaries[1].records, summaries[1].steady, summaries[1].elapsed.as_millis()), (101, true, 10_000));
        assert_eq!(summaries[1].latencies.max_us(), 3_000);
    }

    #[test]
    fn the_steady_state_begins_with_an_acknowledged_record() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut produced = Produced::new(start, Duration::from_secs(1));
        // When the first record after the warmup is sent, a full buffer of warmup records is in flight.
        produced.start_steady(at(10));
        assert_eq!(produced.record(&batch(100, 1_500, false), at(1_500)).expect("due").records, 100);
        assert!(produced.record(&batch(100, 2_000, false), at(2_000)).is_none());
        assert!(produced.record(&batch(50, 2_500, true), at(2_500)).is_none(), "half a second of the steady state");
        let window = produced.record(&batch(50, 3_000, true), at(3_000)).expect("due");
        assert_eq!((window.records, window.elapsed.as_millis(), window.first_steady), (100, 1_000, true));
        let steady = produced.summaries(at(3_000)).last().expect("there was a warmup");
        assert_eq!((steady.records, steady.elapsed.as_millis()), (100, 1_000));
        // All records are in one batch, so the only known time is when they were sent.
        let mut produced = Produced::new(start, Duration::from_secs(1));
        produced.start_steady(at(10));
        produced.record(&batch(5, 500, false), at(510));
        produced.record(&batch(45, 500, true), at(510));
        let steady = produced.summaries(at(510)).last().expect("there was a warmup");
        assert_eq!((steady.records, steady.elapsed.as_millis()), (45, 500));
    }
}
