//! A partition's role on this broker, as the metadata tells it: whether it leads, up to where readers may see the log, and what
//! an answer to acks=all waits for.
//!
//! Not the decisions, which are [`fullbore_rules::replica`]'s. Who tells of new metadata waits for nobody: it leaves it beside
//! the partition, and whoever next locks the state takes it over first.
//!
//! Invariant: nothing is appended, read or answered by a role older than the newest that was told before the lock was taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use fullbore_rules::replica::{self, Acknowledgement, Brokers, LocalLog, Now, PartitionRegistration};
use fullbore_wire::ErrorCode;
use parking_lot::{MutexGuard, RwLock};
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::replica::{LogState, Partition, State};
use crate::config::TopicConfig;
use crate::log::error::{AppendError, FlushTicket, ReadError};
use crate::log::log::Log;

/// No brokers but this one matter to a leader without followers.
const NOBODY: &Brokers = &BTreeMap::new();

/// How far a batch must be before its append is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// In the leader's log.
    Leader,
    /// In the logs of all replicas in sync, which are at least the least ISR.
    All,
}

/// Who this broker is, and the others, as partitions need them.
#[derive(Debug)]
pub struct Cluster {
    pub node_id: i32,
    pub replica_lag_time_max_ms: i64,
    /// Where its milliseconds begin.
    began: Instant,
    brokers: RwLock<Arc<Brokers>>,
}

impl Cluster {
    /// This broker, before it has heard of any.
    pub fn new(node_id: i32, replica_lag_time_max_ms: i64) -> Cluster {
        Cluster { node_id, replica_lag_time_max_ms, began: Instant::now(), brokers: RwLock::default() }
    }

    /// Those that there are now.
    pub fn put_brokers(&self, brokers: &Arc<Brokers>) {
        *self.brokers.write() = Arc::clone(brokers);
    }

    /// What holds at this moment.
    fn at_this_moment<T>(&self, what: impl FnOnce(&Now<'_>) -> T) -> T {
        let brokers = Arc::clone(&self.brokers.read());
        let broker_epoch = brokers.get(&self.node_id).map_or(replica::NO_BROKER_EPOCH, |own| own.epoch);
        let ms = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        what(&Now { ms, broker_epoch, brokers: &brokers })
    }
}

/// Partitions of a new topic, all on this broker and led by it.
pub fn led_by(node_id: i32, partitions: i32) -> Vec<Arc<PartitionRegistration>> {
    let registered = PartitionRegistration {
        replicas: vec![node_id],
        isr: vec![node_id],
        leader: Some(node_id),
        ..PartitionRegistration::default()
    };
    // They are alike, and share one.
    let registered = Arc::new(registered);
    (0..partitions).map(|_| Arc::clone(&registered)).collect()
}

/// What an answer waits for: first that the batch is on the disk, where the topic asks for that, and then that it is on every
/// replica in sync, where the client does.
#[derive(Debug, Clone)]
pub struct Ticket {
    pub(crate) flushed: Option<FlushTicket>,
    pub(crate) replicated: Option<ReplicationTicket>,
}

impl Ticket {
    /// Waits for all of it; for the replicas not longer than until then.
    ///
    /// # Errors
    /// [`AppendError`]; the batch is in the leader's log all the same, and may be lost.
    pub async fn wait(self, deadline: tokio::time::Instant) -> Result<(), AppendError> {
        if let Some(flushed) = self.flushed {
            flushed.wait().await?;
        }
        match self.replicated {
            Some(replicated) => timeout_at(deadline, replicated.wait())
                .await
                .unwrap_or(Err(AppendError::Role(ErrorCode::REQUEST_TIMED_OUT))),
            None => Ok(()),
        }
    }
}

/// Resolves when a batch is on every replica in sync, or it is known that it may never be.
#[derive(Debug, Clone)]
pub struct ReplicationTicket {
    partition: Arc<Partition>,
    leader_epoch: i32,
    /// The offset after the batch.
    end_offset: i64,
}

impl ReplicationTicket {
    /// Waits for it, for as long as this broker leads.
    ///
    /// # Errors
    /// [`AppendError`]; the batch is in the log, and may be lost.
    pub async fn wait(self) -> Result<(), AppendError> {
        let waiter = Arc::new(Notify::new());
        let registered = self.partition.register(&waiter);
        loop {
            if registered.is_over() || self.partition.log_dir.opener.is_stopping() {
                return Err(AppendError::Gone);
            }
            match self.partition.acknowledgement(self.leader_epoch, self.end_offset) {
                Acknowledgement::Wait => waiter.notified().await,
                Acknowledgement::Done => return Ok(()),
                Acknowledgement::Refused(code) => return Err(AppendError::Role(code)),
            }
        }
    }
}

impl State {
    /// What holds for a leader. Only with followers does it depend on the time.
    pub(crate) fn with_now<T>(
        &mut self,
        cluster: &Cluster,
        what: impl FnOnce(&mut replica::Partition, &Now<'_>) -> T,
    ) -> T {
        if self.replica.has_followers() {
            return cluster.at_this_moment(|now| what(&mut self.replica, now));
        }
        what(&mut self.replica, &Now { ms: 0, broker_epoch: replica::NO_BROKER_EPOCH, brokers: NOBODY })
    }

    /// Whether a batch may be appended.
    pub(crate) fn check_append(&self, acks: Acks) -> Result<(), AppendError> {
        self.replica.check_append(acks == Acks::All).map_err(AppendError::Role)
    }
}

impl Partition {
    /// From now on the metadata says this of the partition, and these settings are in force. Waits for nobody.
    pub fn follow(&self, registered: &Arc<PartitionRegistration>, config: &Arc<TopicConfig>) {
        let is_same = Arc::ptr_eq(&self.registered.read(), registered) && Arc::ptr_eq(&self.config.read(), config);
        if !is_same {
            *self.config.write() = Arc::clone(config);
            *self.registered.write() = Arc::clone(registered);
            self.note_news();
        }
    }

