//! Tests of members in a group, case by case.

mod keeping;
mod regexes;

use super::*;
use crate::group::consumer::commit::CommitPermission;
use crate::group::{Change, Committer, SnapshotError};
use fullbore_wire::apis::consumer_group_heartbeat::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions,
};

const A: Uuid = Uuid([1; 16]);
const B: Uuid = Uuid([2; 16]);
const PARTS: Uuid = Uuid([9; 16]);

struct Table(u64, Vec<(&'static str, Uuid, i32)>);

impl Topics for Table {
    fn version(&self) -> u64 {
        self.0
    }
    fn find(&self, name: &str) -> Option<(Uuid, i32)> {
        self.1.iter().find(|(known, ..)| *known == name).map(|&(_, id, count)| (id, count))
    }
}

/// A group under test, with two topics of four partitions and a clock.
struct Stage {
    group: ConsumerGroup,
    table: Table,
    settings: ConsumerGroupSettings,
    now: i64,
}

type HeartbeatOutcome = Result<ConsumerGroupHeartbeatResponse, GroupRefusal>;

impl Stage {
    fn new() -> Stage {
        let settings = ConsumerGroupSettings {
            is_enabled: true,
            migration: Migration::Bidirectional,
            session_timeout_ms: 45_000,
            heartbeat_interval_ms: 5_000,
            unsettled_interval_ms: 0,
            assignment_interval_ms: 0,
            members_max: 3,
            assignors: &Assignor::ALL,
            regex_refresh_ms: 600_000,
        };
        let table = Table(1, vec![("a", A, 4), ("b", B, 4)]);
        Stage { group: ConsumerGroup::new(0, PARTS, 0), table, settings, now: 0 }
    }

    fn send(&mut self, request: ConsumerGroupHeartbeatRequest) -> HeartbeatOutcome {
        self.send_resolved(request, Vec::new())
    }

    fn send_resolved(&mut self, request: ConsumerGroupHeartbeatRequest, resolved: Vec<Resolved>) -> HeartbeatOutcome {
        check_request(&request, 1, &self.settings)?;
        let call = Call {
            request: &request,
            fresh_id: Text::from("fresh"),
            fresh_parts_id: PARTS,
            client_id: "client",
            client_host: "/host",
            resolved,
            resolved_version: self.table.0,
        };
        self.group.heartbeat(call, &self.table, &self.settings, self.now)
    }

    fn join(&mut self, id: &str, topics: &[&str]) -> ConsumerGroupHeartbeatResponse {
        self.send(joining(id, topics)).expect("it may join")
    }

    fn join_static(&mut self, id: &str, instance: &str) -> HeartbeatOutcome {
        self.send(ConsumerGroupHeartbeatRequest { instance_id: Some(Text::from(instance)), ..joining(id, &["a"]) })
    }

    /// Sends a heartbeat that changes nothing.
    fn heartbeat(&mut self, id: &str, epoch: i32) -> HeartbeatOutcome {
        self.send(heartbeat_of(id, epoch))
    }

    fn report(&mut self, id: &str, epoch: i32, owned: &[i32]) -> HeartbeatOutcome {
        self.send(ConsumerGroupHeartbeatRequest { topic_partitions: Some(of_a(owned)), ..heartbeat_of(id, epoch) })
    }

    /// Returns the group as a restart restores it.
    fn restored(&self) -> ConsumerGroup {
        self.restored_from(&self.group.records()).expect("our own records")
    }

    fn restored_from(&self, records: &Change) -> Result<ConsumerGroup, SnapshotError> {
        let head = records.group.as_ref().expect("the group's own record").state.slice(1..);
        let parts = records.parts.iter().filter_map(|(key, value)| Some((*key, value.clone()?))).collect();
        ConsumerGroup::restore(head, &parts, &self.table, &self.settings, self.now)
    }

    fn state_of(&self, id: &str) -> (MemberState, i32) {
        let member = self.group.member(id).expect("it is a member");
        (member.state, member.epoch)
    }
}

fn joining(id: &str, topics: &[&str]) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: Text::from("g"),
        member_id: Text::from(id),
        rebalance_timeout_ms: 10_000,
        subscribed_topic_names: Some(topics.iter().map(|&topic| Text::from(topic)).collect()),
        topic_partitions: Some(Vec::new()),
        ..ConsumerGroupHeartbeatRequest::default()
    }
}

