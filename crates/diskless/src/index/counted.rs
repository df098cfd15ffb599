//! A source of extents for tests that count the calls to the index.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fullbore_db::StoreError;
use fullbore_rules::commit::{BatchRun, DisklessPartitionId};

use super::finder::RunFinder;
use super::sqlite::SqliteFinder;
use super::store::{AbortedTransactions, PartitionRow, RunSource};
use super::time_search::{RunPlace, RunTime};

/// A source of extents that counts its calls.
pub struct Counted {
    source: SqliteFinder,
    calls: Arc<AtomicUsize>,
}

impl Counted {
    /// Opens the index file in a data directory. Returns a finder, and the number of calls that it has made.
    pub fn finder(directory: &Path) -> (RunFinder, Arc<AtomicUsize>) {
        let calls = Arc::<AtomicUsize>::default();
        let source = SqliteFinder::open(directory).expect("opened");
        (RunFinder::over(vec![Box::new(Counted { source, calls: Arc::clone(&calls) })]), calls)
    }

    fn next(&mut self) -> &mut SqliteFinder {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &mut self.source
    }
}

impl RunSource for Counted {
    fn runs_from(&mut self, id: DisklessPartitionId, offset: i64, count: usize) -> Result<Vec<BatchRun>, StoreError> {
        self.next().runs_from(id, offset, count)
    }

    fn last_runs(&mut self, places: &[RunPlace]) -> Result<Vec<Option<BatchRun>>, StoreError> {
        self.next().last_runs(places)
    }

    fn last_times(&mut self, places: &[RunPlace]) -> Result<Vec<Option<RunTime>>, StoreError> {
        self.next().last_times(places)
    }

    fn skip_old(&mut self, id: DisklessPartitionId, from: i64, since_ms: i64) -> Result<Option<i64>, StoreError> {
        self.next().skip_old(id, from, since_ms)
    }

    fn partitions(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<PartitionRow>, StoreError> {
        self.next().partitions(ids)
    }

    fn aborted(
        &mut self,
        id: DisklessPartitionId,
        offsets: Range<i64>,
        count: usize,
    ) -> Result<AbortedTransactions, StoreError> {
        self.next().aborted(id, offsets, count)
    }
}
