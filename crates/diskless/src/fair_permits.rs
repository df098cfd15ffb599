//! Permits that several readers share fairly. Searches in the index, windows of extents and GETs each have their own.
//!
//! A reader is a partition with its consumers. Waiting requests are served by start-time fair queueing
//! ([`FairClock`]), so each reader gets the same share, however many requests it has. A reader that was idle goes first
//! with one request. Among the requests of one reader, the request for the lowest offset goes first.
//!
//! Invariants: the permits in use exceed the limit only if the limit was lowered, or if a single request needs more
//! than the limit. A request that is given up leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fullbore_rules::commit::DisklessPartitionId;
use fullbore_rules::commit::fair::FairClock;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The reader of a request, and the place of the request among those of the same reader.
#[derive(Clone, Copy, Debug)]
pub struct ReadFor {
    /// The partition whose records are read.
    pub partition: DisklessPartitionId,
    /// The offset of the first of these records.
    pub offset: i64,
}

/// A turn: its start in virtual time, true if its reader was not idle before, and a number that counts up.
type Turn = (u64, bool, u64);

/// Permits, at most `limit` of them in use at a time.
#[derive(Debug)]
pub struct FairPermits {
    state: Mutex<PermitState>,
}

#[derive(Debug)]
struct PermitState {
    limit: usize,
    used: usize,
    clock: FairClock<DisklessPartitionId>,
    /// The turns of all readers. A turn belongs to a reader, not to one of its requests.
    turns: BTreeMap<Turn, DisklessPartitionId>,
    /// The readers with waiting requests.
    readers: HashMap<DisklessPartitionId, WaitingReader>,
    requests: u64,
}

