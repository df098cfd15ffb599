//! Tests of the records of a group: which records an event writes, and that a group is restored from them.

use super::*;
use crate::group::PartKind;
use crate::group::compacted_log::CompactedLog;

impl Stage {
    fn with_room(members_max: usize) -> Stage {
        let mut stage = Stage::new();
        stage.settings.members_max = members_max;
        stage
    }

    fn change(&mut self) -> Change {
        self.group.take_change().expect("something has changed")
    }

    /// Returns how many bytes the join of a member writes.
    fn bytes_of_join(&mut self, id: &str, topics: &[&str]) -> usize {
        self.join(id, topics);
        self.change().bytes()
    }
}

/// Returns the kinds of the records that are written or deleted.
fn kinds(change: &Change) -> Vec<(PartKind, bool)> {
    change.parts.iter().map(|(key, value)| (key.kind, value.is_some())).collect()
}

#[test]
fn join_of_a_large_group_writes_no_more_than_the_first_one() {
    const MEMBERS: usize = 300;
    let mut stage = Stage::with_room(MEMBERS);
    let sizes: Vec<usize> = (0..MEMBERS)
        .map(|number| {
            let names: Vec<String> = (0..100).map(|topic| format!("topic-{number:04}-{topic:04}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            stage.bytes_of_join(&format!("member-{number:04}"), &names)
        })
        .collect();
    let (first, last) = (sizes[0], sizes[MEMBERS - 1]);
    assert!((1_600..2_200).contains(&first), "{first}");
    assert!(sizes.iter().all(|size| size.abs_diff(first) <= 16), "{first} at first, {last} at last");
    assert_eq!(stage.restored().records(), stage.group.records());
}

/// Counts how often topics are looked up.
#[derive(Default)]
struct Counting(std::cell::Cell<usize>);

impl Topics for Counting {
    fn version(&self) -> u64 {
        1
    }
    fn find(&self, _: &str) -> Option<(Uuid, i32)> {
        self.0.set(self.0.get() + 1);
        None
    }
}

#[test]
fn join_of_a_large_group_looks_up_only_its_own_topics() {
    let mut stage = Stage::with_room(100);
    let mut lookups = Vec::new();
    for number in 0..100 {
        let topics = Counting::default();
        let names: Vec<String> = (0..50).map(|topic| format!("topic-{number}-{topic}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let request = joining(&format!("m{number}"), &names);
        let call = Call {
            request: &request,
            fresh_id: Text::default(),
            fresh_parts_id: PARTS,
            client_id: "client",
            client_host: "/host",
            resolved: Vec::new(),
            resolved_version: 1,
        };
        stage.group.heartbeat(call, &topics, &stage.settings, 0).expect("it joins");
        lookups.push(topics.0.get());
    }
    assert!(lookups.iter().all(|count| *count <= 2 * 50), "{lookups:?}");
}

#[test]
fn join_writes_the_assignments_that_it_changes_and_no_others() {
    const MEMBERS: usize = 64;
    let mut stage = Stage::with_room(MEMBERS + 1);
    stage.table = Table(1, vec![("a", A, 64)]);
    for number in 0..MEMBERS {
        stage.join(&format!("member-{number:02}"), &["a"]);
        let change = stage.change();
        let moved = 64 / (number + 1);
        let written = kinds(&change);
        let members = written.iter().filter(|(kind, _)| *kind == PartKind::Member).count();
        assert!(members == 1 && written.len() <= 2 + moved, "{written:?} after {number} members");
    }
    // All partitions are taken, so one more member gets none.
    stage.join("late", &["a"]);
    assert_eq!(kinds(&stage.change()), [(PartKind::Member, true), (PartKind::Assignment, true)]);
}

#[test]
fn heartbeat_without_a_change_writes_nothing() {
    let mut stage = Stage::new();
    stage.join("m1", &["a"]);
    assert_eq!(kinds(&stage.change()), [(PartKind::Member, true), (PartKind::Assignment, true)]);
    stage.heartbeat("m1", 1).unwrap();
    stage.report("m1", 1, &[0, 1, 2, 3]).unwrap();
    stage.join("m1", &["a"]);
    assert_eq!(stage.group.take_change(), None);
    stage.join("m2", &["a"]);
    stage.change();
    stage.heartbeat("m1", 1).unwrap();
    let change = stage.change();
    assert_eq!((kinds(&change), change.group), (vec![(PartKind::Assignment, true)], None), "m1 is in another state");
}

#[test]
fn member_that_leaves_takes_its_records_along() {
    let mut stage = Stage::new();
    let mut log = CompactedLog::default();
    let regex = || Text::from("[ab]");
    let request = ConsumerGroupHeartbeatRequest { subscribed_topic_regex: Some(regex()), ..joining("m1", &[]) };
    stage.send_resolved(request, vec![(regex(), [Text::from("a")].into())]).expect("it joins");
    log.write(stage.change());
    stage.join("m2", &["b"]);
    log.write(stage.change());
    assert_eq!((log.parts_len(), log.records()), (5, stage.group.records()));
    for (id, left) in [("m1", 2), ("m2", 0)] {
        stage.heartbeat(id, LEAVING).expect("it leaves");
        log.write(stage.change());
        assert_eq!((log.parts_len(), log.records()), (left, stage.group.records()), "{id}");
    }
}

#[test]
fn static_member_that_returns_replaces_its_own_records() {
    let mut stage = Stage::new();
    let mut log = CompactedLog::default();
    stage.join_static("m1", "s").unwrap();
    log.write(stage.change());
    stage.send(ConsumerGroupHeartbeatRequest { instance_id: Some(Text::from("s")), ..heartbeat_of("m1", -2) }).unwrap();
    log.write(stage.change());
    stage.join_static("m2", "s").unwrap();
    log.write(stage.change());
    assert_eq!((log.parts_len(), log.records()), (2, stage.group.records()));
    assert_eq!(stage.restored_from(&log.records()).expect("ours").members().next().expect("one").id, "m2");
}

#[test]
fn new_member_after_a_restart_replaces_no_records() {
    let mut stage = Stage::new();
    let mut log = CompactedLog::default();
    for id in ["m1", "m2"] {
        stage.join(id, &["a"]);
        log.write(stage.change());
        stage.group = stage.restored_from(&log.records()).expect("ours");
        assert_eq!(stage.group.take_change(), None);
    }
    assert_eq!((log.parts_len(), log.records()), (4, stage.group.records()));
}

#[test]
fn topics_that_change_during_a_restart_raise_the_epoch() {
    let mut stage = Stage::new();
    stage.join("m1", &["a"]);
    stage.group = stage.restored();
    stage.join("m1", &["a"]);
    assert_eq!(stage.group.group_epoch(), 1, "nothing has changed");
    stage.table = Table(2, vec![("a", A, 5), ("b", B, 4)]);
    stage.group = stage.restored();
    assert_eq!(stage.group.group_epoch(), 1);
    assert_eq!(given(&stage.join("m1", &["a"])), Some(vec![0, 1, 2, 3, 4]));
    assert_eq!(stage.group.group_epoch(), 2);
}

#[test]
fn group_of_the_first_layout_writes_all_its_records_once() {
    let mut stage = Stage::new();
    stage.join_static("m1", "s").unwrap();
    stage.join("m2", &["a", "b"]);
    let whole = stage.group.snapshot_whole();
    let state = whole.state.slice(1..);
    let restore =
        |state: bytes::Bytes, stage: &Stage| ConsumerGroup::restore_whole(state, PARTS, &stage.settings, stage.now);
    let mut restored = restore(state.clone(), &stage).expect("a snapshot of 0.1.0");
    assert_eq!(restored.records(), stage.group.records());
    assert_eq!(restored.take_change(), None, "it has not changed yet");
    for len in 0..state.len() {
        assert!(restore(state.slice(..len), &stage).is_err(), "cut at {len}");
    }
    for at in 0..state.len() {
        let mut bytes = state.to_vec();
        bytes[at] ^= 0x41;
        // The damaged bytes may be accepted or refused, but the call must not panic.
        let _ = restore(bytes.into(), &stage);
    }
    let mut log = CompactedLog::of(whole);
    stage.group = restored;
    stage.report("m1", 1, &[0, 1]).unwrap();
    log.write(stage.change());
    assert_eq!((log.parts_len(), log.records()), (4, stage.group.records()));
    stage.join("m3", &["b"]);
    let members = kinds(&stage.change()).into_iter().filter(|(kind, _)| *kind == PartKind::Member);
    assert_eq!(members.count(), 1, "the others have not changed");
}

#[test]
fn invalid_records_are_refused() {
    let mut stage = Stage::new();
    stage.join_static("m1", "s").unwrap();
    let records = stage.group.records();
    let mut restored = stage.restored_from(&records).expect("ours");
    assert_eq!((restored.records(), restored.take_change()), (records.clone(), None));
    let with = |key: &crate::group::PartKey, value: Option<bytes::Bytes>| {
        let mut damaged = records.clone();
        damaged.parts.insert(*key, value);
        stage.restored_from(&damaged).map(drop)
    };
    for (key, value) in &records.parts {
        assert_eq!(with(key, None), Err(SnapshotError::Incomplete), "{key:?}");
        let value = value.clone().expect("not deleted");
        for len in 0..value.len() {
            assert!(with(key, Some(value.slice(..len))).is_err(), "{key:?} cut at {len}");
        }
        for at in 0..value.len() {
            let mut bytes = value.to_vec();
            bytes[at] ^= 0x41;
            // The damaged bytes may be accepted or refused, but the call must not panic.
            let _ = with(key, Some(bytes.into()));
        }
        let twice = crate::group::PartKey { number: 7, ..*key };
        assert!(with(&twice, Some(value)).is_err(), "two members have the same id, or one has no assignment");
    }
    let head = records.group.as_ref().expect("it has one");
    for len in 1..head.state.len() {
        let group = Some(crate::group::Snapshot { state: head.state.slice(..len), ..head.clone() });
        assert!(stage.restored_from(&Change { group, ..records.clone() }).is_err(), "cut at {len}");
    }
}

/// The group has more elements than the arrays of a request may have, but its size is far below the limit of a group.
#[test]
fn group_with_many_subscriptions_is_restored_from_its_records() {
    const MEMBERS: usize = 106;
    let mut stage = Stage::with_room(MEMBERS);
    let names: Vec<String> = (0..10_000).map(|number| format!("topic{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for number in 0..MEMBERS {
        stage.join(&format!("m{number}"), &names);
    }
    assert_eq!(stage.restored().records(), stage.group.records());
}
