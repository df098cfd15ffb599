//! Idempotence bugs of other brokers, which are rows 11 to 16 of the list in `crates/rules/src/sequence/rows.rs`:
//! epochs, wrap-around, contradictory counts, and very many producers.

use fullbore_tests::{Batch, Broker, Client, topic_data};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::init_producer_id::InitProducerIdRequest;
use fullbore_wire::apis::produce::ProduceRequest;
use std::collections::HashSet;

const MIB: u64 = 1 << 20;

fn batch(producer_id: i64, epoch: i16, sequence: i32, count: usize) -> Batch {
    Batch::of(&vec!["x"; count]).from_producer(producer_id, epoch, sequence)
}

#[test]
fn row_11_a_new_epoch_begins_at_zero_and_fences_the_old_one() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("epochs", 1, &[]);
    let id = client.init_producer_id();
    let mut code = |epoch, sequence| client.produce("epochs", 0, &batch(id, epoch, sequence, 1)).error_code;
    assert_eq!(code(0, 0), ErrorCode::NONE);
    assert_eq!(code(1, 3), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch does not go on");
    assert_eq!(code(0, 1), ErrorCode::NONE, "and a refused one changes nothing");
    assert_eq!(code(1, 0), ErrorCode::NONE);
    assert_eq!(code(0, 2), ErrorCode::INVALID_PRODUCER_EPOCH);
    assert_eq!(code(0, 0), ErrorCode::INVALID_PRODUCER_EPOCH, "not even a retry");
    assert_eq!(code(1, 1), ErrorCode::NONE);
    assert_eq!(client.latest("epochs", 0), 4);
}

/// From sequence 2147483600 on, one of the batches contains both the last sequence and 0. From 2147483640 on, a batch
/// ends with the last sequence.
#[test]
fn row_12_sequences_wrap_from_the_largest_to_zero() {
    for (start, counts) in [(2_147_483_600, [10; 8]), (2_147_483_640, [8; 8])] {
        let broker = Broker::start(&[]);
        let mut client = broker.client();
        client.create_topic("wrap", 1, &[]);
        client.produced("wrap", 0, &Batch::of(&["a partition that was written accepts any first sequence"]));
        let id = client.init_producer_id();
        let (mut sequence, mut sent) = (start, Vec::new());
        for count in counts {
            let batch = batch(id, 0, sequence, count);
            let offset = client.produced("wrap", 0, &batch);
            sent.push((batch, offset));
            sequence = (i64::from(sequence) + i64::try_from(count).expect("small")).rem_euclid(1 << 31) as i32;
        }
        for (batch, offset) in &sent[3..] {
            assert_eq!(client.produced("wrap", 0, batch), *offset, "a retry across the wrap");
        }
        let skipped = client.produce("wrap", 0, &batch(id, 0, sequence + 1, 1));
        assert_eq!(skipped.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
        let records = client.fetch_records("wrap", 0).len();
        assert_eq!(records, 1 + counts.iter().sum::<usize>());
    }
}

#[test]
fn row_12_the_wrap_survives_kill_9() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("wrap", 1, &[]);
    client.produced("wrap", 0, &Batch::of(&["first"]));
    let id = client.init_producer_id();
    let straddling = batch(id, 0, i32::MAX - 3, 10);
    assert_eq!(client.produced("wrap", 0, &straddling), 1);
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(client.produced("wrap", 0, &straddling), 1);
    assert_eq!(client.produced("wrap", 0, &batch(id, 0, 6, 1)), 11);
}

