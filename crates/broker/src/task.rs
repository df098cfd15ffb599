//! Starting a task: the one way from a future to the runtime.
//!
//! Tokio compiles all of a task's life (its polling, its cancelling, its answer) once for each type of future it is given, and the
//! broker has about seventy. Here they are one type for each type of answer, which takes a tenth off the crate's compilation; a task
//! costs one allocation more.

use std::pin::Pin;
use tokio::task::JoinHandle;

/// A future of whatever type, as tasks are spawned.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// For a [`JoinSet`](tokio::task::JoinSet), which spawns itself.
pub(crate) fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> BoxFuture<T> {
    Box::pin(future)
}

/// A task on the runtime that the caller is in, as [`tokio::spawn`], which goes on when its handle is dropped.
///
/// # Panics
///
/// Outside a runtime.
pub(crate) fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(future))
}
