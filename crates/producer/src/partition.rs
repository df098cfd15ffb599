//! One partition's records on their way: the batch that records join, those that wait, and the window of those sent.
//!
//! A batch is worth sending at batch.size or after linger.ms, but records join it until the sender takes it: while the
//! pipe or the window is full batches grow, up to max.request.size. On a long path batches leave evenly spaced over the
//! round trip once half of the window is in use (`take`). Not here: sockets and time, which is an argument. Invariant:
//! batches leave in the order of `append`, and those of one partition are in flight to one broker only.

mod parting;
mod ratio;
mod round;
mod take;
#[cfg(test)]
mod tests;
mod transactional;

use crate::batch::{OpenBatch, ProducerBatch};
use crate::clock;
use crate::delivery::{BatchOutcome, Delivery, Written};
use crate::error::ProduceError;
use crate::limit::BatchLimit;
use crate::partitioner;
use crate::pool::{PartitionShare, Pool, Shortage};
use crate::prospect::Prospect;
use crate::record::ProducerRecord;
use crate::scope::TransactionScope;
use crate::window::{Fate, ProducerIdAndEpoch, Setback, Ticket, Window};
use crate::worklist::Worklist;
use fullbore_wire::batch::{Compression, HEADER_LEN, Level, Stamp};
use fullbore_wire::{ErrorCode, Text, Uuid};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

use ratio::CompressionRatio;
pub(crate) use round::{Path, Round};
pub(crate) use take::LONG_PATH;
use transactional::Membership;

/// What every partition of a producer shares.
#[derive(Debug)]
pub(crate) struct ProducerLimits {
    pub(crate) batch_size: usize,
    /// batch.size=0: each record is a batch of its own.
    pub(crate) one_record: bool,
    pub(crate) batch_bytes_max: usize,
    pub(crate) linger: Duration,
    pub(crate) delivery_timeout: Duration,
    pub(crate) codec: (Compression, Level),
    pub(crate) idempotent: bool,
    /// Wakes the task that talks to the transaction coordinator; `None` without transactions.
    pub(crate) coordinator: Option<Arc<Notify>>,
}

/// One partition of a topic.
pub(crate) struct Partition {
    pub(crate) topic: Text,
    pub(crate) index: i32,
    /// Chooses the home lane, so that a topic's partitions take turns.
    spread: usize,
    limits: Arc<ProducerLimits>,
    /// No batch grows past it on the wire.
    limit: Arc<BatchLimit>,
    share: Arc<PartitionShare>,
    prospect: Prospect,
    state: Mutex<PartitionQueue>,
}

struct PartitionQueue {
    open: Option<OpenBatch>,
    /// True if the open batch found no memory to grow.
    is_starved: bool,
    /// Partitions that the first record of the open batch could have joined.
    peers: usize,
    /// Closed and never sent, oldest first; bounded by buffer.memory.
    queue: VecDeque<ProducerBatch>,
    /// Bytes of `queue`.
    queued_bytes: usize,
    window: Window<ProducerBatch>,
    /// Every batch that is not finished, oldest first.
    unfinished: VecDeque<Arc<BatchOutcome>>,
    membership: Membership,
    /// Who sends to the leader.
    leader: Option<Arc<Worklist<Listing>>>,
    leader_epoch: i32,
    /// The broker that has the partition in its list of work, and which listing of it counts.
    listed: Option<(i32, u64)>,
    listings: u64,
    /// The broker that batches are in flight to, and the connection; `None` for several.
    sent_to: i32,
    sent_over: Option<u64>,
    retry_at: Option<Instant>,
    /// Failures since the last success, for the backoff.
    failures: u32,
    /// What went wrong since the last success, last.
    last_error: Option<String>,
    acked_at: Option<Instant>,
    /// When the last batch left that was new, and the round trip of the path that it took.
    left: Option<(Instant, Duration)>,
    ratio: CompressionRatio,
    /// True from a refusal for its size until a batch goes again: those behind it are out of order because of it.
    is_parted: bool,
    closed: bool,
}

