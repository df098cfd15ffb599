//! Deletes records from the start of partitions (KIP-107), by requests to the partitions' leaders.

use crate::blocking::Cluster;
use crate::error::ClientError;
use fullbore_wire::apis::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeMap;

/// In [`delete_records`] this offset stands for the high watermark.
pub const HIGH_WATERMARK: i64 = -1;

/// A partition, and the offset before which its records are deleted.
pub type RecordsBefore = ((Text, i32), i64);

/// A partition with its new start, or with its error.
pub type RecordsDeleted = ((Text, i32), Result<i64, ClientError>);

/// Deletes the records before each of these offsets. Returns the new start of each partition, or its error.
///
/// # Errors
/// Returns the error of a topic that does not exist, or the error of the connection if no broker answers.
pub fn delete_records(cluster: &mut Cluster, before: &[RecordsBefore]) -> Result<Vec<RecordsDeleted>, ClientError> {
    let mut names: Vec<Text> = before.iter().map(|((topic, _), _)| topic.clone()).collect();
    names.sort();
    names.dedup();
    let places = cluster.partitions_of(&names)?;
    if let Some(missing) = names.iter().find(|name| !places.contains_key(*name)) {
        return Err(ClientError::NoTopic(missing.to_string()));
    }
    let mut by_leader: BTreeMap<String, Vec<&RecordsBefore>> = BTreeMap::new();
    let mut outcomes = Vec::new();
    for of in before {
        let (topic, partition) = &of.0;
        match places[topic].iter().find(|place| place.partition == *partition) {
            Some(place) => match &place.leader {
                Some(leader) => by_leader.entry(leader.clone()).or_default().push(of),
                None => {
                    let error = ClientError::NoLeader { topic: topic.to_string(), partition: *partition };
                    outcomes.push((of.0.clone(), Err(error)));
                }
            },
            None => outcomes.push((of.0.clone(), Err(refusal(&of.0, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)))),
        }
    }
    for (leader, mut of) in by_leader {
        of.sort();
        let request =
            DeleteRecordsRequest { topics: topics(&of), timeout_ms: cluster.change_timeout_ms(), ..Default::default() };
        for topic in cluster.call_at(&leader, &request, i16::MAX)?.topics {
            for found in topic.partitions {
                let of = (topic.name.clone(), found.partition_index);
                let outcome = match found.error_code.is_err() {
                    true => Err(refusal(&of, found.error_code)),
                    false => Ok(found.low_watermark),
                };
                outcomes.push((of, outcome));
            }
        }
    }
    outcomes.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(outcomes)
}

fn topics(of: &[&RecordsBefore]) -> Vec<DeleteRecordsTopic> {
    let mut topics: Vec<DeleteRecordsTopic> = Vec::new();
    for ((topic, partition_index), offset) in of {
        if topics.last().is_none_or(|last| last.name != *topic) {
            topics.push(DeleteRecordsTopic { name: topic.clone(), ..Default::default() });
        }
        let wanted =
            DeleteRecordsPartition { partition_index: *partition_index, offset: *offset, ..Default::default() };
        topics.last_mut().expect("just pushed").partitions.push(wanted);
    }
    topics
}

fn refusal((topic, partition): &(Text, i32), code: ErrorCode) -> ClientError {
    ClientError::kafka(format!("cannot delete records of partition {partition} of topic '{topic}'"), code, None)
}
