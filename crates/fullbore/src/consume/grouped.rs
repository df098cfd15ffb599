//! Reads as a member of a consumer group. It reads the assigned partitions from their committed offsets on, and commits
//! the offsets of records after they were written out.
//!
//! Invariant: an offset is committed only after every record before it was written to standard output. Each record is
//! therefore written at least once, even if members die.

use super::ahead::Ahead;
use super::args::Consume;
use super::printer::{Printer, PrinterContext};
use super::reading::{CTRL_C_PATIENCE, End, INTERRUPTED_PATIENCE, TopicSelection};
use crate::failure::Failure;
use crate::output;
use crate::stop::Stop;
use crate::troubles::Troubles;
use crate::waiting::Idle;
use fullbore_client::blocking::{Cluster, PartitionPlace};
use fullbore_client::consume::{ConsumeError, ConsumePlan, Cursor, Placed, StartOffset, consume};
use fullbore_client::group::{CommitOutcome, CommittedOffset, Member, Position, Target, TopicPartition};
use fullbore_client::{ClientError, ConsumerConfig};
use fullbore_wire::{Text, Uuid};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often signals are checked while there are no partitions to read.
const TICK: Duration = Duration::from_millis(20);
/// How long to wait for brokers before the command fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two attempts.
const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// How long the last commit may take.
const LAST_PATIENCE: Duration = Duration::from_secs(10);
/// How long the request to leave the group may take.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);
/// The times after Ctrl-C until which the last commit and the request to leave may take. If earlier answers of the
/// coordinator were slow, both get more time.
const CTRL_C_TIMES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(300));
/// How much longer the command may run after these times, to print its result.
const VERDICT: Duration = Duration::from_millis(100);

/// How long the member waits for a write to standard output before it gives up partitions. If the write takes longer,
/// the next owner of a partition reads and writes the same records again.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);

/// A reader that is a member of a group.
pub(super) struct Grouped<'a> {
    cluster: &'a mut Cluster,
    member: Member,
    ahead: Ahead,
    args: &'a Consume,
    settings: &'a ConsumerConfig,
    topics: &'a TopicSelection,
    shared: &'a Arc<PrinterContext>,
    stop: &'a Stop,
    /// The position of each partition that this member reads. With --exit, the end of the partition is known as well.
    places: HashMap<TopicPartition, Placed>,
    /// The leaders of newly assigned partitions, which the next read uses.
    leaders: BTreeMap<Text, Vec<PartitionPlace>>,
    /// The committed position of each partition that this member reads.
    committed: HashMap<TopicPartition, Position>,
    /// The topics that were deleted while they were read.
    deleted: BTreeSet<Text>,
    /// A sentence about a partition that could not be read.
    unread: Option<String>,
    /// The reports of problems: the first with the partitions, the second with the membership.
    troubles: (Troubles, Troubles),
    /// The report that explains to a user at a terminal why there is no output.
    idle: Idle,
}

/// The reason why reading the partitions of one assignment has ended.
#[derive(PartialEq, Eq)]
enum Stretch {
    /// All planned records were read.
    Finished,
    /// The user stopped the command, or the timeout without records passed.
    Ended,
    /// The group has a new assignment, or all topics were deleted.
    Moved,
}

impl<'a> Grouped<'a> {
    /// Joins a group. Returns a reader that has no partitions yet.
    pub(super) fn new(
        cluster: &'a mut Cluster,
        (member, ahead): (Member, Ahead),
        args: &'a Consume,
        settings: &'a ConsumerConfig,
        topics: &'a TopicSelection,
        shared: &'a Arc<PrinterContext>,
        stop: &'a Stop,
    ) -> Self {
        let (places, leaders, committed, deleted, unread, troubles) = Default::default();
        Grouped {
            cluster,
            member,
            ahead,
            args,
            settings,
            topics,
            shared,
            stop,
            places,
            leaders,
            committed,
            deleted,
            unread,
            troubles,
            idle: Idle::begin(),
        }
    }

