//! OffsetCommit and OffsetFetch in every version and with every error. The deletion of offsets is tested in `ends`.

mod ends;
mod unawaited;

use fullbore_tests::{Broker, Client, wait_until};
use fullbore_wire::apis::delete_groups::DeleteGroupsRequest;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use fullbore_wire::apis::leave_group::{LeaveGroupRequest, MemberIdentity};
use fullbore_wire::apis::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponse,
    OffsetCommitResponseTopic,
};
use fullbore_wire::apis::offset_delete::{OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use fullbore_wire::apis::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::time::Duration;

const OK: ErrorCode = ErrorCode::NONE;
const UNKNOWN: ErrorCode = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
/// The version of OffsetCommit that most tests use. It has topic names and all other fields.
const COMMIT: i16 = 9;
const FETCH: i16 = 9;

/// How long Apache Kafka (`FULLBORE_TEST_PEER`) may take to delete offsets after its response.
const DONE_MAX: Duration = Duration::from_secs(30);

/// Returns a name that no other test uses. A peer keeps its groups between tests.
fn unique(name: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    format!("{name}-{}", now.as_nanos())
}

fn partition(index: i32, offset: i64, metadata: Option<&str>) -> OffsetCommitRequestPartition {
    OffsetCommitRequestPartition {
        partition_index: index,
        committed_offset: offset,
        committed_leader_epoch: 3,
        committed_metadata: metadata.map(Text::from),
        ..Default::default()
    }
}

fn topic(name: &str, id: Uuid, partitions: Vec<OffsetCommitRequestPartition>) -> OffsetCommitRequestTopic {
    OffsetCommitRequestTopic { name: Text::from(name), topic_id: id, partitions, ..Default::default() }
}

fn commit_request(group: &str, topics: Vec<OffsetCommitRequestTopic>) -> OffsetCommitRequest {
    OffsetCommitRequest { group_id: Text::from(group), topics, ..Default::default() }
}

/// Returns the error codes of each topic, ordered by partition.
fn codes(response: &OffsetCommitResponse) -> Vec<Vec<ErrorCode>> {
    let of_topic = |topic: &OffsetCommitResponseTopic| {
        let mut partitions: Vec<_> = topic.partitions.iter().map(|p| (p.partition_index, p.error_code)).collect();
        partitions.sort();
        partitions.into_iter().map(|(_, code)| code).collect()
    };
    response.topics.iter().map(of_topic).collect()
}

/// Commits one offset of partition 0 without being a member of the group.
fn commit(client: &mut Client, group: &str, name: &str, offset: i64) -> ErrorCode {
    commit_as(client, group, name, offset, Member::none())
}

/// The member that commits. Without an id, the commit is that of no member.
#[derive(Clone)]
struct Member {
    id: Text,
    instance: Option<Text>,
    generation: i32,
}

impl Member {
    fn none() -> Member {
        Member { id: Text::default(), instance: None, generation: -1 }
    }
}

fn commit_as(client: &mut Client, group: &str, name: &str, offset: i64, member: Member) -> ErrorCode {
    commit_in(client, COMMIT, group, name, offset, member)
}

fn commit_in(client: &mut Client, version: i16, group: &str, name: &str, offset: i64, member: Member) -> ErrorCode {
    let topics = vec![topic(name, Uuid::ZERO, vec![partition(0, offset, Some("m"))])];
    let request = OffsetCommitRequest {
        generation_id_or_member_epoch: member.generation,
        member_id: member.id,
        group_instance_id: member.instance,
        ..commit_request(group, topics)
    };
    codes(&client.call(&request, version))[0][0]
}

/// Returns the committed offset of partition 0, or -1 if there is none.
fn committed(client: &mut Client, group: &str, name: &str) -> i64 {
    let topics =
        vec![OffsetFetchRequestTopics { name: Text::from(name), partition_indexes: vec![0], ..Default::default() }];
    let requested = OffsetFetchRequestGroup { topics: Some(topics), ..fetch_group(group) };
    let mut response = client.call(&OffsetFetchRequest { groups: vec![requested], ..Default::default() }, FETCH);
    let mut answered = response.groups.remove(0);
    assert_eq!(answered.error_code, OK);
    let partition = answered.topics.remove(0).partitions.remove(0);
    assert_eq!(partition.error_code, OK);
    partition.committed_offset
}

fn fetch_group(group: &str) -> OffsetFetchRequestGroup {
    OffsetFetchRequestGroup { group_id: Text::from(group), member_epoch: -1, ..Default::default() }
}

/// Returns every offset of a group in order: topic, partition, offset, epoch and metadata.
fn all(client: &mut Client, group: &str, version: i16) -> Vec<(String, i32, i64, i32, String)> {
    let requested = OffsetFetchRequest {
        group_id: Text::from(group),
        topics: None,
        groups: vec![OffsetFetchRequestGroup { topics: None, ..fetch_group(group) }],
        ..Default::default()
    };
    let requested = if version < 8 {
        OffsetFetchRequest { groups: vec![], ..requested }
    } else {
        OffsetFetchRequest { group_id: Text::default(), topics: Some(vec![]), ..requested }
    };
    let response = client.call(&requested, version);
    let mut found = Vec::new();
    for topic in &response.topics {
        assert_eq!(response.error_code, OK);
        for p in &topic.partitions {
            found.push((
                topic.name.to_string(),
                p.partition_index,
                p.committed_offset,
                p.committed_leader_epoch,
                p.metadata.as_deref().unwrap_or("null").to_owned(),
            ));
        }
    }
    for group in &response.groups {
        assert_eq!(group.error_code, OK);
        for topic in &group.topics {
            let name = if version < 10 { topic.name.to_string() } else { topic.topic_id.to_string() };
            for p in &topic.partitions {
                found.push((
                    name.clone(),
                    p.partition_index,
                    p.committed_offset,
                    p.committed_leader_epoch,
                    p.metadata.as_deref().unwrap_or("null").to_owned(),
                ));
            }
        }
    }
    found.sort();
    found
}

fn delete_groups(client: &mut Client, groups: &[&str], version: i16) -> Vec<(String, ErrorCode)> {
    let groups_names = groups.iter().map(|group| Text::from(*group)).collect();
    let response = client.call(&DeleteGroupsRequest { groups_names, ..Default::default() }, version);
    let mut results: Vec<_> =
        response.results.iter().map(|result| (result.group_id.to_string(), result.error_code)).collect();
    results.sort();
    results
}

fn delete_offsets(client: &mut Client, group: &str, partitions: &[(&str, i32)]) -> (ErrorCode, Vec<ErrorCode>) {
    let topic = |(name, index): &(&str, i32)| OffsetDeleteRequestTopic {
        name: Text::from(*name),
        partitions: vec![OffsetDeleteRequestPartition { partition_index: *index, ..Default::default() }],
        ..Default::default()
    };
    let topics = partitions.iter().map(topic).collect();
    let response = client.call(&OffsetDeleteRequest { group_id: Text::from(group), topics, ..Default::default() }, 0);
    let of_topic =
        |topic: &fullbore_wire::apis::offset_delete::OffsetDeleteResponseTopic| topic.partitions[0].error_code;
    (response.error_code, response.topics.iter().map(of_topic).collect())
}

/// Returns the encoded subscription of a consumer (ConsumerProtocolSubscription 0).
fn subscription(topics: &[&str]) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    bytes.extend(i32::try_from(topics.len()).expect("few").to_be_bytes());
    for topic in topics {
        bytes.extend(i16::try_from(topic.len()).expect("short").to_be_bytes());
        bytes.extend(topic.as_bytes());
    }
    bytes.extend((-1_i32).to_be_bytes());
    bytes
}

