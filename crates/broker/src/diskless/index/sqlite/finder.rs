//! The connection that finds where records are, beside the commits.

use std::path::Path;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use rusqlite::{Connection, params};

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

    fn partitions(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<PartitionRow>, StoreError> {
        let row = |id: &DisklessPartitionId| partition(&self.connection, *id).transpose();
        ids.iter().filter_map(row).collect::<rusqlite::Result<_>>().map_err(|error| sqlite_failed(&error))
    }
}
