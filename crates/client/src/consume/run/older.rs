//! Follows the leader epochs of partitions back if the cluster was restored from an older copy.
//!
//! A leader answers UNKNOWN_LEADER_EPOCH if it has not learned of the epoch in which the last record was read. Usually
//! the leader is behind and soon learns of it. After a restore no broker ever does. Invariant: a cursor goes back only
//! if leaders have answered so for a while, and if two brokers have the older epoch, unless only one is known.

use super::Run;
use crate::consume::cursor::{Cursor, Sink};
use crate::consume::error::ConsumeError;
use std::time::{Duration, Instant};

/// How long a leader may not know the epoch of a cursor before the cursor goes back to an older epoch. If the cluster's
/// patience is shorter, that applies.
const UNKNOWN_MAX: Duration = Duration::from_secs(30);

impl<S: Sink> Run<'_, S> {
    /// Returns how long an epoch must be unknown before a cursor goes back to an older one.
    pub(super) fn older_epoch_after(&self) -> Duration {
        self.refused_max.min(UNKNOWN_MAX)
    }

    /// Compares the epoch of a cursor with the leader epoch in the metadata, which is -1 if it is unknown. If the
    /// metadata has kept an older epoch for too long, the cursor goes back to that epoch.
    ///
    /// # Errors
    /// Fails with [`ConsumeError::Truncated`] if read records are lost and no other start is allowed.
    pub(super) fn follow_epoch(&mut self, cursor: &mut Cursor<S>, epoch: i32) -> Result<(), ConsumeError> {
        let Some(last) = cursor.position().leader_epoch() else { return Ok(()) };
        if epoch >= last {
            cursor.epoch_is_known();
        }
        let is_older = (0..last).contains(&epoch);
        if !is_older || cursor.unknown_epoch_for(Instant::now()) < self.older_epoch_after() {
            return Ok(());
        }
        let (topic, partition, restarts) = (cursor.topic.clone(), cursor.partition, self.plan.fetch.reset.is_some());
        let lost = cursor.lost_since(epoch);
        if let Some(lost) = lost.filter(|_| !restarts) {
            return Err(ConsumeError::Truncated { topic, partition, first: lost.start, last: lost.end - 1 });
        }
        cursor.go_back_to_epoch(epoch, restarts);
        let next = cursor.position().offset;
        self.progress.notice(format!(
            "partition {partition} of topic '{topic}' went back from leader epoch {last} to {epoch}, for example because \
             the cluster was restored from an older copy: the read continues at offset {next}"
        ));
        Ok(())
    }
}
