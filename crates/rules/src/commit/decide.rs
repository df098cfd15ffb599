//! Decides which batches of a commit are appended, and at which offsets.

use std::collections::HashMap;

use super::batch::{AppendedBatch, AppendedBatches, DisklessPartitionId, ObjectBatch, ObjectId};
use super::object::{CommitVerdict, FinishedObject, ObjectState, Refusal};
use super::run::BatchRun;
use super::state::PartitionState;
use crate::sequence::{self, AbortedTransaction, Producers, SequenceRefusal};

/// The state by which a commit is decided. It has the newest state of every partition in the commit.
#[derive(Debug)]
pub struct CommitState<'a> {
    /// The existing partitions, which the commit changes. A partition that is not in the map was deleted.
    pub partitions: &'a mut HashMap<DisklessPartitionId, PartitionState>,
    /// The producer state of deleted partitions, as far as the index still has it. Batches in this state were committed
    /// before the deletion.
    pub deleted: &'a HashMap<DisklessPartitionId, Producers>,
    /// The wall clock in ms, from which the idle time of producers is counted.
    pub now_ms: i64,
}

/// The decision about a commit: the verdicts, and the rows to write.
#[derive(Clone, Debug, Default)]
pub struct CommitDecision {
    /// The verdicts on the batches of each object, in the same order.
    pub verdicts: Vec<Vec<CommitVerdict>>,
    /// The objects that this commit commits. Objects that an earlier attempt has committed are not in the list.
    pub objects: Vec<CommittedObject>,
    /// The extents of the appended batches, in the order of the objects.
    pub runs: Vec<BatchRun>,
    /// The appended batches and markers of idempotent producers, one row for each producer and partition.
    pub producers: Vec<AppendedBatches>,
    /// The transactions that markers have aborted, in the order of the markers.
    pub aborted: Vec<PartitionAborted>,
}

/// A transaction that was aborted in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionAborted {
    pub partition: DisklessPartitionId,
    pub transaction: AbortedTransaction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedObject {
    pub id: ObjectId,
    /// The size of the object's appended batches in bytes. An object with 0 bytes is never read.
    pub live_bytes: i64,
}

/// Decides on objects, in the order in which their broker closed them. Changes `state.partitions` to the state after
/// the commit. Unless the decision has certainly been written, the caller must read the partitions again.
pub fn commit(state: &mut CommitState<'_>, objects: &[FinishedObject]) -> CommitDecision {
    let mut deciding = Deciding { state, decided: CommitDecision::default(), rows: HashMap::new() };
    let mut failed = FailedProducers::new();
    for object in objects {
        let verdicts = match &object.state {
            ObjectState::Registered => deciding.append(object, &mut failed),
            ObjectState::Live(runs) => object.batches.iter().map(|batch| again(deciding.state, batch, runs)).collect(),
            ObjectState::Gone => vec![CommitVerdict::Refused(Refusal::ObjectGone); object.batches.len()],
        };
        if object.state != ObjectState::Registered {
            object.batches.iter().zip(&verdicts).for_each(|(batch, verdict)| note_outcome(&mut failed, batch, verdict));
        }
        deciding.decided.verdicts.push(verdicts);
    }
    deciding.decided
}

/// The producers that had a batch refused in this commit, each with the newest epoch of such a batch. Their later
/// batches are refused, because the first of them would otherwise count as the first batch of an unknown producer.
/// Markers are decided as usual.
type FailedProducers = HashMap<(DisklessPartitionId, i64), i16>;

/// Updates `failed` after the decision about a batch. A refused batch adds its producer. An appended marker with a
/// later epoch removes its producer: the partition then knows this epoch, so the next transaction can begin only with
/// sequence 0.
fn note_outcome(failed: &mut FailedProducers, batch: &ObjectBatch, verdict: &CommitVerdict) {
    let (key, epoch) = ((batch.partition, batch.stamp.producer_id), batch.stamp.producer_epoch);
    let is_refused = matches!(verdict, CommitVerdict::Refused(_));
    if batch.is_sequenced() && is_refused {
        let newest = failed.entry(key).or_insert(epoch);
        *newest = epoch.max(*newest);
    } else if batch.kind.is_marker() && !is_refused && failed.get(&key).is_some_and(|newest| *newest < epoch) {
        failed.remove(&key);
    }
}

