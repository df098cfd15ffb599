//! This broker's copy of a partition. A [`Replica`] contains the log and the role, and wakes the requests that wait for
//! a change of either.
//!
//! The role follows the metadata image (see `role`). The rules of [`fullbore_rules::replica`] determine the role and
//! the high watermark. A leader appends batches, unless an earlier batch was refused (`append`), and parks batches that
//! arrive out of order (`out_of_order`). It serves reads (`read`, `times`) and its followers (`follower_reads`), and
//! notifies fetch sessions through [`fullbore_log::partition::dirty_partitions`]. A follower appends the batches of its
//! leader (`following`).
//!
//! The threads of [`data_dir::opener`] open a log when it is first needed (`opening`). The threads of
//! [`data_dir::flusher`] flush it. When a topic is deleted, its logs are retired: closed, and their directories renamed
//! (`retire`). All replicas in a data directory share one [`data_dir::LogDir`].
//!
//! An unused replica needs a few hundred bytes of memory. Its directory is read at the first use, and created at the
//! first write.
//!
//! Locks: `state` protects all data that changes. Fetches read the files without this lock. `renaming` must be locked
//! before `state`.
//!
//! Invariant: once a batch is acknowledged, the log contains the complete batch at the acknowledged offset. If the
//! response promises a flush or other replicas, the batch is also on the disk or on those replicas.

mod append;
pub(crate) mod data_dir;
mod failing;
mod flushing;
pub(crate) mod follower_reads;
pub(crate) mod following;
mod hung;
mod opening;
mod out_of_order;
pub(crate) mod phase;
pub(crate) mod read;
mod retire;
mod role;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod times;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use fullbore_rules::cluster::ResignedLog;
use fullbore_rules::replica::{self as rules, LocalLog, PartitionRegistration};
use fullbore_rules::sequence::{PastTopic, RefusedBatches};
use fullbore_wire::Uuid;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;

use data_dir::LogDir;
use data_dir::checkpoints::{Noted, TopicPartition};
use data_dir::opener::OpeningMarks;
use fullbore_config::TopicConfig;
use fullbore_log::aside::SetAside;
use fullbore_log::direct_io::DirectReads;
use fullbore_log::files::partition_dir;
use fullbore_log::partition::waiters::{Registration, Waiters};
use fullbore_log::recovery::RecoveryHint;
use phase::{PhaseCell, PhaseView};
use state::{Flushing, LogState, ReplicaState};

/// This broker's replica of one partition. Calls may block on the disk, except the async functions of `opening`.
/// The first call may block for as long as a recovery takes.
#[derive(Debug)]
pub struct Replica {
    topic: Arc<str>,
    topic_id: Uuid,
    index: i32,
    log_dir: Arc<LogDir>,
    /// The topic's settings. They are outside of `state`, so that a change of settings does not wait for that lock.
    config: RwLock<Arc<TopicConfig>>,
    /// The partition's registration in the newest metadata image.
    registered: RwLock<Arc<PartitionRegistration>>,
    /// True if `config` or `registered` has changed, and the new values are not applied to `state` yet.
    has_news: AtomicBool,
    state: Mutex<ReplicaState>,
    /// Held while files of the log are renamed without the lock of `state`. A truncation also holds this lock, because
    /// its new files may get the names of old ones. Must be taken before `state`.
    renaming: Mutex<()>,
    /// Notified when a thread has finished opening or creating the log.
    opening_ended: Condvar,
    /// The variant of [`LogState`] that `state` contains, and whether the partition is deleted. Can be read without the
    /// lock.
    phase: PhaseCell,
    /// Flags that show which of the opener's queues contain this replica.
    requested: OpeningMarks,
    /// True if the log, when it was opened, lacked committed records at its end that no other replica had either.
    lacks_committed: AtomicBool,
    /// A deleted partition whose directory may still have the name that this partition needs.
    name_holder: Mutex<Option<Arc<Replica>>>,
    /// True if a deleted partition with this name and number had a log while this process ran, or has left the last
    /// sequences of its producers.
    pub(crate) is_preceded: bool,
    /// The last deleted topic that had a partition with this name and number, if the metadata still lists that topic.
    past: Option<Box<PastTopic>>,
    /// The version of the image in which the partition was deleted. [`NOT_DELETED`] while the partition exists.
    deleted_at: AtomicU64,
    /// An upper bound: all producer ids that were allocated before the partition was created are smaller.
    producer_ids_below: i64,
    /// The outcome of the retirement: `None` before it, and `Some(false)` if the directory could not be renamed. A
    /// thread holds this lock while it renames the directory.
    retired: Mutex<Option<bool>>,
    waiters: Arc<Waiters>,
    /// Refused batches of idempotent producers, which the producers will send again.
    refused: Mutex<RefusedBatches>,
}

