//! The deleted topics that had the name of an existing topic. Producers of the existing topic may have written to them.
//!
//! A broker that has seen the deletion of a partition remembers the next sequence of each producer until it restarts
//! (see [`ProducerTails`](super::ProducerTails)). After the restart, only the metadata shows that a partition had a
//! predecessor, so its producers may continue with any sequence.
//!
//! Invariant: there are at most [`LIVES_MAX`] topics, and each has more partitions than every topic that was deleted
//! after it.

use std::sync::Arc;

use fullbore_wire::Uuid;

/// Maximum number of deleted topics with the same name that are remembered.
pub const LIVES_MAX: usize = 4;

/// A deleted topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastTopic {
    pub id: Uuid,
    pub partitions: i32,
    pub is_diskless: bool,
    /// The version of the metadata in which the topic was deleted.
    pub deleted_at: u64,
    /// No producer with this id or a larger one has written to the topic.
    pub producer_ids_below: i64,
}

/// The deleted topics that had the same name, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PastTopics(Arc<[PastTopic]>);

impl PastTopics {
    /// Adds `last`, the topic that was deleted most recently. An older topic that has no more partitions than `last` is
    /// dropped, because [`PastTopics::before`] now finds `last` for each of its partitions. If there are more than
    /// [`LIVES_MAX`], the two oldest are merged. The merged topic counts as diskless only if both were diskless,
    /// because the index of diskless topics has no producers of other topics.
    pub fn followed_by(&self, last: PastTopic) -> PastTopics {
        let larger = self.0.iter().filter(|older| older.partitions > last.partitions);
        let mut topics: Vec<PastTopic> = larger.copied().chain([last]).collect();
        if topics.len() > LIVES_MAX {
            let eldest = topics.remove(0);
            topics[0].partitions = eldest.partitions;
            topics[0].is_diskless &= eldest.is_diskless;
        }
        PastTopics(topics.into())
    }

    /// Returns the most recently deleted topic that had a partition with this number.
    pub fn before(&self, partition: i32) -> Option<PastTopic> {
        self.0.iter().rev().find(|topic| topic.partitions > partition).copied()
    }

    /// Returns the most recently deleted topic, if there is one.
    pub fn last(&self) -> Option<&PastTopic> {
        self.0.last()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &PastTopic> {
        self.0.iter()
    }
}

impl FromIterator<PastTopic> for PastTopics {
    /// Collects topics, which must be in the order of their deletion.
    fn from_iter<T: IntoIterator<Item = PastTopic>>(topics: T) -> Self {
        topics.into_iter().fold(PastTopics::default(), |before, topic| before.followed_by(topic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn topic(deleted_at: u64, partitions: i32, is_diskless: bool) -> PastTopic {
        let id = Uuid(u128::from(deleted_at).to_be_bytes());
        PastTopic { id, partitions, is_diskless, deleted_at, producer_ids_below: 7 }
    }

    fn shown(topics: &PastTopics) -> Vec<(u64, i32, bool)> {
        topics.iter().map(|topic| (topic.deleted_at, topic.partitions, topic.is_diskless)).collect()
    }

    #[test]
    fn smaller_topic_partitions_beyond_it_are_those_of_the_topic_before() {
        let topics: PastTopics = [topic(1, 8, false), topic(2, 2, true)].into_iter().collect();
        let before = |partition| topics.before(partition).map(|topic| topic.deleted_at);
        assert_eq!([before(0), before(1), before(2), before(7), before(8)], [Some(2), Some(2), Some(1), Some(1), None]);
        let topics = topics.followed_by(topic(3, 8, false));
        assert_eq!(shown(&topics), [(3, 8, false)], "nothing else is looked up");
    }

    #[test]
    fn topics_shrink_for_ever_the_two_oldest_become_one() {
        let shrinking = (1..=5).map(|at| topic(at, 10 - i32::try_from(at).expect("small"), at <= 2));
        let topics: PastTopics = shrinking.collect();
        assert_eq!(shown(&topics), [(2, 9, true), (3, 7, false), (4, 6, false), (5, 5, false)]);
        let topics = topics.followed_by(topic(6, 1, true));
        assert_eq!(shown(&topics), [(3, 9, false), (4, 6, false), (5, 5, false), (6, 1, true)]);
    }

    proptest! {
        #[test]
        fn recreated_topics_every_former_partition_is_remembered(
            lives in proptest::collection::vec((1..12_i32, any::<bool>()), 1..40)
        ) {
            let each = (1..).zip(&lives).map(|(at, (partitions, is_diskless))| topic(at, *partitions, *is_diskless));
            let topics: PastTopics = each.clone().collect();
            prop_assert!(topics.iter().count() <= LIVES_MAX);
            for partition in 0..12 {
                let last = each.clone().filter(|topic| topic.partitions > partition).last();
                let found = topics.before(partition);
                prop_assert_eq!(found.is_some(), last.is_some());
                if let (Some(found), Some(last)) = (found, last) {
                    prop_assert!(found.deleted_at >= last.deleted_at);
                    prop_assert!(last.is_diskless || !found.is_diskless, "only the index knows of diskless ones");
                }
            }
        }
    }
}
