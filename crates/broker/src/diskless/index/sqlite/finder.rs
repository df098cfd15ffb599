//! The connection that finds where records are, beside the commits.

use std::ops::Range;
use std::path::Path;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use fullbore_rules::sequence::AbortedTransaction;
use rusqlite::{Connection, Row, params};

use super::super::store::{PartitionRow, RunSource};
use super::file;
use super::rows::{RUN, partition, runs};
use fullbore_db::StoreError;
use fullbore_db::sqlite::failed as sqlite_failed;

/// Reads beside the commits.
pub struct SqliteFinder {
    connection: Connection,
}

impl SqliteFinder {
    /// Opens the file of this folder, which the index has made.
    ///
    /// # Errors
    /// The disk.
    pub fn open(folder: &Path) -> Result<SqliteFinder, StoreError> {
        let connection = file::connect(folder).map_err(|error| sqlite_failed(&error))?;
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

    fn aborted(
        &mut self,
        partition: DisklessPartitionId,
        offsets: Range<i64>,
        count: usize,
    ) -> Result<Vec<AbortedTransaction>, StoreError> {
        // The last stable offset grows from row to row: the first one that is past the offsets ends the look.
        let text = "SELECT producer_id, first_offset, last_offset, last_stable_offset FROM aborted
             WHERE partition = ?1 AND last_offset >= ?2 AND first_offset < ?3 AND last_offset <= coalesce(
               (SELECT last_offset FROM aborted WHERE partition = ?1 AND last_offset >= ?2 AND last_stable_offset >= ?3
                ORDER BY last_offset LIMIT 1), 0x7fffffffffffffff)
             ORDER BY first_offset LIMIT ?4";
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let found = self.connection.prepare_cached(text).and_then(|mut find| {
            let row = |row: &Row<'_>| {
                Ok(AbortedTransaction {
                    producer_id: row.get(0)?,
                    first_offset: row.get(1)?,
                    last_offset: row.get(2)?,
                    last_stable_offset: row.get(3)?,
                })
            };
            find.query_map(params![partition, offsets.start, offsets.end, count], row)?.collect()
        });
        found.map_err(|error| sqlite_failed(&error))
    }

    fn partitions(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<PartitionRow>, StoreError> {
        let row = |id: &DisklessPartitionId| partition(&self.connection, *id).transpose();
        ids.iter().filter_map(row).collect::<rusqlite::Result<_>>().map_err(|error| sqlite_failed(&error))
    }
}
