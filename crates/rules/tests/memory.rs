//! Tests how much memory is taken by a producer's window, and by a group whose members have left.
//!
//! The test is a process of its own, because its allocator counts all bytes. `cargo test --release -p fullbore-rules
//! --test memory -- --ignored --nocapture` prints the table of docs/benchmarks.md.

use fullbore_rules::group::classic;
use fullbore_rules::group::consumer::{self, ConsumerGroup, Topics};
use fullbore_rules::group::{Effects, Group, GroupSettings, GroupState, Joining, RequestTicket};
use fullbore_rules::sequence::{PRODUCERS_MAX, Producers, Stamp, WINDOW_MAX};
use fullbore_wire::apis::consumer_group_heartbeat::ConsumerGroupHeartbeatRequest;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use fullbore_wire::apis::leave_group::MemberIdentity;
use fullbore_wire::{Text, Uuid};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed unchanged to the system's allocator, and the cell neither allocates nor drops.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: the caller fulfils the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the memory of a partition's producer state in bytes, after each producer has written `batches` batches with
/// this window.
fn held(producers: i64, window: usize, batches: i32) -> usize {
    let before = HELD.get();
    let mut state = Producers::default();
    for sequence in 0..batches {
        for producer_id in 0..producers {
            let stamp = Stamp { producer_id, producer_epoch: 0, base_sequence: sequence, record_count: 1 };
            let offset = i64::from(sequence) * producers + producer_id;
            state.append(&stamp, offset, 0, 0, window);
        }
    }
    assert_eq!(state.len() as i64, producers);
    usize::try_from(HELD.get() - before).expect("what was there before is there still")
}

#[test]
fn producer_with_at_most_five_batches_takes_the_same_memory_at_any_window() {
    let producers = PRODUCERS_MAX as i64;
    for batches in 1..=5 {
        let at_five = held(producers, 5, batches);
        for window in [20, 1024, WINDOW_MAX] {
            assert_eq!(held(producers, window, batches), at_five, "{batches} batches at a window of {window}");
        }
    }
}

#[test]
fn full_window_takes_24_bytes_a_batch_and_a_fixed_amount() {
    let empty = held(1000, 5, 5) - 1000 * 5 * 24;
    for window in [20, 64, 1024] {
        // The limit is one percent higher, because the nodes of the tree of idle producers are not always equally full.
        let most = (empty + 1000 * window * 24) * 101 / 100;
        for batches in [window, 2 * window] {
            let held = held(1000, window, batches as i32);
            assert!(held <= most, "{held} bytes at a window of {window} after {batches} batches, not {most}");
        }
    }
}

/// Maximum memory of an abandoned group, in bytes. There may be many such groups, so they must not keep the nodes of
/// their emptied maps.
const LEFT_OF_A_GROUP_MAX: isize = 1024;

#[test]
fn abandoned_classic_group_holds_no_memory_for_members() {
    let classic = classic::ClassicGroupSettings {
        session_timeout_min_ms: 1,
        session_timeout_max_ms: 100_000,
        initial_rebalance_delay_ms: 0,
        members_max: 10,
    };
    let before = HELD.get();
    let mut group = Group::new(GroupSettings { classic, consumer: consumer::ConsumerGroupSettings::default() }, 0);
    {
        let mut effects = Effects::new();
        let protocols = vec![JoinGroupRequestProtocol { name: Text::from_static("range"), ..Default::default() }];
        let request = JoinGroupRequest {
            group_instance_id: Some(Text::from_static("static")),
            protocol_type: Text::from_static("consumer"),
            session_timeout_ms: 1_000,
            rebalance_timeout_ms: 1_000,
            protocols,
            ..Default::default()
        };
        let id = Text::from_static("member");
        let joining = Joining { request: &request, version: 3, client_id: "c", client_host: "/h", new_member_id: &id };
        group.join(joining, &NoTopics, RequestTicket(0), 0, &mut effects);
        group.tick(0, &mut effects);
        assert_eq!(group.state(), GroupState::CompletingRebalance);
        group.leave(&[MemberIdentity { member_id: id, ..Default::default() }], RequestTicket(1), 1, &mut effects);
    }
    assert_eq!(group.state(), GroupState::Empty);
    let left = HELD.get() - before;
    assert!(left <= LEFT_OF_A_GROUP_MAX, "{left} bytes");
}

#[test]
fn abandoned_consumer_group_holds_no_memory_for_members() {
    let before = HELD.get();
    let mut group = ConsumerGroup::new(0, Uuid([9; 16]), 0);
    for member_epoch in [consumer::JOINING, consumer::LEAVING] {
        let request = ConsumerGroupHeartbeatRequest {
            member_id: Text::from_static("member"),
            instance_id: Some(Text::from_static("static")),
            member_epoch,
            rebalance_timeout_ms: 1_000,
            subscribed_topic_names: Some(vec![Text::from_static("t")]),
            ..Default::default()
        };
        let call = consumer::Call {
            request: &request,
            fresh_id: Text::default(),
            fresh_parts_id: Uuid([9; 16]),
            client_id: "c",
            client_host: "/h",
            resolved: Vec::new(),
            resolved_version: 0,
        };
        group.heartbeat(call, &OneTopic, &consumer::ConsumerGroupSettings::default(), 0).expect("it may");
        assert!(group.take_change().is_some());
    }
    assert_eq!(group.state(), GroupState::Empty);
    let left = HELD.get() - before;
    assert!(left <= LEFT_OF_A_GROUP_MAX, "{left} bytes");
}

/// Each group counts its memory for `fullbore.groups.bytes.max`. The counted memory must not be less than the real one.
#[test]
fn members_with_many_names_take_no_more_memory_than_their_group_counts() {
    let before = HELD.get();
    let mut group = ConsumerGroup::new(0, Uuid([9; 16]), 0);
    for number in 0..10 {
        let names = (0..1_000).map(|name| Text::from(format!("{number:04}-{name:04}"))).collect();
        let request = ConsumerGroupHeartbeatRequest {
            member_id: Text::from(format!("m{number}")),
            rebalance_timeout_ms: 1_000,
            subscribed_topic_names: Some(names),
            ..Default::default()
        };
        let call = consumer::Call {
            request: &request,
            fresh_id: Text::default(),
            fresh_parts_id: Uuid::ZERO,
            client_id: "c",
            client_host: "/h",
            resolved: Vec::new(),
            resolved_version: 0,
        };
        group.heartbeat(call, &NoTopics, &consumer::ConsumerGroupSettings::default(), 0).expect("it may");
        assert!(group.take_change().is_some());
    }
    let held = usize::try_from(HELD.get() - before).expect("more than before");
    assert!(held <= group.bytes(), "{held} bytes, of which {} count", group.bytes());
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

struct OneTopic;

impl Topics for OneTopic {
    fn version(&self) -> u64 {
        0
    }
    fn find(&self, _: &str) -> Option<(Uuid, i32)> {
        Some((Uuid([1; 16]), 100))
    }
}

#[test]
#[ignore = "prints the table of docs/benchmarks.md"]
fn table_of_window_memory_is_printed() {
    let producers = PRODUCERS_MAX as i64;
    println!("| window | batches of each producer | bytes a producer and partition | {producers} producers |");
    for (window, batches) in [(5, 1), (5, 5), (20, 5), (20, 20), (1024, 5), (1024, 64), (1024, 1024)] {
        let held = held(producers, window, batches);
        let (each, mib) = (held as f64 / producers as f64, held as f64 / f64::from(1 << 20));
        println!("| {window} | {batches} | {each:.0} | {mib:.1} MiB |");
    }
}
