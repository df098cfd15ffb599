//! The queue of admitted batches that have no answer yet. It begins with the batches that are gathered for the next
//! object ([`gathering`]), and ends with those that are being committed. It has no clock and does no I/O. It decides
//! neither on commits nor when an object is due. Batches without a confirmation are held back in [`confirmations`].
//!
//! Invariants: objects are committed in the order in which they were closed. No batch is acknowledged before the
//! outcome of its commit is known. If a batch fails, later batches of its producer in the partition become dead. A dead
//! batch is never committed, unless the queue has already tried to commit it.

mod confirmations;
mod gathering;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use fullbore_rules::commit::admission::{Admission, BatchNumber, Freshness, Opening, PartitionAdmission};
use fullbore_rules::commit::rotation::{Close, OBJECT_BATCHES_MAX, Rotation, RotationSettings};
use fullbore_rules::commit::{
    BatchKind, CommitVerdict, Confirmation, DisklessPartitionId, ObjectBatch, ObjectId, PartitionState, Refusal,
};
use fullbore_rules::sequence::{SequenceRefusal, Stamp};
use fullbore_wire::ErrorCode;

use crate::index::UploadedObject;
use confirmations::UnconfirmedBatches;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::memory_budget::MemoryPermit;
use gathering::Gathering;

pub use confirmations::UnconfirmedBatch;

/// Maximum number of batches in a commit: twice the maximum of an object. While the index is down, many batches queue
/// up. Without this limit, their commit could exceed its time limit at each attempt.
const COMMIT_BATCHES_MAX: usize = 2 * OBJECT_BATCHES_MAX;

/// The outcome of an admitted batch. [`AppendError::Again`] means that the batch was not written, usually because an
/// earlier batch of its producer has failed. The client must then send the batch again, in order.
pub type CommitResult = Result<Committed, AppendError>;

/// The offset of a committed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The offset of the first record.
    pub base_offset: i64,
    /// The timestamp of the original append in ms, if this batch is a duplicate.
    pub timestamp: Option<i64>,
}

/// An admitted batch. Its bytes are complete and were checked.
#[derive(Debug)]
pub struct NewBatch {
    pub partition: DisklessPartitionId,
    pub bytes: Bytes,
    pub stamp: Stamp,
    /// The largest timestamp of the records, in ms.
    pub max_timestamp: i64,
    /// The kind of the batch: a plain one, a part of a transaction, or a marker.
    pub kind: BatchKind,
    /// The confirmation of the transaction; see [`ObjectBatch`].
    pub confirmation: Option<Confirmation>,
    /// True if a producer waits for the end of a transaction: for a marker, and for the batch with the transaction's
    /// last records.
    pub ends_transaction: bool,
    /// The memory of the batch. It is released together with the memory of the object. `None` for a marker.
    pub room: Option<MemoryPermit>,
}

/// A closed object with its number in the queue.
#[derive(Clone, Debug)]
pub struct ClosedObject {
    pub number: u64,
    /// The bytes of the object, with one part for each batch.
    pub parts: Vec<Bytes>,
}

#[derive(Debug)]
struct QueuedObject {
    number: u64,
    /// The batches in their order within the object.
    batches: Vec<(BatchNumber, ObjectBatch)>,
    bytes: usize,
    upload: Upload,
    /// The memory of the batches.
    _room: Option<MemoryPermit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upload {
    UnderWay,
    Failed,
    Done(ObjectId),
    /// The object is in the store. Its commit is under way, or was attempted with an unknown outcome.
    Tried(ObjectId),
}

/// The batches that are admitted but not answered yet, and the objects that contain them.
///
/// An object is closed when it is due and an upload slot is idle. Several objects are uploaded at the same time. The
/// uploaded objects at the head of the queue are committed together, one commit at a time. If the outcome of a commit
/// is unknown, the same objects and batches are committed again, until the outcome is known.
#[derive(Debug)]
pub struct CommitQueue {
    gathering: Gathering,
    rotation: Rotation,
    objects: VecDeque<QueuedObject>,
    admission: HashMap<DisklessPartitionId, PartitionAdmission>,
    /// Bytes of the batches that are admitted but not answered yet.
    bytes: usize,
    next_batch_number: BatchNumber,
    next_object_number: u64,
    /// Number of objects in the current commit.
    in_commit: usize,
    unconfirmed: UnconfirmedBatches,
    /// True if the broker stops, so that every object is closed at once.
    hurries: bool,
    /// The faults that a test has planted in this queue.
    #[cfg(test)]
    pub(super) faults: PlantedFaults,
}

/// Planted faults, with which tests show that they find such mistakes. None by default.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PlantedFaults {
    /// Dead batches stay in their objects.
    pub keeps_the_dead: bool,
    /// Batches are committed before their confirmation.
    pub commits_unconfirmed: bool,
    /// The known state of producers always counts as current.
    pub skips_refresh: bool,
}

