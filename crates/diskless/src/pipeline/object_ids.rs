//! A pool of registered object ids. Ids are registered in advance, so that no upload waits for the index.
//!
//! The registration itself is in [`crate::index`].
//!
//! Invariant: each id is handed out only once, and only while it is too young for the GC to delete its registration.

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
/// If fewer ids than this are left, the pool registers more.
const LOW: usize = 32;
/// How old an id may become in the pool. The GC deletes registrations only at a higher age.
const FRESH: Duration = Duration::from_secs(30 * 60);

/// A handle of the pool.
#[derive(Clone)]
pub struct ObjectIds {
    shared: Arc<IdPool>,
}

struct IdPool {
    index: IndexOwner,
    registered: Mutex<VecDeque<(Instant, ObjectId)>>,
    /// The only permit to register more ids.
    fetching: Semaphore,
}

impl ObjectIds {
    /// Creates an empty pool.
    pub fn new(index: IndexOwner) -> ObjectIds {
        let shared = IdPool { index, registered: Mutex::default(), fetching: Semaphore::new(1) };
        ObjectIds { shared: Arc::new(shared) }
    }

    /// Drops all ids in the pool, because the GC has deleted the registration of one of them. This happens if a clock
    /// was set or the machine slept.
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
            // If this registration fails, a later call that finds the pool empty registers ids itself, and returns any
            // error.
            task::spawn(async move { drop(shared.fetch().await) });
        }
        taken.ok_or_else(|| CommitError::Unknown("the index assigned no id to a new object".into()))
    }
}

impl IdPool {
    /// Takes the next id, or `None` if the pool is empty. Also returns how many ids are left.
    fn take(&self) -> (Option<ObjectId>, usize) {
        let mut registered = self.registered.lock();
        while registered.front().is_some_and(|(at, _)| at.elapsed() > FRESH) {
            registered.pop_front();
        }
        (registered.pop_front().map(|(_, id)| id), registered.len())
    }

    /// Registers more ids, unless another task has done so while this one waited for the permit.
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
