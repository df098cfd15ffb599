//! A classic or diskless partition, with the operations that requests use.
//!
//! A classic partition is a log on this broker's disk, and may have followers. A diskless partition consists of objects
//! in an object store. Operations of only one kind are in the module of that kind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_rules::replica::epochs::EpochEnd as Divergent;
use fullbore_rules::sequence::{ProducerState, Stamp};
use fullbore_wire::ErrorCode;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use crate::replica::Replica;
use fullbore_diskless::DisklessPartition;
use fullbore_host::long_work::LongWork;
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::read::{EpochEnd, Isolation, LogOffsets, Read, TimeQuery, TimestampOffset};
use fullbore_log::partition::terms::VerificationTime;
use fullbore_log::partition::waiters::Registration;

/// Maximum time that a request waits for logs that are being opened. Most logs open in a few milliseconds, but after a
/// crash an opening may take longer. A client that gets no response for half a minute closes its connection and loses
/// all requests on it.
const OPENING_WAIT: Duration = Duration::from_secs(5);

/// A partition of either kind.
#[derive(Clone)]
pub enum AnyPartition {
    /// A partition with a log on this broker's disk.
    Classic(Arc<Replica>),
    /// A partition whose records are in an object store.
    Diskless(Arc<DisklessPartition>),
}

impl AnyPartition {
    /// Returns the partition's present state, for a caller that will now verify the producer's transaction. The caller
    /// passes this state to the append as `AppendTerms::verified_at`. The append compares it with the partition's state
    /// at that later time.
    pub fn verification_time(&self, producer_id: i64) -> VerificationTime {
        match self {
            AnyPartition::Classic(replica) => replica.verification_time(producer_id),
            AnyPartition::Diskless(partition) => {
                VerificationTime { next_offset: partition.view.offsets().log_end, ..Default::default() }
            }
        }
    }

    /// Remembers that a batch was refused with `code` before it reached the partition. Later batches of its producer,
    /// which may already be in flight, then get the same error.
    pub fn turned_away(&self, stamp: &Stamp, code: ErrorCode) {
        match self {
            AnyPartition::Classic(replica) => replica.turned_away(stamp, code),
            AnyPartition::Diskless(partition) => partition.turned_away(stamp, code),
        }
    }
}

/// Opening of partitions, and the checks at the start of a request.
impl AnyPartition {
    /// Returns true if the opening of the partition has ended, so that callers need not wait for it.
    pub fn is_settled(&self) -> bool {
        match self {
            AnyPartition::Classic(replica) => replica.phase().is_settled(),
            AnyPartition::Diskless(partition) => partition.view.is_ready(),
        }
    }