fn heartbeat_of(id: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: Text::from("g"),
        member_id: Text::from(id),
        member_epoch: epoch,
        ..ConsumerGroupHeartbeatRequest::default()
    }
}

fn of_a(partitions: &[i32]) -> Vec<TopicPartitions> {
    if partitions.is_empty() {
        return Vec::new();
    }
    vec![TopicPartitions { topic_id: A, partitions: partitions.to_vec(), ..TopicPartitions::default() }]
}

/// Returns the partitions of topic `a` that a response assigns; None if it has no assignment.
fn given(answer: &ConsumerGroupHeartbeatResponse) -> Option<Vec<i32>> {
    let assignment = answer.assignment.as_ref()?;
    let of_a = assignment.topic_partitions.iter().filter(|topic| topic.topic_id == A);
    Some(of_a.flat_map(|topic| topic.partitions.clone()).collect())
}

fn code(outcome: HeartbeatOutcome) -> ErrorCode {
    outcome.expect_err("it is refused").code
}

#[test]
fn second_member_waits_until_the_first_has_given_up() {
    let mut stage = Stage::new();
    let first = stage.join("m1", &["a"]);
    assert_eq!((first.member_epoch, first.heartbeat_interval_ms), (1, 5_000));
    assert_eq!(given(&first), Some(vec![0, 1, 2, 3]));
    assert_eq!(stage.group.state(), GroupState::Stable);

    let second = stage.join("m2", &["a"]);
    assert_eq!((second.member_epoch, given(&second)), (2, Some(vec![])), "all of it is held by the first");
    assert_eq!(stage.state_of("m2"), (MemberState::UnreleasedPartitions, 2));
    assert_eq!(stage.group.state(), GroupState::Reconciling);

    let reported = stage.heartbeat("m1", 1).unwrap();
    assert_eq!(
        (reported.member_epoch, given(&reported)),
        (1, Some(vec![0, 1])),
        "it stays in its epoch until it has revoked"
    );
    assert_eq!(stage.state_of("m1"), (MemberState::UnrevokedPartitions, 1));
    assert_eq!(given(&stage.heartbeat("m2", 2).unwrap()), None);
    assert_eq!(given(&stage.report("m1", 1, &[0, 1, 2]).unwrap()), None, "2 is still owned");
    assert_eq!(stage.state_of("m1"), (MemberState::UnrevokedPartitions, 1));

    let done = stage.report("m1", 1, &[0, 1]).unwrap();
    assert_eq!((done.member_epoch, given(&done)), (2, None), "nothing is assigned to it that was not");
    assert_eq!(given(&stage.heartbeat("m2", 2).unwrap()), Some(vec![2, 3]));
    assert_eq!(stage.group.state(), GroupState::Stable);
    assert_eq!(given(&stage.heartbeat("m2", 2).unwrap()), None, "told once");
}

#[test]
fn lost_response_previous_epoch_is_accepted() {
    let mut stage = Stage::new();
    stage.join("m1", &["a"]);
    stage.join("m2", &["a"]);
    stage.heartbeat("m1", 1).unwrap();
    stage.report("m1", 1, &[0, 1]).unwrap();
    // The response with epoch 2 was lost, so the client is still in epoch 1.
    assert_eq!(code(stage.heartbeat("m1", 1)), ErrorCode::FENCED_MEMBER_EPOCH, "it does not say what it owns");
    assert_eq!(code(stage.report("m1", 1, &[0, 1, 2])), ErrorCode::FENCED_MEMBER_EPOCH, "2 is not its own any more");
    assert_eq!(stage.report("m1", 1, &[0]).unwrap().member_epoch, 2);
    assert_eq!(code(stage.heartbeat("m1", 3)), ErrorCode::FENCED_MEMBER_EPOCH);
    assert_eq!(code(stage.report("m2", 1, &[])), ErrorCode::FENCED_MEMBER_EPOCH, "1 was never its epoch");
    let full = ConsumerGroupHeartbeatRequest { member_epoch: 2, ..joining("m1", &["a"]) };
    assert_eq!(given(&stage.send(full).unwrap()), Some(vec![0, 1]), "a heartbeat that says all is told all");
}

