//! The clients that write transactions. Each of them has a coordinator, which survives all processes. The coordinator
//! first records its decision. Then it writes the marker through any of the brokers, until the marker is in the log or
//! its partition is deleted.
//!
//! The clients use transaction version 2, in which each transaction has its own epoch and begins with sequence 0. If a
//! process ends before a transaction is decided, the transaction is aborted.
//!
//! At the end, no transaction may be open. The batches of committed transactions must exist and not be aborted. All
//! other batches that exist must be aborted.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fullbore_log::Verification;
use fullbore_rules::sequence::{AbortedTransaction, Marker, PRODUCERS_MAX};
use fullbore_tests::Random;
use fullbore_wire::batch::{BatchBuilder, BatchView, Compression, RecordIter, Stamp};
use fullbore_wire::{ErrorCode, Uuid};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::world::{Setup, World, ms, random};
use super::{Brokers, Fault, Life};
use crate::{DisklessPartition, Unblocked};
use fullbore_host::metrics::Metrics;
use fullbore_host::task;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::{Acks, AppendStep, Blocker};
use fullbore_log::partition::terms::{AppendTerms, AwaitedConfirmation, VerificationTime};
use fullbore_log::validation::ValidBatch;

/// The producer id of the first client.
const FIRST_PRODUCER: i64 = 10_000;
const VERSION: i8 = 2;
/// How long a request waits for a partition that is being created.
const OPENED_WITHIN: Duration = Duration::from_secs(5);
/// `request.timeout.ms`
const TIMEOUT: Duration = Duration::from_secs(30);

/// A transaction of a client.
#[derive(Clone, Copy, Debug)]
struct Transaction {
    topic: Uuid,
    epoch: i16,
    /// How many batches were acknowledged.
    batches: i32,
    /// True for a commit, false for an abort. `None` before the decision.
    decision: Option<bool>,
}

/// A client that writes to one partition.
pub struct Transactional {
    index: usize,
    partition: i32,
    left: usize,
    transactions: Vec<Transaction>,
    /// True until the marker of the last transaction is written.
    is_under_way: bool,
    by: Random,
}

/// The outcome of a batch.
enum Written {
    Acknowledged,
    /// The batch was not acknowledged, but it may be in the log. The client must abort the transaction.
    No,
}

impl Transactional {
    /// Returns the transactional clients of a schedule.
    pub fn all(setup: &Setup) -> Vec<Arc<Mutex<Transactional>>> {
        let client = |index: usize| {
            let mut by = random(setup.seed, 2000 + index as u64);
            let partition = by.below(setup.partitions as usize) as i32;
            let left = by.between(3, 12);
            Transactional { index, partition, left, transactions: Vec::new(), is_under_way: false, by }
        };
        (0..setup.transactional).map(|index| Arc::new(Mutex::new(client(index)))).collect()
    }

    fn producer_id(&self) -> i64 {
        FIRST_PRODUCER + self.index as i64
    }

    /// Returns the unfinished transaction as text for an error message.
    pub fn open(&self) -> String {
        let last = self.transactions.last().filter(|_| self.is_under_way);
        format!("client {} has {} transactions left, and {last:?}", self.index, self.left)
    }

    fn begin(&mut self, topic: Uuid) -> Transaction {
        let epoch = self.transactions.len() as i16;
        let begun = Transaction { topic, epoch, batches: 0, decision: None };
        self.transactions.push(begun);
        self.is_under_way = true;
        begun
    }

    /// Decides on the last transaction, unless it is already decided.
    fn decide(&mut self, is_commit: bool) {
        if let Some(last) = self.transactions.last_mut() {
            last.decision.get_or_insert(is_commit);
        }
    }

    /// Returns how many transactions were committed.
    pub fn committed(&self) -> usize {
        self.transactions.iter().filter(|of| of.decision == Some(true)).count()
    }

    fn batch(&self, epoch: i16, number: i32) -> Bytes {
        let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None).transactional();
        let value = format!("T{}.{epoch}.{number} ", self.index);
        builder.append(1_700_000_000_000, None, Some(value.as_bytes()), &[]);
        let stamp = Stamp { producer_id: self.producer_id(), producer_epoch: epoch, base_sequence: number };
        builder.seal(stamp).expect("sealed").0.freeze()
    }
}

