//! Changes of brokers: registration, fencing, shutdown, the state of the disk, and reports about partitions.
//!
//! The rules are in [`fullbore_rules::cluster`]. `settle` decides which leaders and ISRs change as a result.

use std::sync::Arc;

use fullbore_rules::cluster::{
    self, LogEndReport, PreviousShutdown, ResignedLog, contenders, lose, relax, replace, settle, without, without_room,
};
use fullbore_rules::replica::epochs::Position;
use fullbore_rules::replica::{BrokerState, Brokers, PartitionRegistration};
use fullbore_wire::{ErrorCode, Uuid};

use super::super::change::{Change, Partitions};
use super::super::command::{BrokerChange, Refusal, RegisterBroker, Resigned};
use super::super::image::{Image, Topic};
use super::super::node::RegisteredBroker;
use super::only_complete::{OnlyComplete, only_complete_replicas};
use super::settle::{ChangeBudget, Changed, each_of, settled_by};

/// The outcome of a transaction that registers a process.
pub enum Registering {
    /// The changes that register the process as the broker.
    Registered(Vec<Change>),
    /// The former process is fenced, and other brokers now lead some of its partitions. A later transaction registers
    /// the new process, once all partitions are handed over.
    HandedOver(Vec<Change>),
}

/// Registers a process as the broker, in place of the process that was registered before. Other brokers become leaders
/// of the partitions that the former process led. If no other broker can lead a partition, the new process leads it, in
/// the same leader epoch if its log lost no records. Afterwards the caller must decide the leaders and ISRs of all
/// partitions.
///
/// Invariant: the new process is registered in the same transaction as the last piece of the handover. Until then the
/// former process is fenced, so that no leader adds it to an ISR.
///
/// # Errors
/// Fails with DUPLICATE_BROKER_REGISTRATION if the registered process is alive and uses another directory, or a newer
/// state of the same directory. Fails with INVALID_REGISTRATION if the directory is new, although the broker had the
/// only complete replica of a partition, and the settings do not accept the loss.
pub fn register(image: &Image, wanted: &RegisterBroker, room: &mut ChangeBudget) -> Result<Registering, Refusal> {
    let before = image.node(wanted.id);
    let former = before.map(RegisteredBroker::member);
    if former.is_some_and(|former| former.process == wanted.joining.process) {
        return Ok(Registering::Registered(Vec::new()));
    }
    // The broker epoch is the number of the version that this commit creates. Version numbers only increase, so this
    // epoch is larger than every earlier epoch of any broker.
    let epoch = i64::try_from(image.epoch()).unwrap_or(i64::MAX).saturating_add(1);
    let (mut member, ended) = cluster::register(former.as_ref(), &wanted.joining, epoch)
        .map_err(|code| Refusal::new(code, already_there(wanted.id)))?;
    if former.is_some_and(|former| former.directory != wanted.joining.directory)
        && !wanted.accepts_lost_directory
        && let Some(OnlyComplete { count, first }) = only_complete_replicas(image, wanted.id)
    {
        let message = format!(
            "The data directory is new, but this broker had the only complete replica of {count} partitions, for example {first}. \
             Mount or restore the directory that has their records, or accept the loss by fullbore.lost.directory.accept=true."
        );
        return Err(Refusal::new(ErrorCode::INVALID_REGISTRATION, message));
    }
    let ended = former.map_or(PreviousShutdown::Clean, |_| ended);
    member.registration.is_fenced = false;
    let others = without(image.registrations(), wanted.id);
    let replaced = |topic: &Topic, partition: &PartitionRegistration| {
        replace(partition, wanted.id, ended, &others, topic.config.min_insync_replicas)
    };
    let mut tried = room.clone();
    let handed_over = each_of(image, |topic, partition, _| replaced(topic, partition), &mut tried);
    if let Some(before) = before.filter(|_| tried.is_short()) {
        *room = tried;
        let mut former = before.clone();
        former.registration.is_fenced = true;
        let fenced = Some(Change::BrokerRegistered { id: wanted.id, node: former });
        let changes = fenced.filter(|_| !before.registration.is_fenced).into_iter().chain(handed_over);
        return Ok(Registering::HandedOver(changes.collect()));
    }
    let mut brokers = Brokers::clone(image.registrations());
    brokers.insert(wanted.id, member.registration);
    let node = RegisteredBroker {
        registration: member.registration,
        directory: Uuid(member.directory.to_be_bytes()),
        process: Uuid(member.process.to_be_bytes()),
        rack: wanted.rack.clone(),
        serves_diskless: wanted.serves_diskless,
        endpoints: wanted.endpoints.clone(),
    };
    let mut changes = vec![Change::BrokerRegistered { id: wanted.id, node }];
    let in_place = |topic: &Topic, partition: &PartitionRegistration, ends: &[LogEndReport]| {
        let replaced = replaced(topic, partition)?;
        settled_by(&brokers, topic, &replaced, ends).or(Some(replaced))
    };
    changes.extend(each_of(image, in_place, room));
    Ok(Registering::Registered(changes))
}

fn already_there(id: i32) -> String {
    format!("A broker with node.id={id} is running with another data directory, or with a newer state of this one.")
}