    /// Reads until the end that the flags set, or until the user stops it.
    pub(super) fn read(mut self) -> Result<End, Failure> {
        let outcome = self.follow();
        // Waits until the queued records are written. After an error or a stop, drops them instead.
        if outcome.is_err() || self.stop.is_requested() {
            self.shared.outlet.close();
        }
        let requested = Instant::now();
        let stop = self.stop;
        let patience = || stop.time_left(INTERRUPTED_PATIENCE, CTRL_C_PATIENCE);
        self.shared.outlet.drained(Duration::MAX, || stop.is_requested() && requested.elapsed() > patience());
        let (commit_until, leave_until) = allow_the_end(stop, &self.member);
        let committed = if self.commits() {
            self.commit(stop.time_left(LAST_PATIENCE, commit_until))
        } else {
            Ok(CommitOutcome::Done)
        };
        let trouble = self.member.trouble();
        self.member.leave(stop.time_left(LEAVE_PATIENCE, leave_until));
        let finished = outcome?;
        match committed? {
            CommitOutcome::Done => Ok(End { finished, unread: self.unread }),
            outcome => {
                let what = match outcome {
                    CommitOutcome::Unanswered => {
                        "cannot confirm the commit of the last records: the group may read these records again"
                    }
                    _ => "cannot commit the offsets of the last records: the group reads these records again",
                };
                let why = trouble.map_or_else(String::new, |why| format!(": {why}"));
                Err(Failure::new(format!("{what}{why}")))
            }
        }
    }

    fn commits(&self) -> bool {
        self.settings.commits
    }

    fn follow(&mut self) -> Result<bool, Failure> {
        let mut target: Option<Target> = None;
        let mut idle = Instant::now();
        loop {
            allow_the_end(self.stop, &self.member);
            if let Some(new) = self.member.target(Duration::ZERO)? {
                target = self.move_to(&new)?.then_some(new);
                // `move_to` may have dropped records that were read but not written. These do not count towards the
                // planned number.
                if target.is_some() && self.shared.is_spent() {
                    return Ok(true);
                }
            }
            if self.stop.is_requested() {
                return Ok(false);
            }
            if let Some(topic) = all_deleted(self.topics, &self.deleted) {
                return Err(ConsumeError::Deleted { topic }.into());
            }
            match &target {
                Some(target) if !target.partitions.is_empty() => {
                    let stretch = self.stretch()?;
                    idle = Instant::now();
                    match stretch {
                        Stretch::Finished => {
                            self.report_others();
                            return Ok(true);
                        }
                        Stretch::Ended => return Ok(!self.stop.is_requested()),
                        Stretch::Moved => {}
                    }
                }
                // The assignment of this member is empty and final. This happens if a group has more members than
                // partitions.
                Some(target) if self.args.exit && target.settled => return Ok(true),
                _ => {
                    self.troubles.1.observe(self.member.trouble());
                    let came = self.shared.outlet.records() > 0;
                    self.idle.observe(came, || self.topics.waits_for(false));
                    if self.args.timeout_ms.is_some_and(|ms| idle.elapsed() > Duration::from_millis(ms)) {
                        return Ok(true);
                    }
                    self.member.wait_for_move(TICK);
                }
            }
        }
    }

    /// Prints how many partitions other members have, once this member has read its own partitions to their ends. A
    /// dead member counts as long as its session has not expired.
    fn report_others(&mut self) {
        if !self.args.exit || self.shared.is_spent() {
            return;
        }
        let topics: BTreeSet<&Text> = self.places.keys().map(|(topic, _)| topic).collect();
        let topics: Vec<Text> = topics.into_iter().cloned().collect();
        // If the metadata cannot be read, this prints nothing. That is no failure, because the member has read all its
        // records.
        let all = self.cluster.partitions_of(&topics).map_or(0, |found| found.values().map(Vec::len).sum());
        let others = all.saturating_sub(self.places.len());
        if others > 0 {
            output::remark(format!(
                "{others} of {all} partitions belong to other members of the group: their records were not read here"
            ));
        }
    }

