//! Remembers batches that were refused for a passing reason, for example because the log was not open yet. Until such a
//! batch is in the log or forgotten, later batches of its producer get the same error, so that the producer's order is
//! kept.
//!
//! The rule itself is [`fullbore_rules::sequence::RefusedBatches`].
//!
//! Lock: `refused` is held only briefly, never during disk I/O. It is taken after the lock of the state.

use fullbore_rules::sequence::{SequenceRefusal, Stamp, Verdict};
use fullbore_wire::ErrorCode;

use super::Replica;
use fullbore_log::Log;
use fullbore_log::partition::error::AppendError;
use fullbore_log::validation::ValidBatch;

impl Replica {
    /// Remembers that a batch was refused with `code`, if the code is retriable and the batch has a sequence number.
    pub fn turned_away(&self, stamp: &Stamp, code: ErrorCode) {
        if code.is_retriable() && has_sequence(stamp) {
            self.refused.lock().note(stamp, code, self.log_dir.cluster.elapsed());
        }
    }

    /// Returns `outcome` unchanged, and remembers the batch if the outcome is an error.
    pub(super) fn noting_refusal<T>(
        &self,
        batch: &ValidBatch<'_>,
        outcome: Result<T, AppendError>,
    ) -> Result<T, AppendError> {
        outcome.inspect_err(|why| self.turned_away(&batch.stamp(), why.code()))
    }

    /// Refuses a batch if an earlier batch of its producer was refused and is still missing from the log. The error is
    /// the one that the earlier batch got.
    ///
    /// # Errors
    /// Fails with [`SequenceRefusal::BehindRefused`] in that case.
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

    /// Updates a producer's refused batches after one of its batches was written to the log.
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

/// Returns true if the batch has a sequence number. Batches of committed group offsets have none.
fn has_sequence(stamp: &Stamp) -> bool {
    stamp.is_idempotent() && stamp.base_sequence >= 0
}
