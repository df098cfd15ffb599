//! LeaveGroup 0-5: removes members from a group. Before version 3 a request has one member, and the response has that
//! member's error.

use super::call::{Call, Fault, Reply};
use crate::groups::Missing;
use crate::node::CoordinatorServices;
use fullbore_rules::group::GroupAnswer;
use fullbore_wire::apis::leave_group::{LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse};
use fullbore_wire::{ErrorCode, Frame};

/// First version with a list of members (KIP-345).
const MEMBERS_FROM: i16 = 3;

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let mut request: LeaveGroupRequest = call.body(reply.version)?;
    let has_members = reply.version.number >= MEMBERS_FROM;
    if !has_members {
        let member_id = request.member_id.clone();
        request.members = vec![MemberIdentity { member_id, ..Default::default() }];
    }
    let mut response = leave(services, &request).await;
    if !has_members && let Some(member) = response.members.pop() {
        response.error_code = member.error_code;
    }
    reply.frame::<LeaveGroupRequest>(&response)
}

async fn leave(services: &CoordinatorServices, request: &LeaveGroupRequest) -> LeaveGroupResponse {
    if request.group_id.is_empty() {
        return LeaveGroupResponse { error_code: ErrorCode::INVALID_GROUP_ID, ..Default::default() };
    }
    let missing = Missing::Refuse(ErrorCode::UNKNOWN_MEMBER_ID);
    let answer = services.groups.request(&request.group_id, missing, |group, ticket, now, effects| {
        group.leave(&request.members, ticket, now, effects);
    });
    match answer.await {
        GroupAnswer::Leave(response) => *response,
        // The group does not exist, so every member gets the error.
        GroupAnswer::Refused(error_code @ ErrorCode::UNKNOWN_MEMBER_ID) => {
            let one = |member: &MemberIdentity| MemberResponse {
                member_id: member.member_id.clone(),
                group_instance_id: member.group_instance_id.clone(),
                error_code,
                ..Default::default()
            };
            LeaveGroupResponse { members: request.members.iter().map(one).collect(), ..Default::default() }
        }
        GroupAnswer::Refused(error_code) => LeaveGroupResponse { error_code, ..Default::default() },
        _ => unreachable!("a LeaveGroup is answered with its members"),
    }
}
