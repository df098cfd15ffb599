//! DescribeGroups 0-6: describes groups of the classic protocol. A missing group has the state `Dead`, and from version
//! 6 on an error as well.

use super::call::{Call, Fault, Reply, once, words};
use super::operations;
use crate::groups::Missing;
use crate::node::CoordinatorServices;
use fullbore_rules::group::{Group, GroupState};
use fullbore_wire::apis::describe_groups::{DescribeGroupsRequest, DescribeGroupsResponse, DescribedGroup};
use fullbore_wire::{ErrorCode, Frame, Text};

/// First version in which a missing group is an error (KIP-1043).
const NOT_FOUND_FROM: i16 = 6;

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: DescribeGroupsRequest = call.body(reply.version)?;
    let _ = services.groups.prepare(Missing::Refuse(ErrorCode::NONE), &request.groups).await;
    let described = |group_id: Text| {
        let mut group = describe(services, &group_id, reply.version.number);
        let is_said = request.include_authorized_operations && !group.error_code.is_err();
        group.authorized_operations = operations::where_requested(is_said, operations::OF_A_GROUP);
        group.group_id = group_id;
        group
    };
    let groups = once(request.groups, Text::clone).into_iter().map(described).collect();
    reply.frame::<DescribeGroupsRequest>(&DescribeGroupsResponse { groups, ..Default::default() })
}

fn describe(services: &CoordinatorServices, group_id: &Text, version: i16) -> DescribedGroup {
    let why = match services.groups.inspect(group_id, Group::describe_classic) {
        Err(error_code) => return DescribedGroup { error_code, ..Default::default() },
        Ok(Some(Some(described))) => return described,
        Ok(Some(None)) => format!("Group {group_id} is not a classic group."),
        Ok(None) => format!("Group {group_id} not found."),
    };
    let dead = DescribedGroup { group_state: Text::from_static(GroupState::Dead.name()), ..Default::default() };
    match version >= NOT_FOUND_FROM {
        true => DescribedGroup { error_code: ErrorCode::GROUP_ID_NOT_FOUND, error_message: Some(words(why)), ..dead },
        false => dead,
    }
}
