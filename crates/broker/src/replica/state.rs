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

/// An empty set of brokers, for the role of a leader without followers. Such a role does not depend on other brokers.
const NO_BROKERS: &Brokers = &BTreeMap::new();

/// The state of a replica that its lock protects.
#[derive(Debug)]
pub struct ReplicaState {
    /// The recovery hint for the next opening of the log.
    pub known: RecoveryHint,
    pub log: LogState,
    /// True if the log start or the log end was changed by a truncation, and the checkpoint files may still contain the
    /// old offset.
    pub has_cut_to_checkpoint: bool,
    /// Batches that arrived out of order and wait for earlier ones. `None` if no batch waits and no expiry
    /// task is running.
    pub parked: Option<Box<OutOfOrderBatches>>,
    /// The replica's role and its high watermark, according to the newest metadata that was applied.
    pub role: replica::Partition,
    /// The requested flushes, and the running one.
    pub flush: Flushing,
    /// Counts this log while it is broken or refused. `None` if the log works.
    pub failed: Option<Mark>,
    /// The current failure of appends or reads of a log that is not broken. Boxed, because few of 100,000 partitions
    /// fail at a time.
    pub failing: Option<Box<FailingLog>>,
    /// The time and the error of the last opening that failed.
    pub open_failure: Option<Box<(Instant, StorageError)>>,
}

/// The requested flushes of one partition, and the running one.
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
    /// The timer after which a flush that could not open a file is repeated.
    pub again: Option<Due>,
}

impl ReplicaState {
    /// Counts the log in `failures` if it is broken. Must be called after each operation that may break the log.
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
    /// The log is not opened yet, or must be opened again after a failed truncation.
    Unopened,
    /// A thread is opening the log. The thread stops early once the flag is true.
    Opening(Arc<AtomicBool>),
    /// A thread is creating the log. The thread stops early once the flag is true.
    Creating(Arc<AtomicBool>),
    /// The partition has no log, because nothing was ever written to it.
    Absent,
    Open(Box<Log>),
    /// The log's files are damaged and cannot be used until an operator repairs them.
    Refused(StorageError),
    /// The log is closed and will not be opened again, because the partition was deleted or the broker stops.
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
    /// Calls `what` with the role, the time and the brokers. The role of a leader without followers does not depend on
    /// time or brokers, so `what` then gets time 0 and no brokers.
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

    /// Removes an ended transaction from memory if its marker is below the high watermark, because all in-sync replicas
    /// have that marker.
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
