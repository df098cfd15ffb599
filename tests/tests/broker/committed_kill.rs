//! The broker is killed while several connections commit and a group rebalances repeatedly. After the restart, each
//! acknowledged offset or a newer one must be there. Committed offsets never decrease unless they are reset, and each
//! generation is assigned once. `FULLBORE_COMMIT_ROUNDS` is the number of rounds (by default 4, in `make soak` 200).

use fullbore_tests::{Broker, Client};
use fullbore_wire::api::Request;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use fullbore_wire::apis::leave_group::{LeaveGroupRequest, MemberIdentity};
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use fullbore_wire::apis::sync_group::SyncGroupRequest;
use fullbore_wire::{ErrorCode, Text};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

const CONNECTIONS: usize = 4;
/// The group of each connection. Connections 0 and 1 commit for the same group and partition.
const GROUPS: [&str; CONNECTIONS] = ["shared", "shared", "alone-2", "alone-3"];
const COMMIT: i16 = 8;
const ENOUGH: usize = 400;

fn request(group: &str, offset: i64) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition { committed_offset: offset, ..Default::default() };
    let topic = OffsetCommitRequestTopic { name: Text::from("t"), partitions: vec![partition], ..Default::default() };
    OffsetCommitRequest { group_id: Text::from(group), topics: vec![topic], ..Default::default() }
}

fn committed(client: &mut Client, group: &str) -> i64 {
    let topic = OffsetFetchRequestTopics { name: Text::from("t"), partition_indexes: vec![0], ..Default::default() };
    let requested = OffsetFetchRequestGroup {
        group_id: Text::from(group),
        member_epoch: -1,
        topics: Some(vec![topic]),
        ..Default::default()
    };
    let request = OffsetFetchRequest { groups: vec![requested], ..Default::default() };
    loop {
        let found = client.call(&request, 8).groups.remove(0);
        // The broker may already serve requests while it still loads the group. The request is then repeated.
        if found.error_code != ErrorCode::COORDINATOR_LOAD_IN_PROGRESS {
            assert_eq!(found.error_code, ErrorCode::NONE, "{group}");
            return found.topics[0].partitions[0].committed_offset;
        }
    }
}

/// The commits of one connection.
#[derive(Default, Clone)]
struct Seen {
    acknowledged: Vec<i64>,
    /// The offset in the last request, which the broker may have committed before the kill.
    in_flight: i64,
}

