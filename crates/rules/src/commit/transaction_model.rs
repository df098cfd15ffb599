//! A model with transactional producers, a coordinator with failovers, brokers with stale states, and a database whose
//! responses can be lost. A seed decides what happens.
//!
//! A client begins a transaction and sends batches through any broker. It commits once all are acknowledged, or aborts
//! at any time. Its coordinator sends markers to any broker until it knows that one of them was appended. Markers of an
//! older coordinator may still be in flight. After each commit, the model reads the log like a consumer at
//! read_committed. All transactions before the last stable offset must be decided, and the committed ones must be
//! delivered. At the end, each log must be stable up to its end.
//!
//! The check itself is tested: for each [`Fault`], it must find a schedule in which a promise is broken.

mod coordinator;
mod fault;
mod read;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use fullbore_schedules::{Random, each_fault_is_found, run_each};
use fullbore_wire::ErrorCode;

use super::admission::{Admission, BatchNumber, Freshness, Opening, PartitionAdmission};
use super::*;
use crate::sequence::{Marker, ProducerState, SequenceRefusal, Stamp};
use fault::Fault;

const CLIENTS: usize = 4;
const BROKERS: usize = 2;
const PARTITIONS: i64 = 2;
const WINDOW: usize = 5;
const STEPS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    No,
    Waits { broker: usize, batch_number: BatchNumber },
    Acknowledged,
}

/// A producer that writes to a single partition.
struct Client {
    partition: DisklessPartitionId,
    /// The transaction version that the client uses, 1 or 2.
    version: i8,
    epoch: i16,
    /// The sequence of the first batch in the client's transaction.
    base_sequence: i32,
    /// The index of the transaction that the producer is writing.
    transaction: Option<usize>,
    batches: Vec<Sent>,
    broker: usize,
    /// True if the producer has given up.
    is_dead: bool,
}

/// A transaction as the coordinator sees it.
struct Transaction {
    client: usize,
    epoch: i16,
    /// The decision about the transaction: true to commit, false to abort.
    decision: Option<bool>,
    marker_epoch: i16,
    /// The coordinator epochs of markers whose outcome is not known yet.
    under_way: HashSet<i32>,
    is_complete: bool,
    /// Number of batches that the log must have of the transaction if it is committed.
    batches: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Record { transaction: usize, sequence: i32 },
    Marker { transaction: usize },
}

#[derive(Clone, Copy)]
struct Admitted {
    batch_number: BatchNumber,
    batch: ObjectBatch,
    entry: Entry,
}

#[derive(Clone)]
struct Uploading {
    id: ObjectId,
    batches: Vec<Admitted>,
    /// True if the upload succeeded, false if it failed; None while it is running.
    ended: Option<bool>,
    /// True after the first attempt to commit the object.
    is_tried: bool,
}

#[derive(Default)]
struct Broker {
    known: HashMap<DisklessPartitionId, PartitionState>,
    admission: HashMap<DisklessPartitionId, PartitionAdmission>,
    active: Vec<Admitted>,
    uploading: Vec<Uploading>,
}

struct World {
    random: Random,
    fault: Option<Fault>,
    clients: Vec<Client>,
    brokers: Vec<Broker>,
    transactions: Vec<Transaction>,
    coordinator_epoch: i32,
    /// The partitions as the database has them.
    partitions: HashMap<DisklessPartitionId, PartitionState>,
    objects: HashMap<ObjectId, ObjectState>,
    rows: Vec<AppendedBatches>,
    aborted: Vec<PartitionAborted>,
    logs: BTreeMap<(DisklessPartitionId, i64), Entry>,
    stable: HashMap<DisklessPartitionId, i64>,
    ids: i64,
}

