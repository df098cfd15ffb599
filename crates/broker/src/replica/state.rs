//! The state of a replica that its lock protects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use fullbore_rules::replica::{self, Brokers, Now};
use fullbore_wire::ErrorCode;

use super::data_dir::cluster::ClusterView;
use super::data_dir::failures::{Failures, Mark};
use super::data_dir::flusher::Due;
use super::failing::FailingLog;
use super::phase::Phase;
use fullbore_log::Log;
use fullbore_log::error::StorageError;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::Acks;
use fullbore_log::partition::reorder_buffer::OutOfOrderBatches;
use fullbore_log::recovery::RecoveryHint;
use fullbore_rules::sequence::Stamp;

/// An empty set of brokers. The role of a leader without followers gets this set, because such a role does not depend
/// on other brokers.
const NO_BROKERS: &Brokers = &BTreeMap::new();

/// The state of a replica that its lock protects.
#[derive(Debug)]
pub struct ReplicaState {
    /// The recovery hint for the next opening of a log that is not open.
    pub known: RecoveryHint,
    pub log: LogState,
    /// True if the log was truncated at either end, but the checkpoint files may still have the old offsets.
    pub has_cut_to_checkpoint: bool,
    /// Batches that arrived out of order and wait for earlier ones. `None` if no batch waits and no expiry
    /// task is running.
    pub parked: Option<Box<OutOfOrderBatches>>,
    /// The replica's role and its high watermark, according to the newest metadata that was applied.
    pub role: replica::Partition,
    /// Flushes that were requested, and the one under way.
    pub flush: Flushing,
    /// Counts this log while it is broken or refused. `None` if the log works.
    pub failed: Option<Mark>,
    /// Set while appends or reads fail although the log is not broken. Boxed, because few of 100,000 partitions fail at
    /// a time.
    pub failing: Option<Box<FailingLog>>,
    /// The time and the error of the last opening that failed.
    pub open_failure: Option<Box<(Instant, StorageError)>>,
}

/// The flushes that were requested for one partition, and the one under way.
#[derive(Debug, Default)]
pub struct Flushing {
    /// True if the partition is in the flusher's queue or is being flushed.
    pub is_queued: bool,
    /// True if a flush was requested and has not begun yet.
    pub is_wanted: bool,
    /// True if the requested flush includes the active segment.
    pub of_active: bool,
    /// The timed flush that `flush.ms` requires, if one is pending.
    pub timed: Option<Due>,
    /// The next try of a flush that failed because it could not open a file.
    pub again: Option<Due>,
}

impl ReplicaState {
    /// Counts the log in `failures` if it is broken. Call this after each operation that may break the log.
    pub fn mark_if_broken(&mut self, failures: &Failures) {
        let is_broken = matches!(&self.log, LogState::Open(log) if log.is_broken());
        if is_broken && self.failed.is_none() {
            self.failed = Some(failures.mark());
        }
    }
}

/// The state of a replica's log. [`Phase`] has the same variants without the data.
#[derive(Debug)]
pub enum LogState {
    /// The log has not been opened yet, or must be opened again after a truncation has failed.
    Unopened,
    /// A thread is opening the log. Setting the flag makes the thread stop early.
    Opening(Arc<AtomicBool>),
    /// A thread is creating the log. Setting the flag makes the thread stop early.
    Creating(Arc<AtomicBool>),
    /// The partition has no log, because nothing was ever written to it.
    Absent,
    Open(Box<Log>),
    /// The log's files are damaged and cannot be used until an operator repairs them.
    Refused(StorageError),
    /// The log is closed for good, because the partition was deleted or the broker stops.
    Gone,
}

impl LogState {
    /// Returns the phase that corresponds to this state.
    pub fn phase(&self) -> Phase {
        match self {
            LogState::Unopened => Phase::Unopened,
            LogState::Opening(_) => Phase::Opening,
            LogState::Creating(_) => Phase::Creating,
            LogState::Absent => Phase::Absent,
            LogState::Open(_) => Phase::Open,
            LogState::Refused(_) => Phase::Refused,
            LogState::Gone => Phase::Gone,
        }
    }
}

impl ReplicaState {
    /// Calls `what` with the role, the time and the brokers. A role without followers depends on neither time nor
    /// brokers, so `what` then gets time 0 and no brokers.
    pub fn with_now<T>(
        &mut self,
        cluster: &ClusterView,
        what: impl FnOnce(&mut replica::Partition, &Now<'_>) -> T,
    ) -> T {
        if self.role.has_followers() {
            return cluster.at_this_moment(|now| what(&mut self.role, now));
        }
        what(&mut self.role, &Now { ms: 0, broker_epoch: replica::NO_BROKER_EPOCH, brokers: NO_BROKERS })
    }

    /// Checks that this broker leads the partition in leader epoch `epoch`.
    pub fn check_leads_in(&self, epoch: i32) -> Result<(), ErrorCode> {
        self.role.check_leader_epoch(epoch)?;
        if self.role.is_leader() { Ok(()) } else { Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) }
    }

    /// Returns true if the batch is out of order, which means that earlier batches of its producer are missing.
    pub fn is_early(&self, stamp: &Stamp) -> bool {
        let LogState::Open(log) = &self.log else { return false };
        stamp.is_idempotent() && log.producers().ahead(stamp) > 0
    }

    /// Removes ended transactions from memory if their markers are below the high watermark, because all in-sync
    /// replicas have these markers.
    pub fn forget_replicated_ends(&mut self) {
        let high_watermark = self.role.high_watermark();
        if let LogState::Open(log) = &mut self.log {
            log.forget_replicated_ends(high_watermark);
        }
    }

    /// Checks that the role allows an append with `acks`.
    pub fn check_append(&self, acks: Acks) -> Result<(), AppendError> {
        self.role.check_append(acks == Acks::All).map_err(AppendError::Role)
    }
}