/// Writes the transactions of a client. Returns when all of them have ended. If the process ends first, the next
/// process continues.
pub async fn transact(brokers: Brokers, client: Arc<Mutex<Transactional>>) {
    let world = &brokers[0].world;
    // The previous process may have ended before a transaction was decided. Abort it now.
    client.lock().decide(false);
    loop {
        if client.lock().is_under_way {
            end(&brokers, &client).await;
        }
        let (left, pause) = {
            let mut client = client.lock();
            (client.left, client.by.below(1_500))
        };
        if left == 0 {
            return;
        }
        sleep(ms(pause)).await;
        let Some(topic) = world.topic.lock().current else { continue };
        let (begun, count) = {
            let mut client = client.lock();
            client.left -= 1;
            (client.begin(topic), client.by.between(1, 5))
        };
        let mut is_whole = true;
        for number in 0..count {
            is_whole &= matches!(write(&brokers, &client, begun, number).await, Written::Acknowledged);
            if !is_whole {
                break;
            }
            if let Some(last) = client.lock().transactions.last_mut() {
                last.batches += 1;
            }
        }
        let mut client = client.lock();
        let is_commit = is_whole && client.by.below(4) > 0;
        client.decide(is_commit);
        world.report(|| format!("transaction {} of {} is decided: {is_commit}", begun.epoch, client.index));
    }
}

/// Returns a random broker.
fn any(brokers: &Brokers, client: &Mutex<Transactional>) -> Arc<Life> {
    Arc::clone(&brokers[client.lock().by.below(brokers.len())])
}

async fn partition_at(life: &Life, client: &Mutex<Transactional>, topic: Uuid) -> Option<Arc<DisklessPartition>> {
    let partition = life.diskless.find(&topic, client.lock().partition)?;
    let _ = timeout(OPENED_WITHIN, partition.view.opened()).await;
    Some(partition)
}

/// Sends a batch, with retries, until it is acknowledged or refused for good. Sometimes gives up earlier.
async fn write(brokers: &Brokers, client: &Mutex<Transactional>, of: Transaction, number: i32) -> Written {
    let world = &brokers[0].world;
    let bytes = client.lock().batch(of.epoch, number);
    let begun = world.now();
    loop {
        if world.topic.lock().current != Some(of.topic) {
            return Written::No;
        }
        let life = any(brokers, client);
        let Some(partition) = partition_at(&life, client, of.topic).await else {
            sleep(ms(50)).await;
            continue;
        };
        let gives_up = world.strikes(&mut client.lock().by, world.setup.client_trouble);
        let patience = if gives_up { ms(client.lock().by.below(300)) } else { TIMEOUT };
        let confirmation = PlannedConfirmation::draw(&mut client.lock().by);
        let answer = timeout(patience, offer(&life, &partition, &bytes, confirmation)).await;
        world.report(|| format!("batch {} of transaction {}: {answer:?}", number, of.epoch));
        match answer {
            Err(_) if gives_up => return Written::No,
            Ok(Ok(())) => return Written::Acknowledged,
            Ok(Err(AppendError::Deleted)) => return Written::No,
            Ok(Err(AppendError::Sequence(why))) if why.code() != ErrorCode::KAFKA_STORAGE_ERROR => {
                // If the topic was deleted, the earlier batches of the transaction are missing, so the refusal is
                // correct.
                if world.topic.lock().current == Some(of.topic) {
                    world.wrong(|| format!("batch {number} of transaction {} is refused: {why:?}", of.epoch));
                }
                return Written::No;
            }
            Ok(Err(_)) | Err(_) => {}
        }
        if world.is_late(begun) {
            world.wrong(|| format!("batch {number} of transaction {} is not written", of.epoch));
            return Written::No;
        }
        let backoff = client.lock().by.below(200);
        sleep(ms(backoff)).await;
    }
}

