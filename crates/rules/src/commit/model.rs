//! A model with clients, brokers, a slow object store, and a database whose responses can be lost. A seed decides what
//! happens.
//!
//! Each broker admits batches, closes objects, uploads them in any order, and commits them in the order in which they
//! were closed. A client sends the next batches within its window and resends refused ones. It may move to another
//! broker at any time. After every commit the logs are checked. Offsets must be dense. Each client's records must be in
//! the logs once and in order, and acknowledged batches must be at their acknowledged offsets.
//!
//! The check itself is tested: for each [`Fault`], it must find a schedule in which a promise is broken.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use fullbore_schedules::{Random, each_fault_is_found, run_each};
use fullbore_wire::ErrorCode;

use super::admission::{Admission, BatchNumber, Freshness, PartitionAdmission};
use super::*;
use crate::sequence::Stamp;

const CLIENTS: usize = 3;
const BROKERS: usize = 2;
const PARTITIONS: i64 = 2;
const WINDOW: usize = 5;
const BATCHES: usize = 30;
const STEPS: usize = 400;
/// The largest id of a producer whose state has expired. The first client has this id, so it may begin with any
/// sequence as long as its partition does not know it.
const EXPIRED_TO: i64 = 0;

/// A rule that the model breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Objects are committed in the order in which their uploads end.
    CommitsOutOfOrder,
    /// A batch is acknowledged when its object is uploaded.
    AnswersBeforeCommit,
    /// Batches that were admitted after a failed batch are committed.
    CommitsTheDead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    No,
    Waits { broker: usize, batch_number: BatchNumber },
    Acknowledged { base_offset: i64 },
}

/// A producer that writes batches of one record to a single partition.
struct Client {
    partition: DisklessPartitionId,
    broker: usize,
    batches: Vec<Sent>,
}

#[derive(Clone)]
struct Admitted {
    batch_number: BatchNumber,
    batch: ObjectBatch,
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
    /// The partitions as the database has them.
    partitions: HashMap<DisklessPartitionId, PartitionState>,
    objects: HashMap<ObjectId, ObjectState>,
    /// The client and sequence of each record, by partition and offset.
    logs: BTreeMap<(DisklessPartitionId, i64), (i64, i32)>,
    ids: i64,
}

impl World {
    fn new(seed: u64, fault: Option<Fault>) -> World {
        let fresh = |id| (id, PartitionState { expired_to: EXPIRED_TO, ..PartitionState::new(WINDOW) });
        let fresh = || (0..PARTITIONS).map(fresh).collect::<HashMap<_, _>>();
        let mut partitions = fresh();
        // Offset 0 is taken by a record of a producer whose state has expired since.
        partitions.values_mut().for_each(|state| state.next_offset = 1);
        let client = |n: usize| Client {
            partition: n as i64 % PARTITIONS,
            broker: n % BROKERS,
            batches: vec![Sent::No; BATCHES],
        };
        World {
            random: Random::new(seed),
            fault,
            clients: (0..CLIENTS).map(client).collect(),
            brokers: (0..BROKERS).map(|_| Broker { known: fresh(), ..Broker::default() }).collect(),
            partitions,
            objects: HashMap::new(),
            logs: BTreeMap::new(),
            ids: 0,
        }
    }

    fn next_id(&mut self) -> i64 {
        self.ids += 1;
        self.ids
    }

    fn step(&mut self) -> Result<(), String> {
        let (client, broker) = (self.random.below(CLIENTS), self.random.below(BROKERS));
        match self.random.below(10) {
            0..=3 => self.send(client),
            4 => self.close(broker),
            5..=6 => self.end_upload(broker),
            7..=8 => return self.commit(broker),
            _ if self.random.one_in(4) => self.clients[client].broker = broker,
            _ => {}
        }
        Ok(())
    }

