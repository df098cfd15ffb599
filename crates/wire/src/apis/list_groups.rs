//! ListGroups, key 16 (ListGroupsRequest.json, ListGroupsResponse.json).
//!
//! Changes by version: 1 throttle time; 3 flexible; 4 states (KIP-518); 5 types (KIP-848).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Filter of the coordinator's groups.
    pub struct ListGroupsRequest {
        /// The states wanted (`Stable`, `Empty` and so on); empty for all.
        states_filter: Vec<Text>, 4..;
        /// The types wanted (`classic`, `consumer` and so on); empty for all.
        types_filter: Vec<Text>, 5..;
    }

    /// The groups.
    pub struct ListGroupsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 1..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Each group.
        groups: Vec<ListedGroup>, 0..;
    }

    /// A group.
    pub struct ListedGroup {
        /// The group.
        group_id: Text, 0..;
        /// Purpose of the group: `consumer` or another word; empty when it only has offsets.
        protocol_type: Text, 0..;
        /// State of the group.
        group_state: Text, 4..;
        /// Type of the group.
        group_type: Text, 5..;
    }
}
