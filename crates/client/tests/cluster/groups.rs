//! Tests groups with scripted coordinators, which remove members and lose responses.

use super::several::{ReceivedRequest, cluster, listeners, metadata, serve, serve_unless};
use fullbore_client::ClientError;
use fullbore_client::admin::GroupAdmin;
use fullbore_client::blocking::Cluster;
use fullbore_client::group::{Assignor, CommitOutcome, CommittedOffset, GroupConfig, Member, Position, Protocol};
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::consumer_group_heartbeat::{
    Assignment, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
};
use fullbore_wire::apis::delete_groups::{DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse};
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use fullbore_wire::apis::heartbeat::{HeartbeatRequest, HeartbeatResponse};
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember};
use fullbore_wire::apis::leave_group::{LeaveGroupRequest, LeaveGroupResponse};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataResponse};
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitResponse};
use fullbore_wire::apis::offset_fetch::{
    OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
};
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupResponse};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Starts a broker that names itself as the coordinator of every group and knows no topic. The script answers all other
/// requests. Returns the broker's port.
pub fn coordinator(script: impl Fn(ApiKey, &ReceivedRequest) -> Option<Frame> + Send + Sync + 'static) -> u16 {
    let ([listener], ports) = listeners();
    let port = ports[0];
    serve(listener, move |key, requested| match key {
        ApiKey::FindCoordinator => Some(requested.answer::<FindCoordinatorRequest>(|request| {
            let of = |key| Coordinator { key, host: "127.0.0.1".into(), port: i32::from(port), ..Default::default() };
            let coordinators = request.coordinator_keys.into_iter().map(of).collect();
            FindCoordinatorResponse { coordinators, ..Default::default() }
        })),
        ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| MetadataResponse::default())),
        key => script(key, requested),
    });
    port
}

#[test]
fn commit_contains_the_leader_epoch_of_the_last_record() {
    let committed: Arc<Mutex<Vec<i32>>> = Arc::default();
    let notes = committed.clone();
    let port = coordinator(move |key, requested| match key {
        ApiKey::OffsetCommit => Some(requested.answer::<OffsetCommitRequest>(|request| {
            let partitions = request.topics.iter().flat_map(|topic| &topic.partitions);
            notes.lock().expect("no panic").extend(partitions.map(|of| of.committed_leader_epoch));
            OffsetCommitResponse::default()
        })),
        _ => Some(requested.answer::<ConsumerGroupHeartbeatRequest>(|_| ConsumerGroupHeartbeatResponse {
            member_epoch: 1,
            heartbeat_interval_ms: 1000,
            ..Default::default()
        })),
    });
    let config = GroupConfig { protocol: Protocol::Consumer, ..GroupConfig::new("g".into(), vec!["t".into()]) };
    let mut member = Member::start(config, cluster(port), cluster(port)).expect("a thread");
    for leader_epoch in [Some(4), None] {
        let position = Position { topic_id: Uuid([1; 16]), offset: 7, leader_epoch };
        let offsets = HashMap::from([(("t".into(), 0), position)]);
        let outcome = member.commit(&offsets, Duration::from_secs(60)).expect("answered");
        assert_eq!(outcome, CommitOutcome::Done);
    }
    assert_eq!(*committed.lock().expect("no panic"), [4, -1]);
    member.leave(Duration::ZERO);
}

/// Regression test: a copier read old offsets from a former coordinator, and wrote committed records again.
#[test]
fn former_coordinator_answers_too_offsets_come_from_the_coordinator_that_was_joined() {
    let [former, present] = [5, 9].map(|offset| {
        coordinator(move |key, requested| match key {
            ApiKey::OffsetFetch => Some(committed(requested, offset)),
            _ => Some(requested.answer::<ConsumerGroupHeartbeatRequest>(|_| ConsumerGroupHeartbeatResponse {
                member_epoch: 1,
                heartbeat_interval_ms: 1000,
                assignment: Some(Assignment::default()),
                ..Default::default()
            })),
        })
    });
    let config = GroupConfig { protocol: Protocol::Consumer, ..GroupConfig::new("g".into(), vec!["t".into()]) };
    let mut member = Member::start(config, cluster(present), cluster(former)).expect("a thread");
    member.target(Duration::from_secs(60)).expect("a member").expect("a target");
    let found = member.committed(&[(("t".into(), 0), Uuid::ZERO)], Duration::from_secs(60)).expect("answered");
    assert_eq!(found, Some(vec![Some(at(9))]));
    member.leave(Duration::ZERO);
}

