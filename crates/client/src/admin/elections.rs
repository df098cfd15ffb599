//! Elects leaders on demand (KIP-183, KIP-460).

use crate::blocking::Cluster;
use crate::error::ClientError;
use fullbore_wire::apis::elect_leaders::{ElectLeadersRequest, TopicPartitions};
use fullbore_wire::{ErrorCode, Text};

/// The kind of an election (Kafka's `ElectionType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Election {
    /// Elects the first replica if it is in sync.
    Preferred,
    /// Elects any live replica if no in-sync replica is alive. Records may be lost.
    Unclean,
}

/// The outcome of an election in one partition.
#[derive(Debug)]
pub enum Elected {
    /// The partition has a new leader.
    Changed,
    /// No election was needed, because the replica that would be elected is the leader already.
    NotNeeded,
    /// The election was refused, so the leader is unchanged.
    Refused(ClientError),
}

/// A partition and the outcome of its election.
pub type PartitionElection = ((Text, i32), Elected);

/// Elects the leaders of these partitions, or of all partitions if `of` is `None`. With `None`, the result omits
/// partitions that already have the right leader.
///
/// # Errors
/// Returns [`ClientError`] if the broker refuses the request, or the connection fails.
pub fn elect_leaders(
    cluster: &mut Cluster,
    election: Election,
    of: Option<&[(Text, i32)]>,
) -> Result<Vec<PartitionElection>, ClientError> {
    let request = ElectLeadersRequest {
        election_type: match election {
            Election::Preferred => 0,
            Election::Unclean => 1,
        },
        topic_partitions: of.map(by_topic),
        timeout_ms: cluster.change_timeout_ms(),
        ..Default::default()
    };
    let response = cluster.call(&request)?;
    if response.error_code.is_err() {
        return Err(ClientError::kafka("cannot elect leaders", response.error_code, None));
    }
    let mut outcomes = Vec::new();
    for topic in response.replica_election_results {
        for found in topic.partition_result {
            let outcome = match found.error_code {
                ErrorCode::ELECTION_NOT_NEEDED => Elected::NotNeeded,
                code if code.is_err() => {
                    let what =
                        format!("cannot elect a leader of partition {} of topic '{}'", found.partition_id, topic.topic);
                    Elected::Refused(ClientError::kafka(what, code, found.error_message.as_deref()))
                }
                _ => Elected::Changed,
            };
            outcomes.push(((topic.topic.clone(), found.partition_id), outcome));
        }
    }
    outcomes.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(outcomes)
}

fn by_topic(of: &[(Text, i32)]) -> Vec<TopicPartitions> {
    let mut sorted: Vec<&(Text, i32)> = of.iter().collect();
    sorted.sort();
    let mut topics: Vec<TopicPartitions> = Vec::new();
    for (topic, partition) in sorted {
        if topics.last().is_none_or(|last| last.topic != *topic) {
            topics.push(TopicPartitions { topic: topic.clone(), ..Default::default() });
        }
        topics.last_mut().expect("just pushed").partitions.push(*partition);
    }
    topics
}
