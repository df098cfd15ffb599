//! A diskless partition, as the code that serves requests uses it. It combines this broker's view of the partition with
//! the services that write and read it.
//!
//! Admission and commit are in [`super::pipeline`], the search and fetch of records in [`super::reader`].
//!
//! Invariant: the partition accepts no batch until the ownership marker of the store is verified.

use fullbore_host::task;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_rules::commit::DisklessPartitionId;
use fullbore_rules::commit::admission::Freshness;
use fullbore_rules::sequence::{Marker, ProducerState, Stamp};
use fullbore_wire::{ErrorCode, Records};
use tokio::time::timeout_at;

use super::index::{IndexOwner, MOVED_MAX, PartitionRow};
use super::objects::Ownership;
use super::partition_view::PartitionView;
use super::pipeline::{AdmissionTerms, IndexedPartition, Pipeline, Refreshed};
use super::reader::{Found, Reader};
use super::retention;
use fullbore_db::CommitError;
use fullbore_host::long_work::LongWork;
use fullbore_log::partition::error::{AppendError, ReadError};
use fullbore_log::partition::left_out::LeftOut;
use fullbore_log::partition::memory_budget::MemoryPermit;
use fullbore_log::partition::outcome::{AppendStep, Blocker};
use fullbore_log::partition::read::{Isolation, Read, TimeQuery, TimestampOffset};
use fullbore_log::partition::terms::AppendTerms;
use fullbore_log::validation::ValidBatch;

/// How long the broker waits before it repeats a move of the log start whose outcome is unknown.
const FIND_AGAIN: Duration = Duration::from_secs(1);

/// A diskless partition on one broker.
pub struct DisklessPartition {
    /// The state of the partition as this broker knows it.
    pub view: Arc<PartitionView>,
    services: Services,
}

/// The services that all partitions of a broker share.
#[derive(Clone)]
pub struct Services {
    /// Shows whether the store's ownership marker is verified. Until then, the objects in the store may belong to
    /// another index, so the partition accepts no batch and returns no records.
    pub(super) ownership: Arc<Ownership>,
    pub(super) pipeline: Pipeline,
    pub(super) reader: Reader,
    pub(super) index: IndexOwner,
    /// True if other brokers commit to the same partitions.
    pub(super) others_commit: bool,
    pub(super) left_out: LeftOut,
}

/// Writes to the partition.
impl DisklessPartition {
    pub(super) fn new(view: PartitionView, services: Services) -> DisklessPartition {
        DisklessPartition { view: Arc::new(view), services }
    }

    /// Appends one batch, which came over the connection from `peer`. The ticket in [`AppendStep::Pending`] is answered
    /// after the batch is committed.
    ///
    /// After [`AppendStep::Blocked`], the caller must wait and then call this again. If it has waited for a refresh, it
    /// passes `Current` as `freshness`. If it has waited for memory, it passes the permit as `room`.
    ///
    /// # Errors
    /// Returns an [`AppendError`] if the batch is refused. No record of a refused batch is or will be in the partition.
    pub fn append(
        &self,
        batch: &ValidBatch<'_>,
        terms: AppendTerms<'_>,
        peer: SocketAddr,
        freshness: Freshness,
        room: Option<MemoryPermit>,
    ) -> Result<AppendStep, AppendError> {
        if !self.services.ownership.is_verified() {
            self.turned_away(&batch.stamp(), AppendError::Storage.code());
            return Err(AppendError::Storage);
        }
        let number = self.view.number().ok_or(AppendError::Storage)?;
        let size = batch.view().size();
        let room = match room {
            Some(room) => Some(room),
            None => self.services.pipeline.try_reserve(peer, size)?,
        };
        let Some(room) = room else { return Ok(AppendStep::Blocked(Blocker::Memory(peer, size))) };
        let awaited = terms.awaited.cloned();
        let admission_terms = AdmissionTerms { freshness, room, left_out: &self.services.left_out, awaited };
        self.services.pipeline.append(IndexedPartition { view: &self.view, number }, batch, terms, admission_terms)
    }

