use fullbore_tests::Batch;
use fullbore_wire::Uuid;

use super::*;
use fullbore_config::Properties;
use fullbore_log::Verification;
use fullbore_log::partition::outcome::{AppendStep, Blocker};
use fullbore_log::partition::terms::VerificationTime;
use fullbore_log::steps::watch;
use fullbore_rules::sequence::Marker;

#[tokio::test]
async fn panicking_append_takes_only_its_partition_out_of_service() {
    let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    let directory = tempfile::tempdir().expect("temporary directory");
    let logs = Partitions::open(directory.path(), &broker).expect("opened");
    let (id, config) = (Uuid([1; 16]), TopicConfig { flush_messages: Some(1), ..broker.topics.defaults.clone() });
    logs.put_topic("t", id, &led_by(1, 2), &Arc::new(config), Origin::New);
    let [hit, other] = [0, 1].map(|index| logs.find(&id, index).expect("it has just been told of"));
    let bytes = Batch::at(0, &["v"]).bytes();
    let batch = ValidBatch::unchecked(&bytes);
    let append = |partition: &Arc<Replica>| {
        let step = partition.append(&batch, AppendTerms::in_turn(Acks::Leader, 0))?;
        Ok::<_, AppendError>(step.into_written().expect("written"))
    };
    let first = append(&hit).expect("appended");
    // The second append panics after its batch was written to the file, but before the log includes the batch.
    let late = watch(|| panic!("as a test wants it"), || append(&hit).err());
    assert_eq!(late, Some(AppendError::Storage));
    // The flush may happen before or after the panic. The wait ends in both cases.
    let _ = first.durability.wait(tokio::time::Instant::now()).await;
    assert_eq!(append(&hit).err(), Some(AppendError::Storage));
    assert_eq!(logs.failed_partitions(), 1);
    let read = hit.read(0, 1000, true).expect("read");
    assert_eq!((read.high_watermark, read.records.len()), (1, bytes.len()));
    assert_eq!(hit.read(2, 1000, true).err(), Some(ReadError::OffsetOutOfRange));
    for base_offset in 0..2 {
        assert_eq!(append(&other).expect("appended").appended.base_offset, base_offset);
    }
    logs.close();
    drop((hit, other, logs));
    let logs = Partitions::open(directory.path(), &broker).expect("opened");
    logs.put_topic("t", id, &led_by(1, 2), &Arc::new(broker.topics.defaults.clone()), Origin::Kept);
    let hit = logs.find(&id, 0).expect("it has just been told of");
    let end = append(&hit).expect("the next start has it in service again").appended.base_offset;
    assert!(end == 1 || end == 2, "{end}: what was not answered may be there");
    logs.close();
}

#[test]
fn a_batch_whose_transaction_has_ended_since_it_was_verified_is_verified_again() {
    let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    let directory = tempfile::tempdir().expect("temporary directory");
    let logs = Partitions::open(directory.path(), &broker).expect("opened");
    let id = Uuid([1; 16]);
    logs.put_topic("t", id, &led_by(1, 1), &Arc::new(broker.topics.defaults.clone()), Origin::New);
    let partition = logs.find(&id, 0).expect("it has just been told of");
    let bytes = Batch::at(0, &["v"]).from_producer(7, 0, 0).transactional().bytes();
    let batch = ValidBatch::unchecked(&bytes);
    let append = |verification, verified_at: VerificationTime| {
        let terms = AppendTerms { verification, verified_at, ..AppendTerms::in_turn(Acks::Leader, 0) };
        partition.append(&batch, terms).expect("a step")
    };
    let before = partition.verification_time(7);
    // The transaction ends before the batch arrives. The marker has version 1, so the producer epoch stays the same.
    let marker = Marker { producer_id: 7, producer_epoch: 0, coordinator_epoch: 0, is_commit: true };
    partition.append_marker(&marker, 1, None, 0).expect("written");
    for verification in [Verification::Verified, Verification::Added] {
        assert!(matches!(append(verification, before), AppendStep::Blocked(Blocker::Verification)));
    }
    let now = partition.verification_time(7);
    // A verification in an earlier leader epoch is not valid, because another leader may have written the marker since
    // then.
    let earlier = VerificationTime { leader_epoch: now.leader_epoch - 1, ..now };
    assert!(matches!(append(Verification::Verified, earlier), AppendStep::Blocked(Blocker::Verification)));
    assert!(append(Verification::Added, now).is_written());
    logs.close();
}

