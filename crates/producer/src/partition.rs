//! The unfinished records of a partition: the open batch, the queue of closed batches, and the window of those sent.
//!
//! A batch is ready at batch.size or after linger.ms, but grows until the sender takes it. While the path or the window
//! is full, batches grow up to max.request.size. On a long path, batches are sent evenly spaced over the round trip
//! once half of the window is in use (`take`). This module uses no sockets, and time is an argument. Invariant: batches
//! are sent in the order of `append`. At any time, a partition has batches in flight to only one broker.

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

/// Settings and state that all partitions of a producer share.
#[derive(Debug)]
pub(crate) struct ProducerLimits {
    pub(crate) batch_size: usize,
    /// True if batch.size is 0, so that each record is a batch of its own.
    pub(crate) one_record: bool,
    pub(crate) batch_bytes_max: usize,
    pub(crate) linger: Duration,
    pub(crate) delivery_timeout: Duration,
    pub(crate) compression: Compression,
    pub(crate) level: Level,
    pub(crate) idempotent: bool,
    /// Wakes the task that runs the transactions. `None` without transactions.
    pub(crate) coordinator: Option<Arc<Notify>>,
}

/// A partition of a topic.
pub(crate) struct Partition {
    pub(crate) topic: Text,
    pub(crate) index: i32,
    /// A number that selects the partition's home connection. It spreads a topic's partitions over the connections.
    spread: usize,
    limits: Arc<ProducerLimits>,
    /// The maximum size of a batch, which the partitions of a topic share.
    limit: Arc<BatchLimit>,
    share: Arc<PartitionShare>,
    prospect: Prospect,
    state: Mutex<PartitionQueue>,
}

struct PartitionQueue {
    open: Option<OpenBatch>,
    /// True if there was no memory to let the open batch grow.
    is_starved: bool,
    /// The number of partitions among which the first record of the open batch could choose.
    peers: usize,
    /// Closed batches without an attempt, oldest first. The queue is bounded by buffer.memory.
    queue: VecDeque<ProducerBatch>,
    /// The size of `queue`, in bytes.
    queued_bytes: usize,
    window: Window<ProducerBatch>,
    /// All unfinished batches, oldest first.
    unfinished: VecDeque<Arc<BatchOutcome>>,
    membership: Membership,
    /// The worklist of the leader.
    leader: Option<Arc<Worklist<Listing>>>,
    leader_epoch: i32,
    /// The broker in whose worklist the partition is, and the serial number of its valid entry there.
    listed: Option<(i32, u64)>,
    listings: u64,
    /// The broker to which the batches in flight were sent, and the connection. The connection is `None` if they were
    /// sent over several.
    sent_to: i32,
    sent_over: Option<u64>,
    retry_at: Option<Instant>,
    /// The number of failures since the last success. It determines the pause before a retry.
    failures: u32,
    /// The last error since the last success.
    last_error: Option<String>,
    acked_at: Option<Instant>,
    /// When the last new batch was sent, and the round trip of its connection at that time.
    left: Option<(Instant, Duration)>,
    ratio: CompressionRatio,
    /// True from a refusal for a batch's size until the next retry. The broker refuses the batches in flight behind
    /// that batch as out of order, and these refusals do not count as failures.
    is_parted: bool,
    closed: bool,
}

/// An entry for a partition in a broker's worklist. A list has several entries for a partition if another broker became
/// the leader for a moment, before this broker's task read the list. Only the newest entry is valid.
pub(crate) struct Listing {
    pub(crate) partition: Arc<Partition>,
    pub(crate) serial: u64,
}

impl Listing {
    /// Calls [`Partition::take`] with this entry.
    pub(crate) fn take(&self, broker: &Arc<Worklist<Listing>>, round: &Round<'_>) -> Take {
        self.partition.take(broker, self.serial, round)
    }

    /// Calls [`Partition::leaves`] with this entry.
    pub(crate) fn leaves(&self, broker: &Arc<Worklist<Listing>>) -> bool {
        self.partition.leaves(broker, self.serial)
    }
}

/// The answer of a partition to a sender that wants a batch.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(crate) enum Take {
    /// A batch to send.
    Batch(Outgoing),
    /// No batch may be sent before this time. `None` if an event will wake the sender.
    NotYet(Option<Instant>),
    /// A full batch waits only for the window.
    Window,
    /// The batch does not fit into the rest of the request.
    NoRoom,
    /// The partition needs a producer id. If the value is `Some`, the new id must differ from this one, which must not
    /// be used again.
    Identity(Option<i64>),
    /// The transaction coordinator must first add the partition to the transaction.
    Join,
    /// The entry must be removed from the worklist, because another broker leads the partition or the partition has
    /// nothing to send.
    Gone,
}

