//! Coordinator of consumer groups: finds a group, locks it, passes an event to its state machine, and carries out the
//! effects.
//!
//! Not here: the decisions (`rules::group`). The effects of one group are carried out in order: an effect that must
//! first be written delays the later effects of its group, and of no other. No lock is held across an await, so the
//! group takes further events while a snapshot is written, and queues their effects. Groups and their commits are
//! stored in `__consumer_offsets`, through [`coordinator`](crate::coordinator).
//!
//! Invariant: each request gets one answer, from its group or at the latest from [`Groups::close`].

mod clock;
mod commit;
mod due;
mod entry;
mod expiry;
mod keep;
mod load;
mod offsets;
mod re2;
mod records;
mod regex;
mod replayed;
mod start;
#[cfg(test)]
mod tests;
mod timer;
mod transactional;

pub use commit::{COMMIT_BYTES_MAX, DeleteOffset, PendingCommit};
pub use entry::PendingAnswer;
pub use offsets::{
    CommitOffset, CommittedOffsets, GroupOffsets, OffsetAndMetadata, OffsetsView, TopicName, TopicOffsets,
};
pub use regex::TopicRegex;

use crate::coordinator::{CoordinatorTopic, InternalTopicSettings, Shard, Status};
use crate::partitions::{AppendError, Partitions};
use clock::GroupClock;
use entry::{Entry, EntryState};
use fullbore_config::{BrokerConfig, OffsetsTopicConfig};
use fullbore_control::{CONSUMER_OFFSETS, Control, Image};
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_host::metrics::Metrics;
use fullbore_rules::group::{Effects, Group, GroupAnswer, GroupSettings, GroupState, RequestTicket};
use fullbore_wire::{ErrorCode, Text};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use timer::Timer;

/// Treatment of an event for a group that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Creation of the group, which begins with this event.
    Create,
    /// Refusal of the event with this code.
    Refuse(ErrorCode),
}

/// Largest request of a member, in bytes, that is accepted even past `fullbore.groups.bytes.max`, such as a
/// subscription to some topics.
const SMALL_BYTES: usize = 64 * 1024;

/// All groups of this broker.
pub struct Groups {
    table: Mutex<HashMap<Text, Arc<Entry>>>,
    groups_max: usize,
    bytes_max: usize,
    /// Bytes that all groups hold for their members.
    bytes: AtomicUsize,
    settings: GroupSettings,
    control: Control,
    /// `__consumer_offsets`.
    topic: CoordinatorTopic,
    offsets: CommittedOffsets,
    offsets_max: usize,
    metadata_bytes_max: usize,
    /// Number of offsets in commits under way that replace no other offset.
    offsets_coming: AtomicUsize,
    /// Bytes of the metadata of all offsets in commits under way.
    metadata_bytes_coming: AtomicUsize,
    /// Bytes of the records of commits under way.
    bytes_coming: AtomicUsize,
    metrics: Metrics,
    timer: Timer,
    /// True once the broker stops: requests no longer wait.
    closed: AtomicBool,
    clock: GroupClock,
    /// Rate limit of the log line for a snapshot that could not be written.
    unkept: LogRateLimit,
    /// Rate limit of the log line for a group over the limit.
    uncounted: LogRateLimit,
    /// Rate limit of the log line for a request without memory.
    unheld: LogRateLimit,
    /// Rate limit of the log line for committed offsets over their limits.
    unfit: LogRateLimit,
}

impl Groups {
    /// Creates a coordinator without groups; [`Groups::start`] loads them.
    pub fn new(config: &BrokerConfig, control: Control, logs: Arc<Partitions>, metrics: Metrics) -> Arc<Groups> {
        Groups::by(GroupClock::start(), config, control, logs, metrics)
    }

    fn by(
        clock: GroupClock,
        config: &BrokerConfig,
        control: Control,
        logs: Arc<Partitions>,
        metrics: Metrics,
    ) -> Arc<Groups> {
        Arc::new(Groups {
            table: Mutex::default(),
            groups_max: config.groups.groups_max,
            bytes_max: config.groups.groups_bytes_max,
            bytes: AtomicUsize::new(0),
            settings: config.groups.settings(),
            topic: CoordinatorTopic::new(offsets_topic(&config.groups.offsets_topic), control.clone(), logs),
            control,
            offsets: CommittedOffsets::default(),
            offsets_max: config.groups.offsets.offsets_max,
            metadata_bytes_max: config.groups.offsets.all_metadata_max_bytes,
            offsets_coming: AtomicUsize::new(0),
            metadata_bytes_coming: AtomicUsize::new(0),
            bytes_coming: AtomicUsize::new(0),
            metrics,
            timer: Timer::default(),
            closed: AtomicBool::new(false),
            clock,
            unkept: LogRateLimit::default(),
            uncounted: LogRateLimit::default(),
            unheld: LogRateLimit::default(),
            unfit: LogRateLimit::default(),
        })
    }

