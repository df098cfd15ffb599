//! The queue of admitted batches that have no answer yet. It includes the batches of the object that is being filled,
//! and the objects that are being uploaded or committed.
//!
//! An object is closed when it is due and an upload slot is idle. Several objects are uploaded at a time. The uploaded
//! objects at the head of the queue are committed together, one commit at a time. If the outcome of a commit is
//! unknown, its objects are committed again with the same batches until it is known.
//!
//! [`Gathering`] decides which batches go into the next object, and [`words`] holds back batches whose transaction is
//! not confirmed. The queue has no clock, does no I/O, and does not decide on commits.
//!
//! Invariants: objects are committed in the order in which they were closed. No batch is acknowledged before the
//! outcome of its commit is known. If a batch fails, the pending batches that its producer sent after it to the
//! partition are dead. A dead batch is never committed, unless its commit was already attempted.

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

/// Maximum number of batches in a commit, which is twice that of an object. Batches queue up while the index is down.
/// Without this limit, their commit could exceed its time limit at each attempt.
const COMMIT_BATCHES_MAX: usize = 2 * OBJECT_BATCHES_MAX;

/// The outcome of an admitted batch. [`AppendError::Again`] means that the batch was not written, usually because an
/// earlier batch of its producer has failed. The client must then send it again, in order.
pub type CommitResult = Result<Committed, AppendError>;

/// The offset of a committed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The offset of the first record.
    pub base_offset: i64,
    /// The timestamp of the original append in ms, if the batch is a duplicate.
    pub timestamp: Option<i64>,
}

/// A closed object with its number in the queue.
#[derive(Clone, Debug)]
pub struct ClosedObject {
    pub number: u64,
    /// The bytes of the object, in one part per batch.
    pub parts: Vec<Bytes>,
}

#[derive(Debug)]
struct QueuedObject {
    number: u64,
    /// The batches in the order in which the object has them.
    batches: Vec<(TicketId, ObjectBatch)>,
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
    /// The object is in the store, and its commit was attempted or is under way.
    Tried(ObjectId),
}

/// The batches that are admitted but not answered yet, and the objects that contain them.
#[derive(Debug)]
pub struct CommitQueue {
    gathering: Gathering,
    rotation: Rotation,
    objects: VecDeque<QueuedObject>,
    admission: HashMap<DisklessPartitionId, PartitionAdmission>,
    /// Bytes of the batches that are admitted but not answered yet.
    bytes: usize,
    next_ticket: TicketId,
    next_number: u64,
    /// How many objects the current commit has.
    in_commit: usize,
    unconfirmed: UnconfirmedBatches,
    /// True if every object is closed at once, because the broker stops.
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

    /// From now on, closes every object at once.
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

    /// Returns the error for a batch that is known to be out of order.
    pub fn of_early(&self, partition: DisklessPartitionId, stamp: &Stamp, now: Duration) -> SequenceRefusal {
        let admission = self.admission.get(&partition);
        admission.map_or(SequenceRefusal::OutOfOrderSequence, |admission| admission.of_early(stamp, now))
    }

    /// Returns how many bytes are admitted but not answered yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of the first object in the queue. If there is none, returns the number that the next closed
    /// object will have.
    pub fn first_number(&self) -> u64 {
        self.objects.front().map_or(self.next_number, |object| object.number)
    }

    /// Decides on a batch by the known committed state of its partition; see [`PartitionAdmission::check`].
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

    /// Returns how many sequences are missing before a batch; see [`PartitionAdmission::ahead`].
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

    /// Returns true if no batch is waiting for the next object.
    pub fn is_closed_up(&self) -> bool {
        self.gathering.is_empty()
    }

    /// Returns the time at which the object that is being filled must be closed. Returns `None` if it is empty, or if
    /// no upload slot is idle. If the broker stops, slots do not matter.
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

    /// Closes the object that is being filled.
    pub fn close(&mut self, now: Duration) -> ClosedObject {
        self.rotation.closed(self.gathering.active().ends_transaction, now);
        let mut gathered = self.gathering.take(self.rotation.bytes_max());
        // The sort is stable, so the batches of a producer stay in the order of their admission.
        gathered.sort_by_key(|gathered| gathered.batch.partition);
        let number = self.next_number;
        self.next_number += 1;
        let (mut position, mut batches, mut parts, mut rooms) = (0, Vec::new(), Vec::new(), Vec::new());
        for gathered in gathered {
            let (ticket, batch) = (gathered.ticket, gathered.batch);
            let NewBatch { partition, bytes, stamp, max_timestamp, kind, verified, room, .. } = batch;
            // A batch is never larger than a request, whose length has 31 bits.
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

    /// Records the end of an upload. Either the object `number` is now in the store, or its upload has failed.
    pub fn uploaded(&mut self, number: u64, upload: Result<ObjectId, ()>) {
        let object = self.objects.iter_mut().find(|object| object.number == number);
        if let Some(object) = object.filter(|object| object.upload == Upload::UnderWay) {
            object.upload = upload.map_or(Upload::Failed, Upload::Done);
        }
    }

    /// Begins the next commit and returns its objects, or none if a commit is already under way.
    ///
    /// Objects at the head of the queue whose uploads have failed are removed. The outcomes of their batches are
    /// returned, and those of the later batches that are dead as a consequence.
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

    /// Applies the verdicts on a commit, one for each batch of each object. Returns the outcome of each batch, and of
    /// the dead batches behind refused ones.
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
            // The batches of the same commit have their own verdicts.
            let own: HashSet<_> = outcomes.iter().map(|(ticket, _)| *ticket).collect();
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

    /// Fails the batches of the first object, because its upload has failed, and also the later batches of their
    /// producers.
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

    /// Adds the outcomes of dead batches to `outcomes`, and removes these batches from the object that is being filled.
    fn drop_dead(&mut self, dead: &[TicketId], outcomes: &mut Vec<(TicketId, CommitResult)>) {
        if dead.is_empty() {
            return;
        }
        outcomes.extend(dead.iter().map(|ticket| (*ticket, Err(AppendError::Again))));
        self.bytes -= self.gathering.drop_dead(&dead.iter().copied().collect());
    }

    /// Removes the dead batches from an object, unless its commit was already attempted.
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
    /// Mutation: dead batches stay in their objects.
    pub static KEEPS_THE_DEAD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns the error for a batch that the index has refused.
fn error_of(refusal: Refusal) -> AppendError {
    match refusal {
        Refusal::Sequence(why) => AppendError::Sequence(why),
        Refusal::PartitionGone => AppendError::Deleted,
        // In these cases, the client sends the batch again, in order.
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

    /// Admits batches and closes an object with all of them.
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
        let not_uploaded = failing.iter().map(|ticket| (*ticket, Err(AppendError::Storage)));
        assert_eq!(outcomes, not_uploaded.chain([(dead[0], Err(AppendError::Again))]).collect::<Vec<_>>());
        assert_eq!(commit[0].batches.len(), 1);
        queue.committed(&[vec![appended(1)]], AT);
        // The failed batch is still remembered.
        assert_eq!((queue.bytes(), queue.admission.len()), (0, 1));
        queue.forget(1);
        assert!(queue.admission.is_empty());
    }
}
