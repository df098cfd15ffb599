//! Reading whole topics as fast as they come: partitions are assigned by hand, from a timestamp's offset on.
//!
//! Not a consumer group, and nothing is committed. One thread and one connection per leader ([`lane`]); this file has
//! the leaders found ([`scout`]), starts the lanes and starts them again when leaders move. It waits for no broker, so that one
//! that hangs keeps neither the others from being read nor the caller from ending the run. Invariant: each record of a
//! partition reaches its [`Sink`] once, in offset order, and with a matching checksum.

mod cursor;
mod growth;
mod lane;
mod scout;

pub use cursor::{Cursor, Sink};
pub use fullbore_wire::batch::{BatchView, Record};
pub use growth::Growth;
pub use lane::FetchSettings;

use crate::client::{ClientError, Cluster, Connection, PartitionPlace, Stopper};
use fullbore_wire::{ErrorCode, Text};
use lane::{Lane, LaneEnd};
use scout::{Found, Scout};
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// What is at the offsets that were asked for is another topic's.
    #[error("topic '{topic}' was deleted and made again while it was read; start again with the new one")]
    Recreated {
        /// The topic.
        topic: Text,
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
    cluster: &Cluster,
    cursors: Vec<Cursor<S>>,
    plan: &Plan,
    observe: impl FnMut(&Progress) -> bool,
) -> Result<Outcome<S>, ConsumeError> {
    consume_growing(cluster, cursors, plan, None, observe)
}

/// As [`consume`], and reads the partitions, too, that topics get meanwhile.
///
/// # Errors
/// As [`consume`].
pub fn consume_growing<S: Sink>(
    cluster: &Cluster,
    cursors: Vec<Cursor<S>>,
    plan: &Plan,
    mut growth: Option<Growth<S>>,
    mut observe: impl FnMut(&Progress) -> bool,
) -> Result<Outcome<S>, ConsumeError> {
    growth.iter_mut().for_each(|growth| growth.know(&cursors));
    let mut run = Run::new(cluster, cursors, plan, growth);
    let ended = run.follow(&mut observe);
    let stopped = run.stop();
    ended.and(stopped)?;
    run.idle.append(&mut run.done);
    run.idle.extend(std::mem::take(&mut run.connecting).into_values().flat_map(|waiting| waiting.cursors));
    Ok(Outcome { finished: run.progress.finished.get().copied(), cursors: run.idle, progress: run.progress })
}

/// One run: cursors are `idle`, `connecting` or `done` here, or owned by a lane's thread.
struct Run<'a, S> {
    plan: &'a Plan,
    growth: Option<Growth<S>>,
    progress: Arc<Progress>,
    idle: Vec<Cursor<S>>,
    /// Those whose leader is being connected to, by its address.
    connecting: BTreeMap<String, Connecting<S>>,
    /// Those that reached their end.
    done: Vec<Cursor<S>>,
    lanes: HashMap<usize, Running>,
    next_lane: usize,
    scout: Scout,
    events: (Sender<Event<S>>, Receiver<Event<S>>),
    retry_at: Instant,
    /// Why some cursor last became or stayed idle.
    trouble: Option<ClientError>,
}

/// Cursors that wait for a connection to their leader.
struct Connecting<S> {
    since: Instant,
    cursors: Vec<Cursor<S>>,
}

/// A lane as its run sees it.
struct Running {
    leader: String,
    stopper: Stopper,
    thread: JoinHandle<()>,
    answered: Arc<Mutex<Instant>>,
}

enum Event<S> {
    Found(Box<scout::Answer>),
    Ended(Ended<S>),
}

struct Ended<S> {
    lane: usize,
    cursors: Vec<Cursor<S>>,
    end: LaneEnd,
}

impl<'a, S: Sink> Run<'a, S> {
    fn new(cluster: &Cluster, idle: Vec<Cursor<S>>, plan: &'a Plan, growth: Option<Growth<S>>) -> Self {
        let events = channel();
        let tells = events.0.clone();
        Run {
            plan,
            growth,
            progress: Arc::new(Progress::new(plan.records)),
            idle,
            connecting: BTreeMap::new(),
            done: Vec::new(),
            lanes: HashMap::new(),
            next_lane: 0,
            scout: Scout::new(cluster.detached(), move |answer| drop(tells.send(Event::Found(Box::new(answer))))),
            events,
            retry_at: Instant::now(),
            trouble: None,
        }
    }

