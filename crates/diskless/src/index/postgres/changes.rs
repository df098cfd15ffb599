//! The change feed of a cluster's index. The row of a partition contains the id of the broker that changed it last, and
//! the number of that broker's transaction. A poll reads the counter of each other broker, and the rows whose numbers
//! are larger than the counters of the previous poll.
//!
//! The transactions of a broker have consecutive numbers. A transaction locks the broker's row, draws its number there,
//! and keeps the lock until it commits. Therefore no number is missing among the committed ones.
//!
//! A poll reads the counters before the rows. If a row changes in between, both this poll and the next one return it.
//! If two brokers change a row between two polls, the row has only the id of the later one. This is enough for the next
//! poll to return the row.
//!
//! Invariant: if a change was committed before a poll, this poll or an earlier one returns it.

use std::sync::Arc;

use super::super::noted::{ChangeCounts, NotedChanges, lacking};
use super::super::store::{ChangeSource, PartitionRow};
use super::rows::{PARTITION, each, partition};
use fullbore_db::postgres::DatabaseConnection;
use fullbore_db::postgres::known_changes::{change_counts, check_version, version_query};
use fullbore_db::postgres::rows::next;
use fullbore_db::{StoreError, Version};

/// A change feed that polls over a connection.
pub struct PostgresChanges {
    connection: DatabaseConnection,
    broker_id: i32,
    /// The counters of other brokers at the last poll. Brokers that had not committed anything by then are not
    /// included.
    seen: ChangeCounts,
    noted: Arc<NotedChanges>,
}

impl PostgresChanges {
    /// Creates the change feed of a broker. The feed also records the changes of other brokers in `noted`.
    pub fn new(connection: DatabaseConnection, broker_id: i32, noted: Arc<NotedChanges>) -> PostgresChanges {
        PostgresChanges { connection, broker_id, seen: ChangeCounts::new(), noted }
    }

    fn question(&self, version: Option<Version>) -> String {
        let counters = format!(
            "SELECT broker_id, counter FROM fullbore.diskless_brokers WHERE broker_id <> ({}) ORDER BY broker_id",
            self.broker_id
        );
        let since = |(broker, counter): (&i32, &i64)| format!("p.changed_by = ({broker}) AND p.changed_at > {counter}");
        let known: Vec<String> = self.seen.iter().map(since).collect();
        let known = if known.is_empty() { "false".to_owned() } else { known.join(" OR ") };
        let version = version_query(version);
        format!("{counters}; {version}; SELECT {PARTITION} FROM fullbore.diskless_partitions AS p WHERE {known}")
    }

    /// Returns the rows whose last change was made by one of `brokers`. These brokers had no counter at the previous
    /// poll, so all their changes are new.
    fn query_of_new(&mut self, brokers: &[i32]) -> Result<Vec<PartitionRow>, StoreError> {
        let brokers: Vec<String> = brokers.iter().map(i32::to_string).collect();
        let answers = self.connection.begin_with(&format!(
            "SELECT {PARTITION} FROM fullbore.diskless_partitions AS p WHERE p.changed_by IN ({})",
            brokers.join(", ")
        ));
        each(&next(&mut answers.map_err(|error| error.failed())?.into_iter())?, partition)
    }

    /// Returns the rows that changed since the last poll.
    fn poll(&mut self) -> Result<Vec<PartitionRow>, StoreError> {
        let (mut known, version) = (self.noted.counts(), self.noted.version());
        known.remove(&self.broker_id);
        let answers = self.connection.begin_with(&self.question(version)).map_err(|error| error.failed())?;
        let mut answers = answers.into_iter();
        let counters = change_counts(&next(&mut answers)?)?;
        check_version(version, &next(&mut answers)?)?;
        // If this poll fails, `seen` stays as it is. The connection may have reached an older copy of the database, and
        // the next poll may reach the newest database again.
        if let Some(lacks) = lacking(&known, &counters) {
            return Err(StoreError::WentBack(lacks.known.cast_unsigned()));
        }
        if self.noted.was_copy_accepted(&counters) {
            return Err(StoreError::WentBack(known.values().copied().max().unwrap_or(0).cast_unsigned()));
        }
        self.noted.raise(&counters);
        let new: Vec<i32> = counters.keys().filter(|broker| !self.seen.contains_key(broker)).copied().collect();
        let mut rows = each(&next(&mut answers)?, partition)?;
        if !new.is_empty() {
            rows.extend(self.query_of_new(&new)?);
        }
        self.seen = counters;
        Ok(rows)
    }
}

impl ChangeSource for PostgresChanges {
    fn changed(&mut self) -> Result<Vec<PartitionRow>, StoreError> {
        let changed = self.poll();
        self.connection.hang_up_if_behind(&changed);
        changed
    }
}
