//! The offsets at which the logs of partitions start, end, or reach a time. They are requested once for all groups.
//!
//! The choice among these offsets is in `scenario`. Invariant: a missing offset is an error only of the groups that
//! need it.

use super::offsets::ResetOffsets;
use crate::failure::Failure;
use fullbore_client::ClientError;
use fullbore_client::blocking::Cluster;
use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet};

/// The offsets that leaders returned, by the timestamp of the request.
#[derive(Debug, Default)]
pub struct LogOffsets {
    at: BTreeMap<i64, ResetOffsets>,
    /// The errors of partitions whose leader returned one.
    refused: BTreeMap<(Text, i32), ClientError>,
    /// The error of the leaders that were not reached. The first group that needs one of their partitions gets this
    /// error.
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

    /// Returns the offset of a partition at `timestamp`. [`LogOffsets::look_up`] must have requested it before.
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
