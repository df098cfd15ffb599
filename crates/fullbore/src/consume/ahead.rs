//! Looks up leaders and start offsets, and opens a connection for fetches, while a member is still joining its group.
//!
//! The assignment and committed offsets are not looked up here. Invariant: the member also works without these results.
//! If one is missing, old or wrong, the member requests it again.

use crate::stop::Stop;
use fullbore_client::blocking::{Cluster, EARLIEST, PartitionPlace};
use fullbore_client::group::TopicPartition;
use fullbore_wire::{Text, Uuid};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long results may be used. This is longer than the 3 s that joining a new group takes by default
/// (group.initial.rebalance.delay.ms).
const FRESH: Duration = Duration::from_secs(10);
/// Maximum number of partitions whose start offsets are looked up in advance. If the topics have more partitions, the
/// member looks up only the assigned ones after it has joined.
const STARTS_MAX: usize = 1000;
/// How often the stop signal is checked.
const TICK: Duration = Duration::from_millis(20);

/// The results of the look-ups.
pub(super) struct Ahead {
    until: Instant,
    places: BTreeMap<Text, Vec<PartitionPlace>>,
    /// The start offset of each partition, with the id of its topic.
    starts: HashMap<TopicPartition, (Uuid, i64)>,
    /// A thread that connects a cluster for fetches to any broker. `None` once the member uses this cluster.
    fetching: Option<JoinHandle<Cluster>>,
}

impl Ahead {
    /// Looks up the partitions of `topics` and their leaders through `cluster`. With `with_starts`, also looks up the
    /// start offsets of those partitions that the queried broker leads. Meanwhile, a thread connects `fetching`, the
    /// cluster for later fetches, to any broker. If `stop` is requested before the look-ups end, there are no results.
    pub(super) fn look(
        cluster: &mut Cluster,
        mut fetching: Cluster,
        topics: &[Text],
        with_starts: bool,
        stop: &Stop,
    ) -> std::io::Result<Self> {
        let connect = move || {
            // An error is ignored here, because the first fetch reports it.
            let _ = fetching.any();
            fetching
        };
        let fetching = Some(std::thread::Builder::new().name("connect".to_owned()).spawn(connect)?);
        let (sender, receiver) = channel();
        let (mut requested, topics) = (cluster.handed_over(), topics.to_vec());
        let call = move || {
            let found = found(&mut requested, &topics, with_starts);
            // The send fails if the command has been stopped and no longer waits for the result.
            let _ = sender.send((found, requested));
        };
        std::thread::Builder::new().name("ahead".to_owned()).spawn(call)?;
        let mut answer = receiver.recv_timeout(TICK);
        while matches!(answer, Err(RecvTimeoutError::Timeout)) && !stop.is_requested() {
            answer = receiver.recv_timeout(TICK);
        }
        let (places, starts) = match answer {
            Ok((found, requested)) => {
                *cluster = requested;
                found
            }
            Err(_) => Default::default(),
        };
        Ok(Ahead { until: Instant::now() + FRESH, places, starts, fetching })
    }

    /// Removes and returns the partitions of these topics, if the results have all of these topics and are not too old.
    pub(super) fn places(&mut self, topics: &BTreeSet<Text>) -> Option<BTreeMap<Text, Vec<PartitionPlace>>> {
        let mut places = std::mem::take(&mut self.places);
        places.retain(|topic, _| topics.contains(topic));
        (places.len() == topics.len() && Instant::now() < self.until).then_some(places)
    }

    /// Returns the start offset of a partition of the topic with this id, if the results have it and are not too old.
    pub(super) fn start(&self, of: &TopicPartition, topic_id: Uuid) -> Option<i64> {
        let (id, offset) = self.starts.get(of)?;
        (*id == topic_id && Instant::now() < self.until).then_some(*offset)
    }

    /// Returns a cluster for fetches. If the thread has connected one by now, the first call returns it. Otherwise
    /// returns a copy of `otherwise` without a connection.
    pub(super) fn cluster(&mut self, otherwise: &Cluster) -> Cluster {
        let connected = self.fetching.take_if(|thread| thread.is_finished());
        connected.and_then(|thread| thread.join().ok()).unwrap_or_else(|| otherwise.detached())
    }
}

/// The partitions by topic name, and the start offset of each partition with the id of its topic.
type PlacesAndStarts = (BTreeMap<Text, Vec<PartitionPlace>>, HashMap<TopicPartition, (Uuid, i64)>);

fn found(cluster: &mut Cluster, topics: &[Text], with_starts: bool) -> PlacesAndStarts {
    let places = cluster.partitions_of(topics).unwrap_or_default();
    let mut starts = HashMap::new();
    let ids: Vec<Uuid> = places.values().flatten().map(|place| place.topic_id).collect();
    let of: Vec<TopicPartition> =
        places.values().flatten().map(|place| (place.topic.clone(), place.partition)).collect();
    if with_starts
        && (1..=STARTS_MAX).contains(&of.len())
        && let Ok(connection) = cluster.any()
        && let Ok(found) = connection.offsets_at(&of, EARLIEST, false)
    {
        // For partitions that other brokers lead, the queried broker returns an error, so they are left out.
        let found = ids.into_iter().zip(found);
        starts.extend(of.into_iter().zip(found).filter_map(|(of, (id, offset))| Some((of, (id, offset.ok()?)))));
    }
    (places, starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_the_look_ups_at_a_silent_broker() {
        // The system accepts connections to this listener, but no broker responds.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = silent.local_addr().expect("bound").to_string();
        let (reports, reported) = channel();
        std::thread::spawn(move || {
            let of = || Cluster::new(&address, "test").expect("valid");
            let stop = Stop::new();
            stop.request();
            let ahead = Ahead::look(&mut of(), of(), &["t".into()], true, &stop).expect("threads");
            let _ = reports.send(ahead.places.len());
        });
        let found =
            reported.recv_timeout(Duration::from_secs(20)).expect("before the broker is given up, which takes 30 s");
        assert_eq!(found, 0);
    }
}
