//! Runs a [`ConsumePlan`]. The run finds leaders ([`scout`](super::scout)), starts a fetcher for each leader
//! ([`fetcher`](super::fetcher)), and passes partitions to the fetchers. If a leader moves, the run passes the
//! partition to the fetcher of the new leader.
//!
//! The run's thread never waits for a broker, so a hung broker delays neither the reads from other brokers nor the end
//! of the run. An error of one partition or topic ends only the read of that partition or topic. Invariant: a cursor
//! has one owner. This is either a fetcher's thread, or the run, where the cursor is idle, connecting, done or given
//! up.

use super::cursor::{Cursor, Sink};
use super::error::ConsumeError;
use super::fetcher::{Fetcher, FetcherEnd, Returned, Why};
use super::growth::Growth;
use super::inbox::{AwaitedSince, Inbox};
use super::pace::FetchMemory;
use super::plan::{ConsumeOutcome, ConsumePlan};
use super::progress::ConsumeProgress;
use super::scout::{Connected, LookUp, Scout, ScoutAnswer, ScoutReport};
use super::start::Unplaced;
use super::waiting::sentence;
use crate::blocking::{Cluster, Connection, PartitionPlace, Stopper};
use crate::error::ClientError;
use fullbore_wire::{ErrorCode, Text};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod older;
mod renewal;
mod trouble;

use renewal::Renewal;

/// How long a partition must be refused before the run shows the reason to the user.
const REFUSED_AFTER: Duration = Duration::from_secs(1);
/// The interval at which the run checks its deadline and calls `observe`.
const TICK: Duration = Duration::from_millis(20);
/// The pause before the leader of a refused partition is looked up again.
const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// The pause before the leader is looked up again if the topic was deleted, or if the partition has been refused for a
/// second or more.
const LONG_BACKOFF: Duration = Duration::from_secs(1);
/// How long fetchers may take to close their sessions when the run ends.
const CLOSING_MAX: Duration = Duration::from_secs(1);

/// The state of a run.
pub(super) struct Run<'a, S> {
    plan: &'a ConsumePlan,
    growth: Option<Growth<S>>,
    /// How long a run with `to_end` retries a partition that has no leader or that its leader refuses. Also the maximum
    /// of [`Run::older_epoch_after`].
    refused_max: Duration,
    progress: Arc<ConsumeProgress>,
    memory: Arc<FetchMemory>,
    idle: Vec<Idle<S>>,
    /// Partitions that wait for a connection to their leader, by the leader's address.
    connecting: BTreeMap<String, Connecting<S>>,
    done: Vec<Cursor<S>>,
    given_up: Vec<(Cursor<S>, ConsumeError)>,
    fetchers: HashMap<usize, Running<S>>,
    next_fetcher: usize,
    /// Connections to leaders whose fetcher already has another connection. Later requests for the bounds of partitions
    /// use these connections.
    spare: HashMap<String, Connection>,
    scout: Scout,
    renewal: Renewal,
    events: (Sender<Event<S>>, Receiver<Event<S>>),
    look_at: Instant,
}

/// A partition that no fetcher reads, with the time of the next look-up of its leader.
struct Idle<S> {
    cursor: Cursor<S>,
    due: Instant,
}

/// Partitions that wait for the same connection.
struct Connecting<S> {
    since: Instant,
    cursors: Vec<Cursor<S>>,
}

/// The thread of a fetcher.
struct Running<S> {
    leader: String,
    stopper: Stopper,
    thread: JoinHandle<()>,
    awaited: Arc<AwaitedSince>,
    inbox: Arc<Inbox<S>>,
}

/// An event that a thread sends to the run.
enum Event<S> {
    Found(Box<ScoutAnswer>),
    Returned(Box<Returned<S>>),
    Ended(Ended<S>),
}

struct Ended<S> {
    fetcher: usize,
    cursors: Vec<Cursor<S>>,
    end: FetcherEnd,
}

