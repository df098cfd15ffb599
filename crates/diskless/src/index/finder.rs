//! Reads from the index without waiting for commits. Readers use it to find the extents that contain their records, and
//! the change feed uses it to find the commits of other brokers. Searches by time are in [`super::time_search`].
//!
//! A search waits until one of a few connections is free. Its blocking call then runs on a separate thread, so that it
//! does not delay other tasks.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::sqlite::SqliteFinder;
use super::store::{AbortedTransactions, ChangeSource, PartitionRow, RunSource};
use fullbore_db::StoreError;

/// Number of connections. Each of them serves one search at a time.
const CONNECTIONS: usize = 2;

/// A handle for searches in the index. Clones share the connections.
#[derive(Clone)]
pub struct RunFinder {
    idle: Arc<Mutex<Vec<Box<dyn RunSource>>>>,
    turns: Arc<Semaphore>,
}

impl RunFinder {
    /// Opens the index file in a data directory, which must exist.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the file cannot be opened.
    pub fn open(directory: &Path) -> Result<RunFinder, StoreError> {
        let finders = (0..CONNECTIONS).map(|_| SqliteFinder::open(directory)).collect::<Result<Vec<_>, _>>()?;
        Ok(RunFinder::over(finders.into_iter().map(|finder| Box::new(finder) as Box<dyn RunSource>).collect()))
    }

    /// Creates a finder that uses these connections.
    pub fn over(idle: Vec<Box<dyn RunSource>>) -> RunFinder {
        let turns = Arc::new(Semaphore::new(idle.len()));
        RunFinder { idle: Arc::new(Mutex::new(idle)), turns }
    }

    /// Returns the current rows of these partitions. Partitions that do not exist are left out.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    pub async fn partitions(&self, ids: Vec<DisklessPartitionId>) -> Result<Vec<PartitionRow>, StoreError> {
        self.find(move |finder| finder.partitions(&ids)).await
    }

    /// Returns up to `count` consecutive extents of a partition. The first one is the last extent that begins at or
    /// before `offset`. If no extent does, the answer starts with the first extent after `offset`.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    pub async fn runs_from(
        &self,
        partition: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<BatchRun>, StoreError> {
        self.find(move |finder| finder.runs_from(partition, offset, count)).await
    }

    /// Looks for the first extent that may have a record of `since_ms` or later; see [`RunSource::skip_old`].
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    pub async fn skip_old(
        &self,
        partition: DisklessPartitionId,
        from: i64,
        since_ms: i64,
    ) -> Result<Option<i64>, StoreError> {
        self.find(move |finder| finder.skip_old(partition, from, since_ms)).await
    }

    /// Returns the aborted transactions with records in `offsets`. If `count` or more of their markers are in
    /// `offsets`, the answer covers only the range up to the `count`-th marker. It includes transactions with records
    /// in the covered range whose markers come after it.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    pub async fn aborted(
        &self,
        partition: DisklessPartitionId,
        offsets: Range<i64>,
        count: usize,
    ) -> Result<AbortedTransactions, StoreError> {
        self.find(move |finder| finder.aborted(partition, offsets, count)).await
    }

    pub(super) async fn find<T: Send + 'static>(
        &self,
        find: impl FnOnce(&mut dyn RunSource) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let idle = Arc::clone(&self.idle);
        blocking(move || {
            let _turn = turn;
            let taken = idle.lock().pop();
            let Some(mut finder) = taken else { return Err(closed()) };
            let found = find(finder.as_mut());
            idle.lock().push(finder);
            found
        })
        .await
    }
}

/// A handle of the change feed.
pub struct IndexChanges {
    /// The feed of the storage back end. `None` while a poll uses it.
    source: Arc<Mutex<Option<Box<dyn ChangeSource>>>>,
}

impl IndexChanges {
    /// Creates a handle of the feed `source`.
    pub fn over(source: Box<dyn ChangeSource>) -> IndexChanges {
        IndexChanges { source: Arc::new(Mutex::new(Some(source))) }
    }

    /// Polls for changes; see [`ChangeSource::changed`]. The caller must run one poll at a time.
    ///
    /// # Errors
    /// Returns an error if [`ChangeSource::changed`] does, or if another poll is under way.
    pub async fn changed(&self) -> Result<Vec<PartitionRow>, StoreError> {
        let source = Arc::clone(&self.source);
        blocking(move || {
            let taken = source.lock().take();
            let Some(mut requested) = taken else { return Err(closed()) };
            let changed = requested.changed();
            *source.lock() = Some(requested);
            changed
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    #[cfg(test)]
    if super::manual_index::is_here() {
        return work();
    }
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(StoreError::Failed(error.to_string())))
}

fn closed() -> StoreError {
    StoreError::Failed("the index is closed".into())
}
