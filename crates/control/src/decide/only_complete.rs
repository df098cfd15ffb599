//! Finds the partitions whose only complete replica is on a certain broker. That broker must not start with an empty
//! data directory, because the volume with the replica might just not be mounted.
//!
//! `members` makes that decision. `fullbore admin check` reports such partitions before the start. Diskless partitions
//! do not count, because their records are in the object store.

use super::super::image::Image;

/// The partitions whose only complete replica is on a certain broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnlyComplete {
    pub count: usize,
    /// The name of one of the partitions.
    pub first: String,
}

/// Collects the partitions whose only complete replica is on the broker `id`.
#[derive(Debug)]
pub struct OnlyCompletePartitions {
    id: i32,
    count: usize,
    first: Option<String>,
}

impl OnlyCompletePartitions {
    pub fn of(id: i32) -> Self {
        OnlyCompletePartitions { id, count: 0, first: None }
    }

    /// Adds `count` consecutive partitions with this ISR and ELR, if the broker is the only member of both. `first` is
    /// the number of the first of these partitions.
    pub fn add(&mut self, topic: &str, first: i32, count: usize, isr: &[i32], elr: &[i32]) {
        let mut complete = isr.iter().chain(elr).peekable();
        if complete.peek().is_some() && complete.all(|other| *other == self.id) {
            self.count += count;
            self.first.get_or_insert_with(|| format!("{topic}-{first}"));
        }
    }

    /// Returns the collected partitions, or `None` if there are none.
    pub fn found(self) -> Option<OnlyComplete> {
        self.first.map(|first| OnlyComplete { count: self.count, first })
    }
}

/// Returns the partitions of the image whose only complete replica is on the broker `id`, or `None` if there are none.
pub fn only_complete_replicas(image: &Image, id: i32) -> Option<OnlyComplete> {
    let mut found = OnlyCompletePartitions::of(id);
    for topic in image.topics().filter(|topic| !topic.config.diskless) {
        for (index, partition) in (0..).zip(&topic.partitions) {
            found.add(&topic.name, index, 1, &partition.isr, &partition.elr);
        }
    }
    found.found()
}
