//! The leader's appends: batches whose sequence comes next, and the markers that end transactions.
//!
//! The replica remembers a batch that it has refused for a passing reason, for example because the log is not open yet.
//! Until the producer sends that batch again and it is appended, or the replica forgets it, later batches of this
//! producer get the same error. This preserves the producer's order. The rule is
//! [`fullbore_rules::sequence::RefusedBatches`].
//!
//! The module `out_of_order` handles batches that must wait for earlier ones.

use std::sync::Arc;

use fullbore_rules::replica::{self, Now};
use fullbore_rules::sequence::{Marker, SequenceRefusal, Stamp, TransactionsSeen, Verdict};
use fullbore_wire::ErrorCode;
use parking_lot::MutexGuard;

use super::Replica;
use super::state::{LogState, ReplicaState};
use fullbore_config::{TimestampType, TopicConfig};
use fullbore_host::disk_space::DiskSpace;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::{Acks, AppendStep, Appended, Blocker, Durability, WrittenBatch};
use fullbore_log::partition::terms::{AppendTerms, VerificationTime};
use fullbore_log::validation::ValidBatch;
use fullbore_log::{Log, LogAppendInfo, Verification};

impl Replica {
    /// Appends a batch if its sequence is the next one of its producer. Does not write a duplicate again. Parks an
    /// out-of-order batch if `terms.early` allows it, and refuses it otherwise. If batches may be parked, the caller
    /// must run in a tokio runtime, because a task expires them. Returns [`AppendStep::Blocked`] if the batch's
    /// transaction must be verified first.
    ///
    /// # Errors
    /// Fails with [`AppendError`] if the batch is refused or cannot be written. The log is then unchanged.
    pub fn append(self: &Arc<Self>, batch: &ValidBatch<'_>, terms: AppendTerms<'_>) -> Result<AppendStep, AppendError> {
        match self.append_or_park(batch, terms) {
            Err(AppendError::Unverified) => Ok(AppendStep::Blocked(Blocker::Verification)),
            outcome => self.noting_refusal(batch, outcome),
        }
    }

    /// Appends the marker that ends a transaction. If `leader_epoch` is given, appends it only in that epoch. Then
    /// refuses the producer's parked batches of older producer epochs, and appends those that follow the marker.
    ///
    /// # Errors
    /// Fails with [`AppendError`] if the marker is refused or cannot be written. The log is then unchanged.
    pub fn append_marker(
        self: &Arc<Self>,
        marker: &Marker,
        transaction_version: i8,
        leader_epoch: Option<i32>,
        now_ms: i64,
    ) -> Result<WrittenBatch, AppendError> {
        self.check_disk()?;
        let mut state = self.lock();
        self.open_to_append(&mut state, Acks::All, leader_epoch)?;
        let append = |log: &mut Log, leader_epoch: i32, config: &TopicConfig| {
            log.append_marker(marker, transaction_version, leader_epoch, now_ms, config)
        };
        // Flush a commit marker, because the coordinator's record that the transaction is complete might reach the disk
        // first. After a power loss between the two, the coordinator would not write the marker again.
        let flushes = self.log_dir.flushes_markers && marker.is_commit;
        let (written, _) = self.write_with(&mut state, Acks::All, flushes, append)?;
        state.forget_replicated_ends();
        if state.parked.is_some() {
            let &Marker { producer_id, producer_epoch, .. } = marker;
            // A parked batch with sequence 0 may be the first one of the new epoch. Sequence 0 follows i32::MAX, so
            // this stamp makes that batch the next one.
            let before = Stamp { producer_id, producer_epoch, base_sequence: i32::MAX, record_count: 1 };
            self.release_parked(&mut state, before, None, now_ms);
        }
        drop(state);
        self.waiters.wake();
        Ok(written)
    }

    /// Returns the partition's present state, for a caller that will now verify the producer's transaction. The caller
    /// passes this state to the append as [`AppendTerms::verified_at`]. The append compares it with the partition's
    /// state at that later time.
    pub fn verification_time(&self, producer_id: i64) -> VerificationTime {
        let state = self.lock();
        let seen = match &state.log {
            LogState::Open(log) => log.producers().transactions_seen(producer_id),
            _ => TransactionsSeen::default(),
        };
        VerificationTime { leader_epoch: state.role.leader_epoch(), seen, ..Default::default() }
    }

    /// Returns true if the log may have forgotten the producer since `verified_at`. In that case the log no longer
    /// knows which coordinator epoch ended the producer's last transaction.
    pub fn has_forgotten_since(&self, producer_id: i64, verified_at: VerificationTime) -> bool {
        match &self.lock().log {
            LogState::Open(log) => log.producers().is_forgotten_since(producer_id, verified_at.seen),
            _ => false,
        }
    }

