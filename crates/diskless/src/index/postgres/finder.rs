//! Reads the index over its own connection, so that reads do not wait for commits.

use std::ops::Range;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId, first_drawn_at};

use super::super::damaged;
use super::super::store::{AbortedTransactions, LENGTH_BITS_MAX, OLD_RUNS_AT_ONCE, PartitionRow, RunSource};
use super::super::time_search::{RunPlace, RunTime};
use super::rows::{ABORTED, PARTITION, RUN, aborted, array, each, partition, run};
use fullbore_db::StoreError;
use fullbore_db::postgres::DatabaseConnection;
use fullbore_db::postgres::rows::{DatabaseRow, Rows, next, number, optional_number};

/// A connection for reads of the index.
pub struct PostgresFinder {
    connection: DatabaseConnection,
}

impl PostgresFinder {
    /// Creates a finder that uses this connection.
    pub fn new(connection: DatabaseConnection) -> PostgresFinder {
        PostgresFinder { connection }
    }

    /// Selects `columns` of the last extent of each partition that begins at or before the given offset. The number of
    /// the place, from 1 on, follows as the last column.
    fn last_before(&mut self, places: &[RunPlace], columns: &str) -> Result<Rows, StoreError> {
        let partitions = array(places.iter().map(|(partition, _)| partition));
        let offsets = array(places.iter().map(|(_, offset)| offset));
        self.query(&format!(
            "SELECT run.*, place.number
             FROM unnest({partitions}::bigint[], {offsets}::bigint[]) WITH ORDINALITY AS place (id, place_offset, number),
             LATERAL (
               SELECT {columns} FROM fullbore.diskless_runs
               WHERE partition = place.id AND base_offset <= place.place_offset
               ORDER BY base_offset DESC LIMIT 1) AS run"
        ))
    }

    fn query(&mut self, statement: &str) -> Result<Rows, StoreError> {
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
        let rows = self.query(&format!(
            "SELECT {RUN} FROM fullbore.diskless_runs
             WHERE partition = {partition} AND base_offset >= coalesce(({before}), {offset})
             ORDER BY base_offset LIMIT {limit}"
        ))?;
        each(&rows, run)
    }

    fn last_runs(&mut self, places: &[RunPlace]) -> Result<Vec<Option<BatchRun>>, StoreError> {
        let rows = self.last_before(places, RUN)?;
        in_order(places.len(), each(&rows, |row| Ok((number(row, 6)?, run(row)?)))?)
    }

    fn last_times(&mut self, places: &[RunPlace]) -> Result<Vec<Option<RunTime>>, StoreError> {
        let rows = self.last_before(places, "base_offset, max_timestamp_so_far")?;
        let time = |row: &DatabaseRow| {
            let time = RunTime { base_offset: number(row, 0)?, max_timestamp_so_far: number(row, 1)? };
            Ok((number(row, 2)?, time))
        };
        in_order(places.len(), each(&rows, time)?)
    }

    fn skip_old(
        &mut self,
        partition: DisklessPartitionId,
        from: i64,
        since_ms: i64,
    ) -> Result<Option<i64>, StoreError> {
        let object = first_drawn_at(since_ms);
        let rows = self.query(&format!(
            "SELECT coalesce(
               min(base_offset) FILTER (WHERE max_timestamp_so_far >= ({since_ms}) OR object >= ({object})),
               max(base_offset))
             FROM (
               SELECT base_offset, object, max_timestamp_so_far FROM fullbore.diskless_runs
               WHERE partition = {partition} AND base_offset >= ({from})
               ORDER BY base_offset LIMIT {OLD_RUNS_AT_ONCE}) AS looked_at"
        ))?;
        rows.first().map_or(Ok(None), |row| optional_number(row, 0))
    }

    fn aborted(
        &mut self,
        partition: DisklessPartitionId,
        offsets: Range<i64>,
        count: usize,
    ) -> Result<AbortedTransactions, StoreError> {
        let Range { start, end } = offsets;
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        // Transactions that are open at the end of the answer are found by one search for each possible value of
        // [`length_bits`](super::super::store::length_bits). The `+ 0` makes the planner use the database index on this
        // value.
        let rows = self.query(&format!(
            "WITH ended AS MATERIALIZED (
               SELECT {ABORTED} FROM fullbore.diskless_aborted
               WHERE partition = {partition} AND last_offset >= ({start}) AND last_offset < ({end})
               ORDER BY last_offset LIMIT {limit}),
             answer AS MATERIALIZED (
               SELECT CASE WHEN count(*) < {limit} THEN ({end})::bigint ELSE max(last_offset) + 1 END AS ends_at FROM ended)
             SELECT {ABORTED} FROM ended UNION ALL
             SELECT open.* FROM answer, generate_series(0, {LENGTH_BITS_MAX}) AS bits, LATERAL (
               SELECT {ABORTED} FROM fullbore.diskless_aborted
               WHERE partition = {partition} AND length_bits = bits::smallint AND first_offset < ends_at
                 AND first_offset > CASE bits WHEN {LENGTH_BITS_MAX} THEN -1 ELSE ends_at - (1::bigint << bits) END
                 AND last_offset + 0 >= ends_at
               OFFSET 0) AS open"
        ))?;
        Ok(AbortedTransactions::new(end, each(&rows, aborted)?, count))
    }

    fn partitions(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<PartitionRow>, StoreError> {
        let ids = array(ids.iter());
        let query =
            format!("SELECT {PARTITION} FROM fullbore.diskless_partitions AS p WHERE p.id = ANY({ids}::bigint[])");
        each(&self.query(&query)?, partition)
    }
}

/// Sorts `found` by the numbers of the places, which begin with 1. A place without a row gets `None`.
fn in_order<T>(count: usize, found: Vec<(usize, T)>) -> Result<Vec<Option<T>>, StoreError> {
    let mut ordered: Vec<Option<T>> = (0..count).map(|_| None).collect();
    for (number, one) in found {
        let place = number.checked_sub(1).and_then(|at| ordered.get_mut(at));
        *place.ok_or_else(|| damaged("a row belongs to no place"))? = Some(one);
    }
    Ok(ordered)
}
