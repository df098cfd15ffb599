//! Choice of a partition's leader, and of the members that leave its ISR, by the state of the brokers.

use fullbore_wire::ErrorCode;

use crate::replica::epochs::Position;
use crate::replica::{BrokerRegistration, Brokers, PartitionRegistration};

/// End of a replica's log, as reported by its broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEndReport {
    pub broker_id: i32,
    /// Epoch of the broker when it reported the end. A report of an older epoch does not count: the broker may have
    /// lost records since.
    pub broker_epoch: i64,
    /// End of the log, and the epoch of its last record.
    pub position: Position,
}

/// Returns the `min.insync.replicas` in force, which is at most the number of replicas (Kafka 3.7).
pub fn min_insync(partition: &PartitionRegistration, min_insync_replicas: usize) -> usize {
    min_insync_replicas.min(partition.replicas.len())
}

/// Returns true if [`follow_up`] certainly changes nothing. Copies no partition, so it costs less than [`follow_up`].
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

/// Returns true if the broker is registered and [fit](crate::replica::BrokerRegistration::is_fit).
pub fn is_fit(brokers: &Brokers, id: i32) -> bool {
    brokers.get(&id).is_some_and(|broker| broker.is_fit())
}

/// Chooses leader and ISR by the brokers that are alive. A fit leader stays; otherwise the first replica with every
/// committed record leads. Unfit members leave the ISR if a fit member leads. Returns None if nothing changes.
///
/// A leader with a full disk hands over to members of the ISR only: the leader's log is whole, and may have records
/// that the ELR lacks.
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
        // In the order of preference: a replica with a full disk, one that is about to stop, no leader.
        .or_else(|| first(&partition.isr, &stays))
        .or_else(|| partition.leader.filter(lives))
        .or_else(|| first(&partition.isr, &lives))
        .or_else(|| first(&partition.elr, &lives));
    let Some(leader) = leader else { return elected(partition, None, &partition.isr, min_isr) };
    let isr: Vec<i32> = match partition.isr.contains(&leader) {
        // A leader with a full disk appends nothing, so no record waits for a member with a full disk: such members may
        // stay.
        true if !is_fit(&leader) && stays(&leader) => partition.isr.iter().copied().filter(stays).collect(),
        true => partition.isr.iter().copied().filter(|id| *id == leader || is_fit(id)).collect(),
        false => vec![leader],
    };
    elected(partition, Some(leader), &isr, min_isr)
}

/// Returns the partition after a change of the live brokers, or None if nothing changes. First [`settle`] chooses the
/// leader. If it finds none, [`elect_among_lost`] elects one. If that fails too and `may_be_unclean`, the first live
/// replica leads.
pub fn follow_up(
    partition: &PartitionRegistration,
    brokers: &Brokers,
    min_isr: usize,
    ends: &[LogEndReport],
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

/// Returns the partition led by its first replica.
///
/// # Errors
/// ELECTION_NOT_NEEDED if the first replica leads already; PREFERRED_LEADER_NOT_AVAILABLE if it is not fit or not in
/// sync.
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

/// Returns the partition led by the first live replica, whatever its log lacks (`unclean.leader.election.enable`, or a
/// request for an unclean election). A replica with every committed record goes first.
///
/// # Errors
/// ELECTION_NOT_NEEDED if the leader is alive; ELIGIBLE_LEADERS_NOT_AVAILABLE if no replica is alive.
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

/// Returns the candidates for [`elect_among_lost`]: the `lost` replicas, or all replicas if none is `lost`. Empty if
/// the partition has a leader, or a replica in the ISR or ELR, which will lead once its broker is back.
pub fn contenders(partition: &PartitionRegistration) -> &[i32] {
    let PartitionRegistration { leader, isr, elr, lost, replicas, .. } = partition;
    match leader.is_some() || !isr.is_empty() || !elr.is_empty() {
        true => &[],
        false if lost.is_empty() => replicas,
        false => lost,
    }
}

/// Elects the replica whose log ends last, once no replica is left that certainly has all records. All [`contenders`]
/// must be back, and have reported the ends of their logs.
///
/// # Errors
/// ELECTION_NOT_NEEDED if there are no contenders; ELIGIBLE_LEADERS_NOT_AVAILABLE if a contender is fenced, or has not
/// reported its log end.
pub fn elect_among_lost(
    partition: &PartitionRegistration,
    brokers: &Brokers,
    ends: &[LogEndReport],
) -> Result<PartitionRegistration, ErrorCode> {
    let contenders = contenders(partition);
    let lives = |id: &i32| brokers.get(id).is_some_and(|broker| !broker.is_fenced);
    match contenders {
        [] => return Err(ErrorCode::ELECTION_NOT_NEEDED),
        // A single contender leads without a comparison of log ends.
        [only] if lives(only) => return Ok(begun_anew(partition, *only)),
        _ => {}
    }
    let mut last: Option<(Position, i32)> = None;
    for id in partition.replicas.iter().filter(|id| contenders.contains(id)) {
        let broker = brokers.get(id).filter(|broker| !broker.is_fenced);
        let of_it =
            |end: &&LogEndReport| end.broker_id == *id && broker.is_some_and(|broker| broker.epoch == end.broker_epoch);
        let end = ends.iter().find(of_it).ok_or(ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE)?.position;
        let is_later = |(other, _): &(Position, i32)| (end.last_epoch, end.offset) > (other.last_epoch, other.offset);
        if last.as_ref().is_none_or(is_later) {
            last = Some((end, *id));
        }
    }
    let (_, leader) = last.ok_or(ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE)?;
    Ok(begun_anew(partition, leader))
}

/// Returns the partition led by `leader`, the only member of the ISR. Its log is the partition's from now on, whatever
/// records it lacks.
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

/// Returns the partition with this leader and this ISR, or None if it has both already.
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

/// Returns the partition under a changed `min.insync.replicas`, or None if nothing changes. If enough replicas are in
/// sync for the new value, they commit records without the others. ELR and `lost` are then cleared, because none of the
/// others may lead.
pub fn relax(partition: &PartitionRegistration, min_isr: usize) -> Option<PartitionRegistration> {
    let is_enough = partition.leader.is_some() && partition.isr.len() >= min_insync(partition, min_isr);
    let may_others_lead = !partition.elr.is_empty() || !partition.lost.is_empty();
    (is_enough && may_others_lead).then(|| {
        let (elr, lost, partition_epoch) = (Vec::new(), Vec::new(), partition.partition_epoch + 1);
        PartitionRegistration { elr, lost, partition_epoch, ..partition.clone() }
    })
}

/// Replaces the ISR. A member that leaves an ISR below `min.insync.replicas` joins the ELR. It keeps every committed
/// record, because nothing is committed while the ISR is that small. With enough members in sync, ELR and `lost`
/// are cleared.
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
