//! SyncGroup, key 14 (SyncGroupRequest.json, SyncGroupResponse.json).
//!
//! Changes by version: 1 throttle time; 3 static members (KIP-345); 4 flexible; 5 protocol type and name, to be
//! compared (KIP-559).

use crate::message::message;
use crate::{ErrorCode, Text};
use bytes::Bytes;

message! {
    /// Request of a member for its assignment; the leader's has the assignments of all members.
    pub struct SyncGroupRequest {
        /// The group.
        group_id: Text, 0..;
        /// The generation.
        generation_id: i32, 0..;
        /// The member's id.
        member_id: Text, 0..;
        /// Static name of the member, or null.
        group_instance_id: Option<Text>, 3..;
        /// Purpose of the group as the member knows it, or null.
        protocol_type: Option<Text>, 5..;
        /// The protocol the member takes as chosen, or null.
        protocol_name: Option<Text>, 5..;
        /// Each member's assignment, from the leader; empty from the others.
        assignments: Vec<SyncGroupRequestAssignment>, 0..;
    }

    /// Assignment of a member.
    pub struct SyncGroupRequestAssignment {
        /// The member's id.
        member_id: Text, 0..;
        /// Assignment of the member; for consumers a `ConsumerProtocolAssignment`.
        assignment: Bytes, 0..;
    }

    /// The member's assignment.
    pub struct SyncGroupResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 1..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Purpose of the group, or null.
        protocol_type: Option<Text>, 5..;
        /// The protocol chosen, or null.
        protocol_name: Option<Text>, 5..;
        /// Assignment of the member, as the leader wrote it.
        assignment: Bytes, 0..;
    }
}
