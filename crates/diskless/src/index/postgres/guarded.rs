//! Runs this broker's transactions on the index. A transaction takes two round trips: the first one locks and reads,
//! the second one writes and commits.
//!
//! Invariant: no transaction begins on a database that lacks a change known to this broker, or that has another schema
//! version. The newest version of the metadata is such a change, too. If this broker committed to an older copy of the
//! database, offsets would be assigned twice. An operator may also have accepted an older copy while this broker was
//! frozen; such a copy is refused as well.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use fullbore_db::postgres::known_changes::{CHANGE_COUNTS, change_counts, check_version, version_query};
use fullbore_db::postgres::schema::check_schema as check_database_schema;
use fullbore_db::postgres::{DatabaseConnection, rows};
use fullbore_db::{CommitError, StoreError, Version};
use fullbore_host::log_rate_limit::LogRateLimit;

use super::super::noted::{ChangeCounts, NotedChanges, lacking};
use super::rows::{CLOCK_MS, IndexAnswers};
use crate::append_clock::AppendClock;

/// A connection that begins transactions only on a database that has every change known to this broker.
pub struct Guarded {
    connection: DatabaseConnection,
    broker_id: i32,
    noted: Arc<NotedChanges>,
    clock: Arc<AppendClock>,
    is_open: bool,
    went_back: LogRateLimit,
}

impl Guarded {
    /// Creates the guarded connection of a broker. `noted` counts the changes that this broker knows. The connection
    /// refuses a database that lacks any of them.
    pub fn new(connection: DatabaseConnection, broker_id: i32, noted: Arc<NotedChanges>) -> Guarded {
        let (clock, went_back) = (Arc::default(), LogRateLimit::default());
        Guarded { connection, broker_id, noted, clock, is_open: false, went_back }
    }

    /// Returns the append clock, which follows the database's clock.
    pub fn clock(&self) -> Arc<AppendClock> {
        Arc::clone(&self.clock)
    }

    /// Returns the id of this broker.
    pub fn broker_id(&self) -> i32 {
        self.broker_id
    }

    /// Begins a transaction and executes `statements` in it. They must not write anything.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the database fails, has another schema, or is an older copy or another database. No
    /// transaction is open then.
    pub fn begin(&mut self, statements: &str) -> Result<IndexAnswers, StoreError> {
        self.begin_as("BEGIN", statements)
    }

    /// Reads one snapshot without locks. No transaction is open afterwards.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the database fails, has another schema, or is an older copy or another database.
    pub fn read(&mut self, statements: &str) -> Result<IndexAnswers, StoreError> {
        let answers =
            self.begin_as("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", &format!("{statements}; COMMIT"))?;
        self.is_open = false;
        Ok(answers)
    }

    fn begin_as(&mut self, begin: &str, statements: &str) -> Result<IndexAnswers, StoreError> {
        self.abandon();
        // Read the known changes before the query. Changes that are recorded later may include commits that the query
        // does not see.
        let (known, version) = (self.noted.counts(), self.noted.version());
        let schema = format!("SELECT {CLOCK_MS}, version FROM fullbore.schema_version");
        let began = Instant::now();
        let checks = format!("{schema}; {CHANGE_COUNTS}; {}", version_query(version));
        let answers = self.connection.begin_with(&format!("{begin}; {checks}; {statements}"));
        let mut answers = answers.map_err(|error| error.failed())?.into_iter();
        self.is_open = true;
        let checked = self.check(&known, version, &mut answers, began);
        let checked = self.or_abandon(checked.map(|()| answers));
        self.connection.hang_up_if_behind(&checked);
        checked
    }

    fn check(
        &mut self,
        known: &ChangeCounts,
        version: Option<Version>,
        answers: &mut IndexAnswers,
        began: Instant,
    ) -> Result<(), StoreError> {
        let clock_and_schema = rows::next(answers)?;
        check_database_schema(&clock_and_schema)?;
        let found = change_counts(&rows::next(answers)?)?;
        check_version(version, &rows::next(answers)?).inspect_err(|error| self.log_went_back(error))?;
        if let Some(lacks) = lacking(known, &found) {
            return Err(self.has_gone_back(&lacks.to_string(), lacks.known));
        }
        if self.noted.was_copy_accepted(&found) {
            return Err(self.was_copy_accepted(known));
        }
        self.noted.raise_all(&found);
        if let Some(row) = clock_and_schema.first() {
            self.clock.saw(rows::number(row, 0)?, began.elapsed());
        }
        Ok(())
    }

