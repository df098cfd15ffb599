//! Partition as requests see it, of a classic or a diskless topic.
//!
//! Classic: a log on this broker's disk, which may have followers. Diskless: objects in a store. Operations that the
//! APIs need are here; an operation of only one kind is in that kind's module.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_rules::sequence::{ProducerState, Stamp};
use fullbore_wire::ErrorCode;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use crate::diskless::{DisklessPartition, LEADER_EPOCH};
use crate::replica::Replica;
use fullbore_host::long_work::LongWork;
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::read::{EpochEnd, Isolation, LogOffsets, Read, TimestampOffset};
use fullbore_log::partition::terms::VerificationTime;
use fullbore_log::partition::waiters::Registration;

/// Longest wait of a request for logs that are being opened. Most open in a few milliseconds; after a crash one may
/// take longer. A client without a response closes its connection after half a minute, and loses all requests on it.
const OPENING_WAIT: Duration = Duration::from_secs(5);

/// Partition, classic or diskless.
#[derive(Clone)]
pub enum AnyPartition {
    /// Partition with a log.
    Classic(Arc<Replica>),
    /// Partition in an object store.
    Diskless(Arc<DisklessPartition>),
}

impl AnyPartition {
    /// Returns the partition's present state. A verification that starts now stores it in `AppendTerms::verified_at`.
    pub fn verification_time(&self, producer_id: i64) -> VerificationTime {
        match self {
            AnyPartition::Classic(replica) => replica.verification_time(producer_id),
            AnyPartition::Diskless(partition) => {
                VerificationTime { next_offset: partition.known.offsets().log_end, ..Default::default() }
            }
        }
    }

    /// Notes that a batch was refused with `code` before it was offered to the partition. Later batches of its
    /// producer, which may be in flight, get the same error.
    pub fn turned_away(&self, stamp: &Stamp, code: ErrorCode) {
        match self {
            AnyPartition::Classic(replica) => replica.turned_away(stamp, code),
            AnyPartition::Diskless(partition) => partition.turned_away(stamp, code),
        }
    }
}

/// Opening.
impl AnyPartition {
    /// Returns true if no caller has to wait for the partition to be opened.
    pub fn is_settled(&self) -> bool {
        match self {
            AnyPartition::Classic(replica) => replica.phase().is_settled(),
            AnyPartition::Diskless(partition) => partition.known.is_ready(),
        }
    }