    /// Returns the committed offsets. A client whose commit was acknowledged sees that commit or a newer one.
    pub fn offsets(&self) -> &CommittedOffsets {
        &self.offsets
    }

    /// Returns the shard of a group.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE if the topic does not exist; the code of `InternalTopic::serving` if the group's shard
    /// does not serve here.
    fn serving(&self, id: &str) -> Result<Arc<Shard>, ErrorCode> {
        let topic = self.topic.read();
        topic.as_ref().ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?.serving(id).cloned()
    }

    /// Checks that this broker serves the group's shard. Succeeds if there is no topic, because there are no groups
    /// without it.
    ///
    /// # Errors
    /// The code of `InternalTopic::serving` if the group's shard does not serve here.
    pub fn check(&self, id: &str) -> Result<(), ErrorCode> {
        self.topic.read().as_ref().map_or(Ok(()), |topic| topic.serving(id).map(drop))
    }

    /// Returns the result of `see` if the group's shard serves before and after the call. A shard that is left during
    /// the call is emptied, and would look as if it had no groups.
    ///
    /// # Errors
    /// The code of `InternalTopic::serving` if the group's shard does not serve here, or was left during the call.
    fn while_serving<T>(&self, id: &str, see: impl FnOnce() -> T) -> Result<T, ErrorCode> {
        let shard = self.topic.read().as_ref().map(|topic| topic.serving(id).cloned()).transpose()?;
        let seen = see();
        if shard.is_some_and(|shard| shard.status() != Status::Serving) {
            // The shard was left, and its partition may be served here again already.
            return Err(self.check(id).err().unwrap_or(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
        }
        Ok(seen)
    }

    /// Checks that all groups are loaded.
    ///
    /// # Errors
    /// COORDINATOR_LOAD_IN_PROGRESS while a shard is being loaded.
    pub fn check_all(&self) -> Result<(), ErrorCode> {
        let topic = self.topic.read();
        let is_loading = topic.as_ref().is_some_and(|topic| topic.is_loading());
        if is_loading { Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS) } else { Ok(()) }
    }

    /// Returns the time for deadlines, from a clock that only goes forward. Offset commits are stamped with the system
    /// clock's time instead.
    pub fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Passes an event to a group, once groups are loaded, and waits for the answer.
    pub async fn ask(
        self: &Arc<Self>,
        id: &Text,
        missing: Missing,
        event: impl FnOnce(&mut Group, RequestTicket, i64, &mut Effects) + Send,
    ) -> GroupAnswer {
        match self.prepare(missing, [id]).await {
            Ok(()) => self.put_to(id, missing, event).answer().await,
            Err(code) => GroupAnswer::Refused(code),
        }
    }

    /// Passes an event to a group. The event gets the ticket of its answer.
    fn put_to(
        self: &Arc<Self>,
        id: &Text,
        missing: Missing,
        event: impl FnOnce(&mut Group, RequestTicket, i64, &mut Effects),
    ) -> PendingAnswer {
        loop {
            let found = match missing {
                Missing::Create => self.create_entry(id),
                Missing::Refuse(code) => self.while_serving(id, || self.find(id)).and_then(|found| found.ok_or(code)),
            };
            let entry = match found {
                Ok(entry) => entry,
                Err(code) => return PendingAnswer::refused(code),
            };
            let mut inner = entry.lock();
            if self.closed.load(Ordering::SeqCst) {
                return PendingAnswer::refused(ErrorCode::COORDINATOR_NOT_AVAILABLE);
            }
            // The group may have been taken out of service, and out of the table, between the search and the lock.
            if inner.is_gone {
                continue;
            }
            let (ticket, pending) = inner.ticket();
            self.happen(&entry, inner, |group, now, effects| event(group, ticket, now, effects));
            return pending;
        }
    }

    /// Returns true if `incoming_bytes` still fit (`fullbore.groups.bytes.max`). Small requests of members always fit,
    /// since the members' bytes are counted already.
    pub fn has_room(&self, incoming_bytes: usize, is_member: bool) -> bool {
        let fits = self.bytes.load(Ordering::Relaxed).saturating_add(incoming_bytes) <= self.bytes_max;
        if !fits && let Some(left_out) = self.unheld.due() {
            tracing::warn!(
                incoming_bytes,
                is_member,
                left_out,
                "cannot hold more memory for groups: larger requests are refused; raise fullbore.groups.bytes.max"
            );
        }
        fits || (is_member && incoming_bytes <= SMALL_BYTES)
    }

    /// Updates the count of the bytes that the group holds.
    fn note_bytes(&self, inner: &mut EntryState) {
        let (before, now) = (inner.bytes, inner.group.bytes());
        inner.bytes = now;
        // Modulo 2^64, as atomics are: a decrease is the addition of its complement.
        self.bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Returns the result of `read` on a group; `None` if there is no such group.
    ///
    /// # Errors
    /// The code of `InternalTopic::serving` if the group's shard does not serve here, or was left during the call.
    pub fn inspect<T>(&self, id: &str, read: impl FnOnce(&Group) -> T) -> Result<Option<T>, ErrorCode> {
        self.while_serving(id, || self.peek(id, read))
    }

    /// Returns the result of `read` on a group's offsets, if the group allows it. A group that does not exist has no
    /// offsets.
    ///
    /// # Errors
    /// The code of `InternalTopic::serving` if the group's shard does not serve here, or was left during the call; the
    /// code that `allows` returns.
    pub fn committed<T>(
        &self,
        id: &str,
        allows: impl FnOnce(&Group) -> Result<(), ErrorCode>,
        read: impl FnOnce(OffsetsView<'_>) -> T,
    ) -> Result<T, ErrorCode> {
        self.while_serving(id, || {
            self.peek(id, allows).unwrap_or(Ok(()))?;
            Ok(self.offsets.view(id, read))
        })?
    }

    /// Returns the result of `read` on a group; `None` if there is no such group here.
    pub fn peek<T>(&self, id: &str, read: impl FnOnce(&Group) -> T) -> Option<T> {
        let entry = self.find(id)?;
        let inner = entry.lock();
        (!inner.is_gone).then(|| read(&inner.group))
    }

    /// Returns the number of references to the group: the table's, and those of tasks and threads.
    #[cfg(test)]
    pub fn references(&self, id: &str) -> usize {
        let table = self.table.lock();
        table.get(id).map_or(0, Arc::strong_count)
    }

    /// Passes an event without a ticket to a group, such as the check of a commit. Returns its result; `None` if the
    /// group does not exist.
    ///
    /// # Errors
    /// Errors of `Groups::while_serving`, unless the group has taken the event.
    pub fn touch<T>(
        &self,
        id: &str,
        touch: impl FnOnce(&mut Group, &Arc<Shard>, i64) -> T,
    ) -> Result<Option<T>, ErrorCode> {
        self.touch_entry(id, |group, entry, now| touch(group, &entry.shard, now))
    }

    fn touch_entry<T>(
        &self,
        id: &str,
        touch: impl FnOnce(&mut Group, &Arc<Entry>, i64) -> T,
    ) -> Result<Option<T>, ErrorCode> {
        let mut touched = None;
        let serves = self.while_serving(id, || {
            let Some(entry) = self.find(id) else { return };
            let mut inner = entry.lock();
            if !inner.is_gone {
                touched = Some(touch(&mut inner.group, &entry, self.now_ms()));
                self.arm(&entry, &inner);
            }
        });
        // An event that the group has taken counts, whatever becomes of its shard.
        if touched.is_some() { Ok(touched) } else { serves.map(|()| None) }
    }

    /// Returns the settings of a group: the broker's, with the group's own timeouts.
    pub fn settings_of(&self, image: &Image, id: &str) -> GroupSettings {
        let mut settings = self.settings;
        let own = image.group_timeouts(id);
        settings.consumer.session_timeout_ms = own.consumer_session_timeout_ms;
        settings.consumer.heartbeat_interval_ms = own.consumer_heartbeat_interval_ms;
        settings.consumer.assignment_interval_ms = own.consumer_assignment_interval_ms;
        settings
    }

    /// Creates the group, empty, if it does not exist.
    ///
    /// # Errors
    /// GROUP_MAX_SIZE_REACHED if `fullbore.groups.max` groups exist; the code of `InternalTopic::serving` if the
    /// group's shard does not serve here.
    pub fn create(&self, id: &Text) -> Result<(), ErrorCode> {
        self.create_entry(id).map(drop)
    }

    /// Takes an empty group out of service and deletes it, with its offsets if `offsets`. Commits queued earlier are
    /// also deleted. A later commit creates the group again.
    ///
    /// # Errors
    /// GROUP_ID_NOT_FOUND if there is no such group; NON_EMPTY_GROUP if it has members. The code of a failed write,
    /// after which the group exists again if it has committed offsets.
    pub async fn delete(self: &Arc<Self>, id: &str, offsets: bool) -> Result<(), ErrorCode> {
        let entry = self.while_serving(id, || self.find(id))?.ok_or(ErrorCode::GROUP_ID_NOT_FOUND)?;
        let asked = {
            let mut inner = entry.lock();
            inner.group.check_delete()?;
            // Queued before a new group of this name can begin, so that the new group's records come after the
            // deletion.
            let asked = self.forget_group(&entry.shard, id, offsets);
            self.remove(&entry, &mut inner);
            asked
        };
        let deleted = asked.kept().await.map_err(not_kept).and_then(|deleted| deleted);
        if self.has_offsets(id) {
            // The deletion has failed, or a later commit has written offsets.
            self.create(&entry.id)?;
        }
        deleted.inspect_err(
            |error| tracing::error!(group = id, %error, "cannot delete a group: it stays with its offsets"),
        )
    }

    /// Returns the ids of all groups, in no order.
    pub fn ids(&self) -> Vec<Text> {
        self.table.lock().keys().cloned().collect()
    }

    /// Returns the number of groups in each state, in the order of [`GroupState::ALL`].
    pub fn count_by_state(&self) -> [usize; GroupState::ALL.len()] {
        let entries: Vec<_> = self.table.lock().values().cloned().collect();
        let mut counts = [0; GroupState::ALL.len()];
        for entry in entries {
            let state = entry.lock().group.state();
            let at = GroupState::ALL.iter().position(|known| *known == state).expect("every state is in the list");
            counts[at] += 1;
        }
        counts
    }

    /// Answers all waiting requests, and lets none wait from now on: a stop must not take as long as a rebalance.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let entries: Vec<_> = self.table.lock().values().cloned().collect();
        entries.iter().for_each(|entry| entry.lock().refuse_all());
    }

    fn find(&self, id: &str) -> Option<Arc<Entry>> {
        self.table.lock().get(id).cloned()
    }

    /// Creates a group in its shard, if it does not exist. Holds the topic's lock, because no group may be added to a
    /// shard that was left.
    fn create_entry(&self, id: &Text) -> Result<Arc<Entry>, ErrorCode> {
        let topic = self.topic.read();
        self.create_in(topic.as_ref().ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?.serving(id)?, id)
    }

    fn create_in(&self, shard: &Arc<Shard>, id: &Text) -> Result<Arc<Entry>, ErrorCode> {
        let mut table = self.table.lock();
        if let Some(entry) = table.get(id.as_str()) {
            return Ok(Arc::clone(entry));
        }
        if table.len() >= self.groups_max {
            if let Some(left_out) = self.uncounted.due() {
                tracing::warn!(
                    groups = table.len(),
                    left_out,
                    "cannot create a group: clients get GROUP_MAX_SIZE_REACHED; raise fullbore.groups.max"
                );
            }
            return Err(ErrorCode::GROUP_MAX_SIZE_REACHED);
        }
        // A copy, since the id shares memory with its frame.
        let id = Text::from(id.as_str());
        let entry = Entry::new(id.clone(), Group::new(self.settings, self.now_ms()), Arc::clone(shard));
        table.insert(id, Arc::clone(&entry));
        Ok(entry)
    }

    /// Removes a group that the caller has locked. No other function locks the table after an entry.
    fn remove(&self, entry: &Arc<Entry>, inner: &mut MutexGuard<'_, EntryState>) {
        inner.is_gone = true;
        let mut effects = Effects::new();
        inner.group.kill(ErrorCode::COORDINATOR_NOT_AVAILABLE, &mut effects);
        self.note_bytes(inner);
        effects.into_iter().for_each(|effect| inner.outbox.push_back(effect));
        self.drain_now(entry, inner);
        let mut table = self.table.lock();
        if table.get(&entry.id).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            table.remove(&entry.id);
        }
    }
}

/// Returns the settings of `__consumer_offsets`.
fn offsets_topic(config: &OffsetsTopicConfig) -> InternalTopicSettings {
    InternalTopicSettings {
        name: CONSUMER_OFFSETS,
        partitions: config.partitions,
        replication_factor: config.replication_factor,
        compression: config.compression,
        configs: config.configs(),
    }
}

/// Returns the code for a failed write: clients find the coordinator again and repeat the request.
fn not_kept(error: AppendError) -> ErrorCode {
    match error {
        AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::FENCED_LEADER_EPOCH) => {
            ErrorCode::NOT_COORDINATOR
        }
        // A commit in a transaction whose producer was fenced.
        AppendError::Sequence(refusal) => refusal.code(),
        // A commit whose transaction may have ended: the client commits again, which verifies the transaction again.
        AppendError::Unverified => ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        _ => ErrorCode::COORDINATOR_NOT_AVAILABLE,
    }
}