impl CommitQueue {
    /// Creates an empty queue.
    pub fn new(settings: RotationSettings) -> CommitQueue {
        CommitQueue {
            gathering: Gathering::default(),
            rotation: Rotation::new(settings),
            objects: VecDeque::new(),
            admission: HashMap::new(),
            bytes: 0,
            next_batch_number: 0,
            next_object_number: 0,
            in_commit: 0,
            unconfirmed: UnconfirmedBatches::default(),
            hurries: false,
            #[cfg(test)]
            faults: PlantedFaults::default(),
        }
    }

    /// Makes the queue close every object at once from now on.
    pub fn hurry(&mut self) {
        self.hurries = true;
    }

    /// Records that a batch was refused before its admission; see [`PartitionAdmission::turned_away`].
    pub fn turned_away(&mut self, partition: DisklessPartitionId, stamp: &Stamp, code: ErrorCode, now: Duration) {
        let admission = self.admission.entry(partition).or_default();
        admission.turned_away(stamp, code, now);
        if admission.is_empty() {
            self.admission.remove(&partition);
        }
    }

    /// Forgets a deleted partition.
    pub fn forget(&mut self, partition: DisklessPartitionId) {
        self.unconfirmed.forget(partition);
        if let Some(admission) = self.admission.get_mut(&partition) {
            admission.forget_refused();
            if admission.is_empty() {
                self.admission.remove(&partition);
            }
        }
    }

    /// Forgets batches that were refused long ago.
    pub fn forget_old(&mut self, now: Duration) {
        self.admission.values_mut().for_each(|admission| admission.forget_old(now));
        self.admission.retain(|_, admission| !admission.is_empty());
    }

    /// Returns the error for a batch that is out of order.
    pub fn of_early(&self, partition: DisklessPartitionId, stamp: &Stamp, now: Duration) -> SequenceRefusal {
        let admission = self.admission.get(&partition);
        admission.map_or(SequenceRefusal::OutOfOrderSequence, |admission| admission.of_early(stamp, now))
    }

    /// Returns how many bytes are admitted but not answered yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of the first closed object in the queue. If there is none, returns the number of the next
    /// object to be closed.
    pub fn first_number(&self) -> u64 {
        self.objects.front().map_or(self.next_object_number, |object| object.number)
    }

    /// Decides whether a batch is admitted, by the known state of its partition; see [`PartitionAdmission::check`].
    pub fn check(
        &self,
        partition: DisklessPartitionId,
        stamp: &Stamp,
        committed: &PartitionState,
        freshness: Freshness,
        now: Duration,
    ) -> Admission {
        let nothing = PartitionAdmission::default();
        self.admission.get(&partition).unwrap_or(&nothing).check(stamp, committed, freshness, now)
    }

    /// Returns how many sequences are missing before a batch, or 0 if it is in order; see
    /// [`PartitionAdmission::ahead`].
    pub fn ahead(&self, partition: DisklessPartitionId, stamp: &Stamp, committed: &PartitionState) -> i32 {
        let nothing = PartitionAdmission::default();
        self.admission.get(&partition).unwrap_or(&nothing).ahead(stamp, committed)
    }

    /// Returns true if an out-of-order batch waits for earlier ones; see [`PartitionAdmission::awaits_others`].
    pub fn awaits_others(
        &self,
        partition: DisklessPartitionId,
        stamp: &Stamp,
        committed: &PartitionState,
        now: Duration,
    ) -> bool {
        let nothing = PartitionAdmission::default();
        self.admission.get(&partition).unwrap_or(&nothing).awaits_others(stamp, committed, now)
    }

    /// Returns true if the newest pending batch of the same producer has the same epoch.
    pub fn has_pending_of_epoch(&self, partition: DisklessPartitionId, stamp: &Stamp) -> bool {
        self.admission.get(&partition).is_some_and(|admission| admission.has_pending_of_epoch(stamp))
    }

    /// Returns true if a producer has a pending batch in a partition.
    pub fn has_pending(&self, partition: DisklessPartitionId, producer_id: i64) -> bool {
        self.admission.get(&partition).is_some_and(|admission| admission.has_pending(producer_id))
    }

    /// Returns how a batch relates to the open transactions; see [`PartitionAdmission::transaction_of`].
    pub fn transaction_of(&self, partition: DisklessPartitionId, stamp: &Stamp, committed: &PartitionState) -> Opening {
        let nothing = PartitionAdmission::default();
        self.admission.get(&partition).unwrap_or(&nothing).transaction_of(stamp, committed)
    }

