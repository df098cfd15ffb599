//! How many of this broker look at the index at a time.
//!
//! The index does one thing after the other, and commits are among them. Not here: what is asked, and what becomes of the answer. Invariant: however
//! many wait for looks, a commit waits for few of them.

use std::collections::HashMap;
use std::sync::Arc;

use fullbore_rules::commit::DisklessPartitionId;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::diskless::index::QueuePlace;
use fullbore_log::partition::error::AppendError;

/// Outcome of a look at each of some partitions.
pub type LookedAt = HashMap<DisklessPartitionId, Result<(), AppendError>>;

/// Looks that the index is asked for at a time.
const LOOKS_MAX: usize = 2;

/// Whose turn it is to look.
pub struct Looks {
    turns: Arc<Semaphore>,
    /// Those who look again and again as long as something is parked take one turn among themselves.
    watches: Semaphore,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks { turns: Arc::new(Semaphore::new(LOOKS_MAX)), watches: Semaphore::new(1) }
    }
}

impl Looks {
    /// Waits for a turn, which lasts until the look is done, whether or not who asked still waits.
    pub async fn turn(&self) -> QueuePlace {
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }

    /// Waits until who looks again and again may wait for a turn.
    pub async fn watch(&self) -> Option<SemaphorePermit<'_>> {
        self.watches.acquire().await.ok()
    }
}