impl<'a, S: Sink> Run<'a, S> {
    pub(super) fn new(
        cluster: &Cluster,
        cursors: Vec<Cursor<S>>,
        plan: &'a ConsumePlan,
        growth: Option<Growth<S>>,
    ) -> Self {
        let events = channel();
        let sender = events.0.clone();
        let due = Instant::now();
        Run {
            plan,
            growth,
            refused_max: cluster.patience(),
            progress: Arc::new(ConsumeProgress::new(plan.records, plan.deleted.clone())),
            memory: FetchMemory::new(plan.fetch.buffer_memory.max(0) as u64),
            idle: cursors.into_iter().map(|cursor| Idle { cursor, due }).collect(),
            connecting: BTreeMap::new(),
            done: Vec::new(),
            given_up: Vec::new(),
            fetchers: HashMap::new(),
            next_fetcher: 0,
            spare: HashMap::new(),
            scout: Scout::new(cluster.handed_over(), plan.places.clone(), move |answer| {
                // The send fails if the run is over. The report is then dropped.
                drop(sender.send(Event::Found(Box::new(answer))));
            }),
            renewal: Renewal::new(plan.metadata_max_age, plan.to_end),
            events,
            look_at: due,
        }
    }

    pub(super) fn follow(&mut self, observe: &mut impl FnMut(&ConsumeProgress) -> bool) -> Result<(), ConsumeError> {
        if self.plan.records == 0 {
            self.progress.finish();
            return Ok(());
        }
        while !self.progress.stopping() {
            self.look()?;
            self.progress.set_trouble(self.trouble());
            self.wait()?;
            let is_over = self.is_over();
            let goes_on = observe(&self.progress);
            if is_over? {
                self.progress.finish();
                break;
            }
            if !goes_on {
                break;
            }
            if self.progress.idle() > self.plan.timeout {
                return self.time_is_up();
            }
        }
        Ok(())
    }

    /// Returns the outcome of the run, whose fetchers must all have ended.
    pub(super) fn outcome(self) -> ConsumeOutcome<S> {
        let given_up = self.given_up.iter().map(|(_, error)| error);
        let mut left_out = given_up.filter(|error| !matches!(error, ConsumeError::Deleted { .. }));
        let first = left_out.next().map(ToString::to_string);
        let refused = || self.progress.waiting.first(REFUSED_AFTER, true).map(|(error, count)| sentence(&error, count));
        let unread = match first {
            Some(first) => Some(match left_out.count() {
                0 => first,
                more => format!("{first}; in all, {} partitions could not be read", more + 1),
            }),
            None => refused(),
        };
        let mut cursors = self.done;
        cursors.extend(self.idle.into_iter().map(|idle| idle.cursor));
        cursors.extend(self.connecting.into_values().flat_map(|connecting| connecting.cursors));
        cursors.extend(self.given_up.into_iter().map(|(cursor, _)| cursor));
        let finished = self.progress.finished();
        ConsumeOutcome { cursors, finished, unread, progress: self.progress }
    }

    /// Returns true if no partition is left to read.
    fn is_over(&mut self) -> Result<bool, ConsumeError> {
        let (deleted, now) = (self.progress.deleted(), Instant::now());
        let is_gone = |idle: &Idle<S>| deleted.contains(&idle.cursor.topic) && idle.due > now;
        let may_come = !self.idle.iter().all(is_gone);
        if may_come || !self.connecting.is_empty() || !self.fetchers.is_empty() || self.awaits_confirmation() {
            return Ok(false);
        }
        let has_none = self.idle.is_empty() && self.given_up.is_empty();
        if !self.done.is_empty() || (has_none && self.plan.to_end) {
            return Ok(true);
        }
        let is_deletion = |(_, error): &(Cursor<S>, ConsumeError)| matches!(error, ConsumeError::Deleted { .. });
        if self.plan.outlives_topics && self.given_up.iter().all(is_deletion) {
            return Ok(false);
        }
        let gone = self.idle.first().map(|idle| ConsumeError::Deleted { topic: idle.cursor.topic.clone() });
        match self.given_up.pop().map(|(_, error)| error).or(gone) {
            Some(error) => {
                // The error is returned to the caller, so its notice is removed.
                let text = error.to_string();
                self.progress.take_back(&text);
                Err(error)
            }
            None => Ok(false),
        }
    }

