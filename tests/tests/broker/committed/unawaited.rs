//! Clients that do not wait for the response to a commit. They send further requests, as `commitAsync` does, or
//! disconnect.

use super::*;
use fullbore_tests::{Batch, FetchFrom, fetch_request};
use fullbore_wire::apis::fetch::FetchRequest;

/// How long a fetch may wait at the broker.
const LONG_MS: i32 = 300_000;
/// A version of Fetch that has topic names.
const FETCH_RECORDS: i16 = 12;
/// How many commits are sent on one connection: more than the limit of requests in flight.
const MANY: i64 = 1_100;

/// Returns a fetch that begins at the first record of partition 0.
fn fetch_all(max_wait_ms: i32) -> FetchRequest {
    fetch_request(&[FetchFrom { topic: "unawaited", partition: 0, offset: 0 }], 1, max_wait_ms)
}

fn one(group: &str, offset: i64) -> OffsetCommitRequest {
    commit_request(group, vec![topic("unawaited", Uuid::ZERO, vec![partition(0, offset, None)])])
}

fn fetch(group: &str) -> OffsetFetchRequest {
    OffsetFetchRequest { groups: vec![fetch_group(group)], ..Default::default() }
}

#[test]
fn a_fetch_after_a_commit_on_one_connection_returns_it() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("unawaited", 1, &[]);
    let groups = [unique("a"), unique("b")];
    for round in 0..50 {
        // Each round sends ten commits of each group, alternating between the groups, and then fetches the offset of
        // each group.
        for offset in round * 10..round * 10 + 10 {
            groups.iter().for_each(|group| _ = client.send(&one(group, offset), COMMIT));
        }
        groups.iter().for_each(|group| _ = client.send(&fetch(group), FETCH));
        for _ in 0..20 {
            assert_eq!(codes(&client.receive::<OffsetCommitRequest>(COMMIT).1), [[OK]]);
        }
        for _ in &groups {
            let found = client.receive::<OffsetFetchRequest>(FETCH).1;
            assert_eq!(found.groups[0].topics[0].partitions[0].committed_offset, round * 10 + 9);
        }
    }
}

#[test]
fn a_commit_is_written_although_its_client_disconnects() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("unawaited", 1, &[]);
    let group = unique("gone");
    for offset in 0..20 {
        let mut gone = broker.client();
        gone.send(&one(&group, offset), COMMIT);
        gone.finish();
        drop(gone);
        // The client has disconnected, but the broker must still write the commit. The wait below is not the cause of a
        // write, because it only fetches the offset.
        wait_until("the offset is there", DONE_MAX, || committed(&mut client, &group, "unawaited") == offset);
    }
}

/// Each of five clients sends a long poll, and after it more commits than the broker queues.
#[test]
fn commits_behind_a_long_poll_are_written_and_do_not_hold_up_others() {
    let broker = Broker::start(&[]);
    let mut other = broker.client();
    other.create_topic("unawaited", 1, &[]);
    let group = unique("behind");
    for round in 0..5 {
        let mut polling = broker.client();
        polling.send(&fetch_all(LONG_MS), FETCH_RECORDS);
        let first = round * MANY;
        (first..first + MANY).for_each(|offset| _ = polling.send(&one(&group, offset), COMMIT));
        let admitted = first + 1_000;
        wait_until("the commits are written", DONE_MAX, || committed(&mut other, &group, "unawaited") >= admitted);
        others_are_served(&mut other, &format!("beside-{round}"));
        match round {
            // When the long poll gets its response, the commits after it get theirs, too.
            0 => {
                other.produced("unawaited", 0, &Batch::of(&["enough"]));
                polling.receive::<FetchRequest>(FETCH_RECORDS);
                for _ in 0..MANY {
                    assert_eq!(codes(&polling.receive::<OffsetCommitRequest>(COMMIT).1), [[OK]]);
                }
                other.delete_topic("unawaited");
                other.create_topic("unawaited", 1, &[]);
            }
            _ => drop(polling),
        }
        others_are_served(&mut other, &format!("after-{round}"));
    }
}

fn others_are_served(client: &mut Client, name: &str) {
    client.create_topic(name, 1, &[]);
    client.init_producer_id();
    assert_eq!(commit(client, name, name, 7), OK);
}

#[test]
fn commits_behind_an_unread_response_are_written() {
    let broker = Broker::start(&["socket.send.buffer.bytes=65536"]);
    let mut other = broker.client();
    other.create_topic("unawaited", 1, &[]);
    let large = Batch::of(&[vec![b'x'; 900_000]]);
    (0..20).for_each(|_| _ = other.produced("unawaited", 0, &large));
    let group = unique("untaken");
    let mut deaf = broker.client();
    let mut fetch = fetch_all(0);
    fetch.topics[0].partitions[0].partition_max_bytes = 32 << 20;
    deaf.send(&fetch, FETCH_RECORDS);
    deaf.wait_for_answer();
    (0..100).for_each(|offset| _ = deaf.send(&one(&group, offset), COMMIT));
    wait_until("the commits are written", DONE_MAX, || committed(&mut other, &group, "unawaited") == 99);
    let (_, response) = deaf.receive::<FetchRequest>(FETCH_RECORDS);
    let fetched = response.responses[0].partitions[0].records.as_ref().map_or(0, |records| records.len());
    assert!(fetched > 16_000_000, "more than sockets hold: {fetched}");
    for _ in 0..100 {
        assert_eq!(codes(&deaf.receive::<OffsetCommitRequest>(COMMIT).1), [[OK]]);
    }
}
