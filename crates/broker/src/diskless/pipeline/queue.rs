//! Queue of admitted batches without an answer, from the object being filled to the objects being committed.
//!
//! An object is closed once it is due and an upload slot is idle. Several objects are uploaded at a time. Uploaded
//! objects at the head of the queue are committed together, one commit at a time. If the outcome of a commit is
//! unknown, its objects are committed again with the same batches, until the outcome is known.
//!
//! [`Gathering`] decides which batches go first, [`words`] holds back batches whose transaction is not confirmed. Not
//! here: time, I/O and the decision of a commit.
//!
//! Invariants: objects are committed in the order of their closing; no batch is acknowledged before its commit is
//! known. Once a batch has failed, the pending batches that its producer sent after it to the partition are dead. A
//! dead batch is not committed, unless its commit was attempted before.

mod words;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use fullbore_rules::commit::admission::{Admission, Freshness, Opening, PartitionAdmission, TicketId};
use fullbore_rules::commit::rotation::{Close, OBJECT_BATCHES_MAX, Rotation, RotationSettings};
use fullbore_rules::commit::{CommitVerdict, DisklessPartitionId, ObjectBatch, ObjectId, PartitionState, Refusal};
use fullbore_rules::sequence::{SequenceRefusal, Stamp};
use fullbore_wire::ErrorCode;

use super::gathering::{Gathering, NewBatch};
use crate::diskless::index::UploadedObject;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::memory_budget::MemoryPermit;
use words::UnconfirmedBatches;

#[cfg(test)]
pub use words::COMMITS_UNCONFIRMED;
pub use words::UnconfirmedBatch;

/// Most batches of a commit; an object has at most half as many. Without this limit, the batches that queue up while
/// the index is down could make a commit that exceeds its time limit at each attempt.
const COMMIT_BATCHES_MAX: usize = 2 * OBJECT_BATCHES_MAX;

/// Outcome of an admitted batch. [`AppendError::Again`] means that the batch is not written, in most cases because an
/// earlier batch of its producer has failed. The client must then send it again, in order.
pub type CommitResult = Result<Committed, AppendError>;

/// Offset of a committed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Timestamp of the first append in ms, if the batch is a duplicate.
    pub timestamp: Option<i64>,
}

/// Closed object, with its number in the queue.
#[derive(Clone, Debug)]
pub struct ClosedObject {
    pub number: u64,
    /// Bytes of the object, one batch after the other.
    pub parts: Vec<Bytes>,
}

