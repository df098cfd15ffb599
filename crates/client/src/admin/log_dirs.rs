//! What a broker tells of its logs' folders.

use crate::blocking::Cluster;
use crate::error::ClientError;
use fullbore_wire::Text;
use fullbore_wire::apis::describe_log_dirs::{DescribableLogDirTopic, DescribeLogDirsRequest};
use std::collections::HashMap;

/// Files beside a log with records that a power cut has cut off from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// How many.
    pub files: i64,
    /// Bytes of the files.
    pub bytes: i64,
}

/// What is wrong with the log of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDamage {
    pub set_aside: Option<SetAside>,
    /// Whether it is neither read nor written until somebody repairs it.
    pub is_refused: bool,
}

/// What is wrong with the logs of these topics, each with so many partitions, on the broker that is asked; partitions with which nothing
/// is are left out. Only Fullbore's broker tells it.
///
/// # Errors
/// As [`Cluster::ask`].
pub fn log_damage(
    cluster: &mut Cluster,
    topics: &[(Text, i32)],
) -> Result<HashMap<(Text, i32), LogDamage>, ClientError> {
    let of_topic = |(topic, partitions): &(Text, i32)| DescribableLogDirTopic {
        topic: topic.clone(),
        partitions: (0..*partitions).collect(),
        ..Default::default()
    };
    let request = DescribeLogDirsRequest { topics: Some(topics.iter().map(of_topic).collect()), ..Default::default() };
    let topics = cluster.ask(&request)?.results.into_iter().flat_map(|folder| folder.topics);
    let partitions = topics.flat_map(|topic| {
        let name = topic.name;
        topic.partitions.into_iter().map(move |partition| (name.clone(), partition))
    });
    let damaged = partitions.filter(|(_, partition)| partition.set_aside_files > 0 || partition.is_refused);
    Ok(damaged
        .map(|(topic, partition)| {
            let aside = SetAside { files: partition.set_aside_files, bytes: partition.set_aside_bytes };
            let set_aside = (aside.files > 0).then_some(aside);
            ((topic, partition.partition_index), LogDamage { set_aside, is_refused: partition.is_refused })
        })
        .collect())
}
