//! Tests in virtual time that a producer fills a path (the law of bytes in flight, docs/internals/producer.md). The
//! cells of a grid differ in the number of partitions, their windows, the memory and the simulated link.

use super::*;
use crate::config::InFlight;
use crate::delivery::Written;
use crate::grant::Grants;
use crate::limit::BatchLimit;
use crate::partition::{Partition, Path, ProducerLimits};
use crate::partitioner::{RunLimits, Sticky};
use crate::pipe::{Pipe, Sent};
use crate::pool::Pool;
use crate::record::ProducerRecord;
use fullbore_wire::batch::Compression;
use fullbore_wire::{Text, Uuid};
use std::collections::VecDeque;
use std::time::Duration;

const REQUEST_MAX: usize = 1 << 20;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A cell of the grid.
#[derive(Clone, Copy, Debug)]
struct Cell {
    partitions: usize,
    record: usize,
    rtt: Duration,
    bytes_per_second: f64,
    memory: usize,
    batch_size: usize,
    linger: Duration,
    /// True if the records are assigned to the partitions in turn, as if by their keys.
    keyed: bool,
}

impl Cell {
    /// Returns a cell with a round trip of 150 ms, the rate that a plain TCP stream had over such a path, and defaults
    /// for everything else.
    fn far(partitions: usize, record: usize) -> Cell {
        Cell {
            partitions,
            record,
            rtt: ms(150),
            bytes_per_second: 17e6,
            memory: 32 << 20,
            batch_size: 16 << 10,
            linger: ms(5),
            keyed: false,
        }
    }
}

/// A request in flight, with the time of its response, its sample, and its batches.
type Flying = (Instant, Sent, Vec<Outgoing>);

struct World {
    cell: Cell,
    value: Vec<u8>,
    partitions: Vec<Arc<Partition>>,
    sticky: Sticky,
    records: u64,
    work: Arc<Worklist<Listing>>,
    active: Vec<Listing>,
    pipe: Pipe,
    grants: Grants,
    link_free_at: Instant,
    flying: VecDeque<Flying>,
    /// The times at which the unacknowledged records should have been sent, by partition.
    intended: Vec<VecDeque<Instant>>,
    latencies: Vec<Duration>,
    acknowledged: u64,
}

fn now() -> Instant {
    crate::clock::now()
}

impl World {
    fn new(cell: Cell) -> World {
        let limits = Arc::new(ProducerLimits {
            batch_size: cell.batch_size,
            one_record: false,
            batch_bytes_max: REQUEST_MAX,
            linger: cell.linger,
            delivery_timeout: Duration::from_secs(120),
            compression: Compression::None,
            level: None,
            idempotent: true,
            coordinator: None,
        });
        let pool = Pool::new(cell.memory, 4 << 10);
        let work = Worklist::new(1);
        let limit = Arc::new(BatchLimit::new(REQUEST_MAX));
        let new = |at: usize| Partition::new(Text::from_static("t"), at as i32, limits.clone(), limit.clone(), &pool);
        let partitions: Vec<_> = (0..cell.partitions).map(new).collect();
        partitions.iter().for_each(|partition| {
            partition.set_leader(Uuid::default(), Some(work.clone()), 1);
        });
        World {
            cell,
            value: vec![b'v'; cell.record],
            intended: vec![VecDeque::new(); partitions.len()],
            partitions,
            sticky: Sticky::new(7),
            records: 0,
            work,
            active: Vec::new(),
            pipe: Pipe::new(InFlight::Auto, cell.memory, now()),
            grants: Grants::default(),
            link_free_at: now(),
            flying: VecDeque::new(),
            latencies: Vec::new(),
            acknowledged: 0,
        }
    }

    /// Sends a record. Returns false if there is no memory for it.
    fn append(&mut self, intended: Instant) -> bool {
        let (record, size) = (ProducerRecord::new("t", &self.value), self.cell.record + 40);
        let all = self.partitions.len();
        let peers = if self.cell.keyed { 1 } else { all };
        let tries = if self.cell.keyed { 1 } else { all.min(8) };
        for _ in 0..tries {
            let partition = match self.cell.keyed {
                true => &self.partitions[self.records as usize % all],
                false => self.sticky.choose(&self.partitions, |partition| partition.prospect()),
            };
            if partition.append(&record, (0, size), peers, None).is_ok() {
                self.intended[partition.index as usize].push_back(intended);
                self.records += 1;
                if all > 1 {
                    let limits = RunLimits { batch_size: self.cell.batch_size, batch_bytes_max: REQUEST_MAX };
                    self.sticky.produced(size, &limits, &self.partitions, |partition| partition.prospect());
                }
                return true;
            }
            self.sticky.skip();
        }
        false
    }

    /// Sends all batches that may be sent now. Returns the time of the next check, if one is needed.
    fn send(&mut self, hurry: bool) -> Option<Instant> {
        self.active.append(&mut self.work.incoming.lock());
        while self.pipe.has_room() {
            let path = Path { connection: 0, lane: 0, lanes: 1 };
            let (rtt, grants) = (self.pipe.min_rtt(), &self.grants);
            let (room, missing, striped, reorders) = (None, false, false, false);
            let round = Round {
                now: now(),
                hurry,
                flush: false,
                rtt,
                room,
                grants,
                missing,
                path,
                striped,
                reorders,
                pass: None,
            };
            let identity = |_| Some(ProducerIdAndEpoch { producer_id: 1, epoch: 0 });
            let Gathered { batches, next, .. } =
                gather(&mut self.active, &self.work, round, REQUEST_MAX, identity, |_| {});
            if batches.is_empty() {
                self.pipe.limited();
                return next;
            }
            let bytes = batches.iter().map(|outgoing| outgoing.batch.size()).sum();
            let sent = self.pipe.sent(bytes, now());
            let takes = Duration::from_secs_f64(bytes as f64 / self.cell.bytes_per_second);
            self.link_free_at = self.link_free_at.max(now()) + takes;
            self.flying.push_back((self.link_free_at + self.cell.rtt, sent, batches));
        }
        None
    }

