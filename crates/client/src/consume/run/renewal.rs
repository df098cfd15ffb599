//! Finds leaders that have moved although the former leader still answers.
//!
//! A broker that is cut off from the controller may answer fetches as the leader for as long as it is cut off, but gets
//! no new record. The run therefore looks up all leaders at intervals, each time at another broker. It recalls the
//! partitions whose leader epoch is newer. Invariant: the leader epoch of a partition grows (KIP-320). The run accepts
//! an older epoch only if brokers return it for a while, since the cluster was then restored from an older copy.

use super::{Idle, LONG_BACKOFF, RETRY_BACKOFF, Run, Running};
use crate::blocking::PartitionPlace;
use crate::consume::cursor::{Cursor, Sink};
use crate::consume::scout::LookUp;
use crate::error::ClientError;
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum time between two look-ups of all leaders.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// How much longer than fetch.max.wait.ms a leader may be silent before another broker is queried.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// The time between two look-ups of silent leaders.
const SILENT_EVERY: Duration = Duration::from_secs(10);
/// How long the end of a run with `to_end` waits until another broker has confirmed the leaders.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);

/// The leaders of the partitions that the run reads, and the times of the next look-ups.
pub(super) struct Renewal {
    known: BTreeMap<(Text, i32), KnownLeader>,
    every: Duration,
    due: Instant,
    silent_due: Instant,
    confirmation: Confirmation,
    /// Partitions whose end comes from a former leader. The fetcher has not given them back yet.
    stale_ends: BTreeSet<(Text, i32)>,
}

/// The newest leader of a partition.
struct KnownLeader {
    topic_id: Uuid,
    epoch: i32,
    address: String,
    /// The time since which brokers return only older epochs.
    older_since: Option<Instant>,
}

/// The state of the first look-up of a run with `to_end`. The ends of the read come from the leaders that one broker
/// has named, and the look-up queries another broker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Confirmation {
    Due,
    Requested(Instant),
    Over,
}

impl Renewal {
    pub(super) fn new(every: Duration, to_end: bool) -> Self {
        let (every, now) = (every.max(EVERY_MIN), Instant::now());
        Renewal {
            known: BTreeMap::new(),
            every,
            due: now + every,
            silent_due: now,
            confirmation: if to_end { Confirmation::Due } else { Confirmation::Over },
            stale_ends: BTreeSet::new(),
        }
    }

    /// Forgets the partitions of a deleted topic.
    pub(super) fn forget(&mut self, of_topic: &Text) {
        self.known.retain(|(topic, _), _| topic != of_topic);
    }

    /// Returns true if the leader of this place is not older than the known one, and remembers the leader. Accepts an
    /// older leader if brokers have named no newer one for `patience`.
    fn accepts(&mut self, place: &PartitionPlace, now: Instant, patience: Duration) -> bool {
        let Some(address) = place.leader.clone() else { return true };
        let key = (place.topic.clone(), place.partition);
        let known = self.known.get_mut(&key).filter(|known| known.topic_id == place.topic_id);
        let mut epoch = place.leader_epoch;
        if let Some(known) = known
            && epoch < known.epoch
        {
            let since = *known.older_since.get_or_insert(now);
            if epoch >= 0 && now.saturating_duration_since(since) < patience {
                return false;
            }
            // A negative epoch is unknown and does not replace the known one.
            epoch = if epoch < 0 { known.epoch } else { epoch };
        }
        self.known.insert(key, KnownLeader { topic_id: place.topic_id, epoch, address, older_since: None });
        true
    }

    /// Notes the newest leader epoch that a broker has returned for the cursor's partition.
    pub(super) fn note_newer<S>(&mut self, cursor: &Cursor<S>, epoch: i32) {
        let known = self.known.get_mut(&(cursor.topic.clone(), cursor.partition));
        if let Some(known) = known.filter(|known| known.topic_id == cursor.topic_id && known.epoch < epoch) {
            (known.epoch, known.older_since) = (epoch, None);
        }
    }

    /// Returns the address of the former leader if the leader of this place is newer and is another broker. Remembers
    /// the newer leader.
    fn moved(&mut self, place: &PartitionPlace) -> Option<String> {
        let known = self.known.get_mut(&(place.topic.clone(), place.partition))?;
        let leader = place.leader.as_ref()?;
        if known.topic_id != place.topic_id || place.leader_epoch <= known.epoch {
            return None;
        }
        (known.epoch, known.older_since) = (place.leader_epoch, None);
        (known.address != *leader).then(|| std::mem::replace(&mut known.address, leader.clone()))
    }