    /// Checks that this broker may append as leader, in `leader_epoch` if that is given. Opens the log if necessary.
    fn open_to_append(
        &self,
        state: &mut MutexGuard<'_, ReplicaState>,
        acks: Acks,
        leader_epoch: Option<i32>,
    ) -> Result<(), AppendError> {
        state.check_append(acks)?;
        if !matches!(state.log, LogState::Open(_)) {
            let opened = self.log_to_write(state).map(drop).map_err(AppendError::from);
            opened.inspect_err(|error| note_failure(&self.log_dir.space, *error))?;
            // `log_to_write` has released the lock, so the role may have changed.
            state.check_append(acks)?;
        }
        match leader_epoch {
            Some(leader_epoch) => state.role.check_leader_epoch(leader_epoch).map_err(AppendError::Role),
            None => Ok(()),
        }
    }

    fn append_or_park(
        self: &Arc<Self>,
        batch: &ValidBatch<'_>,
        terms: AppendTerms<'_>,
    ) -> Result<AppendStep, AppendError> {
        self.check_disk()?;
        let mut state = self.lock();
        self.open_to_append(&mut state, terms.acks, terms.leader_epoch)?;
        if terms.early.are_sent && state.is_early(&batch.stamp()) {
            return self.park_early(&mut state, batch, terms).map(AppendStep::Pending);
        }
        let verification = verification(&state, batch, &terms);
        let result = self.write_batch(&mut state, batch, verification, terms.acks, terms.now_ms);
        if state.parked.is_some() && !matches!(result, Err(AppendError::Unverified)) {
            self.release_parked(&mut state, batch.stamp(), result.as_ref().err().copied(), terms.now_ms);
        }
        drop(state);
        let (written, is_duplicate) = result?;
        if !is_duplicate {
            self.waiters.wake();
        }
        Ok(written.into())
    }

    /// Writes one batch to the open log. The flag in the result is true if the log already contained the batch.
    pub(super) fn write_batch(
        self: &Arc<Self>,
        state: &mut ReplicaState,
        batch: &ValidBatch<'_>,
        verification: Verification,
        acks: Acks,
        now_ms: i64,
    ) -> Result<(WrittenBatch, bool), AppendError> {
        let flushes = self.log_dir.flushes_transactions && batch.is_transactional();
        let written = self.write_with(state, acks, flushes, |log, leader_epoch, config| {
            self.check_behind(log, &batch.stamp())?;
            log.append_verified(batch, verification, leader_epoch, now_ms, config)
        })?;
        self.note_written(&batch.stamp());
        Ok(written)
    }

    /// Calls `append` on the open log. The flag in the result is true if the log already contained the batch. With
    /// `flushes`, the batch is acknowledged only after a flush, even if the topic's settings do not require one.
    fn write_with(
        self: &Arc<Self>,
        state: &mut ReplicaState,
        acks: Acks,
        flushes: bool,
        append: impl FnOnce(&mut Log, i32, &TopicConfig) -> Result<LogAppendInfo, AppendError>,
    ) -> Result<(WrittenBatch, bool), AppendError> {
        let leader_epoch = state.role.leader_epoch();
        let config = self.config();
        let LogState::Open(log) = &mut state.log else { return Err(AppendError::Gone) };
        log.note_use();
        let space = &self.log_dir.space;
        let Some(_admission) = space.admit_append() else { return Err(AppendError::Full) };
        let outcome = match append(log, leader_epoch, &config) {
            Ok(outcome) => outcome,
            Err(error) => {
                note_failure(space, error);
                state.note_append(Err(error), &self.log_dir);
                state.mark_if_broken(&self.log_dir.flusher.failures);
                return Err(error);
            }
        };
        space.note_written();
        let log_start_offset = log.log_start();
        log.hand_over_written(&self.log_dir.flusher.page_cache);
        state.note_append(Ok(()), &self.log_dir);
        if !outcome.is_duplicate {
            let appended = |replica: &mut replica::Partition, now: &Now<'_>| replica.appended(outcome.end_offset, now);
            // The only possible effect is a new high watermark. Ignore it, because all callers wake the waiters.
            let _ = state.with_now(&self.log_dir.cluster, appended);
        }
        let flushed = self.flush_after(state, &outcome, flushes, &config);
        let replicated = self.replication(state, acks, outcome.end_offset);
        let appended = Appended {
            base_offset: outcome.base_offset,
            log_append_time_ms: match config.message_timestamp_type {
                TimestampType::CreateTime => -1,
                TimestampType::LogAppendTime => outcome.timestamp,
            },
            log_start_offset,
            batches_retained: config.producer_state_batches_to_retain,
        };
        Ok((WrittenBatch { appended, durability: Durability { flushed, replicated } }, outcome.is_duplicate))
    }
}

