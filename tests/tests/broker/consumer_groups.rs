//! Groups of the consumer protocol (KIP-848). All tests also pass with Apache Kafka 4.3 (`FULLBORE_TEST_PEER`).
//!
//! A peer may compute assignments later, so each test sends heartbeats until it gets an assignment.

use crate::members::{Member, describe, heartbeat, join_request, list, new_group, refused, unique};
use fullbore_tests::{Broker, wait_until};
use fullbore_wire::apis::consumer_group_heartbeat::{ConsumerGroupHeartbeatRequest, TopicPartitions};
use fullbore_wire::apis::delete_groups::DeleteGroupsRequest;
use fullbore_wire::apis::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

#[test]
fn malformed_heartbeats_are_refused_in_kafkas_words() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let group = new_group(&broker, "malformed");
    let join = || join_request(&group, "m", &["t"]);
    let alive = |epoch| heartbeat(&group, "m", epoch);
    let text = |text: &str| Some(Text::from(text));
    type Request = ConsumerGroupHeartbeatRequest;
    let owned = vec![TopicPartitions { topic_id: Uuid([1; 16]), partitions: vec![0], ..Default::default() }];
    let cases: Vec<(Request, i16, ErrorCode, &str)> = vec![
        (Request { member_id: Text::default(), ..join() }, 1, ErrorCode::INVALID_REQUEST, "MemberId can't be empty."),
        (Request { member_id: Text::from(" "), ..join() }, 1, ErrorCode::INVALID_REQUEST, "MemberId can't be empty."),
        (Request { member_id: Text::default(), ..alive(1) }, 0, ErrorCode::INVALID_REQUEST, "MemberId can't be empty."),
        (Request { group_id: Text::default(), ..join() }, 1, ErrorCode::INVALID_REQUEST, "GroupId can't be empty."),
        (Request { instance_id: text(""), ..join() }, 1, ErrorCode::INVALID_REQUEST, "InstanceId can't be empty."),
        (Request { rack_id: text(""), ..join() }, 1, ErrorCode::INVALID_REQUEST, "RackId can't be empty."),
        (
            Request { rebalance_timeout_ms: -1, ..join() },
            1,
            ErrorCode::INVALID_REQUEST,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            Request { topic_partitions: Some(owned), ..join() },
            1,
            ErrorCode::INVALID_REQUEST,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            Request { topic_partitions: None, ..join() },
            1,
            ErrorCode::INVALID_REQUEST,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            Request { subscribed_topic_names: None, ..join() },
            1,
            ErrorCode::INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (alive(-2), 1, ErrorCode::INVALID_REQUEST, "InstanceId can't be null."),
        (alive(-3), 1, ErrorCode::INVALID_REQUEST, "MemberEpoch is invalid."),
        (
            Request { server_assignor: text("sticky"), ..join() },
            1,
            ErrorCode::UNSUPPORTED_ASSIGNOR,
            "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
        ),
    ];
    for (request, version, code, message) in cases {
        let response = client.call(&request, version);
        assert_eq!((response.error_code, response.error_message.as_deref()), (code, Some(message)), "{request:?}");
    }
    for epoch in [-1, 1, 7] {
        assert_eq!(refused(&mut client, &alive(epoch)), ErrorCode::GROUP_ID_NOT_FOUND, "{epoch}");
    }
    assert_eq!(describe(&mut client, &group).error_code, ErrorCode::GROUP_ID_NOT_FOUND);
    assert!(list(&mut client, &group).is_none(), "a refused join leaves no group behind");
}

