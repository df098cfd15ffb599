//! Heartbeat, key 12 (HeartbeatRequest.json, HeartbeatResponse.json).
//!
//! Changes by version: 1 throttle time; 3 static members (KIP-345); 4 flexible.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Heartbeat of a member of a classic group.
    pub struct HeartbeatRequest {
        /// The group.
        group_id: Text, 0..;
        /// The generation.
        generation_id: i32, 0..;
        /// The member's id.
        member_id: Text, 0..;
        /// Static name of the member, or null.
        group_instance_id: Option<Text>, 3..;
    }

    /// The outcome.
    pub struct HeartbeatResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 1..;
        /// The error, or 0; REBALANCE_IN_PROGRESS makes the member join again.
        error_code: ErrorCode, 0..;
    }
}
