//! A pool of registered object ids. Ids are registered in advance, so that uploads do not wait for the index.
//!
//! The registration itself is in [`crate::index`].
//!
//! Invariant: each id is used only once, and only while it is so young that the GC does not delete its registration.

use fullbore_host::task;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fullbore_rules::commit::ObjectId;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::index::IndexOwner;
use fullbore_db::CommitError;

/// How many ids are registered at a time.
const BLOCK: usize = 64;
/// Number of ids in the pool below which the pool registers more.
const LOW: usize = 32;
/// Maximum age of an id in the pool. The GC deletes a registration only when it is older than this.
const FRESH: Duration = Duration::from_secs(30 * 60);

/// A handle of the pool.
#[derive(Clone)]
pub struct ObjectIds {
    shared: Arc<IdPool>,
}

struct IdPool {
    index: IndexOwner,
    registered: Mutex<VecDeque<(Instant, ObjectId)>>,
    /// A single permit: only one task at a time registers ids.
    fetching: Semaphore,
}

impl ObjectIds {
    /// Creates an empty pool.
    pub fn new(index: IndexOwner) -> ObjectIds {
        let shared = IdPool { index, registered: Mutex::default(), fetching: Semaphore::new(1) };
        ObjectIds { shared: Arc::new(shared) }
    }

    /// Drops all ids in the pool. The caller has found that the GC has deleted the registration of an id. This happens
    /// if a clock was set or the machine slept.
    pub fn forget(&self) {
        self.shared.registered.lock().clear();
    }

    /// Returns the next id.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if the pool is empty and no id can be registered.
    pub async fn next(&self) -> Result<ObjectId, CommitError> {
        let (mut taken, left) = self.shared.take();
        while taken.is_none() {
            self.shared.fetch().await?;
            taken = self.shared.take().0;
        }
        if left < LOW && self.shared.fetching.available_permits() > 0 {
            let shared = Arc::clone(&self.shared);
            // If this fails, a later call that finds the pool empty registers ids itself, and returns its error if that
            // fails too.
            task::spawn(async move { drop(shared.fetch().await) });
        }
        taken.ok_or_else(|| CommitError::Unknown("the index assigned no id to a new object".into()))
    }
}

impl IdPool {
    /// Takes the next id from the pool, or returns `None` if the pool is empty. Also returns the number of remaining
    /// ids.
    fn take(&self) -> (Option<ObjectId>, usize) {
        let mut registered = self.registered.lock();
        while registered.front().is_some_and(|(at, _)| at.elapsed() > FRESH) {
            registered.pop_front();
        }
        (registered.pop_front().map(|(_, id)| id), registered.len())
    }

    /// Registers more ids. Does nothing if another task has registered enough while this one waited for the permit.
    async fn fetch(&self) -> Result<(), CommitError> {
        let Ok(_turn) = self.fetching.acquire().await else { return Ok(()) };
        if self.registered.lock().len() >= LOW {
            return Ok(());
        }
        let at = Instant::now();
        let ids = self.index.register(BLOCK).await?;
        self.registered.lock().extend(ids.into_iter().map(|id| (at, id)));
        Ok(())
    }
}
