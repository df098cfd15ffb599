//! Tracks the results and the intended send times of all records sent, with one delivery for each batch in flight.
//!
//! While records are sent, deliveries are polled and never awaited. The producer stores the time of each
//! acknowledgement, so a late poll does not change a latency. Invariant: each record sent is counted once, as
//! acknowledged or failed. The tracker drops a batch when it is done, so the producer's buffer.memory also limits the
//! tracker's memory.

use crate::measure::{Acknowledged, IntervalCounts, Produced};
use fullbore_producer::{Delivery, ProduceError};
use std::collections::VecDeque;
use std::time::Instant;

/// Successive records of one batch that have the same size and the same intended send time.
struct Send {
    intended: Instant,
    records: u32,
    /// The size of each record, in bytes.
    bytes: u64,
    steady: bool,
}

/// A batch. The delivery of its first record has the results of all its records.
struct TrackedBatch {
    delivery: Delivery,
    sends: Vec<Send>,
}

#[derive(Default)]
struct TrackedPartition {
    /// The batch to which the last record was added.
    open: Option<TrackedBatch>,
    /// The older batches, oldest first.
    in_flight: VecDeque<TrackedBatch>,
}

/// The count of the records that were sent but not acknowledged.
#[derive(Clone, Debug, Default)]
pub struct Failed {
    /// The number of records.
    pub records: u64,
    /// The error of the first record that failed.
    pub first: Option<ProduceError>,
}

/// The records of one run, with their results.
pub struct Tracker {
    partitions: Vec<TrackedPartition>,
    produced: Produced,
    failed: Failed,
    on_window: Box<dyn FnMut(&IntervalCounts) + std::marker::Send>,
}

impl Tracker {
    /// Creates a tracker that counts into `produced` and calls `on_window` at the end of each reporting interval.
    pub fn new(produced: Produced, on_window: impl FnMut(&IntervalCounts) + std::marker::Send + 'static) -> Self {
        Tracker { partitions: Vec::new(), produced, failed: Failed::default(), on_window: Box::new(on_window) }
    }

    /// Begins the steady state after the warmup.
    pub fn start_steady(&mut self, now: Instant) {
        self.produced.start_steady(now);
    }

    /// Adds a record of `bytes` bytes whose intended send time is `intended`.
    pub fn sent(&mut self, delivery: Delivery, intended: Instant, bytes: u64, steady: bool) {
        let index = usize::try_from(delivery.partition()).unwrap_or(0);
        if index >= self.partitions.len() {
            self.partitions.resize_with(index + 1, TrackedPartition::default);
        }
        let partition = &mut self.partitions[index];
        match &mut partition.open {
            Some(open) if open.delivery.same_batch(&delivery) => match open.sends.last_mut() {
                Some(last) if (last.intended, last.bytes, last.steady) == (intended, bytes, steady) => {
                    last.records += 1
                }
                _ => open.sends.push(Send { intended, records: 1, bytes, steady }),
            },
            open => {
                let sends = vec![Send { intended, records: 1, bytes, steady }];
                partition.in_flight.extend(open.replace(TrackedBatch { delivery, sends }));
                self.collect_partition(index);
            }
        }
    }

    /// Counts every batch that is done.
    pub fn collect(&mut self) {
        (0..self.partitions.len()).for_each(|index| self.collect_partition(index));
    }

    fn collect_partition(&mut self, index: usize) {
        while let Some(done_at) =
            self.partitions[index].in_flight.front().and_then(|batch| batch.delivery.completed_at())
        {
            let batch = self.partitions[index].in_flight.pop_front().expect("there is a front");
            self.count(&batch, done_at);
        }
    }

    fn count(&mut self, batch: &TrackedBatch, done_at: Instant) {
        let mut skip = 0;
        for send in &batch.sends {
            let (failed, first) = batch.delivery.failures(skip, send.records);
            skip += send.records;
            self.failed.records += u64::from(failed);
            self.failed.first = self.failed.first.take().or(first);
            let records = u64::from(send.records - failed);
            if records == 0 {
                continue;
            }
            let latency = done_at.saturating_duration_since(send.intended);
            let acknowledged = Acknowledged { records, bytes: records * send.bytes, latency, steady: send.steady };
            if let Some(window) = self.produced.record(&acknowledged, done_at) {
                (self.on_window)(&window);
            }
        }
    }

    /// Counts the batches that are done, and ignores those still in flight. Returns all counts.
    pub fn abandon(mut self) -> (Produced, Failed) {
        for partition in &mut self.partitions {
            partition.in_flight.extend(partition.open.take());
        }
        self.collect();
        (self.produced, self.failed)
    }

    /// Waits for the result of every record sent and counts it. Returns all counts. The caller must flush the producer
    /// at the same time.
    pub async fn finish(mut self) -> (Produced, Failed) {
        for index in 0..self.partitions.len() {
            let partition = &mut self.partitions[index];
            partition.in_flight.extend(partition.open.take());
            while let Some(mut batch) = self.partitions[index].in_flight.pop_front() {
                // The result is ignored here, because `count` reads it.
                let _ = (&mut batch.delivery).await;
                let done_at = batch.delivery.completed_at().unwrap_or_else(Instant::now);
                self.count(&batch, done_at);
            }
        }
        (self.produced, self.failed)
    }
}
