//! Tests a session with leaders that read ahead, leaders that do not, and leaders that lose the session.

use super::*;
use fullbore_wire::apis::fetch::FetchableTopicResponse;

fn key(partition: i32) -> PartitionKey {
    (Uuid::ZERO, Text::default(), partition)
}

fn data(partition_index: i32, from_offset: i64) -> PartitionData {
    PartitionData { partition_index, from_offset, ..Default::default() }
}

fn answer(session_id: i32, data: PartitionData) -> FetchResponse {
    let responses = vec![FetchableTopicResponse { partitions: vec![data], ..Default::default() }];
    FetchResponse { session_id, responses, ..Default::default() }
}

fn opened() -> FetchSession {
    let mut session = FetchSession::new(true);
    let first = session.next(Instant::now(), [key(0), key(1)].into_iter());
    assert_eq!(first, Naming { session_id: 0, session_epoch: 0, what: Named::All });
    assert!(!session.has_room(8), "nothing is known of the leader yet");
    session.answered().expect("one is under way");
    assert!(session.note(&answer(7, data(0, 0)), Instant::now()) && session.is_ahead());
    session
}

fn changes(named: Vec<PartitionKey>, forgotten: Vec<PartitionKey>) -> Named {
    Named::Changes { named, forgotten, sizes: false }
}

#[test]
fn a_session_ahead_has_several_fetches_which_name_only_changes() {
    let mut session = opened();
    for epoch in 1..=3 {
        assert!(session.has_room(3));
        let next = session.next(Instant::now(), std::iter::empty());
        assert_eq!(next, Naming { session_id: 7, session_epoch: epoch, what: changes(vec![], vec![]) });
    }
    assert!(!session.has_room(3));
    session.name(key(2));
    session.forget(&key(1));
    assert!(session.has_room(3), "a new partition does not wait for an answer");
    assert_eq!(session.next(Instant::now(), std::iter::empty()).what, changes(vec![key(2)], vec![key(1)]));
    assert!(!session.has_room(4));
    session.answered();
    session.resize();
    let Named::Changes { sizes, .. } = session.next(Instant::now(), std::iter::empty()).what else { panic!("ahead") };
    assert!(sizes && session.has_room(5) && !session.has_room(4));
}

#[test]
fn a_leader_without_from_offsets_gets_offsets_and_its_session_is_closed() {
    let mut session = FetchSession::new(true);
    session.next(Instant::now(), std::iter::empty());
    session.answered();
    assert!(session.note(&answer(9, data(0, -1)), Instant::now()) && session.is_by_offsets());
    let next = session.next(Instant::now(), std::iter::empty());
    assert_eq!(next, Naming { session_id: 9, session_epoch: -1, what: Named::All });
    assert!(!session.has_room(8) && session.accepts(0, &key(5), &data(5, -1), 3));
    session.answered();
    let next = session.next(Instant::now(), std::iter::empty());
    assert_eq!(next, Naming { session_id: 0, session_epoch: -1, what: Named::All });
}

#[test]
fn a_response_counts_from_the_naming_fetch_on_and_without_gaps() {
    let mut session = opened();
    assert!(session.accepts(1, &key(0), &data(0, 5), 5) && session.accepts(1, &key(0), &data(0, 3), 5));
    session.next(Instant::now(), std::iter::empty());
    session.forget(&key(0));
    session.name(key(0));
    assert!(!session.accepts(1, &key(0), &data(0, 5), 5), "it is not named again yet");
    session.next(Instant::now(), std::iter::empty());
    assert!(!session.accepts(1, &key(0), &data(0, 5), 5), "the fetch before read on from elsewhere");
    assert!(session.accepts(2, &key(0), &data(0, 5), 5));
    assert!(!session.accepts(2, &key(0), &data(0, 6), 5), "5 is not in it");
    assert_eq!(session.next(Instant::now(), std::iter::empty()).what, changes(vec![key(0)], vec![]));
    session.dropped(&key(1));
    assert!(!session.accepts(3, &key(1), &data(1, 0), 0));
}

#[test]
fn a_lost_session_is_reopened_a_limited_number_of_times() {
    let mut session = opened();
    for lost in 1..=LOST_MAX {
        session.next(Instant::now(), std::iter::empty());
        session.next(Instant::now(), std::iter::empty());
        session.answered();
        assert!(session.lose() && !session.has_room(8));
        session.answered();
        assert!(!session.note(&answer(7, data(0, 0)), Instant::now()), "it is of the lost one");
        assert!(session.has_room(8));
        let next = session.next(Instant::now(), [key(0)].into_iter());
        assert_eq!(next, Naming { session_id: 0, session_epoch: 0, what: Named::All }, "{lost}");
        session.answered();
        assert!(session.note(&answer(7, data(0, 0)), Instant::now()));
    }
    session.next(Instant::now(), std::iter::empty());
    session.answered();
    assert!(session.lose());
    session.next(Instant::now(), [key(0)].into_iter());
    assert!(session.is_by_offsets() && !session.lose());
}

#[test]
fn a_leader_without_room_for_a_session_gets_a_new_request_after_a_while() {
    let (mut session, start) = (FetchSession::new(true), Instant::now());
    session.next(start, [key(0)].into_iter());
    session.answered();
    assert!(session.note(&answer(0, data(0, -1)), start) && session.is_by_offsets());
    session.look_again(start + AGAIN_AFTER / 2);
    session.next(start + AGAIN_AFTER / 2, std::iter::empty());
    session.look_again(start + AGAIN_AFTER);
    assert!(session.is_by_offsets(), "one is under way");
    session.answered();
    session.look_again(start + AGAIN_AFTER);
    assert!(!session.is_by_offsets() && session.has_room(1));
    let next = session.next(start + AGAIN_AFTER, [key(0)].into_iter());
    assert_eq!(next, Naming { session_id: 0, session_epoch: 0, what: Named::All });
    session.answered();
    assert!(session.note(&answer(7, data(0, 0)), start + AGAIN_AFTER) && session.is_ahead());
}

#[test]
fn a_leader_without_the_field_gets_offsets_for_good() {
    let (mut session, start) = (FetchSession::new(true), Instant::now());
    session.next(start, [key(0)].into_iter());
    session.answered();
    assert!(session.note(&answer(9, data(0, -1)), start));
    session.look_again(start + AGAIN_AFTER * 100);
    assert!(session.is_by_offsets());
}