/// Remembers batches that were refused for a passing reason, so that later batches of their producers are refused too.
///
/// Locks: `refused` is locked only briefly, never during disk I/O. A thread that needs the locks of `refused` and of
/// the replica's state takes the state's lock first.
impl Replica {
    /// Remembers that a batch was refused with `code`, if the code is retriable and the batch has a sequence number.
    pub fn turned_away(&self, stamp: &Stamp, code: ErrorCode) {
        if code.is_retriable() && has_sequence(stamp) {
            self.refused.lock().note(stamp, code, self.log_dir.cluster.elapsed());
        }
    }

    /// Remembers the batch like [`Replica::turned_away`] if `outcome` is an error. Returns `outcome` unchanged.
    pub(super) fn noting_refusal<T>(
        &self,
        batch: &ValidBatch<'_>,
        outcome: Result<T, AppendError>,
    ) -> Result<T, AppendError> {
        outcome.inspect_err(|why| self.turned_away(&batch.stamp(), why.code()))
    }

    /// Refuses a batch if an earlier batch of its producer was refused and is still missing from the log.
    ///
    /// # Errors
    /// Fails with [`SequenceRefusal::BehindRefused`] in that case. This error contains the code with which the earlier
    /// batch was refused.
    pub(super) fn check_behind(&self, log: &Log, stamp: &Stamp) -> Result<(), AppendError> {
        let refused = self.refused.lock();
        if refused.is_empty() || !has_sequence(stamp) {
            return Ok(());
        }
        let producers = log.producers();
        let verdict = producers.check(stamp, log.log_end());
        let is_known = producers.knows(stamp.producer_id);
        match refused.judge(stamp, verdict, is_known, self.log_dir.cluster.elapsed()) {
            Verdict::Refuse(why @ SequenceRefusal::BehindRefused(_)) => Err(AppendError::Sequence(why)),
            _ => Ok(()),
        }
    }

    /// Returns the error for an out-of-order batch that may not wait, or has waited too long.
    pub(super) fn out_of_turn(&self, stamp: &Stamp) -> AppendError {
        AppendError::Sequence(self.refused.lock().of_early(stamp, self.log_dir.cluster.elapsed()))
    }

    /// Updates the list of a producer's refused batches after one of its batches was written to the log.
    pub(super) fn note_written(&self, stamp: &Stamp) {
        let mut refused = self.refused.lock();
        if !refused.is_empty() {
            refused.written(stamp);
        }
    }

    /// Forgets batches that were refused long ago.
    pub(crate) fn forget_old_refusals(&self) {
        self.refused.lock().forget_old(self.log_dir.cluster.elapsed());
    }
}

/// Returns the verification in `terms`, or `Unknown` if the transaction may have ended since it was verified. The
/// caller must hold the lock of the state until the append. Otherwise the transaction could end in between, and the
/// batch would open a new transaction that no marker ends.
fn verification(state: &ReplicaState, batch: &ValidBatch<'_>, terms: &AppendTerms<'_>) -> Verification {
    let VerificationTime { leader_epoch, seen, coordinator_epoch, .. } = terms.verified_at;
    let (producer_id, epochs) = (batch.stamp().producer_id, coordinator_epoch.into_iter());
    let may_have_ended = |log: &Log| {
        let is_replaced = |epoch| log.producers().has_later_coordinator(producer_id, epoch);
        log.producers().may_have_ended_since(producer_id, seen) || epochs.clone().any(is_replaced)
    };
    match &state.log {
        _ if terms.verification == Verification::Unknown => Verification::Unknown,
        LogState::Open(log) if may_have_ended(log) => Verification::Unknown,
        // Another leader may have written the marker that ends the transaction.
        _ if leader_epoch != state.role.leader_epoch() => Verification::Unknown,
        _ => terms.verification,
    }
}

/// Reports to `space` that the disk is full or that a write has failed. After a failed write, the next check of the
/// disk tries whether files can still be created.
pub(super) fn note_failure(space: &DiskSpace, error: AppendError) {
    match error {
        AppendError::Full => space.note_full(),
        AppendError::Storage => space.note_failed(),
        _ => {}
    }
}

/// Returns true if the batch has a sequence number. Batches of committed group offsets have none.
fn has_sequence(stamp: &Stamp) -> bool {
    stamp.is_idempotent() && stamp.base_sequence >= 0
}
