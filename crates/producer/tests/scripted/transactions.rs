//! Tests transactions with `transaction.version` 0 and 2, in examples and in random runs. The coordinator loses and
//! refuses requests.

use crate::fake::{Announced, Fake, Fate, TransactionFate, Transactions};
use fullbore_producer::{
    Delivery, Ending, GroupMetadata, ProduceError, Producer, ProducerRecord, SendError, Transaction, TransactionError,
    TransactionOffset,
};
use fullbore_schedules::{Random, run_each};
use fullbore_wire::ErrorCode;
use fullbore_wire::api::ApiKey;
use std::time::Duration;

const VERSIONS: [i16; 2] = [0, 2];

async fn cluster(version: i16, brokers: usize, partitions: usize) -> Fake {
    let fake = Fake::start(brokers, partitions).await;
    fake.lock().transactions = Some(Transactions::new(version));
    fake
}

fn uninitialised(fake: &Fake, more: &[(&str, &str)]) -> Producer {
    let bootstrap = fake.bootstrap();
    let base = [
        ("bootstrap.servers", bootstrap.as_str()),
        ("transactional.id", "id"),
        ("linger.ms", "0"),
        ("retry.backoff.ms", "2"),
        ("retry.backoff.max.ms", "10"),
        ("reconnect.backoff.ms", "2"),
        ("reconnect.backoff.max.ms", "10"),
        ("metadata.max.age.ms", "50"),
    ];
    Producer::from_properties(base.into_iter().chain(more.iter().copied())).expect("valid settings")
}

async fn initialised(fake: &Fake, more: &[(&str, &str)]) -> Producer {
    let producer = uninitialised(fake, more);
    producer.init_transactions().await.expect("a producer id");
    producer
}

async fn send(transaction: &Transaction<'_>, partition: i32, value: &str) -> Delivery {
    transaction.send(ProducerRecord::new("t", value.as_bytes()).partition(partition)).await.expect("taken")
}

fn committed(fake: &Fake, partition: i32) -> Vec<String> {
    fake.transactions(|transactions| transactions.committed.get(&partition).cloned().unwrap_or_default())
}

/// Refuses the first TxnOffsetCommit.
fn refuse_first_offsets(fake: &Fake) {
    fake.transactions(|of| {
        of.script = Box::new(|key, nth| match (key, nth) {
            (ApiKey::TxnOffsetCommit, 1) => TransactionFate::Refused(ErrorCode::ILLEGAL_GENERATION),
            _ => TransactionFate::Normal,
        });
    });
}

fn requests(fake: &Fake) -> Vec<String> {
    fake.transactions(|transactions| transactions.requests.clone())
}

#[tokio::test]
async fn records_committed_are_seen_and_those_aborted_are_not() {
    for version in VERSIONS {
        let fake = cluster(version, 1, 2).await;
        let producer = initialised(&fake, &[]).await;
        for number in 0..6 {
            let transaction = producer.begin().await.expect("begun");
            let deliveries = [send(&transaction, 0, &format!("{number}")).await, send(&transaction, 1, "b").await];
            match number % 3 {
                0 => transaction.abort().await.expect("aborted"),
                1 => drop(transaction),
                _ => {
                    transaction.commit().await.expect("committed");
                    for delivery in deliveries {
                        delivery.await.expect("written");
                    }
                }
            }
        }
        assert_eq!(committed(&fake, 0), ["2", "5"], "version {version}");
        producer.close(Duration::from_secs(30)).await;
        assert!(!fake.transactions(|transactions| transactions.is_ongoing), "version {version}");
    }
}

