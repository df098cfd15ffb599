//! Decides new leaders and ISRs after the states of brokers have changed. The decision is split into pieces, with one
//! transaction for each, because many partitions may be affected.
//!
//! The rules are in [`fullbore_rules::cluster`]. Diskless partitions are skipped: their registrations never change, and
//! the metadata for clients is computed from the brokers' states.
//!
//! Invariant: a piece depends only on the newest image. Any broker can therefore decide the next piece, and deciding a
//! piece again has no effect.

use std::sync::Arc;

use fullbore_rules::cluster::{LogEndReport, follow_up, is_settled};
use fullbore_rules::replica::{Brokers, PartitionRegistration};
use fullbore_wire::Uuid;

use super::super::change::{Change, Partitions};
use super::super::image::{Image, Topic};

/// How many more registrations one transaction may change.
#[derive(Debug, Clone)]
pub struct ChangeBudget {
    left: usize,
    is_short: bool,
}

impl ChangeBudget {
    /// Creates a budget. Consecutive partitions that share a registration count as one.
    pub fn new(registrations: usize) -> Self {
        Self { left: registrations, is_short: false }
    }

    /// Returns true if a change did not fit into the budget.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Uses one registration of the budget. Returns false if none is left.
    fn take(&mut self) -> bool {
        self.is_short = self.left == 0;
        self.left = self.left.saturating_sub(1);
        !self.is_short
    }
}

/// Returns the topic id and number of the first partition whose leader or ISR must change, or `None` if there is none.
pub fn first_unsettled(image: &Image) -> Option<(Uuid, usize)> {
    match settle_all(image, &mut ChangeBudget::new(1)).first() {
        Some(Change::PartitionsChanged { topic, first, .. }) => Some((*topic, *first)),
        _ => None,
    }
}

/// Returns the number of partitions whose leader or ISR must change. Consecutive partitions that share a registration
/// count as one.
#[cfg(test)]
pub fn unsettled(image: &Image) -> usize {
    let mut all = ChangeBudget::new(usize::MAX);
    settle_all(image, &mut all);
    usize::MAX - all.left
}

/// Decides the leaders and ISRs of the `urgent` partitions until the budget is used up.
pub fn settle_these(image: &Image, urgent: &[(Uuid, i32)], room: &mut ChangeBudget) -> Vec<Change> {
    let mut changes = Vec::new();
    for (topic, number) in urgent {
        let Some(topic) = image.topic_by_id(*topic).filter(|topic| !topic.config.diskless) else { continue };
        let Some(partition) = topic.partition(*number) else { continue };
        let ends = image.log_ends(topic.id, *number);
        let (Some(settled), Ok(first)) = (settled(image, topic, partition, ends), usize::try_from(*number)) else {
            continue;
        };
        if !room.take() {
            break;
        }
        let partitions = Partitions::unit(Arc::new(settled));
        changes.push(Change::PartitionsChanged { topic: topic.id, first, partitions });
    }
    changes
}

/// Decides the leaders and ISRs of all partitions until the budget is used up. Combines consecutive partitions into one
/// change, because a store can write that faster.
pub fn settle_all(image: &Image, room: &mut ChangeBudget) -> Vec<Change> {
    each_of(image, |topic, partition, ends| settled(image, topic, partition, ends), room)
}

/// Returns the partition with its new leader and ISR, or `None` if they do not change.
fn settled(
    image: &Image,
    topic: &Topic,
    partition: &PartitionRegistration,
    ends: &[LogEndReport],
) -> Option<PartitionRegistration> {
    let is_unclean = topic.config.unclean_leader_election_enable;
    match is_settled(partition, image.registrations(), is_unclean) {
        true => None,
        false => settled_by(image.registrations(), topic, partition, ends),
    }
}

/// Decides the leader and ISR of a partition from the states of `brokers`. Returns `None` if they do not change.
pub fn settled_by(
    brokers: &Brokers,
    topic: &Topic,
    partition: &PartitionRegistration,
    ends: &[LogEndReport],
) -> Option<PartitionRegistration> {
    let (min_isr, is_unclean) = (topic.config.min_insync_replicas, topic.config.unclean_leader_election_enable);
    follow_up(partition, brokers, min_isr, ends, is_unclean)
}

/// Calls `next` for all classic partitions until the budget is used up, and returns a change for each new registration.
/// Without reported log ends, one call serves all consecutive partitions that share a registration.
pub fn each_of(
    image: &Image,
    mut next: impl FnMut(&Topic, &PartitionRegistration, &[LogEndReport]) -> Option<PartitionRegistration>,
    room: &mut ChangeBudget,
) -> Vec<Change> {
    let mut changes = Vec::new();
    let may_share = !image.has_log_ends();
    for topic in image.topics().filter(|topic| !topic.config.diskless) {
        let mut changed = Changed::default();
        let mut last: Option<(&Arc<PartitionRegistration>, Option<Arc<PartitionRegistration>>)> = None;
        for (index, registered) in (0..).zip(&topic.partitions) {
            let after = match &last {
                Some((same, after)) if may_share && Arc::ptr_eq(same, registered) => after.clone(),
                _ => match next(topic, registered, image.log_ends(topic.id, index)) {
                    Some(_) if !room.take() => break,
                    after => after.map(Arc::new),
                },
            };
            if let Some(after) = &after {
                changed.push(usize::try_from(index).unwrap_or(usize::MAX), Arc::clone(after));
            }
            last = Some((registered, after));
        }
        changes.extend(changed.finish(topic.id));
        if room.is_short() {
            break;
        }
    }
    changes
}

/// The changed registrations of one topic. Consecutive partitions are combined into one change.
#[derive(Default)]
pub struct Changed {
    stretches: Vec<(usize, Partitions)>,
}

impl Changed {
    /// Adds the new registration of the partition `number`. The caller must add partitions in ascending order.
    pub fn push(&mut self, number: usize, registered: Arc<PartitionRegistration>) {
        match self.stretches.last_mut() {
            Some((first, partitions)) if *first + partitions.len() == number => partitions.push_back(registered),
            _ => self.stretches.push((number, Partitions::unit(registered))),
        }
    }

    /// Returns the collected changes.
    pub fn finish(self, topic: Uuid) -> impl Iterator<Item = Change> {
        self.stretches.into_iter().map(move |(first, partitions)| Change::PartitionsChanged {
            topic,
            first,
            partitions,
        })
    }
}
