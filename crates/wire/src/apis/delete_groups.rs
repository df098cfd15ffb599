//! DeleteGroups, key 42 (DeleteGroupsRequest.json, DeleteGroupsResponse.json).
//!
//! Introduced by KIP-229. Changes by version: 2 flexible; 3 error messages (since Kafka 4.4).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Groups to delete, with their offsets.
    pub struct DeleteGroupsRequest {
        /// The groups.
        groups_names: Vec<Text>, 0..;
    }

    /// The outcome for each group.
    pub struct DeleteGroupsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each group of the request.
        results: Vec<DeletableGroupResult>, 0..;
    }

    /// Outcome of a group.
    pub struct DeletableGroupResult {
        /// The group.
        group_id: Text, 0..;
        /// The error, or 0; NON_EMPTY_GROUP while the group has members.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 3..;
    }
}
