//! ListOffsets by time: which segment to look into, while others change the log.

use std::io;

use super::Replica;
use crate::log::Log;
use crate::log::error::{ReadError, TimestampOffset};

/// Times a look is planned anew when compaction takes the segment away under it.
const PLANS_MAX: usize = 8;

impl Replica {
    /// The first record whose timestamp is at least `timestamp_ms`; `None` if all are older.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn offset_for_timestamp(&self, timestamp_ms: i64) -> Result<Option<TimestampOffset>, ReadError> {
        self.first_at(timestamp_ms, Log::log_start)
    }

    /// The same of the records from `floor` on.
    fn first_at(&self, timestamp_ms: i64, floor: impl Fn(&Log) -> i64) -> Result<Option<TimestampOffset>, ReadError> {
        let (mut plans, mut from) = (0, i64::MIN);
        loop {
            let mut state = self.lock();
            let batch_max = self.config().max_message_bytes;
            let Some((log, high_watermark)) = self.log_to_read(&mut state)? else {
                return Ok(None);
            };
            let floor = floor(log);
            let planned = log.plan_timestamp(timestamp_ms, from, floor, high_watermark, batch_max);
            drop(state);
            let Some(plan) = planned.map_err(|error| self.read_failed(&error))? else {
                return Ok(None);
            };
            let found = plan.find(timestamp_ms, &self.log_dir.cold);
            plans += 1;
            let is_gone = matches!(&found, Err(error) if error.kind() == io::ErrorKind::NotFound);
            if (plan.is_stale() || is_gone) && plans < PLANS_MAX {
                continue;
            }
            let found = found.map_err(|error| self.read_failed(&error))?;
            plans = 0;
            if found.is_some() {
                return Ok(found);
            }
            from = plan.end_offset();
        }
    }

    /// The first record with the largest timestamp, even if it is deleted; `None` where no segment has records.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn max_timestamp(&self) -> Result<Option<TimestampOffset>, ReadError> {
        let mut state = self.lock();
        let Some((log, _)) = self.log_to_read(&mut state)? else {
            return Ok(None);
        };
        let largest = log.largest_timestamp();
        drop(state);
        match largest.map_err(|error| self.read_failed(&error))? {
            Some(timestamp) => self.first_at(timestamp, Log::first_base_offset),
            None => Ok(None),
        }
    }
}
