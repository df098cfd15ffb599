//! DeleteGroups 0-3: deletes groups that have no members, together with their offsets.

use super::call::{Call, Fault, Reply, once};
use crate::groups::Missing;
use crate::node::CoordinatorServices;
use fullbore_wire::apis::delete_groups::{DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse};
use fullbore_wire::{ErrorCode, Frame, Text};

/// First version whose response has error messages.
const MESSAGES: i16 = 3;

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: DeleteGroupsRequest = call.body(reply.version)?;
    // Waits until the groups are loaded. The result can be ignored: if `__consumer_offsets` is missing, the deletion
    // below returns an error for each group.
    let _ = services.groups.prepare(Missing::Refuse(ErrorCode::GROUP_ID_NOT_FOUND), &request.groups_names).await;
    let mut results = Vec::with_capacity(request.groups_names.len());
    for group_id in once(request.groups_names, Text::clone) {
        let error_code = services.groups.delete(&group_id, true).await.err().unwrap_or(ErrorCode::NONE);
        let has_message = reply.version.number >= MESSAGES && error_code.is_err();
        let error_message = has_message.then(|| Text::from_static(error_code.message()));
        results.push(DeletableGroupResult { group_id, error_code, error_message, ..Default::default() });
    }
    reply.frame::<DeleteGroupsRequest>(&DeleteGroupsResponse { results, ..Default::default() })
}
