//! DeleteAcls, key 31 (DeleteAclsRequest.json, DeleteAclsResponse.json).
//!
//! Introduced by KIP-140. Changes by version: 1 pattern types (KIP-290); 2 flexible; 3 user resources (KIP-373).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Filters of the access-control entries to delete.
    pub struct DeleteAclsRequest {
        /// Each filter.
        filters: Vec<DeleteAclsFilter>, 0..;
    }

    /// A filter; its fields are those of DescribeAcls.
    pub struct DeleteAclsFilter {
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

    /// The outcome for each filter.
    pub struct DeleteAclsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each filter, in the request's order.
        filter_results: Vec<DeleteAclsFilterResult>, 0..;
    }

    /// Outcome of a filter.
    pub struct DeleteAclsFilterResult {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Each matching entry.
        matching_acls: Vec<DeleteAclsMatchingAcl>, 0..;
    }

    /// An entry.
    pub struct DeleteAclsMatchingAcl {
        /// Error because of which the entry was not deleted, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// The type of resource.
        resource_type: i8, 0..;
        /// The resource's name.
        resource_name: Text, 0..;
        /// Pattern type of the name: 3 literal, 4 prefix.
        pattern_type: i8, 1.., default 3;
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
