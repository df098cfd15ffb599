//! Tests of the responses in each state, request by request. The tests in this file are about joining and assigning.

mod keeping;
mod staying;

use super::*;
use crate::group::{Committer, Event, Group, Joining};
use bytes::Bytes;
use fullbore_wire::apis::heartbeat::HeartbeatRequest;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use fullbore_wire::apis::leave_group::{LeaveGroupResponse, MemberIdentity};
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};

pub(super) const SETTINGS: ClassicGroupSettings = ClassicGroupSettings {
    session_timeout_min_ms: 100,
    session_timeout_max_ms: 100_000,
    initial_rebalance_delay_ms: 3000,
    members_max: 4,
};
pub(super) const SESSION_MS: i32 = 10_000;
pub(super) const REBALANCE_MS: i32 = 60_000;

/// Returns a JoinGroup with the same timeouts and protocol for all members.
pub(super) fn join_request(member_id: &str, metadata: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: Text::from("g"),
        session_timeout_ms: SESSION_MS,
        rebalance_timeout_ms: REBALANCE_MS,
        member_id: Text::from(member_id),
        protocol_type: Text::from("consumer"),
        protocols: vec![protocol("range", metadata)],
        ..Default::default()
    }
}

pub(super) fn protocol(name: &str, metadata: &str) -> JoinGroupRequestProtocol {
    JoinGroupRequestProtocol {
        name: Text::from(name),
        metadata: Bytes::from(metadata.to_owned()),
        ..Default::default()
    }
}

/// A group under test, with its clock and the responses that it has sent.
struct Bench {
    group: Classic,
    now: i64,
    tickets: u64,
    answers: HashMap<RequestTicket, GroupAnswer>,
    events: Vec<Event>,
    kept: usize,
}

impl Bench {
    fn new() -> Self {
        Bench::with(SETTINGS)
    }

    fn with(settings: ClassicGroupSettings) -> Self {
        let group = Classic::new(settings, 1000);
        Bench { group, now: 1000, tickets: 0, answers: HashMap::new(), events: Vec::new(), kept: 0 }
    }

    fn ticket(&mut self) -> RequestTicket {
        self.tickets += 1;
        RequestTicket(self.tickets)
    }

