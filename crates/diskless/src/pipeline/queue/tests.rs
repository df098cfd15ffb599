use fullbore_rules::sequence::NO_PRODUCER_ID;

use super::*;

const AT: Duration = Duration::from_secs(1);

fn empty() -> CommitQueue {
    let settings = RotationSettings {
        bytes_max: 1_000_000,
        interval: Duration::from_millis(250),
        slots: 1,
        early_puts_per_second: 0,
    };
    CommitQueue::new(settings)
}

pub(super) fn batch(partition: DisklessPartitionId, producer_id: i64, base_sequence: i32) -> NewBatch {
    let stamp = Stamp { producer_id, producer_epoch: 0, base_sequence, record_count: 1 };
    let (bytes, kind) = (Bytes::from(vec![producer_id as u8; 10]), BatchKind::Plain);
    NewBatch {
        partition,
        bytes,
        stamp,
        max_timestamp: 0,
        kind,
        confirmation: None,
        ends_transaction: false,
        room: None,
    }
}

/// Admits batches and closes an object with all of them.
fn closed(queue: &mut CommitQueue, batches: Vec<NewBatch>) -> (ClosedObject, Vec<BatchNumber>) {
    let batch_numbers = batches.into_iter().map(|batch| queue.admit(batch, AT)).collect();
    (queue.close(AT), batch_numbers)
}

fn appended(base_offset: i64) -> CommitVerdict {
    CommitVerdict::Appended { base_offset }
}

fn committed(base_offset: i64) -> CommitResult {
    Ok(Committed { base_offset, timestamp: None })
}

#[test]
fn objects_are_closed_batches_are_in_the_order_of_partitions_and_commits_in_that_of_closing() {
    let mut queue = empty();
    let (first, batch_numbers) = closed(&mut queue, vec![batch(2, 7, 0), batch(1, 8, 0), batch(2, 7, 1)]);
    let (second, later) = closed(&mut queue, vec![batch(2, 7, 2)]);
    assert_eq!(first.parts.concat(), [[8; 10], [7; 10], [7; 10]].concat());
    queue.uploaded(second.number, Ok(102));
    assert!(queue.next_commit(AT).0.is_empty(), "the first is not in the store");
    queue.uploaded(first.number, Ok(101));
    let (commit, failed) = queue.next_commit(AT);
    assert_eq!((commit[0].id, commit[1].id, failed), (101, 102, vec![]));
    assert_eq!(commit[0].batches.iter().map(|batch| batch.position).collect::<Vec<_>>(), [0, 10, 20]);
    assert!(queue.next_commit(AT).0.is_empty(), "one at a time");
    let verdicts = [vec![appended(5), appended(0), appended(1)], vec![appended(2)]];
    let outcomes = queue.committed(&verdicts, AT);
    let expected = [(batch_numbers[1], 5), (batch_numbers[0], 0), (batch_numbers[2], 1), (later[0], 2)];
    assert_eq!(outcomes, expected.map(|(batch_number, offset)| (batch_number, committed(offset))));
    assert_eq!((queue.bytes(), queue.admission.len()), (0, 0));
}

#[test]
fn commit_has_an_unknown_outcome_it_is_repeated_unchanged() {
    let mut queue = empty();
    let (first, _) = closed(&mut queue, vec![batch(1, 7, 0)]);
    queue.uploaded(first.number, Ok(101));
    let (commit, _) = queue.next_commit(AT);
    queue.commit_unknown();
    let (second, _) = closed(&mut queue, vec![batch(1, 7, 1)]);
    queue.uploaded(second.number, Ok(102));
    let (again, _) = queue.next_commit(AT);
    assert_eq!((again[0].id, &again[0].batches, again[1].id), (101, &commit[0].batches, 102));
}