/// A commit while it is being decided.
struct Deciding<'a, 'b> {
    state: &'a mut CommitState<'b>,
    decided: CommitDecision,
    /// The index of each producer's row in [`CommitDecision::producers`].
    rows: HashMap<(DisklessPartitionId, i64), usize>,
}

impl Deciding<'_, '_> {
    fn append(&mut self, object: &FinishedObject, failed: &mut FailedProducers) -> Vec<CommitVerdict> {
        let (first_run, mut live_bytes) = (self.decided.runs.len(), 0);
        // The partition of the last extent, and the position at which the extent ends. A batch that begins there
        // extends it. To compute the position from the extent for each batch would take quadratic time.
        let mut run_end = None;
        let mut verdicts = Vec::with_capacity(object.batches.len());
        for batch in &object.batches {
            let verdict = self.decide(batch, failed);
            if let CommitVerdict::Appended { base_offset } = verdict {
                let so_far = self.state.partitions.get(&batch.partition).map_or(-1, |of| of.max_timestamp);
                match self.decided.runs.last_mut().filter(|_| run_end == Some((batch.partition, batch.position))) {
                    Some(run) => run.push(batch, so_far),
                    None => self.decided.runs.push(BatchRun::of(batch, object.id, base_offset, so_far)),
                }
                run_end = Some((batch.partition, batch.position + batch.size));
                live_bytes += i64::from(batch.size);
            }
            note_outcome(failed, batch, &verdict);
            verdicts.push(verdict);
        }
        let appended = &self.decided.runs[first_run..];
        debug_assert!(
            are_unbroken(appended, self.state.partitions),
            "runs adjoin, and the last one ends at the log end"
        );
        let in_runs: i64 = appended.iter().map(|run| i64::from(run.bytes())).sum();
        debug_assert_eq!(live_bytes, in_runs, "the runs have the batches that were appended, and no other");
        self.decided.objects.push(CommittedObject { id: object.id, live_bytes });
        verdicts
    }

    /// Decides on a batch, and appends it if it is accepted.
    fn decide(&mut self, batch: &ObjectBatch, failed: &FailedProducers) -> CommitVerdict {
        let now_ms = self.state.now_ms;
        let Some(partition) = self.state.partitions.get_mut(&batch.partition) else {
            return gone(self.state.deleted, batch);
        };
        if let Some(marker) = batch.marker() {
            if let Err(why) = partition.check_marker(&marker) {
                return CommitVerdict::Refused(Refusal::Sequence(why));
            }
            if partition.has_overtaken(batch, marker.transaction_version) {
                return CommitVerdict::Refused(Refusal::Unverified);
            }
            let (appended, aborted) = partition.append_marker(batch, now_ms);
            self.note_producer(batch.partition, appended);
            let aborted = aborted.map(|transaction| PartitionAborted { partition: batch.partition, transaction });
            self.decided.aborted.extend(aborted);
            return CommitVerdict::Appended { base_offset: appended.base_offset };
        }
        if failed.contains_key(&(batch.partition, batch.stamp.producer_id)) {
            return CommitVerdict::Refused(Refusal::Behind);
        }
        match partition.decide(batch) {
            Ok(sequence::Verdict::Append) => {
                let appended = partition.append(batch, now_ms);
                self.note_producer(batch.partition, appended);
                CommitVerdict::Appended { base_offset: appended.base_offset }
            }
            Ok(sequence::Verdict::Duplicate { base_offset, timestamp }) => {
                CommitVerdict::Duplicate { base_offset, timestamp }
            }
            Ok(sequence::Verdict::Refuse(why)) => CommitVerdict::Refused(Refusal::Sequence(why)),
            Err(why) => CommitVerdict::Refused(why),
        }
    }

