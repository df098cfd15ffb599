//! The state of a schedule that survives a process: the clock, the store, the topic, the clients, and the first broken
//! promise.
//!
//! Each part of a schedule has its own random generator, so that a schedule runs the same way each time.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fullbore_tests::Random;
use fullbore_wire::Uuid;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Fault;
use super::consumer::Seen;
use super::partition_producer::PartitionProducer;
use super::transactional::Transactional;

/// The wall clock at the start of a schedule, in ms.
const WALL_MS: i64 = 1_700_000_000_000;
/// How long after the last fault all requests must be answered.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

pub fn ms(ms: usize) -> Duration {
    Duration::from_millis(ms as u64)
}

/// Returns the random generator for one part of the schedule.
pub fn random(seed: u64, part: u64) -> Random {
    Random::new(Random::new(seed ^ (part << 48)).next())
}

/// The settings of a schedule, which depend only on its seed.
#[derive(Debug)]
pub struct Setup {
    pub seed: u64,
    pub fault: Option<Fault>,
    pub partitions: i32,
    /// Number of brokers in the cluster. All of them are in one process.
    pub brokers: usize,
    /// Average number of requests after which a client moves to another broker.
    pub moves: usize,
    /// Average number of requests to the store for each faulty one. 0 if there are no faults. The next two fields are
    /// the same for the index and for the clients.
    pub store_trouble: usize,
    pub index_trouble: usize,
    pub client_trouble: usize,
    /// Minimum duration of a PUT.
    pub put_ms: usize,
    /// The time from which on there are no faults.
    pub calm_from: Duration,
    /// When the process ends. The second value is true if it ends cleanly.
    pub ends: Vec<(Duration, bool)>,
    /// The outages, each with its begin and end. The third value is true for an outage of the index, and false for one
    /// of the store.
    pub outages: Vec<(Duration, Duration, bool)>,
    /// When the topic is deleted, and how long it stays deleted.
    pub deletions: Vec<(Duration, Duration)>,
    /// True if the partitions have forgotten some producers because there were too many.
    pub has_forgotten: bool,
    pub window: usize,
    pub commit_interval_ms: u64,
    pub puts_per_second: u32,
    pub slots: usize,
    pub attempts_max: u32,
    pub object_bytes_max: usize,
    pub memory_bytes: usize,
    pub cache_bytes: usize,
    pub batches: usize,
    /// How many clients write transactions.
    pub transactional: usize,
}

impl Setup {
    pub fn new(seed: u64, fault: Option<Fault>) -> Setup {
        let mut by = random(seed, 1);
        let trouble = |by: &mut Random| [0, 40, 12, 5][by.below(4)];
        let calm_from = ms(by.between(5_000, 40_000));
        let within = |by: &mut Random| ms(by.below(calm_from.as_millis() as usize));
        let mut ends: Vec<_> = (0..by.below(3)).map(|_| (within(&mut by), by.below(4) == 0)).collect();
        ends.sort();
        let outages = (0..by.below(5).saturating_sub(2)).map(|_| {
            let from = within(&mut by);
            (from, from + ms(by.between(1_000, 31_000)), by.below(2) == 0)
        });
        let outages: Vec<_> = outages.collect();
        let deletions = (0..by.below(6).saturating_sub(3)).map(|_| (within(&mut by), ms(by.below(3_000))));
        let mut deletions: Vec<_> = deletions.collect();
        deletions.sort();
        let object_bytes_max = [400, 1500, 20_000][by.below(3)];
        let mut of_cluster = random(seed, 7);
        Setup {
            brokers: [1, 1, 2, 3][of_cluster.below(4)],
            moves: of_cluster.between(2, 20),
            seed,
            fault,
            partitions: by.between(1, 4),
            store_trouble: trouble(&mut by),
            index_trouble: trouble(&mut by),
            client_trouble: trouble(&mut by),
            put_ms: [1, 20, 150][by.below(3)],
            calm_from,
            ends,
            outages,
            deletions,
            has_forgotten: by.below(3) == 0,
            window: by.between(5, 12),
            commit_interval_ms: [10, 50, 250][by.below(3)],
            puts_per_second: [0, 4, 50][by.below(3)],
            slots: by.between(1, 9),
            attempts_max: by.between(1, 4),
            object_bytes_max,
            memory_bytes: object_bytes_max + [200, 2_000, 100_000][by.below(3)],
            cache_bytes: [0, 600, 1 << 20][by.below(3)],
            batches: by.between(6, 26),
            transactional: 0,
        }
    }
}