/// Joins an empty group as its only member and completes SyncGroup. Returns the member with its generation.
fn join(client: &mut Client, group: &str, kind: &str, instance: Option<&str>, topics: &[&str]) -> Member {
    let protocol = JoinGroupRequestProtocol {
        name: Text::from("range"),
        metadata: subscription(topics).into(),
        ..Default::default()
    };
    let request = JoinGroupRequest {
        group_id: Text::from(group),
        session_timeout_ms: 30_000,
        rebalance_timeout_ms: 30_000,
        group_instance_id: instance.map(Text::from),
        protocol_type: Text::from(kind),
        protocols: vec![protocol],
        ..Default::default()
    };
    let mut response = client.call(&request, 7);
    if response.error_code == ErrorCode::MEMBER_ID_REQUIRED {
        response = client.call(&JoinGroupRequest { member_id: response.member_id, ..request }, 7);
    }
    assert_eq!(response.error_code, OK);
    Member { id: response.member_id, instance: instance.map(Text::from), generation: response.generation_id }
}

fn sync(client: &mut Client, group: &str, member: &Member) {
    let assignment = SyncGroupRequestAssignment { member_id: member.id.clone(), ..Default::default() };
    let request = SyncGroupRequest {
        group_id: Text::from(group),
        generation_id: member.generation,
        member_id: member.id.clone(),
        group_instance_id: member.instance.clone(),
        assignments: vec![assignment],
        ..Default::default()
    };
    assert_eq!(client.call(&request, 3).error_code, OK);
}