#[test]
fn two_members_share_and_the_last_member_gets_all_partitions() {
    // With this setting, the broker always sends the same heartbeat interval, as Kafka does.
    let broker = Broker::start(&["fullbore.group.consumer.unsettled.heartbeat.interval.ms=0"]);
    let mut client = broker.client();
    let (group, topic) = (new_group(&broker, "share"), unique("t"));
    let id = client.create_topic(&topic, 4, &[]);
    let mut first = Member::new(&broker, &group, &[&topic]);
    let joined = first.join();
    assert_eq!((joined.error_code, joined.heartbeat_interval_ms), (ErrorCode::NONE, 5000));
    assert_eq!(joined.member_id.as_deref(), Some(first.id()));
    assert!(joined.assignment.is_some(), "a join is told its assignment, even if that is nothing yet");
    first.heartbeat_until_it_owns(4);
    let mut second = Member::new(&broker, &group, &[&topic]);
    second.join();
    wait_until("both have their share", SOON, || {
        first.heartbeat();
        second.heartbeat();
        assert!(first.reads.is_disjoint(&second.reads), "{:?} {:?}", first.reads, second.reads);
        first.reads.len() == 2 && second.reads.len() == 2
    });
    let described = describe(&mut client, &group);
    assert_eq!((&*described.group_state, &*described.assignor_name), ("Stable", "uniform"));
    assert_eq!(described.group_epoch, described.assignment_epoch);
    assert_eq!(described.members.len(), 2);
    for member in &described.members {
        assert_eq!(member.member_epoch, described.group_epoch);
        assert_eq!(member.assignment, member.target_assignment);
        assert_eq!((member.member_type, &*member.client_id), (1, "fullbore-tests"));
        assert_eq!(member.subscribed_topic_names, [Text::from(&*topic)]);
        let assigned = &member.assignment.topic_partitions[0];
        assert_eq!((assigned.topic_id, &*assigned.topic_name, assigned.partitions.len()), (id, &*topic, 2));
    }
    let listed = list(&mut client, &group).expect("it is listed");
    assert_eq!((&*listed.protocol_type, &*listed.group_state, &*listed.group_type), ("consumer", "Stable", "consumer"));

    assert_eq!(delete(&mut client, &group), ErrorCode::NON_EMPTY_GROUP);
    let left = second.leave(-1);
    assert_eq!((left.error_code, left.member_epoch, left.heartbeat_interval_ms), (ErrorCode::NONE, -1, 0));
    first.heartbeat_until_it_owns(4);
    first.leave(-1);
    assert_eq!(&*describe(&mut client, &group).group_state, "Empty");
    assert_eq!(refused(&mut client, &heartbeat(&group, first.id(), 1)), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(delete(&mut client, &group), ErrorCode::NONE);
    assert_eq!(describe(&mut client, &group).error_code, ErrorCode::GROUP_ID_NOT_FOUND);
}

fn delete(client: &mut fullbore_tests::Client, group: &str) -> ErrorCode {
    let request = DeleteGroupsRequest { groups_names: vec![Text::from(group)], ..Default::default() };
    client.call(&request, 2).results[0].error_code
}

#[test]
fn old_member_epochs_are_fenced() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (group, topic) = (new_group(&broker, "fence"), unique("t"));
    client.create_topic(&topic, 2, &[]);
    let mut member = Member::new(&broker, &group, &[&topic]);
    member.join();
    member.heartbeat_until_it_owns(2);
    let epoch = member.epoch;
    assert_eq!(refused(&mut client, &heartbeat(&group, member.id(), epoch + 1)), ErrorCode::FENCED_MEMBER_EPOCH);
    assert_eq!(refused(&mut client, &heartbeat(&group, "stranger", 1)), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(refused(&mut client, &heartbeat(&group, "stranger", -1)), ErrorCode::UNKNOWN_MEMBER_ID);
    // The fenced member joins again under its id and gets its whole assignment.
    let again = client.call(&join_request(&group, member.id(), &[&topic]), 1);
    assert_eq!((again.error_code, again.member_epoch), (ErrorCode::NONE, epoch));
    assert_eq!(again.assignment.expect("all of it").topic_partitions[0].partitions, [0, 1]);
}

#[test]
fn version_0_gets_a_member_id() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let group = new_group(&broker, "v0");
    let request = join_request(&group, "", &["nothing-there"]);
    let joined = client.call(&request, 0);
    assert_eq!(joined.error_code, ErrorCode::NONE);
    assert!(joined.member_id.is_some_and(|id| !id.is_empty()));
}

