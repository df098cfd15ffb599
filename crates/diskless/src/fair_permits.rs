//! Permits that several readers share fairly. Searches in the index, windows of extents and GETs each have their own.
//!
//! Waiting requests are served by start-time fair queueing ([`FairClock`]), on two levels. First, each reader gets the
//! same share, however many requests it has and however many partitions it reads. Then each partition of a reader gets
//! the same part of this share. A reader or a partition that was idle goes first with one request. Among the requests
//! of a reader for one partition, the request for the lowest offset goes first.
//!
//! Invariants: the permits in use exceed the limit only if the limit was lowered, or if a single request needs more
//! than the limit. A request that is given up leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use fullbore_rules::commit::DisklessPartitionId;
use fullbore_rules::commit::fair::FairClock;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The reader of records. Readers share all permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReaderId {
    /// The client of the connection with this number.
    Client(u64),
    /// The broker itself, when it looks up offsets or transactions of this partition.
    LookUp(DisklessPartitionId),
}

/// The reader of a request, and the place of the request among those of the same reader.
#[derive(Clone, Copy, Debug)]
pub struct ReadFor {
    /// The reader that gets the records.
    pub reader: ReaderId,
    /// The partition whose records are read.
    pub partition: DisklessPartitionId,
    /// The offset of the first of these records.
    pub offset: i64,
}

/// A turn: its start in virtual time, true if its owner was not idle before, and a number that counts up.
type Turn = (u64, bool, u64);

/// The turns of several owners in a fair order. A turn belongs to an owner, not to one of its requests.
#[derive(Debug)]
struct FairTurns<K> {
    clock: FairClock<K>,
    turns: BTreeMap<Turn, K>,
    /// The turns of each owner that has any.
    of: HashMap<K, BTreeSet<Turn>>,
}

impl<K> Default for FairTurns<K> {
    fn default() -> FairTurns<K> {
        FairTurns { clock: FairClock::default(), turns: BTreeMap::new(), of: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash> FairTurns<K> {
    /// Adds a turn of `owner`. `number` must be higher than those of all earlier turns.
    fn add(&mut self, owner: K, cost: usize, number: u64) {
        let was_idle = self.clock.is_idle(&owner);
        let turn = (self.clock.begin(owner, cost), !was_idle, number);
        self.turns.insert(turn, owner);
        self.of.entry(owner).or_default().insert(turn);
    }

    /// Returns the owner of the next turn.
    fn next(&self) -> Option<K> {
        self.turns.first_key_value().map(|(_, owner)| *owner)
    }

    /// Removes the next turn, in which a request of this cost is served.
    fn serve(&mut self, cost: usize) {
        if let Some((turn, owner)) = self.turns.pop_first() {
            self.remove(owner, turn);
            self.clock.serve(turn.0, cost);
        }
    }

    /// Removes the last turn of `owner`, because one of its requests is given up.
    fn take_back(&mut self, owner: K) {
        if let Some(turn) = self.of.get(&owner).and_then(|turns| turns.last().copied()) {
            self.turns.remove(&turn);
            self.remove(owner, turn);
            self.clock.take_back(owner, turn.0);
        }
    }

    fn remove(&mut self, owner: K, turn: Turn) {
        let Some(turns) = self.of.get_mut(&owner) else { return };
        turns.remove(&turn);
        if turns.is_empty() {
            self.of.remove(&owner);
        }
    }
}

/// Permits, at most `limit` of them in use at a time.
#[derive(Debug)]
pub struct FairPermits {
    state: Mutex<PermitState>,
}

#[derive(Debug)]
struct PermitState {
    limit: usize,
    used: usize,
    turns: FairTurns<ReaderId>,
    /// The readers with waiting requests.
    readers: HashMap<ReaderId, WaitingReader>,
    requests: u64,
}

/// The waiting requests of a reader. It has as many turns as requests, and so has each of its partitions.
#[derive(Debug, Default)]
struct WaitingReader {
    turns: FairTurns<DisklessPartitionId>,
    /// The requests for each partition by offset, and by the number of the request.
    requests: HashMap<DisklessPartitionId, BTreeMap<(i64, u64), WaitingRequest>>,
}

#[derive(Debug)]
struct WaitingRequest {
    permits: usize,
    cost: usize,
    granted: oneshot::Sender<()>,
}

/// Permits in use, until they are dropped.
#[derive(Debug)]
pub struct FairPermit<'p> {
    of: &'p FairPermits,
    permits: usize,
}

/// A request until its permits are in use. When this guard is dropped before, the request is given up.
struct Requested<'p> {
    of: &'p FairPermits,
    read: ReadFor,
    number: u64,
    permits: usize,
    is_granted: bool,
}

impl FairPermits {
    /// Creates `limit` permits.
    pub fn new(limit: usize) -> FairPermits {
        let (turns, readers) = (FairTurns::default(), HashMap::new());
        let state = PermitState { limit, used: 0, turns, readers, requests: 0 };
        FairPermits { state: Mutex::new(state) }
    }