    /// Writes the marker of a transaction. Returns after the index has committed the marker. If the partition is ready,
    /// the first poll queues the marker behind all batches of its producer that this broker has already admitted.
    ///
    /// Returns the errors of [`Pipeline::write_marker`], and [`AppendError::Storage`] if the store's ownership marker
    /// is not verified. Fails with NOT_LEADER_OR_FOLLOWER if the metadata lists this broker as one that does not serve
    /// diskless topics. Then another broker can write the marker while a PUT hangs at this one.
    pub async fn write_marker(&self, marker: &Marker, transaction_version: i8) -> Result<(), AppendError> {
        if !self.services.ownership.is_verified() {
            return Err(AppendError::Storage);
        }
        self.view.opened().await;
        let number = self.view.number().ok_or_else(|| self.view.gone())?;
        let partition = IndexedPartition { view: &self.view, number };
        let written = self.services.pipeline.write_marker(partition, marker, transaction_version);
        self.services.left_out.unless(written).await.map_err(AppendError::Role)?
    }

    /// Returns the flag that is set while the metadata lists this broker as one that does not serve diskless topics.
    pub fn left_out(&self) -> &LeftOut {
        &self.services.left_out
    }

    /// Records that a batch was refused with `code`, before its sequence was checked or because a refresh failed. Later
    /// batches of its producer that are in flight are then refused too.
    pub fn turned_away(&self, stamp: &Stamp, code: ErrorCode) {
        if let Some(number) = self.view.number().filter(|_| !self.view.is_gone()) {
            self.services.pipeline.turned_away(number, stamp, code);
        }
    }

    /// Refreshes the producer state of `partitions`, which must belong to the same broker. Adds the outcomes to
    /// `refreshed`.
    pub async fn refresh_producers(partitions: &[Arc<DisklessPartition>], refreshed: &mut Refreshed) {
        if let Some(DisklessPartition { services, .. }) = partitions.first().map(Arc::as_ref) {
            let numbers = partitions.iter().filter_map(|partition| partition.view.number());
            services.pipeline.refresh(numbers.collect(), refreshed).await;
        }
    }

    /// Returns true if the next batch of this producer must wait for a refresh of the partition.
    pub fn is_stale_for(&self, producer_id: i64) -> bool {
        self.view.number().is_some_and(|number| self.services.pipeline.is_stale_for(number, producer_id))
    }

    /// Waits until `size` bytes of the memory budget for batches are free, and reserves them for the connection from
    /// `peer`. Returns `None` if the broker stops.
    pub async fn reserve_memory(&self, peer: SocketAddr, size: usize) -> Option<MemoryPermit> {
        self.services.pipeline.reserve(peer, size).await
    }

    /// Returns the states of all idempotent producers, those that have been idle the longest first. Producers with an
    /// open transaction come last.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if the refresh fails or the index has not created the partition yet.
    pub async fn producers(self: &Arc<Self>) -> Result<Vec<ProducerState>, ReadError> {
        let mut refreshed = Refreshed::new();
        DisklessPartition::refresh_producers(std::slice::from_ref(self), &mut refreshed).await;
        refreshed.into_values().next().unwrap_or(Err(AppendError::Storage))?;
        let number = self.view.number().ok_or(ReadError::Storage)?;
        Ok(self.services.pipeline.known(number, |known| known.producers.iter().collect()).unwrap_or_default())
    }
}

