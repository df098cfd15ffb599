//! Checks, before a broker starts, whether its data directory and the database of its cluster belong together. Each
//! finding is printed as one line.
//!
//! The check changes nothing and takes no locks, so it may run while the broker runs. A finding counts as wrong if the
//! broker would refuse to start, or would lose records without a setting that accepts the loss.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::iter;
use std::path::Path;
use std::time::Duration;

use fullbore_rules::cluster::DirectoryMarks;
use fullbore_wire::Uuid;

use fullbore_config::{BrokerConfig, PlaneSettings};
use fullbore_control::{
    DirectoryInDatabase, Finding, OnlyComplete, SINGLE_BROKERS_FILE, identity_of, look_up_directory,
};
use fullbore_diskless::index::{Lacking, lacking, noted_changes};
use fullbore_log::boot::Boots;
use fullbore_log::files::{HIGH_WATERMARKS, RECOVERY_POINTS, partition_dir, read_offsets, topics_in};

/// Maximum number of printed findings of one kind. The last line then has the number of all others.
const LINES_MAX: usize = 20;

/// A fact that the check has found about a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryFinding {
    /// The directory does not exist. The first start will create it.
    Absent,
    Unreadable(String),
    /// The directory contains the database of a standalone broker.
    OfOneMachine,
    OfNode {
        stored: i32,
        configured: i32,
    },
    OfCluster {
        stored: Uuid,
        found: Uuid,
    },
    /// The directory has seen this version of the metadata, which the database does not have.
    WentBack(u64),
    /// The broker last used another directory, which has the id `registered`.
    Replaced {
        node_id: i32,
        registered: Uuid,
        /// True if a broker is running with that other directory.
        lives: bool,
    },
    /// The broker last used another directory, which has the only complete replica of some partitions.
    OnlyReplica(OnlyReplica),
    /// The directory is an older copy: the broker has used a newer state of it since.
    Older {
        node_id: i32,
        /// True if a broker is running with that newer state.
        lives: bool,
    },
    /// The directory has partitions of this topic, which the cluster does not know.
    Unknown {
        topic: String,
        id: Uuid,
        partitions: i32,
        /// True if the directory belongs to this cluster.
        is_of_cluster: bool,
    },
    /// The directory lacks this partition, although a checkpoint shows that it had records up to offset `end`.
    Missing {
        topic: String,
        partition: i32,
        end: i64,
        is_in_sync: bool,
    },
    More(usize, Box<DirectoryFinding>),
    /// The directory knows changes to diskless topics that the database does not have.
    DisklessWentBack(Lacking),
    /// The database itself has a problem.
    Database(Finding),
    /// The directory belongs to this broker and has no problems. `partitions` is the number of its partitions.
    Whole {
        partitions: usize,
    },
}

/// The partitions whose only complete replica is in another directory of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnlyReplica {
    node_id: i32,
    partitions: OnlyComplete,
    /// True if the setting `fullbore.lost.directory.accept` lets the broker start.
    is_accepted: bool,
}

impl fmt::Display for OnlyReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node_id, partitions: OnlyComplete { count, first }, is_accepted } = self;
        let outcome = match is_accepted {
            true => {
                "the start gives up the records that no other replica has, since fullbore.lost.directory.accept=true"
            }
            false => {
                "the broker does not start; mount or restore the directory that has their records, or accept the loss by \
                 fullbore.lost.directory.accept=true"
            }
        };
        write!(
            f,
            "it is a new directory, and node.id={node_id} had the only complete replica of {count} partitions in another one, for example \
             {first}: {outcome}"
        )
    }
}

impl DirectoryFinding {
    /// Returns true if the broker would refuse to start, or would lose records without a setting that accepts the loss.
    pub fn is_wrong(&self) -> bool {
        match self {
            Self::Absent | Self::Whole { .. } => false,
            Self::Replaced { lives, .. } => *lives,
            Self::OnlyReplica(only) => !only.is_accepted,
            Self::Unknown { is_of_cluster, .. } => !is_of_cluster,
            Self::Missing { is_in_sync, .. } => *is_in_sync,
            Self::More(_, like) => like.is_wrong(),
            _ => true,
        }
    }
}

