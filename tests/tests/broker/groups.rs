//! Groups of the classic protocol over real connections. Members join, sync, send heartbeats, leave, die and return.

use fullbore_tests::{Broker, Client, wait_until};
use fullbore_wire::apis::describe_groups::{DescribeGroupsRequest, DescribedGroup};
use fullbore_wire::apis::heartbeat::HeartbeatRequest;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use fullbore_wire::apis::leave_group::{LeaveGroupRequest, LeaveGroupResponse, MemberIdentity};
use fullbore_wire::apis::list_groups::{ListGroupsRequest, ListedGroup};
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse};
use fullbore_wire::{ErrorCode, Text};
use std::time::Duration;

const OK: ErrorCode = ErrorCode::NONE;
const JOIN: i16 = 9;
const SYNC: i16 = 5;
const HEARTBEAT: i16 = 4;
const LEAVE: i16 = 5;
const DESCRIBE: i16 = 5;
/// How long a session or rebalance may take to end.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// Settings that permit sessions as short as the tests need, and do not delay the first rebalance.
pub(super) const QUICK: &[&str] = &["group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=100"];

#[test]
fn describing_a_group_of_another_protocol_type_prints_its_type() {
    let broker = Broker::start(QUICK);
    let mut worker = broker.client();
    let mut join = Member::new(&broker, "connect-1").request();
    join.protocol_type = "connect".into();
    join.member_id = worker.call(&join, JOIN).member_id;
    assert_eq!(worker.call(&join, JOIN).error_code, OK);
    for command in ["describe --group connect-1", "reset-offsets --group connect-1 --all-topics --to-latest"] {
        let mut fullbore = std::process::Command::new(fullbore_tests::binary());
        fullbore.arg("groups").args(command.split(' ')).args(["--bootstrap-server", &broker.addr().to_string()]);
        let output = fullbore.output().expect("it starts");
        let reported = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {reported}");
        assert!(reported.starts_with("fullbore: group 'connect-1' is not a consumer group (connect); "), "{reported}");
    }
}

/// A member of a group, with its own connection.
pub(super) struct Member {
    pub client: Client,
    pub group: String,
    pub id: Text,
    pub instance: Option<&'static str>,
    pub generation: i32,
    pub session_ms: i32,
    /// The ids of all members if this member leads, otherwise empty.
    pub others: Vec<Text>,
    pub protocol: Option<Text>,
}

impl Member {
    pub fn new(broker: &Broker, group: &str) -> Member {
        Member {
            client: broker.client(),
            group: group.to_owned(),
            id: Text::default(),
            instance: None,
            generation: -1,
            session_ms: 10_000,
            others: Vec::new(),
            protocol: None,
        }
    }

