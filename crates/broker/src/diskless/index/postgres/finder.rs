//! Places of records, over a connection that waits for no commit.

use std::ops::Range;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use fullbore_rules::sequence::AbortedTransaction;

use super::super::store::{PartitionRow, RunSource};
use super::rows::{ABORTED, PARTITION, RUN, aborted, array, each, partition, run};
use fullbore_db::StoreError;
use fullbore_db::postgres::DatabaseConnection;
use fullbore_db::postgres::rows::{Rows, next};

/// Reads beside the commits.
pub struct PostgresFinder {
    connection: DatabaseConnection,
}

impl PostgresFinder {
    /// Over this connection.
    pub fn new(connection: DatabaseConnection) -> PostgresFinder {
        PostgresFinder { connection }
    }

    fn ask(&mut self, statement: &str) -> Result<Rows, StoreError> {
        next(&mut self.connection.begin_with(statement).map_err(|error| error.failed())?.into_iter())
    }
}

impl RunSource for PostgresFinder {
    fn runs_from(
        &mut self,
        partition: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<BatchRun>, StoreError> {
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        let before = format!(
            "SELECT base_offset FROM fullbore.diskless_runs WHERE partition = {partition} AND base_offset <= ({offset})
             ORDER BY base_offset DESC LIMIT 1"
        );
        let rows = self.ask(&format!(
            "SELECT {RUN} FROM fullbore.diskless_runs
             WHERE partition = {partition} AND base_offset >= coalesce(({before}), {offset})
             ORDER BY base_offset LIMIT {limit}"
        ))?;
        each(&rows, run)
    }

    fn aborted(
        &mut self,
        partition: DisklessPartitionId,
        offsets: Range<i64>,
        count: usize,
    ) -> Result<Vec<AbortedTransaction>, StoreError> {
        let Range { start, end } = offsets;
        let past = format!("fullbore.diskless_aborted WHERE partition = {partition} AND last_offset >= ({start})");
        // The last stable offset grows from row to row: the first one that is past the offsets ends the look.
        let rows = self.ask(&format!(
            "SELECT {ABORTED} FROM {past} AND first_offset < ({end}) AND last_offset <= coalesce(
               (SELECT last_offset FROM {past} AND last_stable_offset >= ({end}) ORDER BY last_offset LIMIT 1), {})
             ORDER BY first_offset LIMIT {}",
            i64::MAX,
            i64::try_from(count).unwrap_or(i64::MAX)
        ))?;
        each(&rows, aborted)
    }

    fn partitions(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<PartitionRow>, StoreError> {
        let ids = array(ids.iter());
        let ask =
            format!("SELECT {PARTITION} FROM fullbore.diskless_partitions AS p WHERE p.id = ANY({ids}::bigint[])");
        each(&self.ask(&ask)?, partition)
    }
}
