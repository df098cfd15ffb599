//! What a produce test counts: everything, the steady state after the warmup, and the window since the last report.
//!
//! The rules of when which line is due are those of Kafka's `ProducerPerformance.Stats`: a window ends with the first
//! acknowledgement after the interval, and the first steady record ends the windows of the whole.
//! Invariant: every acknowledged record is counted in the whole exactly once.

use super::Latencies;
use std::time::{Duration, Instant};

/// Records of one batch that were sent at the same time and acknowledged together.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// How many.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// From the intended time of sending.
    pub latency: Duration,
    /// Whether they were sent after the warmup.
    pub steady: bool,
}

/// What happened in one reporting interval.
#[derive(Clone, Debug)]
pub struct Window {
    /// Records acknowledged.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// How long the window was.
    pub elapsed: Duration,
    /// Of these records.
    pub latency_us_sum: u128,
    /// The slowest of these records.
    pub latency_us_max: u64,
    /// The first window of the steady state.
    pub first_steady: bool,
}

/// One summary line's figures.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Records acknowledged.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// From the first send to the last acknowledgement.
    pub elapsed: Duration,
    /// Of these records.
    pub latencies: Latencies,
    /// Whether this is the steady state only.
    pub steady: bool,
}

struct Series {
    started: Instant,
    records: u64,
    bytes: u64,
    latencies: Latencies,
    window_started: Instant,
    window: Window,
    first_window: bool,
}

impl Series {
    fn new(now: Instant) -> Self {
        Series {
            started: now,
            records: 0,
            bytes: 0,
            latencies: Latencies::default(),
            window_started: now,
            window: Window::empty(),
            first_window: true,
        }
    }

    fn record(&mut self, batch: &Acknowledged) {
        let latency_us = batch.latency.as_micros() as u64;
        self.records += batch.records;
        self.bytes += batch.bytes;
        self.latencies.record(latency_us, batch.records);
        self.window.records += batch.records;
        self.window.bytes += batch.bytes;
        self.window.latency_us_sum += u128::from(latency_us) * u128::from(batch.records);
        self.window.latency_us_max = self.window.latency_us_max.max(latency_us);
    }

    fn end_window(&mut self, now: Instant, interval: Duration) -> Option<Window> {
        let elapsed = now.saturating_duration_since(self.window_started);
        if elapsed < interval || self.window.records == 0 {
            return None;
        }
        let mut ended = std::mem::replace(&mut self.window, Window::empty());
        ended.elapsed = elapsed;
        ended.first_steady = std::mem::replace(&mut self.first_window, false);
        self.window_started = now;
        Some(ended)
    }

    fn summary(&self, now: Instant, steady: bool) -> Summary {
        Summary {
            records: self.records,
            bytes: self.bytes,
            elapsed: now.saturating_duration_since(self.started),
            latencies: self.latencies.clone(),
            steady,
        }
    }
}

impl Window {
    fn empty() -> Self {
        Window {
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
    last: Option<Instant>,
    whole: Series,
    steady: Option<Series>,
}

impl Produced {
    /// A run that starts `now` and reports every `interval`.
    pub fn new(now: Instant, interval: Duration) -> Self {
        Produced { interval, last: None, whole: Series::new(now), steady: None }
    }

    /// The warmup is over: records sent from `now` on count for the steady state too.
    pub fn start_steady(&mut self, now: Instant) {
        self.steady.get_or_insert_with(|| Series::new(now));
    }

    /// Counts acknowledged records; `Some` when a window ended with them and should be reported.
    pub fn record(&mut self, batch: &Acknowledged, now: Instant) -> Option<Window> {
        self.whole.record(batch);
        self.last = self.last.max(Some(now));
        match &mut self.steady {
            None => {
                let window = self.whole.end_window(now, self.interval)?;
                Some(Window { first_steady: false, ..window })
            }
            Some(steady) if batch.steady => {
                steady.record(batch);
                steady.end_window(now, self.interval)
            }
            Some(_) => None,
        }
    }

    /// When the last of the records counted was acknowledged.
    pub fn last_acknowledged(&self) -> Option<Instant> {
        self.last
    }

    /// The figures of the whole run, then those of the steady state if there was a warmup.
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
        // Partitions are counted one after another, so that times may go back.
        produced.record(&batch(1, 1, false), at(8_000));
        assert_eq!(produced.last_acknowledged(), Some(at(9_000)));
    }

    #[test]
    fn the_steady_state_counts_only_what_was_sent_after_the_warmup() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut produced = Produced::new(start, Duration::from_secs(1));
        produced.record(&batch(100, 500, false), at(10));
        produced.start_steady(at(100));
        assert!(produced.record(&batch(7, 500, false), at(5_000)).is_none(), "windows of the whole are over");
        let window = produced.record(&batch(50, 3, true), at(5_100)).expect("due");
        assert!(window.first_steady);
        assert_eq!(window.records, 50);
        assert!(!produced.record(&batch(1, 3, true), at(6_200)).expect("due").first_steady);
        let summaries: Vec<Summary> = produced.summaries(at(10_100)).collect();
        assert_eq!((summaries[0].records, summaries[0].steady, summaries[0].elapsed.as_millis()), (158, false, 10_100));
        assert_eq!((summaries[1].records, summaries[1].steady, summaries[1].elapsed.as_millis()), (51, true, 10_000));
        assert_eq!(summaries[1].latencies.max_us(), 3_000);
    }
}
