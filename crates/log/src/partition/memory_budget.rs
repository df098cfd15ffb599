//! Limits the memory of batches that wait until they are durable, and shares it fairly among the connections of
//! producers.
//!
//! A batch needs a [`MemoryPermit`] before it is admitted. The batches of one connection that wait for an upload get at
//! most half of the memory that others leave, so a new connection always finds some. Shares belong to connections
//! because a client may use thousands of producer ids over one connection.
//!
//! Requests without a permit wait in a queue. The connection with the fewest bytes waiting for an upload goes first. So
//! a producer with little to send does not wait for the backlogs of others. Among connections with about equally few
//! bytes, a small request overtakes larger ones. But a large request is overtaken only for a limited time, since small
//! requests may never end.
//!
//! Invariant: memory is counted from the moment its permit is given until the permit is dropped.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use fullbore_rules::sequence::parking::fits;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Bytes that wait for an upload are compared in steps of this part of the budget. Two connections whose bytes are in
/// the same step have about equally few.
const STEPS: usize = 256;

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
    /// The total size of all permits that were ever given. Queued requests age by it.
    given: u64,
    /// The size of a step, in which connections have about equally many bytes waiting for an upload.
    step: usize,
    shares: HashMap<SocketAddr, Share>,
    /// The connections that have requests in the queue. The first one gets the next permit.
    turns: BTreeMap<Turn, SocketAddr>,
    arrivals: u64,
    is_closed: bool,
}

/// A place in the queue: the step of the connection's bytes that wait for an upload, the rank of its oldest request
/// ([`Arrival::rank`]), and the number of that request.
type Turn = (usize, u64, u64);

/// The bytes of a connection that wait for an upload, and its queued requests.
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
    arrival: Arrival,
    answer: oneshot::Sender<MemoryPermit>,
}

/// The moment at which a request arrived.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// The total size of all permits given before.
    given: u64,
    /// How many bytes may be given to later requests, for each byte of this one.
    weight: u64,
}

impl Arrival {
    /// Returns the rank of a request among connections with about equally few bytes waiting for an upload. `bytes` is
    /// the size of the request and of the batches of its connection that wait. The request goes before larger ones, but
    /// not before those after whose arrival too much was given to others.
    fn rank(self, bytes: usize) -> u64 {
        self.given.saturating_add(self.weight.saturating_mul(bytes as u64))
    }
}

/// Permits for queued requests. They are sent after the lock is released.
type Grants = Vec<(oneshot::Sender<MemoryPermit>, MemoryPermit)>;

