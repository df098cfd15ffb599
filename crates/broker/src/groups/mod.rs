//! The coordinator of consumer groups. It finds and locks a group, passes an event to the group's state machine, and
//! carries out the effects. The state machine is in `rules::group`.
//!
//! The effects of one group are carried out in order. If the log must be written first, only later effects of the same
//! group are delayed, not those of other groups. No lock is held across an await. So a group accepts further events
//! while its records are written, and queues their effects. Groups and their commits are stored in `__consumer_offsets`
//! through [`coordinator`](crate::coordinator).
//!
//! Each request gets exactly one answer, from its group or at the latest from [`Groups::close`].

mod commit;
mod due;
mod entry;
mod expiry;
mod keep;
mod load;
mod offsets;
mod outbox;
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
use entry::{Entry, EntryState};
use fullbore_config::{BrokerConfig, OffsetsTopicConfig};
use fullbore_control::{CONSUMER_OFFSETS, Control, Image};
use fullbore_host::clock::SteadyClock;
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_host::metrics::Metrics;
use fullbore_rules::group::{Effects, Group, GroupAnswer, GroupSettings, GroupState, RequestTicket};
use fullbore_wire::{ErrorCode, Text, Uuid};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use timer::Timer;

/// How to treat an event for a group that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Create the group, which begins with this event.
    Create,
    /// Refuse the event with this error.
    Refuse(ErrorCode),
}

/// Maximum size of a member's request, such as a subscription to some topics, that is accepted even beyond
/// `fullbore.groups.bytes.max`.
const SMALL_BYTES: usize = 64 * 1024;

/// All groups that this broker coordinates.
pub struct Groups {
    table: Mutex<HashMap<Text, Arc<Entry>>>,
    groups_max: usize,
    bytes_max: usize,
    /// How many bytes of memory all groups use for their members.
    bytes: AtomicUsize,
    settings: GroupSettings,
    control: Control,
    /// The internal topic `__consumer_offsets`.
    topic: CoordinatorTopic,
    offsets: CommittedOffsets,
    offsets_max: usize,
    metadata_bytes_max: usize,
    /// Number of offsets in all commits in flight that do not replace an earlier offset.
    offsets_coming: AtomicUsize,
    /// Size of the metadata in all commits in flight.
    metadata_bytes_coming: AtomicUsize,
    /// Size of the records of all commits in flight.
    bytes_coming: AtomicUsize,
    metrics: Metrics,
    timer: Timer,
    /// True once the broker is stopping. Every request that needs an answer from a group is then refused.
    closed: AtomicBool,
    clock: SteadyClock,
    /// Limits how often it is logged that records of a group could not be written.
    unkept: LogRateLimit,
    /// Limits how often it is logged that `fullbore.groups.max` is reached.
    uncounted: LogRateLimit,
    /// Limits how often it is logged that `fullbore.groups.bytes.max` is reached.
    unheld: LogRateLimit,
    /// Limits how often it is logged that committed offsets have reached their limits.
    unfit: LogRateLimit,
}

impl Groups {
    /// Creates a coordinator without groups. [`Groups::start`] loads them.
    pub fn new(config: &BrokerConfig, control: Control, logs: Arc<Partitions>, metrics: Metrics) -> Arc<Groups> {
        Groups::by(SteadyClock::start(), config, control, logs, metrics)
    }

