//! JoinGroup, key 11 (JoinGroupRequest.json, JoinGroupResponse.json).
//!
//! Changes by version: 1 rebalance timeout (KIP-62). 2 throttle time. 4 MEMBER_ID_REQUIRED for the first join
//! (KIP-394). 5 static members (KIP-345). 6 flexible. 7 the protocol type in the response (KIP-559). 8 reasons
//! (KIP-800). 9 a leader that need not assign (KIP-814).

use crate::message::message;
use crate::{ErrorCode, Text};
use bytes::Bytes;

message! {
    /// A member that enters a classic group, or takes part in its next generation.
    pub struct JoinGroupRequest {
        /// The group.
        group_id: Text, 0..;
        /// Longest time without a heartbeat before the member is considered failed, in milliseconds.
        session_timeout_ms: i32, 0..;
        /// Time that the coordinator waits for each member to join again, in milliseconds; -1 in version 0, which
        /// means the session timeout.
        rebalance_timeout_ms: i32, 1.., default -1;
        /// The member's id as the coordinator gave it; empty at first.
        member_id: Text, 0..;
        /// The name by which a static member is known across restarts, or null.
        group_instance_id: Option<Text>, 5..;
        /// Purpose of the group: `consumer`, `connect` or another word its members agree on.
        protocol_type: Text, 0..;
        /// The protocols the member can speak, its favourite first; for consumers these are assignors.
        protocols: Vec<JoinGroupRequestProtocol>, 0..;
        /// Reason why the member joins, or null.
        reason: Option<Text>, 8..;
    }

    /// A protocol a member can speak.
    pub struct JoinGroupRequestProtocol {
        /// Name of the protocol.
        name: Text, 0..;
        /// Metadata of the member in this protocol; for consumers a `ConsumerProtocolSubscription`.
        metadata: Bytes, 0..;
    }

    /// The generation the member is in.
    pub struct JoinGroupResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 2..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// The generation, or -1.
        generation_id: i32, 0.., default -1;
        /// Purpose of the group, or null.
        protocol_type: Option<Text>, 7..;
        /// The protocol the members have in common, or null.
        protocol_name: Option<Text>, 0.., nullable 7.., default Some(Text::default());
        /// The member id of the leader, who assigns.
        leader: Text, 0..;
        /// True if the leader must not assign, since the present assignment still holds.
        skip_assignment: bool, 9..;
        /// The member's id.
        member_id: Text, 0..;
        /// All members, for the leader; empty for the others.
        members: Vec<JoinGroupResponseMember>, 0..;
    }

    /// A member, as the leader sees it.
    pub struct JoinGroupResponseMember {
        /// The member's id.
        member_id: Text, 0..;
        /// Static name of the member, or null.
        group_instance_id: Option<Text>, 5..;
        /// Metadata of the member in the protocol chosen.
        metadata: Bytes, 0..;
    }
}
