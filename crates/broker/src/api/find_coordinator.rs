//! FindCoordinator 0-6. On one broker the coordinator of every group is this broker.

use super::{Call, Fault, Reply};
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use fullbore_wire::{ErrorCode, Frame, Text};

/// Key types of the request: group, transaction, share.
const GROUP: i8 = 0;

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: FindCoordinatorRequest = call.body(reply.version)?;
    let of = |key: &Text| coordinator(call, request.key_type, key);
    let response = if reply.version.number >= 4 {
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

fn coordinator(call: &Call<'_>, key_type: i8, key: &Text) -> Coordinator {
    if key_type != GROUP {
        return Coordinator {
            key: key.clone(),
            node_id: -1,
            port: -1,
            error_code: ErrorCode::INVALID_REQUEST,
            error_message: Some(Text::from_static("This broker coordinates groups only.")),
            ..Default::default()
        };
    }
    let (host, port) = call.broker.endpoint(call.listener);
    Coordinator { key: key.clone(), node_id: call.broker.config.node_id, host, port, ..Default::default() }
}
