//! The state that a member's thread and its reader share.
//!
//! Invariant: the serial of the target only grows, and the thread can see which target the reader has confirmed. The
//! positions of the reader are not part of this state.

use super::assign::TopicPartition;
use crate::blocking::Stopper;
use crate::error::ClientError;
use fullbore_wire::{Text, Uuid};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The partitions that the reader should read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The serial number, which grows with each target.
    pub serial: u64,
    /// All partitions that the reader should read.
    pub partitions: Vec<TopicPartition>,
    /// True if an empty target is the group's final assignment. False if it may be a pause during a rebalance.
    pub settled: bool,
    /// True if another member may already own the partitions that the reader had before this target. The reader must
    /// then not commit offsets of these partitions.
    pub lost: bool,
}

/// The identity of the member in its commits.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberIdentity {
    pub(super) member_id: Text,
    /// The generation or epoch, or -1 while the member is not in the group.
    pub(super) generation: i32,
}

/// A committed offset of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The offset of the next record to read.
    pub offset: i64,
    /// The leader epoch of the last record before that offset. `None` if it is unknown.
    pub leader_epoch: Option<i32>,
}

impl CommittedOffset {
    /// Returns the offset and the epoch of a response. Returns `None` for an offset of -1, which means that none is
    /// committed.
    pub(super) fn of_response(offset: i64, leader_epoch: i32) -> Option<Self> {
        (offset >= 0).then_some(CommittedOffset { offset, leader_epoch: (leader_epoch >= 0).then_some(leader_epoch) })
    }
}

/// Committed offsets that arrived together with an assignment.
struct CommittedWith {
    generation: i32,
    offsets: PartitionOffsets,
}

/// The committed offset of each partition, or `None` if none is committed.
type PartitionOffsets = HashMap<(TopicPartition, Uuid), Option<CommittedOffset>>;

#[derive(Default)]
struct Membership {
    target: Target,
    confirmed: Target,
    identity: MemberIdentity,
    /// Committed offsets that arrived together with an assignment. They are dropped when the reader takes them or
    /// confirms a target.
    committed: Option<CommittedWith>,
    trouble: Option<String>,
    /// A handle that ends the connection of a JoinGroup or SyncGroup in flight, whose answer may take as long as a
    /// rebalance. `None` if none is in flight.
    waits: Option<Stopper>,
    stopping: bool,
    /// True once the thread has ended or is about to end.
    over: bool,
    failure: Option<ClientError>,
}

/// The shared state of a member, with its lock and its condition variable.
#[derive(Default)]
pub(super) struct SharedMembership {
    state: Mutex<Membership>,
    changed: Condvar,
}

