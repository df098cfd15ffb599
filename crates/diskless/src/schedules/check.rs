//! The checks of a schedule. Some run when a batch is answered, others at the end, after the last fault.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use fullbore_rules::commit::ObjectId;
use fullbore_wire::Uuid;
use fullbore_wire::batch::BatchView;
use tokio::time::sleep;

use super::consumer::{WRITTEN, read_on};
use super::partition_producer::{BatchFate, PartitionProducer, ProducerBatch};
use super::transactional::Logged;
use super::world::{World, ms};
use super::{CLUSTER, Life};
use crate::DisklessPartition;
use crate::index::SqliteIndex;

/// Jump of the wall clock, in ms, after which the grace period of uncommitted objects is over.
const HOUR_MS: i64 = 5_000_000;
/// Jump of the wall clock, in ms, after which the broker deletes objects for the second time.
const DAY_MS: i64 = 90_000_000;

impl Life {
    /// Checks a batch that is about to be acknowledged at `offset`: the index must have its extent, and the store its
    /// object.
    pub async fn check_is_there(&self, partition: &DisklessPartition, offset: i64, topic: Uuid) {
        let Some(number) = partition.view.number() else { return };
        let found = self.finder.runs_from(number, offset, 1).await.expect("found");
        // If the record was deleted, its extent and its object may be missing.
        let deleted_to = self.world.deleted_to.lock().get(&(topic, partition.view.index())).copied();
        let log_start = partition.view.offsets().log_start.max(deleted_to.unwrap_or(0));
        let may_be_gone = self.world.topic.lock().current != Some(topic) || offset < log_start;
        let run = found.first().filter(|run| run.placed().any(|(_, base, _)| base == offset));
        let Some(run) = run else {
            if !may_be_gone {
                self.world.wrong(|| format!("offset {offset} is acknowledged, and not committed: {found:?}"));
            }
            return;
        };
        let sizes: HashMap<_, _> = self.world.store.objects().await.into_iter().collect();
        let size = sizes.get(&path_of(run.object)).copied().unwrap_or(0);
        if size < u64::from(run.end_position()) && !may_be_gone {
            self.world.wrong(|| format!("offset {offset} is acknowledged, and its object has {size} bytes"));
        }
    }
}

fn path_of(object: ObjectId) -> object_store::path::Path {
    object_store::path::Path::from(format!("{CLUSTER}/{:02x}/{object:016x}", object.rem_euclid(256)))
}

/// Returns how many batches were acknowledged.
pub fn acknowledged(world: &World) -> usize {
    let of =
        |producer: &PartitionProducer| producer.batches.iter().filter(|batch| batch.fate != BatchFate::GivenUp).count();
    world.producers.iter().map(|producer| of(&producer.lock())).sum()
}

/// Checks the log, the index and the store at the end of a schedule, after the last fault. The brokers are started
/// again for this, with nothing in memory.
pub async fn check(world: &Arc<World>) {
    while world.untroubled_since().is_none() {
        sleep(ms(1_000)).await;
    }
    let brokers = Life::start_all(world, 99);
    let topic = world.topic.lock().current;
    if let Some(topic) = topic {
        for index in 0..world.setup.partitions {
            let replica = |broker: &Arc<Life>| broker.diskless.find(&topic, index).expect("it was put");
            let replicas: Vec<_> = brokers.iter().map(replica).collect();
            for replica in &replicas {
                replica.view.opened().await;
            }
            let begin = read_on(world, &replicas, topic, 1 << 20, true).await;
            let end = replicas[0].view.offsets().log_end;
            let logged = check_log(world, (topic, index), begin, end);
            brokers[0].check_transactions(&replicas[0], topic, &logged, end).await;
        }
    }
    check_rows(world).await;
    // In half of the schedules, late PUTs arrive before the GC deletes orphans. In the others, they arrive afterwards.
    if world.setup.seed.is_multiple_of(2) {
        world.store.hurry().await;
    }
    sleep(ms(5_000)).await;
    world.skew(HOUR_MS);
    sleep(ms(65_000)).await;
    check_orphans(world, true).await;
    world.store.hurry().await;
    world.skew(DAY_MS);
    sleep(ms(65_000)).await;
    check_orphans(world, false).await;
    check_rows(world).await;
}

/// A batch that was found in the log. Its records contain the number of its producer and the number of the batch.
struct Found<'a> {
    producer: usize,
    number: usize,
    view: BatchView<'a>,
}

fn found(bytes: &[u8]) -> Option<Found<'_>> {
    let view = BatchView::first(bytes).ok()?;
    let first = fullbore_wire::batch::RecordIter::new(view.payload(), view.record_count()).next()?.ok()?;
    let name = std::str::from_utf8(first.value?).ok()?;
    let mut numbers = name.split(['.', ' ']).map(str::parse);
    Some(Found { producer: numbers.next()?.ok()?, number: numbers.next()?.ok()?, view })
}

