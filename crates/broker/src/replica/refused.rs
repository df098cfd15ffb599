//! Batches of a partition that were refused for a reason that passes, wherever on their way: also before the log was
//! open, or the batch looked at.
//!
//! Not the rule, which is [`fullbore_rules::sequence::RefusedBatches`]'s, nor why a batch is refused.
//!
//! Lock: `refused` is held for a moment only, and never while the disk is waited for. It comes after the state.

use fullbore_rules::sequence::{SequenceRefusal, Stamp, Verdict};
use fullbore_wire::ErrorCode;

use super::Replica;
use fullbore_log::Log;
use fullbore_log::partition::error::AppendError;
use fullbore_log::validation::ValidBatch;

impl Replica {
    /// Notes that a batch was refused with this error, if its client sends it again then.
    pub fn turned_away(&self, stamp: &Stamp, code: ErrorCode) {
        if code.is_retriable() && has_sequence(stamp) {
            self.refused.lock().note(stamp, code, self.log_dir.cluster.elapsed());
        }
    }

    /// Returns what became of a batch, and notes it if that is a refusal.
    pub(super) fn noting_refusal<T>(
        &self,
        batch: &ValidBatch<'_>,
        outcome: Result<T, AppendError>,
    ) -> Result<T, AppendError> {
        outcome.inspect_err(|why| self.turned_away(&batch.stamp(), why.code()))
    }

    /// Refuses a batch behind a refused one that this log has not, with the error of that one.
    ///
    /// # Errors
    /// [`SequenceRefusal::BehindRefused`].
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

    /// Returns the error of a batch before its turn that cannot wait for it, or not any longer.
    pub(super) fn out_of_turn(&self, stamp: &Stamp) -> AppendError {
        AppendError::Sequence(self.refused.lock().of_early(stamp, self.log_dir.cluster.elapsed()))
    }

    /// Forgets that batches of a producer were refused, where this one is written.
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

/// Returns true if the batch has a place among those of its producer: one of a group's offsets has none.
fn has_sequence(stamp: &Stamp) -> bool {
    stamp.is_idempotent() && stamp.base_sequence >= 0
}
