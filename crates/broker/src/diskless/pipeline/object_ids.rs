//! Pool of registered object ids, so that no upload waits for the index: the pool registers blocks of ids in advance.
//!
//! Not here: registration itself ([`crate::diskless::index`]).
//!
//! Invariant: an id is handed out once, and only while it is too young for the GC to delete its registration.

use fullbore_host::task;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fullbore_rules::commit::ObjectId;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::diskless::index::IndexOwner;
use fullbore_db::CommitError;

/// Number of ids registered at a time.
const BLOCK: usize = 64;
/// Fewest ids in the pool. With fewer, the pool registers the next block.
const LOW: usize = 32;
/// Longest age of an id in the pool. The pool drops an older id, whose registration the GC may delete soon.
const FRESH: Duration = Duration::from_secs(30 * 60);

/// Handle of the pool.
#[derive(Clone)]
pub struct ObjectIds {
    shared: Arc<KeyPool>,
}

struct KeyPool {
    index: IndexOwner,
    registered: Mutex<VecDeque<(Instant, ObjectId)>>,
    /// Permit to register a block.
    fetching: Semaphore,
}

impl ObjectIds {
    /// Creates an empty pool.
    pub fn new(index: IndexOwner) -> ObjectIds {
        let shared = KeyPool { index, registered: Mutex::default(), fetching: Semaphore::new(1) };
        ObjectIds { shared: Arc::new(shared) }
    }

    /// Drops all ids in the pool. The GC has deleted the registration of one, which happens if a clock was set or the
    /// machine slept.
    pub fn forget(&self) {
        self.shared.registered.lock().clear();
    }

    /// Returns the next id.
    ///
    /// # Errors
    /// [`CommitError`] if no id is left, and none can be registered.
    pub async fn next(&self) -> Result<ObjectId, CommitError> {
        let (mut taken, left) = self.shared.take();
        while taken.is_none() {
            self.shared.fetch().await?;
            taken = self.shared.take().0;
        }
        if left < LOW && self.shared.fetching.available_permits() > 0 {
            let shared = Arc::clone(&self.shared);
            // A failure shows in the next call that finds the pool empty.
            task::spawn(async move { drop(shared.fetch().await) });
        }
        taken.ok_or_else(|| CommitError::Unknown("no number for an object".into()))
    }
}

impl KeyPool {
    /// Takes the next id; `None` if the pool is empty. Also returns the number of ids left.
    fn take(&self) -> (Option<ObjectId>, usize) {
        let mut registered = self.registered.lock();
        while registered.front().is_some_and(|(at, _)| at.elapsed() > FRESH) {
            registered.pop_front();
        }
        (registered.pop_front().map(|(_, id)| id), registered.len())
    }

    /// Registers a block, unless another task did so during the wait for the permit.
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