    /// Who has the partition and leads it, as far as this broker knows.
    pub fn registered(&self) -> Arc<PartitionRegistration> {
        Arc::clone(&self.registered.read())
    }

    /// Has whoever next locks the state take over role and settings.
    fn note_news(&self) {
        // As the count of waiters is: who registers before this count is looked at is woken, and who does after that sees the news.
        self.has_news.store(true, SeqCst);
        // If somebody has it locked, whoever waits for something looks again, and takes them over.
        if let Some(mut state) = self.state.try_lock() {
            self.catch_up(&mut state);
        }
        self.waiters.wake();
    }

    /// The state, by the newest metadata.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        self.catch_up(&mut state);
        state
    }

    /// Takes over what was told since the state was last locked.
    pub(crate) fn catch_up(&self, state: &mut State) {
        if !self.has_news.load(SeqCst) {
            return;
        }
        // Before the look: what is told meanwhile is looked at again.
        self.has_news.swap(false, SeqCst);
        let (settings, registered) = (self.replica_settings(), self.registered());
        let has_moved = self.log_dir.cluster.at_this_moment(|now| {
            let configured = state.replica.configure(settings, now);
            let applied = state.replica.apply(&registered, now);
            configured.high_watermark.or(applied.high_watermark).is_some() || applied.role.is_some()
        });
        if !state.replica.is_leader()
            && let Some(parked) = state.parked.take()
        {
            parked.refuse(AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        }
        if has_moved {
            self.waiters.wake();
        }
    }

    fn replica_settings(&self) -> replica::Settings {
        replica::Settings {
            min_insync_replicas: self.config().min_insync_replicas,
            replica_lag_time_max_ms: self.log_dir.cluster.replica_lag_time_max_ms,
        }
    }

    /// The role over a log that has just been opened or made.
    pub(crate) fn role_over(&self, log: &Log) -> replica::Partition {
        let high_watermark = self.log_dir.checkpoints.high_watermark(&self.key());
        let found = LocalLog { start_offset: log.log_start, end_offset: log.log_end, high_watermark };
        let mut replica = replica::Partition::new(self.log_dir.cluster.node_id, found, self.replica_settings());
        let registered = self.registered();
        // Whoever waits for this log is woken once it is open.
        let _ = self.log_dir.cluster.at_this_moment(|now| replica.apply(&registered, now));
        replica
    }

    /// Compares the leader epoch a client believes in with the one in force (KIP-320; -1 means it has none), and whether this
    /// broker leads.
    ///
    /// # Errors
    /// FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER.
    pub fn check_leads(&self, believed: i32) -> Result<(), ErrorCode> {
        let state = self.lock();
        state.replica.check_leader_epoch(believed)?;
        if state.replica.is_leader() { Ok(()) } else { Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) }
    }

    /// As leader: the end of what ListOffsets may tell (KIP-207).
    ///
    /// # Errors
    /// OFFSET_NOT_AVAILABLE while an earlier leader may have told a larger one; the disk; NOT_LEADER_OR_FOLLOWER.
    pub fn latest_offset(&self) -> Result<i64, ErrorCode> {
        let mut state = self.lock();
        self.log_to_read(&mut state).map_err(|error| ReadError::from(error).code())?;
        state.replica.latest_offset()
    }

    /// The epoch in which this broker leads, by what it was last told; `None` if it does not.
    pub fn leads_in(&self) -> Option<i32> {
        let registered = self.registered.read();
        (registered.leader == Some(self.log_dir.cluster.node_id)).then_some(registered.leader_epoch)
    }

    /// The epoch stamped on batches from now on.
    pub fn leader_epoch(&self) -> i32 {
        self.lock().replica.leader_epoch()
    }

    /// Waits until all that is in the log is on every replica in sync. Where this broker has the only one, that is so.
    ///
    /// # Errors
    /// [`AppendError::Role`], where another broker leads by now or too few are in sync.
    pub async fn replicated(self: &Arc<Self>) -> Result<(), AppendError> {
        let ticket = {
            let state = self.lock();
            match &state.log {
                LogState::Open(log) => self.replication(&state, Acks::All, log.log_end),
                _ => None,
            }
        };
        match ticket {
            Some(ticket) => ticket.wait().await,
            None => Ok(()),
        }
    }

    fn acknowledgement(&self, leader_epoch: i32, end_offset: i64) -> Acknowledgement {
        self.lock().replica.acknowledgement(leader_epoch, end_offset)
    }

    /// Has whoever waits look again.
    pub(crate) fn wake_waiters(&self) {
        self.waiters.wake();
    }

    /// What acks=all still waits for where a batch is in the leader's log.
    pub(crate) fn replication(
        self: &Arc<Self>,
        state: &State,
        acks: Acks,
        end_offset: i64,
    ) -> Option<ReplicationTicket> {
        let leader_epoch = state.replica.leader_epoch();
        let is_done = || state.replica.acknowledgement(leader_epoch, end_offset) == Acknowledgement::Done;
        let waits = acks == Acks::All && !is_done();
        waits.then(|| ReplicationTicket { partition: Arc::clone(self), leader_epoch, end_offset })
    }
}
