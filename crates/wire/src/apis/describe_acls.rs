//! DescribeAcls, key 29 (DescribeAclsRequest.json, DescribeAclsResponse.json).
//!
//! Introduced by KIP-140. Changes by version: 1 pattern types (KIP-290); 2 flexible; 3 user resources (KIP-373).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Filter of the access-control entries wanted. Types and operations are Kafka's ResourceType, PatternType,
    /// AclOperation and AclPermissionType; 1 is any.
    pub struct DescribeAclsRequest {
        /// The type of resource.
        resource_type_filter: i8, 0..;
        /// The resource's name, or null for any.
        resource_name_filter: Option<Text>, 0..;
        /// Pattern type by which entries name resources.
        pattern_type_filter: i8, 1.., default 3;
        /// The principal, or null for any.
        principal_filter: Option<Text>, 0..;
        /// The host, or null for any.
        host_filter: Option<Text>, 0..;
        /// The operation.
        operation: i8, 0..;
        /// Permission: 1 any, 2 deny, 3 allow.
        permission_type: i8, 0..;
    }

    /// The entries.
    pub struct DescribeAclsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Each resource that has entries.
        resources: Vec<DescribeAclsResource>, 0..;
    }

    /// A resource.
    pub struct DescribeAclsResource {
        /// Type of the resource.
        resource_type: i8, 0..;
        /// Name of the resource.
        resource_name: Text, 0..;
        /// Pattern type of the name: 3 literal, 4 prefix.
        pattern_type: i8, 1.., default 3;
        /// Entries of the resource.
        acls: Vec<AclDescription>, 0..;
    }

    /// An entry.
    pub struct AclDescription {
        /// Principal that the entry is for.
        principal: Text, 0..;
        /// Host that the entry is for.
        host: Text, 0..;
        /// Operation that the entry is for.
        operation: i8, 0..;
        /// Permission: 2 deny, 3 allow.
        permission_type: i8, 0..;
    }
}