#[test]
fn a_static_member_keeps_its_share_while_it_is_away() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (group, topic) = (new_group(&broker, "static"), unique("t"));
    client.create_topic(&topic, 2, &[]);
    let mut first = Member::named(&broker, &group, &[&topic], "s");
    first.join();
    first.heartbeat_until_it_owns(2);
    let group_epoch = describe(&mut client, &group).group_epoch;
    let mut second = Member::named(&broker, &group, &[&topic], "s");
    assert_eq!(refused(&mut client, &second.join_request()), ErrorCode::UNRELEASED_INSTANCE_ID);
    let stranger =
        ConsumerGroupHeartbeatRequest { instance_id: Some(Text::from("s")), ..heartbeat(&group, second.id(), 1) };
    assert_eq!(refused(&mut client, &stranger), ErrorCode::FENCED_INSTANCE_ID);
    let unknown =
        ConsumerGroupHeartbeatRequest { instance_id: Some(Text::from("x")), ..heartbeat(&group, first.id(), 1) };
    assert_eq!(refused(&mut client, &unknown), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(first.leave(-2).member_epoch, -2);
    let away = describe(&mut client, &group);
    assert_eq!((away.members[0].member_epoch, away.group_epoch), (-2, group_epoch));
    let back = second.join();
    assert_eq!((back.member_epoch, second.reads.len()), (group_epoch, 2), "at once, in the epoch that was");
    assert_eq!(describe(&mut client, &group).members.len(), 1);
    let old = ConsumerGroupHeartbeatRequest { instance_id: Some(Text::from("s")), ..heartbeat(&group, first.id(), 1) };
    assert_eq!(refused(&mut client, &old), ErrorCode::FENCED_INSTANCE_ID);
}

#[test]
fn an_expression_adds_topics_as_they_are_created() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (group, prefix) = (new_group(&broker, "regex"), unique("orders"));
    client.create_topic(&format!("{prefix}-1"), 2, &[]);
    client.create_topic(&format!("x{prefix}-1"), 2, &[]);
    let invalid = ConsumerGroupHeartbeatRequest {
        subscribed_topic_regex: Some(Text::from("orders[")),
        ..join_request(&group, "m", &[])
    };
    assert_eq!(refused(&mut client, &invalid), ErrorCode::INVALID_REGULAR_EXPRESSION);
    let mut member = Member::new(&broker, &group, &[]);
    member.regex = Some(format!("{prefix}-[0-9]+"));
    member.join();
    member.heartbeat_until_it_owns(2);
    assert_eq!(describe(&mut client, &group).members[0].subscribed_topic_regex.as_deref(), member.regex.as_deref());
    client.create_topic(&format!("{prefix}-2"), 3, &[]);
    member.heartbeat_until_it_owns(5);
}

/// An expression that matches the name of an internal topic subscribes to it, as in Kafka.
#[test]
fn an_expression_matches_internal_topics_too() {
    let broker = Broker::start(&["offsets.topic.num.partitions=3"]);
    let mut client = broker.client();
    client.create_topic("ordinary", 2, &[]);
    let mut member = Member::new(&broker, &new_group(&broker, "regex"), &[]);
    member.regex = Some(".*".to_owned());
    member.join();
    member.heartbeat_until_it_owns(5);
}

#[test]
fn a_group_grows_with_its_topic() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (group, topic) = (new_group(&broker, "grow"), unique("t"));
    let mut member = Member::new(&broker, &group, &[&topic]);
    member.join();
    assert_eq!(member.reads.len(), 0, "there is no such topic yet");
    client.create_topic(&topic, 2, &[]);
    member.heartbeat_until_it_owns(2);
    client.delete_topic(&topic);
    member.heartbeat_until_it_owns(0);
}