    fn by(
        clock: SteadyClock,
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

    /// Returns the committed offsets. A client that got the response to its commit finds that commit or a newer one
    /// here.
    pub fn offsets(&self) -> &CommittedOffsets {
        &self.offsets
    }

    /// Returns the shard of a group.
    ///
    /// # Errors
    /// Fails as `InternalTopic::serving` does, and with COORDINATOR_NOT_AVAILABLE if the topic does not exist.
    fn serving(&self, id: &str) -> Result<Arc<Shard>, ErrorCode> {
        let topic = self.topic.read();
        topic.as_ref().ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?.serving(id).cloned()
    }

    /// Checks that this broker serves the group's shard. Without the topic there are no groups, so the check succeeds.
    ///
    /// # Errors
    /// Fails as `InternalTopic::serving` does.
    pub fn check(&self, id: &str) -> Result<(), ErrorCode> {
        self.topic.read().as_ref().map_or(Ok(()), |topic| topic.serving(id).map(drop))
    }

    /// Calls `see` and returns its result, if the group's shard is serving both before and after the call. If this
    /// broker leaves the shard during the call, its groups are removed, so `see` may wrongly find none.
    ///
    /// # Errors
    /// Fails as `InternalTopic::serving` does, both before and after the call.
    fn while_serving<T>(&self, id: &str, see: impl FnOnce() -> T) -> Result<T, ErrorCode> {
        let shard = self.topic.read().as_ref().map(|topic| topic.serving(id).cloned()).transpose()?;
        let seen = see();
        if shard.is_some_and(|shard| shard.status() != Status::Serving) {
            // If the check succeeds, this broker serves the partition again with a newer shard. The client must retry
            // even so.
            return Err(self.check(id).err().unwrap_or(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
        }
        Ok(seen)
    }

    /// Checks that all groups are loaded.
    ///
    /// # Errors
    /// Fails with COORDINATOR_LOAD_IN_PROGRESS while any shard is loading.
    pub fn check_all(&self) -> Result<(), ErrorCode> {
        let topic = self.topic.read();
        let is_loading = topic.as_ref().is_some_and(|topic| topic.is_loading());
        if is_loading { Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS) } else { Ok(()) }
    }

    /// Returns the present time for deadlines, from a clock that is never set back. The times of commits are from the
    /// system's clock instead.
    pub fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Waits until groups are loaded, passes an event to a group, and waits for its answer.
    pub async fn request(
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

    /// Passes an event to a group, with the ticket under which the group will send its answer.
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
            // If the group was removed after the lookup, looks it up again.
            if inner.is_gone {
                continue;
            }
            let (ticket, pending) = inner.ticket();
            self.happen(&entry, inner, |group, now, effects| event(group, ticket, now, effects));
            return pending;
        }
    }

    /// Returns true if `incoming_bytes` more fit into `fullbore.groups.bytes.max`. A small request of a member is
    /// always accepted, because the memory of the member is already counted.
    pub fn has_room(&self, incoming_bytes: usize, is_member: bool) -> bool {
        let fits = self.bytes.load(Ordering::Relaxed).saturating_add(incoming_bytes) <= self.bytes_max;
        if !fits && let Some(left_out) = self.unheld.due() {
            tracing::warn!(
                incoming_bytes,
                is_member,
                left_out,
                "the memory for groups is used up: new members and large requests are refused; raise \
                 fullbore.groups.bytes.max"
            );
        }
        fits || (is_member && incoming_bytes <= SMALL_BYTES)
    }

    /// Updates the group's share of [`Groups::bytes`].
    fn note_bytes(&self, inner: &mut EntryState) {
        let (before, now) = (inner.bytes, inner.group.bytes());
        inner.bytes = now;
        // If the share has decreased, the difference wraps around, and so does the addition.
        self.bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Calls `read` with a group and returns its result. `None` if there is no such group.
    ///
    /// # Errors
    /// Fails as `Groups::while_serving` does.
    pub fn inspect<T>(&self, id: &str, read: impl FnOnce(&Group) -> T) -> Result<Option<T>, ErrorCode> {
        self.while_serving(id, || self.peek(id, read))
    }

    /// Calls `read` with a group's offsets and returns its result, if `allows` permits it. If the group does not exist,
    /// `allows` is not called and there are no offsets.
    ///
    /// # Errors
    /// Fails as `Groups::while_serving` and `allows` do.
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

    /// Calls `read` with a group and returns its result. `None` if there is no such group in memory. Does not check
    /// that the group's shard is serving.
    pub fn peek<T>(&self, id: &str, read: impl FnOnce(&Group) -> T) -> Option<T> {
        let entry = self.find(id)?;
        let inner = entry.lock();
        (!inner.is_gone).then(|| read(&inner.group))
    }

    /// Returns how many references to the group exist: that of the table, and those of tasks and threads.
    #[cfg(test)]
    pub fn references(&self, id: &str) -> usize {
        let table = self.table.lock();
        table.get(id).map_or(0, Arc::strong_count)
    }

    /// Passes an event that gets no ticket to a group, such as the check of a commit. Returns the result of `touch`, or
    /// `None` if the group does not exist.
    ///
    /// # Errors
    /// Fails as `Groups::while_serving` does, but only if the event did not reach the group.
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
        // If `touch` was called, returns its result, even if the shard was left meanwhile.
        if touched.is_some() { Ok(touched) } else { serves.map(|()| None) }
    }

    /// Returns the settings of a group. Timeouts that are configured for the group override those of the broker.
    pub fn settings_of(&self, image: &Image, id: &str) -> GroupSettings {
        let mut settings = self.settings;
        let own = image.group_timeouts(id);
        settings.consumer.session_timeout_ms = own.consumer_session_timeout_ms;
        settings.consumer.heartbeat_interval_ms = own.consumer_heartbeat_interval_ms;
        settings.consumer.assignment_interval_ms = own.consumer_assignment_interval_ms;
        settings
    }

    /// Creates an empty group if it does not exist yet.
    ///
    /// # Errors
    /// Returns an error if there are already `fullbore.groups.max` groups, or if the group's shard is not serving.
    pub fn create(&self, id: &Text) -> Result<(), ErrorCode> {
        self.create_entry(id).map(drop)
    }

    /// Removes a group that was created for a commit whose offsets were all refused, unless the group is used by now.
    /// The log contains no record of such a group.
    fn remove_unused(&self, id: &str) {
        let Some(entry) = self.find(id) else { return };
        let mut inner = entry.lock();
        let is_used = inner.is_keeping || entry.commits.load(Ordering::Acquire) > 0 || self.has_offsets(id);
        if !inner.is_gone && !is_used && inner.group.check_delete().is_ok() {
            self.remove(&entry, &mut inner);
        }
    }

    /// Deletes a group that has no members. With `offsets`, also deletes its offsets, including those of commits that
    /// are still queued. A later commit creates the group again.
    ///
    /// # Errors
    /// Fails with GROUP_ID_NOT_FOUND if there is no such group, and with NON_EMPTY_GROUP if it has members. Returns the
    /// error of the write if it fails. If the group has committed offsets, it then exists again.
    pub async fn delete(self: &Arc<Self>, id: &str, offsets: bool) -> Result<(), ErrorCode> {
        let entry = self.while_serving(id, || self.find(id))?.ok_or(ErrorCode::GROUP_ID_NOT_FOUND)?;
        let requested = {
            let mut inner = entry.lock();
            inner.group.check_delete()?;
            // Queues the deletion before the group is removed. A new group with this name can only be created after
            // that, so its records come after the tombstones.
            let requested = self.forget_group(&entry.shard, id, inner.unwritten_parts(), offsets);
            self.remove(&entry, &mut inner);
            requested
        };
        let deleted = requested.kept().await.map_err(not_kept).and_then(|deleted| deleted);
        if self.has_offsets(id) {
            // The deletion has failed, or a later commit has written offsets. A group with offsets must exist.
            self.create(&entry.id)?;
        }
        deleted.inspect_err(
            |error| tracing::error!(group = id, %error, "cannot delete a group: it stays with its offsets"),
        )
    }

    /// Returns the ids of all groups, in arbitrary order.
    pub fn ids(&self) -> Vec<Text> {
        self.table.lock().keys().cloned().collect()
    }

    /// Returns how many groups are in each state, in the order of [`GroupState::ALL`].
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

    /// Refuses all waiting requests, and every later request that needs an answer from a group. Otherwise stopping the
    /// broker could take as long as a rebalance.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let entries: Vec<_> = self.table.lock().values().cloned().collect();
        entries.iter().for_each(|entry| entry.lock().refuse_all());
    }