/// A partition in a broker's list of work. A leader may change and change back before the list is looked at: of several
/// listings of a partition the newest counts.
pub(crate) struct Listing {
    pub(crate) partition: Arc<Partition>,
    pub(crate) serial: u64,
}

impl Listing {
    /// See [`Partition::take`].
    pub(crate) fn take(&self, broker: &Arc<Worklist<Listing>>, round: &Round<'_>) -> Take {
        self.partition.take(broker, self.serial, round)
    }

    /// See [`Partition::leaves`].
    pub(crate) fn leaves(&self, broker: &Arc<Worklist<Listing>>) -> bool {
        self.partition.leaves(broker, self.serial)
    }
}

/// What the sender may do with a partition.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(crate) enum Take {
    /// This batch is to be sent.
    Batch(Outgoing),
    /// Nothing before this time; `None` when an event will tell.
    NotYet(Option<Instant>),
    /// A full batch waits for the window alone.
    Window,
    /// It does not fit the request any more.
    NoRoom,
    /// It needs a producer id, other than the one given.
    Identity(Option<i64>),
    /// The transaction coordinator has to add the partition first.
    Join,
    /// Another broker's, or nothing to send: off the list.
    Gone,
}

/// A batch between `take` and its result.
pub(crate) struct Outgoing {
    pub(crate) partition: Arc<Partition>,
    pub(crate) ticket: Ticket,
    pub(crate) stamp: Stamp,
    pub(crate) batch: ProducerBatch,
    /// The topic that it is for; zeros where topics have no ids.
    pub(crate) topic_id: Uuid,
    /// True if the request names the topic, as before Produce 13, so that another topic of this name may take it.
    pub(crate) by_name: bool,
    /// True if the broker should hold it if it is early.
    pub(crate) reorder: bool,
    /// True if it is the last batch of a transaction that is being committed.
    pub(crate) ends_transaction: bool,
}

/// Why a record was not appended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AppendRefusal {
    /// There is no memory, or none for this partition.
    Full(Shortage),
    Closed,
}

impl Partition {
    /// A partition of a topic, whose partitions share a `limit`.
    pub(crate) fn new(
        topic: Text,
        index: i32,
        limits: Arc<ProducerLimits>,
        limit: Arc<BatchLimit>,
        pool: &Arc<Pool>,
    ) -> Arc<Self> {
        let state = PartitionQueue {
            open: None,
            is_starved: false,
            peers: 1,
            queue: VecDeque::new(),
            queued_bytes: 0,
            window: Window::new(limits.idempotent).transactional(limits.coordinator.is_some()),
            unfinished: VecDeque::new(),
            membership: Membership::default(),
            leader: None,
            leader_epoch: -1,
            listed: None,
            listings: 0,
            sent_to: -1,
            sent_over: None,
            retry_at: None,
            failures: 0,
            last_error: None,
            acked_at: None,
            left: None,
            ratio: CompressionRatio::default(),
            is_parted: false,
            closed: false,
        };
        let spread = partitioner::for_key(topic.as_bytes(), 1 << 16) + index as usize;
        let share = pool.share();
        let prospect = Prospect::default();
        Arc::new(Partition { topic, index, spread, limits, limit, share, prospect, state: Mutex::new(state) })
    }