    /// Refuses requests while the partition cannot answer: a classic one while a write to its log may hang, a diskless
    /// one while only other brokers reach the object store.
    ///
    /// # Errors
    /// For a classic partition, KAFKA_STORAGE_ERROR if this broker leads, otherwise NOT_LEADER_OR_FOLLOWER. For a
    /// diskless one, NOT_LEADER_OR_FOLLOWER.
    pub fn check_answers(&self) -> Result<(), ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.check_answers(),
            AnyPartition::Diskless(partition) => partition.left_out().check(),
        }
    }

    /// Refuses a use that would wait for the recovery of a log.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER, at which every client retries, while the log is being opened. KAFKA_STORAGE_ERROR if the
    /// opening has failed, because another opening would block the thread.
    pub fn check_usable(&self) -> Result<(), ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.check_usable(),
            AnyPartition::Diskless(partition) if partition.known.is_ready() => Ok(()),
            AnyPartition::Diskless(partition) if partition.known.is_gone() => Err(ErrorCode::KAFKA_STORAGE_ERROR),
            AnyPartition::Diskless(_) => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Refuses an append that would wait. An append may wait for the creation of the partition's directory, which ends
    /// soon.
    ///
    /// # Errors
    /// UNKNOWN_TOPIC_OR_PARTITION if the partition is deleted; the error code of
    /// [`AnyPartition::check_answers`] or [`AnyPartition::check_usable`] if one of them refuses.
    pub fn check_writable(&self) -> Result<(), ErrorCode> {
        let (is_deleted, is_usable) = match self {
            AnyPartition::Classic(replica) => {
                let phase = replica.phase();
                (phase.is_leaving(), phase.is_usable())
            }
            AnyPartition::Diskless(partition) => (partition.known.is_gone(), partition.known.is_ready()),
        };
        if is_deleted {
            return Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        }
        self.check_answers()?;
        if is_usable { Ok(()) } else { self.check_usable() }
    }

    /// Returns true if the log must be created or opened on the disk before it can be written.
    pub fn is_unwritten(&self) -> bool {
        match self {
            AnyPartition::Classic(replica) => !replica.phase().is_open(),
            AnyPartition::Diskless(_) => false,
        }
    }

    /// Returns true while the partition's directory is being created.
    pub fn is_being_made(&self) -> bool {
        match self {
            AnyPartition::Classic(replica) => replica.phase().is_creating(),
            AnyPartition::Diskless(_) => false,
        }
    }

    /// Requests that the partition is opened, without waiting.
    pub fn ask_to_open(&self) {
        match self {
            AnyPartition::Classic(replica) => replica.ask_to_open(),
            // `put_topic` has requested the partition's state from the index.
            AnyPartition::Diskless(_) => {}
        }
    }

    /// Waits until the partition is open, or its opening has failed.
    pub async fn opened(&self) {
        match self {
            // The next use of the log returns the error.
            AnyPartition::Classic(replica) => drop(replica.opened().await),
            AnyPartition::Diskless(partition) => partition.known.opened().await,
        }
    }

    /// Requests the opening of `partitions`, and waits until each is open or its opening has failed. Waits for openings
    /// at most [`OPENING_WAIT`], because the client's next requests wait behind this one. The next use of a log whose
    /// opening has failed returns the error.
    pub async fn open_all(partitions: Vec<AnyPartition>) {
        // All openings are requested before the first wait, so that several logs are opened at a time.
        partitions.iter().for_each(AnyPartition::ask_to_open);
        let until = tokio::time::Instant::now() + OPENING_WAIT;
        for partition in partitions {
            // A new log has nothing to recover, so the wait for its creation has no limit.
            if partition.is_being_made() {
                partition.opened().await;
            } else {
                let _ = timeout_at(until, partition.opened()).await;
            }
        }
    }

    /// Refreshes the offsets of diskless `partitions`, to which other brokers also write. The offsets are then no older
    /// than this call.
    ///
    /// # Errors
    /// Error of the diskless index, if it cannot be read.
    pub async fn refresh(partitions: &[AnyPartition]) -> Result<(), ReadError> {
        let of = |partition: &AnyPartition| match partition {
            AnyPartition::Classic(_) => None,
            AnyPartition::Diskless(partition) => Some(Arc::clone(partition)),
        };
        DisklessPartition::refresh(&partitions.iter().filter_map(of).collect::<Vec<_>>()).await
    }

    /// Returns `refreshed`, the outcome of [`AnyPartition::refresh`], if the partition is diskless. A classic partition
    /// needs no refresh, so the result is `Ok`.
    ///
    /// # Errors
    /// Error of the refresh, if the partition is diskless.
    pub fn is_refreshed(&self, refreshed: Result<(), ReadError>) -> Result<(), ReadError> {
        match self {
            AnyPartition::Classic(_) => Ok(()),
            AnyPartition::Diskless(_) => refreshed,
        }
    }

    /// Wakes `waiter` each time there may be more to read, and when the partition is deleted, until the registration is
    /// dropped. Register first, then check, then wait, so that no change is missed.
    pub fn register(&self, waiter: &Arc<Notify>) -> Registration {
        match self {
            AnyPartition::Classic(replica) => replica.register(waiter),
            AnyPartition::Diskless(partition) => partition.known.register(waiter),
        }
    }

    /// Checks the leader epoch that a client assumes (KIP-320; -1 for none), and that this broker leads.
    ///
    /// # Errors
    /// FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH if the client's epoch is older or newer; NOT_LEADER_OR_FOLLOWER if
    /// another broker leads.
    pub fn check_leads(&self, believed: i32) -> Result<(), ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.check_leads(believed),
            // A diskless log is never truncated, whatever epoch a client knows.
            AnyPartition::Diskless(_) => Ok(()),
        }
    }

    /// Returns the leader epoch in force.
    pub fn leader_epoch(&self) -> i32 {
        match self {
            AnyPartition::Classic(replica) => replica.leader_epoch(),
            AnyPartition::Diskless(_) => LEADER_EPOCH,
        }
    }
}

/// Reads.
impl AnyPartition {
    /// Reads batches from the one with `offset` on, up to the end that `isolation` allows and about
    /// `max_bytes`. With `at_least_one` the first batch is whole whatever its size; without it the result may be empty.
    /// Returns `None` while the log is being opened or the records are being fetched; once that ends, the waiters are
    /// woken. If that opening or fetch failed at `since` or later, returns its error.
    ///
    /// # Errors
    /// [`ReadError`] if `offset` is out of range, or the log or the store cannot be read.
    pub fn try_read(
        &self,
        isolation: Isolation,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
        since: Instant,
    ) -> Result<Option<Read>, ReadError> {
        match self {
            AnyPartition::Classic(replica) if replica.phase().is_settled() => {
                replica.read_at(isolation, offset, max_bytes, at_least_one).map(Some)
            }
            AnyPartition::Classic(replica) => match replica.open_failure_since(since) {
                Some(error) => Err(error.into()),
                None => {
                    replica.ask_to_open();
                    Ok(None)
                }
            },
            AnyPartition::Diskless(partition) => partition.try_read(isolation, offset, max_bytes, at_least_one, since),
        }
    }

    /// Returns the number of readable bytes from the batch with `offset` on; if there are more than `enough`, any
    /// number above `enough`. `None` if a read costs no more than the count, or is the only way to count.
    pub fn count(&self, isolation: Isolation, offset: i64, enough: u64) -> Option<u64> {
        match self {
            // A classic read only names ranges of files, so it costs no more than a count.
            AnyPartition::Classic(_) => None,
            AnyPartition::Diskless(partition) => partition.count(isolation, offset, enough),
        }
    }

