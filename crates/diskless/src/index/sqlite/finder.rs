//! Reads the index over its own connection, so that reads do not wait for commits.

use std::ops::Range;
use std::path::Path;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use fullbore_rules::sequence::AbortedTransaction;
use rusqlite::{Connection, Params, Row, params};

use super::super::store::{AbortedTransactions, LENGTH_BITS_MAX, PartitionRow, RunSource};
use super::file;
use super::rows::{RUN, partition, runs};
use fullbore_db::StoreError;
use fullbore_db::sqlite::failed as sqlite_failed;

/// The columns of an aborted transaction.
const ABORTED: &str = "producer_id, first_offset, last_offset, last_stable_offset";

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
