//! Handles batches that arrive out of order. This happens if a producer sends over several connections, or if it has
//! moved to this broker while another broker still commits its earlier batches. `rules/commit/admission.rs` decides
//! which batches wait.
//!
//! A waiting batch is parked in the reorder buffer. It stays there until this broker has admitted the missing batches,
//! or learns that another broker has committed them. The buffer and its limits are in
//! `log/partition/reorder_buffer.rs`.
//!
//! Invariant: a parked batch is checked again after each commit of its producer's batches, by this broker or another
//! one. It is also checked again when a queued batch of its producer turns out to be committed already.

use fullbore_host::task;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fullbore_rules::commit::DisklessPartitionId;
use fullbore_rules::commit::admission::{Admission, Freshness};
use fullbore_rules::sequence::Stamp;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::admit::{AdmissionTerms, Candidate, IndexedPartition, Offered, Unverified};
use super::commit::UnansweredBatch;
use super::refresh::Refreshed;
use super::{Pipeline, PipelineState, Released, Shared};
use crate::partition_view::PartitionView;
use fullbore_host::files::now_ms;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::{AppendTicket, Appended};
use fullbore_log::partition::reorder_buffer::{LaterRoom, OUT_OF_ORDER, OutOfOrderBatch, ReorderBuffer};
use fullbore_log::partition::terms::AppendTerms;
use fullbore_log::validation::ValidBatch;

/// Maximum time between two refreshes of a partition with parked batches. A commit in the change feed causes an earlier
/// refresh. This is also the time limit of a refresh: the task that waits for it must also refuse expired batches in
/// time.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

impl Pipeline {
    /// Parks a batch together with its memory, because earlier batches of its producer are missing.
    ///
    /// # Errors
    /// Fails with an out-of-order error if the batch cannot wait, or if an earlier copy of it has waited too long. In
    /// the second case, fails with `UnknownProducer` instead if the producer is forgotten. Fails with `Gone` if the
    /// broker stops.
    pub(super) fn park_early(
        &self,
        state: &mut PipelineState,
        of: IndexedPartition<'_>,
        batch: &ValidBatch<'_>,
        terms: AppendTerms<'_>,
        admission_terms: AdmissionTerms<'_>,
    ) -> Result<AppendTicket, AppendError> {
        let (IndexedPartition { view: partition, number }, stamp) = (of, batch.stamp());
        let out_of_turn =
            |state: &PipelineState| AppendError::Sequence(state.queue.of_early(number, &stamp, self.shared.now()));
        let Some(reordering) = terms.early.wait_in else { return Err(out_of_turn(state)) };
        if reordering.is_closed() {
            return Err(AppendError::Gone);
        }
        let parked = state.parked.entry(number).or_default();
        if parked.take_late(&stamp, reordering) {
            let log_start_offset = partition.offsets().log_start;
            return Err(match state.is_forgotten(number, &stamp) {
                true => AppendError::UnknownProducer { log_start_offset },
                false => out_of_turn(state),
            });
        }
        let later = LaterRoom { room: admission_terms.room, early_bytes_max: self.shared.budget.max() / 2 };
        let answer = parked.park(batch, &terms, reordering, Some(later));
        if parked.wants_watch() {
            let watch = Watch { number, partition: Arc::clone(partition), reordering: Arc::clone(reordering) };
            match state.others_commit {
                true => drop(task::spawn(watch_others(self.clone(), watch))),
                false => drop(task::spawn(expire(Arc::downgrade(&self.shared), watch))),
            }
        } else if !parked.is_watched() {
            state.parked.remove(&number);
        }
        match answer {
            Err(OUT_OF_ORDER) => Err(out_of_turn(state)),
            answer => answer.map(|answer| {
                AppendTicket::out_of_order_commit(answer, reordering.until(), admission_terms.left_out.clone())
            }),
        }
    }
}