    fn note_producer(&mut self, partition: DisklessPartitionId, batch: AppendedBatch) {
        if !batch.stamp.is_idempotent() {
            return;
        }
        let producers = &mut self.decided.producers;
        let producer_id = batch.stamp.producer_id;
        let row = *self.rows.entry((partition, producer_id)).or_insert_with(|| {
            producers.push(AppendedBatches { partition, producer_id, batches: Vec::new() });
            producers.len() - 1
        });
        producers[row].batches.push(batch);
    }
}

/// Returns true if the extents leave no gap in any partition, neither between them nor before the partition's next
/// offset.
fn are_unbroken(runs: &[BatchRun], partitions: &HashMap<DisklessPartitionId, PartitionState>) -> bool {
    let mut ends = HashMap::new();
    let adjoins =
        |run: &BatchRun| ends.insert(run.partition, run.end_offset()).is_none_or(|end| end == run.base_offset);
    let adjoin = runs.iter().all(adjoins);
    adjoin && ends.iter().all(|(id, end)| partitions.get(id).is_some_and(|partition| partition.next_offset == *end))
}

/// Decides on a batch whose object was already committed. If an extent contains the batch, the batch was appended.
/// Otherwise the verdict depends on the partition's present state.
fn again(state: &CommitState<'_>, batch: &ObjectBatch, runs: &[BatchRun]) -> CommitVerdict {
    let in_partition = runs.iter().filter(|run| run.partition == batch.partition);
    if let Some(base_offset) = in_partition.filter_map(|run| run.offset_at(batch.position)).next() {
        return CommitVerdict::Appended { base_offset };
    }
    let Some(partition) = state.partitions.get(&batch.partition) else { return gone(state.deleted, batch) };
    if let Some(marker) = batch.marker() {
        return match partition.check_marker(&marker) {
            // Either another marker was appended and this one refused, or this one was appended and its extent is
            // deleted. In both cases the coordinator sends the marker again.
            Ok(()) if partition.has_overtaken(batch, marker.transaction_version) => {
                CommitVerdict::Refused(Refusal::Unverified)
            }
            // A marker that was refused at the first attempt would also be refused now. So this one was appended, and
            // its extent is deleted.
            Ok(()) => CommitVerdict::Duplicate { base_offset: -1, timestamp: -1 },
            Err(why) => CommitVerdict::Refused(Refusal::Sequence(why)),
        };
    }
    match partition.check(&batch.stamp) {
        sequence::Verdict::Append => CommitVerdict::Refused(Refusal::Earlier),
        sequence::Verdict::Duplicate { base_offset, timestamp } => CommitVerdict::Duplicate { base_offset, timestamp },
        sequence::Verdict::Refuse(why) => CommitVerdict::Refused(Refusal::Sequence(why)),
    }
}

/// Decides on a batch of a deleted partition. A batch that was written there is a duplicate. If it were refused, its
/// producer would resend it to the recreated topic, but not the later batches, which are already acknowledged.
fn gone(deleted: &HashMap<DisklessPartitionId, Producers>, batch: &ObjectBatch) -> CommitVerdict {
    let left = deleted.get(&batch.partition).filter(|_| batch.is_sequenced());
    let Some(left) = left.filter(|left| left.knows(batch.stamp.producer_id)) else {
        return CommitVerdict::Refused(Refusal::PartitionGone);
    };
    match left.check(&batch.stamp, 0) {
        sequence::Verdict::Duplicate { base_offset, timestamp } => CommitVerdict::Duplicate { base_offset, timestamp },
        // `left` has only the batches of each producer's newest commit. Older batches were appended by earlier commits.
        _ if left.is_before_retained(&batch.stamp) => {
            CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::DuplicateSequence))
        }
        _ => CommitVerdict::Refused(Refusal::PartitionGone),
    }
}
