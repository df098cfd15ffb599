//! The end of a stop: what is still under way when the time for answers is up.

use crate::neighbours::list_offsets;
use crate::pipe::Pipe;
use fullbore_tests::{Batch, Broker, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::apis::list_offsets::ListOffsetsRequest;
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
use std::fs;
use std::io::Write;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const LIST_OFFSETS: i16 = 7;
const DELETE_TOPICS: i16 = 3;
const METADATA: i16 = 9;

fn is_known(broker: &Broker, topic: &str) -> bool {
    let topics = vec![MetadataRequestTopic { name: Some(topic.into()), ..Default::default() }];
    let request = MetadataRequest { topics: Some(topics), allow_auto_topic_creation: false, ..Default::default() };
    !broker.client().call(&request, METADATA).topics[0].error_code.is_err()
}

#[test]
fn what_is_asked_for_at_the_very_end_of_a_stop_is_done_or_not_and_never_half() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("slow", 1, &[("segment.bytes", "1048576")]);
    client.create_topic("last", 1, &[]);
    for number in 0..3_i64 {
        client.produced("slow", 0, &Batch::at(1000 + number, &[vec![b'v'; 700_000]]));
    }
    client.produced("last", 0, &Batch::of(&["v"]));
    let slow = Pipe::in_place_of(&broker.partition_files("slow", 0, "timeindex").remove(0));
    let mut asking = broker.client();
    asking.send(&list_offsets("slow", 1000), LIST_OFFSETS);
    // It is looked at once the other is answered, which is after the time for that is up.
    let delete = DeleteTopicsRequest { topic_names: vec!["last".into()], timeout_ms: 1, ..Default::default() };
    asking.send(&delete, DELETE_TOPICS);
    let pipe = slow.wait_for_reader();
    broker.terminate();
    broker.wait_for_stderr("some clients did not take their answers in time");
    slow.give(pipe);
    assert_eq!(broker.wait_for_end().code(), Some(0));
    let listed = asking.try_receive::<ListOffsetsRequest>(LIST_OFFSETS);
    let deleted = listed.and_then(|_| asking.try_receive::<DeleteTopicsRequest>(DELETE_TOPICS));
    let is_deleted = deleted.is_some_and(|(_, response)| response.responses[0].error_code == ErrorCode::NONE);
    broker.restart();
    if is_known(&broker, "last") {
        assert!(!is_deleted, "it was said that it is deleted");
        assert_eq!(broker.client().fetch_records("last", 0).len(), 1);
    } else {
        wait_until("its folder is out of the way", SOON, || !broker.partition_dir("last", 0).exists());
    }
}

#[test]
fn a_stop_does_not_wait_for_the_search_of_a_damaged_log() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    client.produced("t", 0, &Batch::of(&["v"]));
    broker.kill();
    let log = broker.partition_files("t", 0, "log").remove(0);
    let mut file = fs::File::options().append(true).open(log).expect("there");
    // No batch, and behind it more zeros than this machine looks at in the time that a stop may take.
    file.write_all(&[0xff; 100]).expect("written");
    file.set_len(32 << 30).expect("a file with a hole");
    broker.restart();
    let before = broker.bytes_read();
    wait_until("it is searched for batches", SOON, || broker.bytes_read() > before + (16 << 20));
    broker.stop();
}