    /// Reads whole batches only, otherwise as [`AnyPartition::try_read`]. The result contains the offset after them.
    ///
    /// # Errors
    /// [`ReadError`] if `offset` is out of range, or the log or the store cannot be read.
    pub fn try_read_whole(
        &self,
        isolation: Isolation,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
        since: Instant,
    ) -> Result<Option<Read>, ReadError> {
        match self {
            AnyPartition::Classic(replica) if replica.phase().is_settled() => {
                replica.read_whole(isolation, offset, max_bytes, at_least_one).map(Some)
            }
            // Diskless reads return whole batches in any case.
            _ => self.try_read(isolation, offset, max_bytes, at_least_one, since),
        }
    }

    /// Returns log start, high watermark and log end.
    ///
    /// # Errors
    /// [`ReadError`] if the log cannot be opened.
    pub fn offsets(&self) -> Result<LogOffsets, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.offsets(),
            AnyPartition::Diskless(partition) => Ok(partition.known.offsets()),
        }
    }

    /// Returns the offsets, and the last stable offset of a diskless partition or the high watermark of a classic one.
    /// Does not wait: `None` while the partition is being opened, or if its log cannot be opened.
    pub fn known_offsets(&self) -> Option<(LogOffsets, i64)> {
        let offsets = if self.is_settled() { self.offsets().ok()? } else { return None };
        Some(match self {
            AnyPartition::Classic(_) => (offsets, offsets.high_watermark),
            AnyPartition::Diskless(partition) => (offsets, partition.known.bounds().last_stable_offset),
        })
    }

    /// Returns the log start, and the epoch of the leader that wrote the record there; -1 if the epoch is unknown. The
    /// timestamp is -1.
    ///
    /// # Errors
    /// [`ReadError`] if the log cannot be opened.
    pub fn earliest(&self) -> Result<TimestampOffset, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.earliest(),
            AnyPartition::Diskless(partition) => {
                let offset = partition.known.offsets().log_start;
                Ok(TimestampOffset { offset, timestamp: -1, leader_epoch: LEADER_EPOCH })
            }
        }
    }

    /// Returns the latest offset that ListOffsets may show (KIP-207).
    ///
    /// # Errors
    /// OFFSET_NOT_AVAILABLE while an earlier leader may have returned a larger offset; NOT_LEADER_OR_FOLLOWER if
    /// another broker leads; errors of the disk.
    pub fn latest_offset(&self, isolation: Isolation) -> Result<i64, ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.latest_offset(isolation),
            AnyPartition::Diskless(partition) => Ok(partition.known.bounds().end(isolation)),
        }
    }

    /// Returns the first record whose timestamp is at least
    /// `timestamp_ms`, among those that the isolation level may read; `None` if all of them are older. Reads and
    /// decompresses batches from the disk, in a slot of `long`, or from the store.
    ///
    /// # Errors
    /// [`ReadError`] if the log, the index or the store cannot be read.
    pub async fn offset_for_timestamp(
        &self,
        isolation: Isolation,
        timestamp_ms: i64,
        long: &LongWork,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        match self {
            AnyPartition::Classic(replica) => long.run(|| replica.offset_for_timestamp(isolation, timestamp_ms)).await,
            AnyPartition::Diskless(partition) => {
                Box::pin(partition.offset_for_timestamp(isolation, timestamp_ms, long)).await
            }
        }
    }

    /// Returns the first record with the largest timestamp; `None` if there are no records. Reads and decompresses
    /// batches as [`AnyPartition::offset_for_timestamp`] does.
    ///
    /// # Errors
    /// [`ReadError`] if the log, the index or the store cannot be read.
    pub async fn max_timestamp(
        &self,
        isolation: Isolation,
        long: &LongWork,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        match self {
            AnyPartition::Classic(replica) => long.run(|| replica.max_timestamp(isolation)).await,
            AnyPartition::Diskless(partition) => Box::pin(partition.max_timestamp(isolation, long)).await,
        }
    }

    /// Returns the end of a leader epoch (KIP-101), or of the largest known one before it.
    ///
    /// # Errors
    /// [`ReadError`] if the log cannot be opened.
    pub fn epoch_end_offset(&self, leader_epoch: i32) -> Result<EpochEnd, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.epoch_end_offset(leader_epoch),
            AnyPartition::Diskless(partition) => Ok(partition.known.epoch_end_offset(leader_epoch)),
        }
    }

    /// Returns the state of each idempotent producer, the longest idle first.
    ///
    /// # Errors
    /// [`ReadError`] if the log cannot be opened, or the index cannot be read.
    pub async fn producers(&self) -> Result<Vec<ProducerState>, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.producers(),
            AnyPartition::Diskless(partition) => Box::pin(partition.producers()).await,
        }
    }
}