#[tokio::test]
async fn new_partitions_join_in_one_request_before_their_batches_where_produce_does_not_add_them() {
    let fake = cluster(0, 1, 3).await;
    let producer = initialised(&fake, &[]).await;
    producer.partitions("t").await.expect("known");
    let transaction = producer.begin().await.expect("begun");
    for partition in 0..3 {
        drop(transaction.try_send(ProducerRecord::new("t", b"v").partition(partition)).expect("taken"));
    }
    transaction.commit().await.expect("committed");
    let added: Vec<String> = requests(&fake).into_iter().filter(|request| request.starts_with("add")).collect();
    let partitions: String = added.concat();
    assert!(added.len() <= 2 && (0..3).all(|number| partitions.contains(&number.to_string())), "{added:?}");
    let transaction = producer.begin().await.expect("begun");
    send(&transaction, 1, "w").await.await.expect("written");
    transaction.commit().await.expect("committed");
    assert_eq!(requests(&fake)[requests(&fake).len() - 2..], ["add [1]", "commit"]);
    let epochs: Vec<i16> = fake.seen(1).iter().map(|seen| seen.stamp.producer_epoch).collect();
    let sequences: Vec<i32> = fake.seen(1).iter().map(|seen| seen.stamp.base_sequence).collect();
    assert_eq!((epochs, sequences), (vec![0, 0], vec![0, 1]), "the epoch stays");
}

