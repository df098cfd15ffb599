//! Chooses the batch of a partition that may be sent to a broker now, or returns the reason why there is none.

use super::{Listing, Outgoing, Partition, PartitionQueue, ProducerLimits, Round, Take};
use crate::batch::{OpenBatch, ProducerBatch};
use crate::window::Ticket;
use crate::worklist::Worklist;
use fullbore_wire::batch::Stamp;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The minimum round trip at which batches are spaced over the round trip. On a shorter path, it is cheaper to wait for
/// an acknowledgement than to set a timer.
pub(crate) const LONG_PATH: Duration = Duration::from_millis(2);

/// Time without an acknowledgement after which the next batch is sent alone, because the broker may have forgotten the
/// producer (producer.id.expiration.ms). This costs one round trip. The broker's default is a day.
const REST: Duration = Duration::from_secs(60);

impl Partition {
    /// Returns true if the entry `serial` can be removed from the worklist of `broker`, because the entry is no longer
    /// valid or the broker no longer leads the partition. In the second case, adds the partition to the worklist of the
    /// new leader if it has work.
    pub(crate) fn leaves(self: &Arc<Self>, broker: &Arc<Worklist<Listing>>, serial: u64) -> bool {
        self.has_left(&mut self.state.lock(), broker, serial)
    }

    fn has_left(self: &Arc<Self>, state: &mut PartitionQueue, broker: &Arc<Worklist<Listing>>, serial: u64) -> bool {
        if state.listed != Some((broker.id, serial)) {
            return true;
        }
        if state.leader.as_ref().is_some_and(|leader| Arc::ptr_eq(leader, broker)) {
            return false;
        }
        state.listed = None;
        self.relist(state);
        true
    }

    /// Returns true if a batch is ready and would be sent over a further connection. With `striped`, the batches of a
    /// partition are spread over all connections. Doubling their number then helps only if the window permits more
    /// batches in flight. It need not permit twice as many: a full connection has twice its bandwidth-delay product in
    /// flight, which is enough for two connections.
    pub(crate) fn waits(&self, now: Instant, hurry: bool, striped: bool) -> bool {
        let state = self.state.lock();
        if striped && !state.window.takes_more() {
            return false;
        }
        let is_ready = |open: &OpenBatch| {
            hurry || open.size() >= self.limits.batch_size || open.outcome.opened_at + self.limits.linger <= now
        };
        state.window.is_open() && (!state.queue.is_empty() || state.open.as_ref().is_some_and(is_ready))
    }

