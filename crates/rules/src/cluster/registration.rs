//! A broker joins the cluster: the end of the process that had its id before, and what its log may have lost with that.

use fullbore_wire::ErrorCode;

use super::election::settle;
use crate::replica::{BrokerRegistration, Brokers, PartitionRegistration};

/// How the process before this one ended, as the data folder shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousShutdown {
    /// The process closed its logs.
    Clean,
    /// The process was killed; the machine has not booted since, so that all its writes are there.
    Killed,
    /// The machine booted since: what was not flushed may be gone.
    Lost,
    /// With another folder, or a newer state of this one: any record that it wrote may be missing here.
    Elsewhere,
}

/// A broker of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Epoch and state, for decisions about replicas.
    pub registration: BrokerRegistration,
    /// The data folder, by the id that is written in it.
    pub folder: u128,
    /// The process, by a random number (Kafka's incarnation id).
    pub process: u128,
}

impl Member {
    /// Returns true if the process has the broker's place in this epoch. In another epoch the same process was
    /// registered again, by an attempt that it had given up: as one that was replaced, it is refused what it asks for,
    /// and kept out of ISRs.
    pub fn is_held_by(&self, process: u128, epoch: i64) -> bool {
        self.process == process && self.registration.epoch == epoch
    }
}

/// Marks in a data folder, by which an older copy is told from the state that a process left.
///
/// ```text
/// folder      1   2   3   4       a process writes the next number before each of its beats,
/// database    1   2   3   4       and the beat tells the database which number the folder has
///               '-- copy, 2       kept after the process told 3: an older copy
/// ```
///
/// Several copies taken between two beats have one number: which of them is the newest is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolderMarks {
    /// The processes of which one used this state last; `None` where the folder names none.
    pub users: Option<[u128; 2]>,
    /// The last number, counted over all processes; `None` where a power cut may have taken the last ones.
    pub noted: Option<u64>,
}

impl FolderMarks {
    /// Returns true if the `registered` process used a newer state of the folder. `told` is the newest number that this
    /// process told the database; 0: none.
    pub fn is_older_than(&self, registered: u128, told: u64) -> bool {
        let names_others = self.users.is_some_and(|users| !users.contains(&registered));
        names_others || self.noted.is_some_and(|noted| noted < told)
    }
}

/// A process that asks for its broker's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joining {
    /// See [`Member::folder`].
    pub folder: u128,
    /// See [`Member::process`].
    pub process: u128,
    /// How the process before it ended, as it says.
    pub ended: PreviousShutdown,
    /// Marks of the folder.
    pub marks: FolderMarks,
    /// The newest number that the process before it told the database; 0: none.
    pub told: u64,
}

/// The broker of this process, fenced until it is known to have the metadata, under an epoch that is larger than all
/// before; and what the logs of its folder have lost, whatever the process claims. A folder of which the former process
/// used a newer state is as good as another one (Kafka compares the previous broker epoch, KIP-966).
///
/// Asked again by the same process it is as it was: the answer to the first may have been lost.
///
/// # Errors
/// DUPLICATE_BROKER_REGISTRATION: the broker lives, and has another folder, or a newer state of this one.
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

/// The partition once another process has this broker's place, after a former one that has `ended` so. Another replica
/// leads what the former one led, if one may, and the new one joins the ISR by fetching. Otherwise the partition stays
/// as it is, and a process with the log that led leads on in the same epoch. `None` if that changes nothing. `others`
/// are the brokers with this one fenced.
///
/// Who leads is then to be settled with the broker as it is now (see [`super::follow_up`]).
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

/// The brokers with this one fenced.
pub fn without(brokers: &Brokers, broker_id: i32) -> Brokers {
    let mut others = brokers.clone();
    others.entry(broker_id).and_modify(|broker| broker.is_fenced = true);
    others
}

/// The log of a partition that its broker cannot write any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResignedLog {
    /// Whole: no write to the log has failed, and its directory takes no files.
    Whole,
    /// Records that were acknowledged may not be on the disk, since a write or an fsync has failed.
    Unsure,
}

/// The brokers with the disk of this one full.
pub fn without_room(brokers: &Brokers, broker_id: i32) -> Brokers {
    let mut others = brokers.clone();
    others.entry(broker_id).and_modify(|broker| broker.is_full = true);
    others
}

/// The partition once this broker's log has lost its end: it is in no ISR and ELR. `None` if that changes nothing.
///
/// Who leads is then to be settled (see [`super::settle`]).
pub fn lose(partition: &PartitionRegistration, broker_id: i32) -> Option<PartitionRegistration> {
    let was_whole = partition.isr.contains(&broker_id) || partition.elr.contains(&broker_id);
    was_whole.then(|| {
        let mut left = left_by(partition, broker_id);
        left.lost.push(broker_id);
        left
    })
}

/// The partition once this broker's log is another one: nothing is known of what it has. `None` if that changes
/// nothing.
///
/// Where it was the last that had every record, all replicas are compared. Those that had lost their ends before may
/// lack more than others, since the log that is gone went on without them.
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

/// The partition in which this broker neither leads nor has anything that counts.
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