    /// Adopts a new target, the list of partitions that this member should read. Commits, gives up partitions that are
    /// not in the target, and finds the start offsets of new ones. Returns false, without a confirmation of the target,
    /// if the group has removed this member. Another target then follows soon.
    fn move_to(&mut self, target: &Target) -> Result<bool, Failure> {
        // This drops the queued records. The next owners of their partitions read them again; an owner may be this
        // member.
        self.shared.outlet.close();
        self.shared.outlet.drained(WRITE_PATIENCE, || false);
        for (place, written) in self.shared.outlet.written() {
            // A position in a deleted topic does not apply to a recreated topic of the same name.
            if let Some(placed) = self.places.get_mut(&place).filter(|placed| placed.topic_id == written.topic_id) {
                (placed.offset, placed.leader_epoch) = (Some(written.offset), written.leader_epoch);
            }
        }
        self.let_go_of_deleted(target)?;
        match target.lost {
            true => self.places.clear(),
            false if self.commits() => _ = self.commit(PATIENCE)?,
            false => {}
        }
        self.places.retain(|place, _| target.partitions.contains(place));
        let kept = &self.places;
        self.committed.retain(|place, _| kept.contains_key(place));
        self.shared.outlet.retain(|place| kept.contains_key(place));
        let added: Vec<TopicPartition> =
            target.partitions.iter().filter(|place| !self.places.contains_key(*place)).cloned().collect();
        if !added.is_empty() && !self.begin(&added)? {
            std::thread::sleep(RETRY_BACKOFF);
            return Ok(false);
        }
        let left = self.args.max_messages.map_or(u64::MAX, |max| max.saturating_sub(self.shared.outlet.records()));
        self.shared.left.store(left, Ordering::Relaxed);
        self.shared.outlet.open();
        self.member.confirm(target);
        Ok(true)
    }

    /// Drops the positions in topics that are deleted and have no partition in the target, so that these positions are
    /// not committed. Reports each such topic.
    fn let_go_of_deleted(&mut self, target: &Target) -> Result<(), Failure> {
        let is_left = |topic: &Text| target.partitions.iter().all(|(kept, _)| kept != topic);
        let left: BTreeSet<Text> =
            self.places.keys().map(|(topic, _)| topic).filter(|topic| is_left(topic)).cloned().collect();
        let found = self.found(&left)?;
        for topic in left.into_iter().filter(|topic| !found.contains_key(topic)) {
            self.places.retain(|(known, _), _| *known != topic);
            let deleted = ConsumeError::Deleted { topic: topic.clone() };
            if self.deleted.insert(topic) && all_deleted(self.topics, &self.deleted).is_none() {
                output::remark(deleted);
            }
        }
        Ok(())
    }

    /// Returns the partitions of the existing topics among `topics`.
    fn found(&mut self, topics: &BTreeSet<Text>) -> Result<BTreeMap<Text, Vec<PartitionPlace>>, ClientError> {
        let topics: Vec<Text> = topics.iter().cloned().collect();
        patiently(self.stop, || self.cluster.partitions_of(&topics))
    }