/// Returns a member of a group whose coordinator answers OffsetFetch with this error.
fn member_refused(error_code: ErrorCode) -> Member {
    let port = coordinator(move |key, requested| match key {
        ApiKey::OffsetFetch => Some(requested.answer::<OffsetFetchRequest>(|_| {
            let groups = vec![OffsetFetchResponseGroup { error_code, ..Default::default() }];
            OffsetFetchResponse { groups, ..Default::default() }
        })),
        _ => Some(requested.answer::<ConsumerGroupHeartbeatRequest>(|_| ConsumerGroupHeartbeatResponse {
            member_epoch: 1,
            heartbeat_interval_ms: 1000,
            ..Default::default()
        })),
    });
    let config = GroupConfig { protocol: Protocol::Consumer, ..GroupConfig::new("g".into(), vec!["t".into()]) };
    Member::start(config, cluster(port), cluster(port)).expect("a thread")
}

#[test]
fn a_removed_member_gets_no_offsets_at_once() {
    for code in [ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::FENCED_MEMBER_EPOCH] {
        let mut member = member_refused(code);
        let (reports, reported) = mpsc::channel();
        std::thread::spawn(move || {
            let found = member.committed(&[(("t".into(), 0), Uuid([1; 16]))], Duration::from_secs(3600));
            // An error only means that the test has already failed.
            let _ = reports.send(found.map_err(|error| error.to_string()));
            member.leave(Duration::ZERO);
        });
        let found = reported.recv_timeout(Duration::from_secs(60)).expect("it does not ask for ever");
        assert_eq!(found, Ok(None), "{code}");
    }
}

/// A killed member keeps its partitions until its session ends. Heartbeat intervals are short during a rebalance, so
/// only many of the longest intervals cover a session.
#[test]
fn an_empty_assignment_is_final_after_many_of_the_longest_intervals() {
    // The time of the first response, and the longest heartbeat interval in any response so far.
    let reported: Arc<Mutex<Option<(Instant, Duration)>>> = Arc::default();
    let (reports, heartbeats) = (Arc::clone(&reported), AtomicUsize::new(0));
    let port = coordinator(move |_, requested| {
        let interval_ms = if (2..4).contains(&heartbeats.fetch_add(1, SeqCst)) { 500 } else { 50 };
        let mut reported = reports.lock().expect("no panic");
        let (_, longest) = reported.get_or_insert_with(|| (Instant::now(), Duration::ZERO));
        *longest = Duration::from_millis(interval_ms).max(*longest);
        Some(requested.answer::<ConsumerGroupHeartbeatRequest>(|_| ConsumerGroupHeartbeatResponse {
            member_epoch: 1,
            heartbeat_interval_ms: i32::try_from(interval_ms).expect("short"),
            assignment: Some(Assignment::default()),
            ..Default::default()
        }))
    });
    let config = GroupConfig { protocol: Protocol::Consumer, ..GroupConfig::new("g".into(), vec!["t".into()]) };
    let mut member = Member::start(config, cluster(port), cluster(port)).expect("a thread");
    let settled = loop {
        let target = member.target(Duration::from_secs(60)).expect("a member").expect("a target");
        member.confirm(&target);
        if target.settled {
            break Instant::now();
        }
    };
    let (first, longest) = reported.lock().expect("no panic").expect("answered");
    assert!(settled - first >= longest * 11, "{longest:?} were told {:?} ago", settled - first);
    member.leave(Duration::ZERO);
}

