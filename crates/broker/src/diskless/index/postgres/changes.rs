//! Change feed of a cluster's index. A partition's row names the broker that changed it last, and the number of that
//! broker's transaction. A poll reads the counters of other brokers, and the rows with larger numbers than the counters
//! at the last poll.
//!
//! The transactions of a broker have consecutive numbers. A number is drawn under a lock of the broker's row that lasts
//! until the commit, so that the committed numbers have no gap.
//!
//! Counters are read before rows. A row that was changed in between is returned now, and again by the next poll. A row
//! that two brokers have changed is returned because of the later change.
//!
//! Invariant: a change committed before a call is returned by that call or by an earlier one.

use std::sync::Arc;

use super::super::noted::{ChangeCounts, NotedChanges, lacking};
use super::super::store::{ChangeSource, PartitionRow};
use super::rows::{PARTITION, change_counts, each, partition};
use fullbore_db::StoreError;
use fullbore_db::postgres::DatabaseConnection;
use fullbore_db::postgres::rows::next;

/// Change feed over a connection.
pub struct PostgresChanges {
    connection: DatabaseConnection,
    broker_id: i32,
    /// Counters of other brokers at the last poll. A broker without a counter had committed nothing by then.
    seen: ChangeCounts,
    noted: Arc<NotedChanges>,
}

impl PostgresChanges {
    /// Creates the feed of a broker. The feed adds the changes of other brokers to `noted`.
    pub fn new(connection: DatabaseConnection, broker_id: i32, noted: Arc<NotedChanges>) -> PostgresChanges {
        PostgresChanges { connection, broker_id, seen: ChangeCounts::new(), noted }
    }

    fn question(&self) -> String {
        let counters = format!(
            "SELECT broker_id, counter FROM fullbore.diskless_brokers WHERE broker_id <> ({}) ORDER BY broker_id",
            self.broker_id
        );
        let since = |(broker, counter): (&i32, &i64)| format!("p.changed_by = ({broker}) AND p.changed_at > {counter}");
        let known: Vec<String> = self.seen.iter().map(since).collect();
        let known = if known.is_empty() { "false".to_owned() } else { known.join(" OR ") };
        format!("{counters}; SELECT {PARTITION} FROM fullbore.diskless_partitions AS p WHERE {known}")
    }

    /// Returns the rows last changed by `brokers`, whose counters are seen for the first time: all these changes are
    /// new.
    fn ask_of_new(&mut self, brokers: &[i32]) -> Result<Vec<PartitionRow>, StoreError> {
        let brokers: Vec<String> = brokers.iter().map(i32::to_string).collect();
        let answers = self.connection.begin_with(&format!(
            "SELECT {PARTITION} FROM fullbore.diskless_partitions AS p WHERE p.changed_by IN ({})",
            brokers.join(", ")
        ));
        each(&next(&mut answers.map_err(|error| error.failed())?.into_iter())?, partition)
    }
}

impl ChangeSource for PostgresChanges {
    fn changed(&mut self) -> Result<Vec<PartitionRow>, StoreError> {
        let mut known = self.noted.counts();
        known.remove(&self.broker_id);
        let answers = self.connection.begin_with(&self.question()).map_err(|error| error.failed())?;
        let mut answers = answers.into_iter();
        let counters = change_counts(&next(&mut answers)?)?;
        // `seen` stays as it is, because the next call may reach the right database again.
        if let Some(lacks) = lacking(&known, &counters) {
            return Err(StoreError::WentBack(lacks.known.cast_unsigned()));
        }
        self.noted.raise(&counters);
        let new: Vec<i32> = counters.keys().filter(|broker| !self.seen.contains_key(broker)).copied().collect();
        let mut rows = each(&next(&mut answers)?, partition)?;
        if !new.is_empty() {
            rows.extend(self.ask_of_new(&new)?);
        }
        self.seen = counters;
        Ok(rows)
    }
}