impl fmt::Display for DirectoryFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("it does not exist; the first start creates it"),
            Self::Unreadable(reason) => write!(f, "it cannot be read: {reason}"),
            Self::OfOneMachine => {
                write!(f, "it belongs to a standalone broker ({SINGLE_BROKERS_FILE}), which cannot join a cluster")
            }
            Self::OfNode { stored, configured } => {
                write!(f, "it belongs to node.id={stored}, but node.id={configured} is set")
            }
            Self::OfCluster { stored, found } => {
                write!(f, "it belongs to cluster {stored}, but the database has cluster {found}")
            }
            Self::WentBack(seen) => write!(
                f,
                "it has seen version {seen} of the metadata, which the database lacks: the database was restored from an older backup, or \
                 is another one"
            ),
            Self::Replaced { node_id, registered, lives: true } => write!(
                f,
                "the broker with node.id={node_id} is running with another data directory ({registered}): a broker \
                 with this one cannot start"
            ),
            Self::Replaced { node_id, registered, lives: false } => write!(
                f,
                "the broker with node.id={node_id} last started with another data directory ({registered}): a start \
                 with this one makes it the broker's directory, and replicates the partitions from their leaders"
            ),
            Self::OnlyReplica(only) => only.fmt(f),
            Self::Older { node_id, lives: true } => write!(
                f,
                "it is an older copy: the broker with node.id={node_id} is running with a newer state of this \
                 directory, so a broker with the copy cannot start"
            ),
            Self::Older { node_id, lives: false } => write!(
                f,
                "it is an older copy: the broker with node.id={node_id} has since used a newer state of this \
                 directory. Start the broker with the newest state; with the copy, it replicates missing records \
                 from other replicas, and records without another replica are lost"
            ),
            Self::Unknown { topic, id, partitions, is_of_cluster: true } => write!(
                f,
                "it has up to {partitions} partitions of the topic {topic} ({id}), which the cluster no longer has: the next start \
                 deletes them"
            ),
            Self::Unknown { topic, id, partitions, is_of_cluster: false } => write!(
                f,
                "it has up to {partitions} partitions of the topic {topic} ({id}), which the cluster lacks, and no file `cluster` that \
                 names their owner: a start deletes them, so move them away if they are needed"
            ),
            Self::Missing { topic, partition, end, is_in_sync: true } => write!(
                f,
                "it lacks {topic}-{partition}, which had records up to offset {end} and counts as in sync: restore it, or start the \
                 broker with an empty data directory, so that it replicates everything from the leaders"
            ),
            Self::Missing { topic, partition, end, is_in_sync: false } => write!(
                f,
                "it lacks {topic}-{partition}, which had records up to offset {end}: the next start replicates it from its leader"
            ),
            Self::More(count, _) => write!(f, "and {count} more such lines"),
            Self::DisklessWentBack(Lacking { broker_id, known, found }) => write!(
                f,
                "it knows of {known} changes that broker {broker_id} made to diskless topics, and the database has {found}: the database was \
                 restored from an older backup, and the broker does not start"
            ),
            Self::Database(finding) => finding.fmt(f),
            Self::Whole { partitions } => write!(f, "it belongs to this broker, and has {partitions} partitions"),
        }
    }
}

/// Compares the data directory of this broker with the database. Blocks.
pub fn check_directory(config: &BrokerConfig, settings: &PlaneSettings) -> Vec<DirectoryFinding> {
    if !config.node.data_dir.exists() {
        let of_database = match look_up_directory(settings, config.node.id, None) {
            Ok(found) => other_directory(config, None, &found),
            Err(finding) => Some(DirectoryFinding::Database(finding)),
        };
        return iter::once(DirectoryFinding::Absent).chain(of_database).collect();
    }
    findings(config, settings).unwrap_or_else(|error| vec![DirectoryFinding::Unreadable(error.to_string())])
}

fn findings(config: &BrokerConfig, settings: &PlaneSettings) -> io::Result<Vec<DirectoryFinding>> {
    let (directory, node_id) = (&config.node.data_dir, config.node.id);
    if directory.join(SINGLE_BROKERS_FILE).exists() {
        return Ok(vec![DirectoryFinding::OfOneMachine]);
    }
    let known = identity_of(directory)?;
    if let Some(known) = known.filter(|known| known.node_id != node_id) {
        return Ok(vec![DirectoryFinding::OfNode { stored: known.node_id, configured: node_id }]);
    }
    let found = match look_up_directory(settings, node_id, known) {
        Ok(found) => found,
        Err(finding) => return Ok(vec![DirectoryFinding::Database(finding)]),
    };
    if let Some(known) = known.filter(|known| known.cluster_id != found.cluster_id) {
        return Ok(vec![DirectoryFinding::OfCluster { stored: known.cluster_id, found: found.cluster_id }]);
    }
    let mut findings = Vec::new();
    if !found.knows_seen {
        findings.extend(known.and_then(|known| known.seen).map(|seen| DirectoryFinding::WentBack(seen.number)));
    }
    // Reads the identity again. A running broker may meanwhile have written a newer heartbeat number, first to the
    // directory and then to the database. Compared with the database, the identity that was read first would then look
    // like an older copy.
    let now = identity_of(directory)?;
    let marks = now.map(|now| (now.directory, now.marks(Boots::look(directory).are_the_same())));
    findings.extend(other_directory(config, marks, &found));
    let is_of_cluster = known.is_some();
    listed(unknown(directory, &found, is_of_cluster)?, &mut findings);
    let missing: Vec<DirectoryFinding> = missing(directory, &found);
    listed(missing, &mut findings);
    let lacks = lacking(&noted_changes(directory, found.cluster_id), &found.diskless_changes);
    findings.extend(lacks.map(DirectoryFinding::DisklessWentBack));
    if is_of_cluster && !findings.iter().any(DirectoryFinding::is_wrong) {
        let is_there = |(topic, index): &&(String, i32)| partition_dir(directory, topic, *index).exists();
        findings.push(DirectoryFinding::Whole { partitions: found.replicas.keys().filter(is_there).count() });
    }
    Ok(findings)
}

