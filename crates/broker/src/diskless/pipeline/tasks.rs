//! The tasks beside the line: one that closes what is due, one for each object that is put, and one for each commit.
//!
//! Not here: what they do to the line, which is under its lock ([`super::Shared`]).

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::queue::ClosedObject;
use crate::diskless::assemble::marked;
use crate::diskless::index::UploadedObject;

/// How long a commit that failed waits before it is tried again.
const COMMIT_BACKOFF: Duration = Duration::from_millis(200);

impl Shared {
    /// Closes what is due, until the broker stops.
    pub(super) async fn drive(self: Arc<Self>) {
        loop {
            let wait = {
                let mut state = self.state.lock();
                if state.is_closed {
                    return;
                }
                self.close_due(&mut state)
            };
            let changed = self.changed.notified();
            match wait {
                Some(wait) => drop(tokio::time::timeout(wait, changed).await),
                None => changed.await,
            }
        }
    }

    /// Puts one object into the store.
    pub(super) async fn upload(self: Arc<Self>, object: ClosedObject) {
        let ClosedObject { number, mut parts } = object;
        let uploaded = match self.keys.next().await {
            Ok(id) => {
                parts = parts.into_iter().map(|batch| marked(batch, id)).collect();
                match self.uploader.upload(id, parts.clone()).await {
                    Ok(()) => Some(id),
                    Err(error) => {
                        if let Some(left_out) = self.upload_failures.due() {
                            tracing::error!(%error, left_out, "an object did not get into the store; its batches are refused");
                        }
                        None
                    }
                }
            }
            Err(error) => {
                self.tell_commit_failure(&error.into());
                None
            }
        };
        {
            let mut state = self.state.lock();
            state.line.set_slots(self.uploader.window());
            state.line.uploaded(number, uploaded.ok_or(()));
            if let Some(id) = uploaded {
                let at = state.stored.partition_point(|(other, ..)| *other < number);
                state.stored.insert(at, (number, id, parts));
            }
        }
        self.go_on();
    }

    /// Commits, until it is known.
    pub(super) async fn commit(self: Arc<Self>, objects: Vec<UploadedObject>) {
        match self.index.commit(objects).await {
            Ok(answer) => self.committed(answer),
            Err(error) => {
                self.tell_commit_failure(&error.into());
                tokio::time::sleep(COMMIT_BACKOFF).await;
                self.state.lock().line.commit_unknown();
                if self.state.lock().is_closed {
                    return;
                }
            }
        }
        self.go_on();
    }
}