/// Reads from the partition.
impl DisklessPartition {
    /// Returns whole batches that are in memory. The first one is the batch with `offset`, and the last one ends at the
    /// offset that `isolation` allows. They have at most `max_bytes` in total; with `at_least_one`, the first batch may
    /// be larger. `client` is the number of the connection that reads.
    ///
    /// Returns `None` if batches must first be found or fetched, or if the view must be refreshed. In that case,
    /// requests this work. When it is done, the partition's waiters are woken.
    ///
    /// # Errors
    /// Returns a [`ReadError`], for example the error of a search or fetch that has failed at `since` or later.
    pub fn try_read(
        &self,
        isolation: Isolation,
        offset: i64,
        max_bytes: u32,
        at_least_one: bool,
        since: Instant,
        client: u64,
    ) -> Result<Option<Read>, ReadError> {
        if self.view.is_gone() {
            return Err(ReadError::Gone);
        }
        if !self.services.ownership.is_verified() {
            return Err(ReadError::Storage);
        }
        if !self.view.is_ready() {
            return Ok(None);
        }
        let (bounds, failed) = (self.view.bounds(), self.view.failed_since(since));
        let (offsets, end) = (bounds.offsets, bounds.end(isolation));
        if offset > offsets.log_end && self.services.others_commit && !self.view.is_refreshed_since(since) {
            // The client may know commits that this broker has not seen yet, so the view must be refreshed.
            return self.request(failed, |reader, view| reader.request_refresh(view));
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
            let is_known = !self.services.others_commit || self.view.was_refreshed() || failed.is_some();
            if !is_known {
                // The change feed does not report commits from before this broker knew the partition's id, so the view
                // must be refreshed.
                self.services.reader.request_refresh(&self.view);
                return Ok(None);
            }
            return Ok(Some(read(Records::default(), offset, none_aborted)));
        }
        let reader = &self.services.reader;
        let has_aborted = isolation == Isolation::ReadCommitted && offset <= bounds.aborted_to;
        let range = if has_aborted { reader.aborted(&self.view, offset) } else { None };
        if has_aborted && range.is_none() {
            return self.request(failed.map(|why| why.at(offset)), |reader, view| reader.request_aborted(view, offset));
        }
        let end = range.as_ref().map_or(end, |range| range.end().min(end));
        match reader.find(&self.view, offset..end, max_bytes, at_least_one, client) {
            Found::Records(records, end_offset) => {
                let aborted = range.map_or(none_aborted, |range| Some(range.of(offset..end_offset)));
                Ok(Some(read(records, end_offset, aborted)))
            }
            Found::Missing => {
                self.request(failed.map(|why| why.at(offset)), |reader, view| reader.request(view, offset, client))
            }
        }
    }

    /// Calls `request`, which starts the search, fetch or refresh that a read needs, and returns `None`. If an earlier
    /// request has failed with the error `failed`, returns this error instead.
    fn request(
        &self,
        failed: Option<ReadError>,
        request: impl FnOnce(&Reader, &Arc<PartitionView>),
    ) -> Result<Option<Read>, ReadError> {
        match failed {
            Some(why) => Err(why),
            None => {
                request(&self.services.reader, &self.view);
                Ok(None)
            }
        }
    }

    /// Counts the bytes of the readable batches, from the batch with `offset` on, without reading them. May stop
    /// counting as soon as the count exceeds `enough`. Returns `None` if the bytes can be counted only by
    /// [`DisklessPartition::try_read`].
    pub fn count(&self, isolation: Isolation, offset: i64, enough: u64) -> Option<u64> {
        let is_there = self.view.is_ready() && !self.view.is_gone() && self.services.ownership.is_verified();
        let bounds = self.view.bounds();
        let (log_start, end) = (bounds.offsets.log_start, bounds.end(isolation));
        let is_inside = (log_start..end).contains(&offset);
        let count = || self.services.reader.count(&self.view, offset..end, enough);
        (is_there && is_inside).then(count).flatten()
    }

    /// Updates the offsets of `partitions` to the state that the index has now or later. All partitions must belong to
    /// the same broker.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if the ownership marker is not verified or the index cannot be read.
    pub async fn refresh(partitions: &[Arc<DisklessPartition>]) -> Result<(), ReadError> {
        let Some(Services { ownership, reader, others_commit, .. }) = partitions.first().map(|first| &first.services)
        else {
            return Ok(());
        };
        if !ownership.is_verified() {
            return Err(ReadError::Storage);
        }
        if !others_commit {
            return Ok(());
        }
        let views: Vec<_> = partitions.iter().map(|partition| Arc::clone(&partition.view)).collect();
        reader.refresh(&views).await
    }

    /// Answers these queries by time, in order. All partitions must belong to the same broker. An answer is `None` if
    /// no record matches.
    ///
    /// Returns a [`ReadError`] for each partition whose part of the index or of the store cannot be read.
    pub async fn offsets_by_time(
        queries: &[(Arc<DisklessPartition>, TimeQuery)],
        isolation: Isolation,
        long: &LongWork,
    ) -> Vec<Result<Option<TimestampOffset>, ReadError>> {
        let Some(reader) = queries.first().map(|(first, _)| &first.services.reader) else { return Vec::new() };
        let queries: Vec<_> = queries.iter().map(|(partition, query)| (Arc::clone(&partition.view), *query)).collect();
        reader.offsets_by_time(&queries, isolation, long).await
    }

