//! SyncGroup 0-5: returns a member's assignment. The response waits until the group's leader has sent the assignments.

use super::call::{Call, Fault, Reply};
use crate::groups::Missing;
use crate::node::CoordinatorServices;
use fullbore_rules::group::GroupAnswer;
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupResponse};
use fullbore_wire::{ErrorCode, Frame};

/// First version in which the client must name the protocol that was chosen (KIP-559).
const PROTOCOL_FROM: i16 = 5;

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: SyncGroupRequest = call.body(reply.version)?;
    let response = sync(services, &request, reply.version.number).await;
    reply.frame::<SyncGroupRequest>(&response)
}

async fn sync(services: &CoordinatorServices, request: &SyncGroupRequest, version: i16) -> SyncGroupResponse {
    let refused = |error_code| SyncGroupResponse { error_code, ..Default::default() };
    if version >= PROTOCOL_FROM && (request.protocol_type.is_none() || request.protocol_name.is_none()) {
        return refused(ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    }
    if request.group_id.is_empty() {
        return refused(ErrorCode::INVALID_GROUP_ID);
    }
    let incoming: usize = request.assignments.iter().map(|one| one.assignment.len()).sum();
    if !services.groups.has_room(incoming, true) {
        // The memory limit of groups is reached. Kafka returns this error if an assignment is too large for its log.
        return refused(ErrorCode::UNKNOWN_SERVER_ERROR);
    }
    let missing = Missing::Refuse(ErrorCode::UNKNOWN_MEMBER_ID);
    let answer = services.groups.request(&request.group_id, missing, |group, ticket, now, effects| {
        group.sync(request, ticket, now, effects);
    });
    match answer.await {
        GroupAnswer::Sync(response) => *response,
        GroupAnswer::Refused(code) => refused(code),
        _ => unreachable!("a SyncGroup is answered with an assignment"),
    }
}
