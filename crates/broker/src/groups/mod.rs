//! The coordinator of consumer groups: finds a group, locks it, puts an event to its machine, and does what follows.
//!
//! Not the decisions, which are `rules::group`'s. Effects of one group are done in the order its machine said them; one
//! that must be kept first holds back those after it, and nobody else. No lock is held across an await: while a
//! snapshot is being written, the group takes further events, whose effects queue up behind. Groups and what they
//! commit are kept in `__consumer_offsets`, by way of [`coordinator`](crate::coordinator).
//!
//! Invariant: whoever asks gets one answer: the group's, or at the latest that of [`Groups::close`].

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

/// Treatment of an event for a group that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The group begins with this event.
    Create,
    /// The event is answered so.
    Refuse(ErrorCode),
}

/// Bytes that a member may always bring, such as its subscription to some topics, as long as it brought no more before.
const SMALL_BYTES: usize = 64 * 1024;

/// Every group of this broker.
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
    /// Offsets on their way into the log that take a place.
    offsets_coming: AtomicUsize,
    /// Bytes of the metadata of all offsets on their way.
    metadata_bytes_coming: AtomicUsize,
    /// Bytes of the records of commits on their way.
    bytes_coming: AtomicUsize,
    metrics: Metrics,
    timer: Timer,
    /// Nobody is made to wait any more.
    closed: AtomicBool,
    clock: GroupClock,
    /// The line of a group that could not be kept.
    unkept: LogRateLimit,
    /// The line of a group that is one too many.
    uncounted: LogRateLimit,
    /// The line of a request that there is no memory for.
    unheld: LogRateLimit,
    /// The line of committed offsets that there is no room for.
    unfit: LogRateLimit,
}

impl Groups {
    /// No groups yet: see [`Groups::start`].
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

    /// Returns the committed offsets. A client whose commit was answered sees it, or a newer one.
    pub fn offsets(&self) -> &CommittedOffsets {
        &self.offsets
    }

    /// The shard that a group is in.
    ///
    /// # Errors
    /// COORDINATOR_LOAD_IN_PROGRESS; COORDINATOR_NOT_AVAILABLE.
    fn serving(&self, id: &str) -> Result<Arc<Shard>, ErrorCode> {
        let topic = self.topic.read();
        topic.as_ref().ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?.serving(id).cloned()
    }

    /// Checks that the state of a group is known here. Without the topic there are no groups.
    ///
    /// # Errors
    /// Errors of a request.
    pub fn check(&self, id: &str) -> Result<(), ErrorCode> {
        self.topic.read().as_ref().map_or(Ok(()), |topic| topic.serving(id).map(drop))
    }

