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

/// What was set aside of these topics, each with so many partitions, on the broker that is asked; partitions without any are
/// left out. Only Fullbore's broker tells it.
///
/// # Errors
/// As [`Cluster::ask`].
pub fn set_aside(cluster: &mut Cluster, topics: &[(Text, i32)]) -> Result<HashMap<(Text, i32), SetAside>, ClientError> {
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
    let told = partitions.filter(|(_, partition)| partition.set_aside_files > 0);
    Ok(told
        .map(|(topic, partition)| {
            let aside = SetAside { files: partition.set_aside_files, bytes: partition.set_aside_bytes };
            ((topic, partition.partition_index), aside)
        })
        .collect())
}
