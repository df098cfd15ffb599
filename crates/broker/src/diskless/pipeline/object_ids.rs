//! Numbers of objects that are registered, so that no upload waits for the index: blocks are fetched ahead.
//!
//! Invariant: a number is handed out once, and not when it has lain so long that the cleaner may be at it.

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

/// Numbers registered at a time.
const BLOCK: usize = 64;
/// With fewer the next block is fetched.
const LOW: usize = 32;
/// A number that lay for so long is left to the cleaner.
const FRESH: Duration = Duration::from_secs(30 * 60);

/// Hands out numbers.
#[derive(Clone)]
pub struct ObjectIds {
    shared: Arc<KeyPool>,
}

struct KeyPool {
    index: IndexOwner,
    registered: Mutex<VecDeque<(Instant, ObjectId)>>,
    /// Permit of the fetch of a block.
    fetching: Semaphore,
}

impl ObjectIds {
    /// None is registered yet.
    pub fn new(index: IndexOwner) -> ObjectIds {
        let shared = KeyPool { index, registered: Mutex::default(), fetching: Semaphore::new(1) };
        ObjectIds { shared: Arc::new(shared) }
    }

    /// Hands out none of those at hand any more, since one was taken by the cleaner: a clock was set, or the machine
    /// slept.
    pub fn forget(&self) {
        self.shared.registered.lock().clear();
    }

    /// The next number.
    ///
    /// # Errors
    /// None is left, and none can be registered.
    pub async fn next(&self) -> Result<ObjectId, CommitError> {
        let (mut taken, left) = self.shared.take();
        while taken.is_none() {
            self.shared.fetch().await?;
            taken = self.shared.take().0;
        }
        if left < LOW && self.shared.fetching.available_permits() > 0 {
            let shared = Arc::clone(&self.shared);
            // Who finds none left hears why.
            task::spawn(async move { drop(shared.fetch().await) });
        }
        taken.ok_or_else(|| CommitError::Unknown("no number for an object".into()))
    }
}

impl KeyPool {
    /// The next number, and how many are left.
    fn take(&self) -> (Option<ObjectId>, usize) {
        let mut registered = self.registered.lock();
        while registered.front().is_some_and(|(at, _)| at.elapsed() > FRESH) {
            registered.pop_front();
        }
        (registered.pop_front().map(|(_, id)| id), registered.len())
    }

    /// Fetches a block, unless somebody else did meanwhile.
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
