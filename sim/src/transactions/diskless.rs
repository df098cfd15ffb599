//! The diskless partition. Every broker gathers batches and markers into objects, uploads them to the store, and
//! commits them to the shared index.
//!
//! `fullbore_rules::commit` decides which batches are admitted and committed. Objects, outages of the store and lost
//! responses are modelled on `pipeline/` of the crate `diskless`.
//!
//! Invariant: the index's log contains the committed batches in the order of their offsets.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use super::broker::Waiter;
use super::entry::{BrokerId, DISKLESS, Entry, Payload};
use super::fault::Fault;
use super::message::{Answer, ClientRequest, Marking, Message, Request, Write};
use super::replica::{PRODUCERS_MAX, Verification};
use super::world::World;
use fullbore_rules::commit::admission::{Admission, BatchNumber, Freshness, Opening, PartitionAdmission};
use fullbore_rules::commit::{
    BatchKind, BatchRun, CommitState, CommitVerdict, Confirmation, DisklessPartitionId, FinishedObject, ObjectBatch,
    ObjectId, ObjectState, PartitionState, Refusal, commit,
};
use fullbore_rules::sequence::{AbortedTransaction, Marker, Producers, SequenceRefusal, Stamp};
use fullbore_wire::ErrorCode;

/// The id that the partition has in the index.
const NUMBER: DisklessPartitionId = 1;
/// How many of each producer's last batches the index remembers.
const WINDOW: usize = 5;

/// The index, which all brokers share.
#[derive(Debug)]
pub struct Index {
    pub state: PartitionState,
    pub log: Vec<Entry>,
    pub aborted: Vec<AbortedTransaction>,
    /// The extents of each committed object.
    objects: BTreeMap<ObjectId, Vec<BatchRun>>,
    next_object: ObjectId,
}

impl Default for Index {
    fn default() -> Index {
        let mut state = PartitionState::new(WINDOW);
        state.producers = Producers::bounded(PRODUCERS_MAX);
        Index { state, log: Vec::new(), aborted: Vec::new(), objects: BTreeMap::new(), next_object: 0 }
    }
}

impl Index {
    /// Returns the last stable offset, up to which consumers at read_committed read.
    pub fn last_stable(&self, fault: Option<Fault>) -> usize {
        match fault {
            Some(Fault::StableIsIndexEnd) => self.log.len(),
            _ => usize::try_from(self.state.last_stable_offset()).unwrap_or(0),
        }
    }

    /// Commits an object. Returns the verdict on each batch, and the entries that the log has gained.
    fn commit(&mut self, object: &Object, now: i64) -> (Vec<CommitVerdict>, Vec<Entry>) {
        let state = match self.objects.get(&object.id) {
            Some(runs) => ObjectState::Live(runs.clone()),
            None => ObjectState::Registered,
        };
        let is_new = state == ObjectState::Registered;
        let batches = object.batches.iter().map(|queued| queued.batch).collect();
        let mut partitions = HashMap::from([(NUMBER, self.state.clone())]);
        let mut commit_state = CommitState { partitions: &mut partitions, deleted: &HashMap::new(), now_ms: now };
        let decided = commit(&mut commit_state, &[FinishedObject { id: object.id, state, batches }]);
        let verdicts = decided.verdicts.into_iter().flatten().collect::<Vec<_>>();
        if !is_new {
            return (verdicts, Vec::new());
        }
        self.state = partitions.remove(&NUMBER).expect("nothing deletes it");
        self.aborted.extend(decided.aborted.iter().map(|of| of.transaction));
        self.objects.insert(object.id, decided.runs);
        let is_appended = |verdict: &CommitVerdict| matches!(verdict, CommitVerdict::Appended { .. });
        let appended = object.batches.iter().zip(&verdicts).filter(|(_, verdict)| is_appended(verdict));
        let appended: Vec<_> = appended.map(|(queued, _)| queued.entry.clone()).collect();
        self.log.extend(appended.iter().cloned());
        assert_eq!(self.state.next_offset, self.log.len() as i64, "offsets are dense");
        (verdicts, appended)
    }
}

/// Batches and markers that a broker has admitted and not responded to.
#[derive(Debug)]
pub struct Pipeline {
    /// The partition's state when the broker last read the index.
    pub known: PartitionState,
    admission: PartitionAdmission,
    gathering: Vec<Queued>,
    objects: VecDeque<Object>,
    next_batch_number: BatchNumber,
}

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline {
            known: PartitionState::new(WINDOW),
            admission: PartitionAdmission::default(),
            gathering: Vec::new(),
            objects: VecDeque::new(),
            next_batch_number: 0,
        }
    }
}