    /// Refuses requests while the partition cannot answer them. A classic partition cannot answer while a write to its
    /// log may hang. A diskless one cannot answer while only other brokers reach the object store.
    ///
    /// # Errors
    /// Returns KAFKA_STORAGE_ERROR if the partition is classic and this broker leads it, otherwise
    /// NOT_LEADER_OR_FOLLOWER.
    pub fn check_answers(&self) -> Result<(), ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.check_answers(),
            AnyPartition::Diskless(partition) => partition.left_out().check(),
        }
    }

    /// Refuses a request that would have to wait for the recovery of a log.
    ///
    /// # Errors
    ///
    /// Returns NOT_LEADER_OR_FOLLOWER while the log is being opened, since every client retries after this error.
    /// Returns KAFKA_STORAGE_ERROR if the opening has failed, because another attempt would block the thread. Also
    /// returns KAFKA_STORAGE_ERROR if a diskless partition is deleted.
    pub fn check_usable(&self) -> Result<(), ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.check_usable(),
            AnyPartition::Diskless(partition) if partition.view.is_ready() => Ok(()),
            AnyPartition::Diskless(partition) if partition.view.is_gone() => Err(ErrorCode::KAFKA_STORAGE_ERROR),
            AnyPartition::Diskless(_) => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }

    /// Refuses an append that would have to wait for a recovery. Allows an append that only waits until the partition's
    /// directory is created, because that takes little time.
    ///
    /// # Errors
    /// Returns UNKNOWN_TOPIC_OR_PARTITION if the partition is deleted, and the errors of
    /// [`AnyPartition::check_answers`] and [`AnyPartition::check_usable`].
    pub fn check_writable(&self) -> Result<(), ErrorCode> {
        let (is_deleted, is_usable) = match self {
            AnyPartition::Classic(replica) => {
                let phase = replica.phase();
                (phase.is_leaving(), phase.is_usable())
            }
            AnyPartition::Diskless(partition) => (partition.view.is_gone(), partition.view.is_ready()),
        };
        if is_deleted {
            return Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        }
        self.check_answers()?;
        if is_usable { Ok(()) } else { self.check_usable() }
    }

    /// Returns true if the log must be created or opened on the disk before the next write.
    pub fn is_unwritten(&self) -> bool {
        match self {
            AnyPartition::Classic(replica) => !replica.phase().is_open(),
            AnyPartition::Diskless(_) => false,
        }
    }

    /// Returns true while the directory of the partition is being created.
    pub fn is_being_made(&self) -> bool {
        match self {
            AnyPartition::Classic(replica) => replica.phase().is_creating(),
            AnyPartition::Diskless(_) => false,
        }
    }

    /// Requests that the partition is opened. Does not wait for it.
    pub fn request_open(&self) {
        match self {
            AnyPartition::Classic(replica) => replica.request_open(),
            // `put_topic` has already requested the partition's state from the index.
            AnyPartition::Diskless(_) => {}
        }
    }

    /// Waits until the partition is open or its opening has failed.
    pub async fn opened(&self) {
        match self {
            // The next use of the log returns the error.
            AnyPartition::Classic(replica) => drop(replica.opened().await),
            AnyPartition::Diskless(partition) => partition.view.opened().await,
        }
    }

    /// Opens all `partitions`, and waits until each is open or its opening has failed. The wait is limited to
    /// [`OPENING_WAIT`], because the client's next requests wait for this one. If an opening fails, the next use of
    /// that log returns the error.
    pub async fn open_all(partitions: Vec<AnyPartition>) {
        // Request all openings first, so that several logs are opened at the same time.
        partitions.iter().for_each(AnyPartition::request_open);
        let until = tokio::time::Instant::now() + OPENING_WAIT;
        for partition in partitions {
            // Wait without a limit until a new log is created. The creation is short, because there is nothing to
            // recover.
            if partition.is_being_made() {
                partition.opened().await;
            } else {
                let _ = timeout_at(until, partition.opened()).await;
            }
        }
    }

    /// Reads the current offsets of the diskless partitions among `partitions`, because other brokers may have written
    /// to them.
    ///
    /// # Errors
    /// Returns an error if the diskless index cannot be read.
    pub async fn refresh(partitions: &[AnyPartition]) -> Result<(), ReadError> {
        let of = |partition: &AnyPartition| match partition {
            AnyPartition::Classic(_) => None,
            AnyPartition::Diskless(partition) => Some(Arc::clone(partition)),
        };
        DisklessPartition::refresh(&partitions.iter().filter_map(of).collect::<Vec<_>>()).await
    }

    /// Returns the outcome of a refresh for this partition. `refreshed` is what [`AnyPartition::refresh`] returned for
    /// several partitions. A classic partition needs no refresh, so its outcome is always `Ok`.
    ///
    /// # Errors
    /// Returns the error in `refreshed` if the partition is diskless.
    pub fn is_refreshed(&self, refreshed: Result<(), ReadError>) -> Result<(), ReadError> {
        match self {
            AnyPartition::Classic(_) => Ok(()),
            AnyPartition::Diskless(_) => refreshed,
        }
    }

    /// Registers `waiter`, to be woken each time there may be more to read, and when the partition is deleted. The
    /// registration ends when the caller drops the result. Register first, then check, then wait; otherwise a change
    /// may be missed.
    pub fn register(&self, waiter: &Arc<Notify>) -> Registration {
        match self {
            AnyPartition::Classic(replica) => replica.register(waiter),
            AnyPartition::Diskless(partition) => partition.view.register(waiter),
        }
    }

    /// Checks that this broker leads, and that its leader epoch equals `believed`, the epoch that the client knows
    /// (KIP-320). -1 means that the client knows no epoch. Returns the leader epoch of a classic partition, whose log
    /// may be truncated before the next epoch, and `None` for a diskless one.
    ///
    /// # Errors
    /// Returns FENCED_LEADER_EPOCH if the client's epoch is older. For a classic partition, also returns
    /// UNKNOWN_LEADER_EPOCH if it is newer, and NOT_LEADER_OR_FOLLOWER if another broker leads.
    pub fn check_leads(&self, believed: i32) -> Result<Option<i32>, ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.check_leads(believed).map(Some),
            // Refuse only an older epoch, because it belongs to a deleted topic with the same name. A newer epoch does
            // no harm, because a diskless log is never truncated. The client may have a newer epoch if the database was
            // restored from an older copy.
            AnyPartition::Diskless(partition) if (0..partition.view.leader_epoch()).contains(&believed) => {
                Err(ErrorCode::FENCED_LEADER_EPOCH)
            }
            AnyPartition::Diskless(_) => Ok(None),
        }
    }

    /// Returns the current leader epoch.
    pub fn leader_epoch(&self) -> i32 {
        match self {
            AnyPartition::Classic(replica) => replica.leader_epoch(),
            AnyPartition::Diskless(partition) => partition.view.leader_epoch(),
        }
    }
}

