//! Fetch sessions (KIP-227). An incremental response has only the partitions that changed, and each misuse gets its
//! error code.

use fullbore_tests::{Batch, Broker, Client, wait_until};
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::time::Duration;

const TOPIC: &str = "session";
const FETCH: i16 = 12;
const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// How long a fetch may wait.
const LONG_MS: i32 = 300_000;

fn broker_with_topic() -> (Broker, Client) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 3, &[]);
    (broker, client)
}

/// Returns a fetch of the given partitions and offsets in the given session.
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

/// Returns the partitions in a response, each with true if it has records.
fn reported(response: &FetchResponse) -> Vec<(i32, bool)> {
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    let has_data = |data: &fullbore_wire::apis::fetch::PartitionData| {
        data.records.as_ref().is_some_and(|records| !records.is_empty())
    };
    let mut reported: Vec<_> = partitions.map(|data| (data.partition_index, has_data(data))).collect();
    reported.sort_unstable();
    reported
}

/// Opens a session that reads the three partitions from their start. Returns the session's id.
fn open(client: &mut Client) -> i32 {
    let response = client.call(&request(0, 0, &[(0, 0), (1, 0), (2, 0)]), FETCH);
    assert_eq!(response.error_code, ErrorCode::NONE);
    assert_ne!(response.session_id, 0, "a full fetch opens a session");
    assert_eq!(reported(&response), [(0, false), (1, false), (2, false)], "and tells everything");
    response.session_id
}

#[test]
fn incremental_fetch_returns_only_changed_partitions() {
    let (_broker, mut client) = broker_with_topic();
    let id = open(&mut client);
    let response = client.call(&request(id, 1, &[]), FETCH);
    assert_eq!((response.session_id, reported(&response)), (id, vec![]), "nothing is new");
    client.produced(TOPIC, 1, &Batch::of(&["new"]));
    assert_eq!(reported(&client.call(&request(id, 2, &[]), FETCH)), [(1, true)]);
    // The consumer's offset is now after the record. The broker must not send the record again, and no other partition
    // has changed.
    assert_eq!(reported(&client.call(&request(id, 3, &[(1, 1)]), FETCH)), []);
    client.produced(TOPIC, 0, &Batch::of(&["newer"]));
    assert_eq!(reported(&client.call(&request(id, 4, &[]), FETCH)), [(0, true)]);
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
    assert_eq!(reported(&client.call(&forget, FETCH)), [(1, true)]);
    assert_eq!(reported(&client.call(&request(id, 2, &[(1, 1), (2, 0)]), FETCH)), [(2, true)]);
}