    /// Waits for `permits` permits. `cost` is counted for the share of the reader. If `permits` exceeds the limit, the
    /// request waits until no other permit is in use.
    pub async fn acquire(&self, read: ReadFor, permits: usize, cost: usize) -> FairPermit<'_> {
        let (granted, grant) = oneshot::channel();
        let number = self.state.lock().request(read, WaitingRequest { permits, cost, granted });
        let mut requested = Requested { of: self, read, number, permits, is_granted: false };
        self.state.lock().serve();
        let granted = grant.await;
        debug_assert!(granted.is_ok(), "a request leaves the queue only when it is served or given up");
        requested.is_granted = true;
        FairPermit { of: self, permits }
    }

    /// Returns the number of permits in use.
    pub fn used(&self) -> usize {
        self.state.lock().used
    }

    /// Sets the number of permits. Permits in use are not taken away.
    pub fn set_limit(&self, limit: usize) {
        let mut state = self.state.lock();
        state.limit = limit;
        state.serve();
    }

    fn give_back(&self, permits: usize) {
        let mut state = self.state.lock();
        state.used -= permits;
        state.serve();
    }
}

impl PermitState {
    /// Adds a request to the queue. Returns its number.
    fn request(&mut self, read: ReadFor, request: WaitingRequest) -> u64 {
        self.requests += 1;
        let (number, cost) = (self.requests, request.cost);
        self.turns.add(read.reader, cost, number);
        let reader = self.readers.entry(read.reader).or_default();
        reader.turns.add(read.partition, cost, number);
        reader.requests.entry(read.partition).or_default().insert((read.offset, number), request);
        number
    }

    /// Grants permits to the requests whose turn it is, as long as there are enough permits.
    fn serve(&mut self) {
        while let Some(id) = self.turns.next() {
            let reader = self.readers.entry(id).or_default();
            let needed = reader.first().map_or(0, |first| first.permits);
            if self.used > 0 && self.used + needed > self.limit {
                return;
            }
            let mut cost = 0;
            if let Some(request) = reader.pop_first() {
                cost = request.cost;
                self.used += request.permits;
                // If the receiver is gone, `Requested::drop` gives the permits back.
                let _ = request.granted.send(());
            }
            if reader.requests.is_empty() {
                self.readers.remove(&id);
            }
            self.turns.serve(cost);
        }
    }

    /// Removes a request from the queue, with the last turns of its reader and its partition. Returns false if it is
    /// not in the queue.
    fn remove(&mut self, read: ReadFor, number: u64) -> bool {
        let Some(reader) = self.readers.get_mut(&read.reader) else { return false };
        if reader.remove(read, number).is_none() {
            return false;
        }
        if reader.requests.is_empty() {
            self.readers.remove(&read.reader);
        }
        self.turns.take_back(read.reader);
        true
    }
}

