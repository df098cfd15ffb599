//! Reading whole topics as fast as they come: partitions are assigned by hand, from a timestamp's offset on.
//!
//! Not a consumer group, and nothing is committed. One thread and one connection per leader ([`lane`]); this file finds
//! the leaders, starts the lanes and starts them again when leaders move. Invariant: each record of a partition reaches
//! its [`Sink`] once, in offset order, and with a matching checksum.

mod cursor;
mod lane;

pub use cursor::{Cursor, Sink};
pub use fullbore_wire::batch::{BatchView, Record};
pub use lane::FetchSettings;

use crate::client::{ClientError, Cluster, Connection, Stopper};
use fullbore_wire::Text;
use lane::{Lane, LaneEnd};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// How often a run looks at its deadline and calls its observer.
const TICK: Duration = Duration::from_millis(20);
/// How much later than fetch.max.wait.ms an answer may come.
const ANSWER_GRACE: Duration = Duration::from_secs(1);
/// The pause before leaders are looked up again.
const RETRY_BACKOFF: Duration = Duration::from_millis(100);

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    /// The cluster's or the connection's.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Bytes that are no record batch, or whose checksum does not match.
    #[error(
        "partition {partition} of topic '{topic}' has a broken batch at offset {offset}: {reason}; check the broker's disk"
    )]
    Corrupt {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// The first offset that could not be read.
        offset: i64,
        /// What is wrong.
        reason: String,
    },
    /// The partition has no such offset, and may not be started again.
    #[error(
        "partition {partition} of topic '{topic}' has no offset {offset}; start with the oldest it has by --offset beginning, \
         with those to come by --offset end"
    )]
    OutOfRange {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// Before its first or past its last.
        offset: i64,
    },
    /// The sink did not accept a record.
    #[error("partition {partition} of topic '{topic}', offset {offset}: {reason}")]
    Refused {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// The record's offset.
        offset: i64,
        /// In the sink's words.
        reason: String,
    },
    /// The timeout passed while some partition could not be read.
    #[error("no record came in {} ms: {source}", waited.as_millis())]
    Unreachable {
        /// How long.
        waited: Duration,
        /// Why, as last seen.
        source: ClientError,
    },
    /// The system gave no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// What all lanes count together. Written by the lanes, read by anyone.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    records: AtomicU64,
    bytes: AtomicU64,
    /// Microseconds after `started` at which the last records came.
    last_record_us: AtomicU64,
    first_fetch: OnceLock<Instant>,
    finished: OnceLock<SystemTime>,
    stop: AtomicBool,
    records_wanted: u64,
    trouble: Mutex<Option<String>>,
}

impl Progress {
    fn new(records_wanted: u64) -> Self {
        Progress {
            started: Instant::now(),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            last_record_us: AtomicU64::new(0),
            first_fetch: OnceLock::new(),
            finished: OnceLock::new(),
            stop: AtomicBool::new(false),
            records_wanted,
            trouble: Mutex::default(),
        }
    }

    /// Why some partition is not being read just now.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Records read so far.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Bytes of their keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// From the start until the first fetch was sent; `None` before that.
    pub fn setup(&self) -> Option<Duration> {
        self.first_fetch.get().map(|first| *first - self.started)
    }