    /// Adds a record of at most `size` bytes to the open batch, or to a new one; `peers` is how many partitions it
    /// could have joined, and `transaction` the record's.
    pub(crate) fn append(
        self: &Arc<Self>,
        record: &ProducerRecord<'_>,
        (timestamp, size): (i64, usize),
        peers: usize,
        transaction: Option<&Arc<TransactionScope>>,
    ) -> Result<Delivery, AppendRefusal> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(transaction) = transaction {
            state.close_older(transaction.number);
        }
        let limit = self.grows_to(state);
        let mut ready = false;
        let open = match &mut state.open {
            Some(open) if open.size() + size <= limit && !self.limits.one_record => {
                if open.room() < size
                    && let Err(lack) = open.grow(size)
                {
                    // It leaves as it is: the memory that it waits for may be that of others that wait.
                    state.is_starved = true;
                    self.announce(state, true);
                    return Err(AppendRefusal::Full(lack));
                }
                open
            }
            full => {
                // A batch that may not grow leaves, although it is smaller than batch.size.
                ready = full.is_some() && !self.limits.one_record;
                self.open_batch(state, size, peers, transaction)?
            }
        };
        let before = open.size();
        let delivery = open.append(record, timestamp, size);
        let after = open.size();
        ready |= before < self.limits.batch_size && after >= self.limits.batch_size;
        self.prospect.set_unsent(state.queued_bytes + after);
        if ready || before == HEADER_LEN {
            self.announce(state, ready);
        }
        Ok(delivery)
    }

    /// Closes the open batch and opens another with room for a record of `size` bytes.
    fn open_batch<'a>(
        &self,
        state: &'a mut PartitionQueue,
        size: usize,
        peers: usize,
        transaction: Option<&Arc<TransactionScope>>,
    ) -> Result<&'a mut OpenBatch, AppendRefusal> {
        if state.closed {
            return Err(AppendRefusal::Closed);
        }
        let outcome = || BatchOutcome::new(self.index, clock::now(), transaction.cloned());
        let batch = OpenBatch::new(&self.share, size, self.limits.codec, outcome).map_err(AppendRefusal::Full)?;
        state.close_open();
        state.peers = peers;
        state.unfinished.push_back(batch.outcome.clone());
        Ok(state.open.insert(batch))
    }

    /// The hint by which records without a key choose a partition.
    pub(crate) fn prospect(&self) -> &Prospect {
        &self.prospect
    }

    /// Puts the partition on its leader's list and wakes the sender, each only if that changes something.
    fn announce(self: &Arc<Self>, state: &mut PartitionQueue, ready: bool) {
        let Some(leader) = &state.leader else { return };
        if !state.is_listed_by(leader) {
            self.list(state);
        } else if (ready || self.limits.linger.is_zero()) && state.window.is_open() {
            leader.wake();
        }
    }

    /// Something keeps what waits here from being sent.
    pub(crate) fn hindered(&self, why: &str) {
        let mut state = self.state.lock();
        if state.has_work() {
            state.last_error = Some(why.to_owned());
        }
    }

    /// Returns true if something waits here for a producer id.
    pub(crate) fn lacks_identity(&self) -> bool {
        let state = self.state.lock();
        state.has_work() && state.window.wants_identity().is_some()
    }

    /// What stands in the way of a record that has waited since before `since`, if anything is known to.
    pub(crate) fn trouble(&self, since: Instant) -> Option<String> {
        let state = self.state.lock();
        let waits = state.unfinished.front().is_some_and(|oldest| oldest.opened_at <= since);
        let hindrance =
            || state.hindrance().map(|why| format!("partition {} of topic {}: {why}", self.index, self.topic));
        if waits { hindrance() } else { None }
    }

    /// Returns true if something waits here for a leader.
    pub(crate) fn lacks_leader(&self) -> bool {
        let state = self.state.lock();
        state.leader.is_none() && state.has_work()
    }

    /// The partition moved to another leader, or has none; said of the topic with this id. Older epochs are ignored.
    /// Whether the partition is of this topic.
    pub(crate) fn set_leader(
        self: &Arc<Self>,
        topic_id: Uuid,
        leader: Option<Arc<Worklist<Listing>>>,
        epoch: i32,
    ) -> bool {
        let mut state = self.state.lock();
        if state.window.log() != topic_id {
            return false;
        }
        if epoch >= 0 && epoch < state.leader_epoch {
            return true;
        }
        state.leader_epoch = epoch;
        let unchanged = match (&state.leader, &leader) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if unchanged {
            return true;
        }
        if let (Some(old), Some(_)) = (&state.leader, &leader) {
            old.leave();
        }
        state.leader = leader;
        // The new leader need not sit out the pause that the old one's refusal asked for.
        state.retry_at = None;
        self.relist(&mut state);
        true
    }

    /// The topic that the partition is of from now on. With another id than before it was deleted and created again.
    pub(crate) fn set_topic(&self, topic_id: Uuid) {
        let mut state = self.state.lock();
        if state.window.write_to(topic_id) {
            state.leader_epoch = -1;
        }
    }

    fn relist(self: &Arc<Self>, state: &mut PartitionQueue) {
        if let Some(leader) = state.leader.as_ref().filter(|_| state.has_work()) {
            match state.is_listed_by(leader) {
                true => leader.wake(),
                false => self.list(state),
            }
        }
    }

    /// Puts it on its leader's list. An older listing there, of a leader that has led it before, counts no longer.
    fn list(self: &Arc<Self>, state: &mut PartitionQueue) {
        let Some(leader) = &state.leader else { return };
        state.listings += 1;
        state.listed = Some((leader.id, state.listings));
        leader.list(Listing { partition: self.clone(), serial: state.listings });
    }

    /// The window takes a producer id.
    pub(crate) fn adopt(&self, identity: ProducerIdAndEpoch) {
        let mut state = self.state.lock();
        if state.window.wants_identity().is_some() {
            state.window.adopt(identity);
        }
    }

    /// A batch is in the log.
    pub(crate) fn acked(self: &Arc<Self>, ticket: Ticket, batch: ProducerBatch, written: Written, now: Instant) {
        let mut state = self.state.lock();
        state.window.acked(ticket);
        self.limit.taken(batch.uncompressed(), batch.size());
        self.prospect.set_free_at(state.free_at());
        (state.failures, state.retry_at, state.last_error) = (0, None, None);
        state.acked_at = Some(now);
        batch.succeed(written, now);
        self.resolved(&mut state, now);
    }

    /// A batch will not be sent again.
    pub(crate) fn failed(
        self: &Arc<Self>,
        ticket: Ticket,
        batch: ProducerBatch,
        maybe: bool,
        error: ProduceError,
        now: Instant,
    ) {
        let mut state = self.state.lock();
        state.window.given_up(ticket, maybe);
        batch.fail(error, now);
        self.resolved(&mut state, now);
    }

    /// A batch goes again, after a pause that grows with each failure in a row.
    pub(crate) fn set_back(
        self: &Arc<Self>,
        outgoing: Outgoing,
        setback: Setback,
        why: &str,
        pause: impl Fn(u32) -> Duration,
        now: Instant,
    ) {
        let Outgoing { ticket, batch, by_name, .. } = outgoing;
        let mut state = self.state.lock();
        if by_name {
            state.window.went_by_name(ticket);
        }
        // Batches behind a failed one are out of order because of it: its error is the one to know.
        if setback != Setback::OutOfOrder || state.last_error.is_none() {
            state.last_error = Some(why.to_owned());
        }
        state.window.set_back(ticket, setback, batch);
        // Batches that were sent behind a failed one fail with it; that is one failure. None where that one goes on in
        // parts.
        let is_followed = state.is_parted && setback == Setback::OutOfOrder;
        if state.retry_at.is_none_or(|at| at <= now) && !state.window.in_round() && !is_followed {
            state.retry_at = Some(now + pause(state.failures));
            state.failures += 1;
        }
        self.resolved(&mut state, now);
    }

    /// Notes what the codec made of a batch; those that follow grow until the wire has bytes enough of them.
    pub(crate) fn compressed(&self, before: usize, after: usize) {
        self.state.lock().ratio.note(before, after);
    }

    /// After any result: forgets what is finished and lets the leader go on.
    fn resolved(self: &Arc<Self>, state: &mut PartitionQueue, now: Instant) {
        state.finish_settled(now);
        while state.unfinished.front().is_some_and(|outcome| outcome.is_finished()) {
            state.unfinished.pop_front();
        }
        if let Some(coordinator) = self.limits.coordinator.as_ref().filter(|_| state.window.is_idle()) {
            coordinator.notify_one();
        }
        // The broker that answered looks again by itself; a new leader has waited for this.
        if state.leader.as_ref().is_some_and(|leader| leader.id != state.sent_to) {
            self.relist(state);
        }
    }

    /// Fails what is older than delivery.timeout.ms, wherever it is.
    pub(crate) fn expire(self: &Arc<Self>, now: Instant) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let timeout = self.limits.delivery_timeout;
        let mut any = false;
        for outcome in state.unfinished.iter().take_while(|o| now.duration_since(o.opened_at) >= timeout) {
            let possibly_written = outcome.is_possibly_written();
            let last = state.hindrance().unwrap_or_else(|| state.unanswered(possibly_written));
            let waited = now.duration_since(outcome.opened_at);
            outcome.fail_rest(ProduceError::Timeout { waited, last, possibly_written }, now);
            any = true;
        }
        if any {
            self.purge(state);
        }
    }

    /// Fails everything; nothing is taken any more.
    pub(crate) fn shut(self: &Arc<Self>, now: Instant) {
        let mut state = self.state.lock();
        state.closed = true;
        for outcome in &state.unfinished {
            let possibly_written = outcome.is_possibly_written();
            outcome.fail_rest(ProduceError::Closed { possibly_written }, now);
        }
        self.purge(&mut state);
        // Brokers and partitions know each other; this lets both go.
        state.leader = None;
    }

    /// Drops batches whose records all have their result.
    fn purge(self: &Arc<Self>, state: &mut PartitionQueue) {
        state.unfinished.retain(|outcome| !outcome.is_finished());
        state.queue.retain(|batch| !batch.outcome.is_finished());
        state.queued_bytes = state.queue.iter().map(ProducerBatch::size).sum();
        if state.open.as_ref().is_some_and(|open| open.outcome.is_finished()) {
            (state.open, state.is_starved) = (None, false);
        }
        state.window.drop_retries(|batch| batch.outcome.is_finished());
        self.prospect.set_unsent(state.queued_bytes + state.open.as_ref().map_or(0, OpenBatch::size));
    }

    /// Every batch that is not finished.
    pub(crate) fn unfinished(&self) -> Vec<Arc<BatchOutcome>> {
        self.state.lock().unfinished.iter().cloned().collect()
    }
}

