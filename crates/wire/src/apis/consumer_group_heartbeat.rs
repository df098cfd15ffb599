//! ConsumerGroupHeartbeat, key 68 (ConsumerGroupHeartbeatRequest.json, ConsumerGroupHeartbeatResponse.json).
//!
//! The one request of a member under the consumer protocol (KIP-848). A field of the request that has not changed since
//! the last one is null or -1. 1 regular expressions, member ids made by the client (KIP-1082).

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// A member that joins, lives, changes what it wants or owns, or leaves.
    pub struct ConsumerGroupHeartbeatRequest {
        /// The group.
        group_id: Text, 0..;
        /// The member's id; in version 0 empty at first.
        member_id: Text, 0..;
        /// The member's epoch; 0 to join, -1 to leave, -2 for a static member that leaves to come back.
        member_epoch: i32, 0..;
        /// Its static name, or null.
        instance_id: Option<Text>, 0..;
        /// Its rack, or null.
        rack_id: Option<Text>, 0..;
        /// Time that the member may take to give partitions up, in milliseconds, or -1.
        rebalance_timeout_ms: i32, 0.., default -1;
        /// The topics it subscribes to, or null.
        subscribed_topic_names: Option<Vec<Text>>, 0..;
        /// The regular expression (RE2) of topics it subscribes to, or null.
        subscribed_topic_regex: Option<Text>, 1..;
        /// The assignor it wants the coordinator to use, or null.
        server_assignor: Option<Text>, 0..;
        /// The partitions it owns, or null.
        topic_partitions: Option<Vec<TopicPartitions>>, 0..;
    }

    /// The member's epoch and what it should own.
    pub struct ConsumerGroupHeartbeatResponse {
        /// Pause for the client to make, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Why, in words, or null.
        error_message: Option<Text>, 0..;
        /// The member's id, or null.
        member_id: Option<Text>, 0..;
        /// The member's epoch.
        member_epoch: i32, 0..;
        /// Interval of the member's heartbeats, in milliseconds.
        heartbeat_interval_ms: i32, 0..;
        /// Partitions assigned to the member, or null if they have not changed.
        assignment: Option<Assignment>, 0..;
    }

    /// Partitions assigned to a member.
    pub struct Assignment {
        /// The partitions that it may read at once.
        topic_partitions: Vec<TopicPartitions>, 0..;
    }

    /// Partitions of a topic.
    pub struct TopicPartitions {
        /// The topic id.
        topic_id: Uuid, 0..;
        /// The partitions.
        partitions: Vec<i32>, 0..;
    }
}
