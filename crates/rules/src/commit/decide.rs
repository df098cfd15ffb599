//! The decision of one commit.

use std::collections::{HashMap, HashSet};

use super::batch::{DisklessPartitionId, ObjectBatch, ObjectId};
use super::object::{CommitVerdict, FinishedObject, ObjectState, Refusal};
use super::run::BatchRun;
use super::state::PartitionState;
use crate::sequence::{self, Producers, SequenceRefusal, Stamp};

/// State that a commit is decided on: the newest of every partition that it touches.
#[derive(Debug)]
pub struct Coordinator<'a> {
    /// Existing partitions; one that is missing is deleted. The commit changes them.
    pub partitions: &'a mut HashMap<DisklessPartitionId, PartitionState>,
    /// Producers of deleted partitions, as far as they are kept: a batch in their windows was committed before the deletion.
    pub deleted: &'a HashMap<DisklessPartitionId, Producers>,
    /// The wall clock in ms, from which producers' idleness counts.
    pub now_ms: i64,
}

/// Decision of a commit: the answers, and the rows to write.
#[derive(Clone, Debug, Default)]
pub struct CommitDecision {
    /// For each object what became of each of its batches, in their order.
    pub verdicts: Vec<Vec<CommitVerdict>>,
    /// The objects that are committed now; not those that were before.
    pub objects: Vec<CommittedObject>,
    /// Runs of the appended batches, in the order of the objects.
    pub runs: Vec<BatchRun>,
    /// Appended batches of each idempotent producer: a row each.
    pub producers: Vec<AppendedBatches>,
}

/// An object that is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedObject {
    /// Its number.
    pub id: ObjectId,
    /// Bytes of the batches that were appended; with none, nobody will ever read it.
    pub live_bytes: i64,
}

/// Batches that one commit has appended of one producer to one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendedBatches {
    /// The partition.
    pub partition: DisklessPartitionId,
    /// The producer.
    pub producer_id: i64,
    /// Stamp, first offset and timestamp of each batch, in the order of the offsets. There may be several epochs.
    pub batches: Vec<(Stamp, i64, i64)>,
}

/// Decides on objects in the order in which their broker has closed them. The partitions are as after the commit; if that is not known to
/// be written, they are to be read anew.
pub fn commit(coordinator: &mut Coordinator<'_>, objects: &[FinishedObject]) -> CommitDecision {
    let mut decided = CommitDecision::default();
    let (mut producers, mut failed) = (HashMap::new(), HashSet::new());
    for object in objects {
        let verdicts = match &object.state {
            ObjectState::Registered => append(coordinator, object, &mut decided, &mut producers, &mut failed),
            ObjectState::Live(runs) => object.batches.iter().map(|batch| again(coordinator, batch, runs)).collect(),
            ObjectState::Gone => vec![CommitVerdict::Refused(Refusal::ObjectGone); object.batches.len()],
        };
        let batches = object.batches.iter().zip(&verdicts).filter(|(batch, _)| batch.stamp.is_idempotent());
        let refused = batches.filter(|(_, verdict)| matches!(verdict, CommitVerdict::Refused(_)));
        failed.extend(refused.map(|(batch, _)| (batch.partition, batch.stamp.producer_id)));
        decided.verdicts.push(verdicts);
    }
    decided
}

/// Place of a producer's row in [`CommitDecision::producers`].
type ProducerRows = HashMap<(DisklessPartitionId, i64), usize>;
/// Producers of which something was refused in this commit: what comes behind it is not appended, or one that is not known any more could begin
/// with it.
type FailedProducers = HashSet<(DisklessPartitionId, i64)>;

