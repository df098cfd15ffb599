//! State of a broker that serves no diskless partitions for now: it has lost the object store, and others have it.
//!
//! Requests that wait for the store are refused with NOT_LEADER_OR_FOLLOWER then. A batch whose PUT is under way may
//! still be committed, as where its answer is lost: the index finds it when its producer sends it again to another
//! broker.

use std::sync::Arc;

use fullbore_wire::ErrorCode;
use tokio::sync::watch;

/// The state in the metadata of this broker, shared by its diskless partitions.
#[derive(Clone, Debug)]
pub struct LeftOut(Arc<watch::Sender<bool>>);

impl Default for LeftOut {
    fn default() -> LeftOut {
        LeftOut(Arc::new(watch::Sender::new(false)))
    }
}

impl LeftOut {
    /// Sets the state. Returns true if it was another.
    pub fn set(&self, is_left_out: bool) -> bool {
        self.0.send_if_modified(|was| std::mem::replace(was, is_left_out) != is_left_out)
    }

    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER while the broker is left out.
    pub fn check(&self) -> Result<(), ErrorCode> {
        if *self.0.borrow() { Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) } else { Ok(()) }
    }

    /// Waits for `what`, as long as the broker is not left out. What is there counts.
    ///
    /// # Errors
    /// NOT_LEADER_OR_FOLLOWER.
    pub async fn unless<T>(&self, what: impl Future<Output = T>) -> Result<T, ErrorCode> {
        let mut state = self.0.subscribe();
        tokio::select! {
            biased;
            done = what => Ok(done),
            _ = state.wait_for(|is_left_out| *is_left_out) => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
    }
}
