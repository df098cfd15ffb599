//! What may take as long as a broker likes, on threads that nobody waits for: finding leaders, and connecting to them.
//!
//! Not here: what to do with either. Invariant: one look-up at a time; a thread that is still waiting when its run ends is left to
//! itself, and ends with the connection's timeout.

use crate::client::{ClientError, Cluster, Connection, PartitionPlace};
use fullbore_wire::Text;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// See the module.
pub(super) struct Scout {
    /// For connections of their own.
    cluster: Cluster,
    servers: String,
    /// Who leaders are asked for, on a connection that is kept; it is away while they are looked up.
    asked: Option<Cluster>,
    looks_since: Option<Instant>,
    tells: Arc<dyn Fn(Answer) + Send + Sync>,
}

/// What was found.
pub(super) enum Found {
    /// The partitions of each topic.
    Places(Vec<Result<Vec<PartitionPlace>, ClientError>>),
    /// A connection to a leader, and the offsets asked for.
    Connection { leader: String, outcome: Result<Box<(Connection, Vec<i64>)>, ClientError> },
}

/// What was found, and who was asked, to be asked again.
pub(super) type Answer = (Found, Option<Cluster>);

impl Scout {
    /// What is found goes to `tells`.
    pub(super) fn new(cluster: Cluster, tells: impl Fn(Answer) + Send + Sync + 'static) -> Self {
        let (servers, asked) = (cluster.servers(), Some(cluster.detached()));
        Scout { cluster, servers, asked, looks_since: None, tells: Arc::new(tells) }
    }

    /// The bootstrap list.
    pub(super) fn servers(&self) -> &str {
        &self.servers
    }

    /// Since when leaders are being looked up, if they are.
    pub(super) fn looks_since(&self) -> Option<Instant> {
        self.looks_since
    }

    /// Begins to look these topics up, unless it is about that already.
    pub(super) fn look(&mut self, topics: Vec<Text>) -> io::Result<()> {
        let Some(mut cluster) = self.asked.take() else { return Ok(()) };
        self.looks_since = Some(Instant::now());
        let tells = self.tells.clone();
        begin("leaders", move || {
            let places = topics.iter().map(|topic| cluster.partitions(topic)).collect();
            tells((Found::Places(places), Some(cluster)));
        })
    }

    /// Begins to connect to a leader and to ask it for the offsets of these partitions at `start`.
    pub(super) fn connect(
        &self,
        leader: &str,
        of: Vec<(Text, i32)>,
        start: i64,
        read_committed: bool,
    ) -> io::Result<()> {
        let (cluster, tells, leader) = (self.cluster.detached(), self.tells.clone(), leader.to_owned());
        begin("connect", move || {
            let outcome = cluster.connect(&leader).and_then(|mut connection| {
                let offsets = match of.is_empty() {
                    true => Vec::new(),
                    false => connection.offsets_at(&of, start, read_committed)?,
                };
                Ok(Box::new((connection, offsets)))
            });
            tells((Found::Connection { leader, outcome }, None));
        })
    }

    /// Takes an answer, and who was asked for the next time.
    pub(super) fn back(&mut self, (found, asked): Answer) -> Found {
        if let Some(cluster) = asked {
            (self.asked, self.looks_since) = (Some(cluster), None);
        }
        found
    }
}

fn begin(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}