impl World {
    fn new(seed: u64, fault: Option<Fault>) -> World {
        let fresh = || (0..PARTITIONS).map(|id| (id, PartitionState::new(WINDOW))).collect::<HashMap<_, _>>();
        let client = |n: usize| Client {
            partition: n as i64 % PARTITIONS,
            version: if n < CLIENTS / 2 { 1 } else { 2 },
            epoch: 0,
            base_sequence: 0,
            transaction: None,
            batches: Vec::new(),
            broker: n % BROKERS,
            is_dead: false,
        };
        World {
            random: Random::new(seed),
            fault,
            clients: (0..CLIENTS).map(client).collect(),
            brokers: (0..BROKERS).map(|_| Broker { known: fresh(), ..Broker::default() }).collect(),
            transactions: Vec::new(),
            coordinator_epoch: 1,
            partitions: fresh(),
            objects: HashMap::new(),
            rows: Vec::new(),
            aborted: Vec::new(),
            logs: BTreeMap::new(),
            stable: HashMap::new(),
            ids: 0,
        }
    }

    fn next_id(&mut self) -> i64 {
        self.ids += 1;
        self.ids
    }

    fn step(&mut self) -> Result<(), String> {
        let (client, broker) = (self.random.below(CLIENTS), self.random.below(BROKERS));
        match self.random.below(20) {
            0..=7 => self.work(client),
            8..=9 => self.close(broker),
            10..=12 => self.end_upload(broker),
            13..=15 => return self.commit(broker),
            16 => self.send_markers(),
            17 if self.random.one_in(8) => self.coordinator_epoch += 1,
            18 if self.random.one_in(20) => self.time_out(client),
            19 if self.random.one_in(8) => return self.expire(),
            _ if self.random.one_in(3) => self.clients[client].broker = broker,
            _ => {}
        }
        Ok(())
    }

    /// Lets a client take its next step: it begins a transaction, sends a batch, or ends the transaction.
    fn work(&mut self, at: usize) {
        let Some(transaction) = self.clients[at].transaction else { return self.begin(at) };
        if self.transactions[transaction].decision.is_some() {
            return;
        }
        let client = &self.clients[at];
        let unsent =
            |sent: &Sent| *sent == Sent::No || matches!(sent, Sent::Waits { broker, .. } if *broker != client.broker);
        let waits = client.batches.iter().position(|sent| *sent != Sent::Acknowledged);
        let next = client.batches.iter().position(unsent);
        let has_room = client.batches.len() - waits.unwrap_or(client.batches.len()) < WINDOW;
        match self.random.below(8) {
            0..=2 if waits.is_none() && client.batches.len() > 1 => self.end(at, true),
            0 if self.random.one_in(20) => self.end(at, false),
            1 if self.random.one_in(2) && waits.is_some() => self.send(at, waits.expect("checked")),
            _ if next.is_some() => self.send(at, next.expect("checked")),
            _ if has_room => {
                self.clients[at].batches.push(Sent::No);
                self.send(at, self.clients[at].batches.len() - 1);
            }
            _ => {}
        }
    }

    /// Begins a transaction if the previous one is complete.
    fn begin(&mut self, at: usize) {
        let last = self.transactions.iter().rev().find(|of| of.client == at);
        if self.clients[at].is_dead || last.is_some_and(|of| !of.is_complete) {
            return;
        }
        let epoch = self.clients[at].epoch;
        self.clients[at].transaction = Some(self.transactions.len());
        self.transactions.push(Transaction {
            client: at,
            epoch,
            decision: None,
            marker_epoch: epoch,
            under_way: HashSet::new(),
            is_complete: false,
            batches: 0,
        });
    }

    /// Ends the client's transaction. If not all its batches are acknowledged, a client with transaction version 1
    /// gives up or continues in the next epoch.
    fn end(&mut self, at: usize, is_commit: bool) {
        let client = &mut self.clients[at];
        let Some(transaction) = client.transaction.take() else { return };
        let (batches, bumps) = (std::mem::take(&mut client.batches), self.fault != Some(Fault::BumpsNoEpoch));
        let written = batches.iter().take_while(|sent| **sent == Sent::Acknowledged).count();
        // An unacknowledged batch may have been written, even if the client got an error for it.
        let is_certain = written == batches.len();
        let mut marker_epoch = client.epoch;
        if client.version == 2 {
            client.epoch += 1;
            client.base_sequence = 0;
            marker_epoch += i16::from(bumps);
        } else if is_certain {
            client.base_sequence += written as i32;
        } else {
            client.is_dead = self.random.one_in(2);
            client.epoch += 1;
            client.base_sequence = 0;
        }
        let of = &mut self.transactions[transaction];
        (of.decision, of.marker_epoch, of.batches) = (Some(is_commit), marker_epoch, written);
    }

