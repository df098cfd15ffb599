//! Describes the data directories of brokers and the logs in them.

use crate::blocking::{BrokerAddress, Cluster, Listed};
use crate::error::ClientError;
use fullbore_wire::apis::describe_log_dirs::{
    DescribableLogDirTopic, DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse,
    DescribeLogDirsResult,
};
use fullbore_wire::{ErrorCode, Text};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long to wait for the answer of a broker. A broker that does not answer in time is left out of the result.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A data directory of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDir {
    /// The absolute path of the directory.
    pub path: Text,
    /// The error of the directory, or `NONE`.
    pub error: ErrorCode,
    /// The logs in the directory, by topic and partition.
    pub partitions: Vec<LogDirPartition>,
    /// The size of the directory's volume in bytes. `None` from brokers before 3.3.
    pub total_bytes: Option<i64>,
    /// The free bytes of the directory's volume. `None` from brokers before 3.3.
    pub usable_bytes: Option<i64>,
}

/// The log of a partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogDirPartition {
    /// The name of the topic.
    pub topic: Text,
    /// The number of the partition.
    pub partition: i32,
    /// The total size of the log's segments, in bytes.
    pub size: i64,
    /// How many records the replica is behind the leader.
    pub offset_lag: i64,
    /// True if the log will replace the partition's log in another directory once it has caught up.
    pub is_future: bool,
}

/// Returns the data directories of each of these brokers, with the logs of all topics.
pub fn log_dirs(cluster: &Cluster, brokers: &[BrokerAddress]) -> Listed<(BrokerAddress, Vec<LogDir>)> {
    cluster.at_each(brokers, |cluster, broker| Ok(vec![(broker.clone(), log_dirs_of(cluster, &broker.address())?)]))
}

fn log_dirs_of(cluster: &mut Cluster, address: &str) -> Result<Vec<LogDir>, ClientError> {
    let request = DescribeLogDirsRequest { topics: None, ..Default::default() };
    let answer = cluster.call_at(address, &request, i16::MAX)?;
    if answer.error_code.is_err() {
        return Err(ClientError::kafka(
            format!("cannot read the log directories of {address}"),
            answer.error_code,
            None,
        ));
    }
    let known = |bytes: i64| (bytes >= 0).then_some(bytes);
    let directory = |found: DescribeLogDirsResult| {
        let logs = found.topics.into_iter().flat_map(|topic| {
            let name = topic.name;
            topic.partitions.into_iter().map(move |log| LogDirPartition {
                topic: name.clone(),
                partition: log.partition_index,
                size: log.partition_size,
                offset_lag: log.offset_lag,
                is_future: log.is_future_key,
            })
        });
        let mut partitions: Vec<LogDirPartition> = logs.collect();
        partitions.sort();
        LogDir {
            path: found.log_dir,
            error: found.error_code,
            partitions,
            total_bytes: known(found.total_bytes),
            usable_bytes: known(found.usable_bytes),
        }
    };
    Ok(answer.results.into_iter().map(directory).collect())
}

/// Files in which a broker preserves records that it cut off from a log after a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// The number of files.
    pub files: i64,
    /// The total size of the files in bytes.
    pub bytes: i64,
}

/// The damage of a partition's log on one broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDamage {
    pub set_aside: Option<SetAside>,
    /// True if the log is neither read nor written until it is repaired.
    pub is_refused: bool,
}

/// Damaged logs by topic and partition, then by broker.
pub type DamagedLogs = HashMap<(Text, i32), BTreeMap<i32, LogDamage>>;

/// Returns the damage of the logs of these topics, each given with its number of partitions. Every broker gets a
/// request, since each only knows its own logs. Omits undamaged partitions, and brokers that do not answer within
/// [`ANSWER_WITHIN`]. Only Fullbore's broker reports damage.
///
/// # Errors
/// Returns the error of the last attempt to connect, if no broker answers.
pub fn log_damage(cluster: &mut Cluster, topics: &[(Text, i32)]) -> Result<DamagedLogs, ClientError> {
    let of_topic = |(topic, partitions): &(Text, i32)| DescribableLogDirTopic {
        topic: topic.clone(),
        partitions: (0..*partitions).collect(),
        ..Default::default()
    };
    let request = DescribeLogDirsRequest { topics: Some(topics.iter().map(of_topic).collect()), ..Default::default() };
    let request = Arc::new(request);
    let (sender, receiver) = channel();
    for broker in cluster.brokers()? {
        let (mut cluster, request, sender) = (cluster.detached(), request.clone(), sender.clone());
        let requesting = move || {
            // The send fails if the answer is too late, because the receiver is then gone.
            let _ = sender.send((broker.id, cluster.call_at(&broker.address(), &*request, i16::MAX)));
        };
        // A broker for which no thread can be started is left out, as if it had not answered.
        let _ = std::thread::Builder::new().name("log-dirs".to_owned()).spawn(requesting);
    }
    drop(sender);
    let until = Instant::now() + ANSWER_WITHIN;
    let mut found = DamagedLogs::new();
    while let Ok((broker, answer)) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
        for (of, damage) in answer.map(damaged).unwrap_or_default() {
            found.entry(of).or_default().insert(broker, damage);
        }
    }
    Ok(found)
}

/// Reads the response of one broker.
fn damaged(answer: DescribeLogDirsResponse) -> Vec<((Text, i32), LogDamage)> {
    let topics = answer.results.into_iter().flat_map(|directory| directory.topics);
    let partitions = topics.flat_map(|topic| {
        let name = topic.name;
        topic.partitions.into_iter().map(move |partition| (name.clone(), partition))
    });
    let damaged = partitions.filter(|(_, partition)| partition.set_aside_files > 0 || partition.is_refused);
    let damage = |(topic, partition): (Text, DescribeLogDirsPartition)| {
        let aside = SetAside { files: partition.set_aside_files, bytes: partition.set_aside_bytes };
        let set_aside = (aside.files > 0).then_some(aside);
        ((topic, partition.partition_index), LogDamage { set_aside, is_refused: partition.is_refused })
    };
    damaged.map(damage).collect()
}