impl PartitionQueue {
    fn has_work(&self) -> bool {
        self.open.is_some() || !self.queue.is_empty() || !self.window.is_idle()
    }

    /// What is known to keep records from getting through.
    fn hindrance(&self) -> Option<String> {
        match (&self.leader, &self.last_error) {
            (Some(_), last_error) => last_error.clone(),
            (None, None) => Some("it has no leader".to_owned()),
            (None, Some(before)) => Some(format!("it has no leader; before that: {before}")),
        }
    }

    /// What to say of a batch that no error is known for.
    fn unanswered(&self, sent: bool) -> String {
        match &self.leader {
            Some(leader) if !sent => format!("not sent: broker {} took nothing more", leader.id),
            _ => format!("no response from broker {}", self.sent_to),
        }
    }

    fn is_listed_by(&self, leader: &Worklist<Listing>) -> bool {
        self.listed.is_some_and(|(id, _)| id == leader.id)
    }

    /// Tells batches that the window settled without an answer of their own.
    fn finish_settled(&mut self, now: Instant) {
        for (batch, fate) in self.window.settled() {
            match fate {
                Fate::Written => batch.succeed(Written::NOWHERE, now),
                Fate::Unresolved => {
                    batch.fail(ProduceError::Unresolved(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER), now);
                }
                Fate::Refused => {
                    let (code, message) = (ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, String::new());
                    batch.fail(ProduceError::Broker { code, message, possibly_written: false }, now);
                }
            }
        }
    }

    fn close_open(&mut self) {
        if let Some(open) = self.open.take() {
            self.is_starved = false;
            let batch = open.close();
            self.queued_bytes += batch.size();
            self.queue.push_back(batch);
        }
    }
}