impl WaitingReader {
    /// Returns the request that is served in the next turn.
    fn first(&self) -> Option<&WaitingRequest> {
        self.requests.get(&self.turns.next()?)?.first_key_value().map(|(_, first)| first)
    }

    /// Removes the request that is served in the next turn.
    fn pop_first(&mut self) -> Option<WaitingRequest> {
        let partition = self.turns.next()?;
        let requests = self.requests.get_mut(&partition)?;
        let (_, first) = requests.pop_first()?;
        if requests.is_empty() {
            self.requests.remove(&partition);
        }
        self.turns.serve(first.cost);
        Some(first)
    }

    /// Removes a request that is given up. Returns `None` if it is not waiting.
    fn remove(&mut self, read: ReadFor, number: u64) -> Option<WaitingRequest> {
        let requests = self.requests.get_mut(&read.partition)?;
        let removed = requests.remove(&(read.offset, number))?;
        if requests.is_empty() {
            self.requests.remove(&read.partition);
        }
        self.turns.take_back(read.partition);
        Some(removed)
    }
}

impl Drop for FairPermit<'_> {
    fn drop(&mut self) {
        self.of.give_back(self.permits);
    }
}

impl Drop for Requested<'_> {
    fn drop(&mut self) {
        if self.is_granted {
            return;
        }
        let mut state = self.of.state.lock();
        if !state.remove(self.read, self.number) {
            state.used -= self.permits;
        }
        state.serve();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use fullbore_tests::Random;
    use futures_util::FutureExt;

    use super::*;

    /// A reader, a partition and an offset.
    type Read = (u64, DisklessPartitionId, i64);

    fn read((reader, partition, offset): Read) -> ReadFor {
        ReadFor { reader: ReaderId::Client(reader), partition, offset }
    }

    /// Requests one permit for each of `reads`, each at the cost of 1, while another reader has the only permit.
    /// Returns the reads in the order in which they were served.
    async fn served(reads: &[Read]) -> Vec<Read> {
        let (permits, order) = (Arc::new(FairPermits::new(1)), Arc::new(Mutex::new(Vec::new())));
        let first = permits.acquire(read((99, 0, 0)), 1, 1).await;
        for one in reads.iter().copied() {
            let (permits, order) = (Arc::clone(&permits), Arc::clone(&order));
            tokio::spawn(async move {
                let _permit = permits.acquire(read(one), 1, 1).await;
                order.lock().push(one);
            });
            tokio::task::yield_now().await;
        }
        drop(first);
        while order.lock().len() < reads.len() {
            tokio::task::yield_now().await;
        }
        let state = permits.state.lock();
        assert!(state.turns.turns.is_empty() && state.readers.is_empty() && state.used == 0, "{state:?}");
        order.lock().clone()
    }

    #[tokio::test]
    async fn reader_has_many_requests_another_reader_is_served_after_one_of_them() {
        let order = served(&[(1, 1, 0), (1, 1, 1), (1, 1, 2), (1, 1, 3), (2, 2, 0), (2, 2, 1)]).await;
        assert_eq!(order, [(1, 1, 0), (2, 2, 0), (1, 1, 1), (2, 2, 1), (1, 1, 2), (1, 1, 3)]);
    }

    /// Regression test: a reader waited until the readers of lower offsets of its partition had no requests.
    #[tokio::test]
    async fn readers_of_lower_offsets_have_many_requests_a_reader_of_a_higher_one_is_served() {
        let order = served(&[(1, 7, 0), (1, 7, 1), (1, 7, 2), (2, 7, 5), (2, 7, 6), (3, 7, 9)]).await;
        assert_eq!(order, [(1, 7, 0), (2, 7, 5), (3, 7, 9), (1, 7, 1), (2, 7, 6), (1, 7, 2)]);
    }

    #[tokio::test]
    async fn reader_has_many_partitions_it_has_one_share_and_its_partitions_take_turns() {
        let order = served(&[(1, 1, 0), (1, 1, 1), (1, 1, 2), (1, 2, 0), (1, 3, 0), (2, 4, 0), (2, 4, 1)]).await;
        assert_eq!(order, [(1, 1, 0), (2, 4, 0), (1, 2, 0), (2, 4, 1), (1, 3, 0), (1, 1, 1), (1, 1, 2)]);
    }

    #[tokio::test]
    async fn requests_of_a_reader_are_out_of_order_the_lowest_offset_is_served_first() {
        let order = served(&[(1, 1, 5), (1, 1, 2), (1, 1, 9), (1, 1, 0)]).await;
        assert_eq!(order, [(1, 1, 0), (1, 1, 2), (1, 1, 5), (1, 1, 9)]);
    }

    #[tokio::test]
    async fn request_is_given_up_its_turn_and_its_permits_are_free() {
        let permits = FairPermits::new(1);
        let held = permits.acquire(read((1, 7, 0)), 1, 1).await;
        {
            let mut waits = pin!(permits.acquire(read((2, 7, 0)), 1, 1));
            assert!(waits.as_mut().now_or_never().is_none());
        }
        assert!(permits.state.lock().turns.turns.is_empty());
        {
            let mut waits = pin!(permits.acquire(read((2, 7, 0)), 1, 1));
            assert!(waits.as_mut().now_or_never().is_none());
            drop(held);
            // The permit is granted now, but the request is dropped before it notices.
        }
        assert_eq!(permits.state.lock().used, 0);
    }

    #[tokio::test]
    async fn limit_changes_requests_wait_or_are_served() {
        let permits = FairPermits::new(2);
        let held = [permits.acquire(read((1, 7, 0)), 1, 1).await, permits.acquire(read((1, 7, 1)), 1, 1).await];
        permits.set_limit(1);
        let mut waits = pin!(permits.acquire(read((2, 7, 0)), 1, 1));
        assert!(waits.as_mut().now_or_never().is_none());
        let [one, other] = held;
        drop(one);
        assert!(waits.as_mut().now_or_never().is_none(), "the limit is one now");
        permits.set_limit(2);
        let second = waits.await;
        drop((other, second));
        // More than the limit is granted if no other permit is in use.
        assert_eq!(permits.acquire(read((3, 7, 0)), 9, 1).await.permits, 9);
    }

    /// Runs random requests, of which some are given up, under a changing limit.
    #[tokio::test(start_paused = true)]
    async fn random_requests_come_and_go_the_limit_is_kept_and_nothing_is_left() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let (permits, used) = (Arc::new(FairPermits::new(4)), Arc::new(AtomicUsize::new(0)));
            let mut tasks = Vec::new();
            for _ in 0..200 {
                let (reader, partition) = (random.below(5) as u64, random.below(3) as i64);
                let offset = random.below(9) as i64;
                let (count, cost) = (1 + random.below(4), 1 + random.below(50));
                let (takes, patience) = (random.below(30) as u64, random.below(300) as u64);
                let (permits, used) = (Arc::clone(&permits), Arc::clone(&used));
                tasks.push(tokio::spawn(async move {
                    let wait = permits.acquire(read((reader, partition, offset)), count, cost);
                    let Ok(permit) = tokio::time::timeout(Duration::from_millis(patience), wait).await else { return };
                    assert!(used.fetch_add(count, Ordering::SeqCst) + count <= 4);
                    tokio::time::sleep(Duration::from_millis(takes)).await;
                    used.fetch_sub(count, Ordering::SeqCst);
                    drop(permit);
                }));
                tokio::time::sleep(Duration::from_millis(random.below(12) as u64)).await;
            }
            for task in tasks {
                task.await.expect("the limit is kept");
            }
            let state = permits.state.lock();
            assert!(state.turns.turns.is_empty() && state.readers.is_empty() && state.used == 0, "{seed}: {state:?}");
        }
    }
}
