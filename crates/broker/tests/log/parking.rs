//! Tests batches of one partition that arrive out of order, and their counters.

use std::sync::Arc;
use std::time::Duration;

use fullbore_broker::partitions::{
    Acks, AppendError, AppendStep, AppendTerms, AppendTicket, Appended, EarlyBatches, ReorderBuffer, Replica,
};
use fullbore_config::{BrokerConfig, Properties, TopicConfig};
use fullbore_host::metrics::Metrics;
use fullbore_rules::sequence::SequenceRefusal;
use fullbore_wire::ErrorCode;

use super::directory::{Directory, NOW, append_with, idempotent, offset, read_all, valid};

fn reordering(settings: &str) -> Arc<ReorderBuffer> {
    let typed = Properties::parse(settings).expect("properties");
    ReorderBuffer::new(&BrokerConfig::from_properties(&typed).expect("a config").0.reorder, Metrics::default())
}

fn admit(partition: &Arc<Replica>, batch: &[u8], reordering: &Arc<ReorderBuffer>) -> Result<AppendStep, AppendError> {
    let early = EarlyBatches { are_sent: true, wait_in: Some(reordering) };
    let terms = AppendTerms { early, ..AppendTerms::in_turn(Acks::Leader, NOW) };
    partition.append(&valid(partition, batch)?, terms)
}

/// A parked batch whose result is pending.
struct Parked(AppendTicket);

impl Parked {
    async fn wait(self) -> Result<Appended, AppendError> {
        let far = tokio::time::Instant::now() + Duration::from_secs(3600);
        self.0.wait(far, std::future::pending(), &Metrics::default()).await
    }
}

fn park(partition: &Arc<Replica>, batch: &[u8], reordering: &Arc<ReorderBuffer>) -> Parked {
    match admit(partition, batch, reordering).expect("there is room") {
        AppendStep::Pending(ticket) if !ticket.is_written() => Parked(ticket),
        step => panic!("{step:?}"),
    }
}

#[tokio::test]
async fn parked_batch_is_counted_until_it_leaves() {
    // The time is long enough that the first of two parked batches expires only after the second was parked, even on a
    // slow machine.
    let reordering = reordering("fullbore.reorder.wait.ms=1000");
    let directory = Directory::new();
    let partition = directory.partition();
    // First case: a batch is parked, and then appended because the batch before it arrives.
    let answer = park(&partition, &idempotent(1, 0, 2, 1), &reordering);
    let one = reordering.bytes();
    assert!(one > idempotent(1, 0, 2, 1).len(), "its bytes, and what it costs to keep them");
    drop(park(&partition, &idempotent(1, 0, 2, 1), &reordering));
    assert_eq!(reordering.bytes(), one, "a second copy is none");
    offset(&partition, &idempotent(1, 0, 0, 2));
    assert_eq!((answer.wait().await.expect("appended").base_offset, reordering.bytes()), (2, 0));
    // Second case: a parked batch expires. This also happens if no request waits for it.
    drop(park(&partition, &idempotent(1, 0, 9, 1), &reordering));
    let answer = park(&partition, &idempotent(1, 0, 10, 1), &reordering);
    assert_eq!(reordering.bytes(), 2 * one);
    assert_eq!(answer.wait().await.expect_err("due"), AppendError::Sequence(SequenceRefusal::OutOfOrderSequence));
    assert_eq!(reordering.bytes(), one, "of the one that waits for the next copy");
    while reordering.bytes() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Third case: a new epoch fences the parked batch.
    let answer = park(&partition, &idempotent(1, 0, 9, 1), &reordering);
    offset(&partition, &idempotent(1, 1, 0, 1));
    assert_eq!(answer.wait().await.expect_err("fenced"), AppendError::Sequence(SequenceRefusal::InvalidProducerEpoch));
    assert_eq!(reordering.bytes(), 0);
    // Fourth case: the parked batch is refused because the log is stopped.
    let answer = park(&partition, &idempotent(1, 1, 9, 1), &reordering);
    directory.logs.close();
    assert_eq!(answer.wait().await.expect_err("stopped"), AppendError::Gone);
    assert_eq!(reordering.bytes(), 0);
}

/// After OUT_OF_ORDER, a client sends the batch again at once, but after any other error only after its backoff. So the
/// next copy of the batch must get OUT_OF_ORDER.
#[tokio::test]
async fn expired_batch_without_a_waiting_copy_refuses_its_next_copy_at_once() {
    let reordering = reordering("fullbore.reorder.wait.ms=1000");
    let directory = Directory::new();
    let partition = directory.partition();
    drop(park(&partition, &idempotent(1, 0, 2, 1), &reordering));
    drop(park(&partition, &idempotent(2, 0, 2, 1), &reordering));
    // This batch is parked last. When it has expired, the other two have expired as well.
    let witness = park(&partition, &idempotent(3, 0, 2, 1), &reordering);
    witness.wait().await.expect_err("due");
    let again = admit(&partition, &idempotent(1, 0, 2, 1), &reordering).expect_err("its wait has ended");
    assert_eq!(again, AppendError::Sequence(SequenceRefusal::OutOfOrderSequence));
    let answer = park(&partition, &idempotent(1, 0, 2, 1), &reordering);
    offset(&partition, &idempotent(1, 0, 0, 2));
    assert_eq!(answer.wait().await.expect("in its turn").base_offset, 2);
    offset(&partition, &idempotent(2, 0, 0, 2));
    assert_eq!(offset(&partition, &idempotent(2, 0, 2, 1)), 5, "one that is late is appended in its turn");
    assert_eq!(reordering.bytes(), 0);
}