fn leave(client: &mut Client, group: &str, member: &Member) {
    let identity = MemberIdentity {
        member_id: member.id.clone(),
        group_instance_id: member.instance.clone(),
        ..Default::default()
    };
    let request = LeaveGroupRequest { group_id: Text::from(group), members: vec![identity], ..Default::default() };
    assert_eq!(client.call(&request, 4).error_code, OK);
}

#[test]
fn every_version_commits_and_every_version_fetches() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let name = unique("versions");
    let id = client.create_topic(&name, 2, &[]);
    for version in 2..=10_i16 {
        let group = unique("versions");
        let offset = i64::from(version) << 33;
        let topics = vec![topic(
            if version < 10 { &name } else { "" },
            if version < 10 { Uuid::ZERO } else { id },
            vec![partition(0, offset, None), partition(1, 0, Some("später"))],
        )];
        let response = client.call(&commit_request(&group, topics), version);
        assert_eq!(codes(&response), [[OK, OK]], "OffsetCommit {version}");
        for fetch in 2..=10 {
            let of = if fetch < 10 { name.clone() } else { id.to_string() };
            let epoch = if fetch < 5 || version < 6 { -1 } else { 3 };
            let expected = [(of.clone(), 0, offset, epoch, String::new()), (of, 1, 0, epoch, "später".to_owned())];
            assert_eq!(all(&mut client, &group, fetch), expected, "OffsetCommit {version}, OffsetFetch {fetch}");
        }
    }
}

#[test]
fn partitions_without_an_offset_are_no_error() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (name, group) = (unique("none"), unique("none"));
    let id = client.create_topic(&name, 3, &[]);
    assert_eq!(commit(&mut client, &group, &name, 7), OK);
    for version in 1..=7 {
        let requested = OffsetFetchRequestTopic {
            name: Text::from(name.as_str()),
            partition_indexes: vec![2, 0, 9],
            ..Default::default()
        };
        let unknown =
            OffsetFetchRequestTopic { name: Text::from("nowhere"), partition_indexes: vec![0], ..Default::default() };
        let request = OffsetFetchRequest {
            group_id: Text::from(group.as_str()),
            topics: Some(vec![requested, unknown]),
            ..Default::default()
        };
        let response = client.call(&request, version);
        assert_eq!(response.error_code, OK);
        let flat: Vec<_> = response
            .topics
            .iter()
            .flat_map(|t| {
                t.partitions.iter().map(|p| {
                    (
                        t.name.to_string(),
                        p.partition_index,
                        p.committed_offset,
                        p.committed_leader_epoch,
                        p.metadata.as_deref().map(str::to_owned),
                        p.error_code,
                    )
                })
            })
            .collect();
        let epoch = if version < 5 { -1 } else { 3 };
        let none = |name: &str, index| (name.to_owned(), index, -1, -1, Some(String::new()), OK);
        assert_eq!(
            flat,
            [none(&name, 2), (name.clone(), 0, 7, epoch, Some("m".to_owned()), OK), none(&name, 9), none("nowhere", 0)],
            "OffsetFetch {version}"
        );
    }
    for (version, of, by) in [(8, name.as_str(), Uuid::ZERO), (9, name.as_str(), Uuid::ZERO), (10, "", id)] {
        let topic = |name: &str, id, indexes: &[i32]| OffsetFetchRequestTopics {
            name: Text::from(name),
            topic_id: id,
            partition_indexes: indexes.to_vec(),
            ..Default::default()
        };
        let stranger = Uuid([7; 16]);
        let groups = vec![
            OffsetFetchRequestGroup {
                topics: Some(vec![
                    topic(of, by, &[2, 0]),
                    topic(
                        if version < 10 { "nowhere" } else { "" },
                        if version < 10 { Uuid::ZERO } else { stranger },
                        &[0],
                    ),
                ]),
                ..fetch_group(&group)
            },
            OffsetFetchRequestGroup { topics: Some(vec![topic(of, by, &[0])]), ..fetch_group("no-such-group") },
            OffsetFetchRequestGroup { topics: None, ..fetch_group("no-such-group-either") },
        ];
        let response = client.call(&OffsetFetchRequest { groups, require_stable: true, ..Default::default() }, version);
        let flat: Vec<Vec<Vec<_>>> = response
            .groups
            .iter()
            .map(|g| {
                assert_eq!(g.error_code, OK);
                g.topics
                    .iter()
                    .map(|t| {
                        t.partitions.iter().map(|p| (p.partition_index, p.committed_offset, p.error_code)).collect()
                    })
                    .collect()
            })
            .collect();
        let unknown = if version < 10 { OK } else { ErrorCode::UNKNOWN_TOPIC_ID };
        assert_eq!(
            flat,
            [vec![vec![(2, -1, OK), (0, 7, OK)], vec![(0, -1, unknown)]], vec![vec![(0, -1, OK)]], vec![]],
            "OffsetFetch {version}"
        );
    }
}

