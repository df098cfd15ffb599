//! A group of the classic protocol (GroupMetadataKey.json, GroupMetadataValue.json).

use crate::Text;
use crate::message::message;
use bytes::Bytes;

message! {
    /// Which group.
    pub struct GroupMetadataKey {
        /// The group.
        group: Text, 0..;
    }

    /// One generation of a group. 1 rebalance timeouts; 2 when the state changed; 3 static members; 4 flexible.
    pub struct GroupMetadataValue {
        /// The protocol type, such as `consumer`; empty for a group that only has offsets.
        protocol_type: Text, 0..;
        /// The generation.
        generation: i32, 0..;
        /// The protocol that was chosen, or null.
        protocol: Option<Text>, 0..;
        /// The leader's member id, or null.
        leader: Option<Text>, 0..;
        /// When the group came into its state, in milliseconds since 1970, or -1.
        current_state_timestamp: i64, 2.., default -1;
        /// The members.
        members: Vec<MemberMetadata>, 0..;
    }

    /// One member.
    pub struct MemberMetadata {
        /// Its id.
        member_id: Text, 0..;
        /// Its static name, or null.
        group_instance_id: Option<Text>, 3..;
        /// Its client id.
        client_id: Text, 0..;
        /// Where it connects from.
        client_host: Text, 0..;
        /// How long it may take to join again, in milliseconds, or -1.
        rebalance_timeout: i32, 1.., default -1;
        /// How long it may stay silent, in milliseconds.
        session_timeout: i32, 0..;
        /// What it said for the protocol that was chosen.
        subscription: Bytes, 0..;
        /// What the leader assigned to it.
        assignment: Bytes, 0..;
    }
}