#[tokio::test]
async fn closed_reorder_buffer_parks_nothing() {
    let reordering = reordering("fullbore.reorder.wait.ms=3600000");
    let directory = Directory::new();
    let partition = directory.partition();
    let answer = park(&partition, &idempotent(1, 0, 2, 1), &reordering);
    reordering.close();
    directory.logs.dismiss_waiting();
    assert_eq!(answer.wait().await.expect_err("dismissed"), AppendError::Gone);
    assert_eq!(admit(&partition, &idempotent(1, 0, 2, 1), &reordering).expect_err("closed"), AppendError::Gone);
    assert_eq!(offset(&partition, &idempotent(1, 0, 0, 2)), 0, "what is in its turn is still taken");
}

/// The topic's limit is lowered while a batch is parked. The batch is still appended, because the settings at its
/// arrival apply.
#[tokio::test]
async fn parked_batch_is_appended_with_the_settings_at_its_arrival() {
    let reordering = reordering("fullbore.reorder.wait.ms=3600000");
    let directory = Directory::new();
    let partition = directory.partition();
    let large = park(&partition, &idempotent(1, 0, 2, 40), &reordering);
    let behind = park(&partition, &idempotent(1, 0, 42, 1), &reordering);
    let size = idempotent(1, 0, 2, 40).len();
    let smaller = TopicConfig { max_message_bytes: size - 1, ..directory.config.clone() };
    partition.follow(&partition.registered(), &Arc::new(smaller));
    assert_eq!(offset(&partition, &idempotent(1, 0, 0, 2)), 0);
    assert_eq!(large.wait().await.expect("appended").base_offset, 2);
    assert_eq!(behind.wait().await.expect("appended").base_offset, 42);
    assert!(admit(&partition, &idempotent(1, 0, 43, 40), &reordering).is_err(), "one that comes now is too large");
    assert_eq!(read_all(&partition, 0).len(), 3);
}

/// A batch that is too large for the topic is refused at once.
#[tokio::test]
async fn batch_that_cannot_be_appended_is_not_parked() {
    let reordering = reordering("");
    let directory = Directory::new().with(|config| config.max_message_bytes = 100);
    let partition = directory.partition();
    let refused = admit(&partition, &idempotent(1, 0, 2, 40), &reordering).expect_err("too large");
    assert_eq!((refused.code(), reordering.bytes()), (ErrorCode::MESSAGE_TOO_LARGE, 0));
}

#[tokio::test]
async fn batches_of_a_partition_share_one_expiry_task() {
    let small = idempotent(1, 0, 2, 1).len();
    let reordering =
        reordering(&format!("fullbore.reorder.wait.ms=3600000\nfullbore.reorder.bytes.max={}", 2 * (small + 1000)));
    let directory = Directory::new();
    let partition = directory.partition();
    for at in [0, 3, 6, 9] {
        let answer = park(&partition, &idempotent(1, 0, at + 2, 1), &reordering);
        offset(&partition, &idempotent(1, 0, at, 2));
        answer.wait().await.expect("appended");
        // The whole budget is free, but this batch alone exceeds it.
        let refused = admit(&partition, &idempotent(1, 0, at + 9, 400), &reordering).expect_err("no room");
        assert_eq!(refused, AppendError::Sequence(SequenceRefusal::OutOfOrderSequence));
    }
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 1);
}

/// The fsync of a partition has failed. An out-of-order batch then gets this error at once, rather than OUT_OF_ORDER
/// after a wait.
#[tokio::test]
async fn partition_with_a_failed_fsync_parks_nothing() {
    let reordering = reordering("fullbore.reorder.wait.ms=3600000");
    let directory = Directory::new();
    let partition = directory.partition();
    assert_eq!(offset(&partition, &idempotent(1, 0, 0, 2)), 0);
    // The open files can still be written. But the flush fails, because the directory is gone.
    std::fs::remove_dir_all(directory.file("")).expect("removed");
    let flushing = TopicConfig { flush_messages: Some(1), ..directory.config.clone() };
    partition.follow(&partition.registered(), &Arc::new(flushing));
    let to_be_flushed = append_with(&partition, &idempotent(1, 0, 2, 1), Acks::Leader).expect("appended").durability;
    assert_eq!(to_be_flushed.wait(tokio::time::Instant::now()).await, Err(AppendError::Storage));
    let refused = admit(&partition, &idempotent(1, 0, 9, 1), &reordering).expect_err("out of service");
    assert_eq!((refused, reordering.bytes()), (AppendError::Storage, 0));
}
