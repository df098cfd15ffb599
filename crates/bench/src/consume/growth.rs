//! Partitions that topics get while they are read.
//!
//! Invariant: each partition is begun with once, from its start, since all it has came after the reading began.

use super::Cursor;
use crate::client::PartitionPlace;
use fullbore_wire::Text;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Where to look for them, how often, and what to begin them with.
pub struct Growth<S> {
    topics: Vec<Text>,
    every: Duration,
    look_at: Instant,
    known: HashSet<(Text, i32)>,
    begin: Box<dyn FnMut(PartitionPlace) -> Cursor<S>>,
}

impl<S> Growth<S> {
    /// These topics are looked at this often; `begin` makes the cursor of a new partition.
    pub fn new(topics: Vec<Text>, every: Duration, begin: impl FnMut(PartitionPlace) -> Cursor<S> + 'static) -> Self {
        let look_at = Instant::now() + every;
        Growth { topics, every, look_at, known: HashSet::new(), begin: Box::new(begin) }
    }

    /// These are being read already.
    pub(super) fn know(&mut self, cursors: &[Cursor<S>]) {
        self.known.extend(cursors.iter().map(|cursor| (cursor.topic.clone(), cursor.partition)));
    }

    /// The topics, if it is time to look at them.
    pub(super) fn due(&mut self) -> Option<&[Text]> {
        let now = Instant::now();
        let is_due = now >= self.look_at;
        self.look_at = if is_due { now + self.every } else { self.look_at };
        is_due.then_some(&self.topics)
    }

    /// The cursors of those among `places` that are new.
    pub(super) fn begin(&mut self, places: &[PartitionPlace]) -> Vec<Cursor<S>> {
        let known = &mut self.known;
        let is_new = |place: &&PartitionPlace| known.insert((place.topic.clone(), place.partition));
        let new: Vec<PartitionPlace> = places.iter().filter(is_new).cloned().collect();
        new.into_iter().map(|place| Cursor { offset: Some(0), ..(self.begin)(place) }).collect()
    }
}