/// The waiting requests of a reader. It has as many turns as requests.
#[derive(Debug, Default)]
struct WaitingReader {
    turns: BTreeSet<Turn>,
    /// The requests by offset, and by the number of the request.
    requests: BTreeMap<(i64, u64), WaitingRequest>,
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
        let state = PermitState {
            limit,
            used: 0,
            clock: FairClock::default(),
            turns: BTreeMap::new(),
            readers: HashMap::new(),
            requests: 0,
        };
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
        let (number, was_idle) = (self.requests, self.clock.is_idle(&read.partition));
        let turn = (self.clock.begin(read.partition, request.cost), !was_idle, number);
        self.turns.insert(turn, read.partition);
        let reader = self.readers.entry(read.partition).or_default();
        reader.turns.insert(turn);
        reader.requests.insert((read.offset, number), request);
        number
    }

    /// Grants permits to the requests whose turn it is, as long as there are enough permits.
    fn serve(&mut self) {
        while let Some((turn, partition)) = self.turns.first_key_value().map(|(turn, partition)| (*turn, *partition)) {
            let reader = self.readers.entry(partition).or_default();
            let needed = reader.requests.first_key_value().map_or(0, |(_, first)| first.permits);
            if self.used > 0 && self.used + needed > self.limit {
                return;
            }
            self.turns.remove(&turn);
            reader.turns.remove(&turn);
            let mut cost = 0;
            if let Some((_, request)) = reader.requests.pop_first() {
                cost = request.cost;
                self.used += request.permits;
                // If the receiver is gone, `Requested::drop` gives the permits back.
                let _ = request.granted.send(());
            }
            if reader.requests.is_empty() {
                self.readers.remove(&partition);
            }
            self.clock.serve(turn.0, cost);
        }
    }

    /// Removes a request from the queue, with the last turn of its reader. Returns false if it is not in the queue.
    fn remove(&mut self, read: ReadFor, number: u64) -> bool {
        let Some(reader) = self.readers.get_mut(&read.partition) else { return false };
        if reader.requests.remove(&(read.offset, number)).is_none() {
            return false;
        }
        if let Some(turn) = reader.turns.pop_last() {
            self.turns.remove(&turn);
            self.clock.take_back(read.partition, turn.0);
        }
        if reader.requests.is_empty() {
            self.readers.remove(&read.partition);
        }
        true
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

    fn read(partition: DisklessPartitionId, offset: i64) -> ReadFor {
        ReadFor { partition, offset }
    }

    /// Requests one permit for each of `reads`, each at the cost of 1, while another reader has the only permit.
    /// Returns the reads in the order in which they were served.
    async fn served(reads: &[(DisklessPartitionId, i64)]) -> Vec<(DisklessPartitionId, i64)> {
        let (permits, order) = (Arc::new(FairPermits::new(1)), Arc::new(Mutex::new(Vec::new())));
        let first = permits.acquire(read(-1, 0), 1, 1).await;
        for (partition, offset) in reads.iter().copied() {
            let (permits, order) = (Arc::clone(&permits), Arc::clone(&order));
            tokio::spawn(async move {
                let _permit = permits.acquire(read(partition, offset), 1, 1).await;
                order.lock().push((partition, offset));
            });
            tokio::task::yield_now().await;
        }
        drop(first);
        while order.lock().len() < reads.len() {
            tokio::task::yield_now().await;
        }
        let state = permits.state.lock();
        assert!(state.turns.is_empty() && state.readers.is_empty() && state.used == 0, "{state:?}");
        order.lock().clone()
    }

    #[tokio::test]
    async fn reader_has_many_requests_another_reader_is_served_after_one_of_them() {
        let order = served(&[(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]).await;
        assert_eq!(order, [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (1, 3)]);
    }

    #[tokio::test]
    async fn requests_of_a_reader_are_out_of_order_the_lowest_offset_is_served_first() {
        assert_eq!(served(&[(1, 5), (1, 2), (1, 9), (1, 0)]).await, [(1, 0), (1, 2), (1, 5), (1, 9)]);
    }

    #[tokio::test]
    async fn request_is_given_up_its_turn_and_its_permits_are_free() {
        let permits = FairPermits::new(1);
        let held = permits.acquire(read(1, 0), 1, 1).await;
        {
            let mut waits = pin!(permits.acquire(read(2, 0), 1, 1));
            assert!(waits.as_mut().now_or_never().is_none());
        }
        assert!(permits.state.lock().turns.is_empty());
        {
            let mut waits = pin!(permits.acquire(read(2, 0), 1, 1));
            assert!(waits.as_mut().now_or_never().is_none());
            drop(held);
            // The permit is granted now, but the request is dropped before it notices.
        }
        assert_eq!(permits.state.lock().used, 0);
    }

    #[tokio::test]
    async fn limit_changes_requests_wait_or_are_served() {
        let permits = FairPermits::new(2);
        let held = [permits.acquire(read(1, 0), 1, 1).await, permits.acquire(read(1, 1), 1, 1).await];
        permits.set_limit(1);
        let mut waits = pin!(permits.acquire(read(2, 0), 1, 1));
        assert!(waits.as_mut().now_or_never().is_none());
        let [one, other] = held;
        drop(one);
        assert!(waits.as_mut().now_or_never().is_none(), "the limit is one now");
        permits.set_limit(2);
        let second = waits.await;
        drop((other, second));
        // More than the limit is granted if no other permit is in use.
        assert_eq!(permits.acquire(read(3, 0), 9, 1).await.permits, 9);
    }

    /// Runs random requests, of which some are given up, under a changing limit.
    #[tokio::test(start_paused = true)]
    async fn random_requests_come_and_go_the_limit_is_kept_and_nothing_is_left() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let (permits, used) = (Arc::new(FairPermits::new(4)), Arc::new(AtomicUsize::new(0)));
            let mut tasks = Vec::new();
            for _ in 0..200 {
                let (partition, offset) = (random.below(5) as i64, random.below(9) as i64);
                let (count, cost) = (1 + random.below(4), 1 + random.below(50));
                let (takes, patience) = (random.below(30) as u64, random.below(300) as u64);
                let (permits, used) = (Arc::clone(&permits), Arc::clone(&used));
                tasks.push(tokio::spawn(async move {
                    let wait = permits.acquire(read(partition, offset), count, cost);
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
            assert!(state.turns.is_empty() && state.readers.is_empty() && state.used == 0, "{seed}: {state:?}");
        }
    }
}