/// The value of [`Replica::deleted_at`] for a partition that is not deleted.
const NOT_DELETED: u64 = u64::MAX;

/// The deleted predecessor of a new partition, with the same topic name and partition number.
#[derive(Debug, Default)]
pub struct Before {
    /// The deleted partition, if its directory might not have been renamed yet.
    pub replica: Option<Arc<Replica>>,
    /// The last deleted topic that had a partition with that name and number, if the metadata still lists the topic.
    pub topic: Option<PastTopic>,
}

impl Replica {
    /// Creates a replica without reading its directory.
    pub(crate) fn new(
        (topic, topic_id, index): (Arc<str>, Uuid, i32),
        log_dir: Arc<LogDir>,
        (config, registered): (Arc<TopicConfig>, Arc<PartitionRegistration>),
        known: Option<RecoveryHint>,
        Before { replica: name_holder, topic: past }: Before,
    ) -> Replica {
        let key = (topic.to_string(), index);
        // A partition without a recovery hint is new and has no directory. Any checkpoints under its name belong to a
        // deleted partition.
        let log = if known.is_some() { LogState::Unopened } else { LogState::Absent };
        if known.is_none() {
            log_dir.checkpoints.forget(key.clone());
        }
        let had_log = |before: &Arc<Replica>| before.is_preceded || !before.phase().is_absent();
        let is_preceded = name_holder.as_ref().is_some_and(had_log) || log_dir.carried_tails.has(&key);
        // The first lock of the state replaces these values, because `has_news` is set.
        let settings = rules::ReplicaSettings { min_insync_replicas: 1, replica_lag_time_max_ms: i64::MAX };
        let phase = PhaseCell::new(log.phase());
        let state = ReplicaState {
            known: known.unwrap_or(RecoveryHint::NOTHING),
            log,
            has_cut_to_checkpoint: false,
            parked: None,
            role: rules::Partition::new(log_dir.cluster.node_id, LocalLog::default(), settings),
            flush: Flushing::default(),
            failed: None,
            failing: None,
            open_failure: None,
        };
        Replica {
            topic,
            topic_id,
            index,
            is_preceded,
            past: past.map(Box::new),
            deleted_at: AtomicU64::new(NOT_DELETED),
            producer_ids_below: log_dir.carried_tails.producer_ids_below(),
            log_dir,
            config: RwLock::new(config),
            registered: RwLock::new(registered),
            has_news: AtomicBool::new(true),
            phase,
            state: Mutex::new(state),
            renaming: Mutex::default(),
            opening_ended: Condvar::new(),
            requested: OpeningMarks::default(),
            lacks_committed: AtomicBool::new(false),
            name_holder: Mutex::new(name_holder),
            retired: Mutex::new(None),
            waiters: Arc::default(),
            refused: Mutex::default(),
        }
    }