fn append(
    coordinator: &mut Coordinator<'_>,
    object: &FinishedObject,
    decided: &mut CommitDecision,
    rows: &mut ProducerRows,
    failed: &mut FailedProducers,
) -> Vec<CommitVerdict> {
    let (first_run, mut live_bytes) = (decided.runs.len(), 0);
    // Partition and position of a batch that extends the last run. To sum up the run for each batch is quadratic.
    let mut run_end = None;
    let mut verdicts = Vec::with_capacity(object.batches.len());
    for batch in &object.batches {
        let Some(partition) = coordinator.partitions.get_mut(&batch.partition) else {
            verdicts.push(gone(coordinator.deleted, batch));
            continue;
        };
        if failed.contains(&(batch.partition, batch.stamp.producer_id)) {
            verdicts.push(CommitVerdict::Refused(Refusal::Behind));
            continue;
        }
        let verdict = match partition.check(&batch.stamp) {
            sequence::Verdict::Append => {
                let base_offset = partition.append(batch, coordinator.now_ms);
                let so_far = partition.max_timestamp;
                match decided.runs.last_mut().filter(|_| run_end == Some((batch.partition, batch.position))) {
                    Some(run) => run.push(batch, so_far),
                    None => decided.runs.push(BatchRun::of(batch, object.id, base_offset, so_far)),
                }
                run_end = Some((batch.partition, batch.position + batch.size));
                note_producer(&mut decided.producers, rows, batch, base_offset);
                live_bytes += i64::from(batch.size);
                CommitVerdict::Appended { base_offset }
            }
            sequence::Verdict::Duplicate { base_offset, timestamp } => {
                CommitVerdict::Duplicate { base_offset, timestamp }
            }
            sequence::Verdict::Refuse(why) => {
                if batch.stamp.is_idempotent() {
                    failed.insert((batch.partition, batch.stamp.producer_id));
                }
                CommitVerdict::Refused(Refusal::Sequence(why))
            }
        };
        verdicts.push(verdict);
    }
    let appended = &decided.runs[first_run..];
    debug_assert!(are_unbroken(appended, coordinator.partitions), "runs adjoin, and the last one ends at the log end");
    let in_runs: i64 = appended.iter().map(|run| i64::from(run.bytes())).sum();
    debug_assert_eq!(live_bytes, in_runs, "the runs have the batches that were appended, and no other");
    decided.objects.push(CommittedObject { id: object.id, live_bytes });
    verdicts
}

/// Returns true if the runs of each partition have no gap between them nor before its log end.
fn are_unbroken(runs: &[BatchRun], partitions: &HashMap<DisklessPartitionId, PartitionState>) -> bool {
    let mut ends = HashMap::new();
    let adjoins =
        |run: &BatchRun| ends.insert(run.partition, run.end_offset()).is_none_or(|end| end == run.base_offset);
    let adjoin = runs.iter().all(adjoins);
    adjoin && ends.iter().all(|(id, end)| partitions.get(id).is_some_and(|partition| partition.next_offset == *end))
}

fn note_producer(producers: &mut Vec<AppendedBatches>, rows: &mut ProducerRows, batch: &ObjectBatch, base_offset: i64) {
    if !batch.stamp.is_idempotent() {
        return;
    }
    let &ObjectBatch { partition, stamp, max_timestamp, .. } = batch;
    let row = *rows.entry((partition, stamp.producer_id)).or_insert_with(|| {
        producers.push(AppendedBatches { partition, producer_id: stamp.producer_id, batches: Vec::new() });
        producers.len() - 1
    });
    producers[row].batches.push((stamp, base_offset, max_timestamp));
}

/// Returns the verdict on a batch of an object that was committed before: that of its rows, or the present one if it is in none.
fn again(coordinator: &Coordinator<'_>, batch: &ObjectBatch, runs: &[BatchRun]) -> CommitVerdict {
    let in_partition = runs.iter().filter(|run| run.partition == batch.partition);
    if let Some(base_offset) = in_partition.filter_map(|run| run.offset_at(batch.position)).next() {
        return CommitVerdict::Appended { base_offset };
    }
    let Some(partition) = coordinator.partitions.get(&batch.partition) else { return gone(coordinator.deleted, batch) };
    match partition.check(&batch.stamp) {
        sequence::Verdict::Append => CommitVerdict::Refused(Refusal::Earlier),
        sequence::Verdict::Duplicate { base_offset, timestamp } => CommitVerdict::Duplicate { base_offset, timestamp },
        sequence::Verdict::Refuse(why) => CommitVerdict::Refused(Refusal::Sequence(why)),
    }
}

/// Decides on a batch whose partition is deleted. One that was written there is a duplicate, or its producer would send it again to the next
/// partition of the name. There its later batches, which were acknowledged, would be missing.
fn gone(deleted: &HashMap<DisklessPartitionId, Producers>, batch: &ObjectBatch) -> CommitVerdict {
    let Some(left) = deleted.get(&batch.partition).filter(|left| left.knows(batch.stamp.producer_id)) else {
        return CommitVerdict::Refused(Refusal::PartitionGone);
    };
    match left.check(&batch.stamp, 0) {
        sequence::Verdict::Duplicate { base_offset, timestamp } => CommitVerdict::Duplicate { base_offset, timestamp },
        // The newest commit alone is kept of each producer.
        _ if left.is_before_retained(&batch.stamp) => {
            CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::DuplicateSequence))
        }
        _ => CommitVerdict::Refused(Refusal::PartitionGone),
    }
}
