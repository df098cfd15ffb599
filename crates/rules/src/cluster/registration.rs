//! Registers a broker. How the previous process with the same id ended decides which replicas may lack records.

use fullbore_wire::ErrorCode;

use super::election::settle;
use crate::replica::{BrokerRegistration, Brokers, PartitionRegistration};

/// How the previous process of the broker ended, as the data directory shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousShutdown {
    /// The process closed its logs.
    Clean,
    /// The process was killed. The machine has not booted since then, so the system still has all writes of the
    /// process.
    Killed,
    /// The machine has booted since then, so writes that were not flushed may be gone.
    Lost,
    /// The process used another directory, or a newer state of this one. Any record of that process may be missing
    /// here.
    Elsewhere,
}

/// A broker of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The epoch and state of the broker, as decisions about replicas need them.
    pub registration: BrokerRegistration,
    /// The id of the broker's data directory, which is stored in the directory.
    pub directory: u128,
    /// A random number that identifies the process (Kafka's incarnation id).
    pub process: u128,
}

impl Member {
    /// Returns true if this process is registered with this epoch. The process may have given up a registration that
    /// the cluster carried out later. The process then does not know its newest epoch, so its requests are refused and
    /// it stays out of ISRs.
    pub fn is_held_by(&self, process: u128, epoch: i64) -> bool {
        self.process == process && self.registration.epoch == epoch
    }
}

/// The contents of a data directory that show whether the directory is an older copy. The most important one is a
/// heartbeat number:
///
/// ```text
/// directory   1   2   3   4       a process writes the next number before each of its heartbeats,
/// database    1   2   3   4       and the heartbeat reports the number to the database
///               '-- copy, 2       restored after the process reported 3: an older copy
/// ```
///
/// Copies made between the same two heartbeats have the same number, so nothing shows which of them is newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryMarks {
    /// The two processes that the directory names: the last one that ran with it, and the last one that tried to
    /// register with it. None if the directory names no process.
    pub users: Option<[u128; 2]>,
    /// The last heartbeat number that a process wrote to the directory. None if a power loss may have lost later
    /// numbers.
    pub noted: Option<u64>,
}

impl DirectoryMarks {
    /// Returns true if this directory is an older copy of the one that the process `registered` used. `reported` is the
    /// newest heartbeat number that the process reported to the database, or 0 if it reported none.
    pub fn is_older_than(&self, registered: u128, reported: u64) -> bool {
        let names_others = self.users.is_some_and(|users| !users.contains(&registered));
        names_others || self.noted.is_some_and(|noted| noted < reported)
    }
}

/// The request of a process to be registered as a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joining {
    /// See [`Member::directory`].
    pub directory: u128,
    /// See [`Member::process`].
    pub process: u128,
    /// How the previous process ended, as this process has found it.
    pub ended: PreviousShutdown,
    /// The contents of the data directory that show whether the directory is an older copy.
    pub marks: DirectoryMarks,
    /// The newest heartbeat number that the previous process reported to the database; 0 if it reported none.
    pub reported: u64,
}

/// Registers a process, and returns the new member and how the previous process ended. The member is fenced until it
/// has the current metadata. Its epoch is larger than all earlier ones. If the previous process used a newer state of
/// the directory, the directory counts as another one. Kafka compares the previous broker epoch for this (KIP-966).
///
/// If the registered process repeats its request, the member is returned unchanged, because the first response may have
/// been lost.
///
/// # Errors
/// Fails with DUPLICATE_BROKER_REGISTRATION if the registered broker is alive and has another directory or a newer
/// state of this one.
pub fn register(
    before: Option<&Member>,
    joining: &Joining,
    next_epoch: i64,
) -> Result<(Member, PreviousShutdown), ErrorCode> {
    let Some(before) = before else { return Ok((fenced(joining, next_epoch), PreviousShutdown::Lost)) };
    if before.process == joining.process {
        return Ok((*before, PreviousShutdown::Clean));
    }
    let is_older = joining.marks.is_older_than(before.process, joining.reported);
    let is_its_directory = before.directory == joining.directory && !is_older;
    if !is_its_directory && !before.registration.is_fenced {
        return Err(ErrorCode::DUPLICATE_BROKER_REGISTRATION);
    }
    let ended = if is_its_directory { joining.ended } else { PreviousShutdown::Elsewhere };
    Ok((fenced(joining, next_epoch.max(before.registration.epoch + 1)), ended))
}

