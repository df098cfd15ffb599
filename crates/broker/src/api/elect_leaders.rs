//! ElectLeaders 0-2. With one broker every partition has its preferred leader, and none needs an unclean election.

use super::call::{Call, Fault, Reply, once};
use crate::control::Image;
use fullbore_wire::apis::elect_leaders::{
    ElectLeadersRequest, ElectLeadersResponse, PartitionResult, ReplicaElectionResult, TopicPartitions,
};
use fullbore_wire::{ErrorCode, Frame, Text};

/// Kafka's `ElectionType`.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: ElectLeadersRequest = call.body(reply.version)?;
    let image = call.broker.control.image();
    let mut response = ElectLeadersResponse::default();
    if !matches!(request.election_type, PREFERRED | UNCLEAN) {
        // Version 0 has no error of the whole, and knows no type either.
        response.error_code = ErrorCode::INVALID_REQUEST;
    } else if let Some(asked) = request.topic_partitions {
        let asked = once(asked, |topic| topic.topic.clone());
        response.replica_election_results = asked.into_iter().map(|topic| elect(&image, topic)).collect();
    }
    // Asked for every partition, Kafka tells only those that an election was held for: none.
    reply.frame::<ElectLeadersRequest>(&response)
}

fn elect(image: &Image, asked: TopicPartitions) -> ReplicaElectionResult {
    let topic = image.topic(&asked.topic);
    let partition = |partition_id| {
        let (error_code, message) = match topic {
            None => (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, format!("No such topic as {}", asked.topic)),
            Some(topic) if topic.partition(partition_id).is_some() => {
                (ErrorCode::ELECTION_NOT_NEEDED, "The partition has its preferred leader.".to_owned())
            }
            Some(_) => {
                let message = format!("No such partition as {}-{partition_id}", asked.topic);
                (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, message)
            }
        };
        PartitionResult { partition_id, error_code, error_message: Some(Text::from(message)), ..Default::default() }
    };
    let partition_result = once(asked.partitions, |index| *index).into_iter().map(partition).collect();
    ReplicaElectionResult { topic: asked.topic.clone(), partition_result, ..Default::default() }
}
