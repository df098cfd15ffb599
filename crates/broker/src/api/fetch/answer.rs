//! The response of a fetch: partitions grouped by topic again, in the order they were looked at.

use crate::api::call::{Fault, Reply};
use crate::api::{nodes, topics};
use crate::fetch_sessions::Fetched;
use crate::node::Node;
use fullbore_wire::apis::fetch::{FetchRequest, FetchResponse, FetchableTopicResponse};
use fullbore_wire::{ErrorCode, Frame};
use std::collections::BTreeSet;

/// The response to a fetch that was carried out.
pub fn of(broker: &Node, session_id: i32, shown: Vec<Fetched>, reply: Reply) -> Result<Frame, Fault> {
    let mut responses: Vec<FetchableTopicResponse> = Vec::new();
    let mut leaders = BTreeSet::new();
    for Fetched { key, mut data, .. } in shown {
        if matches!(data.error_code, ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::FENCED_LEADER_EPOCH) {
            let image = broker.control.image();
            let topic = topics::find(&image, &key.topic, key.topic_id).ok();
            if let Some(leader) =
                topic.and_then(|of| nodes::leader_elsewhere(broker, &image, reply.listener, (of, key.index)))
            {
                leaders.insert(leader.leader_id);
                data.current_leader = leader;
            }
        }
        match responses.last_mut() {
            Some(last) if last.topic == key.topic && last.topic_id == key.topic_id => last.partitions.push(data),
            _ => responses.push(FetchableTopicResponse {
                topic: key.topic,
                topic_id: key.topic_id,
                partitions: vec![data],
                ..Default::default()
            }),
        }
    }
    let node_endpoints = match leaders.is_empty() {
        true => Vec::new(),
        false => nodes::endpoints(broker, &broker.control.image(), reply.listener, &leaders),
    };
    reply.frame::<FetchRequest>(&FetchResponse { session_id, responses, node_endpoints, ..Default::default() })
}

/// The response to a fetch that could not be.
pub fn error(error_code: ErrorCode, session_id: i32, reply: Reply) -> Result<Frame, Fault> {
    reply.frame::<FetchRequest>(&FetchResponse { error_code, session_id, ..Default::default() })
}