    pub fn request(&self) -> JoinGroupRequest {
        JoinGroupRequest {
            group_id: Text::from(self.group.as_str()),
            session_timeout_ms: self.session_ms,
            rebalance_timeout_ms: 20_000,
            member_id: self.id.clone(),
            group_instance_id: self.instance.map(Text::from),
            protocol_type: Text::from("consumer"),
            protocols: vec![JoinGroupRequestProtocol {
                name: Text::from("range"),
                metadata: b"anything".as_slice().into(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    /// Sends JoinGroup. A member without an id gets one first.
    pub fn send_join(&mut self) {
        if self.id.is_empty() && self.instance.is_none() {
            let required = self.client.call(&self.request(), JOIN);
            assert_eq!(required.error_code, ErrorCode::MEMBER_ID_REQUIRED);
            self.id = required.member_id;
        }
        let request = self.request();
        self.client.send(&request, JOIN);
    }

    pub fn joined(&mut self) -> JoinGroupResponse {
        let (_, response) = self.client.receive::<JoinGroupRequest>(JOIN);
        if response.error_code == OK {
            self.id = response.member_id.clone();
            self.generation = response.generation_id;
            self.others = response.members.iter().map(|member| member.member_id.clone()).collect();
            self.protocol = response.protocol_name.clone();
        }
        response
    }

    pub fn send_sync(&mut self) {
        // The assignment of each member is the member's own id.
        let one = |id: &Text| SyncGroupRequestAssignment {
            member_id: id.clone(),
            assignment: id.as_bytes().to_vec().into(),
            ..Default::default()
        };
        let request = SyncGroupRequest {
            group_id: Text::from(self.group.as_str()),
            generation_id: self.generation,
            member_id: self.id.clone(),
            group_instance_id: self.instance.map(Text::from),
            protocol_type: Some(Text::from("consumer")),
            protocol_name: self.protocol.clone(),
            assignments: self.others.iter().map(one).collect(),
            ..Default::default()
        };
        self.client.send(&request, SYNC);
    }

    pub fn synced(&mut self) -> SyncGroupResponse {
        self.client.receive::<SyncGroupRequest>(SYNC).1
    }

    pub fn heartbeat_request(&self) -> HeartbeatRequest {
        HeartbeatRequest {
            group_id: Text::from(self.group.as_str()),
            generation_id: self.generation,
            member_id: self.id.clone(),
            group_instance_id: self.instance.map(Text::from),
            ..Default::default()
        }
    }

    pub fn heartbeat(&mut self) -> ErrorCode {
        let request = self.heartbeat_request();
        self.client.call(&request, HEARTBEAT).error_code
    }

    pub fn leave(&mut self) -> LeaveGroupResponse {
        let identity = MemberIdentity { member_id: self.id.clone(), ..Default::default() };
        leave(&mut self.client, &self.group, vec![identity])
    }
}

fn leave(client: &mut Client, group: &str, members: Vec<MemberIdentity>) -> LeaveGroupResponse {
    client.call(&LeaveGroupRequest { group_id: Text::from(group), members, ..Default::default() }, LEAVE)
}

/// Makes the members join until all are in one stable generation.
pub(super) fn stable(members: &mut [Member]) {
    // The members join one by one, so that the test knows which one is first. After each join, the earlier members must
    // rejoin.
    for count in 1..=members.len() {
        let (others, newcomer) = members[..count].split_at_mut(count - 1);
        newcomer[0].send_join();
        for other in others {
            wait_until("it is to join again", SOON, || other.heartbeat() == ErrorCode::REBALANCE_IN_PROGRESS);
            other.send_join();
        }
        join_and_sync(&mut members[..count]);
    }
}

/// Receives the responses to the JoinGroup requests and completes SyncGroup.
pub(super) fn join_and_sync(members: &mut [Member]) {
    members.iter_mut().for_each(|member| assert_eq!(member.joined().error_code, OK));
    members.iter_mut().for_each(Member::send_sync);
    for member in members {
        let response = member.synced();
        assert_eq!((response.error_code, &response.assignment[..]), (OK, member.id.as_bytes()));
    }
}

pub(super) fn describe(client: &mut Client, group: &str, version: i16) -> DescribedGroup {
    let request = DescribeGroupsRequest { groups: vec![Text::from(group)], ..Default::default() };
    client.call(&request, version).groups.remove(0)
}

fn list(client: &mut Client, states: &[&str], types: &[&str]) -> Vec<ListedGroup> {
    let texts = |names: &[&str]| names.iter().map(|name| Text::from(*name)).collect();
    let request = ListGroupsRequest { states_filter: texts(states), types_filter: texts(types), ..Default::default() };
    client.call(&request, 5).groups
}

#[test]
fn members_share_a_generation_and_go_on_when_one_leaves() {
    let broker = Broker::start(QUICK);
    let mut members: Vec<Member> = (0..3).map(|_| Member::new(&broker, "g")).collect();
    stable(&mut members);
    let generation = members[0].generation;
    assert!(members.iter().all(|member| member.generation == generation));
    assert_eq!(members[0].others.len(), 3, "the first is still the leader");
    assert!(members.iter_mut().all(|member| member.heartbeat() == OK));

    let response = members.pop().expect("three").leave();
    assert_eq!((response.error_code, response.members[0].error_code), (OK, OK));
    assert_eq!(members[1].heartbeat(), ErrorCode::REBALANCE_IN_PROGRESS);
    members.iter_mut().for_each(Member::send_join);
    join_and_sync(&mut members);
    assert_eq!(members[0].others.len(), 2);
}

#[test]
fn tools_see_the_group_with_its_members() {
    let broker = Broker::start(QUICK);
    let mut client = broker.client();
    assert!(list(&mut client, &[], &[]).is_empty());
    let mut members = vec![Member::new(&broker, "g")];
    members[0].instance = Some("i");
    stable(&mut members);

    let group = describe(&mut client, "g", DESCRIBE);
    assert_eq!((group.error_code, &*group.group_state, &*group.protocol_type), (OK, "Stable", "consumer"));
    assert_eq!((&*group.protocol_data, group.authorized_operations), ("range", i32::MIN));
    let member = &group.members[0];
    assert_eq!((&member.member_id, member.group_instance_id.as_deref()), (&members[0].id, Some("i")));
    assert_eq!((&*member.client_id, &*member.client_host), ("fullbore-tests", "/127.0.0.1"));
    assert_eq!(
        (&member.member_metadata[..], &member.member_assignment[..]),
        (b"anything".as_slice(), members[0].id.as_bytes())
    );

    let listed = list(&mut client, &["stable"], &["CLASSIC"]);
    let [group] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((&*group.group_id, &*group.group_state, &*group.group_type), ("g", "Stable", "classic"));
    assert!(list(&mut client, &["Empty"], &[]).is_empty() && list(&mut client, &[], &["share"]).is_empty());

    assert_eq!(
        (describe(&mut client, "none", 5).error_code, &*describe(&mut client, "none", 5).group_state),
        (OK, "Dead")
    );
    let none = describe(&mut client, "none", 6);
    assert_eq!(none.error_code, ErrorCode::GROUP_ID_NOT_FOUND);
    assert_eq!(none.error_message.as_deref(), Some("Group none not found."));
}

#[test]
fn a_member_that_dies_is_replaced_by_those_that_live() {
    let broker = Broker::start(QUICK);
    let mut members: Vec<Member> = (0..2).map(|_| Member::new(&broker, "g")).collect();
    members[1].session_ms = 3_000;
    stable(&mut members);
    let dead = members.pop().expect("two");
    drop(dead);
    wait_until("its session ends", SOON, || members[0].heartbeat() == ErrorCode::REBALANCE_IN_PROGRESS);
    members[0].send_join();
    join_and_sync(&mut members);
    assert_eq!(members[0].others.len(), 1);
}

#[test]
fn a_static_member_rejoins_without_a_rebalance_and_fences_its_former_self() {
    let broker = Broker::start(QUICK);
    let mut members: Vec<Member> = (0..2).map(|_| Member::new(&broker, "g")).collect();
    members[1].instance = Some("i");
    stable(&mut members);
    let generation = members[0].generation;

    let mut back = Member::new(&broker, "g");
    back.instance = Some("i");
    back.send_join();
    assert_eq!(back.joined().error_code, OK);
    assert_eq!(back.generation, generation);
    back.send_sync();
    assert_eq!(back.synced().assignment, members[1].id.as_bytes(), "what its past was assigned");
    assert_eq!(members[0].heartbeat(), OK);
    assert_eq!(members[1].heartbeat(), ErrorCode::FENCED_INSTANCE_ID);
    members[1].send_join();
    assert_eq!(members[1].joined().error_code, ErrorCode::FENCED_INSTANCE_ID);

    // An administrator knows only the instance id.
    let identity = MemberIdentity { group_instance_id: Some(Text::from("i")), ..Default::default() };
    let response = leave(&mut broker.client(), "g", vec![identity]);
    assert_eq!(response.members[0].error_code, OK);
    assert_eq!(back.heartbeat(), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(members[0].heartbeat(), ErrorCode::REBALANCE_IN_PROGRESS);
}

#[test]
fn a_restart_after_a_kill_keeps_the_generation() {
    let mut broker = Broker::start(QUICK);
    let mut members: Vec<Member> = (0..2).map(|_| Member::new(&broker, "g")).collect();
    stable(&mut members);
    broker.kill();
    broker.restart();
    for member in &mut members {
        member.client = broker.client();
        assert_eq!(member.heartbeat(), OK);
        member.others.clear();
        member.send_sync();
        assert_eq!(member.synced().assignment, member.id.as_bytes());
    }
    // The group still works: a third member starts the next generation.
    let mut third = Member::new(&broker, "g");
    third.send_join();
    for member in &mut members {
        wait_until("it is to join again", SOON, || member.heartbeat() == ErrorCode::REBALANCE_IN_PROGRESS);
        member.send_join();
    }
    members.push(third);
    join_and_sync(&mut members);
}

#[test]
fn a_group_without_members_is_empty_after_a_restart() {
    let mut broker = Broker::start(QUICK);
    let mut members = vec![Member::new(&broker, "g")];
    stable(&mut members);
    members[0].leave();
    broker.stop();
    broker.restart();
    let mut client = broker.client();
    let group = describe(&mut client, "g", 6);
    assert_eq!((group.error_code, &*group.group_state, group.members.len()), (OK, "Empty", 0));
}

/// As in Kafka, a request after a JoinGroup on the same connection is handled only after the JoinGroup's response.
#[test]
fn a_heartbeat_behind_a_join_finds_the_new_generation() {
    let broker = Broker::start(QUICK);
    let mut members: Vec<Member> = (0..2).map(|_| Member::new(&broker, "g")).collect();
    stable(&mut members);
    let next = HeartbeatRequest { generation_id: members[0].generation + 1, ..members[0].heartbeat_request() };
    members[0].send_join();
    members[0].client.send(&next, HEARTBEAT);
    wait_until("the first has joined", SOON, || members[1].heartbeat() == ErrorCode::REBALANCE_IN_PROGRESS);
    members[1].send_join();
    assert_eq!(members[0].joined().error_code, OK, "the leader's join");
    let (_, response) = members[0].client.receive::<HeartbeatRequest>(HEARTBEAT);
    assert_eq!(response.error_code, OK);
    assert_eq!(members[1].joined().error_code, OK);
}

#[test]
fn old_versions_of_the_group_apis_are_served() {
    let broker = Broker::start(QUICK);
    let mut client = broker.client();
    for version in 0..=3 {
        let request = JoinGroupRequest { group_instance_id: None, ..Member::new(&broker, "old").request() };
        let joined = client.call(&request, version);
        assert_eq!((joined.error_code, joined.members.len()), (OK, 1), "version {version}");
        assert_eq!(joined.protocol_name.as_deref(), Some("range"));
        let sync = SyncGroupRequest {
            group_id: Text::from("old"),
            generation_id: joined.generation_id,
            member_id: joined.member_id.clone(),
            ..Default::default()
        };
        assert_eq!(client.call(&sync, version).error_code, OK);
        let leave = LeaveGroupRequest {
            group_id: Text::from("old"),
            member_id: joined.member_id.clone(),
            members: match version {
                3 => vec![MemberIdentity { member_id: joined.member_id, ..Default::default() }],
                _ => Vec::new(),
            },
            ..Default::default()
        };
        assert_eq!(client.call(&leave, version).error_code, OK);
        let again = client.call(&leave, version);
        let code = again.members.first().map_or(again.error_code, |member| member.error_code);
        assert_eq!(code, ErrorCode::UNKNOWN_MEMBER_ID);
        let refused = client.call(&JoinGroupRequest { group_id: Text::default(), ..request }, version);
        assert_eq!((refused.error_code, refused.protocol_name.as_deref()), (ErrorCode::INVALID_GROUP_ID, Some("")));
    }
}
