//! A partition as requests see it, whichever kind of topic it is of.
//!
//! Classic: a log on this broker's disk, which may have followers. Diskless: objects in a store. What only one of the kinds has, its own module
//! says; what an API needs is here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fullbore_rules::commit::admission::Known;
use fullbore_rules::sequence::{ProducerState, Stamp};
use fullbore_wire::ErrorCode;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use crate::diskless::LEADER_EPOCH;
use crate::diskless::{Admitted, DisklessPartition, LeftOut, LookedAt, PendingAnswer};
use crate::replica::Replica;
use fullbore_host::long_work::LongWork;
use fullbore_log::partition::budget::{ProducerKey, Room};
use fullbore_log::partition::error::{AppendError, ReadError};
use fullbore_log::partition::read::{EpochEnd, LogOffsets, Read, TimestampOffset};
use fullbore_log::partition::reorder::{BatchAdmission, EarlyBatches, ParkedAnswer};
use fullbore_log::partition::ticket::{Acks, Appended};
use fullbore_log::partition::waiters::Registration;
use fullbore_log::validation::ValidBatch;

/// One partition.
#[derive(Clone)]
pub enum AnyPartition {
    /// In a log.
    Classic(Arc<Replica>),
    /// In an object store.
    Diskless(Arc<DisklessPartition>),
}

/// How a batch is to be appended.
#[derive(Clone, Copy)]
pub struct PartitionAppend<'a> {
    /// How far it must be before it is answered; a diskless one is in the store then in any case.
    pub acks: Acks,
    /// The wall clock in ms.
    pub now_ms: i64,
    /// What becomes of it where it comes before its turn.
    pub early: EarlyBatches<'a>,
    /// The client whose connection it came over.
    pub peer: SocketAddr,
}

/// What has to be waited for before a batch can be appended, for as long as which its connection reads nothing else.
#[derive(Debug, Clone, Copy)]
pub enum Lack {
    /// Batches that others have committed for this producer.
    Known(i64),
    /// Room in bytes for a batch of this producer.
    Room(ProducerKey, usize),
}

/// Look-ups and memory that a request has waited for.
#[derive(Debug, Default)]
pub struct Waited {
    /// Partitions of the request that were looked at.
    looked: LookedAt,
    /// Room for its next batch.
    room: Option<Room>,
}

impl Waited {
    /// Returns true if any partition of the request was looked at.
    pub fn has_looked(&self) -> bool {
        !self.looked.is_empty()
    }

    /// Gives back what was waited for of a batch and is not used.
    pub fn next_batch(&mut self) {
        self.room = None;
    }
}

/// What is known of a batch that is taken.
#[derive(Debug)]
pub enum BatchAnswer {
    /// It has its offset.
    Appended(Appended),
    /// The answer is to come.
    Later(LaterAnswer),
    /// It is not taken yet.
    Lacks(Lack),
}

/// The answer of a batch, to come. Dropping it changes nothing for the batch.
#[derive(Debug)]
pub enum LaterAnswer {
    /// It waits for its turn, in which it is appended.
    Parked(ParkedAnswer),
    /// It waits for its turn, which comes until then or not at all, and is then on its way to the store and the index.
    ParkedOnItsWay(ParkedAnswer, tokio::time::Instant, LeftOut),
    /// It is on its way to the store and the index.
    Pending(PendingAnswer, LeftOut),
}