#[tokio::test]
async fn epoch_rises_with_each_end_and_sequences_begin_at_0_where_end_txn_answers_the_next() {
    let fake = cluster(2, 1, 1).await;
    let producer = initialised(&fake, &[]).await;
    for _ in 0..3 {
        let transaction = producer.begin().await.expect("begun");
        send(&transaction, 0, "v").await.await.expect("written");
        transaction.commit().await.expect("committed");
    }
    let stamps: Vec<_> = fake.seen(0).iter().map(|s| (s.stamp.producer_epoch, s.stamp.base_sequence)).collect();
    assert_eq!(stamps, [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(requests(&fake), ["init", "commit", "commit", "commit"]);
}

#[tokio::test]
async fn records_of_the_next_transaction_gather_while_the_last_one_commits_and_leave_after_it() {
    for version in VERSIONS {
        let fake = cluster(version, 1, 1).await;
        fake.silence(|_, key| key == ApiKey::EndTxn);
        let producer = initialised(&fake, &[("request.timeout.ms", "300")]).await;
        let first = producer.begin().await.expect("begun");
        send(&first, 0, "first").await.await.expect("written");
        let ending = first.commit();
        let second = producer.begin().await.expect("begun while the first ends");
        let delivery = send(&second, 0, "second").await;
        fake.until("the request to commit", |state| state.swallowed() > 0).await;
        assert_eq!(fake.values(0), ["first"], "the second has not left");
        fake.silence(|_, _| false);
        ending.wait().await.expect("committed");
        delivery.await.expect("written");
        second.commit().await.expect("committed");
        assert_eq!(committed(&fake, 0), ["first", "second"], "version {version}");
    }
}

#[tokio::test]
async fn record_that_fails_aborts_its_transaction_and_the_next_one_succeeds() {
    for version in VERSIONS {
        let fake = cluster(version, 1, 2).await;
        let producer = initialised(&fake, &[]).await;
        fake.script(|seen| match seen.values.contains(&"bad".to_owned()) {
            true => Fate::Refused(ErrorCode::INVALID_RECORD),
            false => Fate::Normal,
        });
        let transaction = producer.begin().await.expect("begun");
        send(&transaction, 0, "good").await.await.expect("written");
        let error = send(&transaction, 1, "bad").await.await.expect_err("refused");
        assert!(!error.may_have_been_written());
        let refused = transaction.try_send(ProducerRecord::new("t", b"more")).expect_err("failed");
        assert!(matches!(refused, SendError::TransactionFailed(_)), "{refused}");
        let error = transaction.commit().await.expect_err("not committed");
        assert!(error.is_abortable() && !error.may_have_been_written(), "{error}");
        assert!(matches!(error, TransactionError::Record(ProduceError::Broker { .. })), "{error}");
        let transaction = producer.begin().await.expect("begun");
        send(&transaction, 1, "again").await.await.expect("written");
        transaction.commit().await.expect("committed");
        assert_eq!((committed(&fake, 0), committed(&fake, 1)), (vec![], vec!["again".to_owned()]));
    }
}

#[tokio::test]
async fn transaction_begun_before_the_failure_of_the_last_one_was_known_fails_with_it() {
    let fake = cluster(2, 1, 1).await;
    let producer = initialised(&fake, &[]).await;
    fake.script(|_| Fate::Refused(ErrorCode::INVALID_RECORD));
    fake.hold(true);
    let first = producer.begin().await.expect("begun");
    drop(send(&first, 0, "first").await);
    let ending = first.commit();
    let second = producer.begin().await.expect("begun");
    drop(send(&second, 0, "second").await);
    fake.hold(false);
    ending.wait().await.expect_err("not committed");
    let error = second.commit().await.expect_err("not committed either");
    assert!(matches!(error, TransactionError::Previous(_)) && error.is_abortable(), "{error}");
    assert_eq!(fake.values(0), [""; 0]);
}

#[tokio::test]
async fn commit_has_failed_unobserved_the_next_transaction_skips_no_offsets() {
    let fake = cluster(2, 1, 1).await;
    let producer = initialised(&fake, &[]).await;
    refuse_first_offsets(&fake);
    let first = producer.begin().await.expect("begun");
    drop(send(&first, 0, "first").await);
    first.queue_offsets(&[offset(5)], &GroupMetadata::new("g")).expect("queued");
    let ending = first.commit();
    // Transactions end in order, so the first has its outcome when the second has ended.
    producer.begin().await.expect("begun").abort().await.expect("aborted");
    let next = producer.begin().await.expect("begun");
    let error = next.queue_offsets(&[offset(6)], &GroupMetadata::new("g")).expect_err("would pass over the first");
    assert!(matches!(error, TransactionError::Previous(_)) && error.is_abortable(), "{error}");
    next.abort().await.expect("aborted");
    ending.wait().await.expect_err("refused");
    let next = producer.begin().await.expect("begun");
    next.queue_offsets(&[offset(5)], &GroupMetadata::new("g")).expect("the application knows");
    next.commit().await.expect("committed");
}

#[tokio::test]
async fn offsets_are_committed_with_the_records_under_the_generation_of_the_member() {
    for version in VERSIONS {
        let fake = cluster(version, 1, 1).await;
        let producer = initialised(&fake, &[]).await;
        let mut group = GroupMetadata::new("g");
        (group.generation_id, group.member_id) = (7, "m".to_owned());
        for (offset, is_committed) in [(10, true), (20, false)] {
            let transaction = producer.begin().await.expect("begun");
            let offsets =
                [TransactionOffset { topic: "t".to_owned(), partition: 0, offset, leader_epoch: -1, metadata: None }];
            transaction.send_offsets(&offsets, &group).await.expect("taken");
            match is_committed {
                true => transaction.commit().await.expect("committed"),
                false => transaction.abort().await.expect("aborted"),
            }
        }
        let (kept, requests) = fake.transactions(|of| (of.offsets.clone(), of.requests.clone()));
        assert_eq!(kept.get(&("g".into(), 0)), Some(&10), "version {version}");
        assert!(requests.contains(&"offsets of g at 7".to_owned()), "{requests:?}");
        assert_eq!(requests.contains(&"add group g".to_owned()), version < 2, "{requests:?}");
    }
}

#[tokio::test]
async fn offsets_of_a_member_that_is_fenced_abort_the_transaction_alone() {
    let fake = cluster(2, 1, 1).await;
    let producer = initialised(&fake, &[]).await;
    refuse_first_offsets(&fake);
    let transaction = producer.begin().await.expect("begun");
    let error = transaction.send_offsets(&[offset(5)], &GroupMetadata::new("g")).await.expect_err("refused");
    assert!(error.is_abortable(), "{error}");
    assert_eq!(transaction.commit().await, Err(error));
    let transaction = producer.begin().await.expect("begun");
    transaction.send_offsets(&[offset(6)], &GroupMetadata::new("g")).await.expect("taken");
    transaction.commit().await.expect("committed");
}

#[tokio::test]
async fn queued_offsets_go_with_the_commit_and_fail_it_where_they_are_refused() {
    for version in VERSIONS {
        let fake = cluster(version, 1, 1).await;
        let producer = initialised(&fake, &[]).await;
        fake.transactions(|of| {
            of.script = Box::new(|key, nth| match (key, nth) {
                (ApiKey::TxnOffsetCommit, 2) => TransactionFate::Refused(ErrorCode::ILLEGAL_GENERATION),
                _ => TransactionFate::Normal,
            });
        });
        for (at, value) in [(5, "first"), (6, "second"), (7, "third")] {
            let transaction = producer.begin().await.expect("begun");
            drop(send(&transaction, 0, value).await);
            transaction.queue_offsets(&[offset(at)], &GroupMetadata::new("g")).expect("queued");
            match transaction.commit().await {
                Ok(()) => assert_ne!(value, "second"),
                Err(error) => assert!(value == "second" && error.is_abortable(), "{value}: {error}"),
            }
        }
        assert_eq!(committed(&fake, 0), ["first", "third"], "version {version}");
        assert_eq!(fake.transactions(|of| of.offsets.get(&("g".into(), 0)).copied()), Some(7), "version {version}");
    }
}

fn offset(offset: i64) -> TransactionOffset {
    TransactionOffset { topic: "t".to_owned(), partition: 0, offset, leader_epoch: -1, metadata: None }
}

#[tokio::test]
async fn producer_that_another_has_fenced_can_do_nothing_more() {
    for version in VERSIONS {
        let fake = cluster(version, 1, 1).await;
        let producer = initialised(&fake, &[]).await;
        let transaction = producer.begin().await.expect("begun");
        send(&transaction, 0, "v").await.await.expect("written");
        fake.transactions(Transactions::fence);
        let error = transaction.commit().await.expect_err("fenced");
        assert!(error.is_fatal() && !error.may_have_been_written(), "{error}");
        assert!(error.to_string().contains("PRODUCER_FENCED"), "{error}");
        let error = producer.begin().await.err().expect("at its end");
        assert!(error.is_fatal(), "{error}");
        assert!(committed(&fake, 0).is_empty());
    }
}

#[tokio::test]
async fn coordinator_moves_or_responses_are_lost_the_request_is_sent_again() {
    for version in VERSIONS {
        let fake = cluster(version, 2, 1).await;
        let producer = initialised(&fake, &[]).await;
        fake.transactions(|of| {
            of.coordinator = 1;
            of.script = Box::new(|key, nth| match (key, nth) {
                (ApiKey::EndTxn, 2) => TransactionFate::ResponseLost,
                (ApiKey::EndTxn, 3) => TransactionFate::Refused(ErrorCode::CONCURRENT_TRANSACTIONS),
                (ApiKey::AddPartitionsToTxn, 2) => TransactionFate::Refused(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
                (ApiKey::AddPartitionsToTxn, 3) => TransactionFate::Dropped,
                _ => TransactionFate::Normal,
            });
        });
        let transaction = producer.begin().await.expect("begun");
        send(&transaction, 0, "v").await.await.expect("written");
        transaction.commit().await.expect("committed");
        assert_eq!(committed(&fake, 0), ["v"], "version {version}");
    }
}

/// A former coordinator that is cut off from the cluster does not know the newest epoch and transaction.
#[tokio::test]
async fn former_coordinator_refuses_for_good_the_request_is_sent_to_the_present_one() {
    for version in VERSIONS {
        for code in [ErrorCode::INVALID_TXN_STATE, ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_PRODUCER_EPOCH] {
            let fake = cluster(version, 2, 1).await;
            let producer = initialised(&fake, &[]).await;
            let transaction = producer.begin().await.expect("begun");
            send(&transaction, 0, "v").await.await.expect("written");
            fake.transactions(|of| (of.coordinator, of.former_answers) = (1, code));
            transaction.commit().await.expect("committed");
            assert_eq!(committed(&fake, 0), ["v"], "version {version}, {code}");
        }
    }
}

#[tokio::test]
async fn coordinator_that_the_caller_names_has_moved_offsets_are_committed_after_a_look_up() {
    let fake = cluster(2, 2, 1).await;
    let producer = initialised(&fake, &[]).await;
    let named = format!("127.0.0.1:{}", fake.lock().ports[1]);
    let group = GroupMetadata { coordinator: Some(named), ..GroupMetadata::new("g") };
    for (coordinator, at) in [(1, 5), (0, 6)] {
        fake.transactions(|of| of.coordinator = coordinator);
        let transaction = producer.begin().await.expect("begun");
        transaction.send_offsets(&[offset(at)], &group).await.expect("taken");
        transaction.commit().await.expect("committed");
        assert_eq!(fake.transactions(|of| of.offsets.get(&("g".into(), 0)).copied()), Some(at));
    }
}

#[tokio::test]
async fn commit_without_an_answer_times_out_as_possibly_committed_and_is_awaited_again() {
    let fake = cluster(2, 1, 1).await;
    // The times must be long enough for the responses of a slow machine before the coordinator falls silent.
    let producer = initialised(&fake, &[("max.block.ms", "5000"), ("request.timeout.ms", "2000")]).await;
    let transaction = producer.begin().await.expect("begun");
    send(&transaction, 0, "v").await.await.expect("written");
    fake.silence(|_, key| key == ApiKey::EndTxn);
    let ending = transaction.commit();
    let error = ending.wait().await.expect_err("no answer");
    assert!(error.is_retriable() && error.may_have_been_written(), "{error}");
    fake.silence(|_, _| false);
    while let Err(error) = ending.wait().await {
        assert!(error.is_retriable(), "{error}");
    }
    assert_eq!(committed(&fake, 0), ["v"]);
}

#[tokio::test]
async fn batches_that_were_sent_and_not_written_raise_the_epoch_of_an_aborted_transaction() {
    let fake = cluster(0, 1, 1).await;
    // The batch fails after two retries. With a timeout instead, it could fail before its first attempt.
    let producer = initialised(&fake, &[("retries", "2")]).await;
    fake.script(|_| Fate::Refused(ErrorCode::NOT_ENOUGH_REPLICAS));
    let transaction = producer.begin().await.expect("begun");
    send(&transaction, 0, "v").await.await.expect_err("refused");
    transaction.commit().await.expect_err("aborted");
    fake.script(|_| Fate::Normal);
    let transaction = producer.begin().await.expect("begun");
    send(&transaction, 0, "w").await.await.expect("written");
    transaction.commit().await.expect("committed");
    assert_eq!(requests(&fake), ["init", "add [0]", "abort", "init", "add [0]", "commit"]);
    let newest = fake.seen(0).last().expect("seen").stamp;
    assert_eq!((newest.producer_epoch, newest.base_sequence), (1, 0));
}

#[tokio::test]
async fn call_that_the_state_does_not_allow_is_refused_without_effect() {
    let fake = cluster(2, 1, 1).await;
    let producer = uninitialised(&fake, &[]);
    assert!(matches!(producer.begin().await.err(), Some(TransactionError::State(_))));
    producer.init_transactions().await.expect("a producer id");
    let outside = producer.send(ProducerRecord::new("t", b"v")).await.expect_err("outside");
    assert_eq!(outside, SendError::NoTransaction);
    let transaction = producer.begin().await.expect("begun");
    assert!(matches!(producer.begin().await.err(), Some(TransactionError::State(_))), "one is open");
    transaction.commit().await.expect("nothing to commit");
    assert_eq!(requests(&fake), ["init"], "an empty transaction needs no request");
    let plain = Producer::from_properties([("bootstrap.servers", "h:1")]).expect("valid");
    assert!(matches!(plain.begin().await.err(), Some(TransactionError::State(_))));
}

/// Runs many transactions against a cluster that refuses and loses requests at random. Each value of a committed
/// transaction must be readable once and in order, and no other value may be readable.
#[test]
fn transactions_hold_by_seed_under_lost_and_refused_requests() {
    run_each(40, 4, |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let run = tokio::time::timeout(Duration::from_secs(60), schedule(seed));
            run.await.unwrap_or_else(|_| Err("hangs".to_owned()))
        })
    });
}

