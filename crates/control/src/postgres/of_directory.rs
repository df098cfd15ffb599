//! Reads the rows of the database about one broker. `fullbore admin check` compares them with the broker's data
//! directory.
//!
//! This module does not make the comparison, and does not change the database. Invariant: everything is read in one
//! snapshot.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Duration;

use fullbore_wire::Uuid;
use tokio::sync::watch;

use super::super::decide::{OnlyComplete, OnlyCompletePartitions};
use super::super::identity::ClusterDirectory;
use super::READ_ONLY;
use super::check::Finding;
use super::offline::IS_CLASSIC;
use super::read::{Since, ids, since};
use fullbore_config::PlaneSettings;
use fullbore_db::postgres::PostgresSession;
use fullbore_db::postgres::Server;
use fullbore_db::postgres::rows::{flag, id, next, number, optional_number, text};

/// The state of a broker and its data directory in the cluster's database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryInDatabase {
    pub cluster_id: Uuid,
    /// False if the newest metadata version in the directory's file was never committed to the database.
    pub knows_seen: bool,
    /// The process that is registered as the broker, or `None` if the broker is not registered.
    pub registered: Option<RegisteredDirectory>,
    /// The ids of all topics in the cluster.
    pub topics: HashSet<Uuid>,
    /// The partitions with a replica on the broker, by topic name and number. The value is true if the replica is in
    /// the ISR.
    pub replicas: BTreeMap<(String, i32), bool>,
    /// The partitions whose only complete replica is on the broker, or `None` if there are none.
    pub only_complete: Option<OnlyComplete>,
    /// The number of transactions on diskless topics that each broker has committed.
    pub diskless_changes: BTreeMap<i32, i64>,
}

/// The process that is registered as the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisteredDirectory {
    /// The id of the process's data directory.
    pub directory: Uuid,
    /// The random id of the process.
    pub process: Uuid,
    /// The time since the last heartbeat of the process, or `None` if it has sent none.
    pub heartbeat_age: Option<Duration>,
    /// The newest number of the directory that the process has sent with a heartbeat, or 0 if it has sent none.
    pub reported: u64,
}

/// Reads the file `cluster` in this directory. Returns `None` if there is no such file.
///
/// # Errors
/// Fails with InvalidData if the file is damaged or was written by a newer version of Fullbore. Returns other errors of
/// the operating system unchanged.
pub fn identity_of(directory: &Path) -> std::io::Result<Option<ClusterDirectory>> {
    ClusterDirectory::read(directory)
}

/// Reads the rows of the database about the broker `node_id`. `known` is the content of the file `cluster` in its
/// directory. Blocks for at most about twice the configured time limit.
///
/// # Errors
/// Returns a finding with the reason if the database cannot be read.
pub fn look_up_directory(
    settings: &PlaneSettings,
    node_id: i32,
    known: Option<ClusterDirectory>,
) -> Result<DirectoryInDatabase, Finding> {
    let server = Server::new(settings, "fullbore admin check").map_err(|bad| Finding::Setting(bad.0))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Finding::Unreachable(error.to_string()))?;
    runtime.block_on(look_up(&server, node_id, known))
}

async fn look_up(
    server: &Server,
    node_id: i32,
    known: Option<ClusterDirectory>,
) -> Result<DirectoryInDatabase, Finding> {
    let session = PostgresSession::open(server, "", watch::channel(0).0).await?;
    let seen = known.and_then(|known| known.seen);
    let requested = questions(node_id, seen.map_or(0, |seen| seen.number));
    let mut answers = session.query(&requested, server.call_max).await?.into_iter();
    let rows = next(&mut answers)?;
    let cluster_id =
        id(rows.first().ok_or_else(|| Finding::Damaged("the row of the cluster is missing".to_owned()))?, 0)?;
    let versions = next(&mut answers)?;
    let knows_seen = match seen {
        Some(seen) => !matches!(since(seen, &versions)?, Since::WentBack),
        None => true,
    };
    let registered = match next(&mut answers)?.first() {
        Some(row) => {
            let age_ms: Option<i64> = optional_number(row, 2)?;
            let heartbeat_age = age_ms.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs()));
            let reported = number::<i64>(row, 3)?.cast_unsigned();
            Some(RegisteredDirectory { directory: id(row, 0)?, process: id(row, 1)?, heartbeat_age, reported })
        }
        None => None,
    };
    let topics = next(&mut answers)?.iter().map(|row| id(row, 0)).collect::<Result<_, _>>()?;
    let mut replicas = BTreeMap::new();
    for row in next(&mut answers)? {
        let (topic, first, count) = (text(&row, 0)?, number::<i32>(&row, 1)?, number::<i32>(&row, 2)?);
        let is_in_sync = flag(&row, 3)?;
        replicas.extend((first..first.saturating_add(count)).map(|index| ((topic.to_owned(), index), is_in_sync)));
    }
    let mut only_complete = OnlyCompletePartitions::of(node_id);
    for row in next(&mut answers)? {
        let (isr, elr) = (ids(&row, 3)?, ids(&row, 4)?);
        only_complete.add(text(&row, 0)?, number(&row, 1)?, number(&row, 2)?, &isr, &elr);
    }
    let changes = next(&mut answers)?;
    let diskless_changes =
        changes.iter().map(|row| Ok((number(row, 0)?, number(row, 1)?))).collect::<Result<_, super::StoreError>>()?;
    let only_complete = only_complete.found();
    Ok(DirectoryInDatabase { cluster_id, knows_seen, registered, topics, replicas, only_complete, diskless_changes })
}

fn questions(node_id: i32, seen: u64) -> String {
    format!(
        "{READ_ONLY};
         SELECT cluster_id FROM fullbore.cluster;
         SELECT version, mark, changes FROM fullbore.versions WHERE version >= {seen} ORDER BY version LIMIT 1;
         SELECT folder, process, ceil(extract(epoch FROM clock_timestamp() - at) * 1000)::bigint, coalesce(noted, 0)
           FROM fullbore.brokers LEFT JOIN fullbore.beats USING (broker_id, process) WHERE broker_id = ({node_id});
         SELECT id FROM fullbore.topics;
         SELECT name, first, count, ({node_id}) = ANY(isr) FROM fullbore.partitions JOIN fullbore.topics ON id = topic_id
           WHERE ({node_id}) = ANY(replicas);
         SELECT name, first, count, isr, elr FROM fullbore.partitions JOIN fullbore.topics ON id = topic_id
           WHERE ({node_id}) = ANY(isr || elr) AND {IS_CLASSIC} ORDER BY name, first;
         SELECT broker_id, counter FROM fullbore.diskless_brokers;
         COMMIT"
    )
}
