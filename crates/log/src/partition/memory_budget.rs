//! Limits the memory of batches that wait until they are durable, and shares it fairly among producers.
//!
//! A batch needs a [`MemoryPermit`] before it is admitted. The batches of one producer that wait for an upload get at
//! most half of the memory that other producers leave, so a new producer always finds some. Requests without a permit
//! wait in a queue. The producer with the fewest bytes waiting for an upload goes first, so that a producer with little
//! to send does not wait for the backlogs of others.
//!
//! Invariant: memory is counted from the moment its permit is given until the permit is dropped.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use fullbore_rules::sequence::Stamp;
use fullbore_rules::sequence::parking::fits;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Identifies a producer when memory and uploads are shared among producers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProducerKey {
    /// An idempotent producer, over all its connections.
    Id(i64),
    /// All producers of one connection that are not idempotent.
    Connection(SocketAddr),
}

impl ProducerKey {
    /// Returns the producer of a batch with this stamp, which arrived on the connection from `peer`.
    pub fn of(stamp: &Stamp, peer: SocketAddr) -> ProducerKey {
        match stamp.is_idempotent() {
            true => ProducerKey::Id(stamp.producer_id),
            false => ProducerKey::Connection(peer),
        }
    }
}

/// The memory budget. All sizes are in bytes.
#[derive(Debug)]
pub struct MemoryBudget {
    max: usize,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    /// The total size of all permits.
    held: usize,
    /// The total size of those permits whose batches still wait for their upload.
    waiting: usize,
    shares: HashMap<ProducerKey, Share>,
    /// The producers that have requests in the queue. The first one gets the next permit (see [`Share::turn`]).
    turns: BTreeMap<(usize, u64), ProducerKey>,
    arrivals: u64,
    is_closed: bool,
}

/// A producer's bytes that wait for an upload, and its queued requests.
#[derive(Debug, Default)]
struct Share {
    /// The size of the batches that wait to be uploaded.
    waiting: usize,
    /// The queued requests, in the order of their arrival.
    queue: BTreeMap<u64, QueuedRequest>,
}

#[derive(Debug)]
struct QueuedRequest {
    bytes: usize,
    answer: oneshot::Sender<MemoryPermit>,
}

/// Permits for queued requests. They are sent after the lock is released.
type Grants = Vec<(oneshot::Sender<MemoryPermit>, MemoryPermit)>;

/// The budget is closed, and gives no more permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl MemoryBudget {
    /// Creates a budget of `max` bytes.
    pub fn new(max: usize) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget { max, state: Mutex::default() })
    }

    /// Returns the size of the whole budget.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns a permit for `bytes` if this memory is free. Returns `None` if it is not, or if a producer in the queue
    /// has no more bytes waiting for an upload than this one.
    ///
    /// # Errors
    /// Returns [`Closed`] once the budget is closed.
    pub fn try_take(self: &Arc<Self>, producer: ProducerKey, bytes: usize) -> Result<Option<MemoryPermit>, Closed> {
        let bytes = bytes.min(self.max);
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Closed);
        }
        let own = state.own(producer);
        let is_next = state.turns.first_key_value().is_none_or(|((first, _), _)| own < *first);
        let is_free = is_next && self.has_room(&state, producer, bytes);
        Ok(is_free.then(|| self.give(&mut state, producer, bytes)))
    }

    /// Waits for a permit for `bytes`. Returns `None` once the budget is closed. Dropping the future removes the
    /// request from the queue.
    pub async fn take(self: &Arc<Self>, producer: ProducerKey, bytes: usize) -> Option<MemoryPermit> {
        let bytes = bytes.min(self.max);
        let (answer, given) = oneshot::channel();
        let (position, grants) = {
            let mut state = self.state.lock();
            if state.is_closed {
                return None;
            }
            let position = state.arrivals;
            state.arrivals += 1;
            state.change(producer, |share| share.queue.insert(position, QueuedRequest { bytes, answer }));
            (position, self.grant(&mut state))
        };
        send(grants);
        let _queued = Queued { budget: self, producer, position };
        given.await.ok()
    }

    /// Stops giving permits. Queued requests end without one.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.turns.clear();
        state.shares.values_mut().for_each(|share| share.queue.clear());
    }

    /// Returns true if the producer may take `bytes` more. These bytes must fit into the budget. If any batches wait
    /// for an upload, the bytes must also fit into the producer's share: half of the memory that other producers leave.
    fn has_room(&self, state: &BudgetState, producer: ProducerKey, bytes: usize) -> bool {
        let on_their_way = state.held - state.waiting;
        let waiting_max = self.max.saturating_sub(on_their_way);
        let is_share = || fits(state.own(producer), bytes, state.waiting, waiting_max);
        state.held + bytes <= self.max && (state.waiting == 0 || is_share())
    }

    fn give(self: &Arc<Self>, state: &mut BudgetState, producer: ProducerKey, bytes: usize) -> MemoryPermit {
        state.held += bytes;
        state.waiting += bytes;
        state.change(producer, |share| share.waiting += bytes);
        MemoryPermit { budget: Arc::clone(self), producer, bytes, is_waiting: true }
    }

    /// Gives permits to queued requests in order, until one does not fit.
    fn grant(self: &Arc<Self>, state: &mut BudgetState) -> Grants {
        let mut grants = Vec::new();
        while let Some((producer, bytes)) = state.first_queued()
            && self.has_room(state, producer, bytes)
        {
            let Some((_, request)) = state.change(producer, |share| share.queue.pop_first()) else { break };
            grants.push((request.answer, self.give(state, producer, bytes)));
        }
        grants
    }

    /// Makes a change that frees memory, and gives the freed memory to queued requests.
    fn free(self: &Arc<Self>, change: impl FnOnce(&mut BudgetState)) {
        let grants = {
            let mut state = self.state.lock();
            change(&mut state);
            self.grant(&mut state)
        };
        send(grants);
    }
}