    /// Returns true if another broker than the one at `leader` leads the cursor's partition by now.
    pub(super) fn has_left<S>(&self, cursor: &Cursor<S>, leader: &str) -> bool {
        let known = self.known.get(&(cursor.topic.clone(), cursor.partition));
        known.is_some_and(|known| known.topic_id == cursor.topic_id && known.address != leader)
    }

    /// Returns the cursor, without its end if the end comes from a former leader.
    pub(super) fn with_present_end<S>(&mut self, mut cursor: Cursor<S>) -> Cursor<S> {
        if !self.stale_ends.is_empty() && self.stale_ends.remove(&(cursor.topic.clone(), cursor.partition)) {
            cursor.forget_end();
        }
        cursor
    }
}

impl<S: Sink> Run<'_, S> {
    /// Adds the topics whose leaders must be looked up at another broker, if a look-up is due.
    pub(super) fn add_renewals(&mut self, topics: &mut LookUp, now: Instant) {
        let first = self.renewal.confirmation == Confirmation::Due && !self.renewal.known.is_empty();
        if first {
            let others = self.scout.knows_others();
            self.renewal.confirmation = if others { Confirmation::Requested(now) } else { Confirmation::Over };
        }
        let confirms = matches!(self.renewal.confirmation, Confirmation::Requested(since) if since == now);
        let all = confirms || now >= self.renewal.due;
        let is_silent = |fetcher: &&Running<S>| now >= self.renewal.silent_due && self.is_silent(fetcher);
        let silent: Vec<&str> =
            self.fetchers.values().filter(is_silent).map(|fetcher| fetcher.leader.as_str()).collect();
        if !all && silent.is_empty() {
            return;
        }
        let deleted = self.progress.deleted();
        for ((topic, _), known) in &self.renewal.known {
            if !deleted.contains(topic) && (all || silent.contains(&known.address.as_str())) {
                topics.entry(topic.clone()).or_default().topic_id = Some(known.topic_id);
            }
        }
        if all {
            self.renewal.due = now + self.renewal.every;
        }
        self.renewal.silent_due = now + SILENT_EVERY;
        self.scout.move_on();
    }

    /// Returns true if the leader has not answered a fetch for too long.
    fn is_silent(&self, fetcher: &Running<S>) -> bool {
        let patience = Duration::from_millis(self.plan.fetch.max_wait_ms.max(0) as u64) + SILENT_AFTER;
        fetcher.awaited.get().is_some_and(|since| since.elapsed() > patience)
    }

    /// Returns true if another broker must confirm the leader epochs of the cursor's partition.
    pub(super) fn confirms_epochs(&self, cursor: &Cursor<S>, now: Instant) -> bool {
        cursor.unknown_epoch_for(now) >= self.older_epoch_after()
    }

    /// Recalls partitions from the fetchers of former leaders, because these places name newer leaders.
    pub(super) fn recall_moved(&mut self, places: &[PartitionPlace]) {
        let confirms = matches!(self.renewal.confirmation, Confirmation::Requested(_));
        for place in places {
            let Some(former) = self.renewal.moved(place) else { continue };
            let of = (place.topic.clone(), place.partition);
            if confirms {
                self.forget_end(&of);
            }
            for fetcher in self.fetchers.values().filter(|fetcher| fetcher.leader == former) {
                fetcher.inbox.recall(of.clone());
                if self.is_silent(fetcher) {
                    // The fetcher would notice the recall only after the leader's answer.
                    fetcher.stopper.stop();
                }
            }
        }
    }

    /// Forgets the end of a partition, because a former leader has returned it.
    fn forget_end(&mut self, of: &(Text, i32)) {
        let is_it = |cursor: &Cursor<S>| cursor.partition == of.1 && cursor.topic == of.0;
        if let Some(at) = self.done.iter().position(is_it) {
            let cursor = self.done.remove(at);
            self.idle.push(Idle { cursor, due: Instant::now() });
        }
        match self.idle.iter_mut().find(|idle| is_it(&idle.cursor)) {
            Some(idle) => idle.cursor.forget_end(),
            None => _ = self.renewal.stale_ends.insert(of.clone()),
        }
    }

    /// Notes the report of a look-up. `failed` is true if the leaders of a topic are still unknown.
    pub(super) fn renewed(&mut self, failed: bool) {
        if let Confirmation::Requested(_) = self.renewal.confirmation {
            self.renewal.confirmation = Confirmation::Over;
        }
        if self.renewal.confirmation == Confirmation::Due {
            // The first renewal follows at once, while the fetchers begin to read.
            self.look_at = Instant::now();
        }
        if failed {
            self.renewal.due = self.renewal.due.min(Instant::now() + LONG_BACKOFF);
        }
    }

    /// Returns true if a run that has read everything must wait, because another broker has not confirmed the leaders
    /// yet.
    pub(super) fn awaits_confirmation(&self) -> bool {
        match self.renewal.confirmation {
            Confirmation::Due => {
                !self.renewal.known.is_empty() && self.scout.knows_others() && self.scout.looks_since().is_none()
            }
            Confirmation::Requested(since) => since.elapsed() < CONFIRMED_WITHIN,
            Confirmation::Over => false,
        }
    }

    /// Makes a partition idle that another broker leads by now.
    pub(super) fn take_moved(&mut self, cursor: Cursor<S>) {
        let cursor = self.renewal.with_present_end(cursor);
        self.idle.push(Idle { cursor, due: Instant::now() });
    }

    /// Returns the cursor if this place names its newest known leader. Otherwise the cursor becomes idle, and the next
    /// look-up goes to another broker.
    pub(super) fn accepted(&mut self, mut cursor: Cursor<S>, place: Option<&PartitionPlace>) -> Option<Cursor<S>> {
        let now = Instant::now();
        let patience = self.older_epoch_after();
        if place.is_none_or(|place| self.renewal.accepts(place, now, patience)) {
            return Some(cursor);
        }
        let of = format!("partition {} of topic '{}'", cursor.partition, cursor.topic);
        let what = format!("cannot read {of}: a broker names a former leader");
        let error = ClientError::refused(what, ErrorCode::UNKNOWN_LEADER_EPOCH);
        cursor.note_refusal(&error, now);
        let for_long = self.progress.waiting.refuse((cursor.topic.clone(), cursor.partition), Arc::new(error));
        self.scout.move_on();
        let due = now + if for_long >= LONG_BACKOFF { LONG_BACKOFF } else { RETRY_BACKOFF };
        self.idle.push(Idle { cursor, due });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn place(leader: &str, leader_epoch: i32) -> PartitionPlace {
        let leader = Some(leader.to_owned());
        PartitionPlace { topic: "t".into(), topic_id: Uuid([1; 16]), partition: 0, leader, leader_epoch }
    }

    #[test]
    fn older_leader_epoch_is_accepted_only_after_a_while() {
        let (mut renewal, began) = (Renewal::new(PATIENCE, false), Instant::now());
        assert!(renewal.accepts(&place("a:1", 5), began, PATIENCE));
        assert!(renewal.accepts(&place("b:1", 6), began, PATIENCE));
        assert!(!renewal.accepts(&place("a:1", 5), began, PATIENCE));
        assert!(!renewal.accepts(&place("a:1", 5), began + PATIENCE / 2, PATIENCE));
        assert!(renewal.accepts(&place("a:1", 5), began + PATIENCE, PATIENCE), "the cluster was restored");
        assert!(renewal.accepts(&place("b:1", 6), began + PATIENCE, PATIENCE));
    }

    #[test]
    fn unknown_leader_epoch_does_not_replace_the_known_one() {
        let (mut renewal, began) = (Renewal::new(PATIENCE, false), Instant::now());
        assert!(renewal.accepts(&place("a:1", 5), began, PATIENCE));
        assert!(renewal.accepts(&place("a:1", -1), began, PATIENCE));
        assert!(!renewal.accepts(&place("b:1", 4), began, PATIENCE));
    }

    #[test]
    fn partition_has_moved_only_if_its_epoch_is_newer_and_its_leader_another() {
        let mut renewal = Renewal::new(PATIENCE, false);
        assert_eq!(renewal.moved(&place("a:1", 5)), None, "it is not read");
        assert!(renewal.accepts(&place("a:1", 5), Instant::now(), PATIENCE));
        assert_eq!(renewal.moved(&place("b:1", 5)), None);
        assert_eq!(renewal.moved(&place("a:1", 6)), None);
        let other = PartitionPlace { topic_id: Uuid([2; 16]), ..place("b:1", 9) };
        assert_eq!(renewal.moved(&other), None, "the name has another topic");
        assert_eq!(renewal.moved(&place("b:1", 7)), Some("a:1".to_owned()));
        assert_eq!(renewal.moved(&place("b:1", 7)), None);
    }
}
