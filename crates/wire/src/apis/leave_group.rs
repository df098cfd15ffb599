//! LeaveGroup, key 13 (LeaveGroupRequest.json, LeaveGroupResponse.json).
//!
//! Changes by version: 1 throttle time; 3 several members, static ones too (KIP-345); 4 flexible; 5 reasons (KIP-800).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Members that leave a classic group.
    pub struct LeaveGroupRequest {
        /// The group.
        group_id: Text, 0..;
        /// The member that leaves.
        member_id: Text, 0..=2;
        /// Each member that leaves.
        members: Vec<MemberIdentity>, 3..;
    }

    /// A member that leaves.
    pub struct MemberIdentity {
        /// Id of the member; empty when only the static name is known.
        member_id: Text, 3..;
        /// Static name of the member, or null.
        group_instance_id: Option<Text>, 3..;
        /// Reason why the member leaves, or null.
        reason: Option<Text>, 5..;
    }

    /// The outcome for each member.
    pub struct LeaveGroupResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 1..;
        /// The error of the whole request, or 0.
        error_code: ErrorCode, 0..;
        /// Each member of the request.
        members: Vec<MemberResponse>, 3..;
    }

    /// Outcome of a member.
    pub struct MemberResponse {
        /// Id of the member.
        member_id: Text, 3..;
        /// Static name of the member, or null.
        group_instance_id: Option<Text>, 3..;
        /// The error, or 0.
        error_code: ErrorCode, 3..;
    }
}