impl BudgetState {
    /// Returns how many bytes of this producer wait to be uploaded.
    fn own(&self, producer: ProducerKey) -> usize {
        self.shares.get(&producer).map_or(0, |share| share.waiting)
    }

    /// Returns the producer and the size of the next request in the queue; `None` if the queue is empty. This is the
    /// oldest request of the producer with the fewest bytes waiting for an upload. If several producers have equally
    /// few, the oldest of their requests is next.
    fn first_queued(&self) -> Option<(ProducerKey, usize)> {
        let (_, producer) = self.turns.first_key_value()?;
        let (_, first) = self.shares.get(producer)?.queue.first_key_value()?;
        Some((*producer, first.bytes))
    }

    /// Changes a producer's share, and keeps the queue in order. The time is logarithmic in the number of producers and
    /// requests.
    fn change<T>(&mut self, producer: ProducerKey, change: impl FnOnce(&mut Share) -> T) -> T {
        let share = self.shares.entry(producer).or_default();
        let before = share.turn();
        let changed = change(share);
        let (after, is_used) = (share.turn(), share.is_used());
        if before != after {
            before.map(|turn| self.turns.remove(&turn));
            after.map(|turn| self.turns.insert(turn, producer));
        }
        if !is_used {
            self.shares.remove(&producer);
        }
        changed
    }

    fn end_waiting(&mut self, producer: ProducerKey, bytes: usize) {
        self.waiting -= bytes;
        self.change(producer, |share| share.waiting -= bytes);
    }
}

impl Share {
    /// Returns the producer's position in the queue. Producers with fewer bytes waiting for an upload come first, and
    /// among equals the producer with the oldest request. Returns `None` if the producer has no request.
    fn turn(&self) -> Option<(usize, u64)> {
        self.queue.first_key_value().map(|(position, _)| (self.waiting, *position))
    }

    fn is_used(&self) -> bool {
        self.waiting > 0 || !self.queue.is_empty()
    }
}

/// Sends permits to the callers that wait for them. If a caller is gone, its permit is returned.
fn send(grants: Grants) {
    for (answer, room) in grants {
        drop(answer.send(room));
    }
}

/// A guard for a queued request. Dropping the guard removes the request from the queue.
struct Queued<'a> {
    budget: &'a Arc<MemoryBudget>,
    producer: ProducerKey,
    position: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.budget.free(|state| state.change(self.producer, |share| drop(share.queue.remove(&self.position))));
    }
}

/// A part of the memory budget, which is returned when this is dropped.
pub struct MemoryPermit {
    budget: Arc<MemoryBudget>,
    producer: ProducerKey,
    bytes: usize,
    /// True while the batch waits to be uploaded.
    is_waiting: bool,
}

