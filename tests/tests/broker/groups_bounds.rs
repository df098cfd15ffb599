//! Groups at their limits: sizes, counts, values that no client sends, and a stop while hundreds of members wait.

use super::groups::{Member, QUICK, SOON, describe, stable};
use fullbore_tests::{Broker, Client, wait_until};
use fullbore_wire::apis::heartbeat::HeartbeatRequest;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use fullbore_wire::apis::leave_group::{LeaveGroupRequest, MemberIdentity};
use fullbore_wire::apis::sync_group::SyncGroupRequest;
use fullbore_wire::{ErrorCode, Text};
use std::time::{Duration, Instant};

#[test]
fn members_of_a_group_and_groups_of_a_broker_are_limited() {
    let mut sets = QUICK.to_vec();
    sets.extend(["group.max.size=2", "fullbore.groups.max=2"]);
    let broker = Broker::start(&sets);
    let mut members: Vec<Member> = (0..2).map(|_| Member::new(&broker, "g")).collect();
    stable(&mut members);
    let code = |group: &str| {
        let member = Member::new(&broker, group);
        broker.client().call(&member.request(), 9).error_code
    };
    assert_eq!(code("g"), ErrorCode::GROUP_MAX_SIZE_REACHED);
    assert_eq!(code("second"), ErrorCode::MEMBER_ID_REQUIRED);
    assert_eq!(code("third"), ErrorCode::GROUP_MAX_SIZE_REACHED);
    // The members are still in the group after the refused requests.
    assert!(members.iter_mut().all(|member| member.heartbeat() == ErrorCode::NONE));
}

#[test]
fn metadata_of_members_takes_bounded_memory() {
    let mut sets = QUICK.to_vec();
    sets.push("fullbore.groups.bytes.max=1048576");
    let broker = Broker::start(&sets);
    let mut client = broker.client();
    let mut join = |group: &str, bytes: usize| {
        let mut request = Member::new(&broker, group).request();
        request.protocols[0].metadata = vec![0; bytes].into();
        let response = client.call(&request, 3);
        (response.error_code, response.member_id)
    };
    assert_eq!(join("too-much", 2 << 20).0, ErrorCode::GROUP_MAX_SIZE_REACHED);
    let (code, id) = join("first", 900_000);
    assert_eq!(code, ErrorCode::NONE);
    assert_eq!(join("second", 200_000).0, ErrorCode::GROUP_MAX_SIZE_REACHED);
    assert_eq!(join("small", 10).0, ErrorCode::NONE);
    let members = vec![MemberIdentity { member_id: id, ..Default::default() }];
    broker.client().call(&LeaveGroupRequest { group_id: Text::from("first"), members, ..Default::default() }, 5);
    assert_eq!(join("second", 200_000).0, ErrorCode::NONE);
}

#[test]
fn group_without_a_completed_join_expires() {
    let broker = Broker::start(QUICK);
    let mut member = Member::new(&broker, "g");
    member.session_ms = 100;
    assert_eq!(broker.client().call(&member.request(), 9).error_code, ErrorCode::MEMBER_ID_REQUIRED);
    let mut client = broker.client();
    wait_until("the id given out expires, and the group with it", SOON, || {
        describe(&mut client, "g", 6).error_code == ErrorCode::GROUP_ID_NOT_FOUND
    });
}