    /// Sends the client's next batch within its window, or resends a batch whose response the client still awaits from
    /// its former broker. With a probability of one in eight, resends the client's first unacknowledged batch instead.
    fn send(&mut self, at: usize) {
        let client = &self.clients[at];
        let Some(first) = client.batches.iter().position(|sent| !matches!(sent, Sent::Acknowledged { .. })) else {
            return;
        };
        let elsewhere = |sent: &Sent| matches!(sent, Sent::Waits { broker, .. } if *broker != client.broker);
        let within = first..(first + WINDOW).min(BATCHES);
        let next = within.clone().find(|n| client.batches[*n] == Sent::No || elsewhere(&client.batches[*n]));
        let again = self.random.one_in(8).then_some(first);
        let Some(n) = again.or(next) else { return };
        let (partition, broker) = (self.clients[at].partition, self.clients[at].broker);
        let stamp = Stamp { producer_id: at as i64, producer_epoch: 0, base_sequence: n as i32, record_count: 1 };
        let batch_number = self.next_id() as BatchNumber;
        let here = &mut self.brokers[broker];
        let admission = here.admission.entry(partition).or_default();
        let mut admitted = admission.check(&stamp, &here.known[&partition], Freshness::MayBeStale, Duration::ZERO);
        if admitted == Admission::Ask {
            here.known.insert(partition, self.partitions[&partition].clone());
            admitted = admission.check(&stamp, &here.known[&partition], Freshness::Current, Duration::ZERO);
        }
        self.clients[at].batches[n] = match admitted {
            Admission::Admit => {
                admission.admitted(&stamp, batch_number, None);
                let batch = ObjectBatch {
                    partition,
                    position: 0,
                    size: 10,
                    stamp,
                    max_timestamp: 0,
                    kind: BatchKind::Plain,
                    confirmation: None,
                };
                here.active.push(Admitted { batch_number, batch });
                Sent::Waits { broker, batch_number }
            }
            Admission::Shares(batch_number) => Sent::Waits { broker, batch_number },
            Admission::Duplicate { base_offset, .. } => Sent::Acknowledged { base_offset },
            Admission::Ask | Admission::Refuse(_) => Sent::No,
        };
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
        let waiting = self.brokers[broker].uploading.iter().filter(|object| object.ended.is_none()).count();
        if waiting == 0 {
            return;
        }
        let pick = self.random.below(waiting);
        let object = self.brokers[broker].uploading.iter_mut().filter(|object| object.ended.is_none()).nth(pick);
        let object = object.expect("counted");
        object.ended = Some(!failed);
        if self.fault == Some(Fault::AnswersBeforeCommit) && !failed {
            for admitted in object.batches.clone() {
                self.answer(admitted.batch_number, Sent::Acknowledged { base_offset: i64::MAX });
            }
        }
    }

