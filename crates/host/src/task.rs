//! Starting a task: the one way from a future to the runtime.
//!
//! Tokio compiles all of a task's life (its polling, its cancelling, its answer) once for each type of future it is
//! given, and the broker has about seventy. Here they are one type for each type of answer, which takes a tenth off the
//! crate's compilation; a task costs one allocation more.
//!
//! [`Apart`] is a runtime beside the one that serves clients.

use std::io;
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// A future of whatever type, as tasks are spawned.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// For a [`JoinSet`](tokio::task::JoinSet), which spawns itself.
pub fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> BoxFuture<T> {
    Box::pin(future)
}

/// A task on the runtime that the caller is in, as [`tokio::spawn`], which goes on when its handle is dropped.
///
/// # Panics
///
/// Outside a runtime.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(future))
}

/// Rounds of a task: one after each interval, until the broker stops. A round that takes long delays those behind it.
pub struct Rounds {
    ticks: Interval,
    stop: watch::Receiver<bool>,
}

impl Rounds {
    /// Begins the first interval, in ms, at least 1.
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

/// Does what may block on the thread that the caller is on; what else that would serve goes to another one meanwhile.
/// Where there is none to hand over to, it waits.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// A runtime of one thread, for what goes on while the threads that serve clients hang in a write to the disk: what the
/// operator and the cluster go by. Its tasks never block, and take no lock that is held during a write. They end once
/// it is dropped; what blocks beside them ([`spawn_blocking`](tokio::task::spawn_blocking)) is not waited for.
pub struct Apart {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl Apart {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread, or no descriptors.
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

    /// Starts a task, as [`spawn`] does.
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.handle.spawn(boxed(future))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn threads_of_the_runtime_hang_a_task_apart_goes_on() {
        let apart = Apart::start().expect("a thread");
        let (done, is_done) = mpsc::channel();
        apart.spawn(async move { done.send(()).expect("it is waited for") });
        // The only thread of this runtime.
        is_done.recv().expect("it has run");
    }

    #[tokio::test]
    async fn apart_dropped_its_tasks_end_though_one_blocks() {
        let apart = Apart::start().expect("a thread");
        let (_never, is_never) = mpsc::channel::<()>();
        let blocking = apart.spawn(async move { tokio::task::spawn_blocking(move || is_never.recv()).await });
        drop(apart);
        assert!(blocking.await.is_err());
    }
}
