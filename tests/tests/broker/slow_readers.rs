//! Clients that do not read the responses to their requests. If data is deleted meanwhile, the broker must free its
//! disk space and close the clients' connections.

use crate::tls::Secured;
use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request, wait_until};
use std::time::Duration;

const TOPIC: &str = "slow";
const TOPIC_RESOURCE: i8 = 2;
const FETCH: i16 = 12;
const SOON: Duration = Duration::from_secs(60);
const BATCH_BYTES: usize = 1_000_000;
/// How many batches a segment has.
const IN_SEGMENT: usize = 4;
/// How many batches all segments have together.
const BATCHES: usize = 3 * IN_SEGMENT;
/// A setting that makes socket buffers small, so that they hold only a little of a response.
const SMALL_SOCKETS: &str = "socket.send.buffer.bytes=65536";

fn fill(broker: &Broker) {
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[("segment.bytes", "4194304")]);
    (0..BATCHES).for_each(|_| _ = client.produced(TOPIC, 0, &Batch::sized(BATCH_BYTES)));
}

/// Requests a whole segment and waits for the first byte of the response, but reads nothing.
pub fn hang_at(mut client: Client, topic: &str, offset: i64) -> Client {
    let mut segment = fetch_request(&[FetchFrom { topic, partition: 0, offset }], 0, 0);
    segment.topics[0].partitions[0].partition_max_bytes = i32::MAX;
    client.send(&segment, FETCH);
    client.wait_for_answer();
    client
}

/// Returns clients, each with an unread response that has a whole segment. Half of them use TLS.
fn hanging(secured: &Secured) -> Vec<Client> {
    let firsts = (0..BATCHES).step_by(IN_SEGMENT).map(|first| first as i64);
    let both = |first| [hang_at(secured.broker.client(), TOPIC, first), hang_at(secured.client(), TOPIC, first)];
    firsts.flat_map(both).collect()
}

/// Checks that the broker frees the disk space of removed files although no client reads its response. Then checks that
/// each connection is closed before its first response is complete.
fn assert_ended(broker: &Broker, slow: Vec<Client>) {
    wait_until("nothing of what was removed is on the disk", SOON, || broker.bytes_of_removed_files() == 0);
    for mut client in slow {
        assert_eq!(client.wait_for_close(), 0, "no whole answer comes");
    }
}

#[test]
fn retention_closes_slow_readers_and_frees_their_segments() {
    let secured =
        Secured::start(&[SMALL_SOCKETS, "log.retention.check.interval.ms=100", "log.segment.delete.delay.ms=0"]);
    let broker = &secured.broker;
    fill(broker);
    let slow = hanging(&secured);
    let mut client = broker.client();
    client.set_config(TOPIC_RESOURCE, TOPIC, "retention.ms", "1");
    wait_until("old records are gone", SOON, || client.earliest(TOPIC, 0) == BATCHES as i64);
    wait_until("their files are removed", SOON, || broker.partition_files(TOPIC, 0, "deleted").is_empty());
    assert_ended(broker, slow);
    assert_eq!(client.produced(TOPIC, 0, &Batch::sized(BATCH_BYTES)), BATCHES as i64);
}

#[test]
fn recreation_closes_slow_readers_and_frees_their_segments() {
    let secured = Secured::start(&[SMALL_SOCKETS, "log.segment.delete.delay.ms=0"]);
    let broker = &secured.broker;
    fill(broker);
    let slow = hanging(&secured);
    broker.client().delete_topic(TOPIC);
    fill(broker);
    wait_until("the old directory is removed", SOON, || {
        let mut entries = std::fs::read_dir(broker.data_dir()).expect("listed");
        entries.all(|entry| !entry.expect("listed").path().to_string_lossy().ends_with("-delete"))
    });
    assert_ended(broker, slow);
    assert_eq!(broker.client().fetch_records(TOPIC, 0).len(), BATCHES, "the new topic is whole");
}

#[test]
fn slow_readers_within_the_delete_delay_get_all_of_a_deleted_topic() {
    let secured = Secured::start(&[SMALL_SOCKETS, "log.segment.delete.delay.ms=3600000"]);
    let broker = &secured.broker;
    fill(broker);
    let slow = hanging(&secured);
    broker.client().delete_topic(TOPIC);
    for mut client in slow {
        let answer = client.receive_frame().expect("a whole answer");
        assert!(answer.len() > IN_SEGMENT * BATCH_BYTES, "{} bytes", answer.len());
    }
}