    /// Commits the finished objects, in order, up to the first that is still being uploaded. If an upload has failed,
    /// its batches fail.
    fn commit(&mut self, broker: usize) -> Result<(), String> {
        if self.fault == Some(Fault::CommitsOutOfOrder) {
            self.brokers[broker].uploading.sort_by_key(|object| object.ended.is_none());
        }
        let finished = self.brokers[broker].uploading.iter().take_while(|object| object.ended.is_some()).count();
        let objects: Vec<Uploading> = self.brokers[broker].uploading.drain(..finished).collect();
        let mut left = Vec::new();
        for mut object in objects {
            // Batches that failed with an earlier object of the broker are dropped. After the first attempt to commit,
            // the object's batches no longer change, because the outcome of that attempt may be unknown.
            if !object.is_tried && self.fault != Some(Fault::CommitsTheDead) {
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
        let here = &self.brokers[broker].admission[&admitted.batch.partition];
        here.is_pending(&admitted.batch.stamp, admitted.batch_number)
    }

    /// Commits an object. Returns true if the outcome is known. Every fourth commit gets no response, and half of these
    /// are still carried out.
    fn commit_one(&mut self, broker: usize, object: &mut Uploading) -> Result<bool, String> {
        let (is_silent, is_lost) = (self.random.one_in(4), self.random.one_in(2));
        object.is_tried = true;
        if is_silent && is_lost {
            return Ok(false);
        }
        let batches = object.batches.iter().map(|admitted| admitted.batch).collect();
        let state = self.objects[&object.id].clone();
        let finished = FinishedObject { id: object.id, state, batches };
        let deleted = HashMap::new();
        let mut commit_state = CommitState { partitions: &mut self.partitions, deleted: &deleted, now_ms: 0 };
        let decided = super::commit(&mut commit_state, &[finished]);
        if !decided.objects.is_empty() {
            self.objects.insert(object.id, ObjectState::Live(decided.runs.clone()));
        }
        for (admitted, verdict) in object.batches.iter().zip(&decided.verdicts[0]) {
            if let CommitVerdict::Appended { base_offset } = verdict
                && !decided.objects.is_empty()
            {
                let stamp = admitted.batch.stamp;
                let key = (admitted.batch.partition, *base_offset);
                if self.logs.insert(key, (stamp.producer_id, stamp.base_sequence)).is_some() {
                    return Err(format!("offset {key:?} is given twice"));
                }
            }
        }
        self.check()?;
        if is_silent {
            return Ok(false);
        }
        for (admitted, verdict) in object.batches.iter().zip(&decided.verdicts[0]) {
            match *verdict {
                CommitVerdict::Appended { base_offset } | CommitVerdict::Duplicate { base_offset, .. } => {
                    self.commits(broker, admitted, base_offset);
                }
                CommitVerdict::Refused(_) => self.fail(broker, admitted),
            }
        }
        Ok(true)
    }

    fn commits(&mut self, broker: usize, admitted: &Admitted, base_offset: i64) {
        let ObjectBatch { partition, stamp, .. } = admitted.batch;
        let here = &mut self.brokers[broker];
        here.admission.entry(partition).or_default().committed(&stamp, admitted.batch_number);
        here.known.insert(partition, self.partitions[&partition].clone());
        self.answer(admitted.batch_number, Sent::Acknowledged { base_offset });
    }

    fn fail(&mut self, broker: usize, admitted: &Admitted) {
        let ObjectBatch { partition, stamp, .. } = admitted.batch;
        let admission = self.brokers[broker].admission.entry(partition).or_default();
        let dead = admission.failed(&stamp, admitted.batch_number, ErrorCode::KAFKA_STORAGE_ERROR, Duration::ZERO);
        dead.into_iter().chain([admitted.batch_number]).for_each(|batch_number| self.answer(batch_number, Sent::No));
    }

    fn answer(&mut self, answered: BatchNumber, outcome: Sent) {
        for sent in self.clients.iter_mut().flat_map(|client| &mut client.batches) {
            if matches!(sent, Sent::Waits { batch_number, .. } if *batch_number == answered) {
                *sent = outcome;
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        for partition in 0..PARTITIONS {
            let log: Vec<_> = self.logs.range((partition, 0)..=(partition, i64::MAX)).collect();
            for (n, ((_, offset), _)) in (1..).zip(&log) {
                if *offset != n {
                    return Err(format!("the offsets of partition {partition} have a gap at {n}"));
                }
            }
            for (at, client) in self.clients.iter().enumerate().filter(|(_, client)| client.partition == partition) {
                let own = log.iter().filter(|(_, (by, _))| *by == at as i64);
                let sequences: Vec<i32> = own.map(|(_, (_, sequence))| *sequence).collect();
                if !sequences.iter().copied().eq(0..sequences.len() as i32) {
                    return Err(format!("client {at} wrote {sequences:?}"));
                }
                for (n, sent) in (0..).zip(&client.batches) {
                    if let Sent::Acknowledged { base_offset } = sent
                        && self.logs.get(&(partition, *base_offset)) != Some(&(at as i64, n))
                    {
                        return Err(format!("batch {n} of client {at} is not at {base_offset}"));
                    }
                }
            }
        }
        Ok(())
    }
}

fn run(seed: u64, fault: Option<Fault>) -> Result<usize, String> {
    let mut world = World::new(seed, fault);
    for _ in 0..STEPS {
        world.step()?;
    }
    world.check()?;
    let is_acknowledged = |sent: &&Sent| matches!(sent, Sent::Acknowledged { .. });
    Ok(world.clients.iter().flat_map(|client| &client.batches).filter(is_acknowledged).count())
}

#[test]
fn random_schedule_keeps_each_record_once_and_in_order() {
    let acknowledged = run_each(3000, 1, |seed| run(seed, None));
    let mean = acknowledged.iter().sum::<usize>() / acknowledged.len();
    assert!(mean > 10, "{mean} batches a schedule are so few that nothing may have been tried");
}

#[test]
fn each_mutation_is_found() {
    use Fault::*;
    let faults = [CommitsOutOfOrder, AnswersBeforeCommit, CommitsTheDead].map(|fault| (fault, 0..2000));
    each_fault_is_found(faults, |seed, fault| run(seed, Some(fault)));
}
