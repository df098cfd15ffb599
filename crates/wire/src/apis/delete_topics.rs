//! DeleteTopics, key 20 (DeleteTopicsRequest.json, DeleteTopicsResponse.json).
//!
//! Changes by version: 1 throttle time; 3 TOPIC_DELETION_DISABLED; 4 flexible; 5 error messages (KIP-599); 6 topic ids.

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// Topics to delete.
    pub struct DeleteTopicsRequest {
        /// Each topic, by name or by id.
        topics: Vec<DeleteTopicState>, 6..;
        /// Each topic's name.
        topic_names: Vec<Text>, 0..=5;
        /// Time that the broker may take, in milliseconds.
        timeout_ms: i32, 0..;
    }

    /// A topic, by name or by id.
    pub struct DeleteTopicState {
        /// The topic name, or null.
        name: Option<Text>, 6..;
        /// The topic id, or zeros.
        topic_id: Uuid, 6..;
    }

    /// The outcome for each topic of the request.
    pub struct DeleteTopicsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 1..;
        /// Each topic of the request.
        responses: Vec<DeletableTopicResult>, 0..;
    }

    /// Outcome of a topic.
    pub struct DeletableTopicResult {
        /// The topic name, or null.
        name: Option<Text>, 0.., nullable 6.., default Some(Text::default());
        /// The topic id.
        topic_id: Uuid, 6..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 5..;
    }
}