#[test]
fn each_partition_of_a_commit_has_its_own_error() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (name, group) = (unique("each"), unique("each"));
    let id = client.create_topic(&name, 2, &[]);
    let long = "ü".repeat(4096);
    let too_long = format!("{long}ü");
    let partitions = |first: i64| {
        vec![
            partition(0, first, Some(&long)),
            partition(1, 1, Some(&too_long)),
            partition(2, 1, None),
            partition(-1, 1, None),
        ]
    };
    let topics =
        vec![topic("nowhere", Uuid::ZERO, vec![partition(0, 1, None)]), topic(&name, Uuid::ZERO, partitions(5))];
    let large = ErrorCode::OFFSET_METADATA_TOO_LARGE;
    let response = client.call(&commit_request(&group, topics), COMMIT);
    assert_eq!(codes(&response), [vec![UNKNOWN], vec![UNKNOWN, OK, large, UNKNOWN]]);
    let response = client.call(
        &commit_request(
            &group,
            vec![
                topic("", Uuid([9; 16]), vec![partition(0, 1, None)]),
                topic("", Uuid::ZERO, vec![partition(0, 1, None)]),
                topic("", id, partitions(6)),
            ],
        ),
        10,
    );
    let mut found = codes(&response);
    found.sort();
    assert_eq!(
        found,
        [vec![UNKNOWN, OK, large, UNKNOWN], vec![ErrorCode::UNKNOWN_TOPIC_ID], vec![ErrorCode::UNKNOWN_TOPIC_ID]]
    );
    assert_eq!(all(&mut client, &group, 9), [(name.clone(), 0, 6, 3, long.clone())]);
    let nothing = client.call(&commit_request(&unique("nothing"), vec![]), COMMIT);
    assert!(nothing.topics.is_empty());
}

#[test]
fn commit_by_a_nonmember_succeeds_only_for_an_empty_group() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    let mut client = broker.client();
    let (name, group) = (unique("outside"), unique("outside"));
    client.create_topic(&name, 1, &[]);
    let stranger = Member { id: Text::from("stranger"), ..Member::none() };
    assert_eq!(commit(&mut client, &group, &name, 1), OK);
    assert_eq!(commit_as(&mut client, &group, &name, 2, stranger.clone()), OK);
    for (version, expected) in [(8, ErrorCode::ILLEGAL_GENERATION), (9, ErrorCode::GROUP_ID_NOT_FOUND)] {
        let late = Member { generation: 4, ..stranger.clone() };
        assert_eq!(commit_in(&mut client, version, &unique("no-such-group"), &name, 3, late), expected);
    }
    let late = Member { generation: 4, ..stranger.clone() };
    assert_eq!(commit_as(&mut client, &group, &name, 3, late), ErrorCode::UNKNOWN_MEMBER_ID);
    let member = join(&mut client, &group, "consumer", None, &[&name]);
    assert_eq!(commit(&mut client, &group, &name, 4), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(committed(&mut client, &group, &name), 2);
    leave(&mut client, &group, &member);
    assert_eq!(commit(&mut client, &group, &name, 5), OK);
    assert_eq!(committed(&mut client, &group, &name), 5);
}