#[test]
fn the_range_assignor_is_chosen_by_vote() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (group, topic) = (new_group(&broker, "range"), unique("t"));
    client.create_topic(&topic, 5, &[]);
    let mut members: Vec<Member> = (0..2).map(|_| Member::new(&broker, &group, &[&topic])).collect();
    for member in &mut members {
        member.assignor = Some("range");
        member.join();
    }
    wait_until("both have their range", SOON, || {
        members.iter_mut().for_each(|member| drop(member.heartbeat()));
        members.iter().map(|member| member.reads.len()).sum::<usize>() == 5
            && members.iter().all(|member| member.reads.len() >= 2)
    });
    let mut ranges: Vec<Vec<i32>> =
        members.iter().map(|member| member.reads.iter().map(|&(_, index)| index).collect()).collect();
    ranges.sort();
    assert_eq!(ranges, [vec![0, 1, 2], vec![3, 4]]);
    assert_eq!(&*describe(&mut client, &group).assignor_name, "range");
}

#[test]
fn a_restart_after_a_kill_keeps_the_members() {
    let mut broker = Broker::start(&[]);
    let group = unique("killed");
    broker.client().create_topic("t", 4, &[]);
    let mut members: Vec<Member> = (0..2).map(|_| Member::new(&broker, &group, &["t"])).collect();
    for member in &mut members {
        member.join();
    }
    wait_until("both have their share", SOON, || {
        members.iter_mut().for_each(|member| drop(member.heartbeat()));
        members.iter().all(|member| member.reads.len() == 2)
    });
    members.iter_mut().for_each(|member| drop(member.heartbeat()));
    let before = describe(&mut broker.client(), &group);
    assert_eq!(&*before.group_state, "Stable");
    broker.kill();
    broker.restart();
    assert_eq!(describe(&mut broker.client(), &group), before);
    for member in &mut members {
        member.reconnect(&broker);
        let (epoch, reads) = (member.epoch, member.reads.clone());
        member.heartbeat();
        assert_eq!((member.epoch, &member.reads), (epoch, &reads), "nothing has happened to it");
    }
    members[0].leave(-1);
    members[1].heartbeat_until_it_owns(4);
    assert!(members[1].epoch > before.group_epoch);
}

#[test]
fn kill_after_each_join_loses_no_member() {
    let mut broker = Broker::start(&[]);
    let group = unique("killed-often");
    broker.client().create_topic("t", 6, &[]);
    let mut members: Vec<Member> = Vec::new();
    for _ in 0..4 {
        let mut member = Member::new(&broker, &group, &["t"]);
        member.join();
        members.push(member);
        let before = describe(&mut broker.client(), &group);
        broker.kill();
        broker.restart();
        assert_eq!(describe(&mut broker.client(), &group), before);
        for member in &mut members {
            member.reconnect(&broker);
            member.heartbeat();
        }
    }
    wait_until("all have their share", SOON, || {
        members.iter_mut().for_each(|member| drop(member.heartbeat()));
        members.iter().map(|member| member.reads.len()).sum::<usize>() == 6
    });
}

/// Each member sends about 18 KB and subscribes to other topics than the rest.
#[test]
fn members_that_join_write_about_as_much_as_they_send() {
    const MEMBERS: usize = 150;
    let broker = Broker::start(&["offsets.topic.num.partitions=1"]);
    let (group, mut client) = (new_group(&broker, "wide"), broker.client());
    let mut sent = 0;
    for number in 0..MEMBERS {
        let names: Vec<String> = (0..600).map(|topic| format!("topic-of-{number:04}-is-{topic:04}-of-600")).collect();
        sent += names.iter().map(String::len).sum::<usize>();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(refused(&mut client, &join_request(&group, &format!("m{number}"), &names)), ErrorCode::NONE);
    }
    let size = |file: &std::path::PathBuf| file.metadata().expect("readable").len();
    let written: u64 = broker.partition_files("__consumer_offsets", 0, "log").iter().map(size).sum();
    assert!(written < 2 * sent as u64, "{written} bytes for {sent}");
}