#[derive(Debug)]
struct Queued {
    batch_number: BatchNumber,
    batch: ObjectBatch,
    entry: Entry,
    /// The sender that waits for the response. `None` for a marker that aborts a transaction without a transactional
    /// id.
    whom: Option<Waiter>,
}

#[derive(Debug)]
struct Object {
    id: ObjectId,
    batches: Vec<Queued>,
    upload: Upload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upload {
    UnderWay,
    Failed,
    Done,
    /// The broker has tried to commit the object.
    Tried,
}

/// Outcome of offering a batch to a broker.
enum Taken {
    /// The batch, or an earlier copy of it, is queued in an object.
    Pending,
    /// The coordinator must verify the batch.
    Unverified,
    Answered(Result<(), ErrorCode>),
}

impl Pipeline {
    /// Adds a batch to the next object.
    fn queue(&mut self, batch: ObjectBatch, entry: Entry, whom: Option<Waiter>) {
        let batch_number = self.next_batch_number;
        self.next_batch_number += 1;
        if batch.is_sequenced() {
            self.admission.admitted(&batch.stamp, batch_number, batch.confirmation);
        }
        self.gathering.push(Queued { batch_number, batch, entry, whom });
    }

    fn queued(&self) -> impl Iterator<Item = &Queued> {
        self.objects.iter().flat_map(|object| &object.batches).chain(&self.gathering)
    }

    fn close(&mut self, id: ObjectId) {
        let mut batches = std::mem::take(&mut self.gathering);
        (0..).zip(&mut batches).for_each(|(position, queued)| queued.batch.position = position);
        self.objects.push_back(Object { id, batches, upload: Upload::UnderWay });
    }

    /// Removes a refused batch from the admission. Later batches of its producer are refused too, and their clients
    /// must resend them, so adds these batches to `dead`.
    fn failed(&mut self, queued: &Queued, code: ErrorCode, now: Duration, dead: &mut BTreeSet<BatchNumber>) {
        if queued.batch.is_sequenced() {
            dead.extend(self.admission.failed(&queued.batch.stamp, queued.batch_number, code, now));
        }
    }

    /// Removes the batches `dead` from all objects that the broker has not tried to commit. Returns these batches.
    fn drop_dead(&mut self, dead: &BTreeSet<BatchNumber>) -> Vec<Queued> {
        let mut dropped = Vec::new();
        let untried = self.objects.iter_mut().filter(|object| object.upload != Upload::Tried);
        for batches in untried.map(|object| &mut object.batches).chain([&mut self.gathering]) {
            dropped.extend(batches.extract_if(.., |queued| dead.contains(&queued.batch_number)));
        }
        dropped
    }
}

impl World {
    /// Handles a batch that has arrived at a broker. `verification` is the coordinator's confirmation, if there is one.
    pub fn write_diskless(
        &mut self,
        broker: BrokerId,
        requested: ClientRequest,
        verification: Verification,
    ) -> Result<(), String> {
        let Request::Write(write) = requested.request.clone() else { return Ok(()) };
        let answer = match self.take(broker, &requested, &write, verification) {
            Taken::Pending => return Ok(()),
            Taken::Unverified => {
                self.park(broker, requested, &write);
                return Ok(());
            }
            Taken::Answered(answer) => answer,
        };
        self.send(Message::Answer(requested, Answer::Written(answer)));
        Ok(())
    }

    fn take(
        &mut self,
        broker: BrokerId,
        requested: &ClientRequest,
        write: &Write,
        verification: Verification,
    ) -> Taken {
        let (now, stamp) = (self.clock(), write.stamp);
        let is_transactional = !matches!(write.payload, Payload::Plain);
        // If `receives` is true, the broker refreshes before it admits a batch to a transaction that is already open.
        let receives = self.is_quiet || self.random.one_in(2);
        let pipeline = &mut self.brokers[broker].pipeline;
        for freshness in [Freshness::MayBeStale, Freshness::Current] {
            let is_current = freshness == Freshness::Current;
            if is_current {
                pipeline.known = self.index.state.clone();
            }
            let admission = match pipeline.admission.ahead(&stamp, &pipeline.known) {
                1.. if !is_current => Admission::Ask,
                1.. => Admission::Refuse(SequenceRefusal::OutOfOrderSequence),
                _ => pipeline.admission.check(&stamp, &pipeline.known, freshness, now),
            };
            match admission {
                Admission::Ask => continue,
                Admission::Refuse(why) => return Taken::Answered(Err(why.code())),
                Admission::Duplicate { .. } => return Taken::Answered(Ok(())),
                Admission::Shares(_) => return Taken::Pending,
                Admission::Admit => {}
            }
            let mut confirmation = verification.confirmation();
            if is_transactional {
                match pipeline.admission.transaction_of(&stamp, &pipeline.known) {
                    Opening::Open { confirmation: None } if !is_current && receives => continue,
                    Opening::Open { confirmation: of } => confirmation = confirmation.or(of),
                    Opening::Unverified if confirmation.is_none() => return Taken::Unverified,
                    Opening::Unverified => {}
                }
            }
            let kind = if is_transactional { BatchKind::Transactional } else { BatchKind::Plain };
            let batch = placed(stamp, kind, confirmation);
            let entry = Entry { leader_epoch: 0, stamp, is_transactional, payload: write.payload.clone() };
            pipeline.queue(batch, entry, Some(Waiter::Client(requested.clone())));
            return Taken::Pending;
        }
        Taken::Answered(Err(ErrorCode::NOT_ENOUGH_REPLICAS))
    }

