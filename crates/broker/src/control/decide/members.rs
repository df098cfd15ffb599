//! A broker joins, is held for dead, comes back, or is about to stop; and what follows for the partitions that it has a replica of.
//!
//! The rules are [`fullbore_rules::cluster`]'s. Here they are asked for every partition that it concerns, in one transaction. A diskless one
//! concerns no broker: it stays registered as it was created, and what clients are told of it follows from who is there.

use std::collections::HashSet;
use std::sync::Arc;

use fullbore_rules::cluster::{self, FormerEnd, LogEnd, lose, relax, replace, settle};
use fullbore_rules::replica::epochs::Position;
use fullbore_rules::replica::{BrokerState, Brokers, PartitionRegistration};
use fullbore_wire::{ErrorCode, Uuid};

use super::super::change::{Change, Partitions};
use super::super::command::{BrokerChange, Refusal, RegisterBroker};
use super::super::image::{Image, Topic};
use super::super::node::RegisteredBroker;

/// A process in the place of the one that was this broker before. What that led, somebody else leads; where nobody else may, it is led
/// again by this one, in the same epoch if its log lost nothing.
pub fn register(image: &Image, wanted: &RegisterBroker) -> Result<Vec<Change>, Refusal> {
    let before = image.node(wanted.id).map(RegisteredBroker::member);
    if before.is_some_and(|before| before.process == wanted.joining.process) {
        return Ok(Vec::new());
    }
    // Larger than all before, whichever broker had them: that of a version of the metadata.
    let epoch = i64::try_from(image.epoch()).unwrap_or(i64::MAX).saturating_add(1);
    let (mut member, ended) = cluster::register(before.as_ref(), &wanted.joining, epoch)
        .map_err(|code| Refusal::new(code, already_there(wanted.id)))?;
    let has_lost = before.is_some() && ended == FormerEnd::Lost;
    member.registration.is_fenced = false;
    let mut brokers = Brokers::clone(image.registrations());
    brokers.insert(wanted.id, member.registration);
    let node = RegisteredBroker {
        registration: member.registration,
        folder: Uuid(member.folder.to_be_bytes()),
        process: Uuid(member.process.to_be_bytes()),
        rack: wanted.rack.clone(),
        serves_diskless: wanted.serves_diskless,
        endpoints: wanted.endpoints.clone(),
    };
    let mut changes = vec![Change::BrokerRegistered { id: wanted.id, node }];
    changes.extend(each_of(image, wanted.id, |topic, partition, ends| {
        let replaced = replace(partition, wanted.id, has_lost, &brokers, topic.config.min_insync_replicas);
        follow_up(topic, replaced.as_ref().unwrap_or(partition), &brokers, ends).or(replaced)
    }));
    Ok(changes)
}

fn already_there(id: i32) -> String {
    format!("A broker with node.id={id} lives, and has another data folder.")
}

/// What follows from a change of this broker's state.
///
/// # Errors
/// BROKER_ID_NOT_REGISTERED; STALE_BROKER_EPOCH where another process has its place.
pub fn change_broker(image: &Image, broker: &BrokerState, change: BrokerChange) -> Result<Vec<Change>, Refusal> {
    let id = broker.broker_id;
    let refuse = |code: ErrorCode| Refusal::new(code, code.message());
    let before = image.node(id).ok_or_else(|| refuse(ErrorCode::BROKER_ID_NOT_REGISTERED))?;
    if before.registration.epoch != broker.broker_epoch {
        return Err(refuse(ErrorCode::STALE_BROKER_EPOCH));
    }
    let mut node = before.clone();
    match change {
        BrokerChange::Fence => node.registration.is_fenced = true,
        BrokerChange::Unfence => node.registration.is_fenced = false,
        BrokerChange::ShutDown => node.registration.is_shutting_down = true,
    }
    if node == *before {
        return Ok(Vec::new());
    }
    let mut brokers = Brokers::clone(image.registrations());
    brokers.insert(id, node.registration);
    let mut changes = vec![Change::BrokerRegistered { id, node }];
    changes.extend(each_of(image, id, |topic, partition, ends| follow_up(topic, partition, &brokers, ends)));
    Ok(changes)
}

/// Others lead what this broker cannot write any more, where they may; there it is not in sync any more, nor may it lead before it is.
///
/// # Errors
/// STALE_BROKER_EPOCH where another process has its place.
pub fn resign(image: &Image, broker: &BrokerState, partitions: &HashSet<(Uuid, i32)>) -> Result<Vec<Change>, Refusal> {
    let is_current = |node: &RegisteredBroker| node.registration.epoch == broker.broker_epoch;
    if !image.node(broker.broker_id).is_some_and(is_current) {
        return Err(Refusal::new(ErrorCode::STALE_BROKER_EPOCH, ErrorCode::STALE_BROKER_EPOCH.message()));
    }
    let mut without = Brokers::clone(image.registrations());
    without.entry(broker.broker_id).and_modify(|own| own.is_fenced = true);
    let mut changes = Vec::new();
    for (topic, index) in partitions {
        let Some(topic) = image.topic_by_id(*topic) else { continue };
        let led = topic.partition(*index).filter(|partition| partition.leader == Some(broker.broker_id));
        // What it had is not known to be on its disk.
        let left = led.and_then(|partition| lose(partition, broker.broker_id));
        let settled = left.and_then(|left| settle(&left, &without, topic.config.min_insync_replicas));
        if let Some(settled) = settled.filter(|settled| settled.leader.is_some())
            && let Ok(first) = usize::try_from(*index)
        {
            let partitions = Partitions::unit(Arc::new(settled));
            changes.push(Change::PartitionsChanged { topic: topic.id, first, partitions });
        }
    }
    Ok(changes)
}