    /// Returns what `see` finds while a group's shard serves. A shard that is left meanwhile is emptied, and looks as
    /// if there were nothing.
    ///
    /// # Errors
    /// Errors of a request.
    fn while_serving<T>(&self, id: &str, see: impl FnOnce() -> T) -> Result<T, ErrorCode> {
        let shard = self.topic.read().as_ref().map(|topic| topic.serving(id).cloned()).transpose()?;
        let seen = see();
        if shard.is_some_and(|shard| shard.status() != Status::Serving) {
            // Who leaves it is through with that then; it may be here again already.
            return Err(self.check(id).err().unwrap_or(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
        }
        Ok(seen)
    }

    /// Checks that all groups are known here.
    ///
    /// # Errors
    /// COORDINATOR_LOAD_IN_PROGRESS.
    pub fn check_all(&self) -> Result<(), ErrorCode> {
        let topic = self.topic.read();
        let is_loading = topic.as_ref().is_some_and(|topic| topic.is_loading());
        if is_loading { Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS) } else { Ok(()) }
    }

    /// The clock of deadlines: it only goes forward, and is not the system's, by which commits are stamped.
    pub fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Puts an event to a group, once groups are loaded, and waits for the answer.
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

    /// Puts an event to a group; the event is given the ticket by which its answer is awaited.
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
            // It may have been taken out of service between the search and the lock; it is not in the table then.
            if inner.is_gone {
                continue;
            }
            let (ticket, pending) = inner.ticket();
            self.happen(&entry, inner, |group, now, effects| event(group, ticket, now, effects));
            return pending;
        }
    }

    /// Returns true if `incoming_bytes` still fit (`fullbore.groups.bytes.max`). Small requests of members do: their
    /// bytes are counted already.
    pub fn has_room(&self, incoming_bytes: usize, is_member: bool) -> bool {
        let fits = self.bytes.load(Ordering::Relaxed).saturating_add(incoming_bytes) <= self.bytes_max;
        if !fits && let Some(left_out) = self.unheld.due() {
            tracing::warn!(
                incoming_bytes,
                is_member,
                left_out,
                "groups hold all the memory they may: fullbore.groups.bytes.max"
            );
        }
        fits || (is_member && incoming_bytes <= SMALL_BYTES)
    }

    /// Takes note of what the group holds now.
    fn note_bytes(&self, inner: &mut EntryState) {
        let (before, now) = (inner.bytes, inner.group.bytes());
        inner.bytes = now;
        // Modulo 2^64, as atomics are: a decrease is the addition of its complement.
        self.bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Looks at a group; `None` if there is no such group.
    ///
    /// # Errors
    /// As for a request.
    pub fn look<T>(&self, id: &str, look: impl FnOnce(&Group) -> T) -> Result<Option<T>, ErrorCode> {
        self.while_serving(id, || self.peek(id, look))
    }

    /// Returns what `read` finds of a group's offsets, if the group allows the member. A group that does not exist has
    /// none.
    ///
    /// # Errors
    /// Errors of a request; the group's refusal.
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

    /// Looks at a group whose shard may just be left: then it may be missing.
    pub fn peek<T>(&self, id: &str, look: impl FnOnce(&Group) -> T) -> Option<T> {
        let entry = self.find(id)?;
        let inner = entry.lock();
        (!inner.is_gone).then(|| look(&inner.group))
    }

    /// How many tasks and threads have found the group, and wait for it or have it; and the table.
    #[cfg(test)]
    pub fn references(&self, id: &str) -> usize {
        let table = self.table.lock();
        table.get(id).map_or(0, Arc::strong_count)
    }

    /// Asks a group something that needs no ticket, such as whether a member may commit; `None` if there is no such
    /// group.
    ///
    /// # Errors
    /// As for a request.
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
        // What it was asked is asked, whatever becomes of its shard.
        if touched.is_some() { Ok(touched) } else { serves.map(|()| None) }
    }

    /// Returns the settings of a group: the broker's with its own.
    pub fn settings_of(&self, image: &Image, id: &str) -> GroupSettings {
        let mut settings = self.settings;
        let own = image.group_timeouts(id);
        settings.consumer.session_timeout_ms = own.consumer_session_timeout_ms;
        settings.consumer.heartbeat_interval_ms = own.consumer_heartbeat_interval_ms;
        settings.consumer.assignment_interval_ms = own.consumer_assignment_interval_ms;
        settings
    }

    /// Makes sure that the group is there, empty if it was not.
    ///
    /// # Errors
    /// Over `fullbore.groups.max`; its shard does not serve.
    pub fn create(&self, id: &Text) -> Result<(), ErrorCode> {
        self.create_entry(id).map(drop)
    }

    /// Takes a group out of service if it is empty, and forgets it, and its offsets if so said. A commit that was
    /// asked for before this is forgotten, too, and one after it begins the group anew.
    ///
    /// # Errors
    /// GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, or that this could not be kept; the group begins anew then, with what
    /// it committed.
    pub async fn delete(self: &Arc<Self>, id: &str, offsets: bool) -> Result<(), ErrorCode> {
        let entry = self.while_serving(id, || self.find(id))?.ok_or(ErrorCode::GROUP_ID_NOT_FOUND)?;
        let asked = {
            let mut inner = entry.lock();
            inner.group.check_delete()?;
            // Asked before a group of that name can begin anew: what that one keeps comes after the deletion.
            let asked = self.forget_group(&entry.shard, id, offsets);
            self.remove(&entry, &mut inner);
            asked
        };
        let deleted = asked.kept().await.map_err(not_kept).and_then(|deleted| deleted);
        if self.has_offsets(id) {
            // It could not be deleted, or was committed to meanwhile.
            self.create(&entry.id)?;
        }
        deleted.inspect_err(|error| tracing::error!(group = id, %error, "the group could not be deleted"))
    }

    /// The ids of all groups, in no order.
    pub fn ids(&self) -> Vec<Text> {
        self.table.lock().keys().cloned().collect()
    }

    /// How many groups are in each state, in the order of [`GroupState::ALL`].
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

    /// Answers everybody who waits, and nobody waits from now on: a stop must not take as long as a rebalance.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let entries: Vec<_> = self.table.lock().values().cloned().collect();
        entries.iter().for_each(|entry| entry.lock().refuse_all());
    }

    fn find(&self, id: &str) -> Option<Arc<Entry>> {
        self.table.lock().get(id).cloned()
    }

    /// The topic stays meanwhile: who leaves it takes out of service what is in it, and nothing may be put into it
    /// after that.
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
                tracing::warn!(groups = table.len(), left_out, "a new group is refused: fullbore.groups.max");
            }
            return Err(ErrorCode::GROUP_MAX_SIZE_REACHED);
        }
        // A copy: the id came in a frame.
        let id = Text::from(id.as_str());
        let entry = Entry::new(id.clone(), Group::new(self.settings, self.now_ms()), Arc::clone(shard));
        table.insert(id, Arc::clone(&entry));
        Ok(entry)
    }

    /// The entry's lock is held, the table's is not: the order is table after entry nowhere else than here.
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

/// Returns the code for a write that failed: clients find the coordinator again and repeat the request.
fn not_kept(error: AppendError) -> ErrorCode {
    match error {
        AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::FENCED_LEADER_EPOCH) => {
            ErrorCode::NOT_COORDINATOR
        }
        // Of a commit in a transaction, whose producer was fenced.
        AppendError::Sequence(refusal) => refusal.code(),
        // Of a commit whose transaction may have ended: the client commits again, and its transaction is verified
        // again.
        AppendError::Unverified => ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        _ => ErrorCode::COORDINATOR_NOT_AVAILABLE,
    }
}
