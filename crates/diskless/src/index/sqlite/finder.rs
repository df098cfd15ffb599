//! Reads the index over its own connection, so that reads do not wait for commits.

use std::ops::Range;
use std::path::Path;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId, first_drawn_at};
use fullbore_rules::sequence::AbortedTransaction;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::super::store::{AbortedTransactions, LENGTH_BITS_MAX, OLD_RUNS_AT_ONCE, PartitionRow, RunSource};
use super::super::time_search::{RunPlace, RunTime};
use super::file;
use super::rows::{RUN, partition, runs};
use fullbore_db::StoreError;
use fullbore_db::sqlite::failed as sqlite_failed;

/// The columns of an aborted transaction.
const ABORTED: &str = "producer_id, first_offset, last_offset, last_stable_offset";

/// The end of a query for the last extent of a partition that begins at or before an offset.
const LAST_BEFORE: &str = "FROM runs WHERE partition = ?1 AND base_offset <= ?2 ORDER BY base_offset DESC LIMIT 1";

/// A connection for reads of the index.
pub struct SqliteFinder {
    connection: Connection,
}

impl SqliteFinder {
    /// Opens the file in a directory, which the index must have created.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the file cannot be opened.
    pub fn open(directory: &Path) -> Result<SqliteFinder, StoreError> {
        let connection = file::connect(directory).map_err(|error| sqlite_failed(&error))?;
        connection.pragma_update(None, "query_only", true).map_err(|error| sqlite_failed(&error))?;
        Ok(SqliteFinder { connection })
    }
}

impl RunSource for SqliteFinder {
    fn runs_from(
        &mut self,
        partition: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<BatchRun>, StoreError> {
        let text = format!(
            "SELECT {RUN} FROM runs WHERE partition = ?1 AND base_offset >= coalesce(
                 (SELECT base_offset FROM runs WHERE partition = ?1 AND base_offset <= ?2 ORDER BY base_offset DESC LIMIT 1), ?2)
             ORDER BY base_offset LIMIT ?3"
        );
        runs(&self.connection, &text, params![partition, offset, i64::try_from(count).unwrap_or(i64::MAX)])
    }

    fn last_runs(&mut self, places: &[RunPlace]) -> Result<Vec<Option<BatchRun>>, StoreError> {
        let text = format!("SELECT {RUN} {LAST_BEFORE}");
        let last = |place: &RunPlace| Ok(runs(&self.connection, &text, params![place.0, place.1])?.pop());
        places.iter().map(last).collect()
    }

    fn last_times(&mut self, places: &[RunPlace]) -> Result<Vec<Option<RunTime>>, StoreError> {
        let text = format!("SELECT base_offset, max_timestamp_so_far {LAST_BEFORE}");
        let time = |row: &Row<'_>| Ok(RunTime { base_offset: row.get(0)?, max_timestamp_so_far: row.get(1)? });
        let times = || -> rusqlite::Result<Vec<_>> {
            let mut last = self.connection.prepare_cached(&text)?;
            places.iter().map(|(id, offset)| last.query_row(params![id, offset], time).optional()).collect()
        };
        times().map_err(|error| sqlite_failed(&error))
    }

    fn skip_old(
        &mut self,
        partition: DisklessPartitionId,
        from: i64,
        since_ms: i64,
    ) -> Result<Option<i64>, StoreError> {
        let text = format!(
            "SELECT coalesce(
               min(CASE WHEN max_timestamp_so_far >= ?3 OR object >= ?4 THEN base_offset END), max(base_offset))
             FROM (
               SELECT base_offset, object, max_timestamp_so_far FROM runs
               WHERE partition = ?1 AND base_offset >= ?2 ORDER BY base_offset LIMIT {OLD_RUNS_AT_ONCE})"
        );
        let object = first_drawn_at(since_ms);
        let found = || -> rusqlite::Result<Option<i64>> {
            let mut found = self.connection.prepare_cached(&text)?;
            found.query_row(params![partition, from, since_ms, object], |row| row.get(0))
        };
        found().map_err(|error| sqlite_failed(&error))
    }

    fn aborted(
        &mut self,
        partition: DisklessPartitionId,
        offsets: Range<i64>,
        count: usize,
    ) -> Result<AbortedTransactions, StoreError> {
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        let connection = &self.connection;
        let ended = format!(
            "SELECT {ABORTED} FROM aborted WHERE partition = ?1 AND last_offset >= ?2 AND last_offset < ?3
             ORDER BY last_offset LIMIT ?4"
        );
        let ended = aborted(connection, &ended, params![partition, offsets.start, offsets.end, limit]);
        let AbortedTransactions { end, mut transactions } =
            AbortedTransactions::new(offsets.end, ended.map_err(|error| sqlite_failed(&error))?, count);
        // The `+` prevents SQLite from using the primary key, by which it would read every row with a later marker.
        let open = format!(
            "SELECT {ABORTED} FROM aborted WHERE partition = ?1 AND length_bits = ?2 AND first_offset > ?3
             AND first_offset < ?4 AND +last_offset >= ?4"
        );
        for bits in 0..=LENGTH_BITS_MAX {
            let after = if bits == LENGTH_BITS_MAX { -1 } else { end.saturating_sub(1 << bits) };
            let open = aborted(connection, &open, params![partition, bits, after, end]);
            transactions.extend(open.map_err(|error| sqlite_failed(&error))?);
        }
        Ok(AbortedTransactions::new(end, transactions, usize::MAX))
    }

    fn partitions(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<PartitionRow>, StoreError> {
        let row = |id: &DisklessPartitionId| partition(&self.connection, *id).transpose();
        ids.iter().filter_map(row).collect::<rusqlite::Result<_>>().map_err(|error| sqlite_failed(&error))
    }
}

fn aborted(connection: &Connection, text: &str, values: impl Params) -> rusqlite::Result<Vec<AbortedTransaction>> {
    let row = |row: &Row<'_>| {
        Ok(AbortedTransaction {
            producer_id: row.get(0)?,
            first_offset: row.get(1)?,
            last_offset: row.get(2)?,
            last_stable_offset: row.get(3)?,
        })
    };
    connection.prepare_cached(text)?.query_map(values, row)?.collect()
}
