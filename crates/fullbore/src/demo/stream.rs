//! A stream of verifiable records, which one thread writes while another thread reads them.
//!
//! Invariant: a phase succeeds only if every partition returns exactly the values sent to it, in order, at offsets
//! without gaps.

use super::figures::Figures;
use super::progress::DemoProgress;
use crate::failure::Failure;
use crate::stop::Stop;
use fullbore_bench::measure::{Latencies, Produced};
use fullbore_bench::produce::{Pacer, ProduceOutcome as Sent, Tracker, send};
use fullbore_bench::workload::{SequenceReader, SequenceWriter};
use fullbore_client::blocking::{Cluster, LATEST};
use fullbore_client::consume::{
    BatchView, ConsumeError, ConsumeOutcome, ConsumePlan, Cursor, FetchSettings, Record, Sink, consume,
};
use fullbore_producer::{Producer, ProducerRecord as Outgoing};
use fullbore_wire::Text;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// How long the reader waits for a record before it gives up.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How many records are sent between two checks for a stop.
const RECORDS_PER_LOOK: u64 = 256;

/// A phase of the demo.
pub struct Phase {
    /// The name of the phase for the user.
    pub name: &'static str,
    /// How many records the phase has.
    pub records: u64,
    /// How many records are sent per second. Below zero there is no limit.
    pub throughput: f64,
    /// How long records are sent, or `None` for no limit.
    pub limit: Option<Duration>,
}

impl Phase {
    /// Creates a phase that sends all records as fast as possible.
    pub fn flat_out(name: &'static str, records: u64) -> Self {
        Phase { name, records, throughput: -1.0, limit: None }
    }
}

/// A sink that accepts exactly the records that were sent to one partition.
struct Verifier {
    reader: SequenceReader,
    latencies: Latencies,
    epoch: Instant,
}

impl Sink for Verifier {
    fn record(&mut self, batch: &BatchView<'_>, record: &Record<'_>) -> Result<ControlFlow<()>, String> {
        let offset = record.offset(batch);
        if offset != self.reader.accepted() as i64 {
            return Err(format!("expected offset {}", self.reader.accepted()));
        }
        let sent_us = self.reader.check(record.value.unwrap_or_default()).map_err(|error| error.to_string())?;
        let now_us = self.epoch.elapsed().as_micros() as u64;
        self.latencies.record(now_us.saturating_sub(sent_us), 1);
        Ok(ControlFlow::Continue(()))
    }
}

/// The state of the stream over all phases.
pub struct DemoStream {
    topic: &'static str,
    record_size: usize,
    writers: Vec<SequenceWriter>,
    cursors: Vec<Cursor<Verifier>>,
    /// How many records were sent to each partition.
    sent: Vec<u64>,
    epoch: Instant,
}

impl DemoStream {
    /// Creates a stream to every partition of an empty topic.
    pub fn new(topic: &'static str, cluster: &mut Cluster, record_size: usize) -> Result<Self, Failure> {
        let epoch = Instant::now();
        let places = cluster.partitions(&Text::from_static(topic))?;
        let verifier =
            |partition| Verifier { reader: SequenceReader::new(partition), latencies: Latencies::default(), epoch };
        Ok(DemoStream {
            topic,
            record_size,
            writers: places.iter().map(|place| SequenceWriter::new(place.partition, record_size)).collect(),
            sent: vec![0; places.len()],
            cursors: places
                .into_iter()
                .map(|place| {
                    let sink = verifier(place.partition);
                    Cursor::new(place, sink)
                })
                .collect(),
            epoch,
        })
    }

    /// Sends and reads the records of one phase.
    pub fn run(
        &mut self,
        phase: &Phase,
        cluster: &mut Cluster,
        producer: &Producer,
        runtime: &tokio::runtime::Handle,
        progress: &DemoProgress,
        stop: &Stop,
    ) -> Result<Figures, Failure> {
        let (started, started_at) = (Instant::now(), SystemTime::now());
        let end = PhaseEnd::default();
        let (read, sent) = self.run_both((phase, &end), cluster, producer, runtime, progress, stop);
        // If both have failed, the reader's error is returned, because it is more precise than the sender's.
        let mut read = read?;
        let sent = sent?;
        if let Some(first) = sent.failed.first {
            let records = sent.failed.records;
            return Err(Failure::new(format!("{records} records were not acknowledged; the first: {first}")));
        }
        let finished = finished(&read, &end, stop)?;
        let summary = sent.produced.summaries(sent.ended).next().expect("the whole run has a summary");
        let mut read_latencies = Latencies::default();
        for cursor in &mut read.cursors {
            read_latencies.add(&std::mem::take(&mut cursor.sink.latencies));
        }
        self.cursors = read.cursors;
        Ok(Figures {
            records: summary.records,
            bytes: summary.bytes,
            produce_time: sent.ended - started,
            read_time: finished.duration_since(started_at).unwrap_or_default(),
            acknowledged: summary.latencies,
            read: read_latencies,
        })
    }