#[test]
fn wrong_epoch_is_refused_and_the_right_one_is_still_served() {
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
fn unknown_session_is_an_error() {
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
    assert_eq!((last.error_code, last.session_id, reported(&last)), (ErrorCode::NONE, 0, vec![(0, true)]));
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
fn full_session_cache_makes_every_fetch_full() {
    let broker = Broker::start(&["max.incremental.fetch.session.cache.slots=1"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 3, &[]);
    open(&mut client);
    let response = client.call(&request(0, 0, &[(0, 0)]), FETCH);
    assert_eq!((response.error_code, response.session_id), (ErrorCode::NONE, 0), "served, without a session");
}

#[test]
fn partition_with_an_error_is_returned_each_time() {
    let (_broker, mut client) = broker_with_topic();
    let id = open(&mut client);
    for epoch in 1..4 {
        let response = client.call(&request(id, epoch, &[(0, 99)]), FETCH);
        let data = &response.responses[0].partitions[0];
        assert_eq!((data.partition_index, data.error_code), (0, ErrorCode::OFFSET_OUT_OF_RANGE));
    }
}

/// A session remembers which topic name belongs to an id, as in Kafka 4.
#[test]
fn recreated_topic_makes_its_old_id_in_a_session_inconsistent() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let by_id = |session_id, session_epoch, topic_id: Option<Uuid>| {
        let mut request = request(session_id, session_epoch, &[(0, 0)]);
        match topic_id {
            Some(id) => (request.topics[0].topic, request.topics[0].topic_id) = (Text::default(), id),
            None => request.topics.clear(),
        }
        request
    };
    let code = |client: &mut Client, request: &FetchRequest| {
        let response = client.call(request, 13);
        (response.session_id, response.responses.first().map(|topic| topic.partitions[0].error_code))
    };
    let old = client.create_topic(TOPIC, 1, &[]);
    let (session, opened) = code(&mut client, &by_id(0, 0, Some(old)));
    assert_eq!(opened, Some(ErrorCode::NONE));
    client.delete_topic(TOPIC);
    let unknown = Some(ErrorCode::UNKNOWN_TOPIC_ID);
    assert_eq!(code(&mut client, &by_id(session, 1, None)).1, unknown, "no topic has the name");
    client.create_topic(TOPIC, 1, &[]);
    let inconsistent = Some(ErrorCode::INCONSISTENT_TOPIC_ID);
    assert_eq!(code(&mut client, &by_id(session, 2, None)).1, inconsistent);
    assert_eq!(code(&mut client, &by_id(session, 3, Some(old))).1, inconsistent, "the session still knows the name");
    assert_eq!(code(&mut client, &by_id(0, -1, Some(old))).1, unknown, "without a session nothing is remembered");
}

/// The sessions have a hundred thousand partitions each, which need not exist.
#[test]
fn sessions_beyond_half_a_million_partitions_are_not_opened_and_not_grown() {
    const EACH: i32 = 100_000;
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

/// Returns the same fetch as [`request`], except that it waits for records.
fn long_poll(session_id: i32, session_epoch: i32, partitions: &[(i32, i64)]) -> FetchRequest {
    FetchRequest { max_wait_ms: LONG_MS, min_bytes: 1, ..request(session_id, session_epoch, partitions) }
}

/// Starts a broker with a topic of `count` partitions. Another topic shows which requests were admitted.
fn broker_with_partitions(count: i32, sets: &[&str]) -> (Broker, Client) {
    let broker = Broker::start(sets);
    let mut client = broker.client();
    client.create_topic(TOPIC, count, &[]);
    client.create_topic("behind", 1, &[]);
    (broker, client)
}

fn all(partitions: i32) -> Vec<(i32, i64)> {
    (0..partitions).map(|partition| (partition, 0)).collect()
}

/// The fetches have 35 KB in total. Regression: each waiting fetch kept its own list of partitions, which took 2.6 MB.
#[test]
fn five_hundred_pending_fetches_of_a_session_take_at_most_64_kib_each() {
    const PARTITIONS: i32 = 20_000;
    const FETCHES: i32 = 500;
    let (broker, mut client) = broker_with_partitions(PARTITIONS, &[]);
    let id = client.call(&request(0, 0, &all(PARTITIONS)), FETCH).session_id;
    // The first waiting fetch allocates memory that later ones reuse, so it is done before the measurement.
    let waited = FetchRequest { max_wait_ms: 1, ..long_poll(id, 1, &[]) };
    assert_eq!(client.call(&waited, FETCH).error_code, ErrorCode::NONE);
    let before = broker.rss();
    let mut polling = broker.client();
    (0..FETCHES).for_each(|n| _ = polling.send(&long_poll(id, 2 + n, &[]), FETCH));
    polling.send_produce("behind", 0, &Batch::of(&["all are admitted"]));
    wait_until("the fetches are admitted", SOON, || client.latest("behind", 0) == 1);
    let grown = broker.rss().saturating_sub(before);
    let each = grown / FETCHES as u64;
    eprintln!(
        "{FETCHES} pending fetches: from {} MB to {} MB, {each} bytes each",
        before / 1_000_000,
        broker.rss() / 1_000_000
    );
    assert!(each < 64 * 1024, "{each} bytes each");
    // The first fetch returns the record, and only then is the next one served.
    client.produced(TOPIC, 5, &Batch::of(&["found"]));
    let (_, first) = polling.receive::<FetchRequest>(FETCH);
    assert_eq!((first.error_code, reported(&first)), (ErrorCode::NONE, vec![(5, true)]));
}

/// As in Kafka, the broker responds to the fetches of a session one after another. Several of them can be waiting.
#[test]
fn queued_fetches_of_a_session_are_answered_in_sequence() {
    let (_broker, mut client) = broker_with_topic();
    let id = open(&mut client);
    let poll = |epoch, partitions: &[(i32, i64)]| FetchRequest { max_wait_ms: 300, ..long_poll(id, epoch, partitions) };
    (1..6).for_each(|epoch| _ = client.send(&poll(epoch, &[]), FETCH));
    // The first of these fetches skips an epoch. The second one repeats an epoch.
    client.send(&poll(7, &[]), FETCH);
    client.send(&poll(5, &[]), FETCH);
    client.send(&poll(6, &[]), FETCH);
    client.send(&request(id, -1, &[]), FETCH);
    for _ in 1..6 {
        assert_eq!(client.receive::<FetchRequest>(FETCH).1.error_code, ErrorCode::NONE);
    }
    for _ in 0..2 {
        assert_eq!(client.receive::<FetchRequest>(FETCH).1.error_code, ErrorCode::INVALID_FETCH_SESSION_EPOCH);
    }
    for _ in 0..2 {
        assert_eq!(client.receive::<FetchRequest>(FETCH).1.error_code, ErrorCode::NONE);
    }
    let closed = client.call(&request(id, 7, &[]), FETCH);
    assert_eq!(closed.error_code, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
}

/// The broker does not notice that the connection is lost. The client continues its session on a new one, so the fetch
/// that waits on the old one must end at once.
#[test]
fn fetch_of_a_session_that_moved_to_another_connection_ends_at_once() {
    let (broker, mut client) = broker_with_topic();
    client.create_topic("behind", 1, &[]);
    let id = open(&mut client);
    let mut last = broker.client();
    last.send(&long_poll(id, 1, &[]), FETCH);
    last.send_produce("behind", 0, &Batch::of(&["admitted"]));
    wait_until("the fetch is admitted", SOON, || client.latest("behind", 0) == 1);
    for epoch in 2..10 {
        let mut next = broker.client();
        next.send(&long_poll(id, epoch, &[]), FETCH);
        let (_, lost) = std::mem::replace(&mut last, next).receive::<FetchRequest>(FETCH);
        assert_eq!(lost.error_code, ErrorCode::INVALID_FETCH_SESSION_EPOCH);
    }
    client.produced(TOPIC, 2, &Batch::of(&["found"]));
    let (_, found) = last.receive::<FetchRequest>(FETCH);
    assert_eq!((found.error_code, reported(&found)), (ErrorCode::NONE, vec![(2, true)]));
}

/// The request has 280 KB, and the fetch takes several times that memory while it waits.
#[test]
fn pending_fetch_without_a_session_counts_with_its_memory() {
    const PARTITIONS: i32 = 10_000;
    let (broker, mut client) = broker_with_partitions(PARTITIONS, &["fullbore.connection.bytes.max=4194304"]);
    let mut polling = broker.client();
    let mut writing = polling.split();
    let sender = std::thread::spawn(move || {
        for _ in 0..10 {
            // The broker closes the connection when the test ends, so the send may fail.
            let sent = writing.try_send(&long_poll(0, -1, &all(PARTITIONS)), FETCH);
            let batch = Batch::of(&["admitted"]).bytes();
            if sent.is_err() || writing.try_send(&fullbore_tests::produce_request("behind", 0, batch), 9).is_err() {
                return;
            }
        }
    });
    wait_until("the connection holds what it may", SOON, || client.latest("behind", 0) >= 2);
    // All ten batches would be in the log by now if the broker still read from the connection.
    (0..200).for_each(|_| assert!(client.latest("behind", 0) < 5));
    client.produced(TOPIC, 5, &Batch::of(&["enough"]));
    for _ in 0..10 {
        let (_, response) = polling.receive::<FetchRequest>(FETCH);
        assert_eq!(reported(&response).iter().filter(|(_, has_data)| *has_data).count(), 1);
        assert_eq!(polling.receive_produced().error_code, ErrorCode::NONE);
    }
    sender.join().expect("the sender does not fail");
}

/// Names of topics have at most 249 bytes.
#[test]
fn names_too_long_for_topics_are_kept_by_no_session() {
    let (_broker, mut client) = broker_with_topic();
    let topic = |length: usize| FetchTopic {
        topic: Text::from("n".repeat(length)),
        partitions: vec![FetchPartition { partition_max_bytes: 1, ..Default::default() }],
        ..Default::default()
    };
    let mut opened = |length| {
        let response = client.call(&FetchRequest { topics: vec![topic(length)], ..request(0, 0, &[]) }, FETCH);
        let answered = &response.responses[0];
        assert_eq!(answered.topic.len(), length);
        assert_eq!(answered.partitions[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        response.session_id
    };
    let id = opened(249);
    assert_ne!(id, 0);
    assert_eq!(opened(250), 0);
    let added = client.call(&FetchRequest { topics: vec![topic(250)], ..request(id, 1, &[]) }, FETCH);
    assert_eq!(added.error_code, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
}
