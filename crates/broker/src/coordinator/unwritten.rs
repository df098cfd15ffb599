//! Writes that the requests of a connection have queued, and futures that run after responses of the connection were
//! sent.
//!
//! A write is appended even if an earlier response of the connection has not been sent yet. The futures run even if the
//! connection ends.

use super::Shard;
use fullbore_host::task::{self, BoxFuture};
use futures_util::FutureExt;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;
use tokio::runtime::Handle;

/// The shards in which a connection has queued writes, and the futures that run after its responses.
#[derive(Default)]
pub struct Unwritten {
    shards: Mutex<Vec<Arc<Shard>>>,
    following: Mutex<Vec<BoxFuture<()>>>,
    is_any: AtomicBool,
}

impl Unwritten {
    /// Remembers that a write was queued in this shard.
    pub fn note(&self, shard: &Arc<Shard>) {
        let mut shards = self.shards.lock();
        if !shards.iter().any(|known| Arc::ptr_eq(known, shard)) {
            shards.push(Arc::clone(shard));
        }
        self.is_any.store(true, Relaxed);
    }

    /// Runs `following` after the response that is ready now has been sent.
    pub fn follow(&self, following: BoxFuture<()>) {
        self.following.lock().push(following);
        self.is_any.store(true, Relaxed);
    }

    /// Runs the futures that follow responses, and appends the queued writes. Never returns.
    ///
    /// The connection's task polls this future last, after it has handled its requests and responses and before it
    /// sleeps. So [`Unwritten::note`] does not have to wake the task.
    pub async fn carry_out(&self) -> Infallible {
        loop {
            poll_fn(|_| if self.is_any.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }).await;
            // The flag is cleared first, so writes that are queued from now on are handled in the next round.
            self.is_any.store(false, Relaxed);
            let following = std::mem::take(&mut *self.following.lock());
            for mut following in following {
                if following.as_mut().now_or_never().is_none() {
                    task::spawn(following);
                }
            }
            if self.shards.lock().is_empty() {
                continue;
            }
            // Lets other tasks queue their writes first, so that these share the batch.
            tokio::task::yield_now().await;
            let shards = std::mem::take(&mut *self.shards.lock());
            for shard in shards {
                shard.flush_soon().await;
            }
        }
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        let following = std::mem::take(self.following.get_mut());
        if !following.is_empty() && Handle::try_current().is_ok() {
            following.into_iter().for_each(|following| drop(task::spawn(following)));
        }
    }
}