/// The second marker raises the known producer epoch to that of the batch. So the batch is not refused for an old
/// epoch, but it must be verified again.
#[test]
fn marker_of_version_1_that_raises_the_known_epoch_makes_a_verified_batch_verify_again() {
    let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    let directory = tempfile::tempdir().expect("temporary directory");
    let logs = Partitions::open(directory.path(), &broker).expect("opened");
    let id = Uuid([1; 16]);
    logs.put_topic("t", id, &led_by(1, 1), &Arc::new(broker.topics.defaults.clone()), Origin::New);
    let partition = logs.find(&id, 0).expect("it has just been told of");
    let append = |epoch: i16, verification, verified_at: VerificationTime| {
        let bytes = Batch::at(0, &["v"]).from_producer(7, epoch, 0).transactional().bytes();
        let terms = AppendTerms { verification, verified_at, ..AppendTerms::in_turn(Acks::Leader, 0) };
        partition.append(&ValidBatch::unchecked(&bytes), terms).expect("a step")
    };
    let end = |producer_epoch, version| {
        let marker = Marker { producer_id: 7, producer_epoch, coordinator_epoch: 0, is_commit: false };
        partition.append_marker(&marker, version, None, 0).expect("written");
    };
    assert!(append(0, Verification::Verified, partition.verification_time(7)).is_written());
    end(0, 1);
    let before = partition.verification_time(7);
    end(1, 1);
    assert!(matches!(append(1, Verification::Verified, before), AppendStep::Blocked(Blocker::Verification)));
    // A marker of version 2 has the next epoch. A batch of that epoch can only follow the marker, so its verification
    // is still valid.
    let before = partition.verification_time(7);
    end(2, 2);
    assert!(append(2, Verification::Added, before).is_written());
    logs.close();
}

/// No client reads the partition. A read would remove ended transactions from memory, but without reads, the appends of
/// markers must remove them.
#[test]
fn ended_transactions_of_an_unread_partition_are_forgotten() {
    let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    let directory = tempfile::tempdir().expect("temporary directory");
    let logs = Partitions::open(directory.path(), &broker).expect("opened");
    let id = Uuid([1; 16]);
    logs.put_topic("t", id, &led_by(1, 1), &Arc::new(broker.topics.defaults.clone()), Origin::New);
    let partition = logs.find(&id, 0).expect("it has just been told of");
    for producer_epoch in 0..100 {
        let bytes = Batch::at(0, &["v"]).from_producer(7, producer_epoch, 0).transactional().bytes();
        let verified_at = partition.verification_time(7);
        let terms =
            AppendTerms { verification: Verification::Added, verified_at, ..AppendTerms::in_turn(Acks::Leader, 0) };
        assert!(partition.append(&ValidBatch::unchecked(&bytes), terms).expect("a step").is_written());
        let marker =
            Marker { producer_id: 7, producer_epoch: producer_epoch + 1, coordinator_epoch: 0, is_commit: true };
        partition.append_marker(&marker, 2, None, 0).expect("written");
    }
    let state = partition.lock();
    let crate::replica::state::LogState::Open(log) = &state.log else { panic!("it was written") };
    assert!(log.producers().unreplicated_markers() <= 1, "{}", log.producers().unreplicated_markers());
    drop(state);
    logs.close();
}
