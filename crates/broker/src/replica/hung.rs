//! Partition whose disk hangs: the broker refuses requests that would wait for a hanging write, or lets them wait on
//! threads that serve no clients.
//!
//! A thread that is in a write when the disk begins to hang stays blocked; other threads serve the clients.

use fullbore_wire::ErrorCode;
use parking_lot::MutexGuard;

use super::Replica;
use super::state::ReplicaState;
use fullbore_host::task;
use fullbore_log::partition::error::AppendError;

impl Replica {
    /// Refuses a write while the disk hangs, because the write would also hang.
    ///
    /// # Errors
    /// [`AppendError::Storage`] while the disk hangs; instead [`AppendError::Role`] if another broker leads.
    pub(super) fn check_disk(&self) -> Result<(), AppendError> {
        match self.log_dir.space.hangs().then(|| self.leads_in()) {
            None => Ok(()),
            Some(Some(_)) => Err(AppendError::Storage),
            Some(None) => Err(AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
        }
    }

    /// Refuses a request that needs the log while a write to the log may hang.
    ///
    /// # Errors
    /// KAFKA_STORAGE_ERROR while such a write hangs; instead NOT_LEADER_OR_FOLLOWER if another broker leads.
    pub fn check_answers(&self) -> Result<(), ErrorCode> {
        let may_hang = self.log_dir.space.hangs() && self.try_lock_as_it_is().is_none();
        if may_hang { self.check_disk().map_err(|error| error.code()) } else { Ok(()) }
    }

    /// Locks the state. If a hanging write may hold the lock, other threads take over this thread's tasks during the
    /// wait.
    pub(super) fn lock_state(&self) -> MutexGuard<'_, ReplicaState> {
        match self.state.try_lock() {
            Some(state) => state,
            None if self.log_dir.space.hangs() => task::in_place(|| self.state.lock()),
            None => self.state.lock(),
        }
    }
}