/// A producer stays busy. Meanwhile 100,000 others write one batch each, three of them in each request.
#[test]
fn row_14_very_many_producers_take_bounded_memory_and_the_busy_one_is_kept() {
    const REQUESTS: i64 = 33_334;
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("many", 3, &[]);
    let live = client.init_producer_id();
    let mut sequence = 0;
    for round in 0..REQUESTS / 500 + 1 {
        let ids = round * 500..((round + 1) * 500).min(REQUESTS);
        for id in ids.clone() {
            let first = live + 1 + 3 * id;
            let partitions = [0, 1, 2].map(|p| (p, batch(first + i64::from(p), 0, 0, 1).bytes()));
            client.send(&many(&partitions), 9);
        }
        let lives = [0, 1, 2].map(|p| (p, batch(live, 0, sequence, 1).bytes()));
        client.send(&many(&lives), 9);
        sequence += 1;
        for _ in ids {
            assert_all_accepted(&mut client);
        }
        assert_all_accepted(&mut client);
    }
    let rss = broker.rss();
    assert!(rss < 128 * MIB, "{} MiB after 100,000 producers", rss / MIB);
    for partition in 0..3 {
        let end = client.latest("many", partition);
        assert_eq!(client.produced("many", partition, &batch(live, 0, sequence - 1, 1)), end - 1, "a known retry");
        let gap = client.produce("many", partition, &batch(live, 0, sequence + 1, 1));
        assert_eq!(gap.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    }
}

fn many(partitions: &[(i32, bytes::Bytes)]) -> ProduceRequest {
    ProduceRequest {
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![topic_data("many", partitions)],
        ..Default::default()
    }
}

fn assert_all_accepted(client: &mut Client) {
    let (_, response) = client.receive::<ProduceRequest>(9);
    for partition in &response.responses[0].partition_responses {
        assert_eq!(partition.error_code, ErrorCode::NONE);
    }
}

#[test]
fn row_15_producer_ids_stay_unique_over_a_kill() {
    let mut broker = Broker::start(&[]);
    let mut seen = HashSet::new();
    for round in 0..10 {
        let mut client = broker.client();
        for _ in 0..round * 7 + 1 {
            assert!(seen.insert(client.init_producer_id()), "a producer id was given twice");
        }
        // A few more requests are in flight when the broker is killed.
        let request = InitProducerIdRequest { transaction_timeout_ms: 60_000, ..Default::default() };
        (0..20).for_each(|_| {
            client.send(&request, 4);
        });
        if round % 2 == 0 {
            seen.insert(client.receive::<InitProducerIdRequest>(4).1.producer_id);
        }
        broker.kill();
        while let Some((_, response)) = client.try_receive::<InitProducerIdRequest>(4) {
            assert!(seen.insert(response.producer_id), "a producer id was given twice");
        }
        broker.restart();
    }
}

#[test]
fn row_16_a_batch_whose_counts_disagree_is_refused_and_changes_nothing() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("counts", 1, &[]);
    let id = client.init_producer_id();
    client.produced("counts", 0, &batch(id, 0, 0, 2));
    let good = batch(id, 0, 2, 3);
    let lies = [
        Batch { last_offset_delta: Some(3), ..good.clone() },
        Batch { last_offset_delta: Some(1), ..good.clone() },
        Batch { record_count: Some(2), ..good.clone() },
        Batch { record_count: Some(4), ..good.clone() },
        Batch { record_count: Some(4), last_offset_delta: Some(3), ..good.clone() },
        Batch { record_count: Some(2), last_offset_delta: Some(1), ..good.clone() },
        Batch { record_count: Some(0), last_offset_delta: Some(-1), ..good.clone() },
        Batch { record_count: Some(-1), ..good.clone() },
        Batch { record_count: Some(i32::MAX), last_offset_delta: Some(i32::MAX - 1), ..good.clone() },
        Batch { last_offset_delta: Some(-2), ..good.clone() },
    ];
    for lie in lies {
        let code = client.produce("counts", 0, &lie).error_code;
        let expected = [ErrorCode::INVALID_RECORD, ErrorCode::CORRUPT_MESSAGE];
        assert!(expected.contains(&code), "{code:?} for {:?} and {:?}", lie.record_count, lie.last_offset_delta);
        assert_eq!(client.latest("counts", 0), 2);
    }
    assert_eq!(client.produced("counts", 0, &good), 2, "the state is as before");
    assert_eq!(client.produced("counts", 0, &good), 2);
}