    /// Adds a marker to the next object unless the marker is already queued.
    pub fn mark_diskless(&mut self, broker: BrokerId, marker: Marker, version: i8, whom: Option<Waiter>) {
        let Marker { producer_id, producer_epoch, .. } = marker;
        let stamp = Stamp { producer_id, producer_epoch, base_sequence: -1, record_count: 1 };
        let pipeline = &mut self.brokers[broker].pipeline;
        let entry = Entry { leader_epoch: 0, stamp, is_transactional: true, payload: Payload::Marker(marker) };
        if pipeline.queued().any(|queued| queued.entry == entry) {
            return;
        }
        let since = Confirmation { next_offset: pipeline.known.next_offset, is_added: false };
        let since = Some(since).filter(|_| self.fault != Some(Fault::IndexTakesLateMarkers));
        pipeline.queue(placed(stamp, BatchKind::marker(&marker, version), since), entry, whom);
    }

    /// Advances the writing of a broker: closes an object, completes uploads and commits.
    pub fn drive(&mut self, broker: BrokerId) -> Result<(), String> {
        let draw = if self.is_quiet { 0 } else { self.random.below(8) };
        let (is_quiet, has_store) = (self.is_quiet, self.brokers[broker].has_store);
        let pipeline = &mut self.brokers[broker].pipeline;
        if !pipeline.gathering.is_empty() && draw < 4 {
            self.index.next_object += 1;
            pipeline.close(self.index.next_object);
        }
        for object in pipeline.objects.iter_mut().filter(|object| object.upload == Upload::UnderWay) {
            // A PUT that returns an error may still have been carried out. The broker treats it as failed and
            // never commits its object.
            let fails = !is_quiet && self.random.one_in(if has_store { 60 } else { 6 });
            match (fails, has_store) {
                (true, _) => object.upload = Upload::Failed,
                (false, true) if is_quiet || self.random.one_in(3) => object.upload = Upload::Done,
                (false, _) => {}
            }
        }
        match draw {
            7 if self.random.one_in(2) => self.brokers[broker].pipeline.known = self.index.state.clone(),
            _ => {}
        }
        self.commit_next(broker)
    }

    /// Commits the objects at the head of the queue, in order.
    fn commit_next(&mut self, broker: BrokerId) -> Result<(), String> {
        while let Some(mut object) = self.brokers[broker].pipeline.objects.pop_front() {
            match object.upload {
                Upload::UnderWay => {
                    self.brokers[broker].pipeline.objects.push_front(object);
                    return Ok(());
                }
                Upload::Failed => {
                    self.give_up(broker, object);
                    continue;
                }
                Upload::Done | Upload::Tried => object.upload = Upload::Tried,
            }
            let draw = if self.is_quiet { 9 } else { self.random.below(12) };
            if draw > 0 {
                let (verdicts, appended) = self.index.commit(&object, self.now);
                self.appended_to_index(&appended)?;
                if draw > 1 {
                    self.committed(broker, object, &verdicts);
                    continue;
                }
            }
            // The database fails before or after the commit. The broker gets no response and repeats the commit later.
            self.brokers[broker].pipeline.objects.push_front(object);
            return Ok(());
        }
        Ok(())
    }

    /// Checks that entries which the index has appended follow from the written decisions.
    fn appended_to_index(&mut self, appended: &[Entry]) -> Result<(), String> {
        for entry in appended {
            match &entry.payload {
                Payload::Marker(marker) => self.check.marked(marker, DISKLESS)?,
                Payload::Plain => {}
                _ => self.check.appended(&entry.stamp, DISKLESS)?,
            }
            let partition = &mut self.partitions[DISKLESS];
            let at = partition.committed.len();
            partition.committed.push(entry.clone());
            for (transaction, is_commit) in partition.settle(at, entry) {
                self.check.ended(transaction, is_commit)?;
            }
        }
        let stable = self.index.last_stable(self.fault);
        self.partitions[DISKLESS].check_stable((0, 0), stable)
    }