/// A partition with parked batches, which a task watches.
struct Watch {
    number: DisklessPartitionId,
    partition: Arc<PartitionView>,
    reordering: Arc<ReorderBuffer>,
}

impl Shared {
    /// Queues the parked batches that follow the admitted batch with `stamp`.
    pub(super) fn release_followers(
        self: &Arc<Self>,
        state: &mut PipelineState,
        partition: IndexedPartition<'_>,
        mut stamp: Stamp,
    ) {
        let number = partition.number;
        let Some(mut parked) = state.parked.remove(&number) else { return };
        while let Some(early) = parked.next_after(&stamp) {
            stamp = early.batch().stamp();
            match state.check(number, &candidate_of(&early), Freshness::Current) {
                Ok(Admission::Admit) => self.enqueue_released(state, partition, early),
                Ok(Admission::Refuse(why)) => early.refuse(AppendError::Sequence(why)),
                // The batch cannot be queued: its transaction has ended, or a copy of it was admitted over another
                // connection. The client sends the batch again, and then gets the outcome of the copy, if there is one.
                Err(Unverified) | Ok(Admission::Ask | Admission::Shares(_) | Admission::Duplicate { .. }) => {
                    early.refuse(AppendError::Again);
                }
            }
        }
        state.parked.insert(number, parked);
    }

    fn enqueue_released(
        self: &Arc<Self>,
        state: &mut PipelineState,
        partition: IndexedPartition<'_>,
        early: OutOfOrderBatch,
    ) {
        let candidate = candidate_of(&early);
        let (batch, answer, room) = early.into_parts();
        let offered = Offered::new(partition, &batch, candidate, self.index.clock().at(now_ms()));
        self.enqueue(state, offered, answer, room);
        self.close_due(state);
    }

    /// Checks the parked batches of these producers again, because other batches of the same producers were committed.
    /// Queues the parked batches that are ready, and returns those that already have an outcome.
    pub(super) fn release(
        self: &Arc<Self>,
        state: &mut PipelineState,
        producers: impl Iterator<Item = (DisklessPartitionId, i64)>,
    ) -> Vec<Released> {
        let mut released = Vec::new();
        for (number, producer_id) in producers {
            let is_parked = state.parked.get(&number).is_some_and(|parked| parked.has(producer_id));
            if is_parked && let Some(view) = self.reader.partition(number) {
                let partition = IndexedPartition { view: &view, number };
                // A queued batch may make the next parked one ready.
                while self.release_ready(state, partition, producer_id, &mut released) {}
            }
        }
        released
    }

    /// Checks the parked batches of one producer again. Returns true if at least one has left the reorder buffer.
    fn release_ready(
        self: &Arc<Self>,
        state: &mut PipelineState,
        partition: IndexedPartition<'_>,
        producer_id: i64,
        released: &mut Vec<Released>,
    ) -> bool {
        let number = partition.number;
        let mut stamps = state.parked.get(&number).map(|parked| parked.stamps_of(producer_id)).unwrap_or_default();
        stamps.sort_unstable_by_key(|stamp| stamp.base_sequence);
        let mut is_any = false;
        for stamp in stamps {
            let is_early = state.known.get(&number).is_some_and(|known| state.queue.ahead(number, &stamp, known) > 0);
            if is_early {
                continue;
            }
            let Some(early) = state.parked.get_mut(&number).and_then(|parked| parked.take(&stamp)) else { continue };
            is_any = true;
            match state.check(number, &candidate_of(&early), Freshness::Current) {
                Ok(Admission::Admit) => self.enqueue_released(state, partition, early),
                Ok(Admission::Refuse(why)) => released.push((early, Err(AppendError::Sequence(why)))),
                Ok(Admission::Duplicate { base_offset, timestamp }) => {
                    released.push((early, Ok(partition.view.appended_before(base_offset, timestamp))));
                }
                Err(Unverified) | Ok(Admission::Ask | Admission::Shares(_)) => {
                    released.push((early, Err(AppendError::Again)));
                }
            }
        }
        is_any
    }

