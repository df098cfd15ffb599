//! Writes that are in the leader's log but not yet on all in-sync replicas. Once they are, their callbacks are called
//! in the order of the log.
//!
//! If this broker has the only replica, there are no such writes.

use crate::partitions::{AppendError, Durability, FlushTicket};
use fullbore_host::task;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The callback of a write. It is called when the records are replicated or have failed.
pub(super) type AppendCallback = Box<dyn FnOnce(Result<Option<FlushTicket>, AppendError>) + Send>;

/// Outcome of an append.
pub(super) type AppendResult = Result<Durability, AppendError>;

/// The unreplicated writes in the order of the log. As long as there are any, a task waits for the first of them.
#[derive(Default)]
pub(super) struct Unreplicated(Mutex<VecDeque<(AppendResult, Vec<AppendCallback>)>>);

impl Unreplicated {
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Calls the callbacks at once if neither this write nor an earlier one waits for replicas. Otherwise a task calls
    /// them in the order of the writes. Once no write waits for replicas, the task calls the `then` of the call that
    /// has started the task. The `then` of every other call is dropped.
    pub fn notify_in_order(
        self: &Arc<Self>,
        written: AppendResult,
        callbacks: Vec<AppendCallback>,
        then: impl FnOnce() + Send + 'static,
    ) {
        let waits = |written: &AppendResult| matches!(written, Ok(Durability { replicated: Some(_), .. }));
        let mut waiting = self.0.lock();
        if waiting.is_empty() && !waits(&written) {
            drop(waiting);
            return call_all(written, callbacks);
        }
        waiting.push_back((written, callbacks));
        if waiting.len() == 1 {
            task::spawn(wait(Arc::clone(self), then));
        }
    }
}

fn call_all(written: AppendResult, callbacks: Vec<AppendCallback>) {
    let result = written.map(|durability| durability.flushed);
    callbacks.into_iter().for_each(|callback| callback(result.clone()));
}

/// Waits for one write after another until none is left.
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
        let callbacks = unreplicated.0.lock().front_mut().map(|(_, callbacks)| std::mem::take(callbacks));
        // The write stays in the queue until its callbacks have been called, so that those of later writes come after
        // them.
        call_all(written, callbacks.unwrap_or_default());
        let mut waiting = unreplicated.0.lock();
        waiting.pop_front();
        if waiting.is_empty() {
            break;
        }
    }
    then();
}