    /// Logs that the database lacks a change, at most once a minute. `lacks` describes the change. Returns the error
    /// for the caller.
    pub fn has_gone_back(&self, lacks: &str, known: i64) -> StoreError {
        self.log_went_back(&lacks);
        StoreError::WentBack(known.cast_unsigned())
    }

    fn log_went_back(&self, lacks: &dyn Display) {
        if let Some(left_out) = self.went_back.due() {
            tracing::error!(
                %lacks,
                left_out,
                "cannot commit to the index of diskless topics: its database is an older copy or another one; restore the newest backup"
            );
        }
    }

    /// Logs that an older copy of the database was accepted, at most once a minute. Returns the error for the caller.
    fn was_copy_accepted(&self, known: &ChangeCounts) -> StoreError {
        if let Some(left_out) = self.went_back.due() {
            tracing::error!(
                left_out,
                "cannot commit to the index of diskless topics: an older copy of its database was accepted while this broker ran; restart the broker"
            );
        }
        StoreError::WentBack(known.get(&self.broker_id).copied().unwrap_or(0).cast_unsigned())
    }

    /// Executes statements within the open transaction.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if a statement fails. The transaction is then rolled back.
    pub fn query(&mut self, statements: &str) -> Result<IndexAnswers, StoreError> {
        let requested = self.connection.query(statements).map(Vec::into_iter).map_err(|error| error.failed());
        self.or_abandon(requested)
    }

    /// Executes statements within the open transaction. If no transaction is open, reads one snapshot instead.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if a statement fails. An open transaction is then rolled back.
    pub fn query_or_read(&mut self, statements: &str) -> Result<IndexAnswers, StoreError> {
        if self.is_open { self.query(statements) } else { self.read(statements) }
    }

    /// Executes these statements and commits the transaction.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was written or the outcome is unknown.
    pub fn end(&mut self, statements: &str) -> Result<IndexAnswers, CommitError> {
        if !std::mem::take(&mut self.is_open) {
            return Err(CommitError::Refused(StoreError::Away("there is no transaction".into())));
        }
        let ended = self.connection.query(&format!("{statements}; COMMIT"));
        ended.map(Vec::into_iter).map_err(|error| error.not_committed())
    }

    /// Commits a change of partition rows, as [`Guarded::end`] does. The same transaction raises this broker's counter
    /// by one. After the commit, the new count is recorded in the data directory.
    ///
    /// # Errors
    /// Returns an error if [`Guarded::end`] does.
    pub fn end_counted(&mut self, statements: &str) -> Result<IndexAnswers, CommitError> {
        let mut answers = self.end(&format!("{}; {statements}", self.count()))?;
        // If the answer has no valid counter, ignore that: the commit has succeeded.
        if let Ok(counted) = rows::next(&mut answers)
            && let Some(Ok(number)) = counted.first().map(|row| rows::number(row, 0))
        {
            self.noted.raise_own(number);
        }
        Ok(answers)
    }

    fn count(&self) -> String {
        format!(
            "INSERT INTO fullbore.diskless_brokers AS broker (broker_id, counter) VALUES ({}, 1)
             ON CONFLICT (broker_id) DO UPDATE SET counter = broker.counter + 1 RETURNING counter",
            self.broker_id
        )
    }

    /// Returns two assignments for the `SET` of a statement that changes the row of a partition. They store the id of
    /// this broker and the number of its transaction in the row.
    pub fn changed_by(&self) -> String {
        format!(
            "changed_by = {0}, changed_at = (SELECT counter FROM fullbore.diskless_brokers WHERE broker_id = {0})",
            self.broker_id
        )
    }

    /// Rolls the transaction back if one is open.
    pub fn abandon(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.connection.roll_back();
        }
    }

    fn or_abandon<T>(&mut self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if done.is_err() {
            self.abandon();
        }
        done
    }
}