/// Commits increasing offsets, with two requests in flight, until the broker is killed.
fn commit_until_killed(mut client: Client, group: &str, next: &AtomicI64, count: &AtomicUsize) -> Seen {
    let mut seen = Seen::default();
    let mut sent = std::collections::VecDeque::new();
    loop {
        while sent.len() < 2 {
            let offset = next.fetch_add(1, Ordering::SeqCst);
            if client.try_send(&request(group, offset), COMMIT).is_err() {
                return seen;
            }
            seen.in_flight = offset;
            sent.push_back(offset);
        }
        let Some((_, response)) = client.try_receive::<OffsetCommitRequest>(COMMIT) else { return seen };
        assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::NONE);
        seen.acknowledged.extend(sent.pop_front());
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// The generations of the group in which one member took part.
#[derive(Default)]
struct Generations {
    /// The last generation in which the member got an assignment.
    seen: i32,
    /// The last generation whose number the member has committed as an offset.
    committed: i32,
}

/// Repeatedly joins the group, commits and leaves, until the broker is killed. Each join must get a new generation.
fn rebalance_until_killed(mut client: Client, last: &mut Generations) {
    let group = || Text::from("rebalancing");
    loop {
        let protocol = JoinGroupRequestProtocol { name: Text::from("range"), ..Default::default() };
        let join = JoinGroupRequest {
            group_id: group(),
            session_timeout_ms: 6_000,
            rebalance_timeout_ms: 1_000,
            protocol_type: Text::from("consumer"),
            protocols: vec![protocol],
            ..Default::default()
        };
        let Some(joined) = call(&mut client, &join, 3) else { return };
        let generation_id = joined.generation_id;
        assert_eq!(joined.error_code, ErrorCode::NONE);
        assert!(generation_id > last.seen, "generation {generation_id} after {}", last.seen);
        let member_id = joined.member_id;
        let sync =
            SyncGroupRequest { group_id: group(), generation_id, member_id: member_id.clone(), ..Default::default() };
        let Some(synced) = call(&mut client, &sync, 3) else { return };
        assert_eq!(synced.error_code, ErrorCode::NONE);
        last.seen = generation_id;
        let commit = OffsetCommitRequest {
            generation_id_or_member_epoch: generation_id,
            member_id: member_id.clone(),
            ..request("rebalancing", i64::from(generation_id))
        };
        let Some(committed) = call(&mut client, &commit, COMMIT) else { return };
        assert_eq!(committed.topics[0].partitions[0].error_code, ErrorCode::NONE);
        last.committed = generation_id;
        let leaving = MemberIdentity { member_id, ..Default::default() };
        let leave = LeaveGroupRequest { group_id: group(), members: vec![leaving], ..Default::default() };
        let Some(left) = call(&mut client, &leave, 3) else { return };
        assert_eq!(left.members[0].error_code, ErrorCode::NONE);
    }
}

/// Sends a request and returns the response. `None` if the broker has ended.
fn call<R: Request>(client: &mut Client, request: &R, version: i16) -> Option<R::Response> {
    client.try_send(request, version).ok()?;
    client.try_receive::<R>(version).map(|(_, response)| response)
}

#[test]
fn no_acknowledged_commit_is_lost_to_kill_minus_nine() {
    let rounds = fullbore_tests::rounds("FULLBORE_COMMIT_ROUNDS", 4, 200);
    let mut broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    broker.client().create_topic("t", 1, &[]);
    let next = AtomicI64::new(1);
    let mut generations = Generations::default();
    for round in 0..rounds {
        let counts: Vec<AtomicUsize> = GROUPS.iter().map(|_| AtomicUsize::new(0)).collect();
        let clients: Vec<Client> = GROUPS.iter().map(|_| broker.client()).collect();
        let seen = Mutex::new(vec![Seen::default(); CONNECTIONS]);
        std::thread::scope(|scope| {
            for (index, client) in clients.into_iter().enumerate() {
                let (next, count, seen) = (&next, &counts[index], &seen);
                scope.spawn(move || {
                    let of_one = commit_until_killed(client, GROUPS[index], next, count);
                    seen.lock().expect("no holder panics")[index] = of_one;
                });
            }
            let member = broker.client();
            let generations = &mut generations;
            scope.spawn(move || rebalance_until_killed(member, generations));
            fullbore_tests::wait_until("enough commits", Duration::from_secs(60), || {
                let counts = counts.iter().map(|count| count.load(Ordering::SeqCst));
                counts.clone().sum::<usize>() >= ENOUGH && counts.min() > Some(0)
            });
            broker.kill();
        });
        broker.restart();
        let mut client = broker.client();
        let (found, acknowledged) = (committed(&mut client, "rebalancing"), i64::from(generations.committed));
        assert!(found >= acknowledged || acknowledged == 0, "round {round}: {found}, acknowledged {acknowledged}");
        let seen = seen.into_inner().expect("no holder panicked");
        for index in [2, 3] {
            let found = committed(&mut client, GROUPS[index]);
            let acknowledged = *seen[index].acknowledged.last().expect("each connection committed");
            assert!(
                (acknowledged..=seen[index].in_flight).contains(&found),
                "round {round}, {}: {found}, acknowledged {acknowledged}",
                GROUPS[index]
            );
        }
        // Two connections commit for the same partition, and the commit that the broker writes last remains. The offset
        // must therefore be at least the last acknowledged offset of one of them.
        let found = committed(&mut client, "shared");
        let is_last_of = |seen: &Seen| found >= *seen.acknowledged.last().expect("each connection committed");
        assert!(seen[..2].iter().any(is_last_of), "round {round}, shared: {found}");
    }
}