/// The coordinator's answer about a batch that begins a transaction: a confirmation or a refusal.
#[derive(Clone, Copy, Debug)]
struct PlannedConfirmation {
    /// How long the coordinator takes to answer. `None` if it has already confirmed the transaction.
    after: Option<Duration>,
    is_given: bool,
}

impl PlannedConfirmation {
    fn draw(by: &mut Random) -> PlannedConfirmation {
        let after = (by.below(2) == 0).then(|| ms(by.below(300)));
        PlannedConfirmation { after, is_given: by.below(6) > 0 }
    }
}

/// Appends a batch of a transaction that the coordinator knows, and waits until the batch is committed.
async fn offer(
    life: &Life,
    partition: &Arc<DisklessPartition>,
    bytes: &Bytes,
    confirmation: PlannedConfirmation,
) -> Result<(), AppendError> {
    let batch = ValidBatch::unchecked(bytes);
    // The producer changes its connection after each batch.
    let port = (8 * batch.stamp().producer_id + i64::from(batch.stamp().base_sequence) % 3) as u16;
    let (mut waited, peer) = (Unblocked::default(), SocketAddr::from(([127, 0, 0, 1], port)));
    let mut verification = Verification::Unknown;
    let (given, mut awaited) = (Arc::new(AtomicBool::new(false)), None);
    loop {
        let verified_at = VerificationTime { next_offset: partition.view.offsets().log_end, ..Default::default() };
        let in_turn = AppendTerms::in_turn(Acks::All, life.world.wall_ms());
        let terms = AppendTerms { verification, verified_at, awaited: awaited.as_ref(), ..in_turn };
        match waited.append(partition, &batch, terms, peer)? {
            AppendStep::Done(_) => return Ok(()),
            AppendStep::Pending(ticket) => {
                let deadline = Instant::now() + TIMEOUT;
                let written = ticket.wait(deadline, std::future::pending(), &Metrics::default()).await.map(drop);
                if written.is_ok() && awaited.is_some() && !given.load(Ordering::Relaxed) {
                    life.world.wrong(|| "a batch is committed ahead of the coordinator's confirmation".into());
                }
                return written;
            }
            // The marker of the previous transaction is still gathered for the next object.
            AppendStep::Blocked(Blocker::Verification) if awaited.is_some() => sleep(ms(2)).await,
            AppendStep::Blocked(Blocker::Verification) => {
                verification = Verification::Added;
                awaited = confirmation.after.map(|after| give_later(after, confirmation.is_given, Arc::clone(&given)));
            }
            AppendStep::Blocked(blocker) => waited.wait_for(std::slice::from_ref(partition), blocker, None).await,
        }
    }
}

/// Sends a confirmation or a refusal after the time `after`. `given` becomes true if it was a confirmation.
fn give_later(after: Duration, is_given: bool, given: Arc<AtomicBool>) -> AwaitedConfirmation {
    let (sender, awaited) = AwaitedConfirmation::new();
    task::spawn(async move {
        sleep(after).await;
        given.store(is_given, Ordering::Relaxed);
        sender.give(if is_given { Ok(()) } else { Err(ErrorCode::NOT_ENOUGH_REPLICAS) });
    });
    awaited
}