/// Reads of records, offsets and producers.
impl AnyPartition {
    /// Reads about `max_bytes` of batches, from the batch that contains `offset` up to the end that `isolation` allows.
    /// With `at_least_one`, the first batch is returned complete even if it is larger than `max_bytes`. Otherwise the
    /// result may be empty. Returns `None` while the log is being opened or the records are being fetched, and wakes
    /// the waiters afterwards. If the opening or the fetch has failed since the time `since`, returns that error.
    /// `client` is the number of the connection that reads.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if `offset` is out of range, or if the log or the store cannot be read.
    pub fn try_read(
        &self,
        isolation: Isolation,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
        since: Instant,
        client: u64,
    ) -> Result<Option<Read>, ReadError> {
        match self {
            AnyPartition::Classic(replica) if replica.phase().is_settled() => {
                replica.read_at(isolation, offset, max_bytes, at_least_one).map(Some)
            }
            AnyPartition::Classic(replica) => match replica.open_failure_since(since) {
                Some(error) => Err(error.into()),
                None => {
                    replica.request_open();
                    Ok(None)
                }
            },
            AnyPartition::Diskless(partition) => {
                partition.try_read(isolation, offset, max_bytes, at_least_one, since, client)
            }
        }
    }

    /// Returns how many bytes are readable, from the batch that contains `offset`. If there are more than `enough`
    /// bytes, may return any number above `enough`. Returns `None` if only a read can count the bytes, or if a read is
    /// as cheap as the count.
    pub fn count(&self, isolation: Isolation, offset: i64, enough: u64) -> Option<u64> {
        match self {
            // A read of a classic partition returns ranges of files instead of records, so it is as cheap as a count.
            AnyPartition::Classic(_) => None,
            AnyPartition::Diskless(partition) => partition.count(isolation, offset, enough),
        }
    }

    /// Reads like [`AnyPartition::try_read`], but returns only complete batches, together with the offset after them.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if `offset` is out of range, or if the log or the store cannot be read.
    pub fn try_read_whole(
        &self,
        isolation: Isolation,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
        since: Instant,
        client: u64,
    ) -> Result<Option<Read>, ReadError> {
        match self {
            AnyPartition::Classic(replica) if replica.phase().is_settled() => {
                replica.read_whole(isolation, offset, max_bytes, at_least_one).map(Some)
            }
            // Diskless reads always return complete batches.
            _ => self.try_read(isolation, offset, max_bytes, at_least_one, since, client),
        }
    }

