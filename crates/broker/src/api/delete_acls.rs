//! DeleteAcls 1-3. There is no authorizer, so each filter gets SECURITY_DISABLED, as in Kafka without one.

use super::call::{Call, Fault, Reply};
use fullbore_wire::apis::delete_acls::{DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse};
use fullbore_wire::{ErrorCode, Frame, Text};

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: DeleteAclsRequest = call.body(reply.version)?;
    let refused = DeleteAclsFilterResult {
        error_code: ErrorCode::SECURITY_DISABLED,
        error_message: Some(Text::from_static("No Authorizer is configured.")),
        ..Default::default()
    };
    let filter_results = vec![refused; request.filters.len()];
    reply.frame::<DeleteAclsRequest>(&DeleteAclsResponse { filter_results, ..Default::default() })
}
