//! Hostile clients that send permitted requests: short ones with large responses or much state.

use super::{SOON, TOPIC};
use fullbore_tests::{Broker, Protocol, Transactional, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::Text;
use fullbore_wire::apis::describe_transactions::DescribeTransactionsRequest;

const PARTITIONS: i32 = 10_000;

/// The request names an id of two bytes thousands of times. The description of the id takes 40 KB in the response.
#[test]
fn id_named_thousands_of_times_is_described_once() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, PARTITIONS, &[]);
    let mut producer = Transactional::begin(&mut client, "a", Protocol::Old);
    producer.add(&mut client, TOPIC, &(0..PARTITIONS).collect::<Vec<_>>());
    let transactional_ids = vec![Text::from_static("a"); 5_000];
    let described = client.call(&DescribeTransactionsRequest { transactional_ids, ..Default::default() }, 0);
    assert_eq!(described.transaction_states.len(), 1);
    assert_eq!(described.transaction_states[0].topics[0].partitions.len(), 10_000);
}

/// For requests of 40 KB, each transaction takes 700 KB of the broker's memory. The memory of all transactions is
/// therefore limited.
#[test]
fn partitions_past_the_limit_of_all_transactions_are_refused_until_some_end() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, PARTITIONS, &[]);
    let all: Vec<i32> = (0..PARTITIONS).collect();
    let mut producers = Vec::new();
    let refused = loop {
        let id = format!("wide-{}", producers.len());
        let producer = Transactional::begin(&mut client, &id, Protocol::Old);
        let code = client.add_partitions(&id, producer.producer(), TOPIC, &all, 3)[0];
        producers.push(producer);
        if code.is_err() {
            break code;
        }
        assert!(producers.len() < 1_000, "no end");
    };
    assert_eq!(refused, ErrorCode::POLICY_VIOLATION);
    broker.wait_for_stderr("cannot add partitions to transactions");
    let mut one = Transactional::begin(&mut client, "one", Protocol::New);
    let batch = one.batch(TOPIC, 0, &["x"]);
    assert_eq!(one.send(&mut client, TOPIC, 0, &batch).error_code, ErrorCode::TRANSACTION_ABORTABLE);
    // This partition is already in the transaction, so adding it again takes no memory.
    let (first, last) = (producers.remove(0), producers.pop().expect("refused"));
    assert_eq!(client.add_partitions("wide-0", first.producer(), TOPIC, &[5], 3), [ErrorCode::NONE]);
    assert_eq!(first.try_end(&mut client, false).error_code, ErrorCode::NONE);
    wait_until("there is room", SOON, || {
        client.add_partitions(&last.transactional_id, last.producer(), TOPIC, &[0], 3) == [ErrorCode::NONE]
    });
}

/// A broker accepts up to a million ids, which would take 32 GB if each had 32 KB. The memory of the ids is therefore
/// limited, too.
#[test]
fn long_ids_are_refused_past_the_memory_limit_and_existing_ids_continue() {
    const ID_BYTES: usize = 30_000;
    let broker = Broker::start(&["transaction.state.log.num.partitions=1"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut known = Transactional::begin(&mut client, "known", Protocol::New);
    let id = |n: usize| format!("{n:0ID_BYTES$}");
    let codes = (0..10_000).map(|n| client.init_transactional(&id(n), 60_000, None, 4).error_code);
    let refused = codes.enumerate().find(|(_, code)| code.is_err());
    let (count, code) = refused.expect("it ends");
    assert_eq!((code, count), (ErrorCode::COORDINATOR_NOT_AVAILABLE, (128 << 20) / ID_BYTES));
    broker.wait_for_stderr("fullbore.transactional.ids.max");
    let again = client.init_transactional(&id(0), 60_000, None, 4);
    assert_eq!(again.error_code, ErrorCode::NONE);
    super::one(&mut client, &mut known, "goes on", true);
    assert_eq!(client.committed_texts(TOPIC, 0), ["goes on"]);
}