#[derive(Debug)]
struct QueuedObject {
    number: u64,
    /// Batches in their order in the object.
    batches: Vec<(TicketId, ObjectBatch)>,
    bytes: usize,
    upload: Upload,
    /// Memory of the batches.
    _room: Option<MemoryPermit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upload {
    UnderWay,
    Failed,
    Done(ObjectId),
    /// Object in the store whose commit was attempted, or is under way.
    Tried(ObjectId),
}

/// Batches that are admitted and not answered, and the objects that contain them.
#[derive(Debug)]
pub struct CommitQueue {
    gathering: Gathering,
    rotation: Rotation,
    objects: VecDeque<QueuedObject>,
    admission: HashMap<DisklessPartitionId, PartitionAdmission>,
    /// Bytes that are admitted and not answered.
    bytes: usize,
    next_ticket: TicketId,
    next_number: u64,
    /// Number of objects in the commit under way.
    in_commit: usize,
    unconfirmed: UnconfirmedBatches,
    /// True if every object is closed at once.
    hurries: bool,
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
            next_ticket: 0,
            next_number: 0,
            in_commit: 0,
            unconfirmed: UnconfirmedBatches::default(),
            hurries: false,
        }
    }

    /// Closes every object at once from now on.
    pub fn hurry(&mut self) {
        self.hurries = true;
    }

    /// Notes that a batch is refused before its admission; see [`PartitionAdmission::turned_away`].
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

    /// Returns the refusal of a batch that is known to be out of order.
    pub fn of_early(&self, partition: DisklessPartitionId, stamp: &Stamp, now: Duration) -> SequenceRefusal {
        let admission = self.admission.get(&partition);
        admission.map_or(SequenceRefusal::OutOfOrderSequence, |admission| admission.of_early(stamp, now))
    }

    /// Returns the bytes that are admitted and not answered.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of the first object in the queue; of the next one to be closed if there is none.
    pub fn first_number(&self) -> u64 {
        self.objects.front().map_or(self.next_number, |object| object.number)
    }

    /// Decides on a batch, given the known committed state of its partition; see [`PartitionAdmission::check`].
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

    /// Returns the number of sequences missing before a batch; see [`PartitionAdmission::ahead`].
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

    /// Returns true if the newest pending batch of a batch's producer is of the same epoch.
    pub fn has_pending_of_epoch(&self, partition: DisklessPartitionId, stamp: &Stamp) -> bool {
        self.admission.get(&partition).is_some_and(|admission| admission.has_pending_of_epoch(stamp))
    }

    /// Returns true if any batch of a producer is pending in a partition.
    pub fn has_pending(&self, partition: DisklessPartitionId, producer_id: i64) -> bool {
        self.admission.get(&partition).is_some_and(|admission| admission.has_pending(producer_id))
    }

    /// Returns the relation of a batch to the open transactions; see [`PartitionAdmission::transaction_of`].
    pub fn transaction_of(&self, partition: DisklessPartitionId, stamp: &Stamp, committed: &PartitionState) -> Opening {
        let nothing = PartitionAdmission::default();
        self.admission.get(&partition).unwrap_or(&nothing).transaction_of(stamp, committed)
    }

    /// Queues a batch that [`CommitQueue::check`] has admitted, or a marker.
    pub fn admit(&mut self, batch: NewBatch, now: Duration) -> TicketId {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if !batch.kind.is_marker() {
            let admission = self.admission.entry(batch.partition).or_default();
            admission.admitted(&batch.stamp, ticket, batch.verified);
        }
        self.bytes += batch.bytes.len();
        self.gathering.push(ticket, batch, now);
        ticket
    }

    /// Returns true if no batch waits to be closed into an object.
    pub fn is_closed_up(&self) -> bool {
        self.gathering.is_empty()
    }

    /// Returns the time at which to close the object being filled. `None` while it is empty, and while no upload slot
    /// is idle unless the broker stops.
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

    /// Closes the object being filled.
    pub fn close(&mut self, now: Duration) -> ClosedObject {
        self.rotation.closed(self.gathering.active().ends_transaction, now);
        let mut gathered = self.gathering.take(self.rotation.bytes_max());
        // A stable sort: batches of a producer stay in the order of their admission.
        gathered.sort_by_key(|gathered| gathered.batch.partition);
        let number = self.next_number;
        self.next_number += 1;
        let (mut position, mut batches, mut parts, mut rooms) = (0, Vec::new(), Vec::new(), Vec::new());
        for gathered in gathered {
            let (ticket, batch) = (gathered.ticket, gathered.batch);
            let NewBatch { partition, bytes, stamp, max_timestamp, kind, verified, room, .. } = batch;
            // No batch is larger than a request, whose length has 31 bits.
            let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let placed = ObjectBatch { partition, position, size, stamp, max_timestamp, kind, verified };
            batches.push((ticket, placed));
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

    /// Notes the end of an upload: the object `number` is in the store, or its upload has failed.
    pub fn uploaded(&mut self, number: u64, upload: Result<ObjectId, ()>) {
        let object = self.objects.iter_mut().find(|object| object.number == number);
        if let Some(object) = object.filter(|object| object.upload == Upload::UnderWay) {
            object.upload = upload.map_or(Upload::Failed, Upload::Done);
        }
    }

    /// Begins the next commit, and returns its objects; none while a commit is under way. Also removes the objects at
    /// the head of the queue whose uploads failed: returns the outcomes of their batches, and of the batches that are
    /// dead as a consequence.
    pub fn next_commit(&mut self, now: Duration) -> (Vec<UploadedObject>, Vec<(TicketId, CommitResult)>) {
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
                    if self.lacks_word(self.in_commit) {
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

    /// Notes a commit with a verdict for each batch of each object. Returns the outcome of each batch, and of the dead
    /// batches behind refused ones.
    pub fn committed(&mut self, verdicts: &[Vec<CommitVerdict>], now: Duration) -> Vec<(TicketId, CommitResult)> {
        let mut outcomes = Vec::new();
        let objects: Vec<QueuedObject> = self.objects.drain(..std::mem::take(&mut self.in_commit)).collect();
        let answered = objects.iter().zip(verdicts).flat_map(|(object, of)| object.batches.iter().zip(of));
        let mut dead = Vec::new();
        for ((ticket, batch), verdict) in answered {
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
                    let behind = admission.as_mut().map(|of| of.failed(&batch.stamp, *ticket, why.code(), now));
                    dead.extend(behind.unwrap_or_default());
                    Err(error_of(why))
                }
            };
            if let (Some(admission), Ok(_)) = (admission, &outcome) {
                admission.committed(&batch.stamp, *ticket);
            }
            outcomes.push((*ticket, outcome));
        }
        self.bytes -= objects.iter().map(|object| object.bytes).sum::<usize>();
        if !dead.is_empty() {
            // Batches of the same commit have verdicts of their own.
            let own: HashSet<_> = outcomes.iter().map(|(ticket, _)| *ticket).collect();
            dead.retain(|dead| !own.contains(dead));
        }
        self.drop_dead(&dead, &mut outcomes);
        self.admission.retain(|_, admission| !admission.is_empty());
        outcomes
    }

    /// Notes that the outcome of a commit is unknown: [`CommitQueue::next_commit`] repeats the commit.
    pub fn commit_unknown(&mut self) {
        self.in_commit = 0;
    }

    /// Fails the batches of the first object, whose upload has failed, and the later batches of their producers.
    fn fail_first(&mut self, outcomes: &mut Vec<(TicketId, CommitResult)>, now: Duration) {
        let Some(object) = self.objects.pop_front() else { return };
        self.bytes -= object.bytes;
        let mut dead = BTreeSet::new();
        for (ticket, batch) in &object.batches {
            if batch.kind.is_marker() {
                outcomes.push((*ticket, Err(AppendError::Storage)));
                continue;
            }
            let admission = self.admission.entry(batch.partition).or_default();
            if admission.is_pending(&batch.stamp, *ticket) || !batch.is_sequenced() {
                dead.extend(admission.failed(&batch.stamp, *ticket, ErrorCode::KAFKA_STORAGE_ERROR, now));
                outcomes.push((*ticket, Err(AppendError::Storage)));
            } else if dead.remove(ticket) {
                outcomes.push((*ticket, Err(AppendError::Storage)));
            }
        }
        self.drop_dead(&dead.into_iter().collect::<Vec<_>>(), outcomes);
        self.admission.retain(|_, admission| !admission.is_empty());
    }

    /// Adds the outcomes of dead batches to `outcomes`, and removes these batches from the object being filled.
    fn drop_dead(&mut self, dead: &[TicketId], outcomes: &mut Vec<(TicketId, CommitResult)>) {
        if dead.is_empty() {
            return;
        }
        outcomes.extend(dead.iter().map(|ticket| (*ticket, Err(AppendError::Again))));
        self.bytes -= self.gathering.drop_dead(&dead.iter().copied().collect());
    }

    /// Removes the dead batches from an object whose commit was never attempted.
    fn forget_dead(&mut self, at: usize) {
        #[cfg(test)]
        if KEEPS_THE_DEAD.get() {
            return;
        }
        let admission = &self.admission;
        self.objects[at].batches.retain(|(ticket, batch)| {
            let of_partition = admission.get(&batch.partition);
            !batch.is_sequenced() || of_partition.is_some_and(|of| of.is_pending(&batch.stamp, *ticket))
        });
    }
}

#[cfg(test)]
thread_local! {
    /// Mutation: dead batches stay in their object.
    pub static KEEPS_THE_DEAD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns the error for a batch that the index has refused.
fn error_of(refusal: Refusal) -> AppendError {
    match refusal {
        Refusal::Sequence(why) => AppendError::Sequence(why),
        Refusal::PartitionGone => AppendError::Deleted,
        // The client sends the batch again, in order.
        Refusal::ObjectGone | Refusal::Behind | Refusal::Unverified | Refusal::Earlier => AppendError::Again,
    }
}

#[cfg(test)]
mod tests {
    use fullbore_rules::commit::BatchKind;
    use fullbore_rules::sequence::NO_PRODUCER_ID;

    use super::*;
    use fullbore_log::partition::memory_budget::ProducerKey;

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

    fn batch(partition: DisklessPartitionId, producer_id: i64, base_sequence: i32) -> NewBatch {
        let stamp = Stamp { producer_id, producer_epoch: 0, base_sequence, record_count: 1 };
        let (producer, bytes) = (ProducerKey::Id(producer_id), Bytes::from(vec![producer_id as u8; 10]));
        let kind = BatchKind::Plain;
        NewBatch {
            partition,
            producer,
            bytes,
            stamp,
            max_timestamp: 0,
            kind,
            verified: None,
            ends_transaction: false,
            room: None,
        }
    }

    /// Admits batches, and closes their object.
    fn closed(queue: &mut CommitQueue, batches: Vec<NewBatch>) -> (ClosedObject, Vec<TicketId>) {
        let tickets = batches.into_iter().map(|batch| queue.admit(batch, AT)).collect();
        (queue.close(AT), tickets)
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
        let (first, tickets) = closed(&mut queue, vec![batch(2, 7, 0), batch(1, 8, 0), batch(2, 7, 1)]);
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
        let expected = [(tickets[1], 5), (tickets[0], 0), (tickets[2], 1), (later[0], 2)];
        assert_eq!(outcomes, expected.map(|(ticket, offset)| (ticket, committed(offset))));
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
        // The client sends the failed batch again: no other batch of its producer is pending.
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
        let not_uploaded = failing.iter().map(|ticket| (*ticket, Err(AppendError::Storage)));
        assert_eq!(outcomes, not_uploaded.chain([(dead[0], Err(AppendError::Again))]).collect::<Vec<_>>());
        assert_eq!(commit[0].batches.len(), 1);
        queue.committed(&[vec![appended(1)]], AT);
        // The note of the failed batch is still kept.
        assert_eq!((queue.bytes(), queue.admission.len()), (0, 1));
        queue.forget(1);
        assert!(queue.admission.is_empty());
    }
}