    /// Starts a look-up of the leaders of idle partitions. If a check for new partitions or moved leaders is due, the
    /// same look-up also covers its topics.
    fn look(&mut self) -> Result<(), ConsumeError> {
        let now = Instant::now();
        if self.scout.looks_since().is_some() || now < self.look_at {
            return Ok(());
        }
        let (mut topics, deleted) = (LookUp::new(), self.progress.deleted());
        for Idle { cursor, .. } in self.idle.iter().filter(|idle| idle.due <= now) {
            let expected = topics.entry(cursor.topic.clone()).or_default();
            expected.topic_id = (!deleted.contains(&cursor.topic)).then_some(cursor.topic_id);
            expected.confirms_epochs |= self.confirms_epochs(cursor, now);
        }
        self.add_renewals(&mut topics, now);
        let (more, matches) = self.growth.as_mut().and_then(Growth::due).unwrap_or_default();
        more.iter().for_each(|topic| _ = topics.entry(topic.clone()).or_default());
        if topics.is_empty() && matches.is_none() {
            return Ok(());
        }
        self.look_at = now + RETRY_BACKOFF;
        self.scout.look(topics, matches).map_err(ConsumeError::Thread)
    }

    /// Handles a report of the scout: connects to leaders and starts fetchers.
    fn go_on(&mut self, found: ScoutReport) -> Result<(), ConsumeError> {
        match found {
            ScoutReport::Topics(topics) => {
                let (mut places, mut failed) = (HashMap::new(), false);
                for (topic, found) in topics {
                    match found {
                        Ok(of_topic) => {
                            self.progress.is_back(&topic);
                            self.recall_moved(&of_topic);
                            let new = self.growth.iter_mut().flat_map(|growth| growth.begin(&of_topic));
                            let due = Instant::now();
                            self.idle.extend(new.map(|cursor| Idle { cursor, due }));
                            places.insert(topic, of_topic);
                        }
                        Err(ClientError::NoTopic(_)) => self.topic_is_gone(&topic),
                        // The next round retries the look-up, until the run's timeout.
                        Err(error) if error.is_retriable() => {
                            let error = Arc::new(error);
                            failed = true;
                            for Idle { cursor, .. } in self.idle.iter().filter(|idle| idle.cursor.topic == topic) {
                                let place = (cursor.topic.clone(), cursor.partition);
                                let for_long = self.progress.waiting.refuse(place, error.clone());
                                self.scout.doubt_after(for_long);
                            }
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                self.connect(&places)?;
                self.renewed(failed);
                Ok(())
            }
            ScoutReport::Connection { leader, outcome } => {
                let Some(Connecting { cursors, .. }) = self.connecting.remove(&leader) else { return Ok(()) };
                match outcome {
                    Ok(connected) => self.connected(leader, *connected, cursors),
                    Err(error) if error.is_retriable() => {
                        self.refuse_all(cursors, error);
                        Ok(())
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// Ends the read of a deleted topic. If the settings accept lost records, its partitions stay idle instead. If the
    /// topic is recreated, the run then reads it from its start.
    fn topic_is_gone(&mut self, topic: &Text) {
        let (of_topic, others) =
            std::mem::take(&mut self.idle).into_iter().partition(|idle| idle.cursor.topic == *topic);
        self.idle = others;
        let of_topic: Vec<Idle<S>> = of_topic;
        // Partitions that a fetcher still reads are not idle. They become idle when their leader refuses them.
        if of_topic.is_empty() {
            return;
        }
        self.progress.waiting.forget(topic);
        self.renewal.forget(topic);
        let gone = ConsumeError::Deleted { topic: topic.clone() };
        if self.progress.set_deleted(topic) {
            self.progress.notice(gone.to_string());
        }
        let due = Instant::now() + LONG_BACKOFF;
        for Idle { cursor, .. } in of_topic {
            if self.plan.fetch.reset.is_some() && !self.plan.to_end && cursor.end.is_none() {
                self.idle.push(Idle { cursor, due });
                continue;
            }
            self.growth.iter_mut().for_each(|growth| growth.forget(topic));
            self.given_up.push((cursor, ConsumeError::Deleted { topic: topic.clone() }));
        }
    }

    /// Passes idle partitions to the fetcher of their leader, or connects to the leader. If the leader is not known,
    /// they stay idle.
    fn connect(&mut self, places: &HashMap<Text, Vec<PartitionPlace>>) -> Result<(), ConsumeError> {
        let mut by_leader: BTreeMap<String, Vec<Cursor<S>>> = BTreeMap::new();
        for Idle { mut cursor, due } in std::mem::take(&mut self.idle) {
            let Some(of_topic) = places.get(&cursor.topic).filter(|_| due <= Instant::now()) else {
                self.idle.push(Idle { cursor, due });
                continue;
            };
            let place = of_topic.iter().find(|place| place.partition == cursor.partition);
            if let Some(Err(error)) = place.map(|place| cursor.follow(place.topic_id, self.plan.fetch.reset.is_some()))
            {
                self.give_up(cursor, error);
                continue;
            }
            let Some(mut cursor) = self.accepted(cursor, place) else { continue };
            if let Some(place) = place {
                self.follow_epoch(&mut cursor, place.leader_epoch)?;
            }
            let (topic, partition) = (cursor.topic.clone(), cursor.partition);
            match place.map(|place| &place.leader) {
                // The partition stays idle while a connection to its leader is being opened for other partitions.
                Some(Some(leader)) if self.connecting.contains_key(leader) => self.idle.push(Idle { cursor, due }),
                Some(Some(leader)) => by_leader.entry(leader.clone()).or_default().push(cursor),
                Some(None) => {
                    self.refuse(cursor, Arc::new(ClientError::NoLeader { topic: topic.to_string(), partition }));
                }
                None => {
                    let what = format!("cannot read partition {partition} of topic '{topic}'");
                    let error = ClientError::refused(what, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
                    self.refuse(cursor, Arc::new(error));
                }
            }
        }
        for (leader, cursors) in by_leader {
            let is_placed = |cursor: &Cursor<S>| !self.is_unplaced(cursor);
            let is_read = self.fetchers.values().any(|fetcher| fetcher.leader == leader);
            if is_read && cursors.iter().all(is_placed) {
                self.hand_over(&leader, cursors);
                continue;
            }
            let unplaced = cursors.iter().filter(|cursor| self.is_unplaced(cursor)).map(|cursor| self.unplaced(cursor));
            let (unplaced, to_end) = (unplaced.collect(), self.plan.to_end);
            let spare = self.spare.remove(&leader);
            let begun = self.scout.connect(&leader, spare, unplaced, to_end, self.plan.fetch.read_committed);
            self.connecting.insert(leader, Connecting { since: Instant::now(), cursors });
            begun.map_err(ConsumeError::Thread)?;
        }
        Ok(())
    }

    /// Returns true if the leader must still return the cursor's start or end.
    fn is_unplaced(&self, cursor: &Cursor<S>) -> bool {
        cursor.offset.is_none() || (self.plan.to_end && cursor.end.is_none())
    }

    fn unplaced(&self, cursor: &Cursor<S>) -> Unplaced {
        let reset = self.plan.fetch.reset.filter(|_| cursor.is_reset);
        let start = cursor.start.or(reset).unwrap_or(self.plan.start);
        Unplaced { topic: cursor.topic.clone(), partition: cursor.partition, start }
    }

    /// Sets the start and end of cursors from their leader's response, and passes the cursors to a fetcher.
    fn connected(
        &mut self,
        leader: String,
        (connection, placed): Connected,
        cursors: Vec<Cursor<S>>,
    ) -> Result<(), ConsumeError> {
        let mut placed = placed.into_iter();
        let mut ready = Vec::new();
        for mut cursor in cursors {
            let place = self.is_unplaced(&cursor).then(|| placed.next()).flatten();
            if self.renewal.has_left(&cursor, &leader) {
                self.take_moved(cursor);
                continue;
            }
            match place {
                None => ready.push(cursor),
                Some(Ok(place)) => {
                    let start = self.unplaced(&cursor).start;
                    cursor.place(place, start);
                    cursor.take_deleted().into_iter().for_each(|deleted| self.progress.skipped(deleted));
                    // A start that the leader has found may be past the end, because it was found a moment later.
                    match self.past_its_end(&cursor).filter(|_| !cursor.is_reset && cursor.start.is_none()) {
                        _ if cursor.is_done() && cursor.suspend_end() => ready.push(cursor),
                        None => ready.push(cursor),
                        Some(_) if self.plan.fetch.reset.is_some() => self.reset(cursor),
                        Some(error) => return Err(error),
                    }
                }
                Some(Err(error)) if is_for_a_while(&error) => self.refuse(cursor, Arc::new(error)),
                Some(Err(error)) => return Err(error.into()),
            }
        }
        let (mut done, ready): (Vec<_>, Vec<_>) = ready.into_iter().partition(Cursor::is_done);
        done.iter().for_each(|cursor| self.progress.waiting.serve(&(cursor.topic.clone(), cursor.partition)));
        self.done.append(&mut done);
        match ready.is_empty() || self.fetchers.values().any(|fetcher| fetcher.leader == leader) {
            true => {
                self.hand_over(&leader, ready);
                self.spare.insert(leader, connection);
                Ok(())
            }
            false => self.launch(leader, connection, ready),
        }
    }

    /// Returns the error of a cursor that starts past its end, or `None` for any other cursor. A cursor past its end is
    /// never fetched, so no broker would refuse it.
    fn past_its_end(&self, cursor: &Cursor<S>) -> Option<ConsumeError> {
        let offset = cursor.offset.filter(|offset| cursor.end.is_some_and(|end| *offset > end))?;
        Some(ConsumeError::OutOfRange { topic: cursor.topic.clone(), partition: cursor.partition, offset })
    }

    /// Passes partitions to the running fetcher of `leader`. If that fetcher is ending, the partitions become idle, and
    /// the next round handles them.
    fn hand_over(&mut self, leader: &str, cursors: Vec<Cursor<S>>) {
        let fetcher = self.fetchers.values().find(|fetcher| fetcher.leader == leader);
        let left = match fetcher {
            Some(fetcher) => fetcher.inbox.put(cursors).err().unwrap_or_default(),
            None => cursors,
        };
        let due = Instant::now();
        self.idle.extend(left.into_iter().map(|cursor| Idle { cursor, due }));
    }

    fn launch(&mut self, leader: String, connection: Connection, cursors: Vec<Cursor<S>>) -> Result<(), ConsumeError> {
        let stopper = connection.stopper()?;
        let id = self.next_fetcher;
        self.next_fetcher += 1;
        let (ended, returns) = (self.events.0.clone(), self.events.0.clone());
        // This cannot fail, because the run waits for every fetcher.
        let returns = move |returned| drop(returns.send(Event::Returned(Box::new(returned))));
        let (settings, share) = (self.plan.fetch.clone(), self.memory.share());
        let fetcher = Fetcher::new(connection, cursors, settings, share, self.progress.clone(), returns);
        let (awaited, inbox) = (fetcher.awaited(), fetcher.inbox());
        let body = move || {
            let (cursors, end) = fetcher.run();
            let _ = ended.send(Event::Ended(Ended { fetcher: id, cursors, end }));
        };
        let thread = std::thread::Builder::new().name(format!("fetch-{leader}")).spawn(body);
        let thread = thread.map_err(ConsumeError::Thread)?;
        self.fetchers.insert(id, Running { leader, stopper, thread, awaited, inbox });
        Ok(())
    }

    /// Waits for the next event for at most [`TICK`] and handles it. If a fetcher has panicked, this thread panics as
    /// well.
    fn wait(&mut self) -> Result<(), ConsumeError> {
        match self.events.1.recv_timeout(TICK) {
            Ok(event) => self.handle(event),
            Err(_) => match self.fetchers.iter().find(|(_, fetcher)| fetcher.thread.is_finished()).map(|(id, _)| *id) {
                None => Ok(()),
                // A fetcher sends its cursors as its last event. A finished thread without such an event has panicked.
                Some(fetcher) => match self.events.1.try_recv() {
                    Ok(event) => self.handle(event),
                    Err(_) => {
                        self.join(fetcher);
                        Ok(())
                    }
                },
            },
        }
    }

    fn handle(&mut self, event: Event<S>) -> Result<(), ConsumeError> {
        match event {
            Event::Ended(ended) => self.take_back(ended),
            Event::Returned(returned) => {
                self.take_in(*returned);
                Ok(())
            }
            // A run that stops does not start fetchers.
            Event::Found(_) if self.progress.stopping() => Ok(()),
            Event::Found(answer) => {
                let found = self.scout.back(*answer);
                self.go_on(found)
            }
        }
    }

    /// Takes over a partition that a fetcher does not read any more.
    fn take_in(&mut self, Returned { cursor, why }: Returned<S>) {
        let mut cursor = self.renewal.with_present_end(cursor);
        match why {
            Why::Moved => self.take_moved(cursor),
            Why::Refused(error, leader_epoch) => {
                self.renewal.note_newer(&cursor, leader_epoch);
                cursor.note_refusal(&error, Instant::now());
                self.refuse(cursor, Arc::new(error));
            }
            Why::Reset => self.reset(cursor),
            Why::Broken(error) => self.give_up(cursor, error),
        }
    }

    fn join(&mut self, fetcher: usize) {
        if let Some(running) = self.fetchers.remove(&fetcher)
            && let Err(panic) = running.thread.join()
        {
            std::panic::resume_unwind(panic);
        }
    }

    fn take_back(&mut self, mut ended: Ended<S>) -> Result<(), ConsumeError> {
        self.join(ended.fetcher);
        let cursors = ended.cursors.drain(..).map(|cursor| self.renewal.with_present_end(cursor));
        let (mut done, left): (Vec<_>, Vec<_>) = cursors.partition(Cursor::is_done);
        self.done.append(&mut done);
        if let FetcherEnd::Stale(error) = ended.end {
            self.refuse_all(left, error);
            return Ok(());
        }
        let due = Instant::now();
        self.idle.extend(left.into_iter().map(|cursor| Idle { cursor, due }));
        match ended.end {
            FetcherEnd::Failed(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes a partition idle until its new start is determined.
    fn reset(&mut self, mut cursor: Cursor<S>) {
        cursor.reset();
        self.idle.push(Idle { cursor, due: Instant::now() });
    }

    /// Notes that these partitions cannot be read for now. The partitions become idle.
    fn refuse_all(&mut self, cursors: Vec<Cursor<S>>, error: ClientError) {
        let error = Arc::new(error);
        cursors.into_iter().for_each(|cursor| self.refuse(cursor, error.clone()));
    }

    /// Notes that a partition cannot be read for now. The partition becomes idle. A run with `to_end` gives the
    /// partition up after `refused_max`, unless the reason is that the leader cannot be reached.
    fn refuse(&mut self, cursor: Cursor<S>, error: Arc<ClientError>) {
        let for_long = self.progress.waiting.refuse((cursor.topic.clone(), cursor.partition), error.clone());
        self.scout.doubt_after(for_long);
        let is_answer = matches!(*error, ClientError::Kafka { .. });
        let is_refusal = is_answer || matches!(*error, ClientError::NoLeader { .. } | ClientError::Handshake { .. });
        // A cursor whose epoch is unknown first goes back to an older one (`follow_epoch`).
        let unknown_for = cursor.unknown_epoch_for(Instant::now());
        let may_go_back = !unknown_for.is_zero() && unknown_for < 2 * self.older_epoch_after();
        if self.plan.to_end && is_refusal && !may_go_back && for_long >= self.refused_max {
            self.progress.waiting.serve(&(cursor.topic.clone(), cursor.partition));
            return self.give_up(cursor, ConsumeError::Refusing(error));
        }
        let backoff = if is_answer && for_long >= LONG_BACKOFF { LONG_BACKOFF } else { RETRY_BACKOFF };
        self.idle.push(Idle { cursor, due: Instant::now() + backoff });
    }

    /// Ends the read of a partition and shows the reason.
    fn give_up(&mut self, cursor: Cursor<S>, error: ConsumeError) {
        let text = error.to_string();
        // A reason that applies to a whole topic is shown only once, and not for each partition.
        if self.given_up.iter().all(|(_, known)| known.to_string() != text) {
            self.progress.notice(text);
        }
        self.given_up.push((cursor, error));
    }

    /// Ends every fetcher and collects the cursors. A fetcher has [`CLOSING_MAX`] to close its session at the leader.
    pub(super) fn stop(&mut self) -> Result<(), ConsumeError> {
        self.progress.stop();
        self.fetchers.values().for_each(|fetcher| fetcher.stopper.stop_reading());
        let until = Instant::now() + CLOSING_MAX;
        let mut outcome = Ok(());
        while !self.fetchers.is_empty() {
            if Instant::now() >= until {
                self.fetchers.values().for_each(|fetcher| fetcher.stopper.stop());
            }
            outcome = outcome.and(self.wait());
        }
        outcome
    }
}

/// Returns true if a retry may succeed. This includes UNKNOWN_SERVER_ERROR, which Kafka's broker returns for unexpected
/// failures that may pass.
fn is_for_a_while(error: &ClientError) -> bool {
    error.is_retriable() || matches!(error, ClientError::Kafka { code: ErrorCode::UNKNOWN_SERVER_ERROR, .. })
}