    /// Reads on another thread while this thread sends. If either fails, the other ends as well.
    fn run_both(
        &mut self,
        (phase, end): (&Phase, &PhaseEnd),
        cluster: &mut Cluster,
        producer: &Producer,
        runtime: &tokio::runtime::Handle,
        progress: &DemoProgress,
        stop: &Stop,
    ) -> (Result<ConsumeOutcome<Verifier>, ConsumeError>, Result<Sent, Failure>) {
        let cursors = std::mem::take(&mut self.cursors);
        let plan = ConsumePlan { records: phase.records, ..ConsumePlan::new(FetchSettings::default(), READ_TIMEOUT) };
        let read = || {
            let outcome = consume(cluster, cursors, &plan, |counts| {
                progress.read(counts.records());
                !stop.is_requested() && !end.is_reached(counts.records())
            });
            outcome.inspect_err(|_| stop.request())
        };
        std::thread::scope(|scope| {
            let reader = scope.spawn(read);
            let mut requested = stop.receiver();
            let sent = runtime.block_on(async {
                tokio::select! {
                    biased;
                    // If the command is stopped, the sender no longer waits for memory or for records in flight.
                    Ok(_) = requested.wait_for(|requested| *requested) => Err(interrupted()),
                    sent = self.send(phase, end, producer, progress, stop) => sent,
                }
            });
            let sent = sent.inspect_err(|_| stop.request());
            (reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), sent)
        })
    }

    async fn send(
        &mut self,
        phase: &Phase,
        end: &PhaseEnd,
        producer: &Producer,
        progress: &DemoProgress,
        stop: &Stop,
    ) -> Result<Sent, Failure> {
        let mut pacer = Pacer::start(phase.throughput);
        let mut tracker = Tracker::new(Produced::new(pacer.started_at(), Duration::MAX), |_| {});
        let mut count = 0;
        for number in 0..phase.records {
            if number % RECORDS_PER_LOOK == 0 {
                progress.sent(number);
                if stop.is_requested() {
                    return Err(interrupted());
                }
            }
            let intended = pacer.turn(number, &mut tracker, || stop.is_requested()).ok_or_else(interrupted)?;
            if phase.limit.is_some_and(|limit| intended >= pacer.started_at() + limit) {
                break;
            }
            let partition = (number % self.writers.len() as u64) as usize;
            let sent_us = (intended - self.epoch).as_micros() as u64;
            let value = self.writers[partition].value(sent_us);
            let record = Outgoing::new(self.topic, value).partition(partition as i32);
            let (delivery, waited) = send(producer, record, &mut tracker).await?;
            tracker.sent(delivery, intended, self.record_size as u64, false);
            if waited {
                pacer.has_waited();
            }
            self.sent[partition] += 1;
            count = number + 1;
        }
        progress.sent(count);
        end.set(count);
        producer.flush().await;
        let (produced, failed) = tracker.finish().await;
        Ok(Sent { produced, failed, ended: Instant::now(), stopped: false })
    }

    /// Checks that no partition has records after the last one that was sent. Returns how many records there are.
    pub fn verify_ends(&self, cluster: &mut Cluster) -> Result<u64, Failure> {
        let of: Vec<(Text, i32)> = self.cursors.iter().map(|cursor| (cursor.topic.clone(), cursor.partition)).collect();
        let ends = cluster.any()?.offsets(&of, LATEST)?;
        for (cursor, end) in self.cursors.iter().zip(ends) {
            let (accepted, sent) = (cursor.sink.reader.accepted(), self.sent[cursor.partition as usize]);
            if accepted != sent || end != sent as i64 {
                return Err(Failure::new(format!(
                    "partition {}: sent {sent} records, read {accepted}, and the log ends at {end}",
                    cursor.partition
                )));
            }
        }
        Ok(self.sent.iter().sum())
    }
}

/// The end of a phase. The sender sets the number of records, and the reader the time at which it has read all of them.
#[derive(Default)]
struct PhaseEnd {
    records: OnceLock<u64>,
    read_at: OnceLock<SystemTime>,
}

impl PhaseEnd {
    fn set(&self, records: u64) {
        // This cannot fail, because the number is set only once.
        let _ = self.records.set(records);
    }

    /// Returns true if `read` is the number of all records of the phase. Stores the time when this is first true.
    fn is_reached(&self, read: u64) -> bool {
        let is_all = self.records.get().is_some_and(|records| read >= *records);
        if is_all {
            self.read_at.get_or_init(SystemTime::now);
        }
        is_all
    }
}

fn finished(outcome: &ConsumeOutcome<Verifier>, end: &PhaseEnd, stop: &Stop) -> Result<SystemTime, Failure> {
    let (read, sent) = (outcome.progress.records(), end.records.get().copied().unwrap_or_default());
    match outcome.finished.or_else(|| end.read_at.get().copied()) {
        Some(at) if read == sent => Ok(at),
        _ if stop.is_requested() => Err(interrupted()),
        _ => Err(Failure::new(format!("sent {sent} records, but read {read}"))),
    }
}

/// Returns the failure of a demo that the user has stopped.
pub(super) fn interrupted() -> Failure {
    Failure::interrupted("interrupted; the broker was stopped and its data removed")
}
