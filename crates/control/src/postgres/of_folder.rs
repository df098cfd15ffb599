//! State of one broker in the database. `fullbore admin check` compares this state with the broker's data directory.
//!
//! Not here: the comparison. The database is not changed. Invariant: everything is read in one snapshot.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Duration;

use fullbore_wire::Uuid;
use tokio::sync::watch;

use super::super::identity::ClusterFolder;
use super::READ_ONLY;
use super::check::Finding;
use super::read::{Since, since};
use fullbore_config::PlaneSettings;
use fullbore_db::postgres::PostgresSession;
use fullbore_db::postgres::Server;
use fullbore_db::postgres::rows::{flag, id, next, number, optional_number, text};

/// State of a broker's data directory in the database of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderInDatabase {
    pub cluster_id: Uuid,
    /// True if the database has the newest version that the directory names.
    pub knows_seen: bool,
    /// Process that is registered as the broker; `None` if the broker is not registered.
    pub registered: Option<RegisteredFolder>,
    /// Topics of the cluster.
    pub topics: HashSet<Uuid>,
    /// Partitions with a replica on the broker, by topic name and number; true if that replica is in the ISR.
    pub replicas: BTreeMap<(String, i32), bool>,
    /// Number of transactions that changed diskless topics, by the broker that committed them.
    pub diskless_changes: BTreeMap<i32, i64>,
}

/// Process that registered last as the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisteredFolder {
    /// Id of the process's data directory.
    pub folder: Uuid,
    /// Id that the process drew at its start.
    pub process: Uuid,
    /// Time since the last heartbeat of the process; `None` if there is no heartbeat.
    pub beaten: Option<Duration>,
    /// Newest number from the directory that a heartbeat of the process sent; 0 if there is none.
    pub told: u64,
}

/// Reads the file `cluster` of this directory. Returns None if the directory has no such file.
///
/// # Errors
/// Errors of the system; InvalidData if the file is damaged, or has the format of a newer version of Fullbore.
pub fn identity_of(folder: &Path) -> std::io::Result<Option<ClusterFolder>> {
    ClusterFolder::read(folder)
}

/// Reads the state of the broker `node_id`; `known` is the content of its directory's file `cluster`. Blocks for
/// up to about two time limits of the settings.
///
/// # Errors
/// [`Finding`] with the reason, if the database cannot be read.
pub fn look_up_folder(
    settings: &PlaneSettings,
    node_id: i32,
    known: Option<ClusterFolder>,
) -> Result<FolderInDatabase, Finding> {
    let server = Server::new(settings, "fullbore admin check").map_err(|bad| Finding::Setting(bad.0))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Finding::Unreachable(error.to_string()))?;
    runtime.block_on(look_up(&server, node_id, known))
}

async fn look_up(server: &Server, node_id: i32, known: Option<ClusterFolder>) -> Result<FolderInDatabase, Finding> {
    let session = PostgresSession::open(server, "", watch::channel(0).0).await?;
    let seen = known.and_then(|known| known.seen);
    let asked = questions(node_id, seen.map_or(0, |seen| seen.number));
    let mut answers = session.ask(&asked, server.call_max).await?.into_iter();
    let rows = next(&mut answers)?;
    let cluster_id = id(rows.first().ok_or_else(|| Finding::Damaged("it has no cluster".to_owned()))?, 0)?;
    let versions = next(&mut answers)?;
    let knows_seen = match seen {
        Some(seen) => !matches!(since(seen, &versions)?, Since::WentBack),
        None => true,
    };
    let registered = match next(&mut answers)?.first() {
        Some(row) => {
            let age_ms: Option<i64> = optional_number(row, 2)?;
            let beaten = age_ms.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs()));
            let told = number::<i64>(row, 3)?.cast_unsigned();
            Some(RegisteredFolder { folder: id(row, 0)?, process: id(row, 1)?, beaten, told })
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
    let changes = next(&mut answers)?;
    let diskless_changes =
        changes.iter().map(|row| Ok((number(row, 0)?, number(row, 1)?))).collect::<Result<_, super::StoreError>>()?;
    Ok(FolderInDatabase { cluster_id, knows_seen, registered, topics, replicas, diskless_changes })
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
         SELECT broker_id, counter FROM fullbore.diskless_brokers;
         COMMIT"
    )
}
