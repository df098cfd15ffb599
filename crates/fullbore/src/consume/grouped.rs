//! Reading as a member of a consumer group: what the group gives, from where it was committed, and commits of what was
//! written out.
//!
//! Invariant: an offset is committed only after every record before it was written to standard output, so that a record
//! is written at least once, whoever of the group dies.

use super::outlet::Place;
use super::printer::{Printer, Shared};
use super::start::{self, Mark};
use super::{Consume, Settings, Troubles};
use crate::failure::Failure;
use crate::stop::Stop;
use fullbore_bench::client::{ClientError, Cluster, EARLIEST, LATEST, PartitionPlace, offsets_of};
use fullbore_bench::consume::{ConsumeError, Cursor, Plan, consume};
use fullbore_bench::group::{Committed, Member, Target};
use fullbore_wire::{Text, Uuid};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often a signal is looked for while there is nothing to read.
const TICK: Duration = Duration::from_millis(20);
/// How long brokers may take over a question before the command fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two attempts at it.
const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// How long it may take over the last commit.
const LAST_PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to say goodbye.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);

/// How long standard output may take a write before partitions are let go of all the same: the records in that write
/// are then read again by whoever gets them.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);

/// One member's reading.
pub struct Grouped<'a> {
    /// For the fetches.
    pub cluster: &'a mut Cluster,
    /// The membership.
    pub member: Member,
    /// The flags.
    pub args: &'a Consume,
    /// What properties settle.
    pub settings: &'a Settings,
    /// Where records go.
    pub shared: &'a Arc<Shared>,
    /// Whether to end.
    pub stop: &'a Stop,
    /// The next offset of each partition that is read here.
    pub positions: HashMap<Place, i64>,
    /// The id of each topic when its positions were found: of another id every record is new.
    pub ids: HashMap<Text, Uuid>,
    /// Where each of them is to end, with --exit.
    pub ends: HashMap<Place, i64>,
    /// What was committed of them.
    pub committed: HashMap<Place, i64>,
}

/// Why a stretch of reading ended.
#[derive(PartialEq, Eq)]
enum Stretch {
    /// Everything that was asked for was read.
    Finished,
    /// The user asked to end, or nothing came for as long as it may.
    Ended,
    /// The group gives something else.
    Moved,
}