    /// Handles the next response.
    fn answer(&mut self) {
        let Some((_, sent, batches)) = self.flying.pop_front() else { return };
        self.pipe.answered(&sent, now());
        for Outgoing { partition, ticket, batch, .. } in batches {
            let intended = &mut self.intended[partition.index as usize];
            self.latencies.extend(intended.drain(..batch.records as usize).map(|at| now() - at));
            self.acknowledged += batch.size() as u64;
            partition.acked(ticket, batch, Written::NOWHERE, now());
        }
    }

    /// Runs for a time. Sends one record per `pause`. With `None`, sends as many as there is memory for. Returns the
    /// throughput in bytes per second.
    async fn run(&mut self, time: Duration, pause: Option<Duration>) -> f64 {
        let (begin, before) = (now(), self.acknowledged);
        let mut next_record = begin;
        while now() < begin + time {
            let mut full = false;
            match pause {
                Some(pause) => {
                    while next_record <= now() {
                        self.append(next_record);
                        next_record += pause;
                    }
                }
                None => {
                    while self.append(now()) {}
                    full = true;
                }
            }
            let again = self.send(full);
            let answer = self.flying.front().map(|(at, ..)| *at);
            let paced = pause.map(|_| next_record);
            let next = [again, answer, paced].into_iter().flatten().min().expect("something happens");
            tokio::time::advance(next.saturating_duration_since(now()).max(Duration::from_micros(50))).await;
            while self.flying.front().is_some_and(|(at, ..)| *at <= now()) {
                self.answer();
            }
        }
        (self.acknowledged - before) as f64 / (now() - begin).as_secs_f64()
    }
}

/// Returns the fraction of the link's rate that a producer reaches after its start if it always has records.
async fn filled(cell: Cell) -> f64 {
    let mut world = World::new(cell);
    world.run(12 * cell.rtt, None).await;
    world.run(10 * cell.rtt, None).await / cell.bytes_per_second
}

async fn check_filled(cells: impl IntoIterator<Item = Cell>) {
    for cell in cells {
        let part = filled(cell).await;
        assert!(part >= 0.95, "{part:.3} of the link by {cell:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_is_filled_with_any_number_of_partitions_and_any_size() {
    for partitions in [1, 2, 3, 6, 12, 100] {
        let far = [100, 1000, 10_000].map(|record| Cell::far(partitions, record));
        let near = far.map(|far| Cell { rtt: ms(20), bytes_per_second: 100e6, ..far });
        let keyed = far.map(|far| Cell { keyed: true, ..far });
        check_filled(far.into_iter().chain(near).chain(keyed).filter(|cell| cell.record > 100 || !cell.keyed)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_is_filled_with_any_memory_batch_size_and_linger() {
    for partitions in [1, 3, 100] {
        let far = Cell::far(partitions, 1000);
        let memories = [8 << 20, 128 << 20].map(|memory| Cell { memory, ..far });
        let sizes = [1 << 10, 64 << 10, 1 << 20].map(|batch_size| Cell { batch_size, ..far });
        let lingers = [0, 100].map(|linger| Cell { linger: ms(linger), ..far });
        check_filled(memories.into_iter().chain(sizes).chain(lingers)).await;
    }
}

/// Returns the latencies at one record per millisecond, in round trips: the median and the 99th percentile.
async fn paced(partitions: usize, keyed: bool) -> (f64, f64) {
    let cell = Cell { keyed, ..Cell::far(partitions, 1000) };
    let mut world = World::new(cell);
    world.run(12 * cell.rtt, Some(ms(1))).await;
    world.latencies.clear();
    world.run(20 * cell.rtt, Some(ms(1))).await;
    world.latencies.sort_unstable();
    let at = |part: f64| world.latencies[(world.latencies.len() as f64 * part) as usize];
    let parts = |latency: Duration| latency.as_secs_f64() / cell.rtt.as_secs_f64();
    (parts(at(0.5)), parts(at(0.99)))
}

/// With a window of five, a partition sends five batches per round trip. A record therefore waits for up to a fifth of
/// a round trip, even without any load.
#[tokio::test(start_paused = true)]
async fn rate_below_capacity_records_do_not_wait() {
    for (partitions, most) in [(1, (1.13, 1.25)), (3, (1.06, 1.15)), (12, (1.06, 1.15)), (100, (1.06, 1.15))] {
        let (p50, p99) = paced(partitions, false).await;
        assert!(p50 <= most.0 && p99 <= most.1, "{partitions} partitions: {p50:.3} and {p99:.3} round trips");
    }
    let (p50, p99) = paced(12, true).await;
    assert!(p50 <= 1.13 && p99 <= 1.25, "with keys: {p50:.3} and {p99:.3} round trips");
}