    fn send(&mut self, at: usize, n: usize) {
        let client = &self.clients[at];
        let (partition, broker, version) = (client.partition, client.broker, client.version);
        let Some(transaction) = client.transaction else { return };
        let base_sequence = client.base_sequence + n as i32;
        let stamp = Stamp { producer_id: at as i64, producer_epoch: client.epoch, base_sequence, record_count: 1 };
        let batch_number = self.next_id() as BatchNumber;
        let check = |here: &Broker, freshness| {
            let nothing = PartitionAdmission::default();
            let admission = here.admission.get(&partition).unwrap_or(&nothing);
            admission.check(&stamp, &here.known[&partition], freshness, Duration::ZERO)
        };
        let mut admitted = check(&self.brokers[broker], Freshness::MayBeStale);
        if admitted == Admission::Ask {
            self.refresh(broker, partition);
            admitted = check(&self.brokers[broker], Freshness::Current);
        }
        self.clients[at].batches[n] = match admitted {
            Admission::Admit => {
                let Ok(confirmation) = self.confirmation_of(broker, partition, &stamp, version == 2) else { return };
                let here = &mut self.brokers[broker];
                here.admission.entry(partition).or_default().admitted(&stamp, batch_number, confirmation);
                let kind = BatchKind::Transactional;
                let batch =
                    ObjectBatch { partition, position: 0, size: 10, stamp, max_timestamp: 0, kind, confirmation };
                let entry = Entry::Record { transaction, sequence: base_sequence };
                here.active.push(Admitted { batch_number, batch, entry });
                Sent::Waits { broker, batch_number }
            }
            Admission::Shares(batch_number) => Sent::Waits { broker, batch_number },
            Admission::Duplicate { .. } => Sent::Acknowledged,
            Admission::Ask | Admission::Refuse(_) => Sent::No,
        };
    }

    /// Returns the coordinator's confirmation of a batch; None if the broker needs none.
    ///
    /// # Errors
    ///
    /// Fails if the coordinator no longer has the transaction.
    fn confirmation_of(
        &self,
        broker: usize,
        partition: DisklessPartitionId,
        stamp: &Stamp,
        is_added: bool,
    ) -> Result<Option<Confirmation>, ()> {
        let here = &self.brokers[broker];
        let known = &here.known[&partition];
        if self.fault == Some(Fault::SkipsVerification) {
            return Ok(Some(Confirmation { next_offset: i64::MAX, is_added }));
        }
        let nothing = PartitionAdmission::default();
        match here.admission.get(&partition).unwrap_or(&nothing).transaction_of(stamp, known) {
            Opening::Open { confirmation } => Ok(confirmation),
            Opening::Unverified => {
                let mut last = self.transactions.iter().rev().filter(|of| of.client as i64 == stamp.producer_id);
                let is_open = |of: &Transaction| of.decision.is_none() && of.epoch == stamp.producer_epoch;
                let is_late = self.fault == Some(Fault::BelievesAnOldConfirmation);
                let next_offset = if is_late { i64::MAX } else { known.next_offset };
                last.next().is_some_and(is_open).then_some(Some(Confirmation { next_offset, is_added })).ok_or(())
            }
        }
    }