impl Grouped<'_> {
    /// Reads until the end that was asked for, or until the user asks to end; whether the end was reached.
    pub fn read(mut self) -> Result<bool, Failure> {
        let outcome = self.follow();
        // What is read but not written yet is either waited for, or nobody wants it any more.
        if outcome.is_err() || self.stop.is_asked() {
            self.shared.outlet.close();
        }
        let asked = Instant::now();
        let patience = || self.stop.is_asked() && asked.elapsed() > super::INTERRUPTED_PATIENCE;
        self.shared.outlet.drained(Duration::MAX, patience);
        let committed = if self.commits() { self.commit(LAST_PATIENCE) } else { Ok(Committed::Done) };
        self.member.leave(LEAVE_PATIENCE);
        let finished = outcome?;
        match committed? {
            Committed::Done => Ok(finished),
            Committed::Later | Committed::Lost => Err(Failure::new(
                "the offsets of the last records could not be committed; the group reads those records again",
            )),
        }
    }

    fn commits(&self) -> bool {
        self.settings.commit_interval.is_some()
    }

    fn follow(&mut self) -> Result<bool, Failure> {
        let mut troubles = Troubles::new();
        let mut target: Option<Target> = None;
        let mut idle = Instant::now();
        loop {
            if let Some(new) = self.member.target(Duration::ZERO)? {
                self.move_to(&new)?;
                target = Some(new);
            }
            if self.stop.is_asked() {
                return Ok(false);
            }
            match &target {
                Some(target) if !target.partitions.is_empty() => {
                    idle = Instant::now();
                    match self.stretch(&mut troubles)? {
                        Stretch::Finished => return Ok(true),
                        Stretch::Ended => return Ok(!self.stop.is_asked()),
                        Stretch::Moved => {}
                    }
                }
                // More members than partitions: nothing is left for this one.
                Some(target) if self.args.exit && !target.lost => return Ok(true),
                _ => {
                    troubles.observe(self.member.trouble());
                    if self.args.timeout_ms.is_some_and(|ms| idle.elapsed() > Duration::from_millis(ms)) {
                        return Ok(true);
                    }
                    std::thread::sleep(TICK);
                }
            }
        }
    }

    /// Lets go of what is not in the target, commits, and finds where to begin with what is new.
    fn move_to(&mut self, target: &Target) -> Result<(), Failure> {
        // What is queued but not written is read again, by whoever gets it.
        self.shared.outlet.close();
        self.shared.outlet.drained(WRITE_PATIENCE, || false);
        for (place, offset) in self.shared.outlet.written() {
            if let Some(position) = self.positions.get_mut(&place) {
                *position = offset;
            }
        }
        match target.lost {
            true => self.positions.clear(),
            false if self.commits() => _ = self.commit(PATIENCE)?,
            false => {}
        }
        let is_kept = |place: &Place| target.partitions.contains(place);
        self.positions.retain(|place, _| is_kept(place));
        let kept = &self.positions;
        self.committed.retain(|place, _| kept.contains_key(place));
        self.ends.retain(|place, _| kept.contains_key(place));
        self.ids.retain(|topic, _| kept.keys().any(|(known, _)| known == topic));
        self.shared.outlet.retain(|place| kept.contains_key(place));
        let added: Vec<Place> =
            target.partitions.iter().filter(|place| !self.positions.contains_key(*place)).cloned().collect();
        if !added.is_empty() {
            self.begin(&added)?;
        }
        let left = self.args.max_messages.map_or(u64::MAX, |max| max.saturating_sub(self.shared.outlet.records()));
        self.shared.left.store(left, Ordering::Relaxed);
        self.shared.outlet.open();
        self.member.confirm(target);
        Ok(())
    }

    /// Finds where to begin with partitions: where they were committed, or as auto.offset.reset says.
    fn begin(&mut self, added: &[Place]) -> Result<(), Failure> {
        let found = self.member.committed(added, PATIENCE)?;
        let places = self.places(added)?;
        for place in &places {
            self.ids.entry(place.topic.clone()).or_insert(place.topic_id);
        }
        let mut unknown = Vec::new();
        for (place, found) in places.iter().zip(found) {
            let key = (place.topic.clone(), place.partition);
            match found {
                Some(offset) => {
                    self.committed.insert(key.clone(), offset);
                    self.positions.insert(key, offset);
                }
                None => unknown.push(place.clone()),
            }
        }
        let read_committed = self.settings.fetch.read_committed;
        if !unknown.is_empty() {
            let Some(reset) = self.settings.reset else {
                let PartitionPlace { topic, partition, .. } = &unknown[0];
                return Err(Failure::new(format!(
                    "the group has no offset of partition {partition} of topic '{topic}'; say where to begin with \
                     --from-beginning or auto.offset.reset"
                )));
            };
            let starts = patiently(self.stop, || start::offsets(self.cluster, &unknown, reset, read_committed))?;
            self.positions.extend(unknown.into_iter().map(|place| (place.topic, place.partition)).zip(starts));
        }
        if self.args.exit {
            let ends = patiently(self.stop, || offsets_of(self.cluster, &places, LATEST, read_committed))?;
            self.ends.extend(added.iter().cloned().zip(ends));
        }
        Ok(())
    }

    /// These partitions with their leaders, in this order.
    fn places(&mut self, of: &[Place]) -> Result<Vec<PartitionPlace>, Failure> {
        let mut found: HashMap<Place, PartitionPlace> = HashMap::new();
        for (topic, _) in of {
            if !found.keys().any(|(known, _)| known == topic) {
                let places =
                    patiently(self.stop, || self.cluster.partitions(topic)).map_err(|error| self.lost(error))?;
                found.extend(places.into_iter().map(|place| ((place.topic.clone(), place.partition), place)));
            }
        }
        let missing = |(topic, partition): &Place| {
            Failure::new(format!("the group gave partition {partition} of topic '{topic}', which does not exist"))
        };
        of.iter().map(|place| found.get(place).cloned().ok_or_else(|| missing(place))).collect()
    }

    /// Reads what the group gives, until it gives something else.
    fn stretch(&mut self, troubles: &mut Troubles) -> Result<Stretch, Failure> {
        let read: Vec<Place> = self.positions.keys().cloned().collect();
        let mut cursors = Vec::new();
        for place in self.places(&read)? {
            let key = (place.topic.clone(), place.partition);
            let (offset, end) = (self.positions.get(&key).copied(), self.ends.get(&key).copied());
            let printer = Printer::new(self.shared.clone(), key);
            // With the id of the topic that the offset is of: the run sees whether it is another one by now.
            let topic_id = self.ids.get(&place.topic).copied().unwrap_or(place.topic_id);
            cursors.push(Cursor { offset, end, topic_id, ..Cursor::new(place, printer) });
        }
        let plan = Plan {
            fetch: self.settings.fetch.clone(),
            records: u64::MAX,
            timeout: self.args.timeout_ms.map_or(Duration::MAX, Duration::from_millis),
            start: if self.settings.reset == Some(Mark::Beginning) { EARLIEST } else { LATEST },
        };
        let Grouped { cluster, member, settings, shared, stop, committed, positions, .. } = self;
        let mut next_commit = settings.commit_interval.map(|interval| Instant::now() + interval);
        let mut failed = None;
        let outcome = consume(cluster, cursors, &plan, |progress| {
            troubles.observe(progress.trouble().or_else(|| member.trouble()));
            if next_commit.is_some_and(|at| Instant::now() >= at) {
                next_commit = settings.commit_interval.map(|interval| Instant::now() + interval);
                failed = commit(member, shared, positions, committed, Duration::ZERO).err();
            }
            let ends = stop.is_asked() || member.is_moving() || failed.is_some();
            if ends {
                // A lane that waits for a slow reader is told that nobody wants the rest.
                shared.outlet.close();
            }
            !ends && !shared.is_spent()
        });
        let outcome = match outcome {
            Err(ConsumeError::Client(error)) => return Err(self.lost(error)),
            outcome => outcome?,
        };
        self.ids.extend(outcome.cursors.iter().map(|cursor| (cursor.topic.clone(), cursor.topic_id)));
        match failed {
            Some(failure) => Err(failure),
            None if stop.is_asked() => Ok(Stretch::Ended),
            None if shared.is_spent() || outcome.finished.is_some() => Ok(Stretch::Finished),
            None if member.is_moving() => Ok(Stretch::Moved),
            None => Ok(Stretch::Ended),
        }
    }

    /// Lets go of a topic that is not there any more: the last commit would tell its offsets of the next topic of its name.
    fn lost(&mut self, error: ClientError) -> Failure {
        if let ClientError::NoTopic(gone) = &error {
            self.positions.retain(|(topic, _), _| **topic != **gone);
        }
        error.into()
    }

    fn commit(&mut self, patience: Duration) -> Result<Committed, Failure> {
        commit(&mut self.member, self.shared, &self.positions, &mut self.committed, patience)
    }
}

/// Commits what was written since the last commit.
fn commit(
    member: &mut Member,
    shared: &Shared,
    positions: &HashMap<Place, i64>,
    committed: &mut HashMap<Place, i64>,
    patience: Duration,
) -> Result<Committed, Failure> {
    let is_news =
        |(place, offset): &(Place, i64)| positions.contains_key(place) && committed.get(place) != Some(offset);
    let news: HashMap<Place, i64> = shared.outlet.written().into_iter().filter(is_news).collect();
    // Later: the next commit tells it again. Lost: the member's thread hears of it too, and joins again.
    let outcome = member.commit(&news, patience)?;
    if outcome == Committed::Done {
        committed.extend(news);
    }
    Ok(outcome)
}

/// Asks again while a broker cannot be reached, as when it starts anew.
fn patiently<T>(stop: &Stop, mut ask: impl FnMut() -> Result<T, ClientError>) -> Result<T, ClientError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Err(error) if error.is_retriable() && !stop.is_asked() && Instant::now() < until => {
                std::thread::sleep(RETRY_BACKOFF);
            }
            outcome => return outcome,
        }
    }
}