/// The virtual time of a schedule. It continues when a new process starts.
#[derive(Debug)]
struct Clock {
    /// The virtual time at which the current process started.
    base: Duration,
    began: Option<Instant>,
    /// The sum of all jumps of the wall clock, in ms.
    skew_ms: i64,
}

/// The number of faults that are under way, and the time at which the last one ended.
#[derive(Debug, Default)]
struct Troubles {
    under_way: usize,
    last_end: Duration,
}

/// The topic of the schedule. It always has the same name, but gets a new id each time it is created.
#[derive(Debug, Default)]
pub struct TopicState {
    /// The id of the existing topic. `None` while it is deleted.
    pub current: Option<Uuid>,
    pub deleted: Vec<Uuid>,
    made: u8,
}

pub struct World {
    pub setup: Setup,
    pub directory: PathBuf,
    clock: Mutex<Clock>,
    troubles: Mutex<Troubles>,
    pub topic: Mutex<TopicState>,
    pub store: Arc<super::store::Troubled>,
    pub producers: Vec<Arc<Mutex<PartitionProducer>>>,
    pub transactional: Vec<Arc<Mutex<Transactional>>>,
    pub seen: Mutex<Seen>,
    /// The largest offset before which the schedule has requested to delete records, for each partition.
    pub deleted_to: Mutex<HashMap<(Uuid, i32), i64>>,
    wrong: Mutex<Option<String>>,
    /// Three values: true if events are printed, a digest of all events, and the number of events.
    reported: Mutex<(bool, u64, u64)>,
}

impl World {
    pub fn new(setup: Setup, directory: PathBuf, is_reported: bool) -> Arc<World> {
        Arc::new_cyclic(|world| World {
            directory,
            clock: Mutex::new(Clock { base: Duration::ZERO, began: None, skew_ms: 0 }),
            troubles: Mutex::default(),
            topic: Mutex::default(),
            store: super::store::Troubled::new(world.clone(), &setup),
            producers: PartitionProducer::all(&setup),
            transactional: Transactional::all(&setup),
            seen: Mutex::default(),
            deleted_to: Mutex::default(),
            wrong: Mutex::default(),
            reported: Mutex::new((is_reported, 0, 0)),
            setup,
        })
    }

    /// Starts the clock for a new process. Must be called within the runtime of the process.
    pub fn begin_life(&self) {
        let base = self.now();
        let mut clock = self.clock.lock();
        (clock.base, clock.began) = (base, Some(Instant::now()));
    }

    /// Stops the clock for a process that is about to end.
    pub fn end_life(&self) {
        let base = self.now();
        let mut clock = self.clock.lock();
        (clock.base, clock.began) = (base, None);
    }

    pub fn now(&self) -> Duration {
        let clock = self.clock.lock();
        clock.base + clock.began.map_or(Duration::ZERO, |began| began.elapsed())
    }

    pub fn wall_ms(&self) -> i64 {
        let now = self.now().as_millis() as i64;
        WALL_MS + now + self.clock.lock().skew_ms
    }

    /// Moves the wall clock by `by_ms`.
    pub fn skew(&self, by_ms: i64) {
        self.clock.lock().skew_ms += by_ms;
    }

    pub fn is_calm(&self) -> bool {
        self.now() >= self.setup.calm_from
    }

    /// Returns true in one of `one_in` calls on average. Returns false if `one_in` is 0, or once the schedule has no
    /// more faults.
    pub fn strikes(&self, by: &mut Random, one_in: usize) -> bool {
        one_in > 0 && !self.is_calm() && by.below(one_in) == 0
    }

