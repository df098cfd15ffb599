//! Writes of one connection that it does not await yet.
//!
//! Invariant: a write is appended although an earlier answer of the connection is not sent yet.

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

    /// Appends the writes, for ever. Wakes no task: the connection's task polls it after its requests and answers, so that it appends
    /// only writes that would wait while the task sleeps.
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