impl AnyPartition {
    /// Appends one batch, finds it appended, or takes it on its way to that. Its sequence is checked here. To be called in a tokio runtime.
    ///
    /// # Errors
    /// [`AppendError`]; the partition is then as it was before.
    pub fn append(
        &self,
        batch: &ValidBatch<'_>,
        how: PartitionAppend<'_>,
        waited: &mut Waited,
    ) -> Result<BatchAnswer, AppendError> {
        let PartitionAppend { acks, now_ms, early, peer } = how;
        match self {
            AnyPartition::Classic(replica) if !early.are_sent => {
                replica.append(batch, acks, now_ms).map(BatchAnswer::Appended)
            }
            AnyPartition::Classic(replica) => Ok(match replica.append_in_turn(batch, acks, now_ms, early.wait_in)? {
                BatchAdmission::Appended(appended) => BatchAnswer::Appended(appended),
                BatchAdmission::Parked(answer) => BatchAnswer::Later(LaterAnswer::Parked(answer)),
            }),
            AnyPartition::Diskless(partition) => {
                let room = waited.room.take();
                let known = match partition.known.number().and_then(|number| waited.looked.get(&number)) {
                    Some(Err(why)) => {
                        partition.turned_away(&batch.stamp(), why.code());
                        return Err(*why);
                    }
                    // The look began after the batch had come, with the rest of its request.
                    Some(Ok(())) => Known::Now,
                    None => Known::Perhaps,
                };
                let producer = ProducerKey::of(&batch.stamp(), peer);
                Ok(match partition.admit(batch, (acks, now_ms, early), (producer, known, room))? {
                    Admitted::Known(appended) => BatchAnswer::Appended(appended),
                    Admitted::Pending(answer) => {
                        BatchAnswer::Later(LaterAnswer::Pending(answer, partition.left_out().clone()))
                    }
                    Admitted::Parked(answer) => {
                        let turn = early.wait_in.map_or(tokio::time::Instant::now(), |reordering| reordering.until());
                        BatchAnswer::Later(LaterAnswer::ParkedOnItsWay(answer, turn, partition.left_out().clone()))
                    }
                    Admitted::Ask => BatchAnswer::Lacks(Lack::Known(batch.stamp().producer_id)),
                    Admitted::Full(size) => BatchAnswer::Lacks(Lack::Room(producer, size)),
                })
            }
        }
    }

    /// Notes that a batch was refused with this error before [`AnyPartition::append`]: what is behind it may be in flight.
    pub fn turned_away(&self, stamp: &Stamp, code: ErrorCode) {
        match self {
            AnyPartition::Classic(replica) => replica.turned_away(stamp, code),
            AnyPartition::Diskless(partition) => partition.turned_away(stamp, code),
        }
    }

    /// Waits for what a batch lacks, and what those of `others` of its request lack of the same, not longer than until
    /// then.
    pub async fn wait_for(
        &self,
        (lack, others): (Lack, &[Arc<DisklessPartition>]),
        waited: &mut Waited,
        deadline: Option<tokio::time::Instant>,
    ) {
        let AnyPartition::Diskless(partition) = self else { return };
        // Where the broker is left out meanwhile, the next look at the partition refuses the batch.
        let came = partition.left_out().unless(async {
            match lack {
                Lack::Known(_) => partition.look_with(others, &mut waited.looked).await,
                Lack::Room(producer, size) => waited.room = partition.room(producer, size).await,
            }
        });
        let in_time = match deadline {
            Some(deadline) => timeout_at(deadline, came).await.is_ok(),
            None => {
                let _ = came.await;
                true
            }
        };
        if !in_time && let Some(number) = partition.known.number() {
            waited.looked.entry(number).or_insert(Err(AppendError::Role(ErrorCode::REQUEST_TIMED_OUT)));
        }
    }
}

impl LaterAnswer {
    /// Waits for it, for the store and the replicas not longer than until then, and for its turn not longer than until others are
    /// held up for long.
    ///
    /// # Errors
    /// [`AppendError`]. Of a batch that is on its way or waits for its turn REQUEST_TIMED_OUT, and NOT_LEADER_OR_FOLLOWER of one that is on its way
    /// to the store, say nothing of what will become of it: when it is sent again, that is found.
    pub async fn wait(
        self,
        deadline: tokio::time::Instant,
        others_are_held_up: impl Future<Output = ()>,
    ) -> Result<Appended, AppendError> {
        let late = AppendError::Role(ErrorCode::REQUEST_TIMED_OUT);
        let (answer, on_its_way) = match self {
            LaterAnswer::Parked(answer) => (answer, None),
            LaterAnswer::ParkedOnItsWay(answer, turn, left_out) => (answer, Some((deadline.max(turn), left_out))),
            LaterAnswer::Pending(answer, left_out) => {
                return match left_out.unless(timeout_at(deadline, answer)).await {
                    Ok(Ok(answered)) => answered.unwrap_or(Err(AppendError::Gone)),
                    Ok(Err(_)) => Err(late),
                    Err(moved) => Err(AppendError::Role(moved)),
                };
            }
        };
        let answered = async {
            match on_its_way {
                Some((until, left_out)) => match left_out.unless(timeout_at(until, answer.wait())).await {
                    Ok(answered) => answered.unwrap_or(Err(late)),
                    Err(moved) => Err(AppendError::Role(moved)),
                },
                None => answer.wait().await,
            }
        };
        tokio::select! {
            biased;
            answered = answered => answered,
            () = others_are_held_up => Err(late),
        }
    }
}

