//! One partition's records on their way: the batch that records join, those that wait, and the window of those sent.
//!
//! A batch is worth sending at batch.size or after linger.ms, but records join it until the sender takes it: while
//! the pipe is full batches grow, up to max.request.size. Not here: sockets and time, which is an argument.
//! Invariant: batches leave in the order of `append`, and those of one partition are in flight to one broker only.

mod round;
#[cfg(test)]
mod tests;

use crate::batch::{Batch, OpenBatch};
use crate::broker::Broker;
use crate::delivery::{Delivery, Outcome, Written};
use crate::error::ProduceError;
use crate::partitioner;
use crate::pool::{Class, Lack, Pool, Share};
use crate::record::Record;
use crate::window::{Fate, Identity, Setback, Ticket, Window};
use fullbore_wire::batch::{Compression, HEADER_LEN, Level, Stamp};
use fullbore_wire::{ErrorCode, Text};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(crate) use round::{Listing, Outgoing, Path, Round, Take};

/// After so long without an acknowledgement the broker may have forgotten the producer; Kafka does after a day, or what
/// producer.id.expiration.ms says. The next batch then goes alone, which costs one round trip.
const REST: Duration = Duration::from_secs(60);

/// What every partition of a producer shares.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) batch_size: usize,
    /// batch.size=0: each record is a batch of its own.
    pub(crate) one_record: bool,
    pub(crate) batch_bytes_max: usize,
    pub(crate) linger: Duration,
    pub(crate) delivery_timeout: Duration,
    pub(crate) codec: (Compression, Level),
    pub(crate) idempotent: bool,
}

/// One partition of a topic.
pub(crate) struct Partition {
    pub(crate) topic: Text,
    pub(crate) index: i32,
    /// Chooses the home lane, so that a topic's partitions take turns.
    spread: usize,
    limits: Arc<Limits>,
    pool: Arc<Pool>,
    share: Arc<Share>,
    state: Mutex<State>,
}

struct State {
    open: Option<OpenBatch>,
    /// Closed and never sent, oldest first; bounded by buffer.memory.
    queue: VecDeque<Batch>,
    window: Window<Batch>,
    /// Every batch that is not finished, oldest first.
    unfinished: VecDeque<Arc<Outcome>>,
    /// Who sends to the leader.
    leader: Option<Arc<Broker>>,
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
    /// Whether the last batch outgrew batch.size: the next one then starts in a large buffer.
    grows: bool,
    /// No batch grows past this; lowered when a broker finds one too large.
    bytes_max: usize,
    closed: bool,
}

/// Why a record was not appended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no memory, or none for this partition.
    Full(Lack),
    Closed,
}

impl Partition {
    pub(crate) fn new(topic: Text, index: i32, limits: Arc<Limits>, pool: Arc<Pool>) -> Arc<Self> {
        let state = State {
            open: None,
            queue: VecDeque::new(),
            window: Window::new(limits.idempotent),
            unfinished: VecDeque::new(),
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
            grows: false,
            bytes_max: limits.batch_bytes_max,
            closed: false,
        };
        let spread = partitioner::for_key(topic.as_bytes(), 1 << 16) + index as usize;
        let share = pool.share();
        Arc::new(Partition { topic, index, spread, limits, pool, share, state: Mutex::new(state) })
    }

