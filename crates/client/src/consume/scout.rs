//! Looks up leaders and connects to them. Each look-up and each attempt to connect has its own thread, since a broker
//! may take any time.
//!
//! Invariant: one look-up runs at a time. A run that ends does not wait for these threads. A thread that still waits
//! for a broker ends at the connection's timeout.

use super::growth::TopicFilter;
use super::start::{self, OffsetBounds, Unplaced};
use crate::admin::list_topics;
use crate::blocking::{Cluster, Connection, PartitionPlace};
use crate::error::ClientError;
use fullbore_wire::{Text, Uuid};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a partition may stay unread before the scout looks up leaders at another broker.
const DOUBT_AFTER: Duration = Duration::from_secs(1);

/// The topics of a look-up.
pub(super) type LookUp = BTreeMap<Text, ExpectedTopic>;

/// A topic as its cursors know it. If a broker contradicts them, the look-up also queries another broker, because the
/// first one may be behind.
#[derive(Debug, Default)]
pub(super) struct ExpectedTopic {
    /// The id of the topic, which is zero if it is unknown. `None` if the topic may be missing.
    pub(super) topic_id: Option<Uuid>,
    /// True if another broker must confirm the leader epochs.
    pub(super) confirms_epochs: bool,
}

/// Starts look-ups and connections.
pub(super) struct Scout {
    /// The cluster through which the scout connects to leaders.
    cluster: Cluster,
    servers: String,
    /// The cluster through which the scout looks up leaders. `None` during a look-up, whose thread owns the cluster.
    requested: Option<Cluster>,
    /// The open connection of `requested`, between two look-ups. A thread that needs a connection to the same broker
    /// may take it.
    kept: Arc<Mutex<Option<Connection>>>,
    /// Partitions whose leaders the caller of the run knows. The first look-up leaves out their topics.
    known: BTreeMap<Text, Vec<PartitionPlace>>,
    looks_since: Option<Instant>,
    /// True if the next look-up should go to another broker than the last one.
    doubts: bool,
    /// True if the next look-up must go to another broker than the last one.
    moves_on: bool,
    report: Arc<dyn Fn(ScoutAnswer) + Send + Sync>,
}

/// The result of a look-up or of an attempt to connect.
pub(super) enum ScoutReport {
    /// The partitions of each topic, by topic name. If the look-up of the list of topics failed, an entry with an empty
    /// name has the error.
    Topics(Vec<(Text, Result<Vec<PartitionPlace>, ClientError>)>),
    /// The outcome of connecting to a leader and requesting the bounds of partitions.
    Connection { leader: String, outcome: Result<Box<Connected>, ClientError> },
}

/// A connection to a leader, and the bounds of each partition that was requested.
pub(super) type Connected = (Connection, Vec<Result<OffsetBounds, ClientError>>);

/// A thread's report, and after a look-up also its cluster for the next look-up.
pub(super) type ScoutAnswer = (ScoutReport, Option<Cluster>);

impl Scout {
    /// Creates a scout whose threads call `report`.
    pub(super) fn new(
        mut requested: Cluster,
        known: BTreeMap<Text, Vec<PartitionPlace>>,
        report: impl Fn(ScoutAnswer) + Send + Sync + 'static,
    ) -> Self {
        let (cluster, servers, kept) = (requested.detached(), requested.servers(), requested.take_connection());
        let (requested, kept, report) = (Some(requested), Arc::new(Mutex::new(kept)), Arc::new(report));
        let (doubts, moves_on) = (false, false);
        Scout { cluster, servers, requested, kept, known, looks_since: None, doubts, moves_on, report }
    }

    /// Returns the bootstrap list.
    pub(super) fn servers(&self) -> &str {
        &self.servers
    }

    /// Returns when the running look-up began, or `None` if none is running.
    pub(super) fn looks_since(&self) -> Option<Instant> {
        self.looks_since
    }

    /// Notes that a partition has not been read for this time. From [`DOUBT_AFTER`] on, the next look-up goes to
    /// another broker if possible, because the present one may name a stale leader.
    pub(super) fn doubt_after(&mut self, unread_for: Duration) {
        self.doubts |= unread_for >= DOUBT_AFTER;
    }

    /// Makes the next look-up go to another broker than the last one, if another broker is known.
    pub(super) fn move_on(&mut self) {
        self.moves_on = true;
    }

    /// Returns true if more than one broker is known.
    pub(super) fn knows_others(&self) -> bool {
        self.cluster.knows_others()
    }