/// Whether it can be used.
impl AnyPartition {
    /// Whether nobody has to wait for it to be opened.
    pub fn is_settled(&self) -> bool {
        match self {
            AnyPartition::Classic(replica) => replica.is_settled(),
            AnyPartition::Diskless(partition) => partition.known.is_settled(),
        }
    }

    /// Refuses what needs the log while a write to it may hang, or the object store while others have it alone.
    ///
    /// # Errors
    /// KAFKA_STORAGE_ERROR; NOT_LEADER_OR_FOLLOWER where another broker leads by now.
    pub fn check_answers(&self) -> Result<(), ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.check_answers(),
            AnyPartition::Diskless(partition) => partition.left_out().check(),
        }
    }

    /// Whether something has to be made on a disk before it can be written.
    pub fn is_unwritten(&self) -> bool {
        match self {
            AnyPartition::Classic(replica) => !replica.is_open(),
            AnyPartition::Diskless(_) => false,
        }
    }

    /// Whether somebody sees to it that it is opened.
    pub fn is_being_opened(&self) -> bool {
        match self {
            AnyPartition::Classic(replica) => replica.is_being_opened(),
            AnyPartition::Diskless(partition) => !partition.known.is_gone(),
        }
    }

    /// Whether its folder is being made, which is over soon.
    pub fn is_being_made(&self) -> bool {
        match self {
            AnyPartition::Classic(replica) => replica.is_being_made(),
            AnyPartition::Diskless(_) => false,
        }
    }

    /// Has it opened, if it is not. Waits for nobody.
    pub fn ask_to_open(&self) {
        match self {
            AnyPartition::Classic(replica) => replica.ask_to_open(),
            // The index is told of it until it knows.
            AnyPartition::Diskless(_) => {}
        }
    }

    /// Waits until it is open, or will not be.
    pub async fn opened(&self) {
        match self {
            // Why not is told by who uses it then.
            AnyPartition::Classic(replica) => drop(replica.opened().await),
            AnyPartition::Diskless(partition) => partition.known.opened().await,
        }
    }

    /// Has what is known of the offsets of these partitions be no older than this call, also where other brokers write them.
    ///
    /// # Errors
    /// It could not be found out of the diskless ones.
    pub async fn refresh(partitions: &[AnyPartition]) -> Result<(), ReadError> {
        let of = |partition: &AnyPartition| match partition {
            AnyPartition::Classic(_) => None,
            AnyPartition::Diskless(partition) => Some(Arc::clone(partition)),
        };
        DisklessPartition::refresh(&partitions.iter().filter_map(of).collect::<Vec<_>>()).await
    }

    /// The same of this one, after that has come to `refreshed`.
    ///
    /// # Errors
    /// What was found out then, if it matters for this partition.
    pub fn is_refreshed(&self, refreshed: Result<(), ReadError>) -> Result<(), ReadError> {
        match self {
            AnyPartition::Classic(_) => Ok(()),
            AnyPartition::Diskless(_) => refreshed,
        }
    }

    /// Wakes `waiter` each time there may be more to read, and when the partition goes, until the registration is dropped. Register, then
    /// look, then wait.
    pub fn register(&self, waiter: &Arc<Notify>) -> Registration {
        match self {
            AnyPartition::Classic(replica) => replica.register(waiter),
            AnyPartition::Diskless(partition) => partition.known.register(waiter),
        }
    }

    /// Compares the leader epoch a client believes in with the one in force (KIP-320; -1 means it has none), and whether this
    /// broker leads.
    ///
    /// # Errors
    /// FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER.
    pub fn check_leads(&self, believed: i32) -> Result<(), ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.check_leads(believed),
            // No record was ever cut off, whatever epoch a client knows.
            AnyPartition::Diskless(_) => Ok(()),
        }
    }

    /// The epoch in force.
    pub fn leader_epoch(&self) -> i32 {
        match self {
            AnyPartition::Classic(replica) => replica.leader_epoch(),
            AnyPartition::Diskless(_) => LEADER_EPOCH,
        }
    }
}

