//! FindCoordinator, key 10 (FindCoordinatorRequest.json, FindCoordinatorResponse.json).
//!
//! Changes by version: 1 key types, error messages; 3 flexible; 4 several keys (KIP-699); 5 TRANSACTION_ABORTABLE
//! (KIP-890); 6 share groups (KIP-932).

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Keys whose coordinators are wanted.
    pub struct FindCoordinatorRequest {
        /// The group or transactional id.
        key: Text, 0..=3;
        /// Type of the keys: 0 groups, 1 transactional ids, 2 partitions of share groups.
        key_type: i8, 1..;
        /// The keys.
        coordinator_keys: Vec<Text>, 4..;
    }

    /// The coordinators.
    pub struct FindCoordinatorResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 1..;
        /// The error, or 0.
        error_code: ErrorCode, 0..=3;
        /// Error message, or null.
        error_message: Option<Text>, 1..=3;
        /// The coordinator's broker id.
        node_id: i32, 0..=3;
        /// Host of the coordinator.
        host: Text, 0..=3;
        /// Port of the coordinator.
        port: i32, 0..=3;
        /// Each key's coordinator.
        coordinators: Vec<Coordinator>, 4..;
    }

    /// Coordinator of a key.
    pub struct Coordinator {
        /// The key.
        key: Text, 4..;
        /// The coordinator's broker id.
        node_id: i32, 4..;
        /// Host of the coordinator.
        host: Text, 4..;
        /// Port of the coordinator.
        port: i32, 4..;
        /// The error, or 0.
        error_code: ErrorCode, 4..;
        /// Error message, or null.
        error_message: Option<Text>, 4..;
    }
}