    /// Starts to look up `topics` and all topics that `matches` accepts. Does nothing if a look-up is running.
    pub(super) fn look(&mut self, mut topics: LookUp, matches: Option<TopicFilter>) -> io::Result<()> {
        let Some(mut cluster) = self.requested.take() else { return Ok(()) };
        self.looks_since = Some(Instant::now());
        let report = self.report.clone();
        let mut known = std::mem::take(&mut self.known);
        let (moves_on, doubts) = (std::mem::take(&mut self.moves_on), std::mem::take(&mut self.doubts));
        if moves_on && cluster.knows_others() {
            // The kept connection stays for a thread that connects to its broker as a leader.
            cluster.rotate();
        } else {
            taken(&self.kept).into_iter().for_each(|connection| cluster.keep_connection(connection));
            if doubts {
                cluster.doubt();
            }
        }
        begin("leaders", move || {
            let mut found = Vec::new();
            match matches.map(|matches| (list_topics(&mut cluster), matches)) {
                Some((Ok(all), matches)) => {
                    let matching = all.into_iter().filter(|(name, is_internal)| matches(name, *is_internal));
                    matching.for_each(|(name, _)| _ = topics.entry(name).or_default());
                }
                Some((Err(error), _)) => found.push((Text::default(), Err(error))),
                None => {}
            }
            found.extend(topics.into_iter().map(|(topic, expected)| {
                let places = known.remove(&topic).map_or_else(|| cluster.partitions(&topic), Ok);
                let places = confirmed(&mut cluster, &topic, &expected, places);
                (topic, places)
            }));
            report((ScoutReport::Topics(found), Some(cluster)));
        })
    }

    /// Starts a thread that connects to a leader and requests the bounds of these partitions. Uses `spare`, or else the
    /// connection of the last look-up if that one leads to the leader. Otherwise opens a connection.
    pub(super) fn connect(
        &self,
        leader: &str,
        spare: Option<Connection>,
        of: Vec<Unplaced>,
        to_end: bool,
        read_committed: bool,
    ) -> io::Result<()> {
        let (cluster, report, leader) = (self.cluster.detached(), self.report.clone(), leader.to_owned());
        let kept = self.kept.clone();
        begin("connect", move || {
            let spare = spare.or_else(|| leading_to(&kept, &leader));
            let placed = |mut connection: Connection| {
                let placed = start::place(&mut connection, &of, to_end, read_committed)?;
                Ok(Box::new((connection, placed)))
            };
            // If the request over `spare` fails, connects again. The broker may have closed `spare` as an idle
            // connection.
            let outcome = match spare.map(placed) {
                Some(Ok(connected)) => Ok(connected),
                _ => cluster.connect(&leader).and_then(placed),
            };
            report((ScoutReport::Connection { leader, outcome }, None));
        })
    }

    /// Returns the report of a thread, and keeps its cluster for the next look-up.
    pub(super) fn back(&mut self, (found, requested): ScoutAnswer) -> ScoutReport {
        if let Some(mut cluster) = requested {
            *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = cluster.take_connection();
            (self.requested, self.looks_since) = (Some(cluster), None);
        }
        found
    }
}

/// Returns the partitions that a broker knows. If they differ from the expected topic, returns those that another
/// broker knows. If no other broker answers, the leader epochs count as unknown.
fn confirmed(
    cluster: &mut Cluster,
    topic: &Text,
    expected: &ExpectedTopic,
    found: Result<Vec<PartitionPlace>, ClientError>,
) -> Result<Vec<PartitionPlace>, ClientError> {
    let is_other = expected.topic_id.is_some_and(|id| is_other_topic(&found, id));
    if !is_other && !expected.confirms_epochs {
        return found;
    }
    match cluster.partitions_elsewhere(topic) {
        Some(elsewhere @ (Ok(_) | Err(ClientError::NoTopic(_)))) => elsewhere,
        Some(Err(_)) => found.map(|places| {
            let unconfirmed = |place| PartitionPlace { leader_epoch: -1, ..place };
            places.into_iter().map(unconfirmed).collect()
        }),
        None => found,
    }
}

/// Returns true if the topic that was found has another id than `id`, or if none was found.
fn is_other_topic(found: &Result<Vec<PartitionPlace>, ClientError>, id: Uuid) -> bool {
    match found {
        Ok(places) => places.first().is_some_and(|of| ![of.topic_id, id].contains(&Uuid::ZERO) && of.topic_id != id),
        Err(error) => matches!(error, ClientError::NoTopic(_)),
    }
}

fn taken(kept: &Mutex<Option<Connection>>) -> Option<Connection> {
    kept.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Removes and returns the connection of the last look-up if it leads to this leader. The lock is not held while the
/// leader's name is resolved.
fn leading_to(kept: &Mutex<Option<Connection>>, leader: &str) -> Option<Connection> {
    let connection = taken(kept)?;
    if connection.leads_to(leader) {
        return Some(connection);
    }
    kept.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(connection);
    None
}

fn begin(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}
