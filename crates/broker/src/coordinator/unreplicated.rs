//! Writes in the leader's log that are not on all replicas in sync yet. Once they are, their callbacks are called in
//! the order of the log.
//!
//! A partition whose only replica is on this broker has no unreplicated writes.

use crate::partitions::{AppendError, Durability, FlushTicket};
use fullbore_host::task;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Callback of a write whose records are replicated, or have failed.
pub(super) type AppendCallback = Box<dyn FnOnce(Result<Option<FlushTicket>, AppendError>) + Send>;

/// Outcome of an append.
pub(super) type AppendResult = Result<Durability, AppendError>;

/// Unreplicated writes in the order of the log. While there are any, a task waits for the first.
#[derive(Default)]
pub(super) struct Unreplicated(Mutex<VecDeque<(AppendResult, Vec<AppendCallback>)>>);

impl Unreplicated {
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Calls the callbacks at once, unless `written` or an earlier write waits for replicas. Otherwise a task calls
    /// them in the order of the writes; once no write waits any more, the task calls the `then` of its first write.
    pub fn tell_in_turn(
        self: &Arc<Self>,
        written: AppendResult,
        told: Vec<AppendCallback>,
        then: impl FnOnce() + Send + 'static,
    ) {
        let waits = |written: &AppendResult| matches!(written, Ok(Durability { replicated: Some(_), .. }));
        let mut waiting = self.0.lock();
        if waiting.is_empty() && !waits(&written) {
            drop(waiting);
            return tell(written, told);
        }
        waiting.push_back((written, told));
        if waiting.len() == 1 {
            task::spawn(wait(Arc::clone(self), then));
        }
    }
}

fn tell(written: AppendResult, told: Vec<AppendCallback>) {
    let result = written.map(|durability| durability.flushed);
    told.into_iter().for_each(|told| told(result.clone()));
}

/// Waits for the writes one after the other until none is left.
async fn wait(unreplicated: Arc<Unreplicated>, then: impl FnOnce() + Send) {
    loop {
        let first = unreplicated.0.lock().front().map(|(written, _)| written.clone());
        let Some(mut written) = first else { break };
        if let Ok(durability) = &mut written
            && let Some(ticket) = durability.replicated.take()
            && let Err(error) = ticket.wait().await
        {
            written = Err(error);
        }
        let told = unreplicated.0.lock().front_mut().map(|(_, told)| std::mem::take(told));
        // Later writes keep waiting during the callbacks.
        tell(written, told.unwrap_or_default());
        let mut waiting = unreplicated.0.lock();
        waiting.pop_front();
        if waiting.is_empty() {
            break;
        }
    }
    then();
}
