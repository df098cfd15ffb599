//! FindCoordinator 0-6. The coordinator of a group or of a transactional id is who leads its partition of the internal topic that they are kept in,
//! which is made if there is none. In a cluster transactions are not served yet.

use super::call::{Call, Fault, Reply};
use super::nodes;
use crate::groups::Missing;
use fullbore_control::{CONSUMER_OFFSETS, Image, TRANSACTION_STATE};
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use fullbore_wire::coordinator::partition_for;
use fullbore_wire::{ErrorCode, Frame, Text};

/// Key types of the request; there are also partitions of share groups.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// From this version on a request has several keys, and each its own error.
const SEVERAL_KEYS_FROM: i16 = 4;

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: FindCoordinatorRequest = call.body(reply.version)?;
    let version = reply.version.number;
    let prepared = match request.key_type {
        GROUP => call.broker.groups.prepare(Missing::Create, []).await,
        TRANSACTION if serves_transactions(call) => call.broker.transactions.prepare(true, []).await,
        _ => Ok(()),
    };
    let of = |key: &Text| match prepared {
        Ok(()) => coordinator(call, version, request.key_type, key),
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

fn coordinator(call: &Call<'_>, version: i16, key_type: i8, key: &Text) -> Coordinator {
    let (error_code, message) = match key_type {
        GROUP => {
            let image = call.broker.control.image();
            return match leader_of(call, &image, CONSUMER_OFFSETS, key) {
                Some(found) => found,
                None => nobody(key, ErrorCode::COORDINATOR_NOT_AVAILABLE, "Nobody leads the group's partition."),
            };
        }
        TRANSACTION if serves_transactions(call) => {
            let image = call.broker.control.image();
            return match leader_of(call, &image, TRANSACTION_STATE, key) {
                Some(found) => found,
                None => nobody(key, ErrorCode::COORDINATOR_NOT_AVAILABLE, "Nobody leads the id's partition."),
            };
        }
        TRANSACTION => (no_transactions(version), "A broker of a cluster does not serve transactions yet."),
        _ => (ErrorCode::INVALID_REQUEST, "This broker coordinates groups and transactions only."),
    };
    nobody(key, error_code, message)
}

/// Returns true if transactions are served: markers are not sent to other brokers yet.
fn serves_transactions(call: &Call<'_>) -> bool {
    call.broker.control.beats().is_none()
}

/// Returns the leader of the key's partition of an internal topic.
fn leader_of(call: &Call<'_>, image: &Image, topic: &str, key: &Text) -> Option<Coordinator> {
    let topic = image.topic(topic)?;
    let leader = topic.partition(partition_for(key, topic.partition_count()))?.leader?;
    let (node_id, _, at) = nodes::reached(call.broker, image, call.listener).find(|(id, ..)| *id == leader)?;
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

/// The error at which a client that wants transactions ends at once and, where it can, shows the message beside it.
fn no_transactions(version: i16) -> ErrorCode {
    if version < SEVERAL_KEYS_FROM {
        // librdkafka, which asks in these versions, shows the message only of a refused authorization. With any other
        // error it asks again, until the application's timeout.
        ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    } else {
        // Java's client, which asks in these, shows the message of any error but that one.
        ErrorCode::UNSUPPORTED_VERSION
    }
}
