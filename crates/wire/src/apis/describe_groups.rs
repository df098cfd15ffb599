//! DescribeGroups, key 15 (DescribeGroupsRequest.json, DescribeGroupsResponse.json).
//!
//! Changes by version: 1 throttle time; 3 authorized operations (KIP-430); 4 static members (KIP-345); 5 flexible; 6
//! error messages, and GROUP_ID_NOT_FOUND instead of the state `Dead` (KIP-1043).

use crate::message::message;
use crate::{ErrorCode, Text};
use bytes::Bytes;

message! {
    /// Classic groups to describe.
    pub struct DescribeGroupsRequest {
        /// The groups.
        groups: Vec<Text>, 0..;
        /// True to include the operations on each group that the client is allowed.
        include_authorized_operations: bool, 3..;
    }

    /// The groups.
    pub struct DescribeGroupsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 1..;
        /// Each group of the request.
        groups: Vec<DescribedGroup>, 0..;
    }

    /// A group.
    pub struct DescribedGroup {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 6..;
        /// The group.
        group_id: Text, 0..;
        /// State of the group, or empty.
        group_state: Text, 0..;
        /// Purpose of the group, or empty.
        protocol_type: Text, 0..;
        /// The protocol chosen, for consumers the assignor; empty unless the group is stable.
        protocol_data: Text, 0..;
        /// Each member.
        members: Vec<DescribedGroupMember>, 0..;
        /// Operations on the group that the client is allowed, one bit each; the smallest int32 if not requested.
        authorized_operations: i32, 3.., default i32::MIN;
    }

    /// A member.
    pub struct DescribedGroupMember {
        /// Id of the member.
        member_id: Text, 0..;
        /// Static name of the member, or null.
        group_instance_id: Option<Text>, 4..;
        /// Client id with which the member joined.
        client_id: Text, 0..;
        /// Address from which the member joined.
        client_host: Text, 0..;
        /// Metadata of the member in the protocol chosen; empty unless the group is stable.
        member_metadata: Bytes, 0..;
        /// Assignment of the member; empty unless the group is stable.
        member_assignment: Bytes, 0..;
    }
}