#[test]
fn a_missing_group_after_a_lost_response_counts_as_deleted() {
    for lost in [0, 1, 2] {
        let requests = AtomicUsize::new(0);
        let port = coordinator(move |_, requested| {
            let result = DeletableGroupResult {
                group_id: "g".into(),
                error_code: ErrorCode::GROUP_ID_NOT_FOUND,
                ..Default::default()
            };
            let response = DeleteGroupsResponse { results: vec![result], ..Default::default() };
            (requests.fetch_add(1, SeqCst) >= lost).then(|| requested.answer::<DeleteGroupsRequest>(|_| response))
        });
        let mut cluster = cluster(port);
        let mut groups = GroupAdmin::of(&mut cluster, Duration::from_secs(60)).expect("it answers");
        match groups.delete(&"g".into()) {
            Ok(()) => assert!(lost > 0),
            Err(ClientError::NoGroup(_)) => assert_eq!(lost, 0),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The error codes with which JoinGroup requests were answered, in order.
type Joins = Arc<Mutex<Vec<ErrorCode>>>;

/// Returns the response to the join of a group's only member.
fn joined(requested: &ReceivedRequest, generation_id: i32) -> Frame {
    requested.answer::<JoinGroupRequest>(|request| {
        let member_id = if request.member_id.is_empty() { "m".into() } else { request.member_id };
        let metadata = request.protocols[0].metadata.clone();
        let member = JoinGroupResponseMember { member_id: member_id.clone(), metadata, ..Default::default() };
        JoinGroupResponse {
            generation_id,
            protocol_type: Some(request.protocol_type),
            protocol_name: Some(request.protocols[0].name.clone()),
            leader: member_id.clone(),
            member_id,
            members: vec![member],
            ..Default::default()
        }
    })
}

/// Returns a classic coordinator's response to a group's only member, which is assigned partition 0 of "t".
fn only_member(key: ApiKey, requested: &ReceivedRequest) -> Option<Frame> {
    Some(match key {
        ApiKey::JoinGroup => joined(requested, 1),
        ApiKey::SyncGroup => requested.answer::<SyncGroupRequest>(|request| {
            let assignment = request.assignments.into_iter().next().map(|of| of.assignment).unwrap_or_default();
            SyncGroupResponse { assignment, ..Default::default() }
        }),
        ApiKey::Heartbeat => requested.answer::<HeartbeatRequest>(|_| HeartbeatResponse::default()),
        ApiKey::LeaveGroup => requested.answer::<LeaveGroupRequest>(|_| LeaveGroupResponse::default()),
        ApiKey::OffsetFetch => requested.answer::<OffsetFetchRequest>(|_| OffsetFetchResponse::default()),
        _ => return None,
    })
}

/// Starts two brokers, of which the second coordinates the group. Both brokers name the first broker as the
/// coordinator, until it has refused `refusals` joins. Returns the first broker's port and the codes of the joins.
fn brokers_of_which_one_coordinates(refusals: usize, refusal: ErrorCode) -> (u16, Joins) {
    let ([first, second], ports) = listeners();
    let joins = Joins::default();
    for (listener, is_coordinator) in [(first, false), (second, true)] {
        let (ports, joins) = (ports.clone(), joins.clone());
        serve(listener, move |key, requested| match key {
            ApiKey::FindCoordinator => Some(requested.answer::<FindCoordinatorRequest>(|request| {
                let at = usize::from(joins.lock().expect("no panic").len() >= refusals);
                let (host, port) = ("127.0.0.1".into(), i32::from(ports[at]));
                let keys = request.coordinator_keys.into_iter();
                let of = |key| Coordinator { key, host: Text::clone(&host), port, ..Default::default() };
                FindCoordinatorResponse { coordinators: keys.map(of).collect(), ..Default::default() }
            })),
            ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| metadata(&ports, 1))),
            ApiKey::JoinGroup if !is_coordinator => {
                joins.lock().expect("no panic").push(refusal);
                let refused = JoinGroupResponse { error_code: refusal, ..Default::default() };
                Some(requested.answer::<JoinGroupRequest>(|_| refused))
            }
            ApiKey::JoinGroup => {
                joins.lock().expect("no panic").push(ErrorCode::NONE);
                only_member(key, requested)
            }
            key => only_member(key, requested),
        });
    }
    (ports[0], joins)
}

/// Starts a member of the classic protocol. Returns the member and the partitions that it gets within a minute.
fn assigned(port: u16, config: GroupConfig) -> (Member, Vec<(Text, i32)>) {
    let mut member = Member::start(config, cluster(port), cluster(port)).expect("a thread");
    let until = Instant::now() + Duration::from_secs(60);
    let mut partitions = Vec::new();
    while partitions.is_empty() && Instant::now() < until {
        if let Some(target) = member.target(Duration::from_secs(1)).expect("a member") {
            member.confirm(&target);
            partitions = target.partitions;
        }
    }
    (member, partitions)
}

/// Returns the partitions that a member of the classic protocol gets. The member leaves afterwards.
fn given(port: u16) -> Vec<(Text, i32)> {
    let (member, partitions) = assigned(port, GroupConfig::new("g".into(), vec!["t".into()]));
    member.leave(Duration::ZERO);
    partitions
}

#[test]
fn a_join_refused_beside_the_look_up_is_repeated_at_the_coordinator() {
    for code in [ErrorCode::NOT_COORDINATOR, ErrorCode::GROUP_AUTHORIZATION_FAILED] {
        let (port, joins) = brokers_of_which_one_coordinates(0, code);
        assert_eq!(given(port), [("t".into(), 0)], "{code}");
        let codes = joins.lock().expect("no panic");
        assert!(codes.starts_with(&[code, ErrorCode::NONE]), "{codes:?}");
    }
}

#[test]
fn a_member_whose_coordinator_moves_finds_it_again_and_joins() {
    let (port, joins) = brokers_of_which_one_coordinates(2, ErrorCode::NOT_COORDINATOR);
    assert_eq!(given(port), [("t".into(), 0)]);
    let refused = ErrorCode::NOT_COORDINATOR;
    let codes = joins.lock().expect("no panic");
    // The first join is sent in one round trip with the first look-up, and the second join to the broker that this
    // look-up named. Both are refused. The third join is sent with the second look-up, to the other broker.
    assert!(codes.starts_with(&[refused, refused, ErrorCode::NONE]), "{codes:?}");
}

#[test]
fn only_listed_broker_goes_down_a_member_finds_its_coordinator_through_another() {
    let ([first, second], ports) = listeners();
    let (port, is_down, reached) = (ports[0], Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (downs, reaches) = (is_down.clone(), reached.clone());
    for (listener, at, is_down) in [(first, 0, downs), (second, 1, Arc::default())] {
        let (ports, reached) = (ports.clone(), reaches.clone());
        serve_unless(listener, is_down, move |key, requested| match key {
            ApiKey::FindCoordinator => Some(requested.answer::<FindCoordinatorRequest>(|request| {
                let (host, port) = (Text::from("127.0.0.1"), i32::from(ports[at]));
                let of = |key| Coordinator { key, host: host.clone(), port, ..Default::default() };
                let coordinators = request.coordinator_keys.into_iter().map(of).collect();
                FindCoordinatorResponse { coordinators, ..Default::default() }
            })),
            ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| metadata(&ports, 1))),
            key => {
                reached.fetch_or(at == 1 && key == ApiKey::Heartbeat, SeqCst);
                only_member(key, requested)
            }
        });
    }
    let heartbeat_interval = Duration::from_millis(10);
    let config = GroupConfig { heartbeat_interval, ..GroupConfig::new("g".into(), vec!["t".into()]) };
    let (mut member, partitions) = assigned(port, config);
    assert_eq!(partitions, [("t".into(), 0)]);
    is_down.store(true, SeqCst);
    let until = Instant::now() + Duration::from_secs(60);
    while !reached.load(SeqCst) && Instant::now() < until {
        member.target(Duration::from_millis(10)).expect("still a member");
    }
    assert!(reached.load(SeqCst), "the other broker gets no heartbeat");
    member.leave(Duration::ZERO);
}

