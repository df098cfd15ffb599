//! Finds partitions and topics that appear during a run.
//!
//! Invariant: each new partition gets one cursor, at the start of its log, because all of its records are newer than
//! the run. If its topic is deleted and recreated, the partition gets another cursor.

use super::cursor::Cursor;
use crate::blocking::PartitionPlace;
use fullbore_wire::Text;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Decides whether a topic is read, by its name and by a flag that is true for internal topics.
pub type TopicFilter = Arc<dyn Fn(&str, bool) -> bool + Send + Sync>;

/// A regular check for new partitions: the topics to check, the interval, and the function that creates cursors.
pub struct Growth<S> {
    topics: Vec<Text>,
    matches: Option<TopicFilter>,
    every: Duration,
    look_at: Instant,
    known: HashSet<(Text, i32)>,
    begin: Box<dyn FnMut(PartitionPlace) -> Cursor<S>>,
}

impl<S> Growth<S> {
    /// Creates a check that runs after each interval `every`. It covers `topics` and the topics that match the filter.
    /// `begin` creates the cursor of a new partition.
    pub fn new(
        topics: Vec<Text>,
        matches: Option<TopicFilter>,
        every: Duration,
        begin: impl FnMut(PartitionPlace) -> Cursor<S> + 'static,
    ) -> Self {
        let look_at = Instant::now() + every;
        Growth { topics, matches, every, look_at, known: HashSet::new(), begin: Box::new(begin) }
    }

    /// Notes partitions that already have a cursor.
    pub(super) fn know(&mut self, cursors: &[Cursor<S>]) {
        self.known.extend(cursors.iter().map(|cursor| (cursor.topic.clone(), cursor.partition)));
    }

    /// Returns the topics and the filter if a check is due.
    pub(super) fn due(&mut self) -> Option<(&[Text], Option<TopicFilter>)> {
        let now = Instant::now();
        let is_due = now >= self.look_at;
        self.look_at = if is_due { now + self.every } else { self.look_at };
        is_due.then_some((&self.topics, self.matches.clone()))
    }

    /// Notes that a topic was deleted and is no longer read. A topic that was given by name is not checked again. A
    /// topic that matches the filter counts as new once it is recreated.
    pub(super) fn forget(&mut self, topic: &Text) {
        self.topics.retain(|known| known != topic);
        if self.matches.is_some() {
            self.known.retain(|(known, _)| known != topic);
        }
    }

    /// Returns a cursor for each new partition among `places`.
    pub(super) fn begin(&mut self, places: &[PartitionPlace]) -> Vec<Cursor<S>> {
        let known = &mut self.known;
        let is_new = |place: &&PartitionPlace| known.insert((place.topic.clone(), place.partition));
        let new: Vec<PartitionPlace> = places.iter().filter(is_new).cloned().collect();
        new.into_iter().map(|place| (self.begin)(place).at_start()).collect()
    }
}
