//! CreatePartitions 0-3. When the client gets the response, the new partitions are on disk and accept records.

use super::call::{Call, Fault, Reply, code_and_message};
use crate::node::MetadataServices;
use fullbore_control::{CreatePartitions, GrowTopic, Refusal};
use fullbore_wire::apis::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult,
};
use fullbore_wire::{Frame, Text};

pub async fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: CreatePartitionsRequest = call.body(reply.version)?;
    let topics = request.topics.iter().map(wanted).collect();
    let requested = CreatePartitions { topics, validate_only: request.validate_only };
    let outcomes = call.control(&metadata.control).create_partitions(requested).await;
    let answered = request.topics.into_iter().zip(outcomes);
    let results = answered.map(|(topic, outcome)| result(topic.name, outcome.map(drop))).collect();
    reply.frame::<CreatePartitionsRequest>(&CreatePartitionsResponse { results, ..Default::default() })
}

fn wanted(topic: &CreatePartitionsTopic) -> GrowTopic {
    let assignments = topic.assignments.as_ref();
    GrowTopic {
        name: topic.name.to_string(),
        count: topic.count,
        assignments: assignments.map(|of_new| of_new.iter().map(|partition| partition.broker_ids.clone()).collect()),
    }
}

fn result(name: Text, outcome: Result<(), Refusal>) -> CreatePartitionsTopicResult {
    let (error_code, error_message) = code_and_message(outcome);
    CreatePartitionsTopicResult { name, error_code, error_message, ..Default::default() }
}