    /// Returns the end of the current outage of the store, or of the index if `of_index` is true. Returns `None` if
    /// there is no outage.
    pub fn out_until(&self, of_index: bool) -> Option<Duration> {
        let now = self.now();
        let of = |(from, until, is_index): &(Duration, Duration, bool)| {
            (*is_index == of_index && *from <= now && now < *until).then_some(*until)
        };
        self.setup.outages.iter().filter_map(of).max()
    }

    /// Records a fault that is already over.
    pub fn trouble(&self) {
        self.troubles.lock().last_end = self.now();
    }

    /// Records a fault that lasts until the returned guard is dropped.
    pub fn lasting_trouble(self: &Arc<Self>) -> Trouble {
        self.troubles.lock().under_way += 1;
        Trouble(Arc::clone(self))
    }

    /// Returns the time at which the last fault ended, or `None` during a fault.
    pub fn untroubled_since(&self) -> Option<Duration> {
        let now = self.now();
        let troubles = self.troubles.lock();
        let is_out = self.setup.outages.iter().any(|(from, until, _)| *from <= now && now < *until);
        let outages = self.setup.outages.iter().map(|(_, until, _)| *until).filter(|until| *until <= now);
        (troubles.under_way == 0 && !is_out).then(|| outages.fold(troubles.last_end, Duration::max))
    }

    /// Returns true if a request that began at `begun` is overdue: the time limit has passed since then and since the
    /// last fault. While a fault lasts, no request is overdue.
    pub fn is_late(&self, begun: Duration) -> bool {
        // If the memory is hardly enough for one batch, each batch waits for all earlier ones, so the time limit is
        // longer.
        let is_narrow = self.setup.memory_bytes <= self.setup.object_bytes_max + 200;
        let within = if is_narrow { ANSWERED_WITHIN * 4 } else { ANSWERED_WITHIN };
        self.untroubled_since().is_some_and(|since| self.now() > since.max(begun) + within)
    }

    /// Creates the topic, either for the first time or again.
    pub fn make_topic(&self) -> Uuid {
        let mut topic = self.topic.lock();
        topic.made += 1;
        let id = Uuid([topic.made; 16]);
        topic.current = Some(id);
        id
    }

    /// Deletes the topic and returns its id, or `None` if it is already deleted.
    pub fn delete_topic(&self) -> Option<Uuid> {
        let mut topic = self.topic.lock();
        let id = topic.current.take()?;
        topic.deleted.push(id);
        Some(id)
    }

    /// Records a broken promise, unless one is already recorded.
    pub fn wrong(&self, what: impl FnOnce() -> String) {
        let now = self.now();
        let mut wrong = self.wrong.lock();
        if wrong.is_none() {
            let what = format!("at {} ms: {}", now.as_millis(), what());
            drop(wrong);
            self.report(|| format!("WRONG {what}"));
            wrong = self.wrong.lock();
            *wrong = Some(what);
        }
    }

    pub fn found_wrong(&self) -> Option<String> {
        self.wrong.lock().clone()
    }

    /// Records an event.
    pub fn report(&self, what: impl FnOnce() -> String) {
        let now = self.now().as_millis();
        let mut reported = self.reported.lock();
        let text = format!("{now:>7} {}", what());
        let hash = text.bytes().fold(reported.1, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        (reported.1, reported.2) = (hash, reported.2 + 1);
        if reported.0 {
            println!("{text}");
        }
    }

    /// Returns the digest of all events.
    pub fn digest(&self) -> u64 {
        self.reported.lock().1
    }
}

/// A fault that lasts until this guard is dropped.
pub struct Trouble(Arc<World>);

impl Drop for Trouble {
    fn drop(&mut self) {
        let now = self.0.now();
        let mut troubles = self.0.troubles.lock();
        troubles.under_way -= 1;
        troubles.last_end = now;
    }
}
