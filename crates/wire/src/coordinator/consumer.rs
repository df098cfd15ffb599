//! A group of the consumer protocol (KIP-848), in parts: `ConsumerGroup*Key.json` and `ConsumerGroup*Value.json`.
//!
//! Two fields of those files say `"default": null` without quotes, which Kafka's generator does not take for null: the
//! default is an empty struct or list, and null is written. Kafka's bytes are what counts here.

use crate::codec::{Codec, DecodeError, EncodeError, Reader, Version};
use crate::frame::Writer;
use crate::message::message;
use crate::{StructSpec, Text, Uuid};
use bytes::Bytes;

/// A struct that may be null in a tagged field: there a varint says whether it follows, 0 or 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaggedOption<T>(pub Option<T>);

impl<T: Codec> Codec for TaggedOption<T> {
    fn size_min(_: Version) -> usize {
        1
    }

    fn encode(&self, w: &mut Writer, v: Version) -> Result<(), EncodeError> {
        w.put_uvarint(u32::from(self.0.is_some()));
        self.0.as_ref().map_or(Ok(()), |value| value.encode(w, v))
    }

    fn decode(r: &mut Reader, v: Version) -> Result<Self, DecodeError> {
        if r.uvarint()? == 0 { Ok(TaggedOption(None)) } else { T::decode(r, v).map(|value| TaggedOption(Some(value))) }
    }

    fn specs(specs: &mut Vec<StructSpec>) {
        T::specs(specs);
    }
}

message! {
    /// Which group.
    pub struct ConsumerGroupMetadataKey {
        /// The group.
        group_id: Text, 0..;
    }

    /// The group.
    pub struct ConsumerGroupMetadataValue {
        /// The group's epoch.
        epoch: i32, 0..;
        /// The hash of the topics that the group reads, or 0 (KIP-1101).
        metadata_hash: i64, 0.., tag 0;
    }

    /// Which group.
    pub struct ConsumerGroupPartitionMetadataKey {
        /// The group.
        group_id: Text, 0..;
    }

    /// The topics that a group reads, as brokers before Kafka 4.1 wrote them.
    pub struct ConsumerGroupPartitionMetadataValue {
        /// Each topic.
        topics: Vec<TopicMetadata>, 0..;
    }

    /// One topic.
    pub struct TopicMetadata {
        /// Its id.
        topic_id: Uuid, 0..;
        /// Its name.
        topic_name: Text, 0..;
        /// How many partitions it has.
        num_partitions: i32, 0..;
        /// Where they are, or nothing.
        partition_metadata: Vec<PartitionMetadata>, 0..;
    }

    /// Where a partition is.
    pub struct PartitionMetadata {
        /// The partition.
        partition: i32, 0..;
        /// The racks of its replicas.
        racks: Vec<Text>, 0..;
    }

    /// Which member.
    pub struct ConsumerGroupMemberMetadataKey {
        /// The group.
        group_id: Text, 0..;
        /// The member.
        member_id: Text, 0..;
    }

    /// What a member said of itself.
    pub struct ConsumerGroupMemberMetadataValue {
        /// Its static name, or null.
        instance_id: Option<Text>, 0..;
        /// Its rack, or null.
        rack_id: Option<Text>, 0..;
        /// Its client id.
        client_id: Text, 0..;
        /// Where it connects from.
        client_host: Text, 0..;
        /// The topics it subscribes to, which Kafka sorts.
        subscribed_topic_names: Vec<Text>, 0..;
        /// The regular expression of topics it subscribes to, or null.
        subscribed_topic_regex: Option<Text>, 0..;
        /// How long it may take to give partitions up, in milliseconds.
        rebalance_timeout_ms: i32, 0.., default -1;
        /// The assignor that it wants, or null.
        server_assignor: Option<Text>, 0..;
        /// What a member that speaks the classic protocol has besides; null for every other, which Kafka writes. Left out, it
        /// is an empty one to Kafka, so that the member would speak the classic protocol.
        classic_member_metadata: TaggedOption<ClassicMemberMetadata>, 0..,
            default TaggedOption(Some(ClassicMemberMetadata::default())), tag 0;
    }

    /// What a member that speaks the classic protocol has besides.
    pub struct ClassicMemberMetadata {
        /// How long it may stay silent, in milliseconds.
        session_timeout_ms: i32, 0..;
        /// The protocols it supports.
        supported_protocols: Vec<ClassicProtocol>, 0..;
    }

    /// One protocol that a member supports.
    pub struct ClassicProtocol {
        /// Its name.
        name: Text, 0..;
        /// What the member says for it.
        metadata: Bytes, 0..;
    }

    /// Which group.
    pub struct ConsumerGroupTargetAssignmentMetadataKey {
        /// The group.
        group_id: Text, 0..;
    }

    /// The group's target assignment.
    pub struct ConsumerGroupTargetAssignmentMetadataValue {
        /// Its epoch.
        assignment_epoch: i32, 0..;
        /// When it was worked out, in milliseconds since 1970, or 0 (KIP-1263).
        assignment_timestamp: i64, 0.., tag 0;
    }

    /// Which member.
    pub struct ConsumerGroupTargetAssignmentMemberKey {
        /// The group.
        group_id: Text, 0..;
        /// The member.
        member_id: Text, 0..;
    }

    /// What a member is to have.
    pub struct ConsumerGroupTargetAssignmentMemberValue {
        /// Each topic.
        topic_partitions: Vec<TopicPartition>, 0..;
    }

    /// One topic's partitions that a member is to have.
    pub struct TopicPartition {
        /// The topic id.
        topic_id: Uuid, 0..;
        /// The partitions.
        partitions: Vec<i32>, 0..;
    }

    /// Which member.
    pub struct ConsumerGroupCurrentMemberAssignmentKey {
        /// The group.
        group_id: Text, 0..;
        /// The member.
        member_id: Text, 0..;
    }

    /// What a member has.
    pub struct ConsumerGroupCurrentMemberAssignmentValue {
        /// The epoch that its next heartbeat is to carry.
        member_epoch: i32, 0..;
        /// The epoch before, which it carries where the answer with the new one was lost.
        previous_member_epoch: i32, 0..;
        /// Kafka's `MemberState`.
        state: i8, 0..;
        /// The partitions it has.
        assigned_partitions: Vec<TopicPartitions>, 0..;
        /// The partitions it has to give up.
        partitions_pending_revocation: Vec<TopicPartitions>, 0..;
    }

    /// One topic's partitions that a member has.
    pub struct TopicPartitions {
        /// The topic id.
        topic_id: Uuid, 0..;
        /// The partitions.
        partitions: Vec<i32>, 0..;
        /// The epoch in which the member got each of them (KIP-1251); empty or null from brokers that do not know.
        assignment_epochs: Option<Vec<i32>>, 0.., default Some(Vec::new()), tag 0;
    }

    /// Which group and expression.
    pub struct ConsumerGroupRegularExpressionKey {
        /// The group.
        group_id: Text, 0..;
        /// The expression.
        regular_expression: Text, 0..;
    }

    /// The topics that the expression matched.
    pub struct ConsumerGroupRegularExpressionValue {
        /// Their names, which Kafka sorts.
        topics: Vec<Text>, 0..;
        /// The version of the metadata image that it was matched against.
        version: i64, 0..;
        /// When, in milliseconds since 1970.
        timestamp: i64, 0..;
    }
}
