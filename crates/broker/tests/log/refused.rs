//! A batch is refused because of the partition's role. Then the role changes, and later batches of the same producer
//! arrive. They must be refused with the same error until the first batch was sent again and appended.

use std::sync::Arc;

use fullbore_broker::partitions::{Acks, AppendError, AppendStep, AppendTerms, EarlyBatches, ReorderBuffer, Replica};
use fullbore_config::{BrokerConfig, Properties};
use fullbore_host::metrics::Metrics;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::ErrorCode;

use super::directory::{Directory, NOW, idempotent, valid};

/// The metadata of a partition with broker 1 and a follower.
struct Metadata {
    partition: Arc<Replica>,
    epoch: i32,
}

impl Metadata {
    fn of(directory: &Directory) -> Metadata {
        Metadata { partition: directory.partition(), epoch: 1 }
    }

    fn report(&mut self, leader: i32, isr: &[i32]) {
        self.epoch += 1;
        let registered = PartitionRegistration {
            replicas: vec![1, 2],
            isr: isr.to_vec(),
            leader: Some(leader),
            leader_epoch: self.epoch,
            partition_epoch: self.epoch,
            ..PartitionRegistration::default()
        };
        self.partition.follow(&Arc::new(registered), &self.partition.config());
    }

    fn error(&self, sequence: i32) -> ErrorCode {
        let batch = idempotent(9, 0, sequence, 1);
        let batch = valid(&self.partition, &batch).expect("valid");
        self.partition
            .append(&batch, AppendTerms::in_turn(Acks::All, NOW))
            .map_or_else(|why| why.code(), |_| ErrorCode::NONE)
    }

    /// Appends a batch like [`Metadata::error`], but for a client that may send batches out of order.
    fn in_turn(&self, sequence: i32, wait_in: Option<&Arc<ReorderBuffer>>) -> Result<AppendStep, AppendError> {
        let batch = idempotent(9, 0, sequence, 1);
        let early = EarlyBatches { are_sent: true, wait_in };
        let terms = AppendTerms { early, ..AppendTerms::in_turn(Acks::All, NOW) };
        self.partition.append(&valid(&self.partition, &batch)?, terms)
    }
}

const WELL: (i32, &[i32]) = (1, &[1, 2]);

#[tokio::test]
async fn batches_behind_a_refused_one_get_its_error_until_its_retry() {
    for ((leader, isr), code) in
        [((1, &[1][..]), ErrorCode::NOT_ENOUGH_REPLICAS), ((2, &[1, 2]), ErrorCode::NOT_LEADER_OR_FOLLOWER)]
    {
        let directory = Directory::new().with(|config| config.min_insync_replicas = 2);
        let mut metadata = Metadata::of(&directory);
        metadata.report(leader, isr);
        assert_eq!(metadata.error(0), code);
        metadata.report(WELL.0, WELL.1);
        assert_eq!([1, 2, 3].map(|sequence| metadata.error(sequence)), [code; 3]);
        assert_eq!([0, 1, 2, 3].map(|sequence| metadata.error(sequence)), [ErrorCode::NONE; 4]);
        assert_eq!(metadata.error(5), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
        // All retries are appended. Then the role changes once more, and batch 4 is refused.
        metadata.report(leader, isr);
        assert_eq!(metadata.error(4), code);
        metadata.report(WELL.0, WELL.1);
        assert_eq!([5, 3, 4].map(|sequence| metadata.error(sequence)), [code, ErrorCode::NONE, ErrorCode::NONE]);
    }
}

#[tokio::test]
async fn batch_waiting_for_a_refused_one_gets_its_error() {
    let typed = Properties::parse("fullbore.reorder.wait.ms=20").expect("properties");
    let reordering =
        ReorderBuffer::new(&BrokerConfig::from_properties(&typed).expect("a config").0.reorder, Metrics::default());
    let directory = Directory::new().with(|config| config.min_insync_replicas = 2);
    let mut metadata = Metadata::of(&directory);
    metadata.report(1, &[1]);
    let refused = metadata.in_turn(0, Some(&reordering)).expect_err("too few in sync");
    assert_eq!(refused.code(), ErrorCode::NOT_ENOUGH_REPLICAS);
    metadata.report(WELL.0, WELL.1);
    let Ok(AppendStep::Pending(ticket)) = metadata.in_turn(1, Some(&reordering)) else { panic!("it may wait") };
    let far = tokio::time::Instant::now() + std::time::Duration::from_secs(3600);
    let due = ticket.wait(far, std::future::pending(), &Metrics::default()).await.expect_err("due");
    assert_eq!(due.code(), ErrorCode::NOT_ENOUGH_REPLICAS);
    assert_eq!(metadata.in_turn(1, None).expect_err("it may not").code(), ErrorCode::NOT_ENOUGH_REPLICAS);
    assert_eq!([0, 1].map(|sequence| metadata.error(sequence)), [ErrorCode::NONE; 2]);
}
