//! Measures one point. It creates a topic for the point, warms up, measures, and removes the topic.
//!
//! The warm-up sends 1, 2, 4, ... records and waits for the acknowledgements of each lot, so that it takes the same
//! time for slow and for fast points. The measurement uses the same producer and connections, and begins when all
//! records of the warm-up are acknowledged. Invariant: figures count only records sent after the warm-up, from the
//! first send to the last acknowledgement.

use super::causes::{Causes, Watch};
use super::detour::Detours;
use super::error::{RunError, TOPIC_READY_MAX};
use super::plan::{Amount, SweepPlan, SweepTurn, Target};
use super::point::Setup;
use crate::measure::{BrokerPlace, LINK_THREAD, Percentiles};
use crate::produce::{Failed, ProduceOutcome, TRANSACTION_DURATION, Workload, produce};
use crate::workload::Payload;
use fullbore_client::ClientError;
use fullbore_client::admin::{create_topic, delete_topics};
use fullbore_client::blocking::Cluster;
use fullbore_producer::{Producer, ProducerConfig, Security};
use fullbore_wire::Text;
use fullbore_wire::batch::Compression;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// The client id of every point.
pub const CLIENT_ID: &str = "fullbore-sweep";
/// How often the topic's leaders are polled.
const TOPIC_POLL: Duration = Duration::from_millis(20);
/// The minimum time that a measurement by time waits for its last acknowledgements. If it was sending for longer than
/// this, it waits as long as it was sending.
const DRAIN_MIN: Duration = Duration::from_secs(1);
/// How long connections may take to close at the end, when every record has its result.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// A reporting interval that never ends, because a sweep prints no intervals.
const NO_REPORTS: Duration = Duration::MAX;

/// The figures of one measurement.
#[derive(Clone, Debug)]
pub struct Figures {
    /// How many records were acknowledged.
    pub records: u64,
    /// The size of the values of the acknowledged records, in bytes.
    pub bytes: u64,
    /// The time from the first send to the last acknowledgement.
    pub elapsed: Duration,
    /// The mean latency in microseconds.
    pub avg_us: f64,
    /// The percentiles of the latencies of the acknowledged records.
    pub percentiles: Percentiles,
    /// The causes of the figures.
    pub causes: Causes,
    /// True if time ran out before all records were acknowledged. The figures leave out the unacknowledged records.
    pub cut_short: bool,
}

impl Figures {
    /// Returns how many records were acknowledged per second.
    pub fn records_per_sec(&self) -> f64 {
        self.records as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns how many megabytes (10^6 bytes) of values were acknowledged per second.
    pub fn mb_per_sec(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.elapsed.as_secs_f64()
    }
}

/// Returns the cluster of a target with the plan's security settings, for requests that are not part of a measurement.
///
/// # Errors
/// Fails if an address is invalid, or if the security settings cannot be used.
pub fn cluster(plan: &SweepPlan, target: &Target) -> Result<Cluster, RunError> {
    let setup = plan.setup(&vec![0; plan.axes.len()]).map_err(RunError::Value)?;
    let properties = setup.properties.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let security = Security::from_properties(properties)?;
    Ok(Cluster::new(&target.bootstrap_servers, CLIENT_ID)?.secured(security))
}

/// The runner of a plan, which measures its points one after another.
pub struct Runner<'a> {
    plan: &'a SweepPlan,
    points: Vec<Vec<usize>>,
    runtime: Runtime,
    detours: Detours,
    /// The processes of each target's brokers, by the target's index. A target is added when it is first measured.
    places: HashMap<usize, BrokerPlace>,
    stop: watch::Receiver<bool>,
    /// A prefix that distinguishes the topics of this sweep from others.
    topics: String,
    made: u64,
}

