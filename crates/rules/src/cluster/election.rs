//! Election of a partition's leader, and departures from its ISR, by the live brokers.

use fullbore_wire::ErrorCode;

use crate::replica::epochs::Position;
use crate::replica::{BrokerRegistration, Brokers, PartitionRegistration};

/// End of a replica's log, as its broker of this epoch reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// The broker.
    pub broker_id: i32,
    /// The broker's epoch: another process may have lost more.
    pub broker_epoch: i64,
    /// The end, and the epoch of the last record.
    pub position: Position,
}

/// The least ISR in force: `min.insync.replicas`, and not more than there are replicas (Kafka 3.7).
pub fn min_insync(partition: &PartitionRegistration, min_insync_replicas: usize) -> usize {
    min_insync_replicas.min(partition.replicas.len())
}

/// Returns true if [`follow_up`] changes nothing, without copying the partition. Returns false where that has to be
/// tried.
pub fn is_settled(partition: &PartitionRegistration, brokers: &Brokers, may_be_unclean: bool) -> bool {
    let lives = |id: &i32| brokers.get(id).is_some_and(|broker| !broker.is_fenced);
    let whole = || partition.isr.iter().chain(&partition.elr);
    match partition.leader {
        Some(leader) => {
            is_fit(brokers, leader)
                && partition.isr.contains(&leader)
                && partition.isr.iter().all(|id| is_fit(brokers, *id))
        }
        None => !may_be_unclean && whole().next().is_some() && !whole().any(lives),
    }
}

/// Returns true if the broker is there, and [fit](crate::replica::BrokerRegistration::is_fit).
pub fn is_fit(brokers: &Brokers, id: i32) -> bool {
    brokers.get(&id).is_some_and(|broker| broker.is_fit())
}

/// Settles a partition by the brokers that live: a leader that is fit stays, else the first replica leads that has
/// every committed record. Members that are not fit leave the ISR where a fit one leads. `None` if that changes
/// nothing.
///
/// A leader whose disk is full hands over to members of the ISR alone: its log is whole, and may have records that the
/// ELR lacks.
pub fn settle(partition: &PartitionRegistration, brokers: &Brokers, min_isr: usize) -> Option<PartitionRegistration> {
    let lives = |id: &i32| brokers.get(id).is_some_and(|broker| !broker.is_fenced);
    let is_fit = |id: &i32| is_fit(brokers, *id);
    let stays = |id: &i32| brokers.get(id).is_some_and(BrokerRegistration::stays);
    let first = |of: &[i32], may: &dyn Fn(&i32) -> bool| {
        partition.replicas.iter().copied().find(|id| of.contains(id) && may(id))
    };
    let leader = partition
        .leader
        .filter(is_fit)
        .or_else(|| first(&partition.isr, &is_fit))
        .or_else(|| partition.leader.filter(stays))
        .or_else(|| first(&partition.elr, &is_fit))
        // Better one that is full than one that is about to stop, and that than none.
        .or_else(|| first(&partition.isr, &stays))
        .or_else(|| partition.leader.filter(lives))
        .or_else(|| first(&partition.isr, &lives))
        .or_else(|| first(&partition.elr, &lives));
    let Some(leader) = leader else { return elected(partition, None, &partition.isr, min_isr) };
    let isr: Vec<i32> = match partition.isr.contains(&leader) {
        // A leader without room writes nothing, so that no record waits for members without room.
        true if !is_fit(&leader) && stays(&leader) => partition.isr.iter().copied().filter(stays).collect(),
        true => partition.isr.iter().copied().filter(|id| *id == leader || is_fit(id)).collect(),
        false => vec![leader],
    };
    elected(partition, Some(leader), &isr, min_isr)
}

/// The partition after a change of who is there: settled; else led by who lost its log's end, where all are back that
/// had everything; else, where `may_be_unclean`, by any that is there. `None` if that changes nothing.
pub fn follow_up(
    partition: &PartitionRegistration,
    brokers: &Brokers,
    min_isr: usize,
    ends: &[LogEnd],
    may_be_unclean: bool,
) -> Option<PartitionRegistration> {
    let settled = settle(partition, brokers, min_isr);
    let now = settled.as_ref().unwrap_or(partition);
    if now.leader.is_some() {
        return settled;
    }
    let unclean = || may_be_unclean.then(|| elect_unclean(now, brokers, min_isr).ok()).flatten();
    elect_among_lost(now, brokers, ends).ok().or_else(unclean).or(settled)
}

/// The partition led by its first replica, if that may.
///
/// # Errors
/// ELECTION_NOT_NEEDED; PREFERRED_LEADER_NOT_AVAILABLE.
pub fn elect_preferred(
    partition: &PartitionRegistration,
    brokers: &Brokers,
    min_isr: usize,
) -> Result<PartitionRegistration, ErrorCode> {
    let preferred = partition.replicas.first().copied().ok_or(ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE)?;
    let may = is_fit(brokers, preferred);
    if partition.leader == Some(preferred) {
        return Err(ErrorCode::ELECTION_NOT_NEEDED);
    }
    if !may || !partition.isr.contains(&preferred) {
        return Err(ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE);
    }
    elected(partition, Some(preferred), &partition.isr, min_isr).ok_or(ErrorCode::ELECTION_NOT_NEEDED)
}

