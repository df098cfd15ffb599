//! A diskless partition as requests see it: its view, and the services that write and read it.
//!
//! Not here: admission and commit ([`super::pipeline`]), search and fetch of records ([`super::reader`]).
//!
//! Invariant: the partition takes no batch until the ownership marker of the store is verified.

use fullbore_host::task;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_rules::commit::DisklessPartitionId;
use fullbore_rules::commit::admission::Freshness;
use fullbore_rules::sequence::{Marker, ProducerState, Stamp};
use fullbore_wire::{ErrorCode, Records};

use super::index::{IndexOwner, MOVED_MAX, PartitionRow};
use super::objects::Claim;
use super::partition_view::PartitionView;
use super::pipeline::{Grant, IndexedPartition, Pipeline, Refreshed};
use super::reader::{Found, Reader};
use super::retention;
use fullbore_db::CommitError;
use fullbore_host::long_work::LongWork;
use fullbore_log::partition::error::{AppendError, ReadError};
use fullbore_log::partition::left_out::LeftOut;
use fullbore_log::partition::memory_budget::{MemoryPermit, ProducerKey};
use fullbore_log::partition::outcome::{AppendStep, Blocker};
use fullbore_log::partition::read::{Isolation, Read, TimestampOffset};
use fullbore_log::partition::terms::AppendTerms;
use fullbore_log::validation::ValidBatch;

/// Pause before the broker repeats a move of the log start whose outcome is unknown.
const FIND_AGAIN: Duration = Duration::from_secs(1);

/// Diskless partition of a broker.
pub struct DisklessPartition {
    /// State of the partition at this broker.
    pub known: Arc<PartitionView>,
    services: Services,
}

/// Services that the partitions of a broker share.
#[derive(Clone)]
pub struct Services {
    /// State of the store's ownership marker. Until the marker is verified, the objects in the store may not belong to
    /// this index: the partition takes no batch and returns no records.
    pub(super) claim: Arc<Claim>,
    pub(super) pipeline: Pipeline,
    pub(super) reader: Reader,
    pub(super) index: IndexOwner,
    /// True if other brokers write the same partitions.
    pub(super) others_commit: bool,
    pub(super) left_out: LeftOut,
}

/// Appends.
impl DisklessPartition {
    pub(super) fn new(known: PartitionView, services: Services) -> DisklessPartition {
        DisklessPartition { known: Arc::new(known), services }
    }

    /// Offers one batch of a producer; the answer comes once the batch is committed. After [`AppendStep::Blocked`] the
    /// caller waits and offers the batch again: with `freshness` `Current` after a refresh, with `room` after a wait
    /// for memory.
    ///
    /// # Errors
    /// [`AppendError`] if the batch is refused: none of its records is or will be in the partition.
    pub fn append(
        &self,
        batch: &ValidBatch<'_>,
        terms: AppendTerms<'_>,
        producer: ProducerKey,
        freshness: Freshness,
        room: Option<MemoryPermit>,
    ) -> Result<AppendStep, AppendError> {
        if !self.services.claim.is_made() {
            self.turned_away(&batch.stamp(), AppendError::Storage.code());
            return Err(AppendError::Storage);
        }
        let number = self.known.number().ok_or(AppendError::Storage)?;
        let size = batch.view().size();
        let room = match room {
            Some(room) => Some(room),
            None => self.services.pipeline.try_reserve(producer, size)?,
        };
        let Some(room) = room else { return Ok(AppendStep::Blocked(Blocker::Memory(producer, size))) };
        let awaited = terms.awaited.cloned();
        let grant = Grant { producer, freshness, room, left_out: &self.services.left_out, awaited };
        self.services.pipeline.append(IndexedPartition { view: &self.known, number }, batch, terms, grant)
    }

    /// Writes the marker of a transaction, and returns once the marker is committed to the index. The first poll queues
    /// the marker behind the batches of its producer that this broker has admitted, if the partition is ready.
    ///
    /// # Errors
    /// Errors of [`Pipeline::write_marker`]. [`AppendError::Storage`] until the store's ownership marker is verified.
    /// NOT_LEADER_OR_FOLLOWER once the metadata leaves the broker out, because another broker may write the marker
    /// while a PUT hangs here.
    pub async fn write_marker(&self, marker: &Marker, transaction_version: i8) -> Result<(), AppendError> {
        if !self.services.claim.is_made() {
            return Err(AppendError::Storage);
        }
        self.known.opened().await;
        let number = self.known.number().ok_or_else(|| self.known.gone())?;
        let partition = IndexedPartition { view: &self.known, number };
        let written = self.services.pipeline.write_marker(partition, marker, transaction_version);
        self.services.left_out.unless(written).await.map_err(AppendError::Role)?
    }