    fn follow(&mut self, observe: &mut impl FnMut(&Progress) -> bool) -> Result<(), ConsumeError> {
        while !self.progress.stopping() {
            self.look()?;
            let known = || self.trouble.as_ref().filter(|_| self.waits()).map(ToString::to_string);
            self.progress.set_trouble(self.hang().map(|hang| hang.to_string()).or_else(known));
            if !self.waits() && self.lanes.is_empty() && !self.done.is_empty() {
                self.progress.finished.get_or_init(SystemTime::now);
                break;
            }
            self.wait()?;
            if !observe(&self.progress) {
                break;
            }
            if self.progress.idle() > self.plan.timeout {
                return self.give_up();
            }
        }
        Ok(())
    }

    /// Has the leaders looked up of partitions that are not being read, and new partitions looked for when it is time.
    fn look(&mut self) -> Result<(), ConsumeError> {
        if self.scout.looks_since().is_some() || Instant::now() < self.retry_at {
            return Ok(());
        }
        let mut topics: BTreeSet<Text> = self.idle.iter().map(|cursor| cursor.topic.clone()).collect();
        topics.extend(self.growth.iter_mut().filter_map(Growth::due).flatten().cloned());
        if topics.is_empty() {
            return Ok(());
        }
        self.retry_at = Instant::now() + RETRY_BACKOFF;
        self.scout.look(topics.into_iter().collect()).map_err(ConsumeError::Thread)
    }

    /// With every leader reached the records are simply over; else that is why none came.
    fn give_up(&mut self) -> Result<(), ConsumeError> {
        let known = self.trouble.take().filter(|_| self.waits());
        match known.or_else(|| self.hang()).or_else(|| self.silence()) {
            Some(source) => Err(ConsumeError::Unreachable { waited: self.plan.timeout, source }),
            None => Ok(()),
        }
    }

    /// Whether some partition is not being read.
    fn waits(&self) -> bool {
        !self.idle.is_empty() || !self.connecting.is_empty()
    }

    /// A broker that does not answer, so that some partition is not being read.
    fn hang(&self) -> Option<ClientError> {
        let connecting = self.connecting.iter().map(|(leader, waiting)| (leader.as_str(), waiting.since));
        let looking = self.scout.looks_since().map(|since| (self.scout.servers(), since));
        let mut asked = connecting.chain(looking);
        let (address, since) = asked.find(|(_, since)| since.elapsed() > ANSWER_GRACE)?;
        Some(silent(address, since))
    }

    /// A leader that has not answered for longer than it may wait for records.
    fn silence(&self) -> Option<ClientError> {
        let patience = Duration::from_millis(self.plan.fetch.max_wait_ms.max(0) as u64) + ANSWER_GRACE;
        self.lanes.values().find_map(|lane| {
            let since = *lane.answered.lock().unwrap_or_else(PoisonError::into_inner);
            (since.elapsed() > patience).then(|| silent(&lane.leader, since))
        })
    }