/// Writes the marker of the last transaction, with retries, until it is acknowledged or its partition is gone.
async fn end(brokers: &Brokers, client: &Mutex<Transactional>) {
    let world = &brokers[0].world;
    let (marker, topic) = {
        let client = client.lock();
        let Some(of) = client.transactions.last() else { return };
        let decided = of.decision == Some(true);
        let is_commit = decided != (world.setup.fault == Some(Fault::MarksOtherwise));
        let producer_epoch = of.epoch + 1;
        let of_client = Marker { producer_id: client.producer_id(), producer_epoch, coordinator_epoch: 0, is_commit };
        (of_client, of.topic)
    };
    let begun = world.now();
    while world.topic.lock().current == Some(topic) && world.setup.fault != Some(Fault::LeavesOpen) {
        let life = any(brokers, client);
        if let Some(partition) = partition_at(&life, client, topic).await {
            // Sometimes the coordinator gives up soon and writes the marker again. The log may then have both markers.
            let patience = if client.lock().by.below(8) == 0 { ms(100) } else { TIMEOUT };
            let written = timeout(patience, partition.write_marker(&marker, VERSION)).await;
            world.report(|| format!("{marker:?}: {written:?}"));
            match written {
                Ok(Ok(()) | Err(AppendError::Deleted)) => break,
                Ok(Err(AppendError::Sequence(why))) => {
                    world.wrong(|| format!("{marker:?} is refused: {why:?}"));
                    break;
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
        if world.is_late(begun) {
            world.wrong(|| format!("{marker:?} is not written"));
            return;
        }
        let backoff = client.lock().by.below(200);
        sleep(ms(backoff)).await;
    }
    client.lock().is_under_way = false;
}

/// The batches of transactions that were found in a log, with their offsets.
#[derive(Default)]
pub struct Logged {
    batches: Vec<(i64, (usize, i16, i32))>,
}

impl Logged {
    /// Records a batch at offset `base` if it belongs to a transaction and is not before `begin`. Returns true if the
    /// batch is transactional or a marker.
    pub fn take(&mut self, base: i64, begin: i64, view: &BatchView<'_>) -> bool {
        if base >= begin
            && view.is_transactional()
            && !view.is_control()
            && let Some(name) = name(view)
        {
            self.batches.push((base, name));
        }
        view.is_transactional() || view.is_control()
    }

    /// Checks which batches in a partition of this topic are committed and which are aborted.
    pub fn check(&self, world: &World, (topic, partition): (Uuid, i32), aborted: &[AbortedTransaction]) {
        let is_aborted = |base: i64, client: usize| {
            let is_of = |of: &&AbortedTransaction| of.producer_id == FIRST_PRODUCER + client as i64;
            aborted.iter().filter(is_of).any(|of| (of.first_offset..=of.last_offset).contains(&base))
        };
        let may_be_deleted = world.deleted_to.lock().contains_key(&(topic, partition));
        let there: HashSet<_> = self.batches.iter().map(|(_, name)| *name).collect();
        if there.len() < self.batches.len() {
            world.wrong(|| format!("a batch of a transaction is in partition {partition} twice"));
        }
        for client in &world.transactional {
            let client = client.lock();
            let here = client.transactions.iter().filter(|of| of.topic == topic && client.partition == partition);
            for of in here {
                let is_committed = of.decision == Some(true);
                let found = self.batches.iter().filter(|(_, (by, epoch, _))| (*by, *epoch) == (client.index, of.epoch));
                for (base, _) in found.filter(|(base, _)| is_aborted(*base, client.index) == is_committed) {
                    world.wrong(|| format!("at {base} of {partition} {of:?} is otherwise"));
                }
                let is_whole = (0..of.batches).all(|number| there.contains(&(client.index, of.epoch, number)));
                if is_committed && !is_whole && !may_be_deleted {
                    world.wrong(|| format!("{of:?} of client {} is not whole in {partition}", client.index));
                }
            }
        }
    }
}

/// Returns the numbers in the first record of a batch: the client, the epoch, and the batch. Returns `None` if the
/// record does not have them.
fn name(view: &BatchView<'_>) -> Option<(usize, i16, i32)> {
    let first = RecordIter::new(view.payload(), view.record_count()).next()?.ok()?;
    let mut numbers = std::str::from_utf8(first.value?).ok()?.strip_prefix('T')?.split(['.', ' ']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

impl Life {
    /// Checks that every transaction in a partition has ended. Also checks the batches of transactions that were read
    /// from its log.
    pub async fn check_transactions(&self, partition: &DisklessPartition, topic: Uuid, logged: &Logged, end: i64) {
        let Some(number) = partition.view.number() else { return };
        let row = self.finder.partitions(vec![number]).await.expect("found").pop();
        if let Some(row) = row.filter(|row| row.first_unstable.is_some()) {
            self.world.wrong(|| format!("a transaction never ends: {row:?}"));
        }
        let aborted = self.finder.aborted(number, 0..end, PRODUCERS_MAX + 1).await.expect("found").transactions;
        logged.check(&self.world, (topic, partition.view.index()), &aborted);
    }
}
