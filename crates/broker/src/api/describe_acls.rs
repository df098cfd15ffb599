//! DescribeAcls 1-3. There is no authorizer, so the response is SECURITY_DISABLED, as in Kafka without one.

use super::call::{Call, Fault, Reply};
use fullbore_wire::apis::describe_acls::{DescribeAclsRequest, DescribeAclsResponse};
use fullbore_wire::{ErrorCode, Frame, Text};

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    call.body::<DescribeAclsRequest>(reply.version)?;
    let response = DescribeAclsResponse {
        error_code: ErrorCode::SECURITY_DISABLED,
        error_message: Some(Text::from_static("No Authorizer is configured on the broker")),
        ..Default::default()
    };
    reply.frame::<DescribeAclsRequest>(&response)
}
