//! State of a broker that serves no diskless partitions for now, since only other brokers reach the object store.
//!
//! Such a broker refuses requests that wait for the store with NOT_LEADER_OR_FOLLOWER. A batch whose PUT is in flight
//! may still be committed, as when only the response is lost. The index recognises it when its producer sends it again
//! to another broker.

use std::sync::Arc;

use fullbore_wire::ErrorCode;
use tokio::sync::watch;

/// True while the metadata leave this broker out. Shared by the broker's diskless partitions.
#[derive(Clone, Debug)]
pub struct LeftOut(Arc<watch::Sender<bool>>);

impl Default for LeftOut {
    fn default() -> LeftOut {
        LeftOut(Arc::new(watch::Sender::new(false)))
    }
}

impl LeftOut {
    /// Sets the state; returns true if it has changed.
    pub fn set(&self, is_left_out: bool) -> bool {
        self.0.send_if_modified(|was| std::mem::replace(was, is_left_out) != is_left_out)
    }

    /// Checks that the broker is not left out.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER while the broker is left out.
    pub fn check(&self) -> Result<(), ErrorCode> {
        if *self.0.borrow() { Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) } else { Ok(()) }
    }

    /// Waits for `what`, unless the broker is left out. A result that is ready at once is returned in either case.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER if the broker is left out before the result is there.
    pub async fn unless<T>(&self, what: impl Future<Output = T>) -> Result<T, ErrorCode> {
        let mut state = self.0.subscribe();
        tokio::select! {
            biased;
            done = what => Ok(done),
            _ = state.wait_for(|is_left_out| *is_left_out) => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }
}