/// The budget is closed, and gives no more permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl MemoryBudget {
    /// Creates a budget of `max` bytes.
    pub fn new(max: usize) -> Arc<MemoryBudget> {
        let state = BudgetState { step: max / STEPS + 1, ..BudgetState::default() };
        Arc::new(MemoryBudget { max, state: Mutex::new(state) })
    }

    /// Returns the size of the whole budget.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns a permit for `bytes` of a batch from the connection `peer`, if this memory is free. Returns `None` if it
    /// is not, or if a request in the queue goes before this one.
    ///
    /// # Errors
    /// Returns [`Closed`] once the budget is closed.
    pub fn try_take(self: &Arc<Self>, peer: SocketAddr, bytes: usize) -> Result<Option<MemoryPermit>, Closed> {
        let bytes = bytes.min(self.max);
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Closed);
        }
        let is_free = state.is_next(peer, bytes) && self.has_room(&state, peer, bytes);
        Ok(is_free.then(|| self.give(&mut state, peer, bytes)))
    }

    /// Waits for a permit for `bytes`. Returns `None` once the budget is closed. Dropping the future removes the
    /// request from the queue.
    pub async fn take(self: &Arc<Self>, peer: SocketAddr, bytes: usize) -> Option<MemoryPermit> {
        let bytes = bytes.min(self.max);
        let (answer, given) = oneshot::channel();
        let (position, grants) = {
            let mut state = self.state.lock();
            if state.is_closed {
                return None;
            }
            let position = state.arrivals;
            state.arrivals += 1;
            let arrival = state.arrival();
            state.change(peer, |share| share.queue.insert(position, QueuedRequest { bytes, arrival, answer }));
            (position, self.grant(&mut state))
        };
        send(grants);
        let _queued = Queued { budget: self, peer, position };
        given.await.ok()
    }

    /// Stops giving permits. Queued requests end without one.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.turns.clear();
        state.shares.values_mut().for_each(|share| share.queue.clear());
    }

    /// Returns true if the connection may take `bytes` more. These bytes must fit into the budget. If any batches wait
    /// for an upload, the bytes must also fit into the connection's share: half of the memory that others leave.
    fn has_room(&self, state: &BudgetState, peer: SocketAddr, bytes: usize) -> bool {
        let on_their_way = state.held - state.waiting;
        let waiting_max = self.max.saturating_sub(on_their_way);
        let is_share = || fits(state.own(peer), bytes, state.waiting, waiting_max);
        state.held + bytes <= self.max && (state.waiting == 0 || is_share())
    }

    fn give(self: &Arc<Self>, state: &mut BudgetState, peer: SocketAddr, bytes: usize) -> MemoryPermit {
        state.held += bytes;
        state.waiting += bytes;
        state.given += bytes as u64;
        state.change(peer, |share| share.waiting += bytes);
        MemoryPermit { budget: Arc::clone(self), peer, bytes, is_waiting: true }
    }

    /// Gives permits to queued requests in order, until one does not fit.
    fn grant(self: &Arc<Self>, state: &mut BudgetState) -> Grants {
        let mut grants = Vec::new();
        while let Some((peer, bytes)) = state.first_queued()
            && self.has_room(state, peer, bytes)
        {
            let Some((_, request)) = state.change(peer, |share| share.queue.pop_first()) else { break };
            grants.push((request.answer, self.give(state, peer, bytes)));
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
    /// Returns how many bytes from this connection wait to be uploaded.
    fn own(&self, peer: SocketAddr) -> usize {
        self.shares.get(&peer).map_or(0, |share| share.waiting)
    }

    /// Returns the arrival of a request that comes now. Its weight is twice the number of connections in the queue. If
    /// all of them have requests of one size, a small request overtakes them all, since none is old enough.
    fn arrival(&self) -> Arrival {
        Arrival { given: self.given, weight: 2 * (self.turns.len() as u64 + 1) }
    }

    /// Returns true if a request of `bytes` that comes now goes before the queue.
    fn is_next(&self, peer: SocketAddr, bytes: usize) -> bool {
        let Some((&(step, rank, _), _)) = self.turns.first_key_value() else { return true };
        let own = self.own(peer);
        (own / self.step, self.arrival().rank(own + bytes)) < (step, rank)
    }

    /// Returns the connection and the size of the next request in the queue; `None` if the queue is empty.
    fn first_queued(&self) -> Option<(SocketAddr, usize)> {
        let (_, peer) = self.turns.first_key_value()?;
        let (_, first) = self.shares.get(peer)?.queue.first_key_value()?;
        Some((*peer, first.bytes))
    }

    /// Changes a connection's share, and keeps the queue in order. The time is logarithmic in the number of connections
    /// and requests.
    fn change<T>(&mut self, peer: SocketAddr, change: impl FnOnce(&mut Share) -> T) -> T {
        let share = self.shares.entry(peer).or_default();
        let before = share.turn(self.step);
        let changed = change(share);
        let (after, is_used) = (share.turn(self.step), share.is_used());
        if before != after {
            before.map(|turn| self.turns.remove(&turn));
            after.map(|turn| self.turns.insert(turn, peer));
        }
        if !is_used {
            self.shares.remove(&peer);
        }
        changed
    }

    fn end_waiting(&mut self, peer: SocketAddr, bytes: usize) {
        self.waiting -= bytes;
        self.change(peer, |share| share.waiting -= bytes);
    }
}

impl Share {
    /// Returns the connection's place in the queue, or `None` if it has no request there.
    fn turn(&self, step: usize) -> Option<Turn> {
        let (position, first) = self.queue.first_key_value()?;
        Some((self.waiting / step, first.arrival.rank(self.waiting + first.bytes), *position))
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
    peer: SocketAddr,
    position: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.budget.free(|state| state.change(self.peer, |share| drop(share.queue.remove(&self.position))));
    }
}

/// A part of the memory budget, which is returned when this is dropped.
pub struct MemoryPermit {
    budget: Arc<MemoryBudget>,
    peer: SocketAddr,
    bytes: usize,
    /// True while the batch waits to be uploaded.
    is_waiting: bool,
}

impl MemoryPermit {
    /// Returns the connection that the batch came from.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Combines the permits of batches that are uploaded in one object. The batches then no longer count as waiting for
    /// an upload. All permits must be from the same budget. Returns `None` if there are none.
    pub fn of_object(rooms: Vec<MemoryPermit>) -> Option<MemoryPermit> {
        let (budget, peer) = rooms.first().map(|first| (Arc::clone(&first.budget), first.peer))?;
        let mut all = MemoryPermit { budget, peer, bytes: 0, is_waiting: false };
        let budget = Arc::clone(&all.budget);
        budget.free(|state| {
            for mut room in rooms {
                if room.is_waiting {
                    state.end_waiting(room.peer, room.bytes);
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
                    state.end_waiting(self.peer, self.bytes);
                }
            });
        }
    }
}

impl fmt::Debug for MemoryPermit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryPermit { peer, bytes, is_waiting, .. } = self;
        write!(formatter, "Room({bytes} of {peer}, waiting: {is_waiting})")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    type Taking<'a> = Pin<Box<dyn Future<Output = Option<MemoryPermit>> + 'a>>;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Queues a request, and checks that it does not get a permit at once.
    fn taking(budget: &Arc<MemoryBudget>, port: u16, bytes: usize) -> Taking<'_> {
        let mut taking: Taking<'_> = Box::pin(budget.take(peer(port), bytes));
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

    fn try_take(budget: &Arc<MemoryBudget>, port: u16, bytes: usize) -> Option<MemoryPermit> {
        budget.try_take(peer(port), bytes).expect("open")
    }

    fn all_of(budget: &Arc<MemoryBudget>, port: u16, bytes: usize) -> Vec<MemoryPermit> {
        std::iter::from_fn(|| try_take(budget, port, bytes)).collect()
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

    /// Small batches of ever more connections use up the memory while a large batch waits.
    #[test]
    fn a_large_batch_in_the_queue_is_not_overtaken_for_ever() {
        let budget = MemoryBudget::new(1_000);
        let mut small: VecDeque<_> = (0..9).flat_map(|port| all_of(&budget, port, 10)).collect();
        let (mut large, mut overtaking) = (taking(&budget, 100, 400), 0);
        while taken(&mut large).is_none() {
            match try_take(&budget, 200 + overtaking, 10) {
                Some(permit) => {
                    small.push_back(permit);
                    overtaking += 1;
                }
                None => drop(small.pop_front().expect("there is room before all are gone")),
            }
        }
        assert!((1..=80).contains(&overtaking), "{overtaking} batches of 10 bytes");
    }

    #[test]
    fn a_small_batch_in_the_queue_goes_before_large_ones_of_many_connections() {
        let budget = MemoryBudget::new(100_000);
        let mut held: VecDeque<_> = (0..200).map_while(|port| try_take(&budget, port, 900)).collect();
        let count = u16::try_from(held.len()).expect("few");
        let mut large: VecDeque<_> = (count..200).map(|port| taking(&budget, port, 900)).collect();
        for round in 0..1_000 {
            let mut small: Taking<'_> = Box::pin(budget.take(peer(5_000), 1));
            assert!(taken(&mut small).is_some(), "round {round}");
            // A large batch is committed, and another connection sends one.
            drop(held.pop_front());
            held.push_back(large.front_mut().and_then(taken).expect("there is room"));
            large.pop_front();
            large.push_back(taking(&budget, 200 + round, 900));
        }
    }

    #[test]
    fn connections_come_and_go_no_share_is_left() {
        let budget = MemoryBudget::new(1_000);
        for port in 0..10_000 {
            let permit = try_take(&budget, port, 100).expect("nothing waits");
            assert_eq!(permit.peer(), peer(port));
        }
        assert_eq!((counted(&budget), budget.state.lock().shares.capacity() < 100), ((0, 0, 0), true));
    }

    #[test]
    fn a_request_that_is_dropped_leaves_the_queue_to_those_behind_it() {
        let budget = MemoryBudget::new(1_000);
        let held = all_of(&budget, 1, 100);
        let first = taking(&budget, 1, 100);
        let mut second = taking(&budget, 2, 260);
        assert!(try_take(&budget, 3, 200).is_none(), "others wait");
        drop(first);
        assert!(taken(&mut second).is_none(), "it is more than half of the rest");
        drop(held);
        assert!(taken(&mut second).is_some());
        assert_eq!(counted(&budget), (0, 0, 0));
    }

    /// Returns the order in which the queue should be, computed from the shares alone.
    fn turns_of(state: &BudgetState) -> BTreeMap<Turn, SocketAddr> {
        let queued = |(peer, share): (&SocketAddr, &Share)| Some((share.turn(state.step)?, *peer));
        state.shares.iter().filter_map(queued).collect()
    }

    #[test]
    fn turns_follow_shares_whatever_comes_and_goes() {
        let budget = MemoryBudget::new(1_000);
        let (mut held, mut queued, mut seed) = (Vec::new(), Vec::<Taking<'_>>::new(), 7_u64);
        for step in 0..5_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let [pick, port, bytes] = [seed >> 33, seed >> 40 & 7, seed >> 45 & 127].map(|part| part as usize);
            match pick % 4 {
                0 => queued.push(Box::pin(budget.take(peer(port as u16), bytes + 1))),
                1 => held.extend(try_take(&budget, port as u16, bytes + 1)),
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
        let queued = budget.take(peer(2), 1);
        let mut queued: Taking<'_> = Box::pin(queued);
        assert!(taken(&mut queued).is_none());
        budget.close();
        let ended = queued.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(ended, std::task::Poll::Ready(None)));
        drop(held);
        assert!(matches!(budget.try_take(peer(1), 1), Err(Closed)));
    }
}
