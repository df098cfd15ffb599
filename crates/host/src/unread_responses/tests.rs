//! Clients that read and clients that do not, at times that the tests choose.

use super::*;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Waker};

const SECOND: Duration = Duration::from_secs(1);
const HALF: usize = BYTES_MAX / 2;

/// A client whose reading is simulated.
#[derive(Clone, Default)]
struct Simulated {
    taken: Arc<AtomicU64>,
    is_evicted: Arc<AtomicBool>,
}

impl Simulated {
    fn reads(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Relaxed);
    }

    fn is_evicted(&self) -> bool {
        self.is_evicted.load(Relaxed)
    }
}

impl Connection for Simulated {
    fn bytes_taken(&self) -> Option<u64> {
        Some(self.taken.load(Relaxed))
    }

    fn evict(&self) {
        self.is_evicted.store(true, Relaxed);
    }
}

/// The table of unread responses, and a clock that the test moves.
struct Simulation {
    table: Table,
    now: Instant,
}

impl Simulation {
    fn new() -> Self {
        let table = std::mem::replace(&mut *UnreadResponses::default().table.lock(), empty());
        Simulation { now: table.polled_at, table }
    }

    /// Adds a finished response, and returns its number and client.
    fn hold(&mut self, bytes: usize) -> (u64, Simulated) {
        let (number, client) = (self.table.add(), Simulated::default());
        self.table.hold(number, bytes, Box::new(client.clone()), self.now);
        (number, client)
    }

    fn reserve(&mut self, number: u64, bytes: usize) -> bool {
        self.table.reserve(number, bytes, self.now)
    }
}

fn empty() -> Table {
    Table { bytes_max: 0, bytes: 0, next: 0, responses: BTreeMap::new(), polled_at: Instant::now() }
}

#[test]
fn client_that_stops_reading_is_evicted_once_its_room_is_wanted() {
    let mut simulation = Simulation::new();
    let (_, first) = simulation.hold(HALF);
    simulation.now += SECOND;
    let (_, second) = simulation.hold(HALF);
    simulation.now += 60 * SECOND;
    assert_eq!((first.is_evicted(), second.is_evicted()), (false, false), "nobody wants room");
    let wanted = simulation.table.add();
    assert!(simulation.reserve(wanted, HALF / 2), "there is room for it at once");
    assert_eq!((first.is_evicted(), second.is_evicted()), (true, false));
    assert_eq!(simulation.table.bytes, HALF + HALF / 2);
}

#[test]
fn clients_that_read_steadily_keep_their_room_while_others_wait() {
    let mut simulation = Simulation::new();
    let readers = [simulation.hold(HALF), simulation.hold(HALF)];
    let wanted = simulation.table.add();
    for _ in 0..100 {
        simulation.now += SECOND;
        readers.iter().for_each(|(_, client)| client.reads(STEP_BYTES));
        assert!(!simulation.reserve(wanted, HALF / 2));
    }
    for (number, _) in &readers {
        simulation.table.shrink(*number, HALF / 4);
    }
    assert!(simulation.reserve(wanted, HALF / 2), "only the rest of a response counts");
    assert!(readers.iter().all(|(_, client)| !client.is_evicted()));
}

#[test]
fn client_that_takes_single_bytes_counts_as_one_that_does_not_read() {
    let mut simulation = Simulation::new();
    let (_, trickling) = simulation.hold(HALF);
    let (_, reading) = simulation.hold(HALF);
    let wanted = simulation.table.add();
    let waited = (1..60).find(|_| {
        simulation.now += SECOND;
        trickling.reads(10);
        reading.reads(STEP_BYTES);
        simulation.reserve(wanted, HALF)
    });
    assert_eq!(waited, Some(3));
    assert_eq!((trickling.is_evicted(), reading.is_evicted()), (true, false));
}

#[test]
fn response_beyond_the_limit_evicts_the_client_that_does_not_read() {
    let mut simulation = Simulation::new();
    let (_, first) = simulation.hold(HALF);
    let (_, second) = simulation.hold(HALF);
    simulation.now += STALLED_AFTER;
    first.reads(STEP_BYTES);
    let (third, client) = simulation.hold(HALF);
    assert_eq!([&first, &second, &client].map(|client| client.is_evicted()), [false, true, false]);
    simulation.hold(2 * BYTES_MAX);
    assert!(first.is_evicted() && client.is_evicted(), "a single response may exceed the limit");
    assert_eq!(simulation.table.bytes, 2 * BYTES_MAX);
    simulation.table.shrink(third, HALF);
    simulation.table.remove(third);
    assert_eq!(simulation.table.bytes, 2 * BYTES_MAX, "the evicted one does not count twice");
}

#[test]
fn response_beyond_the_limit_evicts_no_client_that_has_just_read() {
    let mut simulation = Simulation::new();
    let clients = [HALF; 4].map(|bytes| simulation.hold(bytes).1);
    assert!(clients.iter().all(|client| !client.is_evicted()));
    simulation.hold(HALF);
    assert!(clients[0].is_evicted(), "responses take at most twice the limit");
    assert!(clients[1..].iter().all(|client| !client.is_evicted()));
}

#[test]
fn made_response_counts_with_its_size_and_a_small_one_not_at_all() {
    let mut simulation = Simulation::new();
    for (bytes, counted) in [(COUNTED_FROM + 1, COUNTED_FROM + 1), (COUNTED_FROM, 0)] {
        let number = simulation.table.add();
        assert!(simulation.reserve(number, BYTES_MAX));
        simulation.table.hold(number, bytes, Box::new(Simulated::default()), simulation.now);
        assert_eq!(simulation.table.bytes, counted);
        simulation.table.remove(number);
    }
    let number = simulation.table.add();
    assert!(simulation.reserve(number, usize::MAX), "alone, even the largest one gets room");
}

#[tokio::test]
async fn requests_get_room_in_their_order_once_a_client_has_read() {
    let all = Arc::new(UnreadResponses::default());
    let (held, large, small) = (all.room(), all.room(), all.room());
    held.hold(HALF, Box::new(Simulated::default()));
    let mut context = Context::from_waker(Waker::noop());
    let mut first = Box::pin(large.reserve(BYTES_MAX));
    assert!(first.as_mut().poll(&mut context).is_pending());
    let mut second = pin!(small.reserve(HALF));
    assert!(second.as_mut().poll(&mut context).is_pending(), "the earlier request is waiting");
    assert!(pin!(all.room().reserve(COUNTED_FROM)).poll(&mut context).is_ready(), "it does not count");
    drop(held);
    assert!(first.as_mut().poll(&mut context).is_ready());
    assert!(second.as_mut().poll(&mut context).is_pending());
    drop(first);
    drop(large);
    assert!(second.as_mut().poll(&mut context).is_ready());
}

#[tokio::test(start_paused = true)]
async fn request_without_room_gives_up_after_a_minute() {
    let all = Arc::new(UnreadResponses::default());
    let began = Instant::now();
    let held = all.room();
    let client = Simulated::default();
    held.hold(BYTES_MAX, Box::new(client.clone()));
    let reading = async {
        loop {
            client.reads(STEP_BYTES);
            tokio::time::sleep(SECOND).await;
        }
    };
    let wanted = all.room();
    tokio::select! {
        refused = wanted.reserve(HALF) => assert_eq!(refused, Err(NoRoom)),
        () = reading => {}
    }
    assert!(began.elapsed() >= WAIT_MAX && !client.is_evicted());
}