#[test]
fn values_that_no_client_sends_are_refused() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    let mut client = broker.client();
    let right = Member::new(&broker, "g").request();
    for session_timeout_ms in [i32::MIN, -1, 0, 5999, 1_800_001, i32::MAX] {
        let code = client.call(&JoinGroupRequest { session_timeout_ms, ..right.clone() }, 9).error_code;
        assert_eq!(code, ErrorCode::INVALID_SESSION_TIMEOUT, "{session_timeout_ms}");
    }
    for rebalance_timeout_ms in [i32::MIN, -2, 0] {
        let request = JoinGroupRequest { rebalance_timeout_ms, group_id: Text::from("n"), ..right.clone() };
        let response = client.call(&request, 3);
        assert_eq!(response.error_code, ErrorCode::NONE, "{rebalance_timeout_ms}");
        let members = vec![MemberIdentity { member_id: response.member_id, ..Default::default() }];
        client.call(&LeaveGroupRequest { group_id: Text::from("n"), members, ..Default::default() }, 5);
    }
    for (group, length) in [("g", 30_000), ("longest", 32_767)] {
        let (group_id, long) = (Text::from(group), Text::from("i".repeat(length)));
        let request = JoinGroupRequest { group_id, group_instance_id: Some(long), ..right.clone() };
        let response = client.call(&request, 9);
        assert_eq!((response.error_code, response.members.len()), (ErrorCode::NONE, 1));
    }
    let mut long = Client::connect_as(broker.addr(), &"é".repeat(16_383));
    let request = JoinGroupRequest { group_id: Text::from("long"), ..right.clone() };
    let response = long.call(&request, 3);
    assert_eq!((response.error_code, response.members.len()), (ErrorCode::NONE, 1));
    // A member sends the protocol `range` 100,000 times, which counts once.
    let one = JoinGroupRequestProtocol { name: Text::from("range"), ..Default::default() };
    let many = JoinGroupRequest { protocols: vec![one; 100_000], group_id: Text::from("many"), ..right };
    assert_eq!(client.call(&many, 3).error_code, ErrorCode::NONE);
    let nobody = MemberIdentity { member_id: Text::from("nobody"), ..Default::default() };
    let leave = LeaveGroupRequest { group_id: Text::from("g"), members: vec![nobody; 100_000], ..Default::default() };
    let response = client.call(&leave, 5);
    assert!(response.members.iter().all(|member| member.error_code == ErrorCode::UNKNOWN_MEMBER_ID));
    let heartbeat = HeartbeatRequest { group_id: Text::default(), ..Default::default() };
    assert_eq!(client.call(&heartbeat, 4).error_code, ErrorCode::INVALID_GROUP_ID);
    let sync = SyncGroupRequest { group_id: Text::from("g"), ..Default::default() };
    assert_eq!(client.call(&sync, 5).error_code, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    super::assert_serves(&broker);
}

/// Returns clients, each with a group of its own, whose JoinGroup waits for the rebalance delay.
fn waiting(broker: &Broker, count: usize) -> Vec<Client> {
    let join = |at: usize| {
        let mut client = broker.client();
        client.send(&Member::new(broker, &format!("g{at}")).request(), 3);
        client
    };
    let clients = (0..count).map(join).collect();
    let mut client = broker.client();
    wait_until("every join has arrived", SOON, || {
        (0..count).all(|at| describe(&mut client, &format!("g{at}"), 5).members.len() == 1)
    });
    clients
}

#[test]
fn a_stop_does_not_wait_for_two_hundred_joins() {
    let mut broker = Broker::start(&["group.initial.rebalance.delay.ms=600000"]);
    let clients = waiting(&broker, 200);
    let begun = Instant::now();
    broker.terminate();
    for mut client in clients {
        let (_, response) = client.receive::<JoinGroupRequest>(3);
        assert_eq!(response.error_code, ErrorCode::COORDINATOR_NOT_AVAILABLE);
    }
    assert_eq!(broker.wait_for_end().code(), Some(0));
    // The rebalance delay is ten minutes. The limit shows only that the stop did not wait for it.
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn client_gone_during_its_join_leaves_no_connection() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=600000"]);
    let before = broker.descriptors();
    let mut clients = waiting(&broker, 50);
    // While a join waits, the broker does not read the next request of its connection. If the client then closes the
    // connection, a peek at the socket returns bytes of that request instead of the end.
    for client in clients.iter_mut().skip(25) {
        client.send(&Member::new(&broker, "x").heartbeat_request(), 4);
    }
    drop(clients);
    wait_until("the connections are closed", SOON, || broker.descriptors() <= before + 5);
}
