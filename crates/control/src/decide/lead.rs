//! Decisions on single partitions: ISR changes that a leader requests, and leader elections.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::cluster::{alter_isr, elect_preferred, elect_unclean};
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::{ErrorCode, Uuid};

use super::super::change::Change;
use super::super::command::{AlterIsr, ElectLeaders, ElectionKind, Refusal};
use super::super::image::{Image, Topic};
use super::settle::Changed;

/// The new registration of the partition, or the refusal.
type Registered = Result<Arc<PartitionRegistration>, Refusal>;

/// Decides on the ISR changes that a leader requests.
pub fn alter_isrs(image: &Image, requested: &AlterIsr) -> (Vec<Change>, Vec<Registered>) {
    let mut single = Single::default();
    let outcomes = requested.partitions.iter().map(|(topic, index, wanted)| {
        let topic = image.topic_by_id(*topic).ok_or(ErrorCode::UNKNOWN_TOPIC_ID);
        topic.and_then(|topic| {
            single.change(topic, *index, |topic, partition| {
                let min_isr = topic.config.min_insync_replicas;
                alter_isr(partition, image.registrations(), min_isr, requested.from, wanted)
            })
        })
    });
    let outcomes = outcomes.map(|outcome| outcome.map_err(|code| Refusal::new(code, code.message()))).collect();
    (single.finish(), outcomes)
}

/// Decides on the elections that a client requests. The messages and error codes are the same as in Kafka's
/// ReplicationControlManager.
pub fn elect(image: &Image, requested: &ElectLeaders) -> (Vec<Change>, Vec<Registered>) {
    let mut single = Single::default();
    let outcomes = requested.partitions().map(|(name, index)| {
        let unknown = |what: String| Refusal::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, what);
        let topic = image.topic(name).ok_or_else(|| unknown(format!("No such topic as {name}")))?;
        if topic.partition(index).is_none() {
            return Err(unknown(format!("No such partition as {name}-{index}")));
        }
        if topic.config.diskless {
            let message = format!(
                "Topic {name} is diskless: every broker serves its partitions, and there is no leader to elect."
            );
            return Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
        }
        let brokers = image.registrations();
        let elected = single.change(topic, index, |topic, partition| {
            let min_isr = topic.config.min_insync_replicas;
            match requested.kind {
                ElectionKind::Preferred => elect_preferred(partition, brokers, min_isr),
                ElectionKind::Unclean => elect_unclean(partition, brokers, min_isr),
            }
        });
        elected.map_err(|code| Refusal::new(code, why_not(code, requested.kind)))
    });
    let mut each = Vec::with_capacity(requested.partition_count());
    each.extend(outcomes);
    (single.finish(), each)
}

fn why_not(code: ErrorCode, kind: ElectionKind) -> &'static str {
    match (code, kind) {
        (ErrorCode::ELECTION_NOT_NEEDED, ElectionKind::Preferred) => "The partition has its preferred leader.",
        (ErrorCode::ELECTION_NOT_NEEDED, ElectionKind::Unclean) => "The partition has a leader.",
        (ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE, _) => {
            "The preferred leader is not in sync, or its broker is not running."
        }
        (ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE, _) => "No broker with a replica of the partition is running.",
        _ => code.message(),
    }
}

/// Changed registrations of single partitions. If a request contains a partition twice, the second change is based on
/// the first.
#[derive(Default)]
struct Single {
    changed: BTreeMap<Uuid, BTreeMap<usize, Arc<PartitionRegistration>>>,
}

impl Single {
    fn change(
        &mut self,
        topic: &Topic,
        index: i32,
        change: impl FnOnce(&Topic, &PartitionRegistration) -> Result<PartitionRegistration, ErrorCode>,
    ) -> Result<Arc<PartitionRegistration>, ErrorCode> {
        let number = usize::try_from(index).map_err(|_| ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
        let changed = self.changed.get(&topic.id).and_then(|topic| topic.get(&number));
        let before = changed.or_else(|| topic.partition(index)).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
        let after = change(topic, before)?;
        if after == **before {
            return Ok(Arc::clone(before));
        }
        let after = Arc::new(after);
        self.changed.entry(topic.id).or_default().insert(number, Arc::clone(&after));
        Ok(after)
    }

    fn finish(self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (topic, partitions) in self.changed {
            let mut changed = Changed::default();
            partitions.into_iter().for_each(|(number, registered)| changed.push(number, registered));
            changes.extend(changed.finish(topic));
        }
        changes
    }
}