    fn find(&self, id: &str) -> Option<Arc<Entry>> {
        self.table.lock().get(id).cloned()
    }

    /// Creates a group in its shard if it does not exist yet. Holds the topic's lock, so that this broker cannot leave
    /// the shard before the group is added.
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
        // Copies the id, which would otherwise keep its whole request in memory.
        let id = Text::from(id.as_str());
        let entry = Entry::new(id.clone(), Group::new(self.settings, self.now_ms()), Arc::clone(shard));
        table.insert(id, Arc::clone(&entry));
        Ok(entry)
    }

    /// Removes a group, which the caller has locked. This also locks the table. No deadlock is possible, because no
    /// function locks a group while it holds the table's lock.
    fn remove(&self, entry: &Arc<Entry>, inner: &mut MutexGuard<'_, EntryState>) {
        inner.is_gone = true;
        let mut effects = Effects::new();
        inner.group.kill(ErrorCode::COORDINATOR_NOT_AVAILABLE, &mut effects);
        self.note_bytes(inner);
        effects.into_iter().for_each(|effect| inner.outbox.push(effect));
        self.drain_now(entry, inner);
        let mut table = self.table.lock();
        if table.get(&entry.id).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            table.remove(&entry.id);
        }
    }
}

/// Returns a new random id for the records of a group's members and regular expressions (*parts*).
pub fn fresh_parts_id() -> Uuid {
    Uuid(uuid::Uuid::new_v4().into_bytes())
}

/// Returns how `__consumer_offsets` is created and written.
fn offsets_topic(config: &OffsetsTopicConfig) -> InternalTopicSettings {
    InternalTopicSettings {
        name: CONSUMER_OFFSETS,
        partitions: config.partitions,
        replication_factor: config.replication_factor,
        compression: config.compression,
        configs: config.configs(),
    }
}

/// Returns the error code for a write that failed, after which the client finds the coordinator anew and retries.
fn not_kept(error: AppendError) -> ErrorCode {
    match error {
        AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::FENCED_LEADER_EPOCH) => {
            ErrorCode::NOT_COORDINATOR
        }
        // The commit belongs to a transaction whose producer was fenced.
        AppendError::Sequence(refusal) => refusal.code(),
        // The transaction of the commit may have ended. The client retries, and the transaction is verified again.
        AppendError::Unverified => ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        _ => ErrorCode::COORDINATOR_NOT_AVAILABLE,
    }
}
