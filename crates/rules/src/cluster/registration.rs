//! Registration of a broker: how the former process with its id ended, and which replicas may therefore lack records.

use fullbore_wire::ErrorCode;

use super::election::settle;
use crate::replica::{BrokerRegistration, Brokers, PartitionRegistration};

/// End of the former process, as the data directory shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousShutdown {
    /// The process closed its logs.
    Clean,
    /// The process was killed. The machine has not booted since, so that all its writes are there.
    Killed,
    /// The machine has booted since: writes that were not flushed may be gone.
    Lost,
    /// The process used another directory, or a newer state of this one: any record that it wrote may be missing here.
    Elsewhere,
}

/// A broker of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Epoch and state, for decisions about replicas.
    pub registration: BrokerRegistration,
    /// Id of the broker's data directory, stored in it.
    pub folder: u128,
    /// Random number of the process (Kafka's incarnation id).
    pub process: u128,
}

impl Member {
    /// Returns true if the process is registered in this epoch. The process may have been registered again, in a later
    /// epoch, by an attempt that it had given up. Its older epoch then counts as replaced: its requests are refused,
    /// and it stays out of ISRs.
    pub fn is_held_by(&self, process: u128, epoch: i64) -> bool {
        self.process == process && self.registration.epoch == epoch
    }
}

/// Numbers in a data directory by which an older copy differs from the newest state.
///
/// ```text
/// directory   1   2   3   4       a process writes the next number before each of its heartbeats,
/// database    1   2   3   4       and the heartbeat reports the number to the database
///               '-- copy, 2       restored after the process reported 3: an older copy
/// ```
///
/// Copies taken between the same two heartbeats have one number: nothing shows which of them is newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolderMarks {
    /// Processes that the directory names as its users: one of the two used this state last. None if the directory
    /// names none.
    pub users: Option<[u128; 2]>,
    /// Last number that any process wrote to the directory; None if a power loss may have lost later numbers.
    pub noted: Option<u64>,
}

impl FolderMarks {
    /// Returns true if the `registered` process used a newer state of the directory. `told` is the newest number that
    /// this process reported to the database, 0 if none.
    pub fn is_older_than(&self, registered: u128, told: u64) -> bool {
        let names_others = self.users.is_some_and(|users| !users.contains(&registered));
        names_others || self.noted.is_some_and(|noted| noted < told)
    }
}

/// Request of a process to be registered as its broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joining {
    /// See [`Member::folder`].
    pub folder: u128,
    /// See [`Member::process`].
    pub process: u128,
    /// End of the former process, as this process reports it.
    pub ended: PreviousShutdown,
    /// Numbers of the data directory.
    pub marks: FolderMarks,
    /// Newest number that the former process reported to the database; 0 if none.
    pub told: u64,
}

/// Returns the member for this process, and the state of the former process's logs. The member is fenced until it is
/// known to have the metadata; its epoch is larger than all before. A directory of which the former process used a
/// newer state counts as another directory (Kafka compares the previous broker epoch, KIP-966).
///
/// A repeated request of the same process returns the member as it is: the first response may have been lost.
///
/// # Errors
/// DUPLICATE_BROKER_REGISTRATION: the registered broker is alive, and has another directory or a newer state of this
/// one.
pub fn register(
    before: Option<&Member>,
    joining: &Joining,
    next_epoch: i64,
) -> Result<(Member, PreviousShutdown), ErrorCode> {
    let Some(before) = before else { return Ok((fenced(joining, next_epoch), PreviousShutdown::Lost)) };
    if before.process == joining.process {
        return Ok((*before, PreviousShutdown::Clean));
    }
    let is_older = joining.marks.is_older_than(before.process, joining.told);
    let is_its_folder = before.folder == joining.folder && !is_older;
    if !is_its_folder && !before.registration.is_fenced {
        return Err(ErrorCode::DUPLICATE_BROKER_REGISTRATION);
    }
    let ended = if is_its_folder { joining.ended } else { PreviousShutdown::Elsewhere };
    Ok((fenced(joining, next_epoch.max(before.registration.epoch + 1)), ended))
}

fn fenced(joining: &Joining, epoch: i64) -> Member {
    let registration = BrokerRegistration { epoch, is_fenced: true, ..BrokerRegistration::default() };
    Member { registration, folder: joining.folder, process: joining.process }
}

/// Returns the partition once another process is registered as this broker, or None if nothing changes. `ended` is the
/// end of the former process; `others` are the brokers with this one fenced.
///
/// Another eligible replica takes over the leadership, and the new process joins the ISR by fetching. If there is no
/// such replica and the log is whole, the partition stays as it is, and the new process leads on in the same epoch.
///
/// The caller then elects by the brokers as they are now (see [`super::follow_up`]).
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

/// Returns the brokers, with `broker_id` fenced.
pub fn without(brokers: &Brokers, broker_id: i32) -> Brokers {
    let mut others = brokers.clone();
    others.entry(broker_id).and_modify(|broker| broker.is_fenced = true);
    others
}

/// State of a log that its broker cannot write any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResignedLog {
    /// No write to the log has failed; its directory takes no files.
    Whole,
    /// A write or an fsync has failed: acknowledged records may be missing on the disk.
    Unsure,
}

/// Returns the brokers, with the disk of `broker_id` marked full.
pub fn without_room(brokers: &Brokers, broker_id: i32) -> Brokers {
    let mut others = brokers.clone();
    others.entry(broker_id).and_modify(|broker| broker.is_full = true);
    others
}

/// Returns the partition without this broker in ISR and ELR, once its log may lack records at the end: after an unclean
/// shutdown, or a failed write or fsync. None if nothing changes.
///
/// The caller then elects (see [`super::settle`]).
pub fn lose(partition: &PartitionRegistration, broker_id: i32) -> Option<PartitionRegistration> {
    let was_whole = partition.isr.contains(&broker_id) || partition.elr.contains(&broker_id);
    was_whole.then(|| {
        let mut left = left_by(partition, broker_id);
        left.lost.push(broker_id);
        left
    })
}

/// Returns the partition once this broker has another log of unknown contents; None if nothing changes.
///
/// If the former log was the last with every record, all replicas compete. The replicas in `lost` may lack more than
/// others, because the former log grew without them.
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

/// Returns the partition after the broker has left leadership, ISR, ELR and `lost`.
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