#[test]
fn a_member_commits_in_its_generation() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    let mut client = broker.client();
    let (name, group) = (unique("member"), unique("member"));
    client.create_topic(&name, 1, &[]);
    let member = join(&mut client, &group, "consumer", None, &[&name]);
    assert_eq!(
        commit_as(&mut client, &group, &name, 1, member.clone()),
        ErrorCode::REBALANCE_IN_PROGRESS,
        "its assignment is not known"
    );
    sync(&mut client, &group, &member);
    assert_eq!(commit_as(&mut client, &group, &name, 2, member.clone()), OK);
    let wrong = |generation| Member { generation, ..member.clone() };
    assert_eq!(commit_as(&mut client, &group, &name, 3, wrong(member.generation + 1)), ErrorCode::ILLEGAL_GENERATION);
    assert_eq!(commit_as(&mut client, &group, &name, 3, wrong(-1)), ErrorCode::ILLEGAL_GENERATION);
    let other = Member { id: Text::from("other"), ..member.clone() };
    assert_eq!(commit_as(&mut client, &group, &name, 3, other), ErrorCode::UNKNOWN_MEMBER_ID);
    let unknown_instance = Member { instance: Some(Text::from("i")), ..member.clone() };
    assert_eq!(commit_as(&mut client, &group, &name, 3, unknown_instance), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(committed(&mut client, &group, &name), 2);

    let fixed = unique("static");
    let first = join(&mut client, &fixed, "consumer", Some("i"), &[&name]);
    sync(&mut client, &fixed, &first);
    assert_eq!(commit_as(&mut client, &fixed, &name, 1, first.clone()), OK);
    let second = join(&mut client, &fixed, "consumer", Some("i"), &[&name]);
    assert_eq!(commit_as(&mut client, &fixed, &name, 2, first), ErrorCode::FENCED_INSTANCE_ID);
    sync(&mut client, &fixed, &second);
    assert_eq!(commit_as(&mut client, &fixed, &name, 3, second), OK);
    assert_eq!(committed(&mut client, &fixed, &name), 3);
}

#[test]
fn the_group_without_a_name_may_commit() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let name = unique("nameless");
    client.create_topic(&name, 1, &[]);
    assert_eq!(commit(&mut client, "", &name, 4), OK);
    assert_eq!(committed(&mut client, "", &name), 4);
    assert_eq!(delete_groups(&mut client, &[""], 2), [(String::new(), OK)]);
    assert_eq!(committed(&mut client, "", &name), -1);
}

#[test]
fn a_commit_of_thousands_of_partitions_survives_a_kill() {
    let mut broker = Broker::start(&["fullbore.offsets.max=5000"]);
    let mut client = broker.client();
    client.create_topic("wide", 5_010, &[]);
    let wide = |offset| {
        let partitions = (0..5_010).map(|index| partition(index, offset + i64::from(index), None)).collect();
        commit_request("wide", vec![topic("wide", Uuid::ZERO, partitions)])
    };
    for offset in [0, 100_000] {
        let found = codes(&client.call(&wide(offset), COMMIT)).remove(0);
        assert_eq!(found[..5_000], [OK; 5_000]);
        assert_eq!(found[5_000..], [ErrorCode::INVALID_COMMIT_OFFSET_SIZE; 10]);
    }
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    let found = all(&mut client, "wide", 9);
    assert_eq!(found.len(), 5_000);
    assert!(found.iter().all(|(_, index, offset, ..)| *offset == 100_000 + i64::from(*index)));
    assert_eq!(commit(&mut client, "other", "wide", 1), ErrorCode::INVALID_COMMIT_OFFSET_SIZE);
    assert_eq!(delete_offsets(&mut client, "wide", &[("wide", 4_999)]), (OK, vec![OK]));
    assert_eq!(commit(&mut client, "other", "wide", 1), OK);
}

#[test]
fn duplicate_names_in_a_request_are_answered_once() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    let metadata = "m".repeat(4_096);
    let topics = vec![topic("t", Uuid::ZERO, vec![partition(0, 1, Some(&metadata)), partition(0, 2, Some(&metadata))])];
    assert_eq!(codes(&client.call(&commit_request("g", topics), COMMIT)), [[OK, OK]]);
    let topic =
        OffsetFetchRequestTopics { name: Text::from("t"), partition_indexes: vec![0; 100_000], ..Default::default() };
    let group = OffsetFetchRequestGroup { topics: Some(vec![topic.clone(), topic]), ..fetch_group("g") };
    let request = OffsetFetchRequest { groups: vec![group.clone(), group], ..Default::default() };
    let response = client.call(&request, FETCH);
    let found: Vec<i64> = response
        .groups
        .iter()
        .flat_map(|g| &g.topics)
        .flat_map(|t| &t.partitions)
        .map(|p| p.committed_offset)
        .collect();
    assert_eq!(found, [2], "the last of a commit counts");
    assert_eq!(delete_groups(&mut client, &["g", "g"], 2), [("g".to_owned(), OK)]);
}