    /// Finds the start offsets of partitions, which are the committed offsets or depend on auto.offset.reset. Returns
    /// false if this member has lost the partitions.
    fn begin(&mut self, added: &[TopicPartition]) -> Result<bool, Failure> {
        let topics = added.iter().map(|(topic, _)| topic.clone()).collect();
        self.leaders = match self.ahead.places(&topics) {
            Some(places) => places,
            None => self.found(&topics)?,
        };
        let id_of_topic =
            |(topic, places): (&Text, &Vec<PartitionPlace>)| Some((topic.clone(), places.first()?.topic_id));
        let ids: HashMap<Text, Uuid> = self.leaders.iter().filter_map(id_of_topic).collect();
        self.deleted.retain(|topic| !ids.contains_key(topic));
        let id_of = |(topic, _): &TopicPartition| ids.get(topic).copied().unwrap_or_default();
        let of: Vec<(TopicPartition, Uuid)> = added.iter().map(|place| (place.clone(), id_of(place))).collect();
        let Some(found) = self.member.committed(&of, PATIENCE)? else { return Ok(false) };
        for ((place, topic_id), committed) in of.into_iter().zip(found) {
            let is_there = ids.contains_key(&place.0);
            match committed {
                Some(CommittedOffset { offset, leader_epoch }) => {
                    self.committed.insert(place.clone(), Position { topic_id, offset, leader_epoch });
                }
                None if is_there && self.settings.fetch.reset.is_none() => {
                    let (topic, partition) = place;
                    return Err(Failure::new(format!(
                        "the group has no offset of partition {partition} of topic '{topic}'; choose the start \
                         with --from-beginning or auto.offset.reset"
                    )));
                }
                None => {}
            }
            // If a topic is missing now and created again later, all its records are new, so the start is offset 0.
            let offset = committed.map(|committed| committed.offset).or((!is_there).then_some(0));
            let offset = offset.or_else(|| self.ahead.start(&place, topic_id));
            let leader_epoch = committed.and_then(|committed| committed.leader_epoch);
            self.places.insert(place, Placed { topic_id, offset, leader_epoch, end: None });
        }
        Ok(true)
    }

    /// Reads the assigned partitions until the assignment changes or the read ends.
    fn stretch(&mut self) -> Result<Stretch, Failure> {
        let cursor = |((topic, partition), placed): (&TopicPartition, &Placed)| {
            let printer = Printer::new(self.shared.clone(), (topic.clone(), *partition), placed.topic_id);
            Cursor::placed(topic.clone(), *partition, *placed, printer)
        };
        let cursors = self.places.iter().map(cursor).collect();
        let timeout = self.args.timeout_ms.map_or(Duration::MAX, Duration::from_millis);
        let plan = ConsumePlan {
            start: self.settings.fetch.reset.unwrap_or(StartOffset::Latest),
            to_end: self.args.exit,
            metadata_max_age: self.settings.group.metadata_max_age,
            outlives_topics: !self.args.exit,
            places: std::mem::take(&mut self.leaders),
            deleted: self.deleted.clone(),
            ..ConsumePlan::new(self.settings.fetch.clone(), timeout)
        };
        let cluster = self.ahead.cluster(self.cluster);
        let Grouped { member, settings, topics, shared, stop, places, committed, deleted, troubles, idle, .. } = self;
        let mut next_commit = settings.commits.then(|| Instant::now() + settings.commit_interval);
        let (mut failed, mut is_cut_off) = (None, false);
        let outcome = consume(&cluster, cursors, &plan, |progress| {
            let now = progress.deleted();
            deleted.retain(|topic| now.contains(topic) || places.keys().all(|(known, _)| known != topic));
            deleted.extend(now);
            let all_deleted = all_deleted(topics, deleted);
            let fails_with = all_deleted.clone().map(|topic| ConsumeError::Deleted { topic }.to_string());
            troubles.0.of_run(progress, fails_with.as_deref());
            troubles.1.observe(member.trouble());
            idle.observe(progress.records() > 0, || topics.waits_for(false));
            if next_commit.is_some_and(|at| Instant::now() >= at) {
                next_commit = settings.commits.then(|| Instant::now() + settings.commit_interval);
                allow_the_end(stop, member);
                failed = commit(member, shared, places, deleted, committed, Duration::ZERO).err();
            }
            let ends = stop.is_requested() || member.is_moving() || failed.is_some() || all_deleted.is_some();
            if ends {
                // A fetcher may be waiting for a slow reader of the output. Its records are no longer needed, so
                // closing the outlet ends this wait.
                shared.outlet.close();
                is_cut_off = true;
            }
            !ends && !shared.is_spent()
        })?;
        for cursor in outcome.cursors {
            places.insert((cursor.topic, cursor.partition), cursor.placed);
        }
        self.unread = outcome.unread;
        match failed {
            Some(failure) => Err(failure),
            None if self.stop.is_requested() => Ok(Stretch::Ended),
            // The closed outlet has dropped records, so the planned number of records may have been read but not
            // written.
            None if is_cut_off => Ok(Stretch::Moved),
            None if self.shared.is_spent() || outcome.finished.is_some() => Ok(Stretch::Finished),
            None if self.member.is_moving() || all_deleted(self.topics, &self.deleted).is_some() => Ok(Stretch::Moved),
            None => Ok(Stretch::Ended),
        }
    }