    /// Moves the log start to `offset`, or to the high watermark if `offset` is -1. Returns the new log start. Readers
    /// no longer get the records before it. Once the move is queued at the index, it is carried out even if the caller
    /// drops the future.
    ///
    /// # Errors
    /// Returns [`ReadError::OffsetOutOfRange`] if `offset` is past the high watermark, or another [`ReadError`] if the
    /// partition is deleted or the index fails.
    pub async fn delete_records_before(self: &Arc<Self>, offset: i64) -> Result<i64, ReadError> {
        let mut outcomes = Vec::new();
        DisklessPartition::delete_records(&[(Arc::clone(self), offset)], &mut outcomes).await;
        outcomes.pop().unwrap_or(Err(ReadError::Storage))
    }

    /// Does the same as [`DisklessPartition::delete_records_before`] for many partitions of one broker. One transaction
    /// of the index moves up to [`MOVED_MAX`] log starts. After each transaction, its results are added to `outcomes`,
    /// in the order of `requested`. A caller that gives up therefore keeps the results so far.
    pub async fn delete_records(
        requested: &[(Arc<DisklessPartition>, i64)],
        outcomes: &mut Vec<Result<i64, ReadError>>,
    ) {
        for piece in requested.chunks(MOVED_MAX) {
            outcomes.extend(Box::pin(DisklessPartition::delete_piece(piece)).await);
        }
    }

    async fn delete_piece(requested: &[(Arc<DisklessPartition>, i64)]) -> Vec<Result<i64, ReadError>> {
        let partitions: Vec<_> = requested.iter().map(|(partition, _)| Arc::clone(partition)).collect();
        let refreshed = DisklessPartition::refresh(&partitions).await;
        let checked = requested.iter().map(|(partition, offset)| {
            refreshed?;
            let number = partition.view.number().ok_or(ReadError::Storage)?;
            let log_end = partition.view.offsets().log_end;
            let offset = if *offset == -1 { log_end } else { *offset };
            let is_inside = (0..=log_end).contains(&offset);
            if is_inside { Ok((number, offset)) } else { Err(ReadError::OffsetOutOfRange) }
        });
        let checked: Vec<_> = checked.collect();
        let moves: Vec<_> = checked.iter().filter_map(|checked| checked.as_ref().ok().copied()).collect();
        let Some((first, _)) = requested.first().filter(|_| !moves.is_empty()) else {
            return checked.into_iter().map(|checked| checked.and(Err(ReadError::Storage))).collect();
        };
        let index = first.services.index.clone();
        let slot = index.slot_to_move().await;
        let moved = index.move_log_starts(moves, slot);
        let moving = task::spawn(task::boxed(async move {
            let moved = moved.await;
            let mut rows = moved.iter().flatten();
            let known_once_moved = |(partition, checked): (Arc<DisklessPartition>, Result<_, ReadError>)| {
                let (number, offset) = checked?;
                let row = match &moved {
                    Ok(_) => Ok(rows.next().cloned().flatten()),
                    Err(error) => Err(error.clone()),
                };
                known_once_moved(row, &partition.view, &index, number, offset)
            };
            partitions.into_iter().zip(checked).map(known_once_moved).collect::<Vec<_>>()
        }));
        moving.await.unwrap_or_else(|_| requested.iter().map(|_| Err(ReadError::Storage)).collect())
    }

    /// Deletes whole extents that are too old or exceed the size limit. Keeps the records of an open transaction, and
    /// all records after them.
    pub(super) async fn retain(self: &Arc<Self>, now_ms: i64) {
        let (bytes, ms) = self.view.config().retention();
        let since_ms = ms.map(|ms| now_ms.saturating_sub(ms));
        let stable = self.view.bounds().last_stable_offset;
        let kept = retention::kept_from(self.services.reader.finder(), &self.view, bytes, since_ms).await;
        let kept = kept.map(|kept| kept.min(stable));
        if kept.is_some_and(|kept| kept > self.view.offsets().log_start)
            && let Some(kept) = kept
        {
            // The failure is already logged. The next retention pass repeats the move.
            let _ = self.delete_records_before(kept).await;
        }
    }
}