/// Returns a finding if the broker last used another directory, or a newer state of this one. `own` is `None` if this
/// directory is new.
fn other_directory(
    config: &BrokerConfig,
    own: Option<(Uuid, DirectoryMarks)>,
    found: &DirectoryInDatabase,
) -> Option<DirectoryFinding> {
    let (node_id, registered) = (config.node.id, found.registered?);
    let session = Duration::from_millis(config.membership.session_timeout_ms);
    let lives = registered.heartbeat_age.is_some_and(|age| age < session);
    let Some((_, marks)) = own.filter(|(directory, _)| *directory == registered.directory) else {
        let replaced = DirectoryFinding::Replaced { node_id, registered: registered.directory, lives };
        let only = found.only_complete.clone().filter(|_| !lives);
        let is_accepted = config.membership.accepts_lost_directory;
        let only = only.map(|partitions| OnlyReplica { node_id, partitions, is_accepted });
        return Some(only.map_or(replaced, DirectoryFinding::OnlyReplica));
    };
    let is_older = marks.is_older_than(u128::from_be_bytes(registered.process.0), registered.reported);
    is_older.then_some(DirectoryFinding::Older { node_id, lives })
}

/// Returns a finding for each topic that has partitions in the directory but does not exist in the metadata.
fn unknown(directory: &Path, found: &DirectoryInDatabase, is_of_cluster: bool) -> io::Result<Vec<DirectoryFinding>> {
    let on_disk = topics_in(directory)?.into_iter().filter(|((_, id), _)| !found.topics.contains(id));
    let unknown =
        on_disk.map(|((topic, id), partitions)| DirectoryFinding::Unknown { topic, id, partitions, is_of_cluster });
    Ok(unknown.collect())
}

/// Returns the partitions whose directory is missing although this broker has a replica of them and the checkpoints
/// show that they had records. A partition without records has no directory.
fn missing(directory: &Path, found: &DirectoryInDatabase) -> Vec<DirectoryFinding> {
    let mut ends: BTreeMap<(String, i32), i64> = BTreeMap::new();
    for file in [RECOVERY_POINTS, HIGH_WATERMARKS] {
        for (key, offset) in read_offsets(&directory.join(file)).unwrap_or_default() {
            let end = ends.entry(key).or_default();
            *end = offset.max(*end);
        }
    }
    let lost =
        ends.into_iter().filter(|((topic, index), end)| *end > 0 && !partition_dir(directory, topic, *index).exists());
    let absent = lost.filter_map(|((topic, partition), end)| {
        let is_in_sync = *found.replicas.get(&(topic.clone(), partition))?;
        Some(DirectoryFinding::Missing { topic, partition, end, is_in_sync })
    });
    absent.collect()
}

/// Adds the first `LINES_MAX` of `found` to `findings`. If there are more, adds one finding with the number of the
/// others.
fn listed(mut found: Vec<DirectoryFinding>, findings: &mut Vec<DirectoryFinding>) {
    // Sorts the findings that count as wrong to the front, so that they are printed rather than only counted.
    found.sort_by_key(|finding| !finding.is_wrong());
    let more = found.split_off(found.len().min(LINES_MAX));
    findings.append(&mut found);
    let left_out = more.len();
    findings.extend(more.into_iter().next().map(|like| DirectoryFinding::More(left_out, Box::new(like))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_findings_of_a_kind_are_counted_with_wrong_ones_first() {
        let missing =
            |partition, is_in_sync| DirectoryFinding::Missing { topic: "t".to_owned(), partition, end: 7, is_in_sync };
        let mut findings = Vec::new();
        listed((0..30).map(|index| missing(index, index == 29)).collect(), &mut findings);
        assert_eq!(findings.len(), LINES_MAX + 1);
        assert!(findings[0].is_wrong() && findings[1..].iter().all(|finding| !finding.is_wrong()));
        assert_eq!(findings[LINES_MAX].to_string(), "and 10 more such lines");
    }
}
