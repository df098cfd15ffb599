//! Kafka's own bytes, and what they say.

use super::encode;
use bytes::Bytes;
use fullbore_wire::coordinator::*;
use fullbore_wire::{Text, Uuid};
use std::collections::BTreeMap;

const GOLDEN: &str = include_str!("../coordinator.golden");

const ID: Uuid = Uuid(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210u128.to_be_bytes());
const OTHER: Uuid = Uuid([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);

fn bytes(hex: &str) -> Bytes {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("two digits");
    hex.as_bytes().chunks(2).map(digits).collect()
}

fn text(text: &str) -> Option<Text> {
    Some(text.into())
}

/// The records under the names that `CoordinatorRecords.java` gives them.
fn expected() -> BTreeMap<String, Record> {
    let mut records = BTreeMap::new();
    let mut put =
        |name: &str, record: Record| assert_eq!(records.insert(name.to_owned(), record), None, "{name} twice");
    offsets(&mut put);
    classic(&mut put);
    consumer(&mut put);
    assignments(&mut put);
    records
}

fn offsets(put: &mut impl FnMut(&str, Record)) {
    let key = |group: &str, partition| OffsetCommitKey {
        group: group.into(),
        topic: "topic".into(),
        partition,
        ..Default::default()
    };
    let value = |offset, leader_epoch, metadata: &str, commit_timestamp| OffsetCommitValue {
        offset,
        leader_epoch,
        metadata: metadata.into(),
        commit_timestamp,
        ..Default::default()
    };
    let with_text = value(42, 5, "where 🦀", 1_700_000_000_123);
    put("written-offset", Record::OffsetCommit(key("grüppe", 7), Some(with_text)));
    let with_id = OffsetCommitValue { topic_id: ID, ..value(43, -1, "", 1_700_000_000_124) };
    put("written-offset-with-topic-id", Record::OffsetCommit(key("group", 0), Some(with_id)));
    let expires = OffsetCommitValue { expire_timestamp: 1_700_000_999_999, ..value(44, -1, "m", 1_700_000_000_125) };
    put("written-offset-that-expires", Record::OffsetCommit(key("group", 1), Some(expires)));
    put("written-offset-tombstone", Record::OffsetCommit(key("group", 2), None));
    for version in 0..=4 {
        let mut value = value(45, if version >= 3 { 7 } else { -1 }, "metadata", 11);
        if version == 1 {
            value.expire_timestamp = 12;
        }
        if version >= 4 {
            value.topic_id = ID;
        }
        put(&format!("version-offset-{version}"), Record::OffsetCommit(key("group", 3), Some(value)));
    }
    put("version-legacy-offset", Record::OffsetCommit(key("group", 4), Some(value(46, -1, "old", 13))));
}

fn classic(put: &mut impl FnMut(&str, Record)) {
    let key = || GroupMetadataKey { group: "group".into(), ..Default::default() };
    let m1 = MemberMetadata {
        member_id: "m1".into(),
        group_instance_id: text("i1"),
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        rebalance_timeout: 300_000,
        session_timeout: 45_000,
        subscription: Bytes::from_static(&[0, 1, 2]),
        assignment: Bytes::from_static(&[3]),
        ..Default::default()
    };
    let written = GroupMetadataValue {
        protocol_type: "consumer".into(),
        generation: 9,
        protocol: text("range"),
        leader: text("m1"),
        current_state_timestamp: 1_700_000_000_126,
        members: vec![m1.clone()],
        ..Default::default()
    };
    for version in 0..=4 {
        let in_version = |member: &MemberMetadata| MemberMetadata {
            group_instance_id: member.group_instance_id.clone().filter(|_| version >= 3),
            rebalance_timeout: if version >= 1 { 300_000 } else { -1 },
            ..member.clone()
        };
        let m2 = MemberMetadata {
            member_id: "m2".into(),
            group_instance_id: None,
            subscription: Bytes::new(),
            ..m1.clone()
        };
        let value = GroupMetadataValue {
            current_state_timestamp: if version >= 2 { 1_700_000_000_126 } else { -1 },
            members: vec![in_version(&m1), in_version(&m2)],
            ..written.clone()
        };
        put(&format!("version-group-{version}"), Record::GroupMetadata(key(), Some(value)));
    }
    put("written-group", Record::GroupMetadata(key(), Some(written)));
    put("written-group-empty", Record::GroupMetadata(key(), Some(GroupMetadataValue::default())));
    put("version-group-empty", Record::GroupMetadata(key(), Some(GroupMetadataValue::default())));
    put("written-group-tombstone", Record::GroupMetadata(key(), None));
}

fn consumer(put: &mut impl FnMut(&str, Record)) {
    let key = || ConsumerGroupMetadataKey { group_id: "group".into(), ..Default::default() };
    let value = |epoch, metadata_hash| Some(ConsumerGroupMetadataValue { epoch, metadata_hash, ..Default::default() });
    put("version-consumer-group", Record::ConsumerGroupMetadata(key(), value(10, 0)));
    put("written-consumer-group", Record::ConsumerGroupMetadata(key(), value(11, 0x1122_3344_5566_7788)));
    put("written-consumer-group-tombstone", Record::ConsumerGroupMetadata(key(), None));

    let key = || ConsumerGroupPartitionMetadataKey { group_id: "group".into(), ..Default::default() };
    let racks = vec!["a".into(), "b".into()];
    let topic = TopicMetadata {
        topic_id: ID,
        topic_name: "topic".into(),
        num_partitions: 2,
        partition_metadata: vec![PartitionMetadata { partition: 1, racks, ..Default::default() }],
        ..Default::default()
    };
    let value = ConsumerGroupPartitionMetadataValue { topics: vec![topic], ..Default::default() };
    put("version-partition-metadata", Record::ConsumerGroupPartitionMetadata(key(), Some(value)));
    put("written-partition-metadata-tombstone", Record::ConsumerGroupPartitionMetadata(key(), None));

    let key = || ConsumerGroupMemberMetadataKey {
        group_id: "group".into(),
        member_id: "member".into(),
        ..Default::default()
    };
    let least = ConsumerGroupMemberMetadataValue {
        client_id: "client".into(),
        client_host: "/h".into(),
        rebalance_timeout_ms: 1,
        ..Default::default()
    };
    let range = ClassicProtocol { name: "range".into(), metadata: Bytes::from_static(&[1, 2]), ..Default::default() };
    let all = ConsumerGroupMemberMetadataValue {
        instance_id: text("i"),
        rack_id: text("r"),
        subscribed_topic_names: vec!["a".into(), "b".into()],
        subscribed_topic_regex: text("t.*"),
        rebalance_timeout_ms: 300_000,
        server_assignor: text("uniform"),
        classic_member_metadata: TaggedOption(Some(ClassicMemberMetadata {
            session_timeout_ms: 45_000,
            supported_protocols: vec![range],
            ..Default::default()
        })),
        ..least.clone()
    };
    let written = ConsumerGroupMemberMetadataValue {
        instance_id: text("i"),
        subscribed_topic_names: vec!["a".into()],
        subscribed_topic_regex: text(""),
        rebalance_timeout_ms: 300_000,
        classic_member_metadata: TaggedOption(None),
        ..least.clone()
    };
    put("written-member", Record::ConsumerGroupMemberMetadata(key(), Some(written)));
    put("version-member", Record::ConsumerGroupMemberMetadata(key(), Some(least)));
    put("version-member-with-all", Record::ConsumerGroupMemberMetadata(key(), Some(all)));
    put("written-member-tombstone", Record::ConsumerGroupMemberMetadata(key(), None));

    let key = ConsumerGroupRegularExpressionKey {
        group_id: "group".into(),
        regular_expression: "t.*".into(),
        ..Default::default()
    };
    let value =
        |topics| Some(ConsumerGroupRegularExpressionValue { topics, version: 14, timestamp: 15, ..Default::default() });
    let (one, two) = (value(vec!["ta".into()]), value(vec!["ta".into(), "tb".into()]));
    put("written-regex", Record::ConsumerGroupRegularExpression(key.clone(), one));
    put("version-regex", Record::ConsumerGroupRegularExpression(key.clone(), two));
    put("written-regex-tombstone", Record::ConsumerGroupRegularExpression(key, None));
}

fn assignments(put: &mut impl FnMut(&str, Record)) {
    let key = ConsumerGroupTargetAssignmentMetadataKey { group_id: "group".into(), ..Default::default() };
    let value = |assignment_timestamp| {
        let assignment_epoch = 12;
        Some(ConsumerGroupTargetAssignmentMetadataValue {
            assignment_epoch,
            assignment_timestamp,
            ..Default::default()
        })
    };
    let written = Record::ConsumerGroupTargetAssignmentMetadata(key.clone(), value(1_700_000_000_127));
    put("written-target", written);
    put("version-target-without-time", Record::ConsumerGroupTargetAssignmentMetadata(key, value(0)));

    let key = || ConsumerGroupTargetAssignmentMemberKey {
        group_id: "group".into(),
        member_id: "member".into(),
        ..Default::default()
    };
    let topic = |topic_id, partitions| TopicPartition { topic_id, partitions, ..Default::default() };
    let topic_partitions = vec![topic(ID, vec![0, 5]), topic(OTHER, vec![1])];
    let value = ConsumerGroupTargetAssignmentMemberValue { topic_partitions, ..Default::default() };
    put("written-target-member", Record::ConsumerGroupTargetAssignmentMember(key(), Some(value)));
    put("written-target-member-tombstone", Record::ConsumerGroupTargetAssignmentMember(key(), None));

    let key = || ConsumerGroupCurrentMemberAssignmentKey {
        group_id: "group".into(),
        member_id: "member".into(),
        ..Default::default()
    };
    let topic = |topic_id, partitions, assignment_epochs| TopicPartitions {
        topic_id,
        partitions,
        assignment_epochs,
        ..Default::default()
    };
    let value = |state, has: &[i32], assigned, pending| ConsumerGroupCurrentMemberAssignmentValue {
        member_epoch: 13,
        previous_member_epoch: 12,
        state,
        assigned_partitions: vec![topic(ID, has.into(), assigned)],
        partitions_pending_revocation: vec![topic(OTHER, vec![1], pending)],
        ..Default::default()
    };
    let written = value(1, &[5], Some(vec![12]), Some(vec![11]));
    put("written-current", Record::ConsumerGroupCurrentMemberAssignment(key(), Some(written)));
    let without = value(1, &[0, 5], Some(vec![]), Some(vec![]));
    put("version-current", Record::ConsumerGroupCurrentMemberAssignment(key(), Some(without)));
    let null = value(1, &[0, 5], None, None);
    put("version-current-with-null-epochs", Record::ConsumerGroupCurrentMemberAssignment(key(), Some(null)));
    let with_epochs = value(0, &[0, 5], Some(vec![12, 13]), Some(vec![]));
    put("version-current-with-epochs", Record::ConsumerGroupCurrentMemberAssignment(key(), Some(with_epochs)));
    put("written-current-tombstone", Record::ConsumerGroupCurrentMemberAssignment(key(), None));
}

/// The value's bytes in the version of `golden`.
fn value_in_its_version(record: &Record, golden: &Bytes) -> Bytes {
    let version = i16::from_be_bytes([golden[0], golden[1]]);
    fn encoded<V: Value>(value: &V, version: i16) -> Bytes {
        encode(value, version, V::in_version(version))
    }
    match record {
        Record::OffsetCommit(_, Some(value)) => encoded(value, version),
        Record::GroupMetadata(_, Some(value)) => encoded(value, version),
        record => record.encode().expect("small").1.expect("a value, of the only version there is"),
    }
}

#[test]
fn records_are_byte_for_byte_as_kafka_writes_them() {
    let mut expected = expected();
    for line in GOLDEN.lines().filter_map(|line| line.strip_prefix("record ")) {
        let parts: Vec<_> = line.split(' ').collect();
        let [name, key, value] = parts[..] else { panic!("{line}") };
        let record = expected.remove(name).unwrap_or_else(|| panic!("{name} is not expected"));
        let (key, value) = (bytes(key), (value != "-").then(|| bytes(value)));
        assert_eq!(Record::decode(key.clone(), value.clone()).as_ref(), Ok(&record), "{name}");
        let written = record.encode().expect("small");
        if name != "version-legacy-offset" {
            assert_eq!(written.0, key, "{name}");
        }
        if name.starts_with("written-") {
            assert_eq!(written.1, value, "{name}: in the version that Kafka chooses");
        } else if let Some(value) = value {
            assert_eq!(value_in_its_version(&record, &value), value, "{name}");
        }
    }
    assert!(expected.is_empty(), "Kafka wrote no {:?}", expected.keys());
}

#[test]
fn groups_are_in_the_partitions_that_kafka_puts_them_in() {
    let mut count = 0;
    for line in GOLDEN.lines().filter_map(|line| line.strip_prefix("hash ")) {
        let parts: Vec<_> = line.split(' ').collect();
        let [group, partitions, partition] = parts[..] else { panic!("{line}") };
        let group = Text::from_utf8(bytes(group)).expect("UTF-8");
        let found = partition_for(&group, partitions.parse().expect("a number"));
        assert_eq!(found.to_string(), partition, "{group} of {partitions}");
        count += 1;
    }
    assert_eq!(count, 24);
}