    /// Returns the log start, the high watermark and the log end.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the log cannot be opened.
    pub fn offsets(&self) -> Result<LogOffsets, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.offsets(),
            AnyPartition::Diskless(partition) => Ok(partition.view.offsets()),
        }
    }

    /// Returns the log start, the high watermark and the log end. Returns the last stable offset of a diskless
    /// partition as the second value; for a classic one, this value is the high watermark again. Does not wait: returns
    /// `None` while the partition is being opened, or if its log cannot be opened.
    pub fn known_offsets(&self) -> Option<(LogOffsets, i64)> {
        let offsets = if self.is_settled() { self.offsets().ok()? } else { return None };
        Some(match self {
            AnyPartition::Classic(_) => (offsets, offsets.high_watermark),
            AnyPartition::Diskless(partition) => (offsets, partition.view.bounds().last_stable_offset),
        })
    }

    /// Returns the log start and the leader epoch of the first record. The epoch is -1 if it is unknown. As in Kafka,
    /// the timestamp in the result is always -1.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the log cannot be opened.
    pub fn earliest(&self) -> Result<TimestampOffset, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.earliest(),
            AnyPartition::Diskless(partition) => {
                let offset = partition.view.offsets().log_start;
                Ok(TimestampOffset { offset, timestamp: -1, leader_epoch: partition.view.leader_epoch() })
            }
        }
    }

    /// Returns the latest offset that ListOffsets may show at the isolation level (KIP-207).
    ///
    /// # Errors
    /// Returns OFFSET_NOT_AVAILABLE while an earlier leader may have returned a larger offset, and
    /// NOT_LEADER_OR_FOLLOWER if another broker leads. Fails with the code of the error if the log cannot be opened.
    pub fn latest_offset(&self, isolation: Isolation) -> Result<i64, ErrorCode> {
        match self {
            AnyPartition::Classic(replica) => replica.latest_offset(isolation),
            AnyPartition::Diskless(partition) => Ok(partition.view.bounds().end(isolation)),
        }
    }

    /// Answers these queries by time, in order. An answer is `None` if no record that the isolation level can read
    /// matches. Reads and decompresses batches. Reads those of classic partitions from the disk, one partition after
    /// another, in slots for long work (`long`). Reads those of diskless partitions from the object store, a few
    /// partitions at a time.
    ///
    /// Returns a [`ReadError`] for each partition whose log, index or store cannot be read.
    pub async fn offsets_by_time(
        queries: &[(AnyPartition, TimeQuery)],
        isolation: Isolation,
        long: &LongWork,
    ) -> Vec<Result<Option<TimestampOffset>, ReadError>> {
        let (mut answers, mut diskless) = (Vec::with_capacity(queries.len()), Vec::new());
        for (partition, query) in queries {
            answers.push(match (partition, *query) {
                (AnyPartition::Classic(replica), TimeQuery::Since(timestamp_ms)) => {
                    long.run(|| replica.offset_for_timestamp(isolation, timestamp_ms)).await
                }
                (AnyPartition::Classic(replica), TimeQuery::Largest) => {
                    long.run(|| replica.max_timestamp(isolation)).await
                }
                (AnyPartition::Diskless(partition), query) => {
                    diskless.push((Arc::clone(partition), query));
                    Ok(None)
                }
            });
        }
        let found = Box::pin(DisklessPartition::offsets_by_time(&diskless, isolation, long)).await;
        let is_diskless = |partition: &AnyPartition| matches!(partition, AnyPartition::Diskless(_));
        let of_diskless = answers.iter_mut().zip(queries).filter(|(_, (partition, _))| is_diskless(partition));
        for ((answer, _), found) in of_diskless.zip(found) {
            *answer = found;
        }
        answers
    }

    /// Returns the offset at which a leader epoch ends (KIP-101). If the log has no records of that epoch, returns the
    /// largest earlier epoch and its end.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the log cannot be opened.
    pub fn epoch_end_offset(&self, leader_epoch: i32) -> Result<EpochEnd, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.epoch_end_offset(leader_epoch),
            AnyPartition::Diskless(partition) => Ok(partition.view.epoch_end_offset(leader_epoch)),
        }
    }

    /// Compares the log with the position of a consumer, as [`Replica::divergence`] does. A diskless log never
    /// diverges.
    ///
    /// # Errors
    /// Fails with [`ReadError`] as [`Replica::divergence`] does.
    pub fn divergence(&self, offset: i64, last_epoch: i32) -> Result<Option<Divergent>, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.divergence(offset, last_epoch),
            AnyPartition::Diskless(_) => Ok(None),
        }
    }

    /// Returns the state of each idempotent producer. Producers without an open transaction come first, and among them
    /// the one that was idle longest.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the log cannot be opened or the index cannot be read.
    pub async fn producers(&self) -> Result<Vec<ProducerState>, ReadError> {
        match self {
            AnyPartition::Classic(replica) => replica.producers(),
            AnyPartition::Diskless(partition) => Box::pin(partition.producers()).await,
        }
    }
}
