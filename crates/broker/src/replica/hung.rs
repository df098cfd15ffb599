//! A partition while the disk hangs: whoever would wait for a write that does not come back is refused, or waits where
//! no client does.
//!
//! Threads that were with a write when it began to hang are not helped by this: others serve from then on.

use fullbore_wire::ErrorCode;
use parking_lot::MutexGuard;

use super::Replica;
use super::state::ReplicaState;
use fullbore_host::task;
use fullbore_log::partition::error::AppendError;

impl Replica {
    /// Refuses a write while the disk hangs: it would hang as well.
    ///
    /// # Errors
    /// [`AppendError::Storage`]; [`AppendError::Role`] where another broker leads by now.
    pub(super) fn check_disk(&self) -> Result<(), AppendError> {
        match self.log_dir.space.hangs().then(|| self.leads_in()) {
            None => Ok(()),
            Some(Some(_)) => Err(AppendError::Storage),
            Some(None) => Err(AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
        }
    }

    /// Refuses what needs the log while a write to it may hang.
    ///
    /// # Errors
    /// KAFKA_STORAGE_ERROR; NOT_LEADER_OR_FOLLOWER where another broker leads by now.
    pub fn check_answers(&self) -> Result<(), ErrorCode> {
        let may_hang = self.log_dir.space.hangs() && self.try_lock_as_it_is().is_none();
        if may_hang { self.check_disk().map_err(|error| error.code()) } else { Ok(()) }
    }

    /// Locks the state. Where a write that hangs may have it locked, the thread's other work goes to another thread
    /// meanwhile.
    pub(super) fn lock_state(&self) -> MutexGuard<'_, ReplicaState> {
        match self.state.try_lock() {
            Some(state) => state,
            None if self.log_dir.space.hangs() => task::in_place(|| self.state.lock()),
            None => self.state.lock(),
        }
    }
}