#[test]
fn objects_queue_up_while_the_index_is_down_they_are_committed_in_pieces() {
    let mut queue = empty();
    for _ in 0..4 {
        let (object, _) = closed(&mut queue, (0..8_000).map(|_| batch(1, NO_PRODUCER_ID, 0)).collect());
        queue.uploaded(object.number, Ok(object.number as ObjectId));
    }
    let (first, _) = queue.next_commit(AT);
    assert_eq!(first.iter().map(|object| object.id).collect::<Vec<_>>(), [0, 1]);
    queue.commit_unknown();
    assert_eq!(queue.next_commit(AT).0.len(), 2, "and no more the next time");
    queue.committed(&vec![vec![appended(0); 8_000]; 2], AT);
    assert_eq!(queue.next_commit(AT).0.iter().map(|object| object.id).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn upload_slot_is_busy_batches_are_gathered() {
    let mut queue = empty();
    let (first, _) = closed(&mut queue, vec![batch(1, 7, 0)]);
    for sequence in 1..20 {
        queue.admit(batch(1, 7, sequence), AT);
    }
    assert_eq!(queue.due(AT * 2), None);
    queue.uploaded(first.number, Ok(101));
    assert_eq!(queue.due(AT * 2), Some(Close::Now));
    assert_eq!((queue.close(AT * 2).parts.len(), queue.is_closed_up()), (19, true));
    queue.admit(batch(1, 7, 20), AT);
    queue.hurry();
    assert_eq!(queue.due(AT), Some(Close::Now), "the broker stops");
}

#[test]
fn batch_fails_all_behind_it_are_dead_in_every_object() {
    let mut queue = empty();
    let (first, of_first) = closed(&mut queue, vec![batch(1, 7, 0), batch(1, 8, 0)]);
    let (second, of_second) = closed(&mut queue, vec![batch(1, 7, 1), batch(1, 8, 1), batch(2, 7, 0)]);
    let filled = [queue.admit(batch(1, 7, 2), AT), queue.admit(batch(1, 8, 2), AT)];
    queue.uploaded(first.number, Ok(101));
    queue.next_commit(AT);
    let refused = CommitVerdict::Refused(Refusal::PartitionGone);
    let outcomes = queue.committed(&[vec![refused, appended(0)]], AT);
    let dead = [(of_second[0], Err(AppendError::Again)), (filled[0], Err(AppendError::Again))];
    let own = [(of_first[0], Err(AppendError::Deleted)), (of_first[1], committed(0))];
    assert_eq!(outcomes, [own, dead].concat());
    queue.uploaded(second.number, Ok(102));
    let (commit, _) = queue.next_commit(AT);
    let left: Vec<_> = commit[0].batches.iter().map(|batch| (batch.partition, batch.stamp.producer_id)).collect();
    assert_eq!(left, [(1, 8), (2, 7)], "without the dead");
    assert_eq!(queue.close(AT).parts.len(), 1);
    // The client sends the failed batch again. No other batch of its producer is pending.
    let committed = PartitionState::new(5);
    assert_eq!(queue.check(1, &batch(1, 7, 0).stamp, &committed, Freshness::Current, AT), Admission::Admit);
}

#[test]
fn batch_without_a_sequence_is_refused_no_state_is_kept() {
    let mut queue = empty();
    (0..3).for_each(|partition| {
        queue.turned_away(partition, &batch(partition, 7, 3).stamp, ErrorCode::KAFKA_STORAGE_ERROR, AT)
    });
    queue.turned_away(30_000, &batch(30_000, NO_PRODUCER_ID, 0).stamp, ErrorCode::KAFKA_STORAGE_ERROR, AT);
    assert_eq!(queue.admission.len(), 3);
}

#[test]
fn upload_fails_its_batches_fail_once_the_object_is_first_in_the_queue() {
    let mut queue = empty();
    let (first, _) = closed(&mut queue, vec![batch(1, 7, 0)]);
    let (second, failing) = closed(&mut queue, vec![batch(1, 7, 1), batch(1, 7, 2), batch(1, NO_PRODUCER_ID, 0)]);
    let (third, dead) = closed(&mut queue, vec![batch(1, 7, 3), batch(1, 9, 0)]);
    queue.uploaded(second.number, Err(()));
    queue.uploaded(third.number, Ok(103));
    assert_eq!(queue.next_commit(AT).1, []);
    queue.uploaded(first.number, Ok(101));
    assert_eq!(queue.next_commit(AT).0.len(), 1);
    queue.committed(&[vec![appended(0)]], AT);
    let (commit, outcomes) = queue.next_commit(AT);
    let not_uploaded = failing.iter().map(|batch_number| (*batch_number, Err(AppendError::Storage)));
    assert_eq!(outcomes, not_uploaded.chain([(dead[0], Err(AppendError::Again))]).collect::<Vec<_>>());
    assert_eq!(commit[0].batches.len(), 1);
    queue.committed(&[vec![appended(1)]], AT);
    // The failed batch uses no memory any more, but the queue still remembers the failure.
    assert_eq!((queue.bytes(), queue.admission.len()), (0, 1));
    queue.forget(1);
    assert!(queue.admission.is_empty());
}
