//! ConsumerGroupDescribe, key 69 (ConsumerGroupDescribeRequest.json, ConsumerGroupDescribeResponse.json).
//!
//! Groups of the consumer protocol (KIP-848). Version 1 adds member types (KIP-1099).

use crate::message::message;
use crate::{ErrorCode, Text, Uuid};

message! {
    /// Groups to describe.
    pub struct ConsumerGroupDescribeRequest {
        /// The groups.
        group_ids: Vec<Text>, 0..;
        /// True to include the operations on each group that the client is allowed.
        include_authorized_operations: bool, 0..;
    }

    /// The groups.
    pub struct ConsumerGroupDescribeResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// Each group of the request.
        groups: Vec<DescribedGroup>, 0..;
    }

    /// A group.
    pub struct DescribedGroup {
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// The group.
        group_id: Text, 0..;
        /// State of the group, or empty.
        group_state: Text, 0..;
        /// Epoch of the group: rises with each change of members, subscriptions or topics.
        group_epoch: i32, 0..;
        /// The group epoch that the target assignment is for.
        assignment_epoch: i32, 0..;
        /// The assignor in use.
        assignor_name: Text, 0..;
        /// Each member.
        members: Vec<Member>, 0..;
        /// Operations on the group that the client is allowed, one bit each; the smallest int32 if not requested.
        authorized_operations: i32, 0.., default i32::MIN;
    }

    /// A member.
    pub struct Member {
        /// Id of the member.
        member_id: Text, 0..;
        /// Static name of the member, or null.
        instance_id: Option<Text>, 0..;
        /// Rack of the member, or null.
        rack_id: Option<Text>, 0..;
        /// Epoch of the member.
        member_epoch: i32, 0..;
        /// Client id of the member.
        client_id: Text, 0..;
        /// Address from which the member joined.
        client_host: Text, 0..;
        /// Topics that the member subscribes to by name.
        subscribed_topic_names: Vec<Text>, 0..;
        /// Regular expression of topics that the member subscribes to, or null.
        subscribed_topic_regex: Option<Text>, 0..;
        /// Partitions that the member owns.
        assignment: Assignment, 0..;
        /// Partitions of the member's target assignment.
        target_assignment: Assignment, 0..;
        /// Protocol of the member: 0 classic, 1 consumer, -1 unknown.
        member_type: i8, 1.., default -1;
    }

    /// Partitions of a member.
    pub struct Assignment {
        /// Each topic.
        topic_partitions: Vec<TopicPartitions>, 0..;
    }

    /// Partitions of a topic.
    pub struct TopicPartitions {
        /// The topic id.
        topic_id: Uuid, 0..;
        /// The topic name.
        topic_name: Text, 0..;
        /// The partitions.
        partitions: Vec<i32>, 0..;
    }
}
