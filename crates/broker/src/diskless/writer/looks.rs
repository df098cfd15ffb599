//! What the writer knows of partitions, brought up to date by looks at the index.
//!
//! The index does one thing after the other, and commits are among them. Invariant: however many wait for looks, a commit waits for few of them.

use fullbore_rules::commit::{DisklessPartitionId, PartitionState};
use tokio::sync::Semaphore;

use super::Writer;
use crate::diskless::index::Looked;
use crate::log::error::AppendError;

/// Looks that the index is asked for at a time.
const LOOKS_MAX: usize = 2;

/// Whose turn it is to look.
pub(super) struct Looks {
    turns: Semaphore,
    /// Those who look again and again as long as something is parked take one turn among themselves.
    watches: Semaphore,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks { turns: Semaphore::new(LOOKS_MAX), watches: Semaphore::new(1) }
    }
}

impl Writer {
    /// Brings what is known of a partition up to date.
    ///
    /// # Errors
    /// [`AppendError`].
    pub async fn look(&self, number: DisklessPartitionId) -> Result<(), AppendError> {
        let Ok(_turn) = self.shared.looks.turns.acquire().await else { return Err(AppendError::Gone) };
        let from = self.shared.state.lock().known.get(&number).map_or(0, |known| known.next_offset);
        match self.shared.index.look(number, from).await {
            Ok(Some(Looked { row, producers, predecessor })) => {
                let mut state = self.shared.state.lock();
                if self.shared.reader.partition(number).is_none() {
                    // Nobody would have it forgotten any more.
                    return Err(AppendError::Deleted);
                }
                let known = state.known.entry(number).or_insert_with(|| PartitionState::new(row.window));
                if known.next_offset == 0 && !predecessor.is_empty() {
                    known.succeed(predecessor);
                }
                let released = self.shared.take_over(&mut state, &[(row, from)], &producers);
                drop(state);
                self.shared.settle(released);
                Ok(())
            }
            Ok(None) => Err(AppendError::Deleted),
            Err(error) => {
                self.shared.tell_commit_failure(&error);
                Err(AppendError::Storage)
            }
        }
    }

    /// The same for who does so again and again.
    ///
    /// # Errors
    /// The same.
    pub(super) async fn look_again(&self, number: DisklessPartitionId) -> Result<(), AppendError> {
        let Ok(_turn) = self.shared.looks.watches.acquire().await else { return Err(AppendError::Gone) };
        self.look(number).await
    }
}
