//! The append of a leader's batch that is in its turn.

use std::sync::Arc;

use fullbore_rules::replica::{self, Now};

use super::Replica;
use super::state::{LogState, ReplicaState};
use fullbore_config::TimestampType;
use fullbore_host::disk_space::DiskSpace;
use fullbore_log::partition::durability::Durability;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::{Acks, AppendStep, Appended, WrittenBatch};
use fullbore_log::partition::terms::AppendTerms;
use fullbore_log::validation::ValidBatch;

impl Replica {
    /// Appends one batch, or finds it appended. One before its turn waits for that in `terms.early`, or is refused as out of order. Its sequence is
    /// checked here. To be called in a tokio runtime where batches may be early, since a task has them expire.
    ///
    /// # Errors
    /// [`AppendError`]; the log is then as it was before.
    pub fn append(self: &Arc<Self>, batch: &ValidBatch<'_>, terms: AppendTerms<'_>) -> Result<AppendStep, AppendError> {
        let outcome = self.append_or_park(batch, terms);
        self.noting_refusal(batch, outcome)
    }

    fn append_or_park(
        self: &Arc<Self>,
        batch: &ValidBatch<'_>,
        terms: AppendTerms<'_>,
    ) -> Result<AppendStep, AppendError> {
        self.check_disk()?;
        let mut state = self.lock();
        state.check_append(terms.acks)?;
        if !matches!(state.log, LogState::Open(_)) {
            let opened = self.log_to_write(&mut state).map(drop).map_err(AppendError::from);
            opened.inspect_err(|error| note_failure(&self.log_dir.space, *error))?;
            // The lock was let go of.
            state.check_append(terms.acks)?;
        }
        if let Some(leader_epoch) = terms.leader_epoch {
            state.role.check_leader_epoch(leader_epoch).map_err(AppendError::Role)?;
        }
        if terms.early.are_sent && state.is_early(&batch.stamp()) {
            return self.park_early(&mut state, batch, terms).map(AppendStep::Pending);
        }
        let result = self.write_batch(&mut state, batch, terms.acks, terms.now_ms);
        if state.parked.is_some() {
            self.settle_parked(&mut state, batch, result.as_ref().err().copied(), terms.now_ms);
        }
        drop(state);
        let (written, is_duplicate) = result?;
        if !is_duplicate {
            self.waiters.wake();
        }
        Ok(written.into())
    }

    /// Writes one batch to the open log, or finds it there: then the result is true.
    pub(super) fn write_batch(
        self: &Arc<Self>,
        state: &mut ReplicaState,
        batch: &ValidBatch<'_>,
        acks: Acks,
        now_ms: i64,
    ) -> Result<(WrittenBatch, bool), AppendError> {
        let leader_epoch = state.role.leader_epoch();
        let config = self.config();
        let LogState::Open(log) = &mut state.log else { return Err(AppendError::Gone) };
        log.note_use();
        let space = &self.log_dir.space;
        let Some(_admission) = space.admit_append() else { return Err(AppendError::Full) };
        self.check_behind(log, &batch.stamp())?;
        let outcome = match log.append(batch, leader_epoch, now_ms, &config) {
            Ok(outcome) => outcome,
            Err(error) => {
                note_failure(space, error);
                state.note_append(Err(error), &self.log_dir);
                state.mark_if_broken(&self.log_dir.flusher.failures);
                return Err(error);
            }
        };
        space.note_written();
        self.note_written(&batch.stamp());
        let log_start_offset = log.log_start();
        log.hand_over_written(&self.log_dir.flusher.page_cache);
        state.note_append(Ok(()), &self.log_dir);
        if !outcome.is_duplicate {
            let appended = |replica: &mut replica::Partition, now: &Now<'_>| replica.appended(outcome.end_offset, now);
            // Who waits is woken for the records, too.
            let _ = state.with_now(&self.log_dir.cluster, appended);
        }
        let flushed = self.flush_after(state, &outcome, &config);
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

/// Notes a failed append for the next look at the disk.
pub(super) fn note_failure(space: &DiskSpace, error: AppendError) {
    match error {
        AppendError::Full => space.note_full(),
        AppendError::Storage => space.note_failed(),
        _ => {}
    }
}