    /// Returns the state that shows whether the metadata leaves this broker out.
    pub fn left_out(&self) -> &LeftOut {
        &self.services.left_out
    }

    /// Notes that a batch was refused with `code`, before its sequence was checked or because the refresh failed. Later
    /// batches of its producer in flight are then also refused.
    pub fn turned_away(&self, stamp: &Stamp, code: ErrorCode) {
        if let Some(number) = self.known.number().filter(|_| !self.known.is_gone()) {
            self.services.pipeline.turned_away(number, stamp, code);
        }
    }

    /// Refreshes the producer state of `partitions`, which share one broker's services. Adds the outcomes to
    /// `refreshed`.
    pub async fn refresh_producers(partitions: &[Arc<DisklessPartition>], refreshed: &mut Refreshed) {
        if let Some(DisklessPartition { services, .. }) = partitions.first().map(Arc::as_ref) {
            let numbers = partitions.iter().filter_map(|partition| partition.known.number());
            services.pipeline.refresh(numbers.collect(), refreshed).await;
        }
    }

    /// Returns true if the next batch of this producer is blocked until the partition is refreshed.
    pub fn is_stale_for(&self, producer_id: i64) -> bool {
        self.known.number().is_some_and(|number| self.services.pipeline.is_stale_for(number, producer_id))
    }

    /// Waits for `size` bytes of the memory budget of batches. Returns `None` once the broker stops.
    pub async fn reserve_memory(&self, producer: ProducerKey, size: usize) -> Option<MemoryPermit> {
        self.services.pipeline.reserve(producer, size).await
    }

    /// Returns the state of each idempotent producer: the longest idle first, and those with an open transaction last.
    ///
    /// # Errors
    /// [`ReadError`] if the refresh fails, or the index does not have the partition yet.
    pub async fn producers(self: &Arc<Self>) -> Result<Vec<ProducerState>, ReadError> {
        let mut refreshed = Refreshed::new();
        DisklessPartition::refresh_producers(std::slice::from_ref(self), &mut refreshed).await;
        refreshed.into_values().next().unwrap_or(Err(AppendError::Storage))?;
        let number = self.known.number().ok_or(ReadError::Storage)?;
        Ok(self.services.pipeline.known(number, |known| known.producers.iter().collect()).unwrap_or_default())
    }
}

/// Reads.
impl DisklessPartition {
    /// Returns whole batches from the one with `offset` on, up to the offset that `isolation` allows, as far as they
    /// are in memory. They have at most `max_bytes`; with `at_least_one` the first batch may have any size. Returns
    /// `None` if batches must be found or fetched first, or if the view must be refreshed. The partition's waiters are
    /// woken afterwards.
    ///
    /// # Errors
    /// [`ReadError`] if the read is refused, or a search or fetch for it failed at `since` or later.
    pub fn try_read(
        &self,
        isolation: Isolation,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
        since: Instant,
    ) -> Result<Option<Read>, ReadError> {
        if self.known.is_gone() {
            return Err(ReadError::Gone);
        }
        if !self.services.claim.is_made() {
            return Err(ReadError::Storage);
        }
        if !self.known.is_ready() {
            return Ok(None);
        }
        let (bounds, failed) = (self.known.bounds(), self.known.failed_since(since));
        let (offsets, end) = (bounds.offsets, bounds.end(isolation));
        if offset > offsets.log_end && self.services.others_commit && !self.known.is_refreshed_since(since) {
            // The client may know of commits that this broker has not seen.
            return self.ask(failed, |reader, known| reader.ask_to_refresh(known));
        }
        if offset < offsets.log_start || offset > offsets.log_end {
            return Err(ReadError::OffsetOutOfRange);
        }
        let read = |records, end_offset, aborted| Read {
            records,
            end_offset: Some(end_offset),
            is_cut: end_offset < end,
            high_watermark: offsets.high_watermark,
            last_stable_offset: bounds.last_stable_offset,
            log_start_offset: offsets.log_start,
            aborted,
        };
        let none_aborted = (isolation == Isolation::ReadCommitted).then(Vec::new);
        if offset >= end {
            let is_heard_of = !self.services.others_commit || self.known.was_refreshed() || failed.is_some();
            if !is_heard_of {
                // The change feed omits commits made before this broker had the partition's id.
                self.services.reader.ask_to_refresh(&self.known);
                return Ok(None);
            }
            return Ok(Some(read(Records::default(), offset, none_aborted)));
        }
        let reader = &self.services.reader;
        let has_aborted = isolation == Isolation::ReadCommitted && offset <= bounds.aborted_to;
        let range = if has_aborted { reader.aborted(&self.known, offset) } else { None };
        if has_aborted && range.is_none() {
            return self.ask(failed.map(|why| why.at(offset)), |reader, known| reader.ask_aborted(known, offset));
        }
        let end = range.as_ref().map_or(end, |range| range.end().min(end));
        match reader.find(&self.known, offset..end, max_bytes, at_least_one) {
            Found::Records(records, end_offset) => {
                let aborted = range.map_or(none_aborted, |range| Some(range.of(offset..end_offset)));
                Ok(Some(read(records, end_offset, aborted)))
            }
            Found::Missing => self.ask(failed.map(|why| why.at(offset)), |reader, known| reader.ask(known, offset)),
        }
    }

