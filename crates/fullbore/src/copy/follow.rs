//! The membership of a copier: reads the assigned partitions, and ends their transactions before it gives them up.
//!
//! [`intake`](super::intake) queues the records, and [`transfer`](super::transfer) writes them. Invariant: a copier
//! gives up a partition only while no transaction with the partition's offsets is open. It begins to read a partition
//! only at the group's committed offset.

use super::args::CopyArgs;
use super::deleted::DeletedBeforeCopy;
use super::intake::{Intake, IntakeSink};
use super::transfer::{Settle, Settled, Transfer};
use super::trouble::CopyError;
use crate::failure::Failure;
use crate::output;
use crate::stop::Stop;
use crate::troubles::Troubles;
use crate::waiting::Idle;
use fullbore_client::blocking::{Cluster, LATEST, PartitionPlace};
use fullbore_client::consume::{ConsumeError, ConsumePlan, ConsumeProgress, Cursor, Placed, StartOffset, consume};
use fullbore_client::group::{CommittedOffset, Member, Target, TopicPartition};
use fullbore_client::{ClientError, ConsumerConfig};
use fullbore_wire::{Text, Uuid};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often signals are checked while there are no partitions to read.
const TICK: Duration = Duration::from_millis(20);
/// How long a request for committed offsets may take before the copier checks for signals and for a new assignment.
const LOOK: Duration = Duration::from_millis(200);
/// The pause after the first failure, and the maximum pause after later ones.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The number of refusals by brokers, and the time since the first failure, after which the command fails if no record
/// was committed in between. Refusals alone do not end it, because a former leader or coordinator may refuse many
/// requests until the cluster's other brokers are found.
const REFUSED_MAX: (u32, Duration) = (20, Duration::from_secs(120));
/// How long the last commit may take after a signal. It is long, because readers of the target would otherwise have to
/// wait until the open transaction times out.
pub(super) const LAST_PATIENCE: Duration = Duration::from_secs(10);
/// How much longer than the session timeout the copier waits at the end for other members.
const OTHERS_GRACE: Duration = Duration::from_secs(5);
/// How long the request to leave the group may take.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);
/// How long the request to leave the group may take after Ctrl-C. If earlier answers of the coordinator were slow, it
/// gets more time.
const LEAVE_AFTER_CTRL_C: Duration = Duration::from_millis(300);
/// How much longer the command may run after that, to print its result.
const VERDICT: Duration = Duration::from_millis(100);

/// The outcome of a copy.
pub(super) struct CopyEnd {
    /// True if every partition was copied to its end.
    pub(super) finished: bool,
    /// A sentence about a partition that could not be read.
    pub(super) unread: Option<String>,
    /// How many offsets were deleted before their records were copied.
    pub(super) deleted: u64,
}

/// The member and reader of one copier.
pub(super) struct Follow<'a> {
    pub(super) cluster: &'a mut Cluster,
    pub(super) member: Member,
    pub(super) transfer: &'a Transfer,
    pub(super) intake: Arc<Intake>,
    pub(super) args: &'a CopyArgs,
    pub(super) settings: &'a ConsumerConfig,
    pub(super) stop: &'a Stop,
    pub(super) progress: Progress,
}

/// The state that changes while the copier reads.
#[derive(Default)]
pub(super) struct Progress {
    /// The position of each partition. With --exit, this includes the end of the partition.
    places: HashMap<i32, Placed>,
    leaders: BTreeMap<Text, Vec<PartitionPlace>>,
    unread: Option<String>,
    deleted: DeletedBeforeCopy,
    /// With --exit, the ends that all partitions had at the start of the copy.
    ends: BTreeMap<i32, i64>,
    topic_id: Uuid,
    /// The serial number of the target that the copier has adopted. A target is the list of partitions that it should
    /// read.
    serial: u64,
    /// True after a failure, or after the group has removed this member. The position of every partition must then be
    /// read from the group again.
    is_stale: bool,
    /// How many failures there were since the last committed record, and how many of them were refusals.
    failures: (u32, u32),
    /// When the first failure since the last committed record happened.
    failing_since: Option<Instant>,
    records: u64,
    troubles: (Troubles, Troubles),
}