    fn follow(&mut self, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Answer(ticket, answer) => {
                    assert!(self.answers.insert(ticket, answer).is_none(), "{ticket:?} is answered twice");
                }
                Effect::Keep(change) => {
                    assert!(change.is_empty(), "a snapshot is encoded when it is taken");
                    let snapshot = self.group.take_snapshot().expect("it is unsaved");
                    let again = Classic::restore(snapshot.state.slice(1..), self.group.settings, self.now);
                    assert_eq!(again.expect("ours").snapshot(), snapshot, "a snapshot restores to itself");
                    self.kept += 1;
                }
                Effect::Report(event) => self.events.push(event),
            }
        }
    }

    fn join(&mut self, request: &JoinGroupRequest, version: i16) -> RequestTicket {
        let ticket = self.ticket();
        let name = request.group_instance_id.clone().unwrap_or_else(|| Text::from("m"));
        let new_member_id = Text::from(format!("{name}-{}", ticket.0));
        let (client_id, client_host) = ("client", "/127.0.0.1");
        let joining = Joining { request, version, client_id, client_host, new_member_id: &new_member_id };
        let mut effects = Effects::new();
        self.group.join(joining, ticket, self.now, &mut effects);
        self.follow(effects);
        ticket
    }

    fn sync(&mut self, request: &SyncGroupRequest) -> RequestTicket {
        let ticket = self.ticket();
        let mut effects = Effects::new();
        self.group.sync(request, ticket, self.now, &mut effects);
        self.follow(effects);
        ticket
    }

    fn heartbeat(&mut self, member_id: &str, generation_id: i32) -> ErrorCode {
        let member_id = Text::from(member_id);
        let request = HeartbeatRequest { generation_id, member_id, ..Default::default() };
        self.group.heartbeat(&request, self.now)
    }

    fn leave(&mut self, members: &[MemberIdentity]) -> Box<LeaveGroupResponse> {
        let ticket = self.ticket();
        let mut effects = Effects::new();
        self.group.leave(members, ticket, self.now, &mut effects);
        self.follow(effects);
        match self.answers.remove(&ticket) {
            Some(GroupAnswer::Leave(response)) => response,
            other => panic!("{other:?}"),
        }
    }

    fn pass(&mut self, ms: i64) {
        let until = self.now + ms;
        while let Some(next) = self.group.next_deadline().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            let mut effects = Effects::new();
            self.group.tick(self.now, &mut effects);
            self.follow(effects);
            assert!(self.group.next_deadline() != Some(next), "time stands still");
        }
        self.now = until;
    }

    fn joined(&mut self, ticket: RequestTicket) -> Box<JoinGroupResponse> {
        match self.answers.remove(&ticket) {
            Some(GroupAnswer::Join(response)) => response,
            other => panic!("{ticket:?}: {other:?}"),
        }
    }

    fn synced(&mut self, ticket: RequestTicket) -> Box<SyncGroupResponse> {
        match self.answers.remove(&ticket) {
            Some(GroupAnswer::Sync(response)) => response,
            other => panic!("{ticket:?}: {other:?}"),
        }
    }

    /// Adds members with these instance ids, and makes the group stable. The first member is the leader.
    fn stable(&mut self, instances: &[Option<&str>]) -> Vec<Text> {
        let request = |instance: &Option<&str>| JoinGroupRequest {
            group_instance_id: instance.map(Text::from),
            ..join_request("", "x")
        };
        let tickets: Vec<RequestTicket> = instances.iter().map(|instance| self.join(&request(instance), 3)).collect();
        self.pass(10_000);
        let ids: Vec<Text> = tickets.into_iter().map(|ticket| self.joined(ticket).member_id).collect();
        self.sync_all(&ids);
        assert_eq!(self.group.state, GroupState::Stable);
        ids
    }

    fn sync_all(&mut self, ids: &[Text]) {
        let leader = self.group.leader.clone().expect("there are members");
        let followers = ids.iter().filter(|id| **id != leader).chain(std::iter::once(&leader));
        let tickets: Vec<_> = followers.map(|id| (id.clone(), self.sync_as(id, &leader, ids))).collect();
        for (id, ticket) in tickets {
            let response = self.synced(ticket);
            assert_eq!((response.error_code, &response.assignment[..]), (ErrorCode::NONE, id.as_bytes()));
        }
    }

    /// Sends a SyncGroup. If the sender is the leader, it assigns each member the member's own id.
    fn sync_as(&mut self, id: &Text, leader: &Text, ids: &[Text]) -> RequestTicket {
        let one = |id: &Text| SyncGroupRequestAssignment {
            member_id: id.clone(),
            assignment: Bytes::copy_from_slice(id.as_bytes()),
            ..Default::default()
        };
        let assignments = if id == leader { ids.iter().map(one).collect() } else { Vec::new() };
        let generation_id = self.group.generation;
        self.sync(&SyncGroupRequest { generation_id, member_id: id.clone(), assignments, ..Default::default() })
    }
}

fn identity(member_id: &str, instance_id: Option<&str>) -> MemberIdentity {
    MemberIdentity {
        member_id: Text::from(member_id),
        group_instance_id: instance_id.map(Text::from),
        ..Default::default()
    }
}

#[test]
fn empty_group_waits_for_more_members_and_longer_when_they_join() {
    let mut bench = Bench::new();
    let first = bench.join(&join_request("", "x"), 3);
    bench.pass(2999);
    assert!(bench.answers.is_empty());
    let second = bench.join(&join_request("", "x"), 3);
    bench.pass(2999);
    assert!(bench.answers.is_empty(), "the second put it off by another delay");
    bench.pass(2);
    let (first, second) = (bench.joined(first), bench.joined(second));
    assert_eq!((first.generation_id, second.generation_id), (1, 1));
    assert_eq!((first.members.len(), second.members.len()), (2, 0));
    assert_eq!((&first.leader, &second.leader), (&first.member_id, &first.member_id));
    assert_eq!(second.protocol_name.as_deref(), Some("range"));
}

#[test]
fn initial_delay_ends_with_the_rebalance_timeout() {
    let mut bench = Bench::with(ClassicGroupSettings { members_max: 100, ..SETTINGS });
    let first = bench.join(&join_request("", "x"), 3);
    for _ in 0..60 {
        assert!(!bench.answers.contains_key(&first));
        bench.pass(1000);
        bench.join(&join_request("", "x"), 3);
    }
    bench.pass(3000);
    assert_eq!(bench.joined(first).error_code, ErrorCode::NONE);
}