    /// Passes the verdicts of a commit on to the waiting clients and coordinators.
    fn committed(&mut self, broker: BrokerId, object: Object, verdicts: &[CommitVerdict]) {
        let now = self.clock();
        let (mut dead, mut answers) = (BTreeSet::new(), Vec::new());
        let pipeline = &mut self.brokers[broker].pipeline;
        pipeline.known = self.index.state.clone();
        for (queued, verdict) in object.batches.into_iter().zip(verdicts) {
            let result = match *verdict {
                CommitVerdict::Appended { .. } | CommitVerdict::Duplicate { .. } => Ok(()),
                CommitVerdict::Refused(why) => {
                    pipeline.failed(&queued, why.code(), now, &mut dead);
                    Err(why)
                }
            };
            if result.is_ok() && queued.batch.is_sequenced() {
                pipeline.admission.committed(&queued.batch.stamp, queued.batch_number);
            }
            answers.push((queued, result));
        }
        answers.iter().for_each(|(queued, _)| _ = dead.remove(&queued.batch_number));
        let dropped = pipeline.drop_dead(&dead);
        answers.into_iter().for_each(|(queued, result)| self.answer_queued(queued, result));
        dropped.into_iter().for_each(|queued| self.answer_queued(queued, Err(Refusal::Behind)));
    }

    /// Discards an object whose upload has failed.
    fn give_up(&mut self, broker: BrokerId, object: Object) {
        let now = self.clock();
        let mut dead = BTreeSet::new();
        let pipeline = &mut self.brokers[broker].pipeline;
        for queued in &object.batches {
            pipeline.failed(queued, ErrorCode::KAFKA_STORAGE_ERROR, now, &mut dead);
        }
        let dropped = pipeline.drop_dead(&dead);
        for queued in object.batches.into_iter().chain(dropped) {
            let counts = self.fault == Some(Fault::CountsFailedMarkers) && queued.batch.kind.is_marker();
            self.answer_queued(queued, if counts { Ok(()) } else { Err(Refusal::ObjectGone) });
        }
    }

    fn answer_queued(&mut self, queued: Queued, result: Result<(), Refusal>) {
        let is_past = result == Err(Refusal::Sequence(SequenceRefusal::InvalidProducerEpoch));
        match queued.whom {
            Some(Waiter::Client(requested)) => {
                let code = |why| match why {
                    Refusal::Sequence(why) => why.code(),
                    _ => ErrorCode::NOT_ENOUGH_REPLICAS,
                };
                self.send(Message::Answer(requested, Answer::Written(result.map_err(code))));
            }
            // If the marker is not written, the coordinator gets no response and resends it.
            Some(Waiter::Coordinator(to, marking)) if result.is_ok() || is_past => {
                self.send(Message::Marked { to, marking });
            }
            Some(Waiter::Coordinator(..)) | None => {}
        }
    }

    /// Queues the coordinator's marker for the diskless partition.
    pub fn mark_in_index(&mut self, broker: BrokerId, by: super::message::BrokerProcess, marking: Marking) {
        let version = i8::try_from(marking.version.level()).unwrap_or(i8::MAX);
        self.mark_diskless(broker, marking.marker, version, Some(Waiter::Coordinator(by, marking)));
    }

    /// Drops queued copies of an old-protocol marker once the index has appended it. Otherwise a copy would end the
    /// next transaction.
    pub fn forget_queued(&mut self, marking: &Marking) {
        let is_it = |entry: &Entry| entry.payload == Payload::Marker(marking.marker);
        let Some(written) = self.index.log.iter().rposition(is_it).filter(|_| marking.partition == DISKLESS) else {
            return;
        };
        let is_unreported = |queued: &Queued| {
            let since = queued.batch.confirmation.map(|since| since.next_offset);
            is_it(&queued.entry) && since.is_some_and(|since| since > written as i64)
        };
        for pipeline in self.brokers.iter_mut().map(|broker| &mut broker.pipeline) {
            let objects = pipeline.objects.iter_mut().map(|object| &mut object.batches);
            objects
                .chain([&mut pipeline.gathering])
                .for_each(|batches| batches.retain(|queued| !is_unreported(queued)));
        }
    }

    fn clock(&self) -> Duration {
        Duration::from_millis(self.now.unsigned_abs())
    }
}

fn placed(stamp: Stamp, kind: BatchKind, confirmation: Option<Confirmation>) -> ObjectBatch {
    ObjectBatch { partition: NUMBER, position: 0, size: 1, stamp, max_timestamp: 0, kind, confirmation }
}
