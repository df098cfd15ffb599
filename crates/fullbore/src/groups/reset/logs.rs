//! The offsets of the logs' starts and ends, and those of a timestamp. They are requested once for all groups.
//!
//! The module `scenario` chooses among these offsets. Invariant: if an offset is missing, only groups that need it
//! fail.

use super::offsets::ResetOffsets;
use crate::failure::Failure;
use fullbore_client::ClientError;
use fullbore_client::blocking::Cluster;
use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet};

/// The offsets that leaders returned, by the timestamp in the request.
#[derive(Debug, Default)]
pub struct LogOffsets {
    at: BTreeMap<i64, ResetOffsets>,
    /// The errors of partitions whose leader returned one.
    refused: BTreeMap<(Text, i32), ClientError>,
    /// The first error of a leader that was not reached. The first group that needs an offset from such a leader fails
    /// with it.
    unreached: Option<ClientError>,
}

impl LogOffsets {
    /// Requests the offsets of these partitions at `timestamp` from their leaders.
    pub fn look_up(&mut self, cluster: &mut Cluster, of: &BTreeSet<(Text, i32)>, timestamp: i64) {
        if of.is_empty() {
            return;
        }
        let of: Vec<(Text, i32)> = of.iter().cloned().collect();
        let found = cluster.offsets_found_at(&of, timestamp);
        self.at.entry(timestamp).or_default().extend(found.offsets);
        self.refused.extend(found.refused);
        self.unreached = self.unreached.take().or(found.unreached);
    }

    /// Returns the partitions that have no record with this timestamp or a later one.
    pub fn without_record_at(&self, timestamp: i64) -> BTreeSet<(Text, i32)> {
        let found = self.at.get(&timestamp).into_iter().flatten();
        found.filter(|(_, offset)| **offset < 0).map(|(key, _)| key.clone()).collect()
    }

    /// Returns the offset of a partition at `timestamp`. The caller must have requested it with
    /// [`LogOffsets::look_up`].
    ///
    /// # Errors
    /// Returns [`Failure`] with the reason, if the leader returned no offset.
    pub fn get(&mut self, key: &(Text, i32), timestamp: i64) -> Result<i64, Failure> {
        if let Some(offset) = self.at.get(&timestamp).and_then(|found| found.get(key)) {
            return Ok(*offset);
        }
        let none = || ClientError::NoLeader { topic: key.0.to_string(), partition: key.1 };
        let error = self.refused.remove(key).or_else(|| self.unreached.take());
        Err(error.unwrap_or_else(none).into())
    }

    /// Returns the offset of each of these partitions at `timestamp`.
    ///
    /// # Errors
    /// Returns [`Failure`] of the first partition for which the leader returned no offset.
    pub fn each(&mut self, of: &[(Text, i32)], timestamp: i64) -> Result<ResetOffsets, Failure> {
        of.iter().map(|key| Ok((key.clone(), self.get(key, timestamp)?))).collect()
    }
}
