//! Tests of heartbeats, sessions, static members, and departures.

use super::*;

#[test]
fn session_ends_after_its_timeout_without_a_heartbeat() {
    let mut bench = Bench::new();
    let ids = bench.stable(&[None, None]);
    bench.pass(i64::from(SESSION_MS) - 1);
    assert_eq!(bench.heartbeat(&ids[0], 1), ErrorCode::NONE);
    bench.pass(1);
    assert_eq!(bench.heartbeat(&ids[0], 1), ErrorCode::REBALANCE_IN_PROGRESS);
    assert!(bench.events.iter().any(|event| matches!(event, Event::Expired { member_id, .. } if *member_id == ids[1])));
    let again = bench.join(&join_request(&ids[0], "x"), 3);
    assert_eq!(bench.joined(again).members.len(), 1);
    bench.pass(i64::from(SESSION_MS));
    assert_eq!((bench.group.state, bench.group.generation), (GroupState::Empty, 3));
    assert_eq!(bench.group.empty_since(), Some(bench.now));
    assert_eq!(bench.group.next_deadline(), None);
}

#[test]
fn invalid_heartbeat_is_refused() {
    let mut bench = Bench::new();
    let ids = bench.stable(&[None, Some("s")]);
    assert_eq!(bench.heartbeat("nobody", 1), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(bench.heartbeat(&ids[0], 2), ErrorCode::ILLEGAL_GENERATION);
    let fenced = HeartbeatRequest {
        generation_id: 1,
        member_id: ids[0].clone(),
        group_instance_id: Some(Text::from("s")),
        ..Default::default()
    };
    assert_eq!(bench.group.heartbeat(&fenced, bench.now), ErrorCode::FENCED_INSTANCE_ID);
}

#[test]
fn static_member_returns_without_a_rebalance() {
    for (version, skips) in [(9, true), (8, false)] {
        let mut bench = Bench::new();
        let ids = bench.stable(&[Some("a"), Some("b")]);
        let kept = bench.kept;
        let back = JoinGroupRequest { group_instance_id: Some(Text::from("a")), ..join_request("", "x") };
        let ticket = bench.join(&back, version);
        let response = bench.joined(ticket);
        assert_eq!((response.error_code, response.generation_id), (ErrorCode::NONE, 1));
        assert_eq!((response.skip_assignment, response.members.len()), (skips, if skips { 2 } else { 0 }));
        assert_eq!(response.leader == response.member_id, skips, "before version 9 a leader must not know it is one");
        assert_eq!((bench.group.state, bench.kept), (GroupState::Stable, kept + 1));
        let ticket = bench.sync_as(&response.member_id, &ids[1], &[]);
        assert_eq!(bench.synced(ticket).assignment, ids[0].as_bytes(), "what its predecessor had");
        let old = HeartbeatRequest {
            generation_id: 1,
            member_id: ids[0].clone(),
            group_instance_id: Some(Text::from("a")),
            ..Default::default()
        };
        assert_eq!(bench.group.heartbeat(&old, bench.now), ErrorCode::FENCED_INSTANCE_ID);
        assert_eq!(bench.heartbeat(&ids[0], 1), ErrorCode::UNKNOWN_MEMBER_ID);
    }
}

#[test]
fn static_member_that_returns_between_join_and_sync_starts_a_rebalance() {
    let mut bench = Bench::new();
    let request = |name: &str| JoinGroupRequest { group_instance_id: Some(Text::from(name)), ..join_request("", "x") };
    let tickets = [bench.join(&request("a"), 5), bench.join(&request("b"), 5)];
    bench.pass(10_000);
    let ids = tickets.map(|ticket| bench.joined(ticket).member_id);
    let waiting = bench.sync_as(&ids[1], &ids[0], &ids);
    bench.join(&request("b"), 5);
    assert_eq!(bench.synced(waiting).error_code, ErrorCode::FENCED_INSTANCE_ID);
    assert_eq!(bench.group.state, GroupState::PreparingRebalance);
}

#[test]
fn absent_static_member_stays_until_its_session_ends() {
    let mut bench = Bench::new();
    let patient = JoinGroupRequest {
        session_timeout_ms: 90_000,
        group_instance_id: Some(Text::from("away")),
        ..join_request("", "x")
    };
    let away = bench.join(&patient, 5);
    let here = bench.join(&join_request("", "x"), 3);
    bench.pass(10_000);
    let (away, here) = (bench.joined(away).member_id, bench.joined(here).member_id);
    bench.sync_all(&[away.clone(), here.clone()]);
    let again = bench.join(&join_request(&here, "new"), 3);
    bench.pass(i64::from(REBALANCE_MS));
    let response = bench.joined(again);
    assert_eq!((response.generation_id, response.leader), (2, here.clone()));
    assert_eq!(response.members.len(), 2, "the leader assigns to it, too");
    bench.sync_as(&here, &here, &[]);
    for _ in 0..8 {
        bench.heartbeat(&here, 2);
        bench.pass(5000);
    }
    assert_eq!(bench.group.state, GroupState::PreparingRebalance);
    assert!(!bench.group.members.contains_key(&away));
}

#[test]
fn members_that_leave_are_removed_and_the_others_rejoin() {
    let mut bench = Bench::new();
    let ids = bench.stable(&[None, Some("s"), None]);
    let ticket = bench.join(&join_request("", "x"), 4);
    let pending = bench.joined(ticket).member_id;
    let response = bench.leave(&[
        identity(&pending, None),
        identity("", Some("s")),
        identity("", Some("t")),
        identity("", None),
        identity(&ids[0], None),
        identity(&ids[0], None),
    ]);
    let codes: Vec<ErrorCode> = response.members.iter().map(|member| member.error_code).collect();
    let (ok, unknown) = (ErrorCode::NONE, ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(codes, [ok, ok, unknown, unknown, ok, unknown]);
    assert_eq!((bench.group.state, bench.group.members.len()), (GroupState::PreparingRebalance, 1));
    let response = bench.leave(&[identity(&ids[2], None)]);
    assert_eq!(response.members[0].error_code, ok);
    assert_eq!((bench.group.state, bench.group.generation), (GroupState::Empty, 2));
    assert_eq!(bench.group.bytes(), 0);
}

#[test]
fn pending_id_that_leaves_starts_no_rebalance() {
    let mut bench = Bench::new();
    bench.stable(&[None]);
    let ticket = bench.join(&join_request("", "x"), 4);
    let pending = bench.joined(ticket).member_id;
    bench.leave(&[identity(&pending, None)]);
    assert_eq!(bench.group.state, GroupState::Stable);
}