impl SharedMembership {
    fn lock(&self) -> MutexGuard<'_, Membership> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for at most `patience` until `is_there` returns true.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, Membership>,
        patience: Duration,
        is_there: impl Fn(&Membership) -> bool,
    ) -> MutexGuard<'a, Membership> {
        let until = Instant::now() + patience;
        while !is_there(&state) {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    // Methods for the reader.

    pub(super) fn target(&self, patience: Duration) -> Result<Option<Target>, ClientError> {
        let is_new = |state: &Membership| state.target.serial > state.confirmed.serial;
        let mut state = self.wait(self.lock(), patience, |state| is_new(state) || state.failure.is_some());
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        Ok(is_new(&state).then(|| state.target.clone()))
    }

    pub(super) fn is_moving(&self) -> bool {
        let state = self.lock();
        state.target.serial > state.confirmed.serial || state.failure.is_some()
    }

    pub(super) fn newest(&self) -> u64 {
        self.lock().target.serial
    }

    /// Waits for at most `patience` until [`SharedMembership::is_moving`] returns true.
    pub(super) fn wait_for_move(&self, patience: Duration) {
        let is_moving = |state: &Membership| state.target.serial > state.confirmed.serial || state.failure.is_some();
        drop(self.wait(self.lock(), patience, is_moving));
    }

    pub(super) fn confirm(&self, target: &Target) {
        let mut state = self.lock();
        state.confirmed = target.clone();
        // The offsets are dropped, because the reader may commit newer ones from now on.
        state.committed = None;
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn identity(&self) -> MemberIdentity {
        self.lock().identity.clone()
    }

    /// Returns the identity with which the reader may commit. Returns `None` if the member is not in the group, or if
    /// another member may own the reader's partitions.
    pub(super) fn identity_of_reader(&self) -> Option<MemberIdentity> {
        let state = self.lock();
        let is_lost = state.target.lost && state.target.serial > state.confirmed.serial;
        let is_member = state.identity.generation >= 0 && !state.identity.member_id.is_empty();
        (is_member && !is_lost).then(|| state.identity.clone())
    }

    /// Removes and returns the committed offsets of these partitions, if all of them arrived with the assignment of the
    /// present generation. A single offset is `None` if none is committed. A second call returns `None`, because the
    /// reader may have committed newer offsets by then.
    pub(super) fn take_committed(&self, of: &[(TopicPartition, Uuid)]) -> Option<Vec<Option<CommittedOffset>>> {
        let mut state = self.lock();
        let CommittedWith { generation, offsets } = state.committed.take()?;
        let known = |of| offsets.get(of).copied();
        of.iter().map(known).collect::<Option<Vec<_>>>().filter(|_| generation == state.identity.generation)
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        if let Some(stopper) = &state.waits {
            stopper.stop();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for at most `patience` until the thread is about to end. Returns false if it is still running then.
    pub(super) fn is_over(&self, patience: Duration) -> bool {
        self.wait(self.lock(), patience, |state| state.over).over
    }

    // Methods for the member's thread.

    pub(super) fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    /// Sleeps for `time`, or until the member is stopped.
    pub(super) fn pause(&self, time: Duration) {
        drop(self.wait(self.lock(), time, |state| state.stopping));
    }

    /// Replaces the target if the partitions differ, or if an empty target becomes final. `settled` marks an empty
    /// target as final.
    pub(super) fn publish(&self, partitions: Vec<TopicPartition>, settled: bool) {
        let state = self.lock();
        let settled = settled && partitions.is_empty();
        if state.target.partitions != partitions || (settled && !state.target.settled) {
            // If the reader has not confirmed a target with `lost` yet, the new target must report the loss as well.
            let lost = state.target.lost && state.target.serial > state.confirmed.serial;
            self.replace(state, Target { partitions, settled, lost, ..Target::default() });
        }
    }

    /// Replaces the target by an empty one, because another member may own the reader's partitions.
    pub(super) fn lose(&self) {
        self.replace(self.lock(), Target { lost: true, ..Target::default() });
    }

    fn replace(&self, mut state: MutexGuard<'_, Membership>, target: Target) {
        state.target = Target { serial: state.target.serial + 1, ..target };
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the partitions that the reader last confirmed.
    pub(super) fn held(&self) -> Vec<TopicPartition> {
        self.lock().confirmed.partitions.clone()
    }

    /// Waits for at most `patience` until the reader has confirmed the target or the member is stopped. Returns true if
    /// the target is confirmed.
    pub(super) fn is_confirmed(&self, patience: Duration) -> bool {
        let is_confirmed = |state: &Membership| state.confirmed.serial == state.target.serial;
        let state = self.wait(self.lock(), patience, |state| is_confirmed(state) || state.stopping);
        is_confirmed(&state)
    }

    /// Waits for at most `patience` until the reader has confirmed other partitions than `held` or the member is
    /// stopped.
    pub(super) fn wait_for_other_than(&self, held: &[TopicPartition], patience: Duration) {
        drop(self.wait(self.lock(), patience, |state| state.stopping || state.confirmed.partitions != held));
    }

    pub(super) fn set_identity(&self, member_id: &Text, generation: i32) {
        self.lock().identity = MemberIdentity { member_id: member_id.clone(), generation };
    }

    /// Stores the committed offsets that arrived with the assignment of this generation, for the reader to take.
    pub(super) fn set_committed(&self, generation: i32, offsets: PartitionOffsets) {
        self.lock().committed = Some(CommittedWith { generation, offsets });
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        self.lock().trouble = trouble;
    }

    /// Sets the handle with which stopping the member ends the request in flight. `None` once the request is answered.
    pub(super) fn set_waits(&self, stopper: Option<Stopper>) {
        let mut state = self.lock();
        if let (true, Some(stopper)) = (state.stopping, &stopper) {
            stopper.stop();
        }
        state.waits = stopper;
    }

    pub(super) fn end(&self, failure: Option<ClientError>) {
        let mut state = self.lock();
        state.failure = failure.filter(|_| !state.stopping);
        state.over = true;
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_an_assignment_are_taken_once_and_in_its_generation_only() {
        let shared = SharedMembership::default();
        let of = |partition: i32| ((Text::from("t"), partition), Uuid([7; 16]));
        let five = Some(CommittedOffset { offset: 5, leader_epoch: Some(2) });
        let came = |generation| {
            shared.set_identity(&"me".into(), generation);
            shared.set_committed(generation, HashMap::from([(of(0), five), (of(1), None)]));
        };
        came(1);
        assert_eq!(shared.take_committed(&[of(0), of(1)]), Some(vec![five, None]));
        assert_eq!(shared.take_committed(&[of(0)]), None, "the member may have committed since");
        came(1);
        assert_eq!(shared.take_committed(&[of(0), of(2)]), None, "not all of them came");
        came(1);
        shared.confirm(&Target::default());
        assert_eq!(shared.take_committed(&[of(0)]), None, "its reader reads, and may have committed since");
        came(1);
        shared.set_identity(&"me".into(), 2);
        assert_eq!(shared.take_committed(&[of(0)]), None, "others may have committed since");
    }

    #[test]
    fn lost_partitions_leave_the_reader_without_identity_until_it_confirms() {
        let shared = SharedMembership::default();
        assert!(shared.identity_of_reader().is_none(), "not joined yet");
        shared.set_identity(&"me".into(), 4);
        assert_eq!(shared.identity_of_reader().map(|of| of.generation), Some(4));
        shared.set_identity(&"me".into(), -1);
        assert!(shared.identity_of_reader().is_none(), "a commit in generation -1 would be taken from anyone");
        shared.lose();
        shared.set_identity(&"me".into(), 5);
        assert!(shared.identity_of_reader().is_none(), "generation 5 has given them to another member");
        let target = shared.target(Duration::ZERO).expect("a member still").expect("news");
        shared.confirm(&target);
        assert_eq!(shared.identity_of_reader().map(|of| of.generation), Some(5));
    }

    #[test]
    fn an_empty_target_is_published_again_only_as_settled() {
        let shared = SharedMembership::default();
        let next = || shared.target(Duration::ZERO).expect("a member still").inspect(|target| shared.confirm(target));
        let some = || vec![("t".into(), 0)];
        assert_eq!(next(), None);
        shared.publish(Vec::new(), false);
        assert_eq!(next(), None, "it has nothing already");
        shared.publish(Vec::new(), true);
        assert_eq!(next().map(|target| (target.partitions, target.settled)), Some((Vec::new(), true)));
        shared.publish(Vec::new(), true);
        shared.publish(Vec::new(), false);
        assert_eq!(next(), None);
        shared.publish(some(), true);
        assert_eq!(next().map(|target| (target.partitions, target.settled)), Some((some(), false)));
        shared.publish(Vec::new(), false);
        assert_eq!(next().map(|target| (target.partitions, target.settled)), Some((Vec::new(), false)));
        shared.lose();
        shared.publish(Vec::new(), true);
        let target = next().expect("news");
        assert!(target.settled && target.lost, "nobody had heard of the loss: {target:?}");
        shared.lose();
        assert_eq!(next().map(|target| (target.settled, target.lost)), Some((false, true)));
    }
}