#[test]
fn commits_are_fenced_by_epoch() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (group, topic) = (new_group(&broker, "commit"), unique("t"));
    client.create_topic(&topic, 2, &[]);
    let mut first = Member::new(&broker, &group, &[&topic]);
    first.join();
    first.heartbeat_until_it_owns(2);
    let stale = first.epoch;
    let mut second = Member::new(&broker, &group, &[&topic]);
    second.join();
    wait_until("both have their share", SOON, || {
        first.heartbeat();
        second.heartbeat();
        first.reads.len() == 1 && second.reads.len() == 1
    });
    first.heartbeat();
    second.heartbeat();
    let mut commit_in = |version: i16, id: &str, epoch: i32, partition: i32| {
        let partition =
            OffsetCommitRequestPartition { partition_index: partition, committed_offset: 7, ..Default::default() };
        let name = Text::from(topic.as_str());
        let request = OffsetCommitRequest {
            group_id: Text::from(group.as_str()),
            generation_id_or_member_epoch: epoch,
            member_id: Text::from(id),
            topics: vec![OffsetCommitRequestTopic { name, partitions: vec![partition], ..Default::default() }],
            ..Default::default()
        };
        client.call(&request, version).topics[0].partitions[0].error_code
    };
    let kept = first.reads.first().expect("one").1;
    let moved = second.reads.first().expect("one").1;
    let unknown_epochs = commit_in(8, first.id(), first.epoch, kept);
    assert_eq!(unknown_epochs, ErrorCode::UNSUPPORTED_VERSION, "version 8 knows generations, not epochs");
    assert_eq!(commit_in(8, "stranger", first.epoch, kept), ErrorCode::UNKNOWN_MEMBER_ID, "whatever the version");
    let mut commit = |id: &str, epoch: i32, partition: i32| commit_in(9, id, epoch, partition);
    assert_eq!(commit(first.id(), first.epoch, kept), ErrorCode::NONE);
    assert_eq!(commit(first.id(), stale, kept), ErrorCode::NONE, "it has had it since");
    assert_eq!(commit(first.id(), stale, moved), ErrorCode::STALE_MEMBER_EPOCH);
    assert_eq!(commit(second.id(), stale, moved), ErrorCode::STALE_MEMBER_EPOCH, "it got it later");
    assert_eq!(commit(first.id(), first.epoch + 1, kept), ErrorCode::STALE_MEMBER_EPOCH);
    assert_eq!(commit("stranger", first.epoch, kept), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(commit("", -1, kept), ErrorCode::UNKNOWN_MEMBER_ID, "the group has members");

    let mut fetch = |id: Option<&str>, member_epoch: i32| {
        let (group_id, member_id) = (Text::from(group.as_str()), id.map(Text::from));
        let requested =
            OffsetFetchRequestGroup { group_id, member_id, member_epoch, topics: None, ..Default::default() };
        let request = OffsetFetchRequest { groups: vec![requested], ..Default::default() };
        client.call(&request, 9).groups[0].error_code
    };
    assert_eq!(fetch(None, -1), ErrorCode::NONE);
    assert_eq!(fetch(Some(first.id()), first.epoch), ErrorCode::NONE);
    assert_eq!(fetch(Some(first.id()), stale), ErrorCode::STALE_MEMBER_EPOCH);
    assert_eq!(fetch(Some("stranger"), 1), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_group_may_have_its_own_heartbeat_interval() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let group = new_group(&broker, "config");
    let set = AlterableConfig {
        name: Text::from("consumer.heartbeat.interval.ms"),
        config_operation: 0,
        value: Some(Text::from("7000")),
        ..Default::default()
    };
    let resource = AlterConfigsResource {
        resource_type: 32,
        resource_name: Text::from(group.as_str()),
        configs: vec![set],
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    assert_eq!(client.call(&request, 1).responses[0].error_code, ErrorCode::NONE);
    let mut member = Member::new(&broker, &group, &["t"]);
    member.join();
    wait_until("the group is held to it", SOON, || member.heartbeat().heartbeat_interval_ms == 7000);
}
