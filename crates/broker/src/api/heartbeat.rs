//! Heartbeat 0-4: keeps a member of a classic group alive.

use super::call::{Call, Fault, Reply};
use crate::groups::Missing;
use crate::node::CoordinatorServices;
use fullbore_rules::group::GroupAnswer;
use fullbore_wire::apis::heartbeat::{HeartbeatRequest, HeartbeatResponse};
use fullbore_wire::{ErrorCode, Frame};

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: HeartbeatRequest = call.body(reply.version)?;
    let error_code = heartbeat(services, &request).await;
    reply.frame::<HeartbeatRequest>(&HeartbeatResponse { error_code, ..Default::default() })
}

async fn heartbeat(services: &CoordinatorServices, request: &HeartbeatRequest) -> ErrorCode {
    if request.group_id.is_empty() {
        return ErrorCode::INVALID_GROUP_ID;
    }
    let missing = Missing::Refuse(ErrorCode::UNKNOWN_MEMBER_ID);
    let answer = services.groups.request(&request.group_id, missing, |group, ticket, now, effects| {
        group.heartbeat(request, ticket, now, effects);
    });
    match answer.await {
        GroupAnswer::Heartbeat(code) | GroupAnswer::Refused(code) => code,
        _ => unreachable!("a Heartbeat is answered with a code"),
    }
}
