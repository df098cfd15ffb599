//! Counts the records of a produce test: in the whole run, in the steady state after the warmup, and in the interval
//! since the last report (the window).
//!
//! A line is printed for each window, as in Kafka's `ProducerPerformance.Stats`. A window ends with the first
//! acknowledgement after the reporting interval. After the warmup, only windows of the steady state are reported. In
//! Kafka's tool the steady state begins when the first record after the warmup is sent. At that moment, a full buffer
//! of warmup records may still be in flight. Our steady state therefore begins when the last warmup record is
//! acknowledged. Invariant: the whole run counts every acknowledged record exactly once.

use super::Latencies;
use std::time::{Duration, Instant};

/// Records of one batch that were sent at the same time and acknowledged together.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// The number of records.
    pub records: u64,
    /// The size of the records' keys and values, in bytes.
    pub bytes: u64,
    /// The time from the intended moment of sending to the acknowledgement.
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
    /// When the first record of the run, or of its steady state, was sent.
    sent: Instant,
    /// The start of the time over which the rate is computed.
    started: Instant,
    /// When the last record was acknowledged.
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
        // If no record was acknowledged later than the last warmup record, the elapsed time would be zero. It then
        // begins at the first send.
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

    /// Counts acknowledged records. If they complete a reporting window, returns the counts of that window.
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

    /// Returns when the last of the counted records was acknowledged, or `None` if no record was.
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
        // Partitions are counted one after another, so acknowledgements are not always counted in the order of their
        // times.
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
        // The first record after the warmup is sent while 200 warmup records are still in flight.
        produced.start_steady(at(10));
        assert_eq!(produced.record(&batch(100, 1_500, false), at(1_500)).expect("due").records, 100);
        assert!(produced.record(&batch(100, 2_000, false), at(2_000)).is_none());
        assert!(produced.record(&batch(50, 2_500, true), at(2_500)).is_none(), "half a second of the steady state");
        let window = produced.record(&batch(50, 3_000, true), at(3_000)).expect("due");
        assert_eq!((window.records, window.elapsed.as_millis(), window.first_steady), (100, 1_000, true));
        let steady = produced.summaries(at(3_000)).last().expect("there was a warmup");
        assert_eq!((steady.records, steady.elapsed.as_millis()), (100, 1_000));
        // Warmup records and later ones are acknowledged together, so the steady state is counted from its first send.
        let mut produced = Produced::new(start, Duration::from_secs(1));
        produced.start_steady(at(10));
        produced.record(&batch(5, 500, false), at(510));
        produced.record(&batch(45, 500, true), at(510));
        let steady = produced.summaries(at(510)).last().expect("there was a warmup");
        assert_eq!((steady.records, steady.elapsed.as_millis()), (45, 500));
    }
}