fn fenced(joining: &Joining, epoch: i64) -> Member {
    let registration = BrokerRegistration { epoch, is_fenced: true, ..BrokerRegistration::default() };
    Member { registration, directory: joining.directory, process: joining.process }
}

/// Updates a partition when another process registers as this broker. Returns None if nothing changes. `ended` is how
/// the previous process ended. `others` are all brokers, of which this one is marked as fenced.
///
/// If another replica can lead, it becomes the leader, and the new process must fetch before it can join the ISR again.
/// If no other replica can lead and the log is complete, the partition stays as it is. The new process then leads in
/// the same epoch.
///
/// Afterwards the caller elects a leader by the present state of the brokers (see [`super::follow_up`]).
pub fn replace(
    partition: &PartitionRegistration,
    broker_id: i32,
    ended: PreviousShutdown,
    others: &Brokers,
    min_isr: usize,
) -> Option<PartitionRegistration> {
    let lost = match ended {
        PreviousShutdown::Clean | PreviousShutdown::Killed => None,
        PreviousShutdown::Lost => lose(partition, broker_id),
        PreviousShutdown::Elsewhere => forget(partition, broker_id),
    };
    if partition.leader != Some(broker_id) && !partition.isr.contains(&broker_id) && lost.is_none() {
        return None;
    }
    let left = lost.as_ref().unwrap_or(partition);
    settle(left, others, min_isr).filter(|settled| settled.leader.is_some()).or(lost)
}

/// Returns the brokers, but with `broker_id` fenced.
pub fn without(brokers: &Brokers, broker_id: i32) -> Brokers {
    let mut others = brokers.clone();
    others.entry(broker_id).and_modify(|broker| broker.is_fenced = true);
    others
}

/// The state of a log that its broker can no longer write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResignedLog {
    /// No write to the log has failed, but no file can be created in its directory.
    Whole,
    /// A write or an fsync has failed, so acknowledged records may be missing on the disk.
    Unsure,
    /// Committed records are missing at the end of the log, or the disk has lost writes there, so that some may be
    /// missing. Another replica in the ISR or ELR has them.
    EndMissing,
}

/// Returns the brokers, but with the disk of `broker_id` marked as full.
pub fn without_room(brokers: &Brokers, broker_id: i32) -> Brokers {
    let mut others = brokers.clone();
    others.entry(broker_id).and_modify(|broker| broker.is_full = true);
    others
}

/// Removes this broker from ISR and ELR, because its log may lack records at the end. This happens after an unclean
/// shutdown, or after a failed write or fsync. Returns None if nothing changes.
///
/// Afterwards the caller elects a leader (see [`super::settle`]).
pub fn lose(partition: &PartitionRegistration, broker_id: i32) -> Option<PartitionRegistration> {
    let was_whole = partition.isr.contains(&broker_id) || partition.elr.contains(&broker_id);
    was_whole.then(|| {
        let mut left = left_by(partition, broker_id);
        left.lost.push(broker_id);
        left
    })
}

/// Updates a partition whose broker now has another log with unknown contents. Returns None if nothing changes.
///
/// If no replica in the ISR or ELR remains, no log is certain to have every record. Then `lost` is cleared, so that all
/// replicas become candidates for the next election. A replica in `lost` may lack even more records than the others,
/// because the former log grew without it.
fn forget(partition: &PartitionRegistration, broker_id: i32) -> Option<PartitionRegistration> {
    let PartitionRegistration { isr, elr, lost, .. } = partition;
    let was_whole = [isr, elr].iter().any(|ids| ids.contains(&broker_id));
    (was_whole || lost.contains(&broker_id)).then(|| {
        let mut left = left_by(partition, broker_id);
        if was_whole && left.isr.is_empty() && left.elr.is_empty() {
            left.lost.clear();
        }
        left
    })
}

/// Removes the broker from leadership, ISR, ELR and `lost`.
fn left_by(partition: &PartitionRegistration, broker_id: i32) -> PartitionRegistration {
    let without = |ids: &[i32]| ids.iter().copied().filter(|id| *id != broker_id).collect();
    let leader = partition.leader.filter(|leader| *leader != broker_id);
    PartitionRegistration {
        isr: without(&partition.isr),
        elr: without(&partition.elr),
        lost: without(&partition.lost),
        leader,
        leader_epoch: partition.leader_epoch + i32::from(leader != partition.leader),
        partition_epoch: partition.partition_epoch + 1,
        replicas: partition.replicas.clone(),
    }
}
