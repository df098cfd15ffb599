//! FindCoordinator 0-6: returns the coordinator of a group or of a transactional id. The coordinator is the leader of
//! the key's partition in an internal topic, which is created if it is missing.

use super::call::{Call, Fault, Reply};
use super::nodes;
use crate::groups::Missing;
use crate::node::{CoordinatorServices, MetadataServices};
use fullbore_control::{CONSUMER_OFFSETS, Image, TRANSACTION_STATE};
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use fullbore_wire::coordinator::partition_for;
use fullbore_wire::{ErrorCode, Frame, Text};

/// Key types of the request. Kafka has a third one, for share groups, which is not supported.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// First version whose request has several keys. Each key then has its own error.
const SEVERAL_KEYS_FROM: i16 = 4;

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: FindCoordinatorRequest = call.body(reply.version)?;
    let version = reply.version.number;
    let prepared = match request.key_type {
        GROUP => services.groups.prepare(Missing::Create, []).await,
        TRANSACTION => services.transactions.prepare(true, []).await,
        _ => Ok(()),
    };
    let of = |key: &Text| match prepared {
        Ok(()) => coordinator(services, call.listener, request.key_type, key),
        Err(error_code) => nobody(key, error_code, error_code.message()),
    };
    let response = if version >= SEVERAL_KEYS_FROM {
        FindCoordinatorResponse {
            coordinators: request.coordinator_keys.iter().map(of).collect(),
            ..Default::default()
        }
    } else {
        let one = of(&request.key);
        FindCoordinatorResponse {
            error_code: one.error_code,
            error_message: one.error_message,
            node_id: one.node_id,
            host: one.host,
            port: one.port,
            ..Default::default()
        }
    };
    reply.frame::<FindCoordinatorRequest>(&response)
}

fn coordinator(services: &CoordinatorServices, listener: usize, key_type: i8, key: &Text) -> Coordinator {
    let image = services.metadata.control.image();
    let (topic, leaderless) = match key_type {
        GROUP => (CONSUMER_OFFSETS, "The group's partition has no leader."),
        TRANSACTION => (TRANSACTION_STATE, "The transactional id's partition has no leader."),
        _ => {
            let message = "This broker coordinates groups and transactions only.";
            return nobody(key, ErrorCode::INVALID_REQUEST, message);
        }
    };
    leader_of(&services.metadata, listener, &image, topic, key)
        .unwrap_or_else(|| nobody(key, ErrorCode::COORDINATOR_NOT_AVAILABLE, leaderless))
}

/// Returns the broker that leads the key's partition of an internal topic. `None` if the topic does not exist or the
/// partition has no leader.
fn leader_of(
    metadata: &MetadataServices,
    listener: usize,
    image: &Image,
    topic: &str,
    key: &Text,
) -> Option<Coordinator> {
    let topic = image.topic(topic)?;
    let leader = topic.partition(partition_for(key, topic.partition_count()))?.leader?;
    let (node_id, _, at) = nodes::reached(metadata, image, listener).find(|(id, ..)| *id == leader)?;
    Some(Coordinator {
        key: key.clone(),
        node_id,
        host: at.host.clone(),
        port: i32::from(at.port),
        ..Default::default()
    })
}

fn nobody(key: &Text, error_code: ErrorCode, message: &'static str) -> Coordinator {
    Coordinator {
        key: key.clone(),
        node_id: -1,
        port: -1,
        error_code,
        error_message: Some(Text::from_static(message)),
        ..Default::default()
    }
}