/// Starts three brokers. The first one answers a JoinGroup with a member id only once `answers` returns true for the
/// number of look-ups of the coordinator at the other two. `named` is the coordinator that each broker names. Returns
/// the bootstrap list, and the ports at which members have joined.
fn three_brokers(named: [usize; 3], answers: fn([usize; 2]) -> bool) -> (String, Arc<Mutex<Vec<u16>>>) {
    let (listeners, ports) = listeners::<3>();
    let joins = Arc::<Mutex<Vec<u16>>>::default();
    let looks: Arc<[AtomicUsize; 3]> = Arc::default();
    for (at, listener) in listeners.into_iter().enumerate() {
        let (ports, joins, looks) = (ports.clone(), joins.clone(), looks.clone());
        serve(listener, move |key, requested| match key {
            ApiKey::FindCoordinator => Some(requested.answer::<FindCoordinatorRequest>(|request| {
                looks[at].fetch_add(1, SeqCst);
                let (host, port) = (Text::from("127.0.0.1"), i32::from(ports[named[at]]));
                let of = |key| Coordinator { key, host: host.clone(), port, ..Default::default() };
                let coordinators = request.coordinator_keys.into_iter().map(of).collect();
                FindCoordinatorResponse { coordinators, ..Default::default() }
            })),
            ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| metadata(&ports, 1))),
            ApiKey::JoinGroup => {
                let mut has_id = false;
                let answer = requested.answer::<JoinGroupRequest>(|request| {
                    has_id = !request.member_id.is_empty();
                    let error_code = ErrorCode::MEMBER_ID_REQUIRED;
                    JoinGroupResponse { error_code, member_id: "m".into(), ..Default::default() }
                });
                if !has_id {
                    return Some(answer);
                }
                while at == 0 && !answers([1, 2].map(|other| looks[other].load(SeqCst))) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                joins.lock().expect("no panic").push(ports[at]);
                only_member(key, requested)
            }
            key => only_member(key, requested),
        });
    }
    (ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(","), joins)
}

