//! Defines the columns of the tables, and reads their rows.

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use rusqlite::{Connection, OptionalExtension, Params, Row};

use super::super::damaged;
use super::super::packed::unpack_run;
use super::super::store::PartitionRow;
use fullbore_db::StoreError;
use fullbore_db::sqlite::failed as sqlite_failed;

/// The columns of an extent.
pub const RUN: &str = "partition, object, base_offset, position, max_timestamp_so_far, batches";
/// The values of `objects.state`.
pub const REGISTERED: i64 = 0;
pub const LIVE: i64 = 1;
pub const UNUSED: i64 = 2;
pub const DELETED: i64 = 3;
pub const DELETE_FAILED: i64 = 4;

/// Runs `query` and returns its rows as extents. The query must select the columns [`RUN`].
pub fn runs(connection: &Connection, query: &str, params: impl Params) -> Result<Vec<BatchRun>, StoreError> {
    let failed = |error: rusqlite::Error| sqlite_failed(&error);
    let mut find = connection.prepare_cached(query).map_err(failed)?;
    let mut rows = find.query(params).map_err(failed)?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let packed = row.get_ref(5).map_err(failed)?;
        runs.push(BatchRun {
            partition: row.get(0).map_err(failed)?,
            object: row.get(1).map_err(failed)?,
            base_offset: row.get(2).map_err(failed)?,
            position: row.get(3).map_err(failed)?,
            max_timestamp_so_far: row.get(4).map_err(failed)?,
            batches: unpack_run(packed.as_blob().map_err(|error| damaged(error.to_string()))?)?,
        });
    }
    Ok(runs)
}

/// Reads the row of a partition. Returns `None` if the partition does not exist.
pub fn partition(connection: &Connection, id: DisklessPartitionId) -> rusqlite::Result<Option<PartitionRow>> {
    let mut find = connection.prepare_cached(
        "SELECT log_start, next_offset, bytes, max_timestamp, has_forgotten, expired_to, first_unstable, aborted_to
         FROM partitions WHERE id = ?1",
    )?;
    let row = find.query_row([id], |row| partition_row(id, row, 0));
    row.optional()
}

/// Converts `row` to the row of a partition. `first` is the first column after the id.
pub fn partition_row(id: DisklessPartitionId, row: &Row<'_>, first: usize) -> rusqlite::Result<PartitionRow> {
    Ok(PartitionRow {
        id,
        log_start: row.get(first)?,
        next_offset: row.get(first + 1)?,
        bytes: row.get(first + 2)?,
        max_timestamp: row.get(first + 3)?,
        has_forgotten: row.get(first + 4)?,
        window: 0,
        expired_to: row.get(first + 5)?,
        first_unstable: row.get(first + 6)?,
        aborted_to: row.get(first + 7)?,
    })
}