    /// Goes on with what was found: leaders are connected to, and lanes begin.
    fn go_on(&mut self, found: Found) -> Result<(), ConsumeError> {
        match found {
            Found::Places(topics) => {
                let mut places = HashMap::new();
                for found in topics {
                    match found {
                        Ok(of_topic) => {
                            self.idle.extend(self.growth.iter_mut().flat_map(|growth| growth.begin(&of_topic)));
                            let named = |place: PartitionPlace| ((place.topic.clone(), place.partition), place);
                            places.extend(of_topic.into_iter().map(named));
                        }
                        // No broker answers just now: the next turn asks again, until the run's timeout.
                        Err(error) if error.is_retriable() => self.trouble = Some(error),
                        Err(error) => return Err(error.into()),
                    }
                }
                self.connect(&places)
            }
            Found::Connection { leader, outcome } => {
                let Some(Connecting { mut cursors, .. }) = self.connecting.remove(&leader) else { return Ok(()) };
                match outcome {
                    Ok(connected) => {
                        let (connection, offsets) = *connected;
                        let unplaced = cursors.iter_mut().filter(|cursor| cursor.offset.is_none());
                        unplaced.zip(offsets).for_each(|(cursor, offset)| cursor.offset = Some(offset));
                        self.launch(leader, connection, cursors)
                    }
                    Err(error) if error.is_retriable() => {
                        self.trouble = Some(error);
                        self.idle.append(&mut cursors);
                        Ok(())
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// Has every leader of an idle cursor connected to.
    fn connect(&mut self, places: &HashMap<(Text, i32), PartitionPlace>) -> Result<(), ConsumeError> {
        let mut by_leader: BTreeMap<String, Vec<Cursor<S>>> = BTreeMap::new();
        for mut cursor in std::mem::take(&mut self.idle) {
            let (topic, partition) = (cursor.topic.clone(), cursor.partition);
            let place = places.get(&(topic.clone(), partition));
            if let Some(place) = place {
                cursor.follow(place.topic_id, self.plan.fetch.restarts)?;
            }
            match place.map(|place| &place.leader) {
                Some(Some(leader)) if !self.connecting.contains_key(leader) => {
                    by_leader.entry(leader.clone()).or_default().push(cursor);
                    continue;
                }
                // It comes with the next turn.
                Some(Some(_)) => {}
                Some(None) => self.trouble = Some(ClientError::NoLeader { topic: topic.to_string(), partition }),
                None if places.keys().any(|(known, _)| *known == topic) => {
                    let what = format!("cannot read partition {partition} of topic '{topic}'");
                    self.trouble = Some(ClientError::kafka(what, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, None));
                }
                None => {}
            }
            self.idle.push(cursor);
        }
        for (leader, cursors) in by_leader {
            let unplaced = cursors.iter().filter(|cursor| cursor.offset.is_none());
            let unplaced = unplaced.map(|cursor| (cursor.topic.clone(), cursor.partition)).collect();
            let (start, read_committed) = (self.plan.start, self.plan.fetch.read_committed);
            let begun = self.scout.connect(&leader, unplaced, start, read_committed);
            self.connecting.insert(leader, Connecting { since: Instant::now(), cursors });
            begun.map_err(ConsumeError::Thread)?;
        }
        Ok(())
    }

    fn launch(&mut self, leader: String, connection: Connection, cursors: Vec<Cursor<S>>) -> Result<(), ConsumeError> {
        let (mut done, cursors): (Vec<_>, Vec<_>) = cursors.into_iter().partition(Cursor::is_done);
        self.done.append(&mut done);
        if cursors.is_empty() {
            return Ok(());
        }
        let stopper = connection.stopper()?;
        let id = self.next_lane;
        self.next_lane += 1;
        let ended = self.events.0.clone();
        let lane = Lane::new(connection, cursors, self.plan.fetch.clone(), self.progress.clone());
        let answered = lane.answered();
        let body = move || {
            let (cursors, end) = lane.run();
            // The run waits for every lane, so somebody listens.
            let _ = ended.send(Event::Ended(Ended { lane: id, cursors, end }));
        };
        let thread = std::thread::Builder::new().name(format!("fetch-{leader}")).spawn(body);
        let thread = thread.map_err(ConsumeError::Thread)?;
        self.lanes.insert(id, Running { leader, stopper, thread, answered });
        Ok(())
    }

    /// Goes on with what was found, or takes back the cursors of a lane that ended, within a tick. A lane that panicked ends this
    /// thread too.
    fn wait(&mut self) -> Result<(), ConsumeError> {
        match self.events.1.recv_timeout(TICK) {
            Ok(event) => self.handle(event),
            Err(_) => match self.lanes.iter().find(|(_, lane)| lane.thread.is_finished()).map(|(id, _)| *id) {
                None => Ok(()),
                // A lane sends its cursors before it finishes, unless it panicked.
                Some(lane) => match self.events.1.try_recv() {
                    Ok(event) => self.handle(event),
                    Err(_) => {
                        self.join(lane);
                        Ok(())
                    }
                },
            },
        }
    }

    fn handle(&mut self, event: Event<S>) -> Result<(), ConsumeError> {
        match event {
            Event::Ended(ended) => self.take_back(ended),
            // Nothing begins any more.
            Event::Found(_) if self.progress.stopping() => Ok(()),
            Event::Found(answer) => {
                let found = self.scout.back(*answer);
                self.go_on(found)
            }
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
            outcome = outcome.and(self.wait());
        }
        outcome
    }
}

/// Somebody who answers nothing.
fn silent(address: &str, since: Instant) -> ClientError {
    let source = std::io::Error::other(format!("no answer for {} ms", since.elapsed().as_millis()));
    ClientError::Io { address: address.to_owned(), source }
}