/// Returns the change of a broker's state, or `None` if the broker already has that state. After a change, the caller
/// must decide the leaders and ISRs of the affected partitions.
///
/// # Errors
/// Fails with BROKER_ID_NOT_REGISTERED if the broker is unknown, and with STALE_BROKER_EPOCH if another process has
/// replaced it. Fails with INVALID_REQUEST if the broker reports the loss of the object store, but no other broker
/// serves diskless partitions.
pub fn change_broker(image: &Image, broker: &BrokerState, change: BrokerChange) -> Result<Option<Change>, Refusal> {
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
        BrokerChange::Full => node.registration.is_full = true,
        BrokerChange::Room => node.registration.is_full = false,
        BrokerChange::StoreLost if !image.others_serve_diskless(id) => {
            return Err(Refusal::new(ErrorCode::INVALID_REQUEST, "no other broker serves diskless partitions"));
        }
        BrokerChange::StoreLost => node.serves_diskless = false,
        BrokerChange::StoreBack => node.serves_diskless = true,
    }
    Ok((node != *before).then_some(Change::BrokerRegistered { id, node }))
}

/// Removes a broker from the ISRs of partitions that it can no longer write or read. A partition that no other replica
/// can lead stays unchanged, unless the broker's log certainly lacks committed records. In that case the partition has
/// no leader until another replica returns, or until an unclean election.
///
/// If the broker's log is complete, the broker leaves the ISR as if its disk were full. The broker enters the ELR if
/// the ISR becomes smaller than `min.insync.replicas`. If the log may lack records, the broker cannot lead until it has
/// joined the ISR again.
///
/// # Errors
/// Fails with STALE_BROKER_EPOCH if another process has replaced the broker.
pub fn resign(image: &Image, broker: &BrokerState, partitions: &Resigned) -> Result<Vec<Change>, Refusal> {
    let is_current = |node: &RegisteredBroker| node.registration.epoch == broker.broker_epoch;
    if !image.node(broker.broker_id).is_some_and(is_current) {
        return Err(Refusal::new(ErrorCode::STALE_BROKER_EPOCH, ErrorCode::STALE_BROKER_EPOCH.message()));
    }
    let others = without(image.registrations(), broker.broker_id);
    let without_room = without_room(image.registrations(), broker.broker_id);
    let mut changes = Vec::new();
    for ((topic, index), log) in partitions {
        let Some(topic) = image.topic_by_id(*topic) else { continue };
        let Some(partition) = topic.partition(*index) else { continue };
        let min_isr = topic.config.min_insync_replicas;
        let settled = match log {
            ResignedLog::Whole => settle(partition, &without_room, min_isr),
            ResignedLog::Unsure | ResignedLog::EndMissing => {
                lose(partition, broker.broker_id).map(|left| settle(&left, &others, min_isr).unwrap_or(left))
            }
        };
        // A replica whose log certainly lacks committed records must not lead, even if no other replica can lead yet.
        let may_be_without_leader = *log == ResignedLog::EndMissing;
        if let Some(settled) = settled.filter(|settled| settled.leader.is_some() || may_be_without_leader)
            && let Ok(first) = usize::try_from(*index)
        {
            let partitions = Partitions::unit(Arc::new(settled));
            changes.push(Change::PartitionsChanged { topic: topic.id, first, partitions });
        }
    }
    Ok(changes)
}

/// Records the ends of the broker's logs, for partitions without a leader. Once all [`contenders`] have reported, the
/// replica with the longest log becomes leader.
///
/// # Errors
/// Fails with STALE_BROKER_EPOCH if another process has replaced the broker.
pub fn report_log_ends(
    image: &Image,
    broker: &BrokerState,
    reported: &[(Uuid, i32, Position)],
) -> Result<Vec<Change>, Refusal> {
    let is_current = |node: &RegisteredBroker| node.registration.epoch == broker.broker_epoch;
    if !image.node(broker.broker_id).is_some_and(is_current) {
        return Err(Refusal::new(ErrorCode::STALE_BROKER_EPOCH, ErrorCode::STALE_BROKER_EPOCH.message()));
    }
    let mut changes = Vec::new();
    for (topic, index, position) in reported {
        let Some(topic) = image.topic_by_id(*topic) else { continue };
        let Some(partition) = topic.partition(*index) else { continue };
        if !contenders(partition).contains(&broker.broker_id) {
            continue;
        }
        let BrokerState { broker_id, broker_epoch } = *broker;
        let end = LogEndReport { broker_id, broker_epoch, position: *position };
        let others = image.log_ends(topic.id, *index).iter().filter(|other| other.broker_id != broker_id);
        let ends: Vec<LogEndReport> = others.copied().chain([end]).collect();
        let elected = settled_by(image.registrations(), topic, partition, &ends);
        changes.push(match (elected, usize::try_from(*index)) {
            (Some(elected), Ok(first)) => {
                let partitions = Partitions::unit(Arc::new(elected));
                Change::PartitionsChanged { topic: topic.id, first, partitions }
            }
            _ => Change::LogEndReported { topic: topic.id, partition: *index, end },
        });
    }
    Ok(changes)
}

/// Returns changes that clear the ELR and `lost` (replicas whose logs may lack records) of partitions whose ISR is now
/// large enough. The reason is that `min.insync.replicas` of their topic is smaller than in the image `before`.
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