    /// Calls `ask`, which requests the search, fetch or refresh that a read needs, and returns `None`. If `failed` has
    /// the error of an earlier request, returns that error instead.
    fn ask(
        &self,
        failed: Option<ReadError>,
        ask: impl FnOnce(&Reader, &Arc<PartitionView>),
    ) -> Result<Option<Read>, ReadError> {
        match failed {
            Some(why) => Err(why),
            None => {
                ask(&self.services.reader, &self.known);
                Ok(None)
            }
        }
    }

    /// Returns the bytes of all readable batches from the one with `offset` on, without reading them. If they exceed
    /// `enough`, returns any number over `enough`; `None` if only [`DisklessPartition::try_read`] can count them.
    pub fn count(&self, isolation: Isolation, offset: i64, enough: u64) -> Option<u64> {
        let is_there = self.known.is_ready() && !self.known.is_gone() && self.services.claim.is_made();
        let bounds = self.known.bounds();
        let (log_start, end) = (bounds.offsets.log_start, bounds.end(isolation));
        let is_inside = (log_start..end).contains(&offset);
        let count = || self.services.reader.count(&self.known, offset..end, enough);
        (is_there && is_inside).then(count).flatten()
    }

    /// Brings the offsets of `partitions` to the index's state at this call or later. All of them share one broker's
    /// services.
    ///
    /// # Errors
    /// [`ReadError`] if the ownership marker is not verified, or the index cannot be read.
    pub async fn refresh(partitions: &[Arc<DisklessPartition>]) -> Result<(), ReadError> {
        let Some(Services { claim, reader, others_commit, .. }) = partitions.first().map(|first| &first.services)
        else {
            return Ok(());
        };
        if !claim.is_made() {
            return Err(ReadError::Storage);
        }
        if !others_commit {
            return Ok(());
        }
        let known: Vec<_> = partitions.iter().map(|partition| Arc::clone(&partition.known)).collect();
        reader.refresh(&known).await
    }

    /// Returns the first record from the log start on whose timestamp is at least `timestamp_ms`; `None` if all are
    /// older.
    ///
    /// # Errors
    /// [`ReadError`] if the index or the store cannot be read.
    pub async fn offset_for_timestamp(
        &self,
        isolation: Isolation,
        timestamp_ms: i64,
        long: &LongWork,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        self.services.reader.offset_for_timestamp(&self.known, isolation, timestamp_ms, long).await
    }

    /// Returns the first record with the largest timestamp from the log start on; `None` if there are no records.
    ///
    /// # Errors
    /// [`ReadError`] if the index or the store cannot be read.
    pub async fn max_timestamp(
        &self,
        isolation: Isolation,
        long: &LongWork,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        self.services.reader.max_timestamp(&self.known, isolation, long).await
    }

    /// Moves the log start to `offset`, or to the high watermark for -1, and returns the new log start. Readers get no
    /// records before the new log start. A caller may drop the future: a move that is queued at the index is carried
    /// out, and applied here.
    ///
    /// # Errors
    /// [`ReadError::OffsetOutOfRange`] past the high watermark; another [`ReadError`] if the partition is deleted or
    /// the index fails.
    pub async fn delete_records_before(self: &Arc<Self>, offset: i64) -> Result<i64, ReadError> {
        let mut outcomes = Vec::new();
        DisklessPartition::delete_records(&[(Arc::clone(self), offset)], &mut outcomes).await;
        outcomes.pop().unwrap_or(Err(ReadError::Storage))
    }

    /// Deletes as [`DisklessPartition::delete_records_before`] does, in many partitions that share one broker's
    /// services. One transaction of the index moves up to [`MOVED_MAX`] log starts. After each transaction its outcomes
    /// are added, in the order of `asked`, so that a caller that gives up keeps them.
    pub async fn delete_records(asked: &[(Arc<DisklessPartition>, i64)], outcomes: &mut Vec<Result<i64, ReadError>>) {
        for piece in asked.chunks(MOVED_MAX) {
            outcomes.extend(Box::pin(DisklessPartition::delete_piece(piece)).await);
        }
    }