    /// Returns the topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn topic_name(&self) -> Arc<str> {
        self.topic.clone()
    }

    /// Returns the topic's id.
    pub fn topic_id(&self) -> Uuid {
        self.topic_id
    }

    /// Returns the partition's number.
    pub fn index(&self) -> i32 {
        self.index
    }

    /// Returns the topic's current settings.
    pub fn config(&self) -> Arc<TopicConfig> {
        self.config.read().clone()
    }

    /// Returns the phase of the log, and whether the partition is deleted. Takes no lock.
    pub fn phase(&self) -> PhaseView {
        self.phase.load()
    }

    /// Returns the state of direct reads, which bypass the page cache.
    pub(crate) fn cold(&self) -> &DirectReads {
        &self.log_dir.cold
    }

    /// Returns the number and size of the files that a recovery after a power loss has set aside. Reads the disk if
    /// there may be any.
    pub fn set_aside(&self) -> SetAside {
        self.log_dir.aside.of(&self.dir())
    }

    /// Returns true if the log's files are damaged. A damaged log is neither read nor written until it is repaired.
    pub fn is_refused(&self) -> bool {
        matches!(self.lock().log, LogState::Refused(_))
    }

    /// Returns true if this replica must leave the ISR and, as a follower, must not fetch records. This is so after a
    /// failed write or fsync, and if the log is damaged. It is also so if no file can be created in the log's
    /// directory, or if committed records are missing or cannot be read.
    pub fn takes_no_records(&self) -> bool {
        let state = self.lock();
        state.failed.is_some() || state.is_unwritable()
    }

    /// If this broker must resign from the partition, returns how complete its log is. Otherwise returns `None`. An
    /// open log that is not broken is `Whole`. Any other log is `EndMissing` if it certainly lacks records at its end,
    /// and `Unsure` if it may lack some. With an `EndMissing` or `Unsure` log the broker also leaves the ELR, because a
    /// replica in the ELR may become leader.
    pub(crate) fn resigned_log(&self) -> Option<ResignedLog> {
        let state = self.lock();
        let is_whole = state.failed.is_none() && matches!(state.log, LogState::Open(_));
        let log = match is_whole {
            true => ResignedLog::Whole,
            false if state.lacks_its_end() => ResignedLog::EndMissing,
            false => ResignedLog::Unsure,
        };
        (state.failed.is_some() || state.is_unwritable()).then_some(log)
    }

    /// Breaks the log, as a failed write would.
    #[cfg(test)]
    pub(crate) fn break_down(&self) {
        let mut state = self.lock();
        if let LogState::Open(log) = &mut state.log {
            log.give_up();
        }
        state.mark_if_broken(&self.log_dir.flusher.failures);
    }

    /// Registers `waiter`, to be woken each time the log, the high watermark or the role changes, when an opening ends,
    /// and when the partition is deleted. The registration ends when the caller drops the result. Register first, then
    /// check, then wait; otherwise a change may be missed.
    pub fn register(&self, waiter: &Arc<Notify>) -> Registration {
        Registration::new(&self.waiters, waiter)
    }

    /// Returns the partition's directory.
    pub(crate) fn dir(&self) -> Arc<Path> {
        partition_dir(&self.log_dir.path, &self.topic, self.index).into()
    }
}

impl Replica {
    /// Locks the state without applying new metadata, for callers that do not use the role.
    pub(crate) fn lock_as_it_is(&self) -> MutexGuard<'_, ReplicaState> {
        self.state.lock()
    }

    /// Like [`Replica::lock_as_it_is`], but returns `None` if another thread holds the lock.
    pub(crate) fn try_lock_as_it_is(&self) -> Option<MutexGuard<'_, ReplicaState>> {
        self.state.try_lock()
    }

    /// Returns true if the log was used in the last `rounds` rounds of housekeeping, or if another thread has locked
    /// it.
    pub(crate) fn is_in_use(&self, rounds: u32) -> bool {
        self.try_lock_as_it_is()
            .is_none_or(|state| matches!(&state.log, LogState::Open(log) if log.idle_rounds() < rounds))
    }
}

impl Replica {
    /// Returns the number of records between the last stable offset and the high watermark. Returns `None` if this
    /// broker does not lead, if the log is not open, or if another thread holds the lock.
    pub(crate) fn stable_lag(&self) -> Option<u64> {
        self.leads_in()?;
        let mut state = self.try_lock_as_it_is()?;
        let high_watermark = state.role.high_watermark();
        let LogState::Open(log) = &mut state.log else { return None };
        u64::try_from(high_watermark - log.last_stable_offset(high_watermark)).ok()
    }
}

/// Values that the checkpoint files need.
impl Replica {
    /// Returns the topic's name and the partition's number, which are the key of this partition's checkpoints.
    pub(crate) fn key(&self) -> TopicPartition {
        (self.topic.to_string(), self.index)
    }

    /// Returns the offsets to be checkpointed, or `None` if the log is not open.
    pub(crate) fn noted(&self) -> Option<Noted> {
        let state = self.state.lock();
        match &state.log {
            LogState::Open(log) => Some(Noted {
                recovery_point: log.recovery_point(),
                log_start: log.log_start(),
                high_watermark: state.role.high_watermark(),
            }),
            _ => None,
        }
    }
}