/// What follows once a broker has said where logs end that have lost their ends: somebody leads, or it is kept until the others have
/// said so, too.
///
/// # Errors
/// STALE_BROKER_EPOCH where another process has its place.
pub fn tell_log_ends(
    image: &Image,
    broker: &BrokerState,
    told: &[(Uuid, i32, Position)],
) -> Result<Vec<Change>, Refusal> {
    let is_current = |node: &RegisteredBroker| node.registration.epoch == broker.broker_epoch;
    if !image.node(broker.broker_id).is_some_and(is_current) {
        return Err(Refusal::new(ErrorCode::STALE_BROKER_EPOCH, ErrorCode::STALE_BROKER_EPOCH.message()));
    }
    let mut changes = Vec::new();
    for (topic, index, position) in told {
        let Some(topic) = image.topic_by_id(*topic) else { continue };
        let Some(partition) = topic.partition(*index) else { continue };
        if partition.leader.is_some() || !partition.lost.contains(&broker.broker_id) {
            continue;
        }
        let BrokerState { broker_id, broker_epoch } = *broker;
        let end = LogEnd { broker_id, broker_epoch, position: *position };
        let others = image.log_ends(topic.id, *index).iter().filter(|other| other.broker_id != broker_id);
        let ends: Vec<LogEnd> = others.copied().chain([end]).collect();
        let elected = follow_up(topic, partition, image.registrations(), &ends);
        changes.push(match (elected, usize::try_from(*index)) {
            (Some(elected), Ok(first)) => {
                let partitions = Partitions::unit(Arc::new(elected));
                Change::PartitionsChanged { topic: topic.id, first, partitions }
            }
            _ => Change::LogEndTold { topic: topic.id, partition: *index, end },
        });
    }
    Ok(changes)
}

/// What follows for partitions where `min.insync.replicas` became smaller.
pub fn relaxed(before: &Image, after: &Image) -> Vec<Change> {
    let mut changes = Vec::new();
    after.each_change_since(before, |change| {
        let (Some(old), Some(new)) = change else { return };
        let min_isr = new.config.min_insync_replicas;
        if min_isr >= old.config.min_insync_replicas || new.config.diskless {
            return;
        }
        let mut changed = Changed::default();
        for (number, partition) in new.partitions.iter().enumerate() {
            if let Some(relaxed) = relax(partition, min_isr) {
                changed.push(number, Arc::new(relaxed));
            }
        }
        changes.extend(changed.finish(new.id));
    });
    changes
}

/// The partition once it is settled by who is there; `None` if that changes nothing.
fn follow_up(
    topic: &Topic,
    partition: &PartitionRegistration,
    brokers: &Brokers,
    ends: &[LogEnd],
) -> Option<PartitionRegistration> {
    let (min_isr, unclean) = (topic.config.min_insync_replicas, topic.config.unclean_leader_election_enable);
    cluster::follow_up(partition, brokers, min_isr, ends, unclean)
}

/// What changes of the partitions that this broker has a replica of. Neighbours that are registered alike are asked once.
fn each_of(
    image: &Image,
    id: i32,
    mut next: impl FnMut(&Topic, &PartitionRegistration, &[LogEnd]) -> Option<PartitionRegistration>,
) -> Vec<Change> {
    let mut changes = Vec::new();
    let may_share = !image.has_log_ends();
    for topic in image.topics().filter(|topic| !topic.config.diskless) {
        let mut changed = Changed::default();
        let mut last: Option<(&Arc<PartitionRegistration>, Option<Arc<PartitionRegistration>>)> = None;
        for (index, registered) in (0..).zip(&topic.partitions) {
            let after = match &last {
                Some((same, after)) if may_share && Arc::ptr_eq(same, registered) => after.clone(),
                _ if registered.replicas.contains(&id) => {
                    next(topic, registered, image.log_ends(topic.id, index)).map(Arc::new)
                }
                _ => None,
            };
            if let Some(after) = &after {
                changed.push(usize::try_from(index).unwrap_or(usize::MAX), Arc::clone(after));
            }
            last = Some((registered, after));
        }
        changes.extend(changed.finish(topic.id));
    }
    changes
}

/// Partitions of one topic that are registered otherwise: a change for each stretch of neighbours.
#[derive(Default)]
pub struct Changed {
    stretches: Vec<(usize, Partitions)>,
}

impl Changed {
    /// The partition of this number, which is larger than all before, is registered like this.
    pub fn push(&mut self, number: usize, registered: Arc<PartitionRegistration>) {
        match self.stretches.last_mut() {
            Some((first, partitions)) if *first + partitions.len() == number => partitions.push_back(registered),
            _ => self.stretches.push((number, Partitions::unit(registered))),
        }
    }

    /// What all of them come to.
    pub fn finish(self, topic: Uuid) -> impl Iterator<Item = Change> {
        self.stretches.into_iter().map(move |(first, partitions)| Change::PartitionsChanged {
            topic,
            first,
            partitions,
        })
    }
}