    /// Returns the batch that may be sent to `broker` now over the connection of `round`, or the reason why there is
    /// none.
    pub(crate) fn take(self: &Arc<Self>, broker: &Arc<Worklist<Listing>>, serial: u64, round: &Round<'_>) -> Take {
        let is_home = self.spread % round.path.lanes == round.path.lane;
        if !is_home && (!round.striped || round.missing) {
            return Take::NotYet(None);
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        if self.has_left(state, broker, serial) {
            return Take::Gone;
        }
        if let Some(spent) = state.window.wants_identity().filter(|_| self.limits.coordinator.is_none()) {
            return Take::Identity(spent);
        }
        // Retries must keep their order, which only a single connection guarantees.
        let has_retries = state.window.has_retries();
        let any_lane = round.striped && !has_retries;
        let same_lane = is_home && state.sent_over == Some(round.path.connection);
        let others_wait = if has_retries { state.others_wait(round) } else { round.striped };
        if round.missing && !(has_retries && others_wait && state.window.in_flight() > 0) {
            return Take::NotYet(None);
        }
        let may_join = state.sent_to == broker.id && (others_wait || same_lane);
        if !(any_lane || is_home) || (state.window.in_flight() > 0 && !may_join) {
            return Take::NotYet(None);
        }
        if let Some(at) = state.retry_at.filter(|at| *at > round.now) {
            return Take::NotYet(Some(at));
        }
        let granted = round.grants.of(&self.topic);
        state.window.grant(if round.striped { granted.min(round.grants.reorder + 1) } else { granted });
        self.take_batch(state, broker, round)
    }

    fn take_batch(
        self: &Arc<Self>,
        state: &mut PartitionQueue,
        broker: &Arc<Worklist<Listing>>,
        round: &Round<'_>,
    ) -> Take {
        if state.window.in_flight() == 0 {
            state.window.drop_retries(|batch| batch.outcome.is_finished());
        }
        if state.acked_at.is_some_and(|at| round.now.saturating_duration_since(at) >= REST) {
            state.window.rested();
        }
        state.finish_settled(round.now);
        if state.window.has_retries() && round.room.is_some_and(|room| room < self.limit.bytes()) {
            // A retry may be as large as a whole request, so it is the first batch of the next request.
            return Take::NoRoom;
        }
        let missing = state.others_wait(round);
        self.part_retries(state, missing);
        if let Some((ticket, stamp, batch)) = state.window.next_retry(missing) {
            state.is_parted = false;
            return self.leave(state, broker, round, ticket, stamp, batch);
        }
        if self.limits.coordinator.is_some()
            && let Some(held) = self.held(state, round)
        {
            return held;
        }
        if !state.window.may_open() {
            return match state.window.wants_identity() {
                Some(spent) => Take::Identity(spent),
                None if !state.queue.is_empty() && state.window.is_full() => Take::Window,
                None => Take::NotYet(None),
            };
        }
        match state.next_size(round, &self.limits) {
            Next::None if state.window.is_idle() => {
                state.listed = None;
                Take::Gone
            }
            // While responses are due, a record that is added does not wake the sender. The sender therefore checks
            // again after linger.ms.
            Next::None if !self.limits.linger.is_zero() => Take::NotYet(Some(round.now + self.limits.linger)),
            Next::None => Take::NotYet(None),
            Next::At(at) => Take::NotYet(Some(at)),
            Next::Batch(size) if round.room.is_some_and(|room| size > room) => Take::NoRoom,
            Next::Batch(_) => {
                if state.queue.is_empty() {
                    state.close_open();
                }
                self.part_queue(state);
                let Some(batch) = state.queue.pop_front() else { return Take::NotYet(None) };
                state.queued_bytes -= batch.size();
                let (ticket, stamp) = state.window.open(batch.records);
                state.left = round.rtt.map(|rtt| (round.now, rtt));
                self.prospect.set_unsent(state.queued_bytes + state.open.as_ref().map_or(0, OpenBatch::size));
                self.prospect.set_free_at(state.free_at());
                self.leave(state, broker, round, ticket, stamp, batch)
            }
        }
    }

    fn leave(
        self: &Arc<Self>,
        state: &mut PartitionQueue,
        broker: &Arc<Worklist<Listing>>,
        round: &Round<'_>,
        ticket: Ticket,
        stamp: Stamp,
        mut batch: ProducerBatch,
    ) -> Take {
        let (here, alone) = (Some(round.path.connection), state.window.in_flight() == 1);
        // A batch that is alone in flight must not be parked. No batch is missing before it, but a broker that has
        // forgotten the producer would wait for one.
        let reorder = !alone && state.others_wait(round);
        state.sent_over = here.filter(|_| alone || state.sent_over == here);
        state.sent_to = broker.id;
        batch.begin_attempt();
        batch.outcome.transaction().inspect(|transaction| transaction.start());
        let ends_transaction = state.ends_transaction(&batch);
        let (topic_id, by_name) = (state.window.log(), false);
        let partition = self.clone();
        Take::Batch(Outgoing { partition, ticket, stamp, batch, topic_id, by_name, reorder, ends_transaction })
    }
}

/// The answer to a request for the next batch without an attempt.
enum Next {
    None,
    At(Instant),
    Batch(usize),
}

impl PartitionQueue {
    /// Returns true if batches in flight may be parked at the broker until a missing batch arrives. The missing batch
    /// must then be sent at once. Batches that were all sent over one connection are not parked, because their requests
    /// did not permit it.
    fn others_wait(&self, round: &Round<'_>) -> bool {
        let are_scattered = self.window.in_flight() > 0 && self.sent_over.is_none();
        round.striped || (round.reorders && are_scattered)
    }

    fn next_size(&self, round: &Round<'_>, limits: &ProducerLimits) -> Next {
        // Queued batches are closed, so their size is final.
        if let Some(batch) = self.queue.front() {
            return Next::Batch(batch.size());
        }
        let Some(open) = &self.open else { return Next::None };
        let at = open.outcome.opened_at + limits.linger;
        if !round.hurry && !self.is_starved && open.size() < limits.batch_size && at > round.now {
            return Next::At(at);
        }
        match self.spaced_until(open).filter(|at| *at > round.now && !round.flush) {
            Some(at) => Next::At(at),
            None => Next::Batch(open.size()),
        }
    }

    /// Returns the time at which the open batch may be sent, or `None` if it may be sent now. Once half of the window
    /// is in use, batches are sent evenly spaced over a round trip. If they were sent together, later records would
    /// wait for the first acknowledgement in every round trip. If a record can choose among several partitions, the
    /// interval is shorter, because the windows of all of them are available.
    fn spaced_until(&self, open: &OpenBatch) -> Option<Instant> {
        let (own, step) = self.own_turn()?;
        let peers = u32::try_from(self.peers).unwrap_or(u32::MAX);
        Some(own.min(open.outcome.opened_at + step / peers.max(1)))
    }

    /// Returns the time at which the next batch may be sent by this partition's window, and the interval between two
    /// batches. Returns `None` on a short path, or if less than half of the window is in use.
    fn own_turn(&self) -> Option<(Instant, Duration)> {
        let (left_at, rtt) = self.left.filter(|(_, rtt)| *rtt >= LONG_PATH)?;
        let limit = self.window.limit();
        let step = rtt / u32::try_from(limit).unwrap_or(u32::MAX).max(1);
        (2 * self.window.span() >= limit).then(|| (left_at + step, step))
    }

    /// Returns about when another batch may be sent, or `None` on a short path.
    pub(super) fn free_at(&self) -> Option<Instant> {
        let (left_at, _) = self.left.filter(|(_, rtt)| *rtt >= LONG_PATH)?;
        Some(self.own_turn().map_or(left_at, |(at, _)| at))
    }
}