    fn idle(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_micros(self.last_record_us.load(Ordering::Relaxed)))
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts one response's records; the one that reaches the number wanted ends the run.
    fn count(&self, records: u64, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let before = self.records.fetch_add(records, Ordering::Relaxed);
        self.last_record_us.store(self.started.elapsed().as_micros() as u64, Ordering::Relaxed);
        if before + records >= self.records_wanted {
            self.finished.get_or_init(SystemTime::now);
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// How a run went.
pub struct Outcome<S> {
    /// Every partition's cursor with its sink.
    pub cursors: Vec<Cursor<S>>,
    /// Counts.
    pub progress: Arc<Progress>,
    /// When the number wanted, or the end of every partition, was reached; `None` if the records ended before.
    pub finished: Option<SystemTime>,
}

/// What a run needs to know.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How to fetch.
    pub fetch: FetchSettings,
    /// The run ends with the response that reaches this many records.
    pub records: u64,
    /// The run ends when no record came for this long.
    pub timeout: Duration,
    /// Where cursors without an offset start: [`crate::client::EARLIEST`] or [`crate::client::LATEST`].
    pub start: i64,
}

/// Reads until the number wanted, the end of every partition, or until nothing comes for the timeout. `observe` is called every few milliseconds
/// and may end the run by returning false.
///
/// # Errors
/// What no retry can help: a broken batch, a record the sink refused, a topic that does not exist. When the timeout
/// passes while a partition's leader cannot be reached, why.
pub fn consume<S: Sink>(
    cluster: &mut Cluster,
    cursors: Vec<Cursor<S>>,
    plan: &Plan,
    mut observe: impl FnMut(&Progress) -> bool,
) -> Result<Outcome<S>, ConsumeError> {
    let mut run = Run::new(cluster, cursors, plan);
    let ended = run.follow(&mut observe);
    let stopped = run.stop();
    ended.and(stopped)?;
    run.idle.append(&mut run.done);
    Ok(Outcome { finished: run.progress.finished.get().copied(), cursors: run.idle, progress: run.progress })
}

/// One run: cursors are `idle` or `done` here, or owned by a lane's thread.
struct Run<'a, S> {
    cluster: &'a mut Cluster,
    plan: &'a Plan,
    progress: Arc<Progress>,
    idle: Vec<Cursor<S>>,
    /// Those that reached their end.
    done: Vec<Cursor<S>>,
    lanes: HashMap<usize, Running>,
    next_lane: usize,
    ended: (Sender<Ended<S>>, Receiver<Ended<S>>),
    retry_at: Instant,
    /// Why some cursor last became or stayed idle.
    trouble: Option<ClientError>,
}

/// A lane as its run sees it.
struct Running {
    leader: String,
    stopper: Stopper,
    thread: JoinHandle<()>,
    answered: Arc<Mutex<Instant>>,
}

struct Ended<S> {
    lane: usize,
    cursors: Vec<Cursor<S>>,
    end: LaneEnd,
}

impl<'a, S: Sink> Run<'a, S> {
    fn new(cluster: &'a mut Cluster, idle: Vec<Cursor<S>>, plan: &'a Plan) -> Self {
        Run {
            cluster,
            plan,
            progress: Arc::new(Progress::new(plan.records)),
            idle,
            done: Vec::new(),
            lanes: HashMap::new(),
            next_lane: 0,
            ended: channel(),
            retry_at: Instant::now(),
            trouble: None,
        }
    }

    fn follow(&mut self, observe: &mut impl FnMut(&Progress) -> bool) -> Result<(), ConsumeError> {
        while !self.progress.stopping() {
            if !self.idle.is_empty() && Instant::now() >= self.retry_at {
                self.retry_at = Instant::now() + RETRY_BACKOFF;
                self.launch()?;
                let trouble = self.trouble.as_ref().filter(|_| !self.idle.is_empty());
                self.progress.set_trouble(trouble.map(ToString::to_string));
            }
            if self.idle.is_empty() && self.lanes.is_empty() && !self.done.is_empty() {
                self.progress.finished.get_or_init(SystemTime::now);
                break;
            }
            self.wait_for_an_end()?;
            if !observe(&self.progress) {
                break;
            }
            if self.progress.idle() > self.plan.timeout {
                return self.give_up();
            }
        }
        Ok(())
    }

    /// With every leader reached the records are simply over; else that is why none came.
    fn give_up(&mut self) -> Result<(), ConsumeError> {
        let trouble = self.trouble.take().filter(|_| !self.idle.is_empty());
        match trouble.or_else(|| self.silence()) {
            Some(source) => Err(ConsumeError::Unreachable { waited: self.plan.timeout, source }),
            None => Ok(()),
        }
    }

    /// A leader that has not answered for longer than it may wait for records.
    fn silence(&self) -> Option<ClientError> {
        let patience = Duration::from_millis(self.plan.fetch.max_wait_ms.max(0) as u64) + ANSWER_GRACE;
        self.lanes.values().find_map(|lane| {
            let silent = lane.answered.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
            let source = || std::io::Error::other(format!("no answer for {} ms", silent.as_millis()));
            (silent > patience).then(|| ClientError::Io { address: lane.leader.clone(), source: source() })
        })
    }