    /// Updates a broker's state of a partition with the rows that it has not read yet.
    fn refresh(&mut self, broker: usize, partition: DisklessPartitionId) {
        let Some(known) = self.brokers[broker].known.get_mut(&partition) else { return };
        let from = known.next_offset;
        let rows = self.rows.iter().filter(|row| row.partition == partition);
        let mut new: Vec<_> = rows.flat_map(|row| &row.batches).filter(|batch| batch.base_offset >= from).collect();
        new.sort_by_key(|batch| batch.base_offset);
        new.into_iter().for_each(|batch| known.take_over(batch, 0));
        known.expired_to = self.partitions[&partition].expired_to;
    }

    fn close(&mut self, broker: usize) {
        let id = self.next_id();
        let here = &mut self.brokers[broker];
        if here.active.is_empty() {
            return;
        }
        let mut batches = std::mem::take(&mut here.active);
        batches.sort_by_key(|admitted| admitted.batch.partition);
        for (n, admitted) in (0..).zip(&mut batches) {
            admitted.batch.position = n * 10;
        }
        here.uploading.push(Uploading { id, batches, ended: None, is_tried: false });
        self.objects.insert(id, ObjectState::Registered);
    }

    fn end_upload(&mut self, broker: usize) {
        let failed = self.random.one_in(10);
        let pick = self.random.below(4);
        let mut waiting = self.brokers[broker].uploading.iter_mut().filter(|object| object.ended.is_none());
        if let Some(object) = waiting.nth(pick) {
            object.ended = Some(!failed);
        }
    }

    /// Commits the finished objects, in order, up to the first that is still being uploaded. If an upload has failed,
    /// its batches fail.
    fn commit(&mut self, broker: usize) -> Result<(), String> {
        let finished = self.brokers[broker].uploading.iter().take_while(|object| object.ended.is_some()).count();
        let objects: Vec<Uploading> = self.brokers[broker].uploading.drain(..finished).collect();
        let mut left = Vec::new();
        for mut object in objects {
            if !object.is_tried {
                object.batches.retain(|admitted| self.is_waited_for(broker, admitted));
            }
            if object.ended == Some(false) {
                object.batches.iter().for_each(|admitted| self.fail(broker, admitted));
                continue;
            }
            if !left.is_empty() || !self.commit_one(broker, &mut object)? {
                left.push(object);
            }
        }
        left.append(&mut self.brokers[broker].uploading);
        self.brokers[broker].uploading = left;
        Ok(())
    }

    fn is_waited_for(&self, broker: usize, admitted: &Admitted) -> bool {
        let Some(here) = self.brokers[broker].admission.get(&admitted.batch.partition) else { return true };
        !admitted.batch.is_sequenced() || here.is_pending(&admitted.batch.stamp, admitted.batch_number)
    }

    /// Commits an object. Returns false if there is no response. Every fourth commit gets no response, and half of
    /// these are still carried out.
    fn commit_one(&mut self, broker: usize, object: &mut Uploading) -> Result<bool, String> {
        let (is_silent, is_lost) = (self.random.one_in(4), self.random.one_in(2));
        object.is_tried = true;
        if is_silent && is_lost {
            return Ok(false);
        }
        let batches: Vec<_> = object.batches.iter().map(|admitted| self.offered(&admitted.batch)).collect();
        let finished = FinishedObject { id: object.id, state: self.objects[&object.id].clone(), batches };
        let deleted = HashMap::new();
        let mut commit_state = CommitState { partitions: &mut self.partitions, deleted: &deleted, now_ms: 0 };
        let mut decided = super::commit(&mut commit_state, &[finished]);
        let verdicts = decided.verdicts.remove(0);
        self.write(object, &verdicts, decided)?;
        self.check()?;
        if is_silent {
            return Ok(false);
        }
        let partitions: HashSet<_> = object.batches.iter().map(|admitted| admitted.batch.partition).collect();
        partitions.into_iter().try_for_each(|partition| self.know(broker, partition))?;
        let mut is_failed = false;
        for (admitted, verdict) in object.batches.iter().zip(verdicts) {
            let drops = is_failed && self.fault == Some(Fault::DropsMarkersBehindRefused);
            is_failed |= admitted.batch.is_sequenced() && matches!(verdict, CommitVerdict::Refused(_));
            match (admitted.entry, verdict) {
                (Entry::Marker { transaction }, verdict) if !drops => self.marked(admitted, transaction, verdict)?,
                (Entry::Marker { .. }, _) => {}
                (Entry::Record { .. }, CommitVerdict::Refused(_)) => self.fail(broker, admitted),
                (Entry::Record { .. }, _) => {
                    let admission = self.brokers[broker].admission.entry(admitted.batch.partition).or_default();
                    admission.committed(&admitted.batch.stamp, admitted.batch_number);
                    self.answer(admitted.batch_number, Sent::Acknowledged);
                }
            }
        }
        Ok(true)
    }

