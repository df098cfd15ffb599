//! Fetch sessions (KIP-227): what changed is told, nothing else, and every misuse has its error.

use fullbore_tests::{Batch, Broker, Client};
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic};
use fullbore_wire::{ErrorCode, Text};

const TOPIC: &str = "session";
const FETCH: i16 = 12;

fn broker_with_topic() -> (Broker, Client) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 3, &[]);
    (broker, client)
}

/// A fetch of these partitions from these offsets, in this session.
fn request(session_id: i32, session_epoch: i32, partitions: &[(i32, i64)]) -> FetchRequest {
    let partition = |(partition, fetch_offset): &(i32, i64)| FetchPartition {
        partition: *partition,
        fetch_offset: *fetch_offset,
        partition_max_bytes: 1 << 20,
        ..Default::default()
    };
    let partitions: Vec<FetchPartition> = partitions.iter().map(partition).collect();
    let topics = match partitions.is_empty() {
        true => Vec::new(),
        false => vec![FetchTopic { topic: Text::from(TOPIC), partitions, ..Default::default() }],
    };
    FetchRequest { session_id, session_epoch, topics, ..Default::default() }
}

/// The partitions of a response, each with its bytes.
fn told(response: &FetchResponse) -> Vec<(i32, bool)> {
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    let has_data = |data: &fullbore_wire::apis::fetch::PartitionData| {
        data.records.as_ref().is_some_and(|records| !records.is_empty())
    };
    let mut told: Vec<_> = partitions.map(|data| (data.partition_index, has_data(data))).collect();
    told.sort_unstable();
    told
}

/// A session over the three partitions from their starts.
fn open(client: &mut Client) -> i32 {
    let response = client.call(&request(0, 0, &[(0, 0), (1, 0), (2, 0)]), FETCH);
    assert_eq!(response.error_code, ErrorCode::NONE);
    assert_ne!(response.session_id, 0, "a full fetch opens a session");
    assert_eq!(told(&response), [(0, false), (1, false), (2, false)], "and tells everything");
    response.session_id
}

#[test]
fn an_incremental_fetch_tells_only_what_is_new() {
    let (_broker, mut client) = broker_with_topic();
    let id = open(&mut client);
    let response = client.call(&request(id, 1, &[]), FETCH);
    assert_eq!((response.session_id, told(&response)), (id, vec![]), "nothing is new");
    client.produced(TOPIC, 1, &Batch::of(&["new"]));
    assert_eq!(told(&client.call(&request(id, 2, &[]), FETCH)), [(1, true)]);
    // The consumer moves on: the record is not sent again, and nothing else changed.
    assert_eq!(told(&client.call(&request(id, 3, &[(1, 1)]), FETCH)), []);
    client.produced(TOPIC, 0, &Batch::of(&["newer"]));
    assert_eq!(told(&client.call(&request(id, 4, &[]), FETCH)), [(0, true)]);
}

#[test]
fn partitions_are_forgotten_and_added() {
    let (_broker, mut client) = broker_with_topic();
    let id = open(&mut client);
    (0..3).for_each(|partition| {
        client.produced(TOPIC, partition, &Batch::of(&["data"]));
    });
    let forgotten = ForgottenTopic { topic: Text::from(TOPIC), partitions: vec![0, 2], ..Default::default() };
    let forget = FetchRequest { forgotten_topics_data: vec![forgotten], ..request(id, 1, &[]) };
    assert_eq!(told(&client.call(&forget, FETCH)), [(1, true)]);
    assert_eq!(told(&client.call(&request(id, 2, &[(1, 1), (2, 0)]), FETCH)), [(2, true)]);
}

