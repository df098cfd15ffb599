//! What one connection has asked to be kept and does not await yet.
//!
//! Invariant: what was asked for is appended whatever stands before its answer, even where nobody awaits it yet.

use super::Shard;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;

/// The shards that a connection has asked for something since they were last seen to.
#[derive(Default)]
pub struct Unwritten {
    shards: Mutex<Vec<Arc<Shard>>>,
    is_any: AtomicBool,
}

impl Unwritten {
    /// Something was asked of this shard.
    pub fn note(&self, shard: &Arc<Shard>) {
        let mut shards = self.shards.lock();
        if !shards.iter().any(|known| Arc::ptr_eq(known, shard)) {
            shards.push(Arc::clone(shard));
        }
        self.is_any.store(true, Relaxed);
    }

    /// Has appended what was asked for, for ever. It wakes nobody: it is polled with the connection's task, after what asks and
    /// what awaits, so that it appends only what would else wait while the task sleeps.
    pub async fn carry_out(&self) -> Infallible {
        loop {
            poll_fn(|_| if self.is_any.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }).await;
            // Others that are ready now ask first, and share the batch.
            tokio::task::yield_now().await;
            let shards = {
                let mut shards = self.shards.lock();
                self.is_any.store(false, Relaxed);
                std::mem::take(&mut *shards)
            };
            for shard in shards {
                shard.flush_soon().await;
            }
        }
    }
}
