//! Chooses the leader of a partition and the members of its ISR, given which brokers are alive.

use fullbore_wire::ErrorCode;

use crate::replica::epochs::Position;
use crate::replica::{BrokerRegistration, Brokers, PartitionRegistration};

/// The end of a replica's log, as its broker has reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEndReport {
    pub broker_id: i32,
    /// The epoch of the broker when it reported the end. A report from an older epoch does not count, because the
    /// broker may have lost records since then.
    pub broker_epoch: i64,
    /// The end of the log, and the epoch of the last record before it.
    pub position: Position,
}

/// Returns the `min.insync.replicas` in force. It is never more than the number of replicas, as in Kafka since 3.7.
pub fn min_insync(partition: &PartitionRegistration, min_insync_replicas: usize) -> usize {
    min_insync_replicas.min(partition.replicas.len())
}

/// Returns true if [`follow_up`] certainly changes nothing. This check is cheaper, since it copies no partition.
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

/// Chooses the leader and the ISR from the brokers that are alive. A fit leader stays. Otherwise the first fit replica
/// that has every committed record becomes the leader. Unfit members then leave the ISR. Returns None if nothing
/// changes.
///
/// A leader with a full disk is replaced only if a fit broker is in the ISR. No replica in the ELR replaces it, because
/// such a replica may lack records that are in the leader's log.
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
        // No candidate is fit. The next best leader is a replica with a full disk, then one that is about to stop.
        .or_else(|| first(&partition.isr, &stays))
        .or_else(|| partition.leader.filter(lives))
        .or_else(|| first(&partition.isr, &lives))
        .or_else(|| first(&partition.elr, &lives));
    let Some(leader) = leader else { return elected(partition, None, &partition.isr, min_isr) };
    let isr: Vec<i32> = match partition.isr.contains(&leader) {
        // A leader with a full disk appends nothing, so no record waits for a member with a full disk. Such members may
        // stay in the ISR.
        true if !is_fit(&leader) && stays(&leader) => partition.isr.iter().copied().filter(stays).collect(),
        true => partition.isr.iter().copied().filter(|id| *id == leader || is_fit(id)).collect(),
        false => vec![leader],
    };
    elected(partition, Some(leader), &isr, min_isr)
}

/// Updates the partition after the state of a broker has changed. Returns None if nothing changes. First [`settle`]
/// looks for a leader. If it finds none, [`elect_among_lost`] tries. If that fails too and `may_be_unclean` is true,
/// the first live replica becomes the leader.
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

/// Elects the preferred leader, which is the first replica.
///
/// # Errors
/// Fails with ELECTION_NOT_NEEDED if the first replica is already the leader, and with PREFERRED_LEADER_NOT_AVAILABLE
/// if it is not fit or not in sync.
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

/// Makes a live replica the leader even if its log lacks records, for `unclean.leader.election.enable` or a client's
/// request for an unclean election. A replica that has every committed record is preferred.
///
/// # Errors
/// Fails with ELECTION_NOT_NEEDED if the leader is alive, and with ELIGIBLE_LEADERS_NOT_AVAILABLE if no replica is
/// alive.
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

/// Returns the candidates for [`elect_among_lost`]. These are the replicas in [`PartitionRegistration::lost`], or all
/// replicas if `lost` is empty. There are no candidates if the partition has a leader, or if a replica in the ISR or
/// ELR can lead when its broker is back.
pub fn contenders(partition: &PartitionRegistration) -> &[i32] {
    let PartitionRegistration { leader, isr, elr, lost, replicas, .. } = partition;
    match leader.is_some() || !isr.is_empty() || !elr.is_empty() {
        true => &[],
        false if lost.is_empty() => replicas,
        false => lost,
    }
}

/// Elects the replica whose log ends last, if no replica is certain to have all records. All [`contenders`] must be
/// alive again and must have reported where their logs end.
///
/// # Errors
/// Fails with ELECTION_NOT_NEEDED if there are no contenders, and with ELIGIBLE_LEADERS_NOT_AVAILABLE if a contender is
/// fenced or has not reported the end of its log.
pub fn elect_among_lost(
    partition: &PartitionRegistration,
    brokers: &Brokers,
    ends: &[LogEndReport],
) -> Result<PartitionRegistration, ErrorCode> {
    let contenders = contenders(partition);
    let lives = |id: &i32| brokers.get(id).is_some_and(|broker| !broker.is_fenced);
    match contenders {
        [] => return Err(ErrorCode::ELECTION_NOT_NEEDED),
        // A single contender leads at once, since there are no log ends to compare.
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

/// Makes `leader` the leader and the only member of the ISR. From now on, the leader's log counts as the partition's
/// log, even if it lacks records.
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

/// Sets the leader and the ISR of a partition. Returns None if nothing changes.
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

/// Adapts the partition to a changed `min.insync.replicas`. Returns None if nothing changes. If the ISR is now large
/// enough, it can commit records that the replicas in the ELR and in `lost` do not have. So both lists are cleared, and
/// these replicas can no longer be elected.
pub fn relax(partition: &PartitionRegistration, min_isr: usize) -> Option<PartitionRegistration> {
    let is_enough = partition.leader.is_some() && partition.isr.len() >= min_insync(partition, min_isr);
    let may_others_lead = !partition.elr.is_empty() || !partition.lost.is_empty();
    (is_enough && may_others_lead).then(|| {
        let (elr, lost, partition_epoch) = (Vec::new(), Vec::new(), partition.partition_epoch + 1);
        PartitionRegistration { elr, lost, partition_epoch, ..partition.clone() }
    })
}

/// Replaces the ISR. If the new ISR is below `min.insync.replicas`, a member that left it joins the ELR. Nothing is
/// committed while the ISR is that small, so the log of this member has every committed record. Once the ISR is large
/// enough, ELR and `lost` are cleared.
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
