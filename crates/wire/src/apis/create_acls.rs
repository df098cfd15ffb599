//! CreateAcls, key 30 (CreateAclsRequest.json, CreateAclsResponse.json).
//!
//! KIP-140; 1 pattern types (KIP-290); 2 flexible; 3 user resources (KIP-373).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Access-control entries to be made.
    pub struct CreateAclsRequest {
        /// Each entry.
        creations: Vec<AclCreation>, 0..;
    }

    /// One entry.
    pub struct AclCreation {
        /// The type of resource.
        resource_type: i8, 0..;
        /// The resource's name.
        resource_name: Text, 0..;
        /// How that names it: 3 literally, 4 as a prefix.
        resource_pattern_type: i8, 1.., default 3;
        /// Whom it is about.
        principal: Text, 0..;
        /// From which host.
        host: Text, 0..;
        /// Doing what.
        operation: i8, 0..;
        /// 2 deny, 3 allow.
        permission_type: i8, 0..;
    }

    /// The outcome for each entry.
    pub struct CreateAclsResponse {
        /// How long the client should pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each entry, in the request's order.
        results: Vec<AclCreationResult>, 0..;
    }

    /// One entry's outcome.
    pub struct AclCreationResult {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Why, in words, or null.
        error_message: Option<Text>, 0..;
    }
}