impl<'a> Runner<'a> {
    /// Creates a runner that stops soon after `stop` becomes true. Its topics are `topics`-0, `topics`-1, ...
    ///
    /// # Errors
    /// Returns the system's error if it refuses to start threads.
    pub fn new(plan: &'a SweepPlan, topics: &str, stop: watch::Receiver<bool>) -> io::Result<Self> {
        // The calling thread is busy with sending, so another thread runs the timers and the relays.
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let runtime = threads.worker_threads(1).thread_name(LINK_THREAD).enable_all().build()?;
        let (points, detours, places) = (plan.points(), Detours::default(), HashMap::new());
        Ok(Runner { plan, points, runtime, detours, places, stop, topics: topics.to_owned(), made: 0 })
    }

    /// Makes one measurement of the plan and returns its figures. Returns `None` if the runner was stopped first.
    ///
    /// # Errors
    /// Returns [`RunError`] if the measurement has no figures.
    pub fn run(&mut self, turn: SweepTurn) -> Result<Option<Figures>, RunError> {
        let setup = self.plan.setup(&self.points[turn.point]).map_err(RunError::Value)?;
        let servers = &self.plan.targets[turn.target].bootstrap_servers;
        let mut config = setup.producer(servers)?;
        config.client.client_id = CLIENT_ID.to_owned();
        let mut cluster = Cluster::new(servers, CLIENT_ID)?.secured(config.client.security.clone());
        config.client.detours = self.detours.to(&mut cluster, servers, setup.link, &self.runtime)?;
        if let Entry::Vacant(place) = self.places.entry(turn.target) {
            let brokers = cluster.brokers()?.into_iter();
            let addresses = brokers.filter_map(|broker| Some((broker.host.to_string(), broker.port.try_into().ok()?)));
            place.insert(BrokerPlace::of(&addresses.collect::<Vec<_>>()));
        }
        let topic = format!("{}-{}", self.topics, self.made);
        self.made += 1;
        create_topic(&mut cluster, &topic, setup.partitions, setup.replication_factor, &setup.topic)?;
        let outcome = self.with_topic(&mut cluster, &topic, &setup, &self.places[&turn.target], config);
        // The figures are valid even if the topic cannot be deleted.
        let _ = delete_topics(&mut cluster, &[topic.as_str().into()]);
        outcome
    }

    fn with_topic(
        &self,
        cluster: &mut Cluster,
        topic: &str,
        setup: &Setup,
        place: &BrokerPlace,
        config: ProducerConfig,
    ) -> Result<Option<Figures>, RunError> {
        if !self.is_ready(cluster, topic)? {
            return Ok(None);
        }
        let (compressed, is_idempotent) = (config.compression != Compression::None, config.is_idempotent());
        let producer = Producer::new(config)?;
        self.runtime.block_on(async {
            let watch = || Watch::begin(&producer, is_idempotent, place);
            let outcome = self.measure(&producer, topic, setup, compressed, watch).await;
            // Some records may still be unacknowledged. The close does not wait for them.
            let drained = matches!(&outcome, Ok(Some(figures)) if !figures.cut_short);
            producer.close(if drained { CLOSE_TIMEOUT } else { Duration::ZERO }).await;
            outcome
        })
    }

    /// Waits until every partition has a leader. Returns false if the runner was stopped first.
    fn is_ready(&self, cluster: &mut Cluster, topic: &str) -> Result<bool, RunError> {
        let begun = Instant::now();
        let name = Text::from(topic);
        loop {
            if *self.stop.borrow() {
                return Ok(false);
            }
            match cluster.partitions(&name) {
                Ok(places) if !places.is_empty() && places.iter().all(|place| place.leader.is_some()) => {
                    return Ok(true);
                }
                // The queried broker does not know the new topic yet, so it is polled again.
                Ok(_) | Err(ClientError::NoTopic(_) | ClientError::NoLeader { .. }) => {}
                Err(error) if error.is_retriable() => {}
                Err(error) => return Err(error.into()),
            }
            if begun.elapsed() > TOPIC_READY_MAX {
                return Err(RunError::NotReady { topic: topic.to_owned() });
            }
            std::thread::sleep(TOPIC_POLL);
        }
    }