    /// Returns the batch with the change that the planted fault makes to it.
    fn offered(&self, batch: &ObjectBatch) -> ObjectBatch {
        match batch.kind {
            BatchKind::Marker { is_commit, has_next_epoch, .. } if self.fault == Some(Fault::TakesOldMarkers) => {
                let coordinator_epoch = i32::MAX;
                ObjectBatch { kind: BatchKind::Marker { coordinator_epoch, is_commit, has_next_epoch }, ..*batch }
            }
            _ => *batch,
        }
    }

    /// Writes what the commit has decided.
    fn write(
        &mut self,
        object: &Uploading,
        verdicts: &[CommitVerdict],
        mut decided: CommitDecision,
    ) -> Result<(), String> {
        if decided.objects.is_empty() {
            return Ok(());
        }
        self.objects.insert(object.id, ObjectState::Live(decided.runs));
        for (admitted, verdict) in object.batches.iter().zip(verdicts) {
            if let CommitVerdict::Appended { base_offset } = verdict {
                let key = (admitted.batch.partition, *base_offset);
                if self.logs.insert(key, admitted.entry).is_some() {
                    return Err(format!("offset {key:?} is given twice"));
                }
            }
        }
        if self.fault == Some(Fault::HidesOpenings) {
            let batches = decided.producers.iter_mut().flat_map(|row| &mut row.batches);
            batches.filter(|batch| !batch.kind.is_marker()).for_each(|batch| batch.kind = BatchKind::Plain);
        }
        self.rows.extend(decided.producers);
        if self.fault != Some(Fault::ListsNoAborted) {
            self.aborted.extend(decided.aborted);
        }
        Ok(())
    }

    /// Updates a broker's state from the rows of a commit, and checks that it equals the database's state.
    fn know(&mut self, broker: usize, partition: DisklessPartitionId) -> Result<(), String> {
        self.refresh(broker, partition);
        let shown = |state: &PartitionState| {
            let mut producers: Vec<ProducerState> = state.producers.iter().collect();
            producers.sort_by_key(|of| of.producer_id);
            (producers, state.next_offset, state.first_unstable())
        };
        let (known, kept) = (shown(&self.brokers[broker].known[&partition]), shown(&self.partitions[&partition]));
        if known == kept { Ok(()) } else { Err(format!("by the rows it is {known:?}, and {kept:?} was kept")) }
    }

    fn fail(&mut self, broker: usize, admitted: &Admitted) {
        let ObjectBatch { partition, stamp, kind, .. } = admitted.batch;
        if let (Entry::Marker { transaction }, BatchKind::Marker { coordinator_epoch, .. }) = (admitted.entry, kind) {
            self.transactions[transaction].under_way.remove(&coordinator_epoch);
            return;
        }
        let admission = self.brokers[broker].admission.entry(partition).or_default();
        let mut dead = admission.failed(&stamp, admitted.batch_number, ErrorCode::KAFKA_STORAGE_ERROR, Duration::ZERO);
        // A batch that has failed with an earlier one, and is not in an object yet, must never get into one.
        self.brokers[broker].active.retain(|of| !dead.contains(&of.batch_number));
        dead.push(admitted.batch_number);
        dead.into_iter().for_each(|batch_number| self.answer(batch_number, Sent::No));
    }