    /// Queues a marker, or a batch that [`CommitQueue::check`] has admitted.
    pub fn admit(&mut self, batch: NewBatch, now: Duration) -> BatchNumber {
        let batch_number = self.next_batch_number;
        self.next_batch_number += 1;
        if !batch.kind.is_marker() {
            let admission = self.admission.entry(batch.partition).or_default();
            admission.admitted(&batch.stamp, batch_number, batch.confirmation);
        }
        self.bytes += batch.bytes.len();
        self.gathering.push(batch_number, batch, now);
        batch_number
    }

    /// Returns true if no batch is waiting for the next object.
    pub fn is_closed_up(&self) -> bool {
        self.gathering.is_empty()
    }

    /// Returns the time at which the next object must be closed. Returns `None` if no batch is waiting, or if no upload
    /// slot is idle. While the broker stops, an object is due at once, even without an idle slot.
    pub fn due(&self, now: Duration) -> Option<Close> {
        if self.gathering.is_empty() {
            return None;
        }
        let uploads = self.objects.iter().filter(|object| object.upload == Upload::UnderWay).count();
        if self.hurries { Some(Close::Now) } else { self.rotation.close(self.gathering.active(), uploads, now) }
    }

    /// Sets the number of upload slots.
    pub fn set_slots(&mut self, slots: usize) {
        self.rotation.set_slots(slots);
    }

    /// Closes the next object: puts gathered batches into it, and queues it.
    pub fn close(&mut self, now: Duration) -> ClosedObject {
        self.rotation.closed(self.gathering.active().ends_transaction, now);
        let mut gathered = self.gathering.take(self.rotation.bytes_max());
        // The sort is stable, so batches of one producer stay in the order of their admission.
        gathered.sort_by_key(|gathered| gathered.batch.partition);
        let number = self.next_object_number;
        self.next_object_number += 1;
        let (mut position, mut batches, mut parts, mut rooms) = (0, Vec::new(), Vec::new(), Vec::new());
        for gathered in gathered {
            let (batch_number, batch) = (gathered.batch_number, gathered.batch);
            let NewBatch { partition, bytes, stamp, max_timestamp, kind, confirmation, room, .. } = batch;
            // A batch is never larger than a request, whose length has 31 bits.
            let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let placed = ObjectBatch { partition, position, size, stamp, max_timestamp, kind, confirmation };
            batches.push((batch_number, placed));
            position += size;
            parts.push(bytes);
            rooms.extend(room);
        }
        let bytes = parts.iter().map(Bytes::len).sum();
        self.objects.push_back(QueuedObject {
            number,
            batches,
            bytes,
            upload: Upload::UnderWay,
            _room: MemoryPermit::of_object(rooms),
        });
        ClosedObject { number, parts }
    }

    /// Records the end of an upload. `upload` has the id of the object `number` in the store, or is an error if the
    /// upload has failed.
    pub fn uploaded(&mut self, number: u64, upload: Result<ObjectId, ()>) {
        let object = self.objects.iter_mut().find(|object| object.number == number);
        if let Some(object) = object.filter(|object| object.upload == Upload::UnderWay) {
            object.upload = upload.map_or(Upload::Failed, Upload::Done);
        }
    }

    /// Begins the next commit and returns its objects. Returns no objects if a commit is already under way.
    ///
    /// Removes the objects at the head of the queue whose uploads have failed. Also returns the outcomes of their
    /// batches, and of later batches that become dead with them.
    pub fn next_commit(&mut self, now: Duration) -> (Vec<UploadedObject>, Vec<(BatchNumber, CommitResult)>) {
        let (mut commit, mut outcomes, mut batches) = (Vec::new(), Vec::new(), 0);
        if self.in_commit > 0 {
            return (commit, outcomes);
        }
        while let Some(object) = self.objects.get(self.in_commit) {
            let id = match object.upload {
                Upload::UnderWay => break,
                Upload::Failed if self.in_commit > 0 => break,
                Upload::Failed => {
                    self.fail_first(&mut outcomes, now);
                    continue;
                }
                Upload::Tried(id) => id,
                Upload::Done(id) => {
                    self.forget_dead(self.in_commit);
                    if self.lacks_confirmation(self.in_commit) {
                        break;
                    }
                    id
                }
            };
            let object = &mut self.objects[self.in_commit];
            if object.batches.is_empty() {
                let bytes = object.bytes;
                self.bytes -= bytes;
                self.objects.remove(self.in_commit);
                continue;
            }
            batches += object.batches.len();
            if batches > COMMIT_BATCHES_MAX && !commit.is_empty() {
                break;
            }
            object.upload = Upload::Tried(id);
            commit.push(UploadedObject { id, batches: object.batches.iter().map(|(_, batch)| *batch).collect() });
            self.in_commit += 1;
        }
        (commit, outcomes)
    }

