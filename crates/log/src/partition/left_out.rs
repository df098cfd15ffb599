//! The state in which a broker serves no diskless partitions, because other brokers can reach the object store and this
//! one cannot.
//!
//! Such a broker refuses requests that need the store with NOT_LEADER_OR_FOLLOWER. A batch that is being uploaded may
//! still be committed, for example if only the store's response was lost. If the producer then sends the batch to
//! another broker, the index recognises the duplicate.

use std::sync::Arc;

use fullbore_wire::ErrorCode;
use tokio::sync::watch;

/// A flag that is true while the metadata lists this broker as one that does not serve diskless topics. All diskless
/// partitions of the broker share the flag.
#[derive(Clone, Debug)]
pub struct LeftOut(Arc<watch::Sender<bool>>);

impl Default for LeftOut {
    fn default() -> LeftOut {
        LeftOut(Arc::new(watch::Sender::new(false)))
    }
}

impl LeftOut {
    /// Sets the state. Returns true if it has changed.
    pub fn set(&self, is_left_out: bool) -> bool {
        self.0.send_if_modified(|was| std::mem::replace(was, is_left_out) != is_left_out)
    }

    /// Checks that this broker serves diskless partitions.
    ///
    /// # Errors
    /// Fails with NOT_LEADER_OR_FOLLOWER while the broker is left out.
    pub fn check(&self) -> Result<(), ErrorCode> {
        if *self.0.borrow() { Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) } else { Ok(()) }
    }

    /// Waits for `what`, but only until the broker is left out. If `what` is ready at once, returns its result even if
    /// the broker is already left out.
    ///
    /// # Errors
    /// Fails with NOT_LEADER_OR_FOLLOWER if the broker is left out before `what` is ready.
    pub async fn unless<T>(&self, what: impl Future<Output = T>) -> Result<T, ErrorCode> {
        let mut state = self.0.subscribe();
        tokio::select! {
            biased;
            done = what => Ok(done),
            _ = state.wait_for(|is_left_out| *is_left_out) => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }
}
