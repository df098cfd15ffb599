//! Handles requests to a partition whose disk hangs. The broker refuses a request that would wait for a hanging write.
//! A request that it does not refuse waits on a thread that serves no clients.
//!
//! A thread that was writing when the disk began to hang stays blocked. Other threads serve the clients.

use fullbore_wire::ErrorCode;
use parking_lot::MutexGuard;

use super::Replica;
use super::state::ReplicaState;
use fullbore_host::task;
use fullbore_log::partition::error::AppendError;

impl Replica {
    /// Refuses a write while the disk hangs, because that write would hang too.
    ///
    /// # Errors
    /// Fails with [`AppendError::Storage`] if this broker leads, and with [`AppendError::Role`] if it does not.
    pub(super) fn check_disk(&self) -> Result<(), AppendError> {
        match self.log_dir.space.hangs().then(|| self.leads_in()) {
            None => Ok(()),
            Some(Some(_)) => Err(AppendError::Storage),
            Some(None) => Err(AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
        }
    }

    /// Refuses a request that needs the lock of the state, if a hanging write may hold that lock.
    ///
    /// # Errors
    /// Returns KAFKA_STORAGE_ERROR if this broker leads, and NOT_LEADER_OR_FOLLOWER if it does not.
    pub fn check_answers(&self) -> Result<(), ErrorCode> {
        let may_hang = self.log_dir.space.hangs() && self.try_lock_as_it_is().is_none();
        if may_hang { self.check_disk().map_err(|error| error.code()) } else { Ok(()) }
    }

    /// Locks the state. If the disk hangs and another thread holds the lock, other threads run this thread's tasks
    /// during the wait.
    pub(super) fn lock_state(&self) -> MutexGuard<'_, ReplicaState> {
        match self.state.try_lock() {
            Some(state) => state,
            None if self.log_dir.space.hangs() => task::in_place(|| self.state.lock()),
            None => self.state.lock(),
        }
    }
}