/// A batch in a request, until the response is handled.
pub(crate) struct Outgoing {
    pub(crate) partition: Arc<Partition>,
    pub(crate) ticket: Ticket,
    pub(crate) stamp: Stamp,
    pub(crate) batch: ProducerBatch,
    /// The id of the topic to which the batch must be written. Zero if topics have no ids.
    pub(crate) topic_id: Uuid,
    /// True if the request names the topic without an id, as before Produce 13. Another topic with the same name may
    /// then accept the batch.
    pub(crate) by_name: bool,
    /// True if the broker may park the batch when it arrives out of order.
    pub(crate) reorder: bool,
    /// True for the last batch of a transaction that is being committed.
    pub(crate) ends_transaction: bool,
}

/// The reason why a record was not appended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AppendRefusal {
    /// There is no memory, or the partition has used up its share.
    Full(Shortage),
    Closed,
}

impl Partition {
    /// Creates a partition of a topic. All partitions of the topic share `limit`.
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

    /// Adds a record of at most `size` bytes to the open batch, or to a new one. `peers` is the number of partitions
    /// among which the record could choose.
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
                    // The batch is sent without the record. Otherwise there could be a deadlock, because the missing
                    // memory may be in other batches that wait to be sent.
                    state.is_starved = true;
                    self.announce(state, true);
                    return Err(AppendRefusal::Full(lack));
                }
                open
            }
            full => {
                // A batch that cannot grow any more is ready, even below batch.size.
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

    /// Closes the open batch, if any, and opens one with memory for a record of `size` bytes.
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
        let batch = OpenBatch::new(&self.share, size, self.limits.compression, self.limits.level, outcome)
            .map_err(AppendRefusal::Full)?;
        state.close_open();
        state.peers = peers;
        state.unfinished.push_back(batch.outcome.clone());
        Ok(state.open.insert(batch))
    }

    /// Returns the hint about how soon a record without a key would be sent from this partition.
    pub(crate) fn prospect(&self) -> &Prospect {
        &self.prospect
    }

    /// Puts the partition on its leader's worklist. If the partition is already there, wakes the sender only if the
    /// window is open and the batch is `ready` or linger.ms is 0.
    fn announce(self: &Arc<Self>, state: &mut PartitionQueue, ready: bool) {
        let Some(leader) = &state.leader else { return };
        if !state.is_listed_by(leader) {
            self.list(state);
        } else if (ready || self.limits.linger.is_zero()) && state.window.is_open() {
            leader.wake();
        }
    }

    /// Remembers why the records of this partition cannot be sent.
    pub(crate) fn hindered(&self, why: &str) {
        let mut state = self.state.lock();
        if state.has_work() {
            state.last_error = Some(why.to_owned());
        }
    }

    /// Returns true if records of this partition wait for a producer id.
    pub(crate) fn lacks_identity(&self) -> bool {
        let state = self.state.lock();
        state.has_work() && state.window.wants_identity().is_some()
    }

    /// Returns the reason why a record from before `since` is still waiting. Returns `None` if there is no such record
    /// or no known reason.
    pub(crate) fn trouble(&self, since: Instant) -> Option<String> {
        let state = self.state.lock();
        let waits = state.unfinished.front().is_some_and(|oldest| oldest.opened_at <= since);
        let hindrance =
            || state.hindrance().map(|why| format!("partition {} of topic {}: {why}", self.index, self.topic));
        if waits { hindrance() } else { None }
    }

    /// Returns true if records of this partition wait for a leader.
    pub(crate) fn lacks_leader(&self) -> bool {
        let state = self.state.lock();
        state.leader.is_none() && state.has_work()
    }

    /// Sets the leader from metadata of the topic `topic_id`. `None` means that the partition has no leader. Ignores
    /// metadata of another topic or of an older leader epoch. Returns true if the partition belongs to this topic and
    /// its leader is another broker than the one that last got batches.
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
        if epoch < 0 || epoch >= state.leader_epoch {
            state.leader_epoch = epoch;
            self.lead(&mut state, leader);
        }
        state.leader.as_ref().is_some_and(|leader| leader.id != state.sent_to)
    }

    fn lead(self: &Arc<Self>, state: &mut PartitionQueue, leader: Option<Arc<Worklist<Listing>>>) {
        let unchanged = match (&state.leader, &leader) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if unchanged {
            return;
        }
        if let (Some(old), Some(_)) = (&state.leader, &leader) {
            old.leave();
        }
        state.leader = leader;
        // The pause after a refusal of the old leader does not apply to the new one.
        state.retry_at = None;
        self.relist(state);
    }

    /// Sets the id of the partition's topic. A new id means that the topic was recreated.
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

    /// Adds an entry for the partition to its leader's worklist. Older entries become invalid.
    fn list(self: &Arc<Self>, state: &mut PartitionQueue) {
        let Some(leader) = &state.leader else { return };
        state.listings += 1;
        state.listed = Some((leader.id, state.listings));
        leader.list(Listing { partition: self.clone(), serial: state.listings });
    }

    /// Passes a producer id and epoch to the window if it needs them.
    pub(crate) fn adopt(&self, identity: ProducerIdAndEpoch) {
        let mut state = self.state.lock();
        if state.window.wants_identity().is_some() {
            state.window.adopt(identity);
        }
    }

    /// Notes that a batch is in the log.
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

    /// Notes that a batch has failed and will not be sent again.
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

    /// Takes a batch back for another attempt. The pause before that attempt grows with each failure in a row.
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
        // If a batch failed, those in flight behind it are refused as out of order. The reported error is therefore
        // that of the failed batch.
        if setback != Setback::OutOfOrder || state.last_error.is_none() {
            state.last_error = Some(why.to_owned());
        }
        state.window.set_back(ticket, setback, batch);
        // A failed batch and the batches in flight behind it count as a single failure, because the latter fail only
        // due to the former. If the failed batch is split and sent again, there is no failure to count.
        let is_followed = state.is_parted && setback == Setback::OutOfOrder;
        if state.retry_at.is_none_or(|at| at <= now) && !state.window.in_round() && !is_followed {
            state.retry_at = Some(now + pause(state.failures));
            state.failures += 1;
        }
        self.resolved(&mut state, now);
    }

    /// Notes how well a batch was compressed. If the ratio is good, later batches grow larger before compression.
    pub(crate) fn compressed(&self, before: usize, after: usize) {
        self.state.lock().ratio.note(before, after);
    }

    /// Handles the result of a batch: removes finished batches, and wakes the task of a new leader if necessary.
    fn resolved(self: &Arc<Self>, state: &mut PartitionQueue, now: Instant) {
        state.finish_settled(now);
        while state.unfinished.front().is_some_and(|outcome| outcome.is_finished()) {
            state.unfinished.pop_front();
        }
        if let Some(coordinator) = self.limits.coordinator.as_ref().filter(|_| state.window.is_idle()) {
            coordinator.notify_one();
        }
        // A new leader may get batches only after the last response of the old leader, so its task is woken now. The
        // old leader's task needs no wake-up, because it checks its partitions after each response.
        if state.leader.as_ref().is_some_and(|leader| leader.id != state.sent_to) {
            self.relist(state);
        }
    }

    /// Fails batches that are older than delivery.timeout.ms, whether they were sent or not.
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

    /// Fails every batch and refuses further records.
    pub(crate) fn shut(self: &Arc<Self>, now: Instant) {
        let mut state = self.state.lock();
        state.closed = true;
        for outcome in &state.unfinished {
            let possibly_written = outcome.is_possibly_written();
            outcome.fail_rest(ProduceError::Closed { possibly_written }, now);
        }
        self.purge(&mut state);
        // Brokers and partitions hold references to each other. This line breaks the cycle, so that both are freed.
        state.leader = None;
    }

    /// Drops batches whose records all have a result.
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

    /// Returns the unfinished batches.
    pub(crate) fn unfinished(&self) -> Vec<Arc<BatchOutcome>> {
        self.state.lock().unfinished.iter().cloned().collect()
    }
}

impl PartitionQueue {
    fn has_work(&self) -> bool {
        self.open.is_some() || !self.queue.is_empty() || !self.window.is_idle()
    }

    /// Returns the reason why the records cannot be sent, if it is known.
    fn hindrance(&self) -> Option<String> {
        match (&self.leader, &self.last_error) {
            (Some(_), last_error) => last_error.clone(),
            (None, None) => Some("the partition has no leader".to_owned()),
            (None, Some(before)) => Some(format!("the partition has no leader; before that: {before}")),
        }
    }

    /// Returns the reason of a timeout for a batch that has no error of its own.
    fn unanswered(&self, sent: bool) -> String {
        match &self.leader {
            Some(leader) if !sent => format!("not sent: broker {} accepted no more requests", leader.id),
            _ => format!("no response from broker {}", self.sent_to),
        }
    }

    fn is_listed_by(&self, leader: &Worklist<Listing>) -> bool {
        self.listed.is_some_and(|(id, _)| id == leader.id)
    }

    /// Completes the batches whose outcome the window has inferred without a response.
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