#[test]
fn member_without_an_id_gets_one_that_counts_until_its_session_ends() {
    let mut bench = Bench::new();
    let ticket = bench.join(&join_request("", "x"), 4);
    let required = bench.joined(ticket);
    assert_eq!(required.error_code, ErrorCode::MEMBER_ID_REQUIRED);
    assert!(!bench.group.is_blank());
    let again = bench.join(&join_request(&required.member_id, "x"), 4);
    bench.pass(3000);
    assert_eq!(bench.joined(again).member_id, required.member_id);

    let ticket = bench.join(&join_request("", "x"), 4);
    let late = bench.joined(ticket).member_id;
    bench.heartbeat(&required.member_id, 1);
    bench.pass(i64::from(SESSION_MS));
    let ticket = bench.join(&join_request(&late, "x"), 4);
    assert_eq!(bench.joined(ticket).error_code, ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn group_without_a_generation_is_not_kept() {
    let mut bench = Bench::new();
    bench.join(&join_request("", "x"), 4);
    bench.pass(i64::from(SESSION_MS));
    assert!(bench.group.is_blank());
    assert_eq!((bench.kept, bench.group.bytes(), bench.group.next_deadline()), (0, 0, None));
}

#[test]
fn invalid_join_is_refused() {
    let mut bench = Bench::new();
    let mut code = |request: &JoinGroupRequest| {
        let ticket = bench.join(request, 3);
        bench.joined(ticket).error_code
    };
    let short = JoinGroupRequest { session_timeout_ms: 99, ..join_request("", "x") };
    let long = JoinGroupRequest { session_timeout_ms: 100_001, ..join_request("", "x") };
    let negative = JoinGroupRequest { session_timeout_ms: -1, ..join_request("", "x") };
    for request in [short, long, negative] {
        assert_eq!(code(&request), ErrorCode::INVALID_SESSION_TIMEOUT);
    }
    let nothing = JoinGroupRequest { protocols: Vec::new(), ..join_request("", "x") };
    let untyped = JoinGroupRequest { protocol_type: Text::default(), ..join_request("", "x") };
    for request in [nothing, untyped] {
        assert_eq!(code(&request), ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    }
    assert_eq!(code(&join_request("nobody", "x")), ErrorCode::UNKNOWN_MEMBER_ID);
    bench.stable(&[None]);
    let mut code = |request: &JoinGroupRequest| {
        let ticket = bench.join(request, 3);
        bench.joined(ticket).error_code
    };
    let other_type = JoinGroupRequest { protocol_type: Text::from("connect"), ..join_request("", "x") };
    let other_protocol = JoinGroupRequest { protocols: vec![protocol("sticky", "x")], ..join_request("", "x") };
    for request in [other_type, other_protocol] {
        assert_eq!(code(&request), ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    }
    assert_eq!(code(&join_request("nobody", "x")), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(bench.group.state, GroupState::Stable, "none of them disturbed the group");
}

#[test]
fn full_group_refuses_another_member() {
    let mut bench = Bench::new();
    bench.stable(&[None; 4]);
    let ticket = bench.join(&join_request("", "x"), 3);
    assert_eq!(bench.joined(ticket).error_code, ErrorCode::GROUP_MAX_SIZE_REACHED);
    assert_eq!((bench.group.state, bench.group.members.len()), (GroupState::Stable, 4));
}

#[test]
fn protocol_preferred_by_most_members_is_chosen() {
    let mut bench = Bench::new();
    let likes = |names: [&str; 3]| JoinGroupRequest {
        protocols: names.iter().map(|name| protocol(name, name)).collect(),
        ..join_request("", "")
    };
    bench.join(&likes(["a", "b", "only-mine"]), 3);
    bench.join(&likes(["b", "a", "x"]), 3);
    let third = bench.join(&likes(["c", "b", "a"]), 3);
    bench.pass(10_000);
    assert_eq!(bench.joined(third).protocol_name.as_deref(), Some("b"));
}

#[test]
fn new_member_joins_others_rejoin_or_are_removed() {
    let mut bench = Bench::new();
    let ids = bench.stable(&[None, None]);
    let third = bench.join(&join_request("", "x"), 3);
    assert_eq!(bench.heartbeat(&ids[0], 1), ErrorCode::REBALANCE_IN_PROGRESS);
    let again = bench.join(&join_request(&ids[1], "x"), 3);
    for _ in 0..7 {
        bench.pass(9000);
        bench.heartbeat(&ids[0], 1);
    }
    let (third, again) = (bench.joined(third), bench.joined(again));
    assert_eq!((third.generation_id, again.generation_id), (2, 2));
    assert_eq!(again.leader, ids[1], "the leader did not come");
    assert_eq!(again.members.len(), 2);
    assert_eq!(bench.heartbeat(&ids[0], 1), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn repeated_join_is_answered_and_the_first_is_refused() {
    let mut bench = Bench::new();
    let ids = bench.stable(&[None, None]);
    let first = bench.join(&join_request(&ids[0], "new"), 3);
    let second = bench.join(&join_request(&ids[0], "newer"), 3);
    assert_eq!(bench.joined(first).error_code, ErrorCode::REBALANCE_IN_PROGRESS);
    bench.join(&join_request(&ids[1], "x"), 3);
    let response = bench.joined(second);
    assert_eq!(&response.members.iter().find(|member| member.member_id == ids[0]).expect("me").metadata[..], b"newer");
}

/// In a stable group, a leader that rejoins always starts a rebalance. A follower starts one only if its metadata is
/// new.
#[test]
fn member_rejoins_with_or_without_new_metadata() {
    for (who, metadata, after) in [
        (1, "x", GroupState::Stable),
        (1, "new", GroupState::PreparingRebalance),
        (0, "x", GroupState::PreparingRebalance),
    ] {
        let mut bench = Bench::new();
        let ids = bench.stable(&[None, None]);
        let ticket = bench.join(&join_request(&ids[who], metadata), 3);
        assert_eq!(bench.group.state, after, "{who} {metadata}");
        if after == GroupState::Stable {
            assert_eq!((bench.joined(ticket).generation_id, bench.group.generation), (1, 1));
        }
    }
    // Between join and sync, a repeated JoinGroup returns the current generation. The leader's response lists the
    // members.
    let mut bench = Bench::new();
    let tickets = [bench.join(&join_request("", "x"), 3), bench.join(&join_request("", "x"), 3)];
    bench.pass(10_000);
    let ids = tickets.map(|ticket| bench.joined(ticket).member_id);
    let ticket = bench.join(&join_request(&ids[0], "x"), 3);
    assert_eq!(bench.joined(ticket).members.len(), 2);
    let syncing = bench.sync_as(&ids[1], &ids[0], &ids);
    bench.join(&join_request(&ids[0], "new"), 3);
    assert_eq!(bench.synced(syncing).error_code, ErrorCode::REBALANCE_IN_PROGRESS);
    assert_eq!(bench.group.state, GroupState::PreparingRebalance);
}

#[test]
fn invalid_sync_is_refused() {
    let mut bench = Bench::new();
    let ids = bench.stable(&[None, Some("s")]);
    let right = SyncGroupRequest { generation_id: 1, member_id: ids[1].clone(), ..Default::default() };
    let text = |text: &str| Some(Text::from(text));
    for (request, code) in [
        (SyncGroupRequest { member_id: Text::from("nobody"), ..right.clone() }, ErrorCode::UNKNOWN_MEMBER_ID),
        (SyncGroupRequest { generation_id: 0, ..right.clone() }, ErrorCode::ILLEGAL_GENERATION),
        (SyncGroupRequest { protocol_type: text("connect"), ..right.clone() }, ErrorCode::INCONSISTENT_GROUP_PROTOCOL),
        (SyncGroupRequest { protocol_name: text("sticky"), ..right.clone() }, ErrorCode::INCONSISTENT_GROUP_PROTOCOL),
        (SyncGroupRequest { group_instance_id: text("t"), ..right.clone() }, ErrorCode::UNKNOWN_MEMBER_ID),
        (
            SyncGroupRequest { group_instance_id: text("s"), member_id: ids[0].clone(), ..right.clone() },
            ErrorCode::FENCED_INSTANCE_ID,
        ),
        (
            SyncGroupRequest { group_instance_id: text("s"), protocol_name: text("range"), ..right.clone() },
            ErrorCode::NONE,
        ),
    ] {
        let ticket = bench.sync(&request);
        assert_eq!(bench.synced(ticket).error_code, code, "{request:?}");
    }
    bench.join(&join_request("", "x"), 3);
    let ticket = bench.sync(&right);
    assert_eq!(bench.synced(ticket).error_code, ErrorCode::REBALANCE_IN_PROGRESS);
}

/// Regression test of KAFKA-13452.
#[test]
fn member_that_never_syncs_is_removed() {
    let mut bench = Bench::new();
    let tickets = [bench.join(&join_request("", "x"), 3), bench.join(&join_request("", "x"), 3)];
    bench.pass(10_000);
    let ids = tickets.map(|ticket| bench.joined(ticket).member_id);
    let ticket = bench.sync_as(&ids[0], &ids[0], &ids);
    assert_eq!(bench.synced(ticket).error_code, ErrorCode::NONE);
    assert_eq!(bench.group.state, GroupState::Stable);
    for _ in 0..10 {
        bench.pass(6000);
        for id in &ids {
            bench.heartbeat(id, 1);
        }
    }
    assert_eq!(bench.group.state, GroupState::PreparingRebalance);
    assert!(!bench.group.members.contains_key(&ids[1]));
}
