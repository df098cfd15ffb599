//! CreateAcls 1-3. There is no authorizer, so each entry gets SECURITY_DISABLED, as in Kafka without one.

use super::call::{Call, Fault, Reply};
use fullbore_wire::apis::create_acls::{AclCreationResult, CreateAclsRequest, CreateAclsResponse};
use fullbore_wire::{ErrorCode, Frame, Text};

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: CreateAclsRequest = call.body(reply.version)?;
    let refused = AclCreationResult {
        error_code: ErrorCode::SECURITY_DISABLED,
        error_message: Some(Text::from_static("No Authorizer is configured.")),
        ..Default::default()
    };
    let results = vec![refused; request.creations.len()];
    reply.frame::<CreateAclsRequest>(&CreateAclsResponse { results, ..Default::default() })
}