    fn commit(&mut self, patience: Duration) -> Result<CommitOutcome, Failure> {
        commit(&mut self.member, self.shared, &self.places, &self.deleted, &mut self.committed, patience)
    }
}

/// Extends the time that the command may run after Ctrl-C, so that even a slow coordinator can answer the last
/// requests. Returns the times after Ctrl-C until which the last commit and the request to leave may take.
fn allow_the_end(stop: &Stop, member: &Member) -> (Duration, Duration) {
    let times = ctrl_c_times(member.slowest_answer());
    stop.allow(times.1 + VERDICT);
    times
}

/// Returns the times after Ctrl-C until which the last commit and the request to leave may take. `slowest` is the time
/// of the slowest answer so far. Each request gets more than this, because it may have to wait for an earlier commit or
/// heartbeat.
fn ctrl_c_times(slowest: Duration) -> (Duration, Duration) {
    let (commit_min, leave_min) = CTRL_C_TIMES;
    let commit_until = (3 * slowest).clamp(commit_min, LAST_PATIENCE);
    let leave_until = commit_until + (2 * slowest).max(leave_min - commit_min);
    (commit_until, leave_until.min(LAST_PATIENCE))
}

/// If all topics were deleted, and no pattern can select another, returns the last named topic.
fn all_deleted(topics: &TopicSelection, deleted: &BTreeSet<Text>) -> Option<Text> {
    let is_alone = topics.matches.is_none() && topics.named.iter().all(|topic| deleted.contains(topic));
    topics.named.last().filter(|_| is_alone).cloned()
}

/// Commits the positions that were written since the last commit. Leaves out deleted topics, because their offsets
/// would not apply to recreated topics of the same name.
fn commit(
    member: &mut Member,
    shared: &PrinterContext,
    places: &HashMap<TopicPartition, Placed>,
    deleted: &BTreeSet<Text>,
    committed: &mut HashMap<TopicPartition, Position>,
    patience: Duration,
) -> Result<CommitOutcome, Failure> {
    let is_news = |(place, position): &(TopicPartition, Position)| {
        places.contains_key(place) && !deleted.contains(&place.0) && committed.get(place) != Some(position)
    };
    let news: HashMap<TopicPartition, Position> = shared.outlet.written().into_iter().filter(is_news).collect();
    // If the outcome is not `Done`, the next commit repeats these positions. After `Lost`, no rejoin is needed here,
    // because the member's thread gets the same error and rejoins.
    let outcome = member.commit(&news, patience)?;
    if outcome == CommitOutcome::Done {
        committed.extend(news);
    }
    Ok(outcome)
}

/// Repeats a request while a broker cannot be reached, for example because it restarts.
fn patiently<T>(stop: &Stop, mut call: impl FnMut() -> Result<T, ClientError>) -> Result<T, ClientError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match call() {
            Err(error) if error.is_retriable() && !stop.is_requested() && Instant::now() < until => {
                std::thread::sleep(RETRY_BACKOFF);
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_c_leaves_time_for_a_coordinator_at_its_distance() {
        let ms = Duration::from_millis;
        assert_eq!(ctrl_c_times(ms(2)), CTRL_C_TIMES);
        assert_eq!(ctrl_c_times(ms(400)), (ms(1_200), ms(2_000)));
        assert_eq!(ctrl_c_times(ms(60_000)), (LAST_PATIENCE, LAST_PATIENCE));
    }
}