impl MemoryPermit {
    /// Combines the permits of batches that are uploaded in one object. The batches then no longer count as waiting for
    /// an upload. All permits must be from the same budget. Returns `None` if there are none.
    pub fn of_object(rooms: Vec<MemoryPermit>) -> Option<MemoryPermit> {
        let (budget, producer) = rooms.first().map(|first| (Arc::clone(&first.budget), first.producer))?;
        let mut all = MemoryPermit { budget, producer, bytes: 0, is_waiting: false };
        let budget = Arc::clone(&all.budget);
        budget.free(|state| {
            for mut room in rooms {
                if room.is_waiting {
                    state.end_waiting(room.producer, room.bytes);
                }
                all.bytes += std::mem::take(&mut room.bytes);
            }
        });
        Some(all)
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        // A permit of 0 bytes was combined with others, so its memory belongs to the combined permit.
        if self.bytes > 0 {
            self.budget.free(|state| {
                state.held -= self.bytes;
                if self.is_waiting {
                    state.end_waiting(self.producer, self.bytes);
                }
            });
        }
    }
}

impl fmt::Debug for MemoryPermit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryPermit { producer, bytes, is_waiting, .. } = self;
        write!(formatter, "Room({bytes} of {producer:?}, waiting: {is_waiting})")
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    type Taking<'a> = Pin<Box<dyn Future<Output = Option<MemoryPermit>> + 'a>>;

    /// Queues a request, and checks that it does not get a permit at once.
    fn taking(budget: &Arc<MemoryBudget>, producer: i64, bytes: usize) -> Taking<'_> {
        let mut taking: Taking<'_> = Box::pin(budget.take(ProducerKey::Id(producer), bytes));
        assert!(taken(&mut taking).is_none(), "there is room");
        taking
    }

    /// Returns the permit if the request has got one.
    fn taken(taking: &mut Taking<'_>) -> Option<MemoryPermit> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(room) => room,
            std::task::Poll::Pending => None,
        }
    }

    fn try_take(budget: &Arc<MemoryBudget>, producer: i64, bytes: usize) -> Option<MemoryPermit> {
        budget.try_take(ProducerKey::Id(producer), bytes).expect("open")
    }

    fn all_of(budget: &Arc<MemoryBudget>, producer: i64, bytes: usize) -> Vec<MemoryPermit> {
        std::iter::from_fn(|| try_take(budget, producer, bytes)).collect()
    }

    fn counted(budget: &Arc<MemoryBudget>) -> (usize, usize, usize) {
        let state = budget.state.lock();
        (state.held, state.waiting, state.shares.len())
    }

    #[test]
    fn flooders_leave_room_for_a_small_batch_of_a_newcomer() {
        for flooders in [1, 2, 7, 30] {
            let budget = MemoryBudget::new(10_000);
            let held: Vec<_> = (0..flooders).flat_map(|flooder| all_of(&budget, flooder, 10)).collect();
            let newcomer = try_take(&budget, 100, 1);
            assert!(newcomer.is_some(), "{} bytes of {flooders} flooders", 10 * held.len());
        }
    }

    #[test]
    fn a_batch_on_its_way_gives_its_share_back_and_not_its_memory() {
        let budget = MemoryBudget::new(1_000);
        let first = all_of(&budget, 1, 100);
        assert_eq!(first.len(), 5, "half");
        let object = MemoryPermit::of_object(first);
        assert_eq!(counted(&budget), (500, 0, 0));
        let objects = [object, MemoryPermit::of_object(all_of(&budget, 1, 100))];
        assert_eq!(counted(&budget), (700, 0, 0), "half of what is left");
        drop(objects);
        assert_eq!(counted(&budget), (0, 0, 0));
        assert!(MemoryPermit::of_object(Vec::new()).is_none());
    }

    #[test]
    fn a_batch_larger_than_the_budget_takes_all_of_it() {
        let budget = MemoryBudget::new(1_000);
        let large = try_take(&budget, 1, 5_000).expect("nothing waits");
        assert!(try_take(&budget, 2, 1).is_none());
        drop(large);
        assert!(try_take(&budget, 2, 1).is_some());
    }

    #[test]
    fn a_newcomer_in_the_queue_goes_before_flooders() {
        let budget = MemoryBudget::new(1_000);
        let mut held = all_of(&budget, 1, 100);
        let (mut flooding, mut newcomer) = (taking(&budget, 1, 100), taking(&budget, 2, 300));
        held.truncate(4);
        let given = (taken(&mut newcomer), taken(&mut flooding));
        assert!(matches!(given, (Some(_), None)), "{given:?}");
        drop(given.0);
        assert!(taken(&mut flooding).is_some());
    }

    #[test]
    fn a_newcomer_with_little_waits_behind_no_flooder_that_waits() {
        let budget = MemoryBudget::new(1_000);
        let held = all_of(&budget, 1, 100);
        let mut flooding = taking(&budget, 1, 100);
        let small: Vec<_> = (0..9).map_while(|_| try_take(&budget, 2, 10)).collect();
        assert_eq!(small.len(), 9);
        assert!(try_take(&budget, 1, 1).is_none(), "it waits itself");
        drop((held, small));
        assert!(taken(&mut flooding).is_some());
    }

    #[test]
    fn a_large_batch_in_the_queue_is_not_overtaken_for_ever() {
        let budget = MemoryBudget::new(1_000);
        let mut small: Vec<_> = (0..9).flat_map(|producer| all_of(&budget, producer, 10)).collect();
        let mut large = taking(&budget, 100, 400);
        while taken(&mut large).is_none() {
            assert!(try_take(&budget, 200, 10).is_none(), "it has no less");
            drop(small.pop().expect("there is room before all are gone"));
        }
    }

    #[test]
    fn a_request_that_is_dropped_leaves_the_queue_to_those_behind_it() {
        let budget = MemoryBudget::new(1_000);
        let held = all_of(&budget, 1, 100);
        let first = taking(&budget, 1, 100);
        let mut second = taking(&budget, 2, 400);
        assert!(try_take(&budget, 3, 1).is_none(), "others wait");
        drop(first);
        assert!(taken(&mut second).is_none(), "it is more than half of the rest");
        drop(held);
        assert!(taken(&mut second).is_some());
        assert_eq!(counted(&budget), (0, 0, 0));
    }

    /// Returns the order in which the queue should be, computed from the shares alone.
    fn turns_of(state: &BudgetState) -> BTreeMap<(usize, u64), ProducerKey> {
        let queued = |(producer, share): (&ProducerKey, &Share)| Some((share.turn()?, *producer));
        state.shares.iter().filter_map(queued).collect()
    }

    #[test]
    fn turns_follow_shares_whatever_comes_and_goes() {
        let budget = MemoryBudget::new(1_000);
        let (mut held, mut queued, mut seed) = (Vec::new(), Vec::<Taking<'_>>::new(), 7_u64);
        for step in 0..5_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let [pick, producer, bytes] = [seed >> 33, seed >> 40 & 7, seed >> 45 & 127].map(|part| part as usize);
            match pick % 4 {
                0 => queued.push(Box::pin(budget.take(ProducerKey::Id(producer as i64), bytes + 1))),
                1 => held.extend(try_take(&budget, producer as i64, bytes + 1)),
                2 if !held.is_empty() => drop(held.swap_remove(pick / 4 % held.len())),
                _ if !queued.is_empty() && pick % 8 == 3 => drop(queued.swap_remove(pick / 8 % queued.len())),
                _ => {
                    let uploaded = held.drain(..held.len() / 2).collect();
                    held.extend(MemoryPermit::of_object(uploaded));
                }
            }
            queued.retain_mut(|taking| taken(taking).map(|room| held.push(room)).is_none());
            let state = budget.state.lock();
            assert_eq!(state.turns, turns_of(&state), "step {step}");
            assert!(state.shares.values().all(Share::is_used), "step {step}");
        }
        drop((held, queued));
        assert_eq!(counted(&budget), (0, 0, 0));
    }

    #[test]
    fn a_closed_budget_ends_requests() {
        let budget = MemoryBudget::new(100);
        let held = try_take(&budget, 1, 100);
        let queued = budget.take(ProducerKey::Id(2), 1);
        let mut queued: Taking<'_> = Box::pin(queued);
        assert!(taken(&mut queued).is_none());
        budget.close();
        let ended = queued.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(ended, std::task::Poll::Ready(None)));
        drop(held);
        assert!(matches!(budget.try_take(ProducerKey::Id(1), 1), Err(Closed)));
    }
}
