//! Look-ups of leaders and connections to them, on threads that no other waits for, since a broker may take any time.
//!
//! Not here: the use of either. Invariant: one look-up at a time; a thread that is still waiting when its run ends is
//! left to itself, and ends with the connection's timeout.

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

/// See the module.
pub(super) struct Scout {
    /// For connections of their own.
    cluster: Cluster,
    servers: String,
    /// Cluster for look-ups; `None` during one.
    asked: Option<Cluster>,
    /// The connection of `asked` between two look-ups, until a leader is connected to that it leads to.
    kept: Arc<Mutex<Option<Connection>>>,
    /// Leaders that were known before the first look-up, which does not ask for them.
    known: BTreeMap<Text, Vec<PartitionPlace>>,
    looks_since: Option<Instant>,
    tells: Arc<dyn Fn(ScoutAnswer) + Send + Sync>,
}

/// Report of a look-up.
pub(super) enum ScoutReport {
    /// The partitions of each topic, by name; without a name, why it is not known which topics there are.
    Topics(Vec<(Text, Result<Vec<PartitionPlace>, ClientError>)>),
    /// A connection to a leader, and where the partitions are that were to be placed.
    Connection { leader: String, outcome: Result<Box<Connected>, ClientError> },
}

/// See [`ScoutReport::Connection`].
pub(super) type Connected = (Connection, Vec<Result<OffsetBounds, ClientError>>);

/// Report, and the cluster, for the next look-up.
pub(super) type ScoutAnswer = (ScoutReport, Option<Cluster>);

impl Scout {
    /// Creates a scout that sends its reports to `tells`.
    pub(super) fn new(
        mut asked: Cluster,
        known: BTreeMap<Text, Vec<PartitionPlace>>,
        tells: impl Fn(ScoutAnswer) + Send + Sync + 'static,
    ) -> Self {
        let (cluster, servers, kept) = (asked.detached(), asked.servers(), asked.take_connection());
        let (asked, kept, tells) = (Some(asked), Arc::new(Mutex::new(kept)), Arc::new(tells));
        Scout { cluster, servers, asked, kept, known, looks_since: None, tells }
    }

    /// The bootstrap list.
    pub(super) fn servers(&self) -> &str {
        &self.servers
    }

    /// Since when leaders are being looked up, if they are.
    pub(super) fn looks_since(&self) -> Option<Instant> {
        self.looks_since
    }

    /// Begins to look up these topics and those that match, unless it is about that already.
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

    /// Begins to connect to a leader, unless the connection that there is serves, and to ask it where these partitions
    /// are.
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
            // The broker may have closed it, since it was idle.
            let outcome = match spare.map(placed) {
                Some(Ok(connected)) => Ok(connected),
                _ => cluster.connect(&leader).and_then(placed),
            };
            tells((ScoutReport::Connection { leader, outcome }, None));
        })
    }

    /// Takes an answer, and who was asked for the next time.
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

/// The connection, if it leads to this leader. Others that connect meanwhile do not wait for the look-up of the name.
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
