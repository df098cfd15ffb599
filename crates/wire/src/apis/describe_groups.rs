//! DescribeGroups, key 15 (DescribeGroupsRequest.json, DescribeGroupsResponse.json).
//!
//! 1 throttle time; 3 authorized operations (KIP-430); 4 static members (KIP-345); 5 flexible; 6 error messages, and
//! GROUP_ID_NOT_FOUND instead of the state `Dead` (KIP-1043).

use crate::message::message;
use crate::{ErrorCode, Text};
use bytes::Bytes;

message! {
    /// Classic groups to describe.
    pub struct DescribeGroupsRequest {
        /// The groups.
        groups: Vec<Text>, 0..;
        /// True if to say what the client may do with each.
        include_authorized_operations: bool, 3..;
    }

    /// The groups.
    pub struct DescribeGroupsResponse {
        /// How long the client should pause, in milliseconds.
        throttle_time_ms: i32, 1..;
        /// Each group of the request.
        groups: Vec<DescribedGroup>, 0..;
    }

    /// One group.
    pub struct DescribedGroup {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Why, in words, or null.
        error_message: Option<Text>, 6..;
        /// The group.
        group_id: Text, 0..;
        /// Its state, or empty.
        group_state: Text, 0..;
        /// What it is for, or empty.
        protocol_type: Text, 0..;
        /// The protocol chosen, for consumers the assignor; empty unless the group is stable.
        protocol_data: Text, 0..;
        /// Each member.
        members: Vec<DescribedGroupMember>, 0..;
        /// What the client may do with the group, one bit an operation; the minimum when not asked for.
        authorized_operations: i32, 3.., default i32::MIN;
    }

    /// One member.
    pub struct DescribedGroupMember {
        /// Its id.
        member_id: Text, 0..;
        /// Its static name, or null.
        group_instance_id: Option<Text>, 4..;
        /// The client id it joined with.
        client_id: Text, 0..;
        /// The address it joined from.
        client_host: Text, 0..;
        /// What it said in the protocol chosen; empty unless the group is stable.
        member_metadata: Bytes, 0..;
        /// What is assigned to it; empty unless the group is stable.
        member_assignment: Bytes, 0..;
    }
}