#[test]
fn fenced_member_rejoins_and_gets_a_full_response() {
    let mut stage = Stage::new();
    stage.join("m1", &["a"]);
    let again = stage.join("m1", &["a"]);
    assert_eq!((again.member_epoch, given(&again)), (1, Some(vec![0, 1, 2, 3])));
    assert_eq!(stage.group.group_epoch(), 1, "nothing has changed for the group");
}

#[test]
fn member_that_leaves_makes_room() {
    let mut stage = Stage::new();
    stage.join("m1", &["a"]);
    stage.join("m2", &["a"]);
    let gone = stage.heartbeat("m1", LEAVING).unwrap();
    assert_eq!((gone.member_epoch, gone.assignment), (LEAVING, None));
    assert_eq!((stage.group.group_epoch(), stage.group.assignment_epoch()), (3, 2));
    assert_eq!(stage.group.state(), GroupState::Assigning);
    let next = stage.heartbeat("m2", 2).unwrap();
    assert_eq!((next.member_epoch, given(&next)), (3, Some(vec![0, 1, 2, 3])));
    stage.now = 7;
    stage.heartbeat("m2", LEAVING).unwrap();
    assert_eq!((stage.group.state(), stage.group.empty_since()), (GroupState::Empty, Some(7)));
    assert_eq!(code(stage.heartbeat("m2", 3)), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(code(stage.heartbeat("m2", LEAVING)), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(stage.join("m3", &["a"]).member_epoch, 5, "epochs go on");
}

#[test]
fn silent_member_is_fenced() {
    let mut stage = Stage::new();
    stage.join("m1", &["a"]);
    stage.now = 44_999;
    assert_eq!(stage.group.tick(stage.now), []);
    stage.heartbeat("m1", 1).unwrap();
    assert_eq!(stage.group.next_deadline(), Some(44_999 + 45_000));
    stage.now = 44_999 + 45_000;
    let fenced = stage.group.tick(stage.now);
    assert_eq!(fenced.len(), 1);
    assert_eq!((&*fenced[0].member_id, fenced[0].waited_for), ("m1", "a heartbeat"));
    assert_eq!(code(stage.heartbeat("m1", 1)), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn member_that_does_not_give_up_in_time_is_fenced() {
    let mut stage = Stage::new();
    stage.join("m1", &["a"]);
    stage.join("m2", &["a"]);
    stage.heartbeat("m1", 1).unwrap();
    stage.now = 9_000;
    stage.heartbeat("m1", 1).unwrap();
    assert_eq!(stage.group.next_deadline(), Some(10_000), "its time runs from when it was first told");
    stage.now = 10_000;
    assert_eq!(stage.group.tick(stage.now)[0].waited_for, "the revocation of partitions");
    assert_eq!(given(&stage.heartbeat("m2", 2).unwrap()), Some(vec![0, 1, 2, 3]));
}

#[test]
fn static_member_returns_to_its_partitions() {
    let mut stage = Stage::new();
    assert_eq!(given(&stage.join_static("m1", "s").unwrap()), Some(vec![0, 1, 2, 3]));
    assert_eq!(code(stage.join_static("m2", "s")), ErrorCode::UNRELEASED_INSTANCE_ID);
    let with = |request| ConsumerGroupHeartbeatRequest { instance_id: Some(Text::from("s")), ..request };
    assert_eq!(code(stage.send(with(heartbeat_of("m2", 1)))), ErrorCode::FENCED_INSTANCE_ID);
    assert_eq!(code(stage.send(with(heartbeat_of("m2", LEAVING)))), ErrorCode::FENCED_INSTANCE_ID);
    let unknown = ConsumerGroupHeartbeatRequest { instance_id: Some(Text::from("x")), ..heartbeat_of("m1", 1) };
    assert_eq!(code(stage.send(unknown)), ErrorCode::UNKNOWN_MEMBER_ID);

    stage.send(with(heartbeat_of("m1", LEAVING_TO_RETURN))).unwrap();
    assert_eq!(stage.group.group_epoch(), 1, "nobody else is bothered");
    assert_eq!(given(&stage.join("m9", &["a"])), Some(vec![]), "what is kept for it is held");
    assert_eq!(code(stage.send(with(heartbeat_of("m1", 1)))), ErrorCode::FENCED_MEMBER_EPOCH, "it has left");
    let back = stage.join_static("m3", "s").unwrap();
    assert_eq!((back.member_epoch, given(&back)), (2, Some(vec![0, 1])), "its share in the group of two");
    assert_eq!(stage.group.members().len(), 2);
    assert_eq!(code(stage.send(with(heartbeat_of("m1", 1)))), ErrorCode::FENCED_INSTANCE_ID);
}

#[test]
fn static_member_that_stays_away_is_fenced() {
    let mut stage = Stage::new();
    stage.join_static("m1", "s").unwrap();
    stage.send(ConsumerGroupHeartbeatRequest { instance_id: Some(Text::from("s")), ..heartbeat_of("m1", -2) }).unwrap();
    stage.now = 45_000;
    assert_eq!(stage.group.tick(stage.now).len(), 1);
    assert_eq!(stage.group.state(), GroupState::Empty);
    assert_eq!(given(&stage.join_static("m2", "s").unwrap()), Some(vec![0, 1, 2, 3]));
}

#[test]
fn full_group_refuses_another_member() {
    let mut stage = Stage::new();
    for id in ["m1", "m2", "m3"] {
        stage.join(id, &["a"]);
    }
    assert_eq!(code(stage.send(joining("m4", &["a"]))), ErrorCode::GROUP_MAX_SIZE_REACHED);
    stage.join("m3", &["a"]);
}

#[test]
fn changed_topics_raise_the_epoch() {
    let mut stage = Stage::new();
    stage.join("m1", &["a", "c"]);
    stage.table = Table(2, vec![("a", A, 4), ("b", B, 8)]);
    assert_eq!(stage.heartbeat("m1", 1).unwrap().member_epoch, 1, "b is nothing to it");
    stage.table = Table(3, vec![("a", A, 5), ("b", B, 8)]);
    let grown = stage.heartbeat("m1", 1).unwrap();
    assert_eq!((grown.member_epoch, given(&grown)), (2, Some(vec![0, 1, 2, 3, 4])));
    stage.table = Table(4, vec![("a", A, 5), ("c", B, 1)]);
    assert_eq!(stage.heartbeat("m1", 2).unwrap().member_epoch, 3, "c has come");
    stage.table = Table(5, vec![("c", B, 1)]);
    let deleted = stage.heartbeat("m1", 3).unwrap();
    assert_eq!((deleted.member_epoch, given(&deleted)), (3, Some(vec![])), "a is gone: it must let go of it");
    stage.report("m1", 3, &[]).unwrap();
    assert_eq!(stage.state_of("m1"), (MemberState::Stable, 4));
    assert!(stage.group.reads("a") && stage.group.reads("c") && !stage.group.reads("b"));
}

#[test]
fn unsubscribed_partitions_are_revoked_before_a_new_target() {
    let mut stage = Stage::new();
    stage.settings.assignment_interval_ms = 1_000;
    stage.join("m1", &["a", "b"]);
    stage.join("m2", &["a", "b"]);
    assert_eq!(stage.group.state(), GroupState::Assigning, "the target is too young for a new one");
    assert_eq!(stage.state_of("m2"), (MemberState::Stable, 1), "it has what the last target has for it: nothing");
    let changed = ConsumerGroupHeartbeatRequest { member_epoch: 1, ..joining("m1", &["b"]) };
    let changed = ConsumerGroupHeartbeatRequest { topic_partitions: None, ..changed };
    assert_eq!(given(&stage.send(changed).unwrap()), Some(vec![]));
    assert_eq!(stage.state_of("m1"), (MemberState::UnrevokedPartitions, 1));
    stage.now = 1_000;
    stage.heartbeat("m2", 1).unwrap();
    assert_eq!(stage.group.assignment_epoch(), 3);
}

#[test]
fn assignor_with_most_votes_is_chosen() {
    let mut stage = Stage::new();
    assert_eq!(stage.group.assignor(&stage.settings), Assignor::Uniform);
    let vote = |id: &str, name: &str| ConsumerGroupHeartbeatRequest {
        server_assignor: Some(Text::from(name)),
        ..joining(id, &["a"])
    };
    stage.send(vote("m1", "range")).unwrap();
    assert_eq!(stage.group.assignor(&stage.settings), Assignor::Range);
    stage.send(vote("m2", "uniform")).unwrap();
    assert_eq!(stage.group.assignor(&stage.settings), Assignor::Uniform, "a tie goes by the broker's list");
    stage.send(vote("m3", "range")).unwrap();
    assert_eq!(stage.group.assignor(&stage.settings), Assignor::Range);
    stage.settings.assignors = &Assignor::ALL[..1];
    let refusal = stage.send(vote("m3", "range")).expect_err("not on the list");
    assert_eq!(refusal.code, ErrorCode::UNSUPPORTED_ASSIGNOR);
    assert_eq!(refusal.message, "ServerAssignor range is not supported. Supported assignors: uniform.");
}

#[test]
fn malformed_request_is_refused() {
    let settings = Stage::new().settings;
    let join = || joining("m", &["a"]);
    let wrong = |request: ConsumerGroupHeartbeatRequest, version: i16| {
        check_request(&request, version, &settings).expect_err("malformed").message
    };
    type Request = ConsumerGroupHeartbeatRequest;
    let text = |text: &str| Some(Text::from(text));
    assert_eq!(wrong(Request { member_id: Text::default(), ..join() }, 1), "MemberId can't be empty.");
    assert!(check_request(&Request { member_id: Text::default(), ..join() }, 0, &settings).is_ok());
    assert_eq!(wrong(heartbeat_of("", -1), 0), "MemberId can't be empty.");
    assert_eq!(wrong(Request { group_id: Text::default(), ..join() }, 1), "GroupId can't be empty.");
    assert_eq!(wrong(Request { instance_id: text(""), ..join() }, 1), "InstanceId can't be empty.");
    assert_eq!(wrong(Request { rack_id: text(""), ..join() }, 1), "RackId can't be empty.");
    let timeout = "RebalanceTimeoutMs must be provided in first request.";
    assert_eq!(wrong(Request { rebalance_timeout_ms: -1, ..join() }, 1), timeout);
    let owned = "TopicPartitions must be empty when (re-)joining.";
    assert_eq!(wrong(Request { topic_partitions: None, ..join() }, 1), owned);
    assert_eq!(wrong(Request { topic_partitions: Some(of_a(&[1])), ..join() }, 1), owned);
    let subscription = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.";
    assert_eq!(wrong(Request { subscribed_topic_names: None, ..join() }, 1), subscription);
    assert_eq!(wrong(heartbeat_of("m", -2), 1), "InstanceId can't be null.");
    assert_eq!(wrong(heartbeat_of("m", -3), 1), "MemberEpoch is invalid.");
    assert!(check_request(&heartbeat_of("m", -1), 1, &settings).is_ok());
}

#[test]
fn commits_are_fenced_by_epoch_and_partition() {
    let mut stage = Stage::new();
    let at = |index| TopicIdPartition { topic: A, index };
    assert!(stage.group.check_commit("", -1, 8).is_ok(), "a group without members takes commits from outside");
    stage.join("m1", &["a"]);
    stage.join("m2", &["a"]);
    stage.heartbeat("m1", 1).unwrap();
    stage.report("m1", 1, &[0, 1]).unwrap();
    stage.heartbeat("m2", 2).unwrap();
    let refused = |id: &str, epoch, version| stage.group.check_commit(id, epoch, version).expect_err("refused").code;
    assert_eq!(refused("", -1, 9), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(refused("m1", 3, 9), ErrorCode::STALE_MEMBER_EPOCH);
    assert_eq!(refused("m1", 2, 8), ErrorCode::UNSUPPORTED_VERSION);
    assert!(matches!(stage.group.check_commit("m1", 2, 9), Ok(CommitPermission::CommitAll)));
    let since = stage.group.check_commit("m1", 1, 9).unwrap();
    assert_eq!(since.check(&at(0)), Ok(()), "it has had it since epoch 1");
    assert_eq!(since.check(&at(2)), Err(ErrorCode::STALE_MEMBER_EPOCH), "it has it no more");
    let since = stage.group.check_commit("m2", 1, 9).unwrap();
    assert_eq!(since.check(&at(2)), Err(ErrorCode::STALE_MEMBER_EPOCH), "it got it in epoch 2");

    assert_eq!(stage.group.check_fetch(None, -1), Ok(()));
    assert_eq!(stage.group.check_fetch(Some("m1"), 2), Ok(()));
    let refused = |id, epoch| stage.group.check_fetch(Some(id), epoch).expect_err("refused").code;
    assert_eq!(refused("m1", 1), ErrorCode::STALE_MEMBER_EPOCH);
    assert_eq!(refused("m9", 1), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn commits_in_transactions_are_fenced_by_the_member_that_they_name() {
    let mut stage = Stage::new();
    stage.join("m1", &["a"]);
    let unnamed = Committer { member_id: "", instance_id: None, generation: -1, version: 3, is_transactional: true };
    let me = Committer { member_id: "m1", generation: 1, ..unnamed };
    let code = |committer: Committer<'_>| stage.group.check_committer(&committer).err();
    assert_eq!([code(unnamed), code(me)], [None, None]);
    assert_eq!(code(Committer { generation: 2, ..me }), Some(ErrorCode::ILLEGAL_GENERATION));
    assert_eq!(code(Committer { member_id: "m9", ..me }), Some(ErrorCode::UNKNOWN_MEMBER_ID));
    assert_eq!(code(Committer { instance_id: Some("i"), ..unnamed }), Some(ErrorCode::UNKNOWN_MEMBER_ID));
}

#[test]
fn long_texts_of_a_member_count_as_memory() {
    let mut stage = Stage::new();
    let long = |letter: &str| Text::from(letter.repeat(10_000));
    let request = ConsumerGroupHeartbeatRequest {
        instance_id: Some(long("i")),
        rack_id: Some(long("r")),
        subscribed_topic_regex: Some(Text::from(".*")),
        ..joining(&long("m"), &[])
    };
    let matches = (0..1_000).map(|n| Text::from(format!("topic-{n:0100}"))).collect();
    stage.send_resolved(request, vec![(Text::from(".*"), matches)]).expect("it joins");
    assert!(stage.group.bytes() > 30_000 + 1_000 * 100, "{}", stage.group.bytes());
    let restored = stage.restored();
    assert_eq!(restored.bytes(), stage.group.bytes());
    let leaving = ConsumerGroupHeartbeatRequest { instance_id: Some(long("i")), ..heartbeat_of(&long("m"), -1) };
    stage.send(leaving).expect("it leaves");
    assert_eq!(stage.group.bytes(), 0);
}

/// Returns a group in which changes make the intervals short.
fn unsettled_stage() -> Stage {
    let mut stage = Stage::new();
    stage.settings.unsettled_interval_ms = 1_000;
    stage
}

fn interval(outcome: HeartbeatOutcome) -> i32 {
    outcome.expect("it is a member").heartbeat_interval_ms
}

#[test]
fn change_makes_intervals_short_for_a_while() {
    let mut stage = unsettled_stage();
    assert_eq!(stage.join("m1", &["a"]).heartbeat_interval_ms, 1_000, "others may join, too");
    stage.now = 2_999;
    assert_eq!(interval(stage.heartbeat("m1", 1)), 1_000);
    stage.now = 3_000;
    assert_eq!(interval(stage.heartbeat("m1", 1)), 5_000, "nobody else has come");
    stage.now = 20_000;
    assert_eq!(stage.join("m1", &["a"]).heartbeat_interval_ms, 5_000, "nothing has changed for the group");
    let resubscribed = ConsumerGroupHeartbeatRequest { member_epoch: 1, ..joining("m1", &["a", "b"]) };
    let resubscribed = ConsumerGroupHeartbeatRequest { topic_partitions: None, ..resubscribed };
    assert_eq!(interval(stage.send(resubscribed)), 1_000, "a subscription has changed");
    stage.now = 30_000;
    assert_eq!(interval(stage.heartbeat("m1", 2)), 5_000);
    stage.table = Table(2, vec![("a", A, 5), ("b", B, 4)]);
    assert_eq!(interval(stage.heartbeat("m1", 2)), 1_000, "a topic has grown");
    stage.now = 40_000;
    assert_eq!(interval(stage.heartbeat("m1", 3)), 5_000);
    stage.heartbeat("m2", LEAVING).expect_err("who was no member changes nothing by going");
    assert_eq!(interval(stage.heartbeat("m1", 3)), 5_000);
}

#[test]
fn member_that_waits_for_others_gets_growing_intervals() {
    let mut stage = unsettled_stage();
    stage.join("m1", &["a"]);
    stage.now = 100_000;
    assert_eq!(stage.join("m2", &["a"]).heartbeat_interval_ms, 1_000);
    let (mut waiting, mut reported) = (Vec::new(), Vec::new());
    for at in [2_000, 5_000, 8_000, 12_000, 40_000, 80_000] {
        stage.now = 100_000 + at;
        waiting.push(interval(stage.heartbeat("m2", 2)));
        // Only now, after a whole configured interval, does `m1` learn of the change.
        if at == 5_000 {
            reported.push(interval(stage.heartbeat("m1", 1)));
            assert_eq!(stage.state_of("m1"), (MemberState::UnrevokedPartitions, 1));
        }
    }
    assert_eq!(waiting, [1_000, 1_000, 1_000, 1_500, 5_000, 5_000]);
    assert_eq!(reported, [5_000], "it says by itself when it has given up");
    assert_eq!(interval(stage.report("m1", 1, &[0, 1])), 5_000);
    assert_eq!(interval(stage.heartbeat("m2", 2)), 5_000, "it has all it waited for");
    assert_eq!(stage.group.state(), GroupState::Stable);
}

#[test]
fn member_that_waits_for_a_target_gets_a_short_interval() {
    let mut stage = unsettled_stage();
    stage.settings.assignment_interval_ms = 15_000;
    stage.join("m1", &["a"]);
    stage.now = 100;
    stage.join("m2", &["a"]);
    stage.now = 12_100;
    assert_eq!(stage.group.state(), GroupState::Assigning);
    assert_eq!([interval(stage.heartbeat("m1", 1)), interval(stage.heartbeat("m2", 1))], [1_500; 2]);
}

#[test]
fn short_interval_is_at_most_the_configured_one_and_may_be_off() {
    let mut stage = unsettled_stage();
    stage.settings.heartbeat_interval_ms = 700;
    assert_eq!(stage.join("m1", &["a"]).heartbeat_interval_ms, 700);
    stage.settings.heartbeat_interval_ms = 5_000;
    stage.settings.unsettled_interval_ms = 0;
    assert_eq!(stage.join("m2", &["a"]).heartbeat_interval_ms, 5_000);
    assert_eq!([interval(stage.heartbeat("m2", 2)), interval(stage.heartbeat("m1", 1))], [5_000; 2]);
}

#[test]
fn large_group_gets_longer_short_intervals() {
    let mut stage = unsettled_stage();
    stage.settings.members_max = 1_500;
    for n in 0..1_500 {
        stage.join(&format!("m{n}"), &["a"]);
    }
    assert_eq!(stage.join("m7", &["a"]).heartbeat_interval_ms, 1_500, "a thousand heartbeats a second");
}

#[test]
fn restart_in_a_rebalance_restarts_the_short_intervals() {
    let mut stage = unsettled_stage();
    stage.join("m1", &["a"]);
    stage.now = 50_000;
    stage.group = stage.restored();
    assert_eq!(interval(stage.heartbeat("m1", 1)), 5_000, "the group was settled");
    stage.join("m2", &["a"]);
    stage.now = 90_000;
    stage.group = stage.restored();
    assert_eq!(interval(stage.heartbeat("m2", 2)), 1_000);
}

#[test]
fn equal_members_the_next_heartbeat_decides_the_target() {
    // Each case has three values: when `m1` and `m2` sent their last heartbeats, when `m3` joins, and the loads of `m1`
    // and `m2` afterwards.
    for (received, joins, loads) in
        [([10_000, 12_000], 12_500, [1, 2]), ([12_000, 10_000], 12_500, [2, 1]), ([10_000, 12_000], 15_500, [2, 1])]
    {
        let mut stage = unsettled_stage();
        stage.join("m1", &["a"]);
        stage.join("m2", &["a"]);
        stage.heartbeat("m1", 1).unwrap();
        stage.report("m1", 1, &[0, 1]).unwrap();
        stage.heartbeat("m2", 2).unwrap();
        let mut order = [("m1", received[0]), ("m2", received[1])];
        order.sort_by_key(|&(_, at)| at);
        for (id, at) in order {
            stage.now = at;
            assert_eq!(interval(stage.heartbeat(id, 2)), 5_000);
        }
        stage.now = joins;
        stage.join("m3", &["a"]);
        let load = |id: &str| stage.group.member(id).expect("it is a member").target.len();
        assert_eq!([load("m1"), load("m2")], loads, "{received:?} {joins}");
        assert_eq!(load("m3"), 1);
    }
}