/// Applies the index's answer to a move of the log start to `offset`. Returns the log start. If the outcome is unknown,
/// spawns a task that repeats the move.
fn known_once_moved(
    moved: Result<Option<PartitionRow>, CommitError>,
    view: &Arc<PartitionView>,
    index: &IndexOwner,
    number: DisklessPartitionId,
    offset: i64,
) -> Result<i64, ReadError> {
    match moved {
        Ok(Some(row)) => {
            view.moved(&row, Vec::new());
            // The row may include commits of other brokers that this broker did not know, so wake the waiters.
            view.wake();
            Ok(view.offsets().log_start)
        }
        Ok(None) => Err(ReadError::Gone),
        Err(error) => {
            tracing::error!(
                topic = view.topic(),
                partition = view.index(),
                ?error,
                "cannot raise the log start offset of a diskless partition: old records may stay; check the index"
            );
            if let CommitError::Unknown(_) = error {
                task::spawn(find_log_start(Arc::clone(view), index.clone(), number, offset));
            }
            Err(ReadError::Storage)
        }
    }
}

/// Repeats a move of the log start until its outcome is known. An earlier attempt may have moved the log start although
/// its answer was lost.
async fn find_log_start(view: Arc<PartitionView>, index: IndexOwner, number: DisklessPartitionId, offset: i64) {
    while !view.is_gone() {
        tokio::time::sleep(FIND_AGAIN).await;
        let slot = index.slot_to_move().await;
        match index.move_log_starts(vec![(number, offset)], slot).await.map(|mut rows| rows.pop().flatten()) {
            Ok(Some(row)) => {
                view.moved(&row, Vec::new());
                return view.wake();
            }
            Ok(None) => return,
            Err(_) => {}
        }
    }
}

/// The results of the waits of one produce request with diskless batches.
#[derive(Default)]
pub struct Unblocked {
    /// The outcome of the last refresh of each partition's state.
    refreshed: Refreshed,
    /// The memory for the next batch.
    memory: Option<MemoryPermit>,
}

impl Unblocked {
    /// Releases the memory that was reserved for a batch but not used by it.
    pub fn release_memory(&mut self) {
        self.memory = None;
    }

    /// Returns true if the request has waited for a refresh.
    pub fn has_refreshed(&self) -> bool {
        !self.refreshed.is_empty()
    }

    /// Appends a batch of the client at `peer` to its diskless partition.
    ///
    /// # Errors
    /// Fails with [`AppendError`] if the batch is refused. The partition is then unchanged.
    pub fn append(
        &mut self,
        partition: &DisklessPartition,
        batch: &ValidBatch<'_>,
        terms: AppendTerms<'_>,
        peer: SocketAddr,
    ) -> Result<AppendStep, AppendError> {
        let memory = self.memory.take();
        let freshness = match partition.view.number().and_then(|number| self.refreshed.get(&number)) {
            Some(Err(why)) => {
                partition.turned_away(&batch.stamp(), why.code());
                return Err(*why);
            }
            // The refresh began after the whole request had arrived, so the state is current.
            Some(Ok(())) => Freshness::Current,
            None => Freshness::MayBeStale,
        };
        partition.append(batch, terms, peer, freshness, memory)
    }

    /// Waits until a refresh of all `partitions` is done, or until there is memory for a batch of the first one, but at
    /// most until `deadline`. Returns at once if `blocker` is of another kind, for which the caller must wait itself.
    pub async fn wait_for(
        &mut self,
        partitions: &[Arc<DisklessPartition>],
        blocker: Blocker,
        deadline: Option<tokio::time::Instant>,
    ) {
        let Some(partition) = partitions.first() else { return };
        let Unblocked { refreshed, memory } = self;
        // If the broker is left out meanwhile, this wait ends. The partition refuses the batch when the caller appends
        // it again.
        let came = partition.left_out().unless(async {
            match blocker {
                Blocker::StaleState(_) => DisklessPartition::refresh_producers(partitions, refreshed).await,
                Blocker::Memory(peer, size) => *memory = partition.reserve_memory(peer, size).await,
                Blocker::DecompressPermit | Blocker::LongWork | Blocker::Verification => {}
            }
        });
        let in_time = match deadline {
            Some(deadline) => timeout_at(deadline, came).await.is_ok(),
            None => {
                let _ = came.await;
                true
            }
        };
        if !in_time && let Some(number) = partition.view.number() {
            // The timeout is recorded as the outcome of the refresh, even if the wait was for memory. The next attempt
            // to append the batch then returns REQUEST_TIMED_OUT.
            self.refreshed.insert(number, Err(AppendError::Role(ErrorCode::REQUEST_TIMED_OUT)));
        }
    }
}