/// The partition led by the first replica that is there, whatever its log lacks (`unclean.leader.election.enable`, or
/// asked for).
///
/// # Errors
/// ELECTION_NOT_NEEDED where one leads that lives; ELIGIBLE_LEADERS_NOT_AVAILABLE.
pub fn elect_unclean(
    partition: &PartitionRegistration,
    brokers: &Brokers,
    min_isr: usize,
) -> Result<PartitionRegistration, ErrorCode> {
    if let Some(settled) = settle(partition, brokers, min_isr).filter(|settled| settled.leader.is_some()) {
        return Ok(settled);
    }
    if partition.leader.is_some() {
        return Err(ErrorCode::ELECTION_NOT_NEEDED);
    }
    let lives = |id: &&i32| brokers.get(id).is_some_and(|broker| !broker.is_fenced);
    let leader = *partition.replicas.iter().find(lives).ok_or(ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE)?;
    Ok(begun_anew(partition, leader))
}

/// Replicas of which the one whose log ends last leads. Those that lost their logs' ends, where no replica has every
/// record any more; all of them, where none is left that had. Empty where a replica leads, or may once it is back.
pub fn contenders(partition: &PartitionRegistration) -> &[i32] {
    let PartitionRegistration { leader, isr, elr, lost, replicas, .. } = partition;
    match leader.is_some() || !isr.is_empty() || !elr.is_empty() {
        true => &[],
        false if lost.is_empty() => replicas,
        false => lost,
    }
}

/// Elects the replica whose log ends last, where each that had all records has lost its log's end, or the log, and all
/// [`contenders`] are back. Brokers report their ends themselves.
///
/// # Errors
/// ELECTION_NOT_NEEDED where that is not so; ELIGIBLE_LEADERS_NOT_AVAILABLE where one of them is not there, or has not
/// said where its log ends.
pub fn elect_among_lost(
    partition: &PartitionRegistration,
    brokers: &Brokers,
    ends: &[LogEnd],
) -> Result<PartitionRegistration, ErrorCode> {
    let contenders = contenders(partition);
    let lives = |id: &i32| brokers.get(id).is_some_and(|broker| !broker.is_fenced);
    match contenders {
        [] => return Err(ErrorCode::ELECTION_NOT_NEEDED),
        // There is nothing to compare.
        [only] if lives(only) => return Ok(begun_anew(partition, *only)),
        _ => {}
    }
    let mut last: Option<(Position, i32)> = None;
    for id in partition.replicas.iter().filter(|id| contenders.contains(id)) {
        let broker = brokers.get(id).filter(|broker| !broker.is_fenced);
        let of_it =
            |end: &&LogEnd| end.broker_id == *id && broker.is_some_and(|broker| broker.epoch == end.broker_epoch);
        let end = ends.iter().find(of_it).ok_or(ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE)?.position;
        let is_later = |(other, _): &(Position, i32)| (end.last_epoch, end.offset) > (other.last_epoch, other.offset);
        if last.as_ref().is_none_or(is_later) {
            last = Some((end, *id));
        }
    }
    let (_, leader) = last.ok_or(ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE)?;
    Ok(begun_anew(partition, leader))
}

/// Its log is the partition from now on: nobody else's is known to be as good.
fn begun_anew(partition: &PartitionRegistration, leader: i32) -> PartitionRegistration {
    PartitionRegistration {
        replicas: partition.replicas.clone(),
        isr: vec![leader],
        elr: Vec::new(),
        lost: Vec::new(),
        leader: Some(leader),
        leader_epoch: partition.leader_epoch + 1,
        partition_epoch: partition.partition_epoch + 1,
    }
}

/// The partition with this leader and this ISR, if it is not that already.
fn elected(
    partition: &PartitionRegistration,
    leader: Option<i32>,
    isr: &[i32],
    min_isr: usize,
) -> Option<PartitionRegistration> {
    let mut next = partition.clone();
    next.leader = leader;
    if leader.is_some() {
        set_isr(&mut next, isr.to_vec(), min_isr);
    }
    let is_election = next.leader != partition.leader;
    (next != *partition).then(|| {
        next.leader_epoch += i32::from(is_election);
        next.partition_epoch += 1;
        next
    })
}

/// The partition under another least ISR: where as many are in sync as that asks for, records are committed without
/// those that were in sync before, who are not to lead any more. `None` if that changes nothing.
pub fn relax(partition: &PartitionRegistration, min_isr: usize) -> Option<PartitionRegistration> {
    let is_enough = partition.leader.is_some() && partition.isr.len() >= min_insync(partition, min_isr);
    let may_others_lead = !partition.elr.is_empty() || !partition.lost.is_empty();
    (is_enough && may_others_lead).then(|| {
        let (elr, lost, partition_epoch) = (Vec::new(), Vec::new(), partition.partition_epoch + 1);
        PartitionRegistration { elr, lost, partition_epoch, ..partition.clone() }
    })
}

/// Replaces the ISR. Who leaves one that is below its least still has every committed record, since nothing is
/// committed while it is: the ELR. With enough in sync nobody else has.
pub(super) fn set_isr(partition: &mut PartitionRegistration, isr: Vec<i32>, min_isr: usize) {
    let before = std::mem::replace(&mut partition.isr, isr);
    let isr = &partition.isr;
    if isr.len() >= min_insync(partition, min_isr) {
        partition.elr.clear();
        partition.lost.clear();
        return;
    }
    for id in before {
        if !partition.elr.contains(&id) {
            partition.elr.push(id);
        }
    }
    partition.elr.retain(|id| !isr.contains(id));
    partition.lost.retain(|id| !isr.contains(id));
}
