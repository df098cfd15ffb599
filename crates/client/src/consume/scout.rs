//! Look-ups of leaders and connections to them, on threads of their own, since a broker may take any time.
//!
//! Not here: the use of the results. Invariant: one look-up runs at a time. A thread that still waits when its run ends
//! is abandoned, and ends with the connection's timeout.

use super::growth::TopicFilter;
use super::start::{self, OffsetBounds, Unplaced};
use crate::admin::list_topics;
use crate::blocking::{Cluster, Connection, PartitionPlace};
use crate::error::ClientError;
use fullbore_wire::Text;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Look-ups of leaders, as the module describes them.
pub(super) struct Scout {
    /// Cluster for connections to leaders.
    cluster: Cluster,
    servers: String,
    /// Cluster for look-ups; `None` during one.
    asked: Option<Cluster>,
    /// Connection of `asked` between two look-ups, until it serves as that to a leader.
    kept: Arc<Mutex<Option<Connection>>>,
    /// Leaders that were known before the first look-up, which leaves them out.
    known: BTreeMap<Text, Vec<PartitionPlace>>,
    looks_since: Option<Instant>,
    tells: Arc<dyn Fn(ScoutAnswer) + Send + Sync>,
}

/// Report of a thread.
pub(super) enum ScoutReport {
    /// Partitions of each topic, by name. An entry without a name has the error of the list of topics.
    Topics(Vec<(Text, Result<Vec<PartitionPlace>, ClientError>)>),
    /// Connection to a leader, and the bounds of the partitions that had to be placed.
    Connection { leader: String, outcome: Result<Box<Connected>, ClientError> },
}

/// Connection and bounds of [`ScoutReport::Connection`].
pub(super) type Connected = (Connection, Vec<Result<OffsetBounds, ClientError>>);

/// Report, and the cluster for the next look-up.
pub(super) type ScoutAnswer = (ScoutReport, Option<Cluster>);

impl Scout {
    /// Makes a scout that sends its reports to `tells`.
    pub(super) fn new(
        mut asked: Cluster,
        known: BTreeMap<Text, Vec<PartitionPlace>>,
        tells: impl Fn(ScoutAnswer) + Send + Sync + 'static,
    ) -> Self {
        let (cluster, servers, kept) = (asked.detached(), asked.servers(), asked.take_connection());
        let (asked, kept, tells) = (Some(asked), Arc::new(Mutex::new(kept)), Arc::new(tells));
        Scout { cluster, servers, asked, kept, known, looks_since: None, tells }
    }

    /// Returns the bootstrap list.
    pub(super) fn servers(&self) -> &str {
        &self.servers
    }

    /// Returns the start of the look-up that is running; None without one.
    pub(super) fn looks_since(&self) -> Option<Instant> {
        self.looks_since
    }

    /// Starts a look-up of these topics and those that match, unless one is running.
    pub(super) fn look(&mut self, mut topics: Vec<Text>, matches: Option<TopicFilter>) -> io::Result<()> {
        let Some(mut cluster) = self.asked.take() else { return Ok(()) };
        self.looks_since = Some(Instant::now());
        let tells = self.tells.clone();
        let mut known = std::mem::take(&mut self.known);
        if let Some(connection) = taken(&self.kept) {
            cluster.keep_connection(connection);
        }
        begin("leaders", move || {
            let mut found = Vec::new();
            match matches.map(|matches| (list_topics(&mut cluster), matches)) {
                Some((Ok(all), matches)) => {
                    let matching = all.into_iter().filter(|(name, is_internal)| matches(name, *is_internal));
                    topics.extend(matching.map(|(name, _)| name));
                    topics.sort();
                    topics.dedup();
                }
                Some((Err(error), _)) => found.push((Text::default(), Err(error))),
                None => {}
            }
            found.extend(topics.into_iter().map(|topic| {
                let places = known.remove(&topic).map_or_else(|| cluster.partitions(&topic), Ok);
                (topic, places)
            }));
            tells((ScoutReport::Topics(found), Some(cluster)));
        })
    }

    /// Starts to connect to a leader, unless `spare` or the kept connection serves, and requests the bounds of these
    /// partitions.
    pub(super) fn connect(
        &self,
        leader: &str,
        spare: Option<Connection>,
        of: Vec<Unplaced>,
        to_end: bool,
        read_committed: bool,
    ) -> io::Result<()> {
        let (cluster, tells, leader) = (self.cluster.detached(), self.tells.clone(), leader.to_owned());
        let kept = self.kept.clone();
        begin("connect", move || {
            let spare = spare.or_else(|| leading_to(&kept, &leader));
            let placed = |mut connection: Connection| {
                let placed = start::place(&mut connection, &of, to_end, read_committed)?;
                Ok(Box::new((connection, placed)))
            };
            // The broker may have closed an idle connection.
            let outcome = match spare.map(placed) {
                Some(Ok(connected)) => Ok(connected),
                _ => cluster.connect(&leader).and_then(placed),
            };
            tells((ScoutReport::Connection { leader, outcome }, None));
        })
    }

    /// Takes a report, and keeps its cluster for the next look-up.
    pub(super) fn back(&mut self, (found, asked): ScoutAnswer) -> ScoutReport {
        if let Some(mut cluster) = asked {
            *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = cluster.take_connection();
            (self.asked, self.looks_since) = (Some(cluster), None);
        }
        found
    }
}

fn taken(kept: &Mutex<Option<Connection>>) -> Option<Connection> {
    kept.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Returns the kept connection if it leads to this leader. Other threads do not wait for the look-up of the name.
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
