//! Reads of the index that wait for no commit: where records are, and what other brokers change.
//!
//! A few connections, for which who asks queues in turn. Their calls block, and are made where that holds nobody up.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::sqlite::SqliteFinder;
use super::store::{AbortedTransactions, ChangeSource, PartitionRow, RunSource};
use fullbore_db::StoreError;

/// Connections, and so finds at a time.
const CONNECTIONS: usize = 2;

/// Finds runs.
#[derive(Clone)]
pub struct RunFinder {
    idle: Arc<Mutex<Vec<Box<dyn RunSource>>>>,
    turns: Arc<Semaphore>,
}

impl RunFinder {
    /// Opens the index of this folder, which is there.
    ///
    /// # Errors
    /// The disk.
    pub fn open(folder: &Path) -> Result<RunFinder, StoreError> {
        let finders = (0..CONNECTIONS).map(|_| SqliteFinder::open(folder)).collect::<Result<Vec<_>, _>>()?;
        Ok(RunFinder::over(finders.into_iter().map(|finder| Box::new(finder) as Box<dyn RunSource>).collect()))
    }

    /// Finds over these connections, as many at a time.
    pub fn over(idle: Vec<Box<dyn RunSource>>) -> RunFinder {
        let turns = Arc::new(Semaphore::new(idle.len()));
        RunFinder { idle: Arc::new(Mutex::new(idle)), turns }
    }

    /// The rows of these partitions as they are now, of those that there are.
    ///
    /// # Errors
    /// The index cannot be read.
    pub async fn partitions(&self, ids: Vec<DisklessPartitionId>) -> Result<Vec<PartitionRow>, StoreError> {
        self.find(move |finder| finder.partitions(&ids)).await
    }

    /// The run with this offset and those behind it, `count` at most. None where the partition has nothing there.
    ///
    /// # Errors
    /// The index cannot be read.
    pub async fn runs_from(
        &self,
        partition: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<BatchRun>, StoreError> {
        self.find(move |finder| finder.runs_from(partition, offset, count)).await
    }

    /// Returns the aborted transactions of `offsets`, or of the first of them: `count` whose markers are there, and
    /// those that are open where the answer ends.
    ///
    /// # Errors
    /// The index cannot be read.
    pub async fn aborted(
        &self,
        partition: DisklessPartitionId,
        offsets: Range<i64>,
        count: usize,
    ) -> Result<AbortedTransactions, StoreError> {
        self.find(move |finder| finder.aborted(partition, offsets, count)).await
    }

    /// Returns the first run that begins within `offsets` and has a batch with this timestamp or a later one. Takes a
    /// turn for each step, so that other finds go on.
    ///
    /// # Errors
    /// The index cannot be read.
    pub async fn first_run_at(
        &self,
        partition: DisklessPartitionId,
        offsets: Range<i64>,
        timestamp_ms: i64,
    ) -> Result<Option<BatchRun>, StoreError> {
        // What runs say of timestamps grows with their offsets, so that the first is found by halves. No run that
        // begins before `low` will do; the one that was found, if any, begins at or behind `high`.
        let (mut low, mut high, mut found) = (offsets.start, offsets.end, None);
        while low < high {
            let middle = low + (high - low) / 2;
            let run = self.runs_from(partition, middle, 1).await?.pop().filter(|run| run.base_offset < offsets.end);
            match run {
                Some(run) if run.max_timestamp_so_far < timestamp_ms => low = run.end_offset().max(middle + 1),
                Some(run) => {
                    high = run.base_offset.min(middle);
                    found = Some(run);
                }
                None => high = middle,
            }
        }
        Ok(found)
    }

    async fn find<T: Send + 'static>(
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

/// Hears what other brokers change.
pub struct IndexChanges {
    /// `None` while it is asked.
    source: Arc<Mutex<Option<Box<dyn ChangeSource>>>>,
}

impl IndexChanges {
    /// By way of this.
    pub fn over(source: Box<dyn ChangeSource>) -> IndexChanges {
        IndexChanges { source: Arc::new(Mutex::new(Some(source))) }
    }

    /// Polls as [`ChangeSource::changed`] does, one poll at a time.
    ///
    /// # Errors
    /// The same.
    pub async fn changed(&self) -> Result<Vec<PartitionRow>, StoreError> {
        let source = Arc::clone(&self.source);
        blocking(move || {
            let taken = source.lock().take();
            let Some(mut asked) = taken else { return Err(closed()) };
            let changed = asked.changed();
            *source.lock() = Some(asked);
            changed
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    #[cfg(test)]
    if super::by_hand::is_here() {
        return work();
    }
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(StoreError::Failed(error.to_string())))
}

fn closed() -> StoreError {
    StoreError::Failed("the index is closed".into())
}