fn coordinator_fate(random: &mut Random) -> TransactionFate {
    match random.below(20) {
        0 => TransactionFate::Dropped,
        1 | 2 => TransactionFate::ResponseLost,
        3 => TransactionFate::Refused(ErrorCode::CONCURRENT_TRANSACTIONS),
        4 => TransactionFate::Refused(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
        5 => TransactionFate::Refused(ErrorCode::NOT_COORDINATOR),
        _ => TransactionFate::Normal,
    }
}

fn batch_fate(random: &mut Random) -> Fate {
    match random.below(30) {
        0 => Fate::Dropped,
        1 => Fate::ResponseLost,
        2 => Fate::Refused(ErrorCode::NOT_ENOUGH_REPLICAS),
        3 => Fate::Refused(ErrorCode::CONCURRENT_TRANSACTIONS),
        4 => Fate::WrittenBut(ErrorCode::REQUEST_TIMED_OUT),
        5 => Fate::Refused(ErrorCode::INVALID_RECORD),
        6 => Fate::Refused(ErrorCode::INVALID_PRODUCER_EPOCH),
        _ => Fate::Normal,
    }
}

async fn schedule(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let fake = cluster(VERSIONS[seed as usize % 2], 1, 2).await;
    let (mut of_batches, mut of_coordinator) = (Random::new(!seed), Random::new(seed ^ 0xABCD));
    let in_flight = ["1", "5", "auto"][random.below(3)];
    let connections = ["1", "3"][random.below(2)];
    if random.below(2) == 0 {
        fake.lock().announced = vec![Announced { retain: 64, retain_of_topic: -1, reorder: 16 }];
    }
    let settings = [
        ("batch.size", "0"),
        ("max.in.flight.requests.per.connection", in_flight),
        ("connections.per.broker", connections),
    ];
    let producer = initialised(&fake, &settings).await;
    fake.script(move |_| batch_fate(&mut of_batches));
    fake.transactions(|of| of.script = Box::new(move |_, _| coordinator_fate(&mut of_coordinator)));
    let (mut expected, mut last) = ([Vec::new(), Vec::new()], None);
    for number in 0..12 {
        let transaction = producer.begin().await.map_err(|error| format!("begin: {error}"))?;
        let mut values = [Vec::new(), Vec::new()];
        for at in 0..random.below(12) {
            let partition = random.below(2);
            let value = format!("{number}.{at}");
            let record = ProducerRecord::new("t", value.as_bytes()).partition(partition as i32);
            match transaction.send(record).await {
                Ok(delivery) => drop(delivery),
                Err(SendError::TransactionFailed(_)) => break,
                Err(error) => return Err(format!("send: {error}")),
            }
            values[partition].push(value);
        }
        // This transaction may have begun before the outcome of the previous one was known. If the previous one failed,
        // this one must not commit past its records.
        let mut passes_over = false;
        if let Some(before) = last.take() {
            passes_over = !settle(before, &mut expected).await?;
        }
        match random.below(5) {
            0 => drop(transaction),
            1 => transaction.abort().await.map_err(|error| format!("abort: {error}"))?,
            _ => last = Some(Committing { ending: transaction.commit(), values, passes_over }),
        }
        if random.below(2) == 0
            && let Some(last) = last.take()
        {
            settle(last, &mut expected).await?;
        }
    }
    if let Some(last) = last.take() {
        settle(last, &mut expected).await?;
    }
    producer.close(Duration::from_secs(30)).await;
    let found = [committed(&fake, 0), committed(&fake, 1)];
    if found == expected { Ok(()) } else { Err(format!("committed {found:?}, expected {expected:?}")) }
}

/// A transaction that is being committed.
struct Committing<'a> {
    ending: Ending<'a>,
    values: [Vec<String>; 2],
    /// True if the commit must fail because the previous transaction has failed.
    passes_over: bool,
}

/// Waits for the outcome. If the transaction is committed, adds its values to `expected`, and returns false otherwise.
async fn settle(of: Committing<'_>, expected: &mut [Vec<String>; 2]) -> Result<bool, String> {
    match of.ending.await {
        Ok(()) if of.passes_over => Err("a transaction passed over the records of the last one".to_owned()),
        Ok(()) => {
            expected.iter_mut().zip(of.values).for_each(|(all, of)| all.extend(of));
            Ok(true)
        }
        Err(error) if error.is_abortable() && !error.may_have_been_written() => Ok(false),
        Err(error) => Err(format!("commit: {error}")),
    }
}