#[test]
fn a_wrong_epoch_is_refused_and_the_right_one_still_works() {
    let (_broker, mut client) = broker_with_topic();
    let id = open(&mut client);
    for epoch in [2, 7, i32::MAX] {
        let response = client.call(&request(id, epoch, &[]), FETCH);
        assert_eq!(response.error_code, ErrorCode::INVALID_FETCH_SESSION_EPOCH, "epoch {epoch}");
        assert!(response.responses.is_empty());
    }
    assert_eq!(client.call(&request(id, 1, &[]), FETCH).error_code, ErrorCode::NONE);
    let repeated = client.call(&request(id, 1, &[]), FETCH);
    assert_eq!(repeated.error_code, ErrorCode::INVALID_FETCH_SESSION_EPOCH);
}

#[test]
fn an_unknown_session_is_told() {
    let (_broker, mut client) = broker_with_topic();
    for id in [1_000_000_000, -5] {
        let response = client.call(&request(id, 1, &[]), FETCH);
        assert_eq!(response.error_code, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
    }
}

#[test]
fn a_closed_session_is_gone_and_its_last_fetch_is_full() {
    let (_broker, mut client) = broker_with_topic();
    let id = open(&mut client);
    client.produced(TOPIC, 0, &Batch::of(&["data"]));
    let last = client.call(&request(id, -1, &[(0, 0)]), FETCH);
    assert_eq!((last.error_code, last.session_id, told(&last)), (ErrorCode::NONE, 0, vec![(0, true)]));
    let after = client.call(&request(id, 1, &[]), FETCH);
    assert_eq!(after.error_code, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
}

#[test]
fn a_session_goes_on_over_another_connection_and_ends_with_the_broker() {
    let (mut broker, mut client) = broker_with_topic();
    let id = open(&mut client);
    drop(client);
    assert_eq!(broker.client().call(&request(id, 1, &[]), FETCH).error_code, ErrorCode::NONE);
    broker.kill();
    broker.restart();
    let response = broker.client().call(&request(id, 2, &[]), FETCH);
    assert_eq!(response.error_code, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
}

#[test]
fn without_room_for_sessions_every_fetch_is_full() {
    let broker = Broker::start(&["max.incremental.fetch.session.cache.slots=1"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 3, &[]);
    open(&mut client);
    let response = client.call(&request(0, 0, &[(0, 0)]), FETCH);
    assert_eq!((response.error_code, response.session_id), (ErrorCode::NONE, 0), "served, without a session");
}

#[test]
fn a_partition_with_an_error_is_told_each_time() {
    let (_broker, mut client) = broker_with_topic();
    let id = open(&mut client);
    for epoch in 1..4 {
        let response = client.call(&request(id, epoch, &[(0, 99)]), FETCH);
        let data = &response.responses[0].partitions[0];
        assert_eq!((data.partition_index, data.error_code), (0, ErrorCode::OFFSET_OUT_OF_RANGE));
    }
}

/// Sessions over a hundred thousand partitions each, which need not even exist.
#[test]
fn sessions_beyond_half_a_million_partitions_are_not_opened_and_not_grown() {
    const EACH: i32 = 100_000;
    const MIB: u64 = 1 << 20;
    let (broker, mut client) = broker_with_topic();
    let fetch = |first: i32| request(0, 0, &(first..first + EACH).map(|p| (p, 0)).collect::<Vec<_>>());
    let opened: Vec<i32> = (0..6).map(|n| client.call(&fetch(n), FETCH).session_id).collect();
    assert!(opened[..5].iter().all(|id| *id != 0), "{opened:?}");
    assert_eq!(opened[5], 0, "served, without a session");
    assert!(broker.rss() < 512 * MIB, "{} MiB", broker.rss() / MIB);

    let grown = client.call(&request(opened[0], 1, &[(-1, 0)]), FETCH);
    assert_eq!(grown.error_code, ErrorCode::FETCH_SESSION_ID_NOT_FOUND, "told to begin again");
    let closed = client.call(&request(opened[1], -1, &[]), FETCH);
    assert_eq!(closed.error_code, ErrorCode::NONE);
    assert_ne!(client.call(&fetch(0), FETCH).session_id, 0, "there is room again");
}
