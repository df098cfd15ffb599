//! The append of a leader's batch that is in its turn.

use std::sync::Arc;

use fullbore_rules::replica::{self, Now};
use parking_lot::MutexGuard;

use super::Replica;
use super::state::{LogState, ReplicaState};
use fullbore_config::TimestampType;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::ticket::{Acks, AnswerTicket, Appended};
use fullbore_log::validation::ValidBatch;

impl Replica {
    /// Appends one batch, or finds it appended. Its sequence is checked here.
    ///
    /// # Errors
    /// [`AppendError`]; the log is then as it was before.
    pub fn append(self: &Arc<Self>, batch: &ValidBatch<'_>, acks: Acks, now_ms: i64) -> Result<Appended, AppendError> {
        let append = || {
            self.check_disk()?;
            let mut state = self.lock();
            state.check_append(acks)?;
            self.log_to_write(&mut state)?;
            self.append_locked(state, batch, acks, now_ms)
        };
        self.noting_refusal(batch, append())
    }

    /// Appends as [`Replica::append`] does, with acks=all, if this is the leader's epoch still.
    ///
    /// # Errors
    /// [`AppendError`]; the log is then as it was before.
    pub fn append_in_epoch(
        self: &Arc<Self>,
        batch: &ValidBatch<'_>,
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<Appended, AppendError> {
        self.check_disk()?;
        let mut state = self.lock();
        state.check_append(Acks::All)?;
        self.log_to_write(&mut state)?;
        state.replica.check_leader_epoch(leader_epoch).map_err(AppendError::Role)?;
        self.append_locked(state, batch, Acks::All, now_ms)
    }

    /// Appends one batch to the open log, and what is parked behind it.
    pub(crate) fn append_locked(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, ReplicaState>,
        batch: &ValidBatch<'_>,
        acks: Acks,
        now_ms: i64,
    ) -> Result<Appended, AppendError> {
        let result = self.append_one(&mut state, batch, acks, now_ms);
        if state.parked.is_some() {
            self.settle_parked(&mut state, batch, result.as_ref().err().copied(), now_ms);
        }
        drop(state);
        let (appended, is_duplicate) = result?;
        if !is_duplicate {
            self.waiters.wake();
        }
        Ok(appended)
    }

    /// Appends one batch to the open log, or finds it appended, which is then said.
    pub(crate) fn append_one(
        self: &Arc<Self>,
        state: &mut ReplicaState,
        batch: &ValidBatch<'_>,
        acks: Acks,
        now_ms: i64,
    ) -> Result<(Appended, bool), AppendError> {
        // The lock may have been let go of since the first look.
        state.check_append(acks)?;
        let leader_epoch = state.replica.leader_epoch();
        let config = self.config();
        let LogState::Open(log) = &mut state.log else { return Err(AppendError::Gone) };
        log.note_use();
        let space = &self.log_dir.space;
        let Some(_admission) = space.admit_append() else { return Err(AppendError::Full) };
        self.check_behind(log, &batch.stamp())?;
        let outcome = match log.append(batch, leader_epoch, now_ms, &config) {
            Ok(outcome) => outcome,
            Err(error) => {
                if error == AppendError::Full {
                    space.note_full();
                }
                state.mark_if_broken(&self.log_dir.flusher.failures);
                return Err(error);
            }
        };
        space.note_written();
        self.note_written(&batch.stamp());
        let log_start_offset = log.log_start();
        log.hand_over_written(&self.log_dir.flusher.page_cache);
        if !outcome.is_duplicate {
            let appended = |replica: &mut replica::Partition, now: &Now<'_>| replica.appended(outcome.end_offset, now);
            // Who waits is woken for the records, too.
            let _ = state.with_now(&self.log_dir.cluster, appended);
        }
        let flushed = self.flush_after(state, &outcome, &config);
        let replicated = self.replication(state, acks, outcome.end_offset);
        let is_known = flushed.is_none() && replicated.is_none();
        let appended = Appended {
            base_offset: outcome.base_offset,
            log_append_time_ms: match config.message_timestamp_type {
                TimestampType::CreateTime => -1,
                TimestampType::LogAppendTime => outcome.timestamp,
            },
            log_start_offset,
            batches_retained: config.producer_state_batches_to_retain,
            ticket: (!is_known).then_some(AnswerTicket { flushed, replicated }),
        };
        Ok((appended, outcome.is_duplicate))
    }
}