/// What is read of it.
impl AnyPartition {
    /// Batches from the one with `offset` on, up to the high watermark and about `max_bytes`; with `at_least_one` the first is whole whatever its
    /// size, without it there may be nothing. `None` while the log is opened, or the records are fetched: waiters are woken when that is
    /// done. A failure of that counts if it was since then.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn try_read(
        &self,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
        since: Instant,
    ) -> Result<Option<Read>, ReadError> {
        match self {
            AnyPartition::Classic(replica) if replica.is_settled() => {
                replica.read(offset, max_bytes, at_least_one).map(Some)
            }
            AnyPartition::Classic(replica) => match replica.open_failure_since(since) {
                Some(error) => Err(error.into()),
                None => {
                    replica.ask_to_open();
                    Ok(None)
                }
            },
            AnyPartition::Diskless(partition) => partition.try_read(offset, max_bytes, at_least_one, since),
        }
    }

    /// Returns the bytes that may be read from the batch with `offset` on, or any number over `enough` if there are more. `None` if reading them
    /// costs no more than counting them, or is the only way to count them.
    pub fn count(&self, offset: i64, enough: u64) -> Option<u64> {
        match self {
            // A read is ranges of files.
            AnyPartition::Classic(_) => None,
            AnyPartition::Diskless(partition) => partition.count(offset, enough),
        }
    }

    /// As [`AnyPartition::try_read`], whole batches only: the result has the offset after them.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn try_read_whole(
        &self,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
        since: Instant,
    ) -> Result<Option<Read>, ReadError> {
        match self {
            AnyPartition::Classic(replica) if replica.is_settled() => {
                replica.read_whole(offset, max_bytes, at_least_one).map(Some)
            }
            // Nothing is cut of diskless ones.
            _ => self.try_read(offset, max_bytes, at_least_one, since),
        }
    }

    /// Log start, high watermark and log end.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn offsets(&self) -> Result<LogOffsets, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.offsets(),
            AnyPartition::Diskless(partition) => Ok(partition.known.offsets()),
        }
    }

    /// Returns the offsets without a wait; `None` while the partition is opened.
    pub fn known_offsets(&self) -> Option<LogOffsets> {
        if self.is_settled() { self.offsets().ok() } else { None }
    }

    /// Returns the log start with the epoch whose leader wrote there: -1 where that is not known. The timestamp is -1.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn earliest(&self) -> Result<TimestampOffset, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.earliest(),
            AnyPartition::Diskless(partition) => {
                let offset = partition.known.offsets().log_start;
                Ok(TimestampOffset { offset, timestamp: -1, leader_epoch: LEADER_EPOCH })
            }
        }
    }

    /// The end of what ListOffsets may tell (KIP-207).
    ///
    /// # Errors
    /// OFFSET_NOT_AVAILABLE while an earlier leader may have told a larger one; the disk; NOT_LEADER_OR_FOLLOWER.
    pub fn latest_offset(&self) -> Result<i64, ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.latest_offset(),
            AnyPartition::Diskless(partition) => Ok(partition.known.offsets().log_end),
        }
    }

    /// The first record whose timestamp is at least `timestamp_ms`; `None` if all are older. Goes to the disk, in a place for `long` work, or
    /// to the store. Batches are read, and opened where they are compressed.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn offset_for_timestamp(
        &self,
        timestamp_ms: i64,
        long: &LongWork,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        match self {
            AnyPartition::Classic(replica) => long.run(|| replica.offset_for_timestamp(timestamp_ms)).await,
            AnyPartition::Diskless(partition) => Box::pin(partition.offset_for_timestamp(timestamp_ms, long)).await,
        }
    }

    /// The first record with the largest timestamp. As [`AnyPartition::offset_for_timestamp`].
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn max_timestamp(&self, long: &LongWork) -> Result<Option<TimestampOffset>, ReadError> {
        match self {
            AnyPartition::Classic(replica) => long.run(|| replica.max_timestamp()).await,
            AnyPartition::Diskless(partition) => Box::pin(partition.max_timestamp(long)).await,
        }
    }

    /// Where the log of a leader epoch ends (KIP-101), or of the largest known one before it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn epoch_end_offset(&self, leader_epoch: i32) -> Result<EpochEnd, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.epoch_end_offset(leader_epoch),
            AnyPartition::Diskless(partition) => Ok(partition.known.epoch_end_offset(leader_epoch)),
        }
    }

    /// What is known of each idempotent producer, the longest idle first.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn producers(&self) -> Result<Vec<ProducerState>, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.producers(),
            AnyPartition::Diskless(partition) => Box::pin(partition.producers()).await,
        }
    }
}
