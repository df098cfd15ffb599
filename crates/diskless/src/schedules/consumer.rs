//! The clients that consume. They check that a record, once read, does not disappear, and that reads skip no offset.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fullbore_wire::batch::{BatchView, batches};
use fullbore_wire::{Records, Uuid};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::Brokers;
use super::world::{World, ms};
use crate::DisklessPartition;
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::read::Isolation::ReadUncommitted;
use fullbore_log::partition::read::Read;

/// The batches that were read: for each topic and partition, by their first offsets.
pub type Seen = HashMap<(Uuid, i32), BTreeMap<i64, Bytes>>;
/// The position in a batch of the first byte that its producer has written. The broker writes all bytes before it.
pub const WRITTEN: usize = 16;
/// How long reads may take to succeed after the last fault.
const READ_WITHIN: Duration = Duration::from_secs(15);

/// Maximum number of reads without progress of the virtual time.
const ROUNDS_MAX: usize = 5_000;

/// Reads a partition of the topic from its beginning until the topic is deleted. Continues with the same partition of
/// the next topic of this name, forever.
pub async fn consume(brokers: Brokers, partition: i32, max_bytes: u32) {
    let world = &brokers[0].world;
    loop {
        let current = world.topic.lock().current;
        let at =
            |id: Uuid| brokers.iter().map(|broker| broker.diskless.find(&id, partition)).collect::<Option<Vec<_>>>();
        if let Some((id, replicas)) = current.and_then(|id| Some((id, at(id)?))) {
            for replica in &replicas {
                replica.view.opened().await;
            }
            read_on(world, &replicas, id, max_bytes, false).await;
        }
        sleep(ms(100)).await;
    }
}

/// Reads until the partition is deleted, and changes the broker from time to time. If `to_end` is true, stops at the
/// end of the partition. Returns the offset at which the first read began.
pub async fn read_on(
    world: &World,
    replicas: &[Arc<DisklessPartition>],
    id: Uuid,
    max_bytes: u32,
    to_end: bool,
) -> i64 {
    let mut at_broker = 0;
    let index = replicas[0].view.index();
    let begin = replicas[0].view.offsets().log_start;
    // The broker returns the first batch as a whole, so its base offset may be before the log start.
    let (mut offset, mut end) = (begin, 0);
    let (mut since, mut began) = (std::time::Instant::now(), world.now());
    let mut rounds = (world.now(), 0);
    while world.found_wrong().is_none() {
        rounds = if rounds.0 == world.now() { (rounds.0, rounds.1 + 1) } else { (world.now(), 0) };
        if rounds.1 > ROUNDS_MAX {
            world.wrong(|| format!("who reads {index} from {offset} goes round in a circle"));
            break;
        }
        let partition = &replicas[at_broker];
        let waiter = Arc::new(Notify::new());
        let _registration = partition.view.register(&waiter);
        match partition.try_read(ReadUncommitted, offset, max_bytes, true, since, 1) {
            Ok(Some(read)) => {
                if read.high_watermark < end {
                    world.wrong(|| {
                        format!("the high watermark of {index} goes back from {end} to {}", read.high_watermark)
                    });
                }
                end = read.high_watermark;
                let next = take(world, (id, index), offset, read);
                if next == offset {
                    if to_end {
                        return begin;
                    }
                    let _ = timeout(ms(2_000), waiter.notified()).await;
                }
                if replicas.len() > 1 && next != offset && next % 3 == 0 {
                    // The next broker may know fewer commits, so its high watermark may be lower.
                    (at_broker, end) = ((at_broker + 1) % replicas.len(), 0);
                }
                offset = next;
                (since, began) = (std::time::Instant::now(), world.now());
            }
            Ok(None) => {
                let is_woken = timeout(ms(5_000), waiter.notified()).await.is_ok();
                if !is_woken && world.untroubled_since().is_some_and(|at| world.now() > at.max(began) + READ_WITHIN) {
                    world.wrong(|| format!("partition {index} is not read from {offset}"));
                    return begin;
                }
            }
            Err(ReadError::OffsetOutOfRange) => {
                let offsets = partition.view.offsets();
                if offset > offsets.log_end {
                    world.wrong(|| format!("offset {offset} of {index} is past {offsets:?}"));
                }
                offset = offsets.log_start;
            }
            Err(ReadError::Gone) => return begin,
            Err(error) => {
                if world.untroubled_since().is_some_and(|at| world.now() > at + READ_WITHIN) {
                    world.wrong(|| format!("partition {index} cannot be read from {offset}: {error:?}"));
                    return begin;
                }
                sleep(ms(100)).await;
                since = std::time::Instant::now();
            }
        }
    }
    begin
}

/// Checks and records the result of a read from `offset` on. Returns the offset of the next read.
fn take(world: &World, key: (Uuid, i32), offset: i64, read: Read) -> i64 {
    let bytes = match read.records {
        Records::Memory(bytes) => bytes,
        Records::Pieces(pieces) => Bytes::from(pieces.concat()),
        Records::File(_) | Records::Ranges(_) => Bytes::new(),
    };
    let mut seen = world.seen.lock();
    let seen = seen.entry(key).or_default();
    let mut next = offset;
    for batch in batches(&bytes) {
        let Ok(batch) = batch else {
            world.wrong(|| format!("what is read at {next} of {} is no batch", key.1));
            return next;
        };
        let base = batch.base_offset();
        let end = end_of(&batch);
        // The consumer does not always learn that records were deleted, so gaps before `deleted_to` are allowed.
        let may_be_deleted = base <= world.deleted_to.lock().get(&key).copied().unwrap_or(0);
        let is_next = if next == offset { base <= offset && offset < end } else { base == next } || may_be_deleted;
        if !is_next || end > read.high_watermark {
            world.wrong(|| format!("at {next} of {} {base}..{end} is read, up to {}", key.1, read.high_watermark));
        }
        let written = Bytes::copy_from_slice(&batch.bytes()[WRITTEN..]);
        if let Some(before) = seen.insert(base, written.clone())
            && before != written
        {
            world.wrong(|| format!("offset {base} of {} was another batch before", key.1));
        }
        next = end;
    }
    next
}

/// Returns the offset after a batch.
pub fn end_of(batch: &BatchView<'_>) -> i64 {
    batch.base_offset() + i64::from(batch.last_offset_delta()) + 1
}
