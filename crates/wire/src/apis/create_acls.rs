//! CreateAcls, key 30 (CreateAclsRequest.json, CreateAclsResponse.json).
//!
//! Introduced by KIP-140. Changes by version: 1 pattern types (KIP-290); 2 flexible; 3 user resources (KIP-373).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Access-control entries to create.
    pub struct CreateAclsRequest {
        /// Each entry.
        creations: Vec<AclCreation>, 0..;
    }

    /// An entry.
    pub struct AclCreation {
        /// The type of resource.
        resource_type: i8, 0..;
        /// The resource's name.
        resource_name: Text, 0..;
        /// Pattern type of the name: 3 literal, 4 prefix.
        resource_pattern_type: i8, 1.., default 3;
        /// Principal that the entry is for.
        principal: Text, 0..;
        /// Host that the entry is for.
        host: Text, 0..;
        /// Operation that the entry is for.
        operation: i8, 0..;
        /// Permission: 2 deny, 3 allow.
        permission_type: i8, 0..;
    }

    /// The outcome for each entry.
    pub struct CreateAclsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each entry, in the request's order.
        results: Vec<AclCreationResult>, 0..;
    }

    /// Outcome of an entry.
    pub struct AclCreationResult {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
    }
}