    /// Applies the verdicts on a commit, one for each batch of each object. Returns the outcome of each batch, and of
    /// the dead batches behind refused ones.
    pub fn committed(&mut self, verdicts: &[Vec<CommitVerdict>], now: Duration) -> Vec<(BatchNumber, CommitResult)> {
        let mut outcomes = Vec::new();
        let objects: Vec<QueuedObject> = self.objects.drain(..std::mem::take(&mut self.in_commit)).collect();
        let answered = objects.iter().zip(verdicts).flat_map(|(object, of)| object.batches.iter().zip(of));
        let mut dead = Vec::new();
        for ((batch_number, batch), verdict) in answered {
            let mut admission = match batch.kind.is_marker() {
                true => None,
                false => Some(self.admission.entry(batch.partition).or_default()),
            };
            let outcome = match *verdict {
                CommitVerdict::Appended { base_offset } => Ok(Committed { base_offset, timestamp: None }),
                CommitVerdict::Duplicate { base_offset, timestamp } => {
                    Ok(Committed { base_offset, timestamp: Some(timestamp) })
                }
                CommitVerdict::Refused(why) => {
                    let behind = admission.as_mut().map(|of| of.failed(&batch.stamp, *batch_number, why.code(), now));
                    dead.extend(behind.unwrap_or_default());
                    Err(error_of(why))
                }
            };
            if let (Some(admission), Ok(_)) = (admission, &outcome) {
                admission.committed(&batch.stamp, *batch_number);
            }
            outcomes.push((*batch_number, outcome));
        }
        self.bytes -= objects.iter().map(|object| object.bytes).sum::<usize>();
        if !dead.is_empty() {
            // Each batch of this commit has its own verdict, so dead batches of this commit already have an outcome.
            let own: HashSet<_> = outcomes.iter().map(|(batch_number, _)| *batch_number).collect();
            dead.retain(|dead| !own.contains(dead));
        }
        self.drop_dead(&dead, &mut outcomes);
        self.admission.retain(|_, admission| !admission.is_empty());
        outcomes
    }

    /// Records that the outcome of a commit is unknown. [`CommitQueue::next_commit`] then repeats the commit.
    pub fn commit_unknown(&mut self) {
        self.in_commit = 0;
    }

    /// Removes the first object, because its upload has failed. Fails its batches and the later batches of their
    /// producers.
    fn fail_first(&mut self, outcomes: &mut Vec<(BatchNumber, CommitResult)>, now: Duration) {
        let Some(object) = self.objects.pop_front() else { return };
        self.bytes -= object.bytes;
        let mut dead = BTreeSet::new();
        for (batch_number, batch) in &object.batches {
            if batch.kind.is_marker() {
                outcomes.push((*batch_number, Err(AppendError::Storage)));
                continue;
            }
            let admission = self.admission.entry(batch.partition).or_default();
            if admission.is_pending(&batch.stamp, *batch_number) || !batch.is_sequenced() {
                dead.extend(admission.failed(&batch.stamp, *batch_number, ErrorCode::KAFKA_STORAGE_ERROR, now));
                outcomes.push((*batch_number, Err(AppendError::Storage)));
            } else if dead.remove(batch_number) {
                outcomes.push((*batch_number, Err(AppendError::Storage)));
            }
        }
        self.drop_dead(&dead.into_iter().collect::<Vec<_>>(), outcomes);
        self.admission.retain(|_, admission| !admission.is_empty());
    }

    /// Adds the outcomes of dead batches to `outcomes`. Removes these batches if they are still gathered for the next
    /// object.
    fn drop_dead(&mut self, dead: &[BatchNumber], outcomes: &mut Vec<(BatchNumber, CommitResult)>) {
        if dead.is_empty() {
            return;
        }
        outcomes.extend(dead.iter().map(|batch_number| (*batch_number, Err(AppendError::Again))));
        self.bytes -= self.gathering.drop_dead(&dead.iter().copied().collect());
    }

    /// Removes the dead batches from the object at `at`. Not called after an attempt to commit the object.
    fn forget_dead(&mut self, at: usize) {
        #[cfg(test)]
        if self.faults.keeps_the_dead {
            return;
        }
        let admission = &self.admission;
        self.objects[at].batches.retain(|(batch_number, batch)| {
            let of_partition = admission.get(&batch.partition);
            !batch.is_sequenced() || of_partition.is_some_and(|of| of.is_pending(&batch.stamp, *batch_number))
        });
    }
}

/// Returns the error for a batch that the index has refused.
fn error_of(refusal: Refusal) -> AppendError {
    match refusal {
        Refusal::Sequence(why) => AppendError::Sequence(why),
        Refusal::PartitionGone => AppendError::Deleted,
        // In these cases the client must send the batch again, in order.
        Refusal::ObjectGone | Refusal::Behind | Refusal::Unverified | Refusal::Earlier => AppendError::Again,
    }
}

#[cfg(test)]
mod tests;
