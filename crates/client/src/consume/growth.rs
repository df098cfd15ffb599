//! Partitions and topics that come while others are read.
//!
//! Invariant: each partition is begun with once, from its start or what is left of it, since all it has came after the
//! reading began; one of a topic that was deleted is begun with again when there is a topic of that name again.

use super::cursor::Cursor;
use crate::blocking::PartitionPlace;
use fullbore_wire::Text;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which of the topics that there are belong to the run, by name and whether they are internal.
pub type TopicFilter = Arc<dyn Fn(&str, bool) -> bool + Send + Sync>;

/// Look for new partitions: topics, interval, and their sinks.
pub struct Growth<S> {
    topics: Vec<Text>,
    matches: Option<TopicFilter>,
    every: Duration,
    look_at: Instant,
    known: HashSet<(Text, i32)>,
    begin: Box<dyn FnMut(PartitionPlace) -> Cursor<S>>,
}

impl<S> Growth<S> {
    /// Looks at these topics, and at those that match, this often; `begin` makes the cursor of a new partition.
    pub fn new(
        topics: Vec<Text>,
        matches: Option<TopicFilter>,
        every: Duration,
        begin: impl FnMut(PartitionPlace) -> Cursor<S> + 'static,
    ) -> Self {
        let look_at = Instant::now() + every;
        Growth { topics, matches, every, look_at, known: HashSet::new(), begin: Box::new(begin) }
    }

    /// These are being read already.
    pub(super) fn know(&mut self, cursors: &[Cursor<S>]) {
        self.known.extend(cursors.iter().map(|cursor| (cursor.topic.clone(), cursor.partition)));
    }

    /// The topics and what others match, if it is time to look at them.
    pub(super) fn due(&mut self) -> Option<(&[Text], Option<TopicFilter>)> {
        let now = Instant::now();
        let is_due = now >= self.look_at;
        self.look_at = if is_due { now + self.every } else { self.look_at };
        is_due.then_some((&self.topics, self.matches.clone()))
    }

    /// The topic was deleted, and nothing of it is being read any more. Who named it does not hear of the next of its
    /// name; for who matches names that one is as new as any other.
    pub(super) fn forget(&mut self, topic: &Text) {
        self.topics.retain(|known| known != topic);
        if self.matches.is_some() {
            self.known.retain(|(known, _)| known != topic);
        }
    }

    /// The cursors of those among `places` that are new.
    pub(super) fn begin(&mut self, places: &[PartitionPlace]) -> Vec<Cursor<S>> {
        let known = &mut self.known;
        let is_new = |place: &&PartitionPlace| known.insert((place.topic.clone(), place.partition));
        let new: Vec<PartitionPlace> = places.iter().filter(is_new).cloned().collect();
        new.into_iter().map(|place| (self.begin)(place).at_start()).collect()
    }
}
