//! Tests of commits, of the group's end, and of its snapshots.

use super::*;
use crate::group::consumer::Topics;
use crate::group::{GroupSettings, Parts, Restoring, Snapshot, SnapshotError};
use fullbore_wire::Uuid;

#[test]
fn commit_is_checked_by_member_and_generation() {
    let mut bench = Bench::new();
    let outside = Committer { member_id: "", instance_id: None, generation: -1, version: 9, is_transactional: false };
    assert_eq!(bench.group.check_commit(&outside, bench.now), Ok(()));
    let ids = bench.stable(&[None, Some("s")]);
    let me = Committer { member_id: &ids[0], instance_id: None, generation: 1, version: 9, is_transactional: false };
    for (committer, expected) in [
        (outside, Err(ErrorCode::UNKNOWN_MEMBER_ID)),
        (me, Ok(())),
        (Committer { generation: 0, ..me }, Err(ErrorCode::ILLEGAL_GENERATION)),
        (Committer { generation: -1, ..me }, Err(ErrorCode::ILLEGAL_GENERATION)),
        (Committer { member_id: "nobody", ..me }, Err(ErrorCode::UNKNOWN_MEMBER_ID)),
        (Committer { instance_id: Some("s"), ..me }, Err(ErrorCode::FENCED_INSTANCE_ID)),
    ] {
        assert_eq!(bench.group.check_commit(&committer, bench.now), expected, "{committer:?}");
    }
    bench.pass(9000);
    assert_eq!(bench.heartbeat(&ids[1], 1), ErrorCode::NONE);
    assert_eq!(bench.group.check_commit(&me, bench.now), Ok(()));
    bench.pass(9000);
    assert_eq!(bench.group.state, GroupState::Stable, "a commit is a heartbeat");
    bench.join(&join_request(&ids[0], "new"), 3);
    assert_eq!(bench.group.check_commit(&me, bench.now), Ok(()), "a member may commit before it joins again");
    bench.join(&join_request(&ids[1], "x"), 3);
    let now = Committer { generation: 2, ..me };
    assert_eq!(bench.group.check_commit(&now, bench.now), Err(ErrorCode::REBALANCE_IN_PROGRESS));
}

#[test]
fn commit_in_a_transaction_is_checked_by_the_member_that_it_names() {
    let mut bench = Bench::new();
    let unnamed = Committer { member_id: "", instance_id: None, generation: -1, version: 3, is_transactional: true };
    assert_eq!(bench.group.check_commit(&unnamed, bench.now), Ok(()));
    let ids = bench.stable(&[None, Some("s")]);
    let me = Committer { member_id: &ids[0], generation: 1, ..unnamed };
    for (committer, code) in [
        (unnamed, Ok(())),
        (me, Ok(())),
        (Committer { generation: 0, ..me }, Err(ErrorCode::ILLEGAL_GENERATION)),
        (Committer { generation: -1, ..me }, Err(ErrorCode::ILLEGAL_GENERATION)),
        (Committer { member_id: "unknown", ..me }, Err(ErrorCode::UNKNOWN_MEMBER_ID)),
        (Committer { instance_id: Some("s"), ..me }, Err(ErrorCode::FENCED_INSTANCE_ID)),
    ] {
        assert_eq!(bench.group.check_commit(&committer, bench.now), code, "{committer:?}");
    }
    bench.pass(9000);
    assert_eq!(bench.heartbeat(&ids[1], 1), ErrorCode::NONE);
    bench.join(&join_request(&ids[1], "x"), 3);
    assert_eq!(bench.group.check_commit(&me, bench.now), Ok(()), "a rebalance under way refuses no transaction");
    bench.pass(2000);
    assert_eq!(bench.group.check_commit(&me, bench.now), Err(ErrorCode::UNKNOWN_MEMBER_ID), "it is no heartbeat");
}

#[test]
fn killed_group_answers_all_waiting_requests() {
    let mut bench = Bench::new();
    let joining = bench.join(&join_request("", "x"), 3);
    let mut effects = Effects::new();
    bench.group.kill(ErrorCode::COORDINATOR_NOT_AVAILABLE, &mut effects);
    bench.follow(effects);
    assert_eq!(bench.joined(joining).error_code, ErrorCode::COORDINATOR_NOT_AVAILABLE);
    assert_eq!(bench.heartbeat("m", 1), ErrorCode::COORDINATOR_NOT_AVAILABLE);
    let ticket = bench.join(&join_request("", "x"), 3);
    assert_eq!(bench.joined(ticket).error_code, ErrorCode::COORDINATOR_NOT_AVAILABLE);
}

fn restored(snapshot: &Snapshot, now: i64) -> Result<Group, SnapshotError> {
    let settings = GroupSettings { classic: SETTINGS, consumer: Default::default() };
    Group::restore(snapshot, &Parts::new(), &Restoring { topics: &NoTopics, settings, fresh_parts_id: Uuid::ZERO, now })
}

struct NoTopics;

impl Topics for NoTopics {
    fn version(&self) -> u64 {
        0
    }
    fn find(&self, _: &str) -> Option<(Uuid, i32)> {
        None
    }
}

#[test]
fn restored_group_continues_from_its_snapshot() {
    let mut bench = Bench::new();
    let ids = bench.stable(&[None, Some("s")]);
    let snapshot = bench.group.snapshot();
    bench.now += 1_000_000;
    let Group::Classic(group) = restored(&snapshot, bench.now).expect("ours") else { panic!("it is classic") };
    bench.group = *group;
    assert_eq!(bench.group.state, GroupState::Stable);
    bench.pass(9000);
    ids.iter().for_each(|id| assert_eq!(bench.heartbeat(id, 1), ErrorCode::NONE));
    bench.sync_all(&ids);
    bench.pass(i64::from(SESSION_MS));
    assert_eq!(bench.group.state, GroupState::Empty);
}

#[test]
fn unsaved_snapshot_taken_in_a_rebalance_shows_the_stable_group() {
    let mut bench = Bench::new();
    bench.stable(&[Some("a"), Some("b")]);
    let request = JoinGroupRequest { group_instance_id: Some("a".into()), ..join_request("", "x") };
    let new_member_id = Text::from("again");
    let (client_id, client_host) = ("client", "/127.0.0.1");
    let joining = Joining { request: &request, version: 3, client_id, client_host, new_member_id: &new_member_id };
    let mut effects = Effects::new();
    bench.group.join(joining, RequestTicket(100), bench.now, &mut effects);
    let stable = bench.group.snapshot();
    bench.group.leave(&[identity("", Some("b"))], RequestTicket(101), bench.now, &mut effects);
    assert_eq!((bench.group.state, bench.group.members.len()), (GroupState::PreparingRebalance, 1));
    assert_eq!(bench.group.take_snapshot(), Some(stable));
    assert_eq!(bench.group.take_snapshot(), None);
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let mut bench = Bench::new();
    bench.stable(&[None, Some("s")]);
    let snapshot = bench.group.snapshot();
    for len in 0..snapshot.state.len() {
        let cut = Snapshot { version: 1, state: snapshot.state.slice(..len) };
        assert!(restored(&cut, 0).is_err(), "{len}");
    }
    for at in 0..snapshot.state.len() {
        let mut state = snapshot.state.to_vec();
        state[at] ^= 0xff;
        // The damaged snapshot may be accepted or refused, but the call must not panic.
        let _ = restored(&Snapshot { version: 1, state: state.into() }, 0);
    }
}
