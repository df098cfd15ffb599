//! Spawns tasks on the runtime. The broker should spawn every task with the function in this module.
//!
//! Tokio compiles the code that polls and cancels a task once for each type of future. The broker spawns about seventy
//! types of futures. This module boxes them, so that there is only one type for each type of result. This saves a tenth
//! of the crate's compile time, and costs one more allocation for each task.
//!
//! [`Apart`] is a second runtime, separate from the runtime that serves clients.

use std::io;
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// A boxed future, in the form in which tasks are spawned.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Boxes a future for a [`JoinSet`](tokio::task::JoinSet), which spawns futures without [`spawn`].
pub fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> BoxFuture<T> {
    Box::pin(future)
}

/// Spawns a task on the current runtime, like [`tokio::spawn`]. The task continues if its handle is dropped.
///
/// # Panics
///
/// Panics if there is no runtime.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(future))
}

/// The timer of a task that repeats at an interval until the broker stops. If one round takes long, the following
/// rounds are delayed.
pub struct Rounds {
    ticks: Interval,
    stop: watch::Receiver<bool>,
}

impl Rounds {
    /// Begins the first interval. `interval_ms` must be at least 1.
    pub fn every(interval_ms: u64, stop: watch::Receiver<bool>) -> Rounds {
        let interval = Duration::from_millis(interval_ms);
        let mut ticks = interval_at(Instant::now() + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Rounds { ticks, stop }
    }

    /// Waits for the next round. Returns false once the broker stops.
    pub async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.stop.wait_for(|stop| *stop) => false,
            _ = self.ticks.tick() => true,
        }
    }
}

/// Runs work on the calling thread, even if it blocks. Meanwhile, a runtime with several threads moves the other tasks
/// of this thread to another one.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// A runtime with a single thread, for the admin page and the membership. Both must run even while the threads that
/// serve clients hang in a write to the disk. Tasks of this runtime must not block, and must not take a lock that
/// another thread holds during a write. Dropping the runtime ends its tasks, but does not wait for their blocking work
/// ([`spawn_blocking`](tokio::task::spawn_blocking)).
pub struct Apart {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Apart {
    /// Starts the runtime's thread.
    ///
    /// # Errors
    /// Returns the system's error if no thread or descriptor is left.
    pub fn start() -> io::Result<Apart> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let work = move || {
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("apart".to_owned()).spawn(work)?;
        Ok(Apart { handle, _stop: stop })
    }

    /// Spawns a task on this runtime, like [`spawn`].
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.handle.spawn(boxed(future))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn a_hung_runtime_leaves_a_task_apart_running() {
        let apart = Apart::start().expect("a thread");
        let (done, is_done) = mpsc::channel();
        apart.spawn(async move { done.send(()).expect("it is waited for") });
        // This blocks the only thread of the test's own runtime.
        is_done.recv().expect("it has run");
    }

    #[tokio::test]
    async fn a_dropped_runtime_apart_ends_its_tasks_though_one_blocks() {
        let apart = Apart::start().expect("a thread");
        let (_never, is_never) = mpsc::channel::<()>();
        let blocking = apart.spawn(async move { tokio::task::spawn_blocking(move || is_never.recv()).await });
        drop(apart);
        assert!(blocking.await.is_err());
    }
}