/// The reason why reading the partitions of one assignment has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stretch {
    Finished,
    Ended,
    Moved,
}

impl Progress {
    /// Counts and prints the offsets of records that were deleted before they were copied.
    fn note_deleted(&mut self, run: &ConsumeProgress) {
        for of in run.take_deleted_offsets() {
            if self.deleted.add(of.partition, of.offsets.clone()) {
                output::remark(of);
            }
        }
    }

    /// Returns the position from which to read a partition of the topic with this id: the group's `committed` offset.
    /// If the group has none, uses the start of an earlier read again. A new start at the log end
    /// (auto.offset.reset=latest) would skip records whose transaction was aborted.
    fn position(&self, partition: i32, topic_id: Uuid, committed: Option<CommittedOffset>) -> Placed {
        let before = self.places.get(&partition);
        let end = before.and_then(|before| before.end);
        match (committed, before.filter(|before| before.topic_id == topic_id)) {
            (Some(CommittedOffset { offset, leader_epoch }), _) => {
                Placed { topic_id, offset: Some(offset), leader_epoch, end }
            }
            (None, Some(before)) => *before,
            (None, None) => Placed { topic_id, end, ..Placed::default() },
        }
    }

    /// Stores the end of a partition that the last read has found. Does not change the position, because only a commit
    /// does. If the partition has no position in this topic yet, stores the offset at which the read has started.
    fn place(&mut self, partition: i32, placed: Placed) {
        let before = self.places.get(&partition).filter(|before| before.topic_id == placed.topic_id);
        let start = before.filter(|before| before.offset.is_some()).copied().unwrap_or(placed);
        self.places.insert(partition, Placed { end: placed.end, ..start });
    }
}

