//! ListGroups 0-5: lists the groups that this broker coordinates, filtered by state and type. If some groups are still
//! loading, the response has an error in addition to the list.

use super::call::{Call, Fault, Reply};
use crate::node::CoordinatorServices;
use fullbore_rules::group::Group;
use fullbore_wire::apis::list_groups::{ListGroupsRequest, ListGroupsResponse, ListedGroup};
use fullbore_wire::{ErrorCode, Frame, Text};

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: ListGroupsRequest = call.body(reply.version)?;
    let groups = &services.groups;
    groups.prepare_all().await;
    let error_code = groups.check_all().err().unwrap_or(ErrorCode::NONE);
    let wanted = |filter: &[Text], name: &str| {
        filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(name))
    };
    let listed = |group_id: Text| {
        let listed = |group: &Group| {
            let (state, kind) = (group.state().name(), group.protocol().name());
            let is_wanted = wanted(&request.states_filter, state) && wanted(&request.types_filter, kind);
            is_wanted.then(|| (Text::from(group.protocol_type()), Text::from_static(state), Text::from_static(kind)))
        };
        let (protocol_type, group_state, group_type) = groups.peek(&group_id, listed)??;
        Some(ListedGroup { group_id, protocol_type, group_state, group_type, ..Default::default() })
    };
    let mut ids = groups.ids();
    ids.sort_unstable();
    let groups = ids.into_iter().filter_map(listed).collect();
    reply.frame::<ListGroupsRequest>(&ListGroupsResponse { error_code, groups, ..Default::default() })
}
