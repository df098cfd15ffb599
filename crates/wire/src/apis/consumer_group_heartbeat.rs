//! ConsumerGroupHeartbeat, key 68 (ConsumerGroupHeartbeatRequest.json, ConsumerGroupHeartbeatResponse.json).
//!
//! The one request of a member under the consumer protocol (KIP-848). A field of the request that has not changed since
//! the last request is null or -1. Version 1 adds regular expressions, and member ids made by the client (KIP-1082).

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// Heartbeat of a member that joins, stays, changes its subscription or its owned partitions, or leaves.
    pub struct ConsumerGroupHeartbeatRequest {
        /// The group.
        group_id: Text, 0..;
        /// The member's id; in version 0 empty at first.
        member_id: Text, 0..;
        /// The member's epoch; 0 to join, -1 to leave, -2 for a static member that leaves to come back.
        member_epoch: i32, 0..;
        /// Static name of the member, or null.
        instance_id: Option<Text>, 0..;
        /// Rack of the member, or null.
        rack_id: Option<Text>, 0..;
        /// Time that the member may take to give partitions up, in milliseconds, or -1.
        rebalance_timeout_ms: i32, 0.., default -1;
        /// Topics that the member subscribes to, or null.
        subscribed_topic_names: Option<Vec<Text>>, 0..;
        /// Regular expression (RE2) of topics that the member subscribes to, or null.
        subscribed_topic_regex: Option<Text>, 1..;
        /// Assignor that the member requests of the coordinator, or null.
        server_assignor: Option<Text>, 0..;
        /// Partitions that the member owns, or null.
        topic_partitions: Option<Vec<TopicPartitions>>, 0..;
    }

    /// Epoch and assignment of the member.
    pub struct ConsumerGroupHeartbeatResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
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
        /// Partitions that the member may read now.
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
