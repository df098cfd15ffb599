//! Tasks: the one function that spawns a future on the runtime.
//!
//! Tokio compiles a task's code (polling, cancelling, result) once for each type of future, and the broker has about
//! seventy types. Boxed futures are one type for each type of result, which takes a tenth off the crate's compilation.
//! The price is one more allocation for each task.
//!
//! [`Apart`] is a runtime beside the one that serves clients.

use std::io;
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Boxed future of any type, in the form in which tasks are spawned.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Boxes a future for a [`JoinSet`](tokio::task::JoinSet), which spawns futures without [`spawn`].
pub fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> BoxFuture<T> {
    Box::pin(future)
}

/// Spawns a task on the caller's runtime, as [`tokio::spawn`] does. The task continues if its handle is dropped.
///
/// # Panics
///
/// Panics outside a runtime.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(future))
}

/// Rounds of a task: one after each interval, until the broker stops. A long round delays the later rounds.
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

/// Does, on the calling thread, work that may block. During the work, a runtime of several threads moves that thread's
/// other tasks to another thread.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Runtime of one thread for tasks that must run while the threads that serve clients hang in a write to the disk: the
/// admin page and the membership. Its tasks must not block, nor take a lock that is held during a write. The drop of
/// the runtime ends its tasks, but does not wait for their blocking work
/// ([`spawn_blocking`](tokio::task::spawn_blocking)).
pub struct Apart {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Apart {
    /// Starts the thread of the runtime.
    ///
    /// # Errors
    /// Error of the system if it has no thread or descriptor left.
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

    /// Spawns a task on this runtime, as [`spawn`] does.
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
        // Blocks the only thread of this runtime.
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