/// Checks the records of a partition from the log start to the log end. Returns the batches that belong to
/// transactions.
fn check_log(world: &World, key: (Uuid, i32), begin: i64, end: i64) -> Logged {
    let seen = world.seen.lock();
    let nothing = BTreeMap::new();
    let log = seen.get(&key).unwrap_or(&nothing);
    let (mut next, mut there, mut logged) = (None, HashSet::new(), Logged::default());
    let mut producers: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut sequences: HashMap<i64, (i16, i32)> = HashMap::new();
    for (&base, written) in log {
        // `written` lacks the first bytes of the batch, which the broker rewrites. `whole` adds such bytes, with which
        // the batch can be parsed. They are not compared.
        let bytes = whole(base, written);
        if next.is_some_and(|next| next != base) {
            // The batches in the gap were deleted before the consumer read them, so their sequences are unknown.
            sequences.clear();
        }
        if base > begin && next.is_some_and(|next| next != base) {
            world.wrong(|| format!("at {base} of {} there is a gap, or an overlap: {next:?}", key.1));
        }
        if let Ok(view) = BatchView::first(&bytes)
            && logged.take(base, begin, &view)
        {
            next = Some(super::consumer::end_of(&view));
            continue;
        }
        let Some(Found { producer, number, view }) = found(&bytes) else {
            world.wrong(|| format!("at {base} of {} is nobody's batch", key.1));
            return logged;
        };
        next = Some(super::consumer::end_of(&view));
        let of = world.producers[producer].lock();
        let batch = &of.batches[number];
        if batch.bytes[WRITTEN..] != written[..] || of.partition != key.1 {
            world.wrong(|| format!("at {base} of {} batch {producer}.{number} is another than was sent", key.1));
        }
        if !there.insert((producer, number)) {
            world.wrong(|| format!("batch {producer}.{number} is there again at {base} of {}", key.1));
        }
        if batch.fate == BatchFate::GivenUp && !batch.may_be_written {
            world.wrong(|| format!("batch {producer}.{number} is at {base}, and was refused"));
        }
        // The order of a given-up batch without a sequence is not checked, because a later batch may have overtaken it
        // over another connection.
        if of.is_idempotent() || batch.fate != BatchFate::GivenUp {
            producers.entry(producer).or_default().push(number);
        }
        check_sequence(world, &mut sequences, base, &view);
    }
    if begin < end && next.is_some_and(|next| next != end) || (next.is_none() && begin != end) {
        world.wrong(|| format!("what is read of {} ends at {next:?}, not at {end}", key.1));
    }
    for (producer, numbers) in producers {
        if !numbers.is_sorted() {
            world.wrong(|| format!("the batches of {producer} are out of order: {numbers:?}"));
        }
    }
    for producer in &world.producers {
        let producer = producer.lock();
        for (number, batch) in producer.batches.iter().enumerate().filter(|_| producer.partition == key.1) {
            check_acknowledged(world, producer.index, number, batch, key.0, begin, log);
        }
    }
    logged
}

fn whole(base: i64, written: &Bytes) -> Vec<u8> {
    let mut bytes = base.to_be_bytes().to_vec();
    bytes.extend((written.len() as i32 + 4).to_be_bytes());
    bytes.extend(0_i32.to_be_bytes());
    bytes.extend(written);
    bytes
}

/// Checks that the batches of an epoch have consecutive sequences.
fn check_sequence(world: &World, sequences: &mut HashMap<i64, (i16, i32)>, base: i64, view: &BatchView<'_>) {
    let (id, epoch, sequence) = (view.producer_id(), view.producer_epoch(), view.base_sequence());
    if id == -1 {
        return;
    }
    let next = sequence + view.record_count();
    if let Some((of_epoch, expected)) = sequences.insert(id, (epoch, next))
        && (epoch < of_epoch || epoch == of_epoch && sequence != expected || epoch > of_epoch && sequence != 0)
    {
        world.wrong(|| format!("at {base}: epoch {epoch}, sequence {sequence} of {id} after {of_epoch}, {expected}"));
    }
}

fn check_acknowledged(
    world: &World,
    producer: usize,
    number: usize,
    batch: &ProducerBatch,
    topic: Uuid,
    begin: i64,
    log: &BTreeMap<i64, Bytes>,
) {
    let BatchFate::Acknowledged { topic: of, offset } = batch.fate else {
        if batch.fate == BatchFate::Open {
            world.wrong(|| format!("batch {producer}.{number} has no outcome"));
        }
        return;
    };
    if of != topic || offset != -1 && offset + i64::from(batch.record_count) <= begin {
        return;
    }
    let is_it = |bytes: &Bytes| bytes[..] == batch.bytes[WRITTEN..];
    let is_there = match offset {
        // The batch may have been deleted in the meantime.
        -1 => begin > 0 || log.values().any(is_it),
        offset => log.get(&offset).is_some_and(is_it),
    };
    if !is_there {
        world.wrong(|| format!("batch {producer}.{number} is acknowledged at {offset}, and is not there"));
    }
}

/// Returns the objects in the index, each with two values. The first is true if the object was deleted from the store.
/// The second is the position of its last extent.
fn objects(world: &World) -> HashMap<ObjectId, (bool, Option<i64>)> {
    let index = SqliteIndex::open(&world.directory).expect("opened");
    index.objects().into_iter().map(|(id, is_deleted, position)| (id, (is_deleted, position))).collect()
}

/// Checks that the object of every extent exists.
async fn check_rows(world: &World) {
    let there: HashMap<_, _> = world.store.objects().await.into_iter().collect();
    for (id, (_, position)) in objects(world) {
        let Some(position) = position else { continue };
        if there.get(&path_of(id)).is_none_or(|size| *size <= position as u64) {
            world.wrong(|| format!("object {id} has rows, and is not there"));
        }
    }
}

/// Checks that every object in the store has an extent. If `may_be_late` is true, also accepts objects that will be
/// deleted a second time.
async fn check_orphans(world: &World, may_be_late: bool) {
    let rows = objects(world);
    let rows: HashMap<_, _> = rows.into_iter().map(|(id, of)| (path_of(id), of)).collect();
    for (path, size) in world.store.objects().await {
        let of = rows.get(&path).copied();
        let is_used = of.is_some_and(|(is_deleted, position)| position.is_some() || may_be_late && is_deleted);
        if !is_used {
            world.wrong(|| format!("object {path} of {size} bytes is an orphan: {of:?}"));
        }
    }
}