impl Follow<'_> {
    /// Copies until the end that the flags set, or until a signal.
    pub(super) fn copy(mut self) -> Result<CopyEnd, Failure> {
        let outcome = self.follow();
        let how = if outcome.is_ok() { Settle::Commit } else { Settle::Abort };
        let settled = self.settle(how);
        let trouble = self.member.trouble();
        let leave = (2 * self.member.slowest_answer()).clamp(LEAVE_AFTER_CTRL_C, LEAVE_PATIENCE);
        self.stop.limit(leave + VERDICT);
        self.member.leave(if self.stop.is_interrupted() { leave } else { LEAVE_PATIENCE });
        let finished = outcome?;
        let Progress { unread, deleted, .. } = self.progress;
        let deleted = deleted.count();
        match settled {
            Some(Settled { failure: None, .. }) => Ok(CopyEnd { finished, unread, deleted }),
            Some(Settled { failure: Some(CopyError::Fatal(sentence)), .. }) => Err(Failure::new(sentence)),
            // An aborted transaction is not a failure of the command, because the next start copies its records.
            Some(Settled { failure: Some(CopyError::Again { why, .. } | CopyError::Renew { why, .. }), .. }) => {
                output::remark(format!(
                    "the last transaction was aborted: {why}; its records are copied at the next start"
                ));
                Ok(CopyEnd { finished: false, unread, deleted })
            }
            None => Err(uncommitted(&trouble.unwrap_or_else(|| "the coordinator has not answered in time".to_owned()))),
        }
    }

    fn follow(&mut self) -> Result<bool, Failure> {
        let (mut target, mut idle): (Option<Target>, _) = (None, Idle::begin());
        loop {
            if let Some(new) = self.member.target(Duration::ZERO)? {
                target = self.move_to(&new)?.then_some(new);
            }
            if self.stop.is_requested() {
                return Ok(false);
            }
            match &target {
                Some(target) if !target.partitions.is_empty() => {
                    if self.transfer.has_failed() || self.progress.is_stale {
                        self.rewind(&target.partitions)?;
                        continue;
                    }
                    match self.stretch(&mut idle)? {
                        Stretch::Finished if self.drain()? && self.others_are_done()? => return Ok(true),
                        Stretch::Ended => return Ok(false),
                        Stretch::Finished | Stretch::Moved => {}
                    }
                }
                // The assignment of this member is empty and final. This happens if a group has more members than
                // partitions.
                Some(target) if self.args.exit && target.settled => {
                    if self.others_are_done()? {
                        return Ok(true);
                    }
                }
                _ => {
                    self.progress.troubles.1.observe(self.member.trouble());
                    self.member.wait_for_move(TICK);
                }
            }
        }
    }

    /// Writes and commits all records that were read. Called after every partition was read to its end. Returns false
    /// if this fails, so that the records must be read again, or if it takes too long after a signal.
    fn drain(&mut self) -> Result<bool, Failure> {
        let Some(settled) = self.settle(Settle::Drain) else { return Ok(false) };
        self.take_in(&settled.committed);
        let Some(failure) = settled.failure else { return Ok(true) };
        self.progress.is_stale = true;
        self.after(failure)?;
        Ok(false)
    }

    /// Waits until the other members have copied their partitions, but little longer than a session timeout. Returns
    /// false if the assignment changes meanwhile, for example because this copier gets the partitions of a dead member.
    fn others_are_done(&mut self) -> Result<bool, Failure> {
        let until = Instant::now() + self.settings.group.session_timeout + OTHERS_GRACE;
        loop {
            if self.member.is_moving() {
                return Ok(false);
            }
            let left = if self.stop.is_requested() { 0 } else { self.left_to_others()? };
            if left == 0 {
                return Ok(true);
            }
            let why =
                format!("{left} partitions belong to other members of the group, which have not copied all of them");
            if Instant::now() >= until {
                output::remark(why);
                return Ok(true);
            }
            self.progress.troubles.1.observe(Some(why));
            self.member.wait_for_move(LOOK);
        }
    }

    /// Returns how many partitions of other members have a committed offset below the end that they had at the start of
    /// the copy.
    fn left_to_others(&mut self) -> Result<usize, Failure> {
        let topic = Text::from(self.args.from.as_str());
        let others = self.progress.ends.iter().filter(|(partition, _)| !self.progress.places.contains_key(partition));
        let others: Vec<(i32, i64)> = others.map(|(partition, end)| (*partition, *end)).collect();
        if others.is_empty() {
            return Ok(0);
        }
        let id = self.progress.topic_id;
        let of: Vec<(TopicPartition, Uuid)> = others.iter().map(|(of, _)| ((topic.clone(), *of), id)).collect();
        match self.member.committed(&of, LOOK) {
            Ok(Some(found)) => {
                let is_left = |((_, end), committed): &(&(i32, i64), Option<CommittedOffset>)| {
                    committed.map_or(0, |committed| committed.offset) < *end
                };
                Ok(others.iter().zip(found).filter(is_left).count())
            }
            Ok(None) => Ok(others.len()),
            Err(error) if error.is_retriable() => Ok(others.len()),
            Err(error) => Err(error.into()),
        }
    }

    /// With --exit, looks up the ends of all partitions in the first call. Later calls have no effect.
    fn find_ends(&mut self, places: &[PartitionPlace]) {
        if !self.args.exit || !self.progress.ends.is_empty() {
            return;
        }
        let of: Vec<TopicPartition> = places.iter().map(|place| (place.topic.clone(), place.partition)).collect();
        // If the look-up of a partition fails, the copier does not wait until other members have copied it.
        let found = self.cluster.offsets_found_at(&of, LATEST).offsets;
        self.progress.ends = found.into_iter().map(|((_, partition), end)| (partition, end)).collect();
    }

    /// Ends the open transactions as `how` requires. Returns `None` if this takes longer than [`LAST_PATIENCE`] after a
    /// signal.
    fn settle(&mut self, how: Settle) -> Option<Settled> {
        if how != Settle::Drain {
            self.intake.close();
        }
        let (stop, mut requested) = (self.stop, None);
        self.transfer.settle(how, || {
            let since = stop.is_requested().then(|| *requested.get_or_insert_with(Instant::now));
            since.is_some_and(|since| since.elapsed() >= LAST_PATIENCE)
        })
    }

    /// Sets the positions of partitions to the offsets that were committed.
    fn take_in(&mut self, committed: &HashMap<i32, CommittedOffset>) {
        for (partition, CommittedOffset { offset, leader_epoch }) in committed {
            if let Some(placed) = self.progress.places.get_mut(partition) {
                (placed.offset, placed.leader_epoch) = (Some(*offset), *leader_epoch);
            }
        }
    }

    /// Adopts a new target, the list of partitions that the copier should read. Ends the open transactions, gives up
    /// partitions that are not in the target, and finds the start offsets of new ones. Returns false, without a
    /// confirmation of the target, if another target follows or after a signal.
    fn move_to(&mut self, target: &Target) -> Result<bool, Failure> {
        let how = if target.lost { Settle::Abort } else { Settle::Commit };
        let Some(settled) = self.settle(how) else { return Ok(false) };
        self.take_in(&settled.committed);
        self.progress.serial = target.serial;
        self.progress.is_stale |= target.lost || settled.failure.is_some();
        self.progress.places.retain(|partition, _| target.partitions.iter().any(|(_, of)| of == partition));
        if let Some(failure) = settled.failure.filter(|_| !target.lost) {
            self.after(failure)?;
        }
        let is_new =
            |(_, partition): &&TopicPartition| self.progress.is_stale || !self.progress.places.contains_key(partition);
        let added: Vec<TopicPartition> = target.partitions.iter().filter(is_new).cloned().collect();
        if !added.is_empty() && !self.place(&added)? {
            return Ok(false);
        }
        self.progress.is_stale = false;
        self.intake.open();
        self.member.confirm(target);
        Ok(true)
    }

    /// After a failure, aborts the open transactions and goes back to the group's committed offsets.
    fn rewind(&mut self, partitions: &[TopicPartition]) -> Result<(), Failure> {
        self.progress.is_stale = true;
        let Some(settled) = self.settle(Settle::Abort) else { return Ok(()) };
        if let Some(failure) = settled.failure {
            self.after(failure)?;
        }
        if self.place(partitions)? {
            self.progress.is_stale = false;
            self.intake.open();
        }
        Ok(())
    }

    /// Pauses after a failure, before the copier continues.
    ///
    /// # Errors
    /// Returns the failure if a retry cannot succeed, or if brokers have refused too many requests.
    fn after(&mut self, failure: CopyError) -> Result<(), Failure> {
        let copied = self.transfer.counts.records.load(Ordering::Relaxed);
        if copied > self.progress.records {
            (self.progress.records, self.progress.failures, self.progress.failing_since) = (copied, (0, 0), None);
        }
        let (why, is_refusal) = match failure {
            CopyError::Fatal(sentence) => return Err(Failure::new(sentence)),
            CopyError::Again { why, is_refusal } | CopyError::Renew { why, is_refusal } => (why, is_refusal),
        };
        let (failures, refusals) = &mut self.progress.failures;
        let pause = BACKOFF.0.saturating_mul(1 << (*failures).min(4)).min(BACKOFF.1);
        (*failures, *refusals) = (failures.saturating_add(1), *refusals + u32::from(is_refusal));
        let since = *self.progress.failing_since.get_or_insert_with(Instant::now);
        if *refusals >= REFUSED_MAX.0 && since.elapsed() >= REFUSED_MAX.1 {
            return Err(Failure::new(format!("cannot go on copying: {refusals} transactions in a row failed: {why}")));
        }
        self.progress.troubles.1.observe_attempts(since, why);
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.stop.is_requested() {
            self.member.wait_for_move(TICK);
            std::thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    /// Finds the start offsets of partitions: the group's committed offsets, once no open transaction can change them.
    /// Returns false if this member has lost the partitions, if there is a newer target, or after a signal.
    fn place(&mut self, partitions: &[TopicPartition]) -> Result<bool, Failure> {
        let Some(places) = self.leaders()? else { return Ok(false) };
        let topic_id = places.first().map_or(Uuid::default(), |place| place.topic_id);
        let count = places.len();
        self.progress.topic_id = topic_id;
        self.find_ends(&places);
        self.progress.leaders = BTreeMap::from([(Text::from(self.args.from.as_str()), places)]);
        let of: Vec<(TopicPartition, Uuid)> = partitions.iter().map(|place| (place.clone(), topic_id)).collect();
        let since = Instant::now();
        let found = loop {
            match self.member.committed(&of, LOOK) {
                Ok(Some(found)) => break found,
                Ok(None) => return Ok(false),
                Err(error) if error.is_retriable() && !self.stop.is_requested() => {
                    self.progress.troubles.1.observe_attempts(since, error.to_string());
                    if self.member.newest() != self.progress.serial {
                        return Ok(false);
                    }
                }
                Err(_) if self.stop.is_requested() => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        };
        for ((_, partition), committed) in partitions.iter().zip(found) {
            let is_there = usize::try_from(*partition).is_ok_and(|number| number < count);
            if committed.is_none() && is_there && self.settings.fetch.reset.is_none() {
                return Err(Failure::new(format!(
                    "cannot begin to copy partition {partition} of topic '{}': the group has no offset of the \
                     partition; choose the start with -X auto.offset.reset=earliest or latest",
                    self.args.from
                )));
            }
            let placed = self.progress.position(*partition, topic_id, committed);
            self.progress.places.insert(*partition, placed);
        }
        Ok(true)
    }

    /// Returns the partitions of the source, or `None` after a signal.
    fn leaders(&mut self) -> Result<Option<Vec<PartitionPlace>>, Failure> {
        let (topic, since) = (Text::from(self.args.from.as_str()), Instant::now());
        loop {
            match self.cluster.partitions_of(std::slice::from_ref(&topic)) {
                // A broker that is behind may not know the topic.
                Ok(mut found) => match found.remove(&topic).or_else(|| self.cluster.partitions_elsewhere(&topic)?.ok())
                {
                    Some(places) => return Ok(Some(places)),
                    None => return Err(ConsumeError::Deleted { topic }.into()),
                },
                Err(error) if error.is_retriable() && !self.stop.is_requested() => {
                    self.progress.troubles.1.observe_attempts(since, error.to_string());
                    std::thread::sleep(BACKOFF.0);
                }
                Err(_) if self.stop.is_requested() => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the assigned partitions to their ends, or until the assignment changes, a transaction fails, or a signal
    /// stops the command.
    fn stretch(&mut self, idle: &mut Idle) -> Result<Stretch, Failure> {
        let topic = Text::from(self.args.from.as_str());
        let cursor = |(partition, placed): (&i32, &Placed)| {
            let sink = IntakeSink::new(self.intake.clone(), *partition, placed.offset.unwrap_or(0));
            Cursor::placed(topic.clone(), *partition, *placed, sink)
        };
        let cursors = self.progress.places.iter().map(cursor).collect();
        let plan = ConsumePlan {
            start: self.settings.fetch.reset.unwrap_or(StartOffset::Latest),
            to_end: self.args.exit,
            metadata_max_age: self.settings.group.metadata_max_age,
            places: std::mem::take(&mut self.progress.leaders),
            ..ConsumePlan::new(self.settings.fetch.clone(), Duration::MAX)
        };
        let cluster = self.cluster.detached();
        let Follow { member, transfer, intake, stop, progress, args, .. } = self;
        let mut is_cut_off = false;
        let outcome = consume(&cluster, cursors, &plan, |run| {
            progress.note_deleted(run);
            progress.troubles.0.of_run(run, None);
            progress.troubles.1.observe(member.trouble());
            idle.observe(run.records() > 0, || format!("no record of {} yet; Ctrl-C ends", args.from));
            let ends = stop.is_requested() || member.is_moving() || transfer.has_failed();
            if ends {
                // A fetcher may be waiting for space in the queue. Closing the intake ends this wait.
                intake.close();
                is_cut_off = true;
            }
            !ends
        });
        let outcome = outcome.map_err(|error| unreadable(&error))?;
        for cursor in outcome.cursors {
            progress.place(cursor.partition, cursor.placed);
        }
        progress.unread = outcome.unread;
        Ok(match is_cut_off {
            _ if stop.is_requested() => Stretch::Ended,
            true => Stretch::Moved,
            false if outcome.finished.is_some() => Stretch::Finished,
            false => Stretch::Ended,
        })
    }
}

fn uncommitted(why: &str) -> Failure {
    Failure::new(format!(
        "cannot commit the last transaction: {why}; the next start copies its records again, unless they are already \
         in the target"
    ))
}

/// Returns the failure of a read. If records are missing, the sentence contains a remedy.
fn unreadable(error: &ConsumeError) -> Failure {
    match error {
        ConsumeError::OutOfRange { topic, partition, offset } => Failure::new(format!(
            "cannot go on copying: partition {partition} of topic '{topic}' has no offset {offset}: its records were \
             deleted, or lost, before they were copied; skip them with -X auto.offset.reset=earliest or `fullbore groups \
             reset-offsets`"
        )),
        ConsumeError::Truncated { topic, partition, first, last } => Failure::new(format!(
            "cannot go on copying: partition {partition} of topic '{topic}' lost offsets {first} to {last} after they \
             were copied; choose the start with `fullbore groups reset-offsets`"
        )),
        error => Failure::new(error.to_string()),
    }
}

/// Returns the failure for a source or target that does not exist.
pub(super) fn missing(topic: &str, partitions: Option<usize>) -> Failure {
    let partitions = partitions.map_or_else(String::new, |count| format!(" --partitions {count}"));
    Failure::new(format!(
        "cannot copy: topic '{topic}' does not exist; make it with `fullbore topics create --topic {topic}{partitions}`"
    ))
}

/// Returns how many partitions a topic has, or `None` if it does not exist.
///
/// # Errors
/// Returns [`ClientError`] if the metadata cannot be read.
pub(super) fn count(cluster: &mut Cluster, topic: &str) -> Result<Option<usize>, ClientError> {
    let topic = Text::from(topic);
    let found = cluster.partitions_of(std::slice::from_ref(&topic))?.remove(&topic);
    // A broker that is behind may not know a new topic, so another one is queried.
    Ok(found.or_else(|| cluster.partitions_elsewhere(&topic)?.ok()).map(|places| places.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_transaction_is_aborted_the_copier_goes_back_to_its_start() {
        let (id, mut progress) = (Uuid([1; 16]), Progress::default());
        let placed = |offset| Placed { topic_id: id, offset, leader_epoch: None, end: Some(90) };
        assert_eq!(progress.position(0, id, None).offset, None);
        // With auto.offset.reset=latest, the first read has started at the end of the log.
        progress.place(0, placed(Some(70)));
        assert_eq!(progress.position(0, id, None), placed(Some(70)));
        let committed = CommittedOffset { offset: 80, leader_epoch: Some(4) };
        assert_eq!(progress.position(0, id, Some(committed)), Placed { leader_epoch: Some(4), ..placed(Some(80)) });
        let recreated = Uuid([2; 16]);
        assert_eq!(progress.position(0, recreated, None).offset, None);
    }
}