    async fn delete_piece(asked: &[(Arc<DisklessPartition>, i64)]) -> Vec<Result<i64, ReadError>> {
        let partitions: Vec<_> = asked.iter().map(|(partition, _)| Arc::clone(partition)).collect();
        let refreshed = DisklessPartition::refresh(&partitions).await;
        let checked = asked.iter().map(|(partition, offset)| {
            refreshed?;
            let number = partition.known.number().ok_or(ReadError::Storage)?;
            let log_end = partition.known.offsets().log_end;
            let offset = if *offset == -1 { log_end } else { *offset };
            let is_inside = (0..=log_end).contains(&offset);
            if is_inside { Ok((number, offset)) } else { Err(ReadError::OffsetOutOfRange) }
        });
        let checked: Vec<_> = checked.collect();
        let moves: Vec<_> = checked.iter().filter_map(|checked| checked.as_ref().ok().copied()).collect();
        let Some((first, _)) = asked.first().filter(|_| !moves.is_empty()) else {
            return checked.into_iter().map(|checked| checked.and(Err(ReadError::Storage))).collect();
        };
        let index = first.services.index.clone();
        let place = index.place_to_move().await;
        let moved = index.move_log_starts(moves, place);
        let moving = task::spawn(task::boxed(async move {
            let moved = moved.await;
            let mut rows = moved.iter().flatten();
            let known_once_moved = |(partition, checked): (Arc<DisklessPartition>, Result<_, ReadError>)| {
                let (number, offset) = checked?;
                let row = match &moved {
                    Ok(_) => Ok(rows.next().cloned().flatten()),
                    Err(error) => Err(error.clone()),
                };
                known_once_moved(row, &partition.known, &index, number, offset)
            };
            partitions.into_iter().zip(checked).map(known_once_moved).collect::<Vec<_>>()
        }));
        moving.await.unwrap_or_else(|_| asked.iter().map(|_| Err(ReadError::Storage)).collect())
    }

    /// Deletes whole extents that retention does not keep. Records of an open transaction, and all after them, stay.
    pub(super) async fn retain(self: &Arc<Self>, now_ms: i64) {
        let (bytes, ms) = self.known.config().retention();
        let since_ms = ms.map(|ms| now_ms.saturating_sub(ms));
        let stable = self.known.bounds().last_stable_offset;
        let kept = retention::kept_from(self.services.reader.finder(), &self.known, bytes, since_ms).await;
        let kept = kept.map(|kept| kept.min(stable));
        if kept.is_some_and(|kept| kept > self.known.offsets().log_start)
            && let Some(kept) = kept
        {
            // A failure is logged already, and the next pass of retention repeats the move.
            let _ = self.delete_records_before(kept).await;
        }
    }
}

/// Applies the answer of the index to a move of the log start to `offset`, and returns the log start. If the outcome is
/// unknown, spawns a task that repeats the move.
fn known_once_moved(
    moved: Result<Option<PartitionRow>, CommitError>,
    known: &Arc<PartitionView>,
    index: &IndexOwner,
    number: DisklessPartitionId,
    offset: i64,
) -> Result<i64, ReadError> {
    match moved {
        Ok(Some(row)) => {
            known.moved(&row, Vec::new());
            // The row may contain commits of another broker that this broker has not seen.
            known.wake();
            Ok(known.offsets().log_start)
        }
        Ok(None) => Err(ReadError::Gone),
        Err(error) => {
            tracing::error!(
                topic = known.topic(),
                partition = known.index(),
                ?error,
                "cannot move the log start: old records may stay; check the index"
            );
            if let CommitError::Unknown(_) = error {
                task::spawn(find_log_start(Arc::clone(known), index.clone(), number, offset));
            }
            Err(ReadError::Storage)
        }
    }
}

/// Repeats a move of the log start until its outcome is known: the index may have made the move although the answer was
/// lost.
async fn find_log_start(known: Arc<PartitionView>, index: IndexOwner, number: DisklessPartitionId, offset: i64) {
    while !known.is_gone() {
        tokio::time::sleep(FIND_AGAIN).await;
        let place = index.place_to_move().await;
        match index.move_log_starts(vec![(number, offset)], place).await.map(|mut rows| rows.pop().flatten()) {
            Ok(Some(row)) => {
                known.moved(&row, Vec::new());
                return known.wake();
            }
            Ok(None) => return,
            Err(_) => {}
        }
    }
}
