//! Searches a log for timestamps (ListOffsets). The search runs without the lock while other threads change the log.

use std::io;

use super::Replica;
use fullbore_log::lookup::is_gone;
use fullbore_log::partition::error::ReadError;
use fullbore_log::partition::read::{Isolation, TimestampOffset};
use fullbore_log::times::{DecompressionAllowance, LargestPlan, TimePlan};

/// Maximum number of plans for the same part of a search. A new plan is needed if retention or compaction removes the
/// segment that the last plan used.
const PLANS_MAX: usize = 8;

impl Replica {
    /// Returns the first readable record whose timestamp is at least `timestamp_ms`. Returns `None` if all records that
    /// the isolation level can read are older.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the log cannot be opened or read.
    pub fn offset_for_timestamp(
        &self,
        isolation: Isolation,
        timestamp_ms: i64,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        let (mut plans, mut from, mut allowance) = (0, i64::MIN, DecompressionAllowance::default());
        loop {
            let mut state = self.lock();
            let batch_max = self.config().max_message_bytes;
            let Some((log, high_watermark)) = self.log_to_read(&mut state)? else {
                return Ok(None);
            };
            let floor = log.log_start();
            let end = log.readable_end(isolation, high_watermark);
            let planned = log.plan_timestamp(timestamp_ms, from, floor, end, batch_max);
            drop(state);
            let Some(plan) = planned.map_err(|error| self.read_failed(&error))? else {
                return Ok(None);
            };
            plans += 1;
            let found = plan.find(timestamp_ms, &self.log_dir.cold, &mut allowance);
            let Some(found) = self.unless_stale(&plan, found, plans)? else {
                continue;
            };
            if found.is_some() {
                return Ok(found);
            }
            (plans, from) = (0, plan.end_offset());
        }
    }

    /// Returns the record with the largest timestamp, or the first one if there are several. Returns `None` if there
    /// are no records.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the log cannot be opened or read.
    pub fn max_timestamp(&self, isolation: Isolation) -> Result<Option<TimestampOffset>, ReadError> {
        // First search the indexes for the largest timestamp, which is cheap. The search finds no record if the record
        // with this timestamp is already deleted.
        if let Some(largest) = self.largest_indexed()?
            && let Some(found) = self.offset_for_timestamp(isolation, largest)?
        {
            return Ok(Some(found));
        }
        let mut tries = 0;
        loop {
            let Some((floor, largest)) = self.largest_timestamp(isolation)? else { return Ok(None) };
            let found = self.offset_for_timestamp(isolation, largest)?;
            tries += 1;
            // Retention may have deleted the record between the two searches.
            if found.is_some() || tries == PLANS_MAX || self.offsets()?.log_start == floor {
                return Ok(found);
            }
        }
    }

    fn largest_indexed(&self) -> Result<Option<i64>, ReadError> {
        let mut state = self.lock();
        let Some((log, _)) = self.log_to_read(&mut state)? else {
            return Ok(None);
        };
        let largest = log.largest_indexed();
        drop(state);
        largest.map_err(|error| self.read_failed(&error))
    }

    /// Returns the log start, and the largest timestamp of all readable records, in ms. Returns `None` if there are no
    /// records. If the log start is within a segment, that segment is scanned.
    fn largest_timestamp(&self, isolation: Isolation) -> Result<Option<(i64, i64)>, ReadError> {
        let mut plans = 0;
        loop {
            let mut state = self.lock();
            let batch_max = self.config().max_message_bytes;
            let Some((log, high_watermark)) = self.log_to_read(&mut state)? else {
                return Ok(None);
            };
            let end = log.readable_end(isolation, high_watermark);
            let planned = log.plan_largest(end, batch_max);
            drop(state);
            let LargestPlan { floor, indexed, divided } = planned.map_err(|error| self.read_failed(&error))?;
            let Some(plan) = divided else { return Ok(indexed.map(|largest| (floor, largest))) };
            plans += 1;
            if let Some(largest) = self.unless_stale(&plan, plan.largest(&self.log_dir.cold), plans)? {
                return Ok(largest.max(indexed).map(|largest| (floor, largest)));
            }
        }
    }

    /// Returns `found`, which is the result of plan number `plans`. Returns `None` if the caller must make another
    /// plan, because files were replaced or removed during the search.
    fn unless_stale<T>(&self, plan: &TimePlan, found: io::Result<T>, plans: usize) -> Result<Option<T>, ReadError> {
        if (plan.is_stale() || found.as_ref().is_err_and(is_gone)) && plans < PLANS_MAX {
            return Ok(None);
        }
        found.map(Some).map_err(|error| self.read_failed(&error))
    }
}