/// Returns the ports at which a member with this bootstrap list joins its group.
fn joined_at(servers: &str, joins: &Mutex<Vec<u16>>) -> Vec<u16> {
    let of = || Cluster::new(servers, "test").expect("valid");
    let metadata_max_age = Duration::from_millis(50);
    let config = GroupConfig { metadata_max_age, ..GroupConfig::new("g".into(), vec!["t".into()]) };
    let mut member = Member::start(config, of(), of()).expect("a thread");
    let until = Instant::now() + Duration::from_secs(120);
    while joins.lock().expect("no panic").is_empty() && Instant::now() < until {
        if let Some(target) = member.target(Duration::from_millis(50)).expect("a member") {
            member.confirm(&target);
        }
    }
    member.leave(Duration::ZERO);
    joins.lock().expect("no panic").clone()
}

fn port_of(servers: &str, at: usize) -> u16 {
    let address = servers.split(',').nth(at).expect("three brokers");
    address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

/// Regression test: a member waited for max.poll.interval.ms at a coordinator that was cut off from the database.
#[test]
fn former_coordinator_never_answers_a_join_the_member_joins_at_the_one_that_two_brokers_name() {
    let (servers, joins) = three_brokers([0, 1, 1], |_| false);
    assert_eq!(joined_at(&servers, &joins).first(), Some(&port_of(&servers, 1)));
}

#[test]
fn one_broker_is_behind_a_join_that_takes_long_is_not_ended() {
    let (servers, joins) = three_brokers([0, 0, 2], |looks| looks[0] >= 2 && looks[1] >= 3);
    assert_eq!(joined_at(&servers, &joins).first(), Some(&port_of(&servers, 0)));
}

/// Regression test: the requests for offsets went to the broker that the look-up had named, although another one had
/// accepted the member.
#[test]
fn broker_accepts_a_join_but_names_another_coordinator_the_member_joins_there() {
    let (servers, joins) = three_brokers([1, 1, 1], |_| true);
    assert_eq!(joined_at(&servers, &joins).first(), Some(&port_of(&servers, 1)));
}

/// The leader epoch with which the coordinator of [`committed`] answers.
const COMMITTED_EPOCH: i32 = 3;

/// Returns what a member gets from [`committed`].
fn at(offset: i64) -> CommittedOffset {
    CommittedOffset { offset, leader_epoch: Some(COMMITTED_EPOCH) }
}

/// Answers that the group has committed `offset` of partition 0 of "t".
fn committed(requested: &ReceivedRequest, offset: i64) -> Frame {
    requested.answer::<OffsetFetchRequest>(|_| {
        let partition = OffsetFetchResponsePartitions {
            committed_offset: offset,
            committed_leader_epoch: COMMITTED_EPOCH,
            ..Default::default()
        };
        let topic = OffsetFetchResponseTopics { name: "t".into(), partitions: vec![partition], ..Default::default() };
        let groups = vec![OffsetFetchResponseGroup { topics: vec![topic], ..Default::default() }];
        OffsetFetchResponse { groups, ..Default::default() }
    })
}

#[test]
fn a_partition_kept_over_a_cooperative_rebalance_has_its_newest_committed_offset() {
    let ([listener], ports) = listeners();
    let port = ports[0];
    // The group's generation, the generation of the last heartbeat, and the offset that the reader has committed.
    let (generation, heartbeat_generation, offset) = (AtomicI32::new(1), AtomicI32::new(0), AtomicI64::new(5));
    let group = Arc::new((generation, heartbeat_generation, offset));
    let of_group = group.clone();
    serve(listener, move |key, requested| {
        let (generation, heartbeat_generation, offset) = &*of_group;
        Some(match key {
            ApiKey::FindCoordinator => requested.answer::<FindCoordinatorRequest>(|request| {
                let of =
                    |key| Coordinator { key, host: "127.0.0.1".into(), port: i32::from(port), ..Default::default() };
                let coordinators = request.coordinator_keys.into_iter().map(of).collect();
                FindCoordinatorResponse { coordinators, ..Default::default() }
            }),
            ApiKey::Metadata => requested.answer::<MetadataRequest>(|_| metadata(&[port], 1)),
            ApiKey::JoinGroup => joined(requested, generation.load(SeqCst)),
            ApiKey::Heartbeat => requested.answer::<HeartbeatRequest>(|request| {
                heartbeat_generation.store(request.generation_id, SeqCst);
                let is_old = request.generation_id < generation.load(SeqCst);
                let error_code = if is_old { ErrorCode::REBALANCE_IN_PROGRESS } else { ErrorCode::NONE };
                HeartbeatResponse { error_code, ..Default::default() }
            }),
            ApiKey::OffsetFetch => committed(requested, offset.load(SeqCst)),
            key => return only_member(key, requested),
        })
    });
    let assignors = vec![Assignor::CooperativeSticky];
    let heartbeat_interval = Duration::from_millis(10);
    let config = GroupConfig { assignors, heartbeat_interval, ..GroupConfig::new("g".into(), vec!["t".into()]) };
    let mut member = Member::start(config, cluster(port), cluster(port)).expect("a thread");
    let of = [(("t".into(), 0), Uuid::default())];
    let patience = Duration::from_secs(60);
    let target = member.target(patience).expect("a member").expect("a partition");
    assert_eq!(member.committed(&of, patience).expect("answered"), Some(vec![Some(at(5))]));
    member.confirm(&target);
    let (generation, heartbeat_generation, offset) = &*group;
    generation.store(2, SeqCst);
    let until = Instant::now() + patience;
    while heartbeat_generation.load(SeqCst) < 2 && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(member.newest(), target.serial, "it keeps what it has");
    offset.store(20, SeqCst);
    assert_eq!(member.committed(&of, patience).expect("answered"), Some(vec![Some(at(20))]));
    member.leave(Duration::ZERO);
}