    /// Gives every idle cursor whose partition has a leader to a new lane of that leader.
    fn launch(&mut self) -> Result<(), ConsumeError> {
        let mut by_leader: BTreeMap<String, Vec<Cursor<S>>> = BTreeMap::new();
        let mut leaders: HashMap<(Text, i32), Option<String>> = HashMap::new();
        for topic in self.idle.iter().map(|cursor| cursor.topic.clone()).collect::<std::collections::BTreeSet<_>>() {
            match self.cluster.partitions(&topic) {
                Ok(places) => {
                    leaders.extend(places.into_iter().map(|place| ((topic.clone(), place.partition), place.leader)))
                }
                // No broker answers just now: the next turn asks again, until the run's timeout.
                Err(error) if error.is_retriable() => self.trouble = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        for cursor in std::mem::take(&mut self.idle) {
            match leaders.get(&(cursor.topic.clone(), cursor.partition)) {
                Some(Some(leader)) => by_leader.entry(leader.clone()).or_default().push(cursor),
                Some(None) => {
                    let (topic, partition) = (cursor.topic.to_string(), cursor.partition);
                    self.trouble = Some(ClientError::NoLeader { topic, partition });
                    self.idle.push(cursor);
                }
                None => self.idle.push(cursor),
            }
        }
        for (leader, cursors) in by_leader {
            self.launch_lane(&leader, cursors)?;
        }
        Ok(())
    }

    fn launch_lane(&mut self, leader: &str, mut cursors: Vec<Cursor<S>>) -> Result<(), ConsumeError> {
        let read_committed = self.plan.fetch.read_committed;
        let prepared = self.cluster.connect(leader).and_then(|mut connection| {
            place(&mut connection, &mut cursors, self.plan.start, read_committed)?;
            Ok((connection.stopper()?, connection))
        });
        let (stopper, connection) = match prepared {
            Ok(prepared) => prepared,
            Err(error) if error.is_retriable() => {
                self.trouble = Some(error);
                self.idle.append(&mut cursors);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let (mut done, cursors): (Vec<_>, Vec<_>) = cursors.into_iter().partition(Cursor::is_done);
        self.done.append(&mut done);
        if cursors.is_empty() {
            return Ok(());
        }
        let id = self.next_lane;
        self.next_lane += 1;
        let ended = self.ended.0.clone();
        let lane = Lane::new(connection, cursors, self.plan.fetch.clone(), self.progress.clone());
        let answered = lane.answered();
        let body = move || {
            let (cursors, end) = lane.run();
            // The run waits for every lane, so somebody listens.
            let _ = ended.send(Ended { lane: id, cursors, end });
        };
        let thread = std::thread::Builder::new().name(format!("fetch-{leader}")).spawn(body);
        let (leader, thread) = (leader.to_owned(), thread.map_err(ConsumeError::Thread)?);
        self.lanes.insert(id, Running { leader, stopper, thread, answered });
        Ok(())
    }

    /// Takes back the cursors of a lane that ends within a tick. A lane that panicked ends this thread too.
    fn wait_for_an_end(&mut self) -> Result<(), ConsumeError> {
        match self.ended.1.recv_timeout(TICK) {
            Ok(ended) => self.take_back(ended),
            Err(_) => match self.lanes.iter().find(|(_, lane)| lane.thread.is_finished()).map(|(id, _)| *id) {
                None => Ok(()),
                // A lane sends its cursors before it finishes, unless it panicked.
                Some(lane) => match self.ended.1.try_recv() {
                    Ok(ended) => self.take_back(ended),
                    Err(_) => {
                        self.join(lane);
                        Ok(())
                    }
                },
            },
        }
    }

    fn join(&mut self, lane: usize) {
        if let Some(running) = self.lanes.remove(&lane)
            && let Err(panic) = running.thread.join()
        {
            std::panic::resume_unwind(panic);
        }
    }

    fn take_back(&mut self, mut ended: Ended<S>) -> Result<(), ConsumeError> {
        self.join(ended.lane);
        let (mut done, mut left): (Vec<_>, Vec<_>) = ended.cursors.drain(..).partition(Cursor::is_done);
        self.done.append(&mut done);
        self.idle.append(&mut left);
        match ended.end {
            LaneEnd::Stopped | LaneEnd::Done => Ok(()),
            LaneEnd::Stale(error) => {
                self.trouble = error.or(self.trouble.take());
                Ok(())
            }
            LaneEnd::Failed(error) => Err(error),
        }
    }

    /// Ends every lane and takes its cursors back.
    fn stop(&mut self) -> Result<(), ConsumeError> {
        self.progress.stop.store(true, Ordering::Relaxed);
        self.lanes.values().for_each(|lane| lane.stopper.stop());
        let mut outcome = Ok(());
        while !self.lanes.is_empty() {
            outcome = outcome.and(self.wait_for_an_end());
        }
        outcome
    }
}

/// Asks the leader where cursors without an offset start.
fn place<S>(
    connection: &mut Connection,
    cursors: &mut [Cursor<S>],
    start: i64,
    read_committed: bool,
) -> Result<(), ClientError> {
    let mut unplaced: Vec<&mut Cursor<S>> = cursors.iter_mut().filter(|cursor| cursor.offset.is_none()).collect();
    if unplaced.is_empty() {
        return Ok(());
    }
    let of: Vec<(Text, i32)> = unplaced.iter().map(|cursor| (cursor.topic.clone(), cursor.partition)).collect();
    for (cursor, offset) in unplaced.iter_mut().zip(connection.offsets_at(&of, start, read_committed)?) {
        cursor.offset = Some(offset);
    }
    Ok(())
}