    /// Answers released batches. The caller must not hold the lock.
    pub(super) fn answer_released(&self, released: Vec<Released>) {
        // Wake the driver. Other released batches may have been added to an object, which the driver must close when it
        // is due.
        self.changed.notify_one();
        for (early, outcome) in released {
            match outcome {
                Ok(appended) => early.was_appended(appended),
                Err(why) => early.refuse(why),
            }
        }
    }

    /// Refuses the batches that have waited too long. Returns when the next batch will have waited too long, or `None`
    /// if no batch is parked.
    fn expire_parked(&self, watch: &Watch) -> Option<Instant> {
        let mut state = self.state.lock();
        let (expired, due) = state.parked.get_mut(&watch.number)?.expire(&watch.reordering);
        let expired = expired.split(|stamp| state.is_forgotten(watch.number, stamp));
        if due.is_none() {
            state.parked.remove(&watch.number);
        }
        drop(state);
        let (forgotten, expired) = expired;
        let log_start_offset = watch.partition.offsets().log_start;
        forgotten.into_iter().for_each(|early| early.refuse(AppendError::UnknownProducer { log_start_offset }));
        let of_early = |stamp: &Stamp| self.state.lock().queue.of_early(watch.number, stamp, self.now());
        expired.refuse(|stamp| AppendError::Sequence(of_early(stamp)));
        due
    }
}

impl PipelineState {
    /// Returns true if a producer is forgotten, so that an out-of-order batch would be accepted as its first batch.
    /// This would be wrong, because another broker may still commit earlier batches. The producer must begin a new
    /// epoch instead.
    fn is_forgotten(&self, number: DisklessPartitionId, stamp: &Stamp) -> bool {
        self.others_commit && self.check_sequence(number, stamp, Freshness::Current) == Admission::Admit
    }

    /// Removes and returns the batches that are parked behind failed ones. Their producer will send all of them again.
    pub(super) fn give_up_parked(
        &mut self,
        answers: &[(UnansweredBatch, Result<Appended, AppendError>)],
    ) -> Vec<OutOfOrderBatch> {
        let failed = answers.iter().filter(|(unanswered, answer)| answer.is_err() && unanswered.is_batch());
        let failed = failed.map(|(unanswered, _)| unanswered);
        let parked = &mut self.parked;
        failed.filter_map(|of| Some(parked.get_mut(&of.number)?.take_all(of.producer_id))).flatten().collect()
    }
}

fn candidate_of(early: &OutOfOrderBatch) -> Candidate {
    Candidate::unverified(early.batch(), early.ends_transaction())
}

/// Refuses batches that have waited too long. Returns when no batch of the partition is parked.
async fn expire(shared: Weak<Shared>, watch: Watch) {
    while let Some(due) = shared.upgrade().and_then(|shared| shared.expire_parked(&watch)) {
        sleep_until(due).await;
    }
}

/// Watches the parked batches of a partition to which other brokers commit as well. Refreshes the partition again and
/// again, until no batch is parked.
async fn watch_others(pipeline: Pipeline, watch: Watch) {
    let received = Arc::new(Notify::new());
    let _registration = watch.partition.register(&received);
    loop {
        // The interval limits the time of a refresh. The next refresh begins after a commit in the change feed, when a
        // parked batch has waited too long, or after the interval.
        let refresh = async {
            let _slot = pipeline.shared.refreshes.acquire_for_watch().await;
            pipeline.refresh(BTreeSet::from([watch.number]), &mut Refreshed::new()).await;
        };
        let _ = timeout(REFRESH_INTERVAL, refresh).await;
        let Some(due) = pipeline.shared.expire_parked(&watch) else { return };
        let _ = timeout_at(due.min(Instant::now() + REFRESH_INTERVAL), received.notified()).await;
    }
}
