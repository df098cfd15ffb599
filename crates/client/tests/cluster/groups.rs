//! Groups whose coordinator gives members up and loses answers: a script.

use super::several::{Asked, cluster, listeners, serve};
use fullbore_client::ClientError;
use fullbore_client::admin::GroupAdmin;
use fullbore_client::group::{GroupConfig, Member, Protocol};
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::consumer_group_heartbeat::{
    Assignment, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
};
use fullbore_wire::apis::delete_groups::{DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse};
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataResponse};
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup};
use fullbore_wire::{ErrorCode, Frame, Uuid};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// A coordinator of every group that says of itself where it is, knows no topic, and else answers as the script says;
/// its port.
fn coordinator(script: impl Fn(ApiKey, &Asked) -> Option<Frame> + Send + Sync + 'static) -> u16 {
    let ([listener], ports) = listeners();
    let port = ports[0];
    serve(listener, move |key, asked| match key {
        ApiKey::FindCoordinator => Some(asked.answer::<FindCoordinatorRequest>(|request| {
            let of = |key| Coordinator { key, host: "127.0.0.1".into(), port: i32::from(port), ..Default::default() };
            let coordinators = request.coordinator_keys.into_iter().map(of).collect();
            FindCoordinatorResponse { coordinators, ..Default::default() }
        })),
        ApiKey::Metadata => Some(asked.answer::<MetadataRequest>(|_| MetadataResponse::default())),
        key => script(key, asked),
    });
    port
}

/// A member of a group whose coordinator answers OffsetFetch with this error.
fn member_refused(error_code: ErrorCode) -> Member {
    let port = coordinator(move |key, asked| match key {
        ApiKey::OffsetFetch => Some(asked.answer::<OffsetFetchRequest>(|_| {
            let groups = vec![OffsetFetchResponseGroup { error_code, ..Default::default() }];
            OffsetFetchResponse { groups, ..Default::default() }
        })),
        _ => Some(asked.answer::<ConsumerGroupHeartbeatRequest>(|_| ConsumerGroupHeartbeatResponse {
            member_epoch: 1,
            heartbeat_interval_ms: 1000,
            ..Default::default()
        })),
    });
    let config = GroupConfig { protocol: Protocol::Consumer, ..GroupConfig::new("g".into(), vec!["t".into()]) };
    Member::start(config, cluster(port), cluster(port)).expect("a thread")
}

#[test]
fn a_member_that_was_given_up_while_it_asks_for_offsets_is_told_at_once() {
    for code in [ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::FENCED_MEMBER_EPOCH] {
        let mut member = member_refused(code);
        let (tells, told) = mpsc::channel();
        std::thread::spawn(move || {
            let found = member.committed(&[(("t".into(), 0), Uuid([1; 16]))], Duration::from_secs(3600));
            // The test may have failed already.
            let _ = tells.send(found.map_err(|error| error.to_string()));
            member.leave(Duration::ZERO);
        });
        let found = told.recv_timeout(Duration::from_secs(60)).expect("it does not ask for ever");
        assert_eq!(found, Ok(None), "{code}");
    }
}

/// Intervals are short while a group moves, and a member that was killed is one until its session ends.
#[test]
fn a_member_that_is_given_nothing_waits_for_many_of_the_longest_intervals() {
    // When the first answer was given, and the longest interval told since.
    let told: Arc<Mutex<Option<(Instant, Duration)>>> = Arc::default();
    let (tells, beats) = (Arc::clone(&told), AtomicUsize::new(0));
    let port = coordinator(move |_, asked| {
        let interval_ms = if (2..4).contains(&beats.fetch_add(1, SeqCst)) { 500 } else { 50 };
        let mut told = tells.lock().expect("no panic");
        let (_, longest) = told.get_or_insert_with(|| (Instant::now(), Duration::ZERO));
        *longest = Duration::from_millis(interval_ms).max(*longest);
        Some(asked.answer::<ConsumerGroupHeartbeatRequest>(|_| ConsumerGroupHeartbeatResponse {
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
    let (first, longest) = told.lock().expect("no panic").expect("answered");
    assert!(settled - first >= longest * 11, "{longest:?} were told {:?} ago", settled - first);
    member.leave(Duration::ZERO);
}

#[test]
fn a_group_that_is_gone_after_a_lost_answer_was_deleted() {
    for lost in [0, 1, 2] {
        let asks = AtomicUsize::new(0);
        let port = coordinator(move |_, asked| {
            let result = DeletableGroupResult {
                group_id: "g".into(),
                error_code: ErrorCode::GROUP_ID_NOT_FOUND,
                ..Default::default()
            };
            let response = DeleteGroupsResponse { results: vec![result], ..Default::default() };
            (asks.fetch_add(1, SeqCst) >= lost).then(|| asked.answer::<DeleteGroupsRequest>(|_| response))
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