    /// Adds a record of at most `size` bytes to the open batch, or to a new one.
    pub(crate) fn append(
        self: &Arc<Self>,
        record: &Record<'_>,
        timestamp: i64,
        size: usize,
    ) -> Result<Delivery, Refused> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let limit = state.bytes_max;
        let open = match &mut state.open {
            Some(open)
                if open.room(&self.pool) >= size
                    && open.size() + size <= limit.max(self.limits.batch_size)
                    && !self.limits.one_record =>
            {
                open
            }
            _ => self.make_room(state, size)?,
        };
        let before = open.size();
        let delivery = open.append(record, timestamp);
        let ready = before < self.limits.batch_size && open.size() >= self.limits.batch_size;
        if ready || before == HEADER_LEN {
            self.announce(state, ready);
        }
        Ok(delivery)
    }

    /// Grows the open batch, or closes it and opens another.
    fn make_room<'a>(&self, state: &'a mut State, size: usize) -> Result<&'a mut OpenBatch, Refused> {
        if state.closed {
            return Err(Refused::Closed);
        }
        if let Some(open) = &mut state.open
            && open.is_small()
            && !self.limits.one_record
            && open.size() + size <= state.bytes_max
            && let Ok((buffer, lease)) = self.share.take(Class::Large)
        {
            open.grow(buffer, lease);
            state.grows = true;
        } else {
            let needed = HEADER_LEN + size;
            let (buffer, lease) = if needed > self.pool.size(Class::Small) {
                self.share.take(Class::Large)
            } else if state.grows {
                self.share.take(Class::Large).or_else(|_| self.share.take(Class::Small))
            } else {
                self.share.take(Class::Small)
            }
            .map_err(Refused::Full)?;
            state.close_open();
            let outcome = Outcome::new(self.index, Instant::now());
            state.unfinished.push_back(outcome.clone());
            state.open = Some(OpenBatch::new(buffer, lease, self.limits.codec, outcome));
        }
        Ok(state.open.as_mut().expect("just opened or grown"))
    }

    /// Puts the partition on its leader's list and wakes the sender, each only if that changes something.
    fn announce(self: &Arc<Self>, state: &mut State, ready: bool) {
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

    /// Whether something waits here for a producer id.
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

    /// Whether something waits here for a leader.
    pub(crate) fn lacks_leader(&self) -> bool {
        let state = self.state.lock();
        state.leader.is_none() && state.has_work()
    }

    /// The partition moved to another leader, or has none. Older epochs of the same topic are ignored.
    pub(crate) fn set_leader(self: &Arc<Self>, leader: Option<Arc<Broker>>, epoch: i32) {
        let mut state = self.state.lock();
        if epoch >= 0 && epoch < state.leader_epoch {
            return;
        }
        state.leader_epoch = epoch;
        let unchanged = match (&state.leader, &leader) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if unchanged {
            return;
        }
        state.leader = leader;
        // The new leader need not sit out the pause that the old one's refusal asked for.
        state.retry_at = None;
        self.relist(&mut state);
    }

    /// The topic was deleted and created again.
    pub(crate) fn restart(&self) {
        let mut state = self.state.lock();
        state.window.restart();
        state.leader_epoch = -1;
    }

    fn relist(self: &Arc<Self>, state: &mut State) {
        if let Some(leader) = state.leader.as_ref().filter(|_| state.has_work()) {
            match state.is_listed_by(leader) {
                true => leader.wake(),
                false => self.list(state),
            }
        }
    }

    /// Puts it on its leader's list. An older listing there, of a leader that has led it before, counts no longer.
    fn list(self: &Arc<Self>, state: &mut State) {
        let Some(leader) = &state.leader else { return };
        state.listings += 1;
        state.listed = Some((leader.id, state.listings));
        leader.list(Listing { partition: self.clone(), serial: state.listings });
    }

    /// Whether `broker` need not look after it any more; another that does is told.
    pub(crate) fn leaves(self: &Arc<Self>, broker: &Arc<Broker>, serial: u64) -> bool {
        self.has_left(&mut self.state.lock(), broker, serial)
    }

    fn has_left(self: &Arc<Self>, state: &mut State, broker: &Arc<Broker>, serial: u64) -> bool {
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

    /// Whether a batch is ready that only a lane keeps from leaving; `striped` if the batches are to be spread over twice as
    /// many lanes, which takes a window of twice what is in it: with less, a new lane would only hold back the others.
    pub(crate) fn waits(&self, now: Instant, hurry: bool, striped: bool) -> bool {
        let state = self.state.lock();
        if striped && !state.window.takes_twice() {
            return false;
        }
        let is_ready = |open: &OpenBatch| {
            hurry || open.size() >= self.limits.batch_size || open.outcome.opened_at + self.limits.linger <= now
        };
        state.window.is_open() && (!state.queue.is_empty() || state.open.as_ref().is_some_and(is_ready))
    }

    /// What `broker` may send now over the lane that asks.
    pub(crate) fn take(self: &Arc<Self>, broker: &Arc<Broker>, serial: u64, round: &Round<'_>) -> Take {
        let is_home = self.spread % round.path.lanes == round.path.lane;
        if !is_home && (!round.striped || round.missing) {
            return Take::NotYet(None);
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        if self.has_left(state, broker, serial) {
            return Take::Gone;
        }
        if let Some(spent) = state.window.wants_identity() {
            return Take::Identity(spent);
        }
        // What goes again does so in order, which only one lane keeps.
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

    fn take_batch(self: &Arc<Self>, state: &mut State, broker: &Arc<Broker>, round: &Round<'_>) -> Take {
        if state.window.in_flight() == 0 {
            state.window.drop_retries(|batch| batch.outcome.is_finished());
        }
        if state.acked_at.is_some_and(|at| round.now.saturating_duration_since(at) >= REST) {
            state.window.rested();
        }
        state.finish_settled(round.now);
        if state.window.has_retries() && round.room.is_some_and(|room| room < state.bytes_max) {
            // A retry may be as large as that; it starts the next request.
            return Take::NoRoom;
        }
        let retry = if state.others_wait(round) { state.window.next_missing() } else { state.window.next_retry() };
        if let Some((ticket, stamp, batch)) = retry {
            return self.leave(state, broker, round, ticket, stamp, batch);
        }
        if !state.window.may_open() {
            return match state.window.wants_identity() {
                Some(spent) => Take::Identity(spent),
                None => Take::NotYet(None),
            };
        }
        match state.next_size(round, &self.limits) {
            Next::None if state.window.is_idle() => {
                state.listed = None;
                Take::Gone
            }
            Next::None => Take::NotYet(None),
            Next::At(at) => Take::NotYet(Some(at)),
            Next::Batch(size) if round.room.is_some_and(|room| size > room) => Take::NoRoom,
            Next::Batch(_) => {
                if state.queue.is_empty() {
                    state.close_open();
                }
                let batch = state.queue.pop_front().expect("a batch is next");
                let (ticket, stamp) = state.window.open(batch.records);
                self.leave(state, broker, round, ticket, stamp, batch)
            }
        }
    }

    fn leave(
        self: &Arc<Self>,
        state: &mut State,
        broker: &Arc<Broker>,
        round: &Round<'_>,
        ticket: Ticket,
        stamp: Stamp,
        mut batch: Batch,
    ) -> Take {
        let (here, alone) = (Some(round.path.connection), state.window.in_flight() == 1);
        // Nothing comes before a batch that is alone. A broker that forgot the producer would wait in vain for what does.
        let reorder = !alone && state.others_wait(round);
        state.sent_over = here.filter(|_| alone || state.sent_over == here);
        state.sent_to = broker.id;
        batch.attempts += 1;
        batch.outcome.possibly_written.store(true, Ordering::Relaxed);
        Take::Batch(Outgoing { partition: self.clone(), ticket, stamp, batch, reorder })
    }

    /// The window takes a producer id.
    pub(crate) fn adopt(&self, identity: Identity) {
        let mut state = self.state.lock();
        if state.window.wants_identity().is_some() {
            state.window.adopt(identity);
        }
    }

    /// A batch is in the log.
    pub(crate) fn acked(self: &Arc<Self>, ticket: Ticket, batch: Batch, written: Written, now: Instant) {
        let mut state = self.state.lock();
        state.window.acked(ticket);
        (state.failures, state.retry_at, state.last_error) = (0, None, None);
        state.acked_at = Some(now);
        batch.succeed(written, now);
        self.resolved(&mut state, now);
    }

    /// A batch will not be sent again.
    pub(crate) fn failed(
        self: &Arc<Self>,
        ticket: Ticket,
        batch: Batch,
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
        ticket: Ticket,
        batch: Batch,
        setback: Setback,
        why: &str,
        pause: impl Fn(u32) -> Duration,
        now: Instant,
    ) {
        let mut state = self.state.lock();
        // Batches behind a failed one are out of order because of it: its error is the one to know.
        if setback != Setback::OutOfOrder || state.last_error.is_none() {
            state.last_error = Some(why.to_owned());
        }
        state.window.set_back(ticket, setback, batch);
        // Batches that were sent behind a failed one fail with it; that is one failure.
        if state.retry_at.is_none_or(|at| at <= now) && !state.window.in_round() {
            state.retry_at = Some(now + pause(state.failures));
            state.failures += 1;
        }
        self.resolved(&mut state, now);
    }

    /// A batch was too large: its halves take its place, and later batches stay smaller.
    pub(crate) fn split(self: &Arc<Self>, ticket: Ticket, size: usize, halves: Vec<Batch>, now: Instant) {
        let mut state = self.state.lock();
        state.bytes_max = state.bytes_max.min((size / 2).max(self.limits.batch_size));
        state.window.split(ticket, halves.into_iter().map(|half| (half.records, half)).collect());
        self.resolved(&mut state, now);
    }

    /// After any result: forgets what is finished and lets the leader go on.
    fn resolved(self: &Arc<Self>, state: &mut State, now: Instant) {
        state.finish_settled(now);
        while state.unfinished.front().is_some_and(|outcome| outcome.is_finished()) {
            state.unfinished.pop_front();
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
            let possibly_written = outcome.possibly_written.load(Ordering::Relaxed);
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
            let possibly_written = outcome.possibly_written.load(Ordering::Relaxed);
            outcome.fail_rest(ProduceError::Closed { possibly_written }, now);
        }
        self.purge(&mut state);
        // Brokers and partitions know each other; this lets both go.
        state.leader = None;
    }

    /// Drops batches whose records all have their result.
    fn purge(self: &Arc<Self>, state: &mut State) {
        state.unfinished.retain(|outcome| !outcome.is_finished());
        state.queue.retain(|batch| !batch.outcome.is_finished());
        if state.open.as_ref().is_some_and(|open| open.outcome.is_finished()) {
            state.open = None;
        }
        state.window.drop_retries(|batch| batch.outcome.is_finished());
    }

    /// Every batch that is not finished.
    pub(crate) fn unfinished(&self) -> Vec<Arc<Outcome>> {
        self.state.lock().unfinished.iter().cloned().collect()
    }
}

/// What is next to leave of what was never sent.
enum Next {
    None,
    At(Instant),
    Batch(usize),
}

impl State {
    /// Whether batches in flight may wait at the broker for one that is missing, which then goes at once. They do not
    /// where all went over one connection: the broker was not asked to hold them.
    fn others_wait(&self, round: &Round<'_>) -> bool {
        let are_scattered = self.window.in_flight() > 0 && self.sent_over.is_none();
        round.striped || (round.reorders && are_scattered)
    }

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

    /// Tells batches that the window settled without an answer of their own.
    fn is_listed_by(&self, leader: &Broker) -> bool {
        self.listed.is_some_and(|(id, _)| id == leader.id)
    }

    fn finish_settled(&mut self, now: Instant) {
        for (batch, fate) in self.window.settled() {
            match fate {
                Fate::Written => batch.succeed(Written::NOWHERE, now),
                Fate::Unresolved => {
                    batch.fail(ProduceError::Unresolved(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER), now);
                }
            }
        }
    }

    fn close_open(&mut self) {
        if let Some(open) = self.open.take() {
            let batch = open.close();
            self.queue.push_back(batch);
        }
    }

    fn next_size(&mut self, round: &Round<'_>, limits: &Limits) -> Next {
        if let Some(batch) = self.queue.front() {
            return Next::Batch(batch.size());
        }
        let Some(open) = &self.open else { return Next::None };
        let at = open.outcome.opened_at + limits.linger;
        if !round.hurry && open.size() < limits.batch_size && at > round.now {
            return Next::At(at);
        }
        // A batch that left small lets the next one start small again.
        self.grows = !open.is_small() && open.size() > limits.batch_size;
        Next::Batch(open.size())
    }
}