    async fn measure<'w>(
        &self,
        producer: &Producer,
        topic: &str,
        setup: &Setup,
        compressed: bool,
        watch: impl FnOnce() -> Watch<'w>,
    ) -> Result<Option<Figures>, RunError> {
        let workload = |records: u64| Workload {
            topic: topic.to_owned(),
            records,
            duration: None,
            warmup_records: 0,
            throughput: setup.throughput,
            payload: Payload::random(setup.record_size, compressed),
            reporting_interval: NO_REPORTS,
            transaction_duration: TRANSACTION_DURATION,
        };
        let begun = Instant::now();
        let mut lot = 1;
        while lot > 0 && !self.plan.warmup.is_zero() {
            let lot_begun = Instant::now();
            let outcome = produce(producer, workload(lot), self.stop.clone(), |_| {}).await?;
            if *self.stop.borrow() {
                return Ok(None);
            }
            whole(&outcome.failed)?;
            lot = next_lot(lot, lot_begun.elapsed(), self.plan.warmup.saturating_sub(begun.elapsed()));
        }
        let amount = setup.records.map_or(self.plan.amount, Amount::Records);
        let (workload, limit) = match amount {
            Amount::Records(records) => (workload(records), None),
            Amount::Time(time) => {
                let all = Workload { duration: Some(time), ..workload(u64::MAX) };
                (all, Some(time + time.max(DRAIN_MIN)))
            }
        };
        let (watch, begun) = (watch(), Instant::now());
        let outcome = produce(producer, workload, self.stop_after(limit), |_| {}).await?;
        let causes = watch.end();
        if *self.stop.borrow() {
            return Ok(None);
        }
        whole(&outcome.failed)?;
        figures(begun, &outcome, causes).map(Some)
    }

    /// Returns a receiver whose value becomes true when the sweep stops, or after `limit`.
    fn stop_after(&self, limit: Option<Duration>) -> watch::Receiver<bool> {
        let Some(limit) = limit else { return self.stop.clone() };
        let (ends, ended) = watch::channel(false);
        let mut stop = self.stop.clone();
        self.runtime.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(limit) => {}
                // If the sender of `stop` was dropped, this branch is disabled, and the limit ends the measurement.
                Ok(_) = stop.wait_for(|stop| *stop) => {}
                () = ends.closed() => {}
            }
            ends.send_replace(true);
        });
        ended
    }
}

fn whole(failed: &Failed) -> Result<(), RunError> {
    match &failed.first {
        Some(first) => Err(RunError::Failed { records: failed.records, first: first.to_string() }),
        None => Ok(()),
    }
}

/// Returns how many records the warm-up sends next, after it has sent `lot` records in the time `took`. This is twice
/// `lot`, but not more than it can send in the time `left`. Returns 0 if `left` is too short for one record.
fn next_lot(lot: u64, took: Duration, left: Duration) -> u64 {
    let fit = lot as f64 * left.as_secs_f64() / took.as_secs_f64().max(1e-9);
    lot.saturating_mul(2).min(fit as u64)
}

fn figures(begun: Instant, outcome: &ProduceOutcome, causes: Causes) -> Result<Figures, RunError> {
    let ended = outcome.produced.last_acknowledged().unwrap_or(outcome.ended);
    let summary = outcome.produced.summaries(ended).next().expect("the whole run has a summary");
    if summary.records == 0 {
        return Err(RunError::Silent(begun.elapsed()));
    }
    Ok(Figures {
        records: summary.records,
        bytes: summary.bytes,
        // The time must not be zero, because rates are divided by it.
        elapsed: summary.elapsed.max(Duration::from_micros(1)),
        avg_us: summary.latencies.mean_us(),
        percentiles: summary.latencies.percentiles(),
        causes,
        cut_short: outcome.stopped,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_doubles_until_its_time_is_over() {
        let ms = Duration::from_millis;
        assert_eq!(next_lot(4, ms(10), ms(1_000)), 8);
        assert_eq!(next_lot(100, ms(100), ms(50)), 50, "no more than fit");
        assert_eq!(next_lot(1, ms(150), ms(100)), 0, "one more would not fit");
        assert_eq!(next_lot(1, Duration::ZERO, ms(0)), 0);
        assert_eq!(next_lot(u64::MAX, ms(1), ms(10)), u64::MAX);
    }
}