    fn answer(&mut self, answered: BatchNumber, outcome: Sent) {
        for sent in self.clients.iter_mut().flat_map(|client| &mut client.batches) {
            if matches!(sent, Sent::Waits { batch_number, .. } if *batch_number == answered) {
                *sent = outcome;
            }
        }
    }

    /// Completes all batches in flight, so that each is committed or fails.
    fn drain(&mut self) -> Result<(), String> {
        for broker in 0..BROKERS {
            self.close(broker);
            let uploading = self.brokers[broker].uploading.iter_mut();
            uploading.for_each(|object| object.ended = object.ended.or(Some(true)));
            for _ in 0..100 {
                self.commit(broker)?;
            }
            if !self.brokers[broker].uploading.is_empty() {
                return Err("nothing is committed for a hundred times".into());
            }
        }
        Ok(())
    }

    /// Completes all batches in flight. Then lets producers without an open transaction expire.
    fn expire(&mut self) -> Result<(), String> {
        self.drain()?;
        for partition in 0..PARTITIONS {
            for broker in 0..BROKERS {
                self.know(broker, partition)?;
                self.brokers[broker].known.get_mut(&partition).expect("there").expire(1, 0);
            }
            let state = self.partitions.get_mut(&partition).expect("there");
            state.expire(1, 0);
            if self.fault == Some(Fault::ForgetsOpen) {
                state.producers = crate::sequence::Producers::default();
            }
        }
        self.check()
    }

    /// Reads each log as a consumer at read_committed does.
    fn check(&mut self) -> Result<(), String> {
        for partition in 0..PARTITIONS {
            let state = &self.partitions[&partition];
            let is_careless = self.fault == Some(Fault::ReadsTheUndecided);
            let stable = if is_careless { state.next_offset } else { state.last_stable_offset() };
            let before = self.stable.insert(partition, stable).unwrap_or(0);
            if stable < before {
                return Err(format!("the last stable offset of partition {partition} falls from {before} to {stable}"));
            }
            self.read(partition, stable)?;
        }
        Ok(())
    }

    /// Ends every transaction, and checks that each log is then stable up to its end.
    fn end_all(&mut self) -> Result<(), String> {
        (0..CLIENTS).for_each(|client| self.time_out(client));
        for _ in 0..20 {
            self.send_markers();
            self.drain()?;
        }
        if let Some(at) = self.transactions.iter().position(|of| !of.is_complete) {
            return Err(format!("transaction {at} never completes"));
        }
        let unstable = self.partitions.iter().find(|(_, state)| state.last_stable_offset() < state.next_offset);
        match unstable {
            Some((partition, state)) => {
                Err(format!("partition {partition} is stable up to {} only", state.last_stable_offset()))
            }
            None => self.check(),
        }
    }
}

fn run(seed: u64, fault: Option<Fault>) -> Result<usize, String> {
    let mut world = World::new(seed, fault);
    for _ in 0..STEPS {
        world.step()?;
    }
    world.end_all()?;
    Ok(world.transactions.iter().filter(|of| of.decision == Some(true)).count())
}

#[test]
fn random_schedule_transactions_are_read_whole_or_not_at_all_and_become_stable() {
    let committed = run_each(2000, 1, |seed| run(seed, None));
    let mean = committed.iter().sum::<usize>() / committed.len();
    assert!(mean > 3, "{mean} transactions a schedule are so few that nothing may have been tried");
}

#[test]
fn each_mutation_of_transactions_is_found() {
    use Fault::*;
    let faults = [
        SkipsVerification,
        BelievesAnOldConfirmation,
        BumpsNoEpoch,
        DropsMarkersBehindRefused,
        TakesOldMarkers,
        ListsNoAborted,
        ReadsTheUndecided,
        HidesOpenings,
        ForgetsOpen,
    ];
    each_fault_is_found(faults.map(|fault| (fault, 0..2000)), |seed, fault| run(seed, Some(fault)));
}
