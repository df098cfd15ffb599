//! State that the member's thread and its reader share.
//!
//! Not here: the offsets, which only the reader has. Invariant: a target is replaced only by a newer one, and the
//! thread knows which of them the reader has confirmed.

use super::assign::TopicPartition;
use crate::blocking::Stopper;
use crate::error::ClientError;
use fullbore_wire::{Text, Uuid};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Partitions to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Counts up.
    pub serial: u64,
    /// All of it.
    pub partitions: Vec<TopicPartition>,
    /// True if an empty target is the group's assignment, and not a pause of a rebalance.
    pub settled: bool,
    /// True if another member may have the former partitions already: no offset of them may be committed.
    pub lost: bool,
}

/// Identity in the member's commits.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberIdentity {
    pub(super) member_id: Text,
    /// The generation, or the epoch; -1 outside of a group.
    pub(super) generation: i32,
}

/// Offsets that were committed before the assignment of a generation, -1 where none was.
struct CommittedWith {
    generation: i32,
    offsets: HashMap<(TopicPartition, Uuid), i64>,
}

#[derive(Default)]
struct Membership {
    target: Target,
    confirmed: Target,
    identity: MemberIdentity,
    /// Offsets that came with an assignment, until they are used or the reader has confirmed it.
    committed: Option<CommittedWith>,
    trouble: Option<String>,
    /// Ends the request that may take as long as a rebalance.
    waits: Option<Stopper>,
    stopping: bool,
    /// The thread has ended, or is about to.
    over: bool,
    failure: Option<ClientError>,
}

/// The meeting place.
#[derive(Default)]
pub(super) struct SharedMembership {
    state: Mutex<Membership>,
    changed: Condvar,
}

impl SharedMembership {
    fn lock(&self) -> MutexGuard<'_, Membership> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_there`, for `patience` at most.
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

    // The reader's side.

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

    /// Waits until [`SharedMembership::is_moving`], for `patience` at most.
    pub(super) fn wait_for_move(&self, patience: Duration) {
        let is_moving = |state: &Membership| state.target.serial > state.confirmed.serial || state.failure.is_some();
        drop(self.wait(self.lock(), patience, is_moving));
    }

    pub(super) fn confirm(&self, target: &Target) {
        let mut state = self.lock();
        state.confirmed = target.clone();
        // From now on the reader commits later ones.
        state.committed = None;
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn identity(&self) -> MemberIdentity {
        self.lock().identity.clone()
    }

    /// Returns the identity in which the reader's partitions are its own; None once they may be another member's.
    pub(super) fn identity_of_reader(&self) -> Option<MemberIdentity> {
        let state = self.lock();
        let is_lost = state.target.lost && state.target.serial > state.confirmed.serial;
        let is_member = state.identity.generation >= 0 && !state.identity.member_id.is_empty();
        (is_member && !is_lost).then(|| state.identity.clone())
    }

    /// The committed offset of each of these partitions, if all came with the assignment of this generation; -1, that
    /// there is none, is None. They are there once, since the member itself may commit later ones.
    pub(super) fn take_committed(&self, of: &[(TopicPartition, Uuid)]) -> Option<Vec<Option<i64>>> {
        let mut state = self.lock();
        let CommittedWith { generation, offsets } = state.committed.take()?;
        let known = |of| offsets.get(of).map(|offset| Some(*offset).filter(|offset| *offset >= 0));
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

    /// Waits until the thread is about to end. Whether it is.
    pub(super) fn is_over(&self, patience: Duration) -> bool {
        self.wait(self.lock(), patience, |state| state.over).over
    }

    // The thread's side.

    pub(super) fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    /// Sleeps, unless the member is to stop.
    pub(super) fn pause(&self, time: Duration) {
        drop(self.wait(self.lock(), time, |state| state.stopping));
    }

    /// Says what is to be read from now on, unless that is known. With `settled` nothing is no passing state.
    pub(super) fn publish(&self, partitions: Vec<TopicPartition>, settled: bool) {
        let state = self.lock();
        let settled = settled && partitions.is_empty();
        if state.target.partitions != partitions || (settled && !state.target.settled) {
            // Nobody has heard of a loss that the reader has not confirmed yet.
            let lost = state.target.lost && state.target.serial > state.confirmed.serial;
            self.replace(state, Target { partitions, settled, lost, ..Target::default() });
        }
    }

    /// Says that what was read until now may be somebody else's.
    pub(super) fn lose(&self) {
        self.replace(self.lock(), Target { lost: true, ..Target::default() });
    }

    fn replace(&self, mut state: MutexGuard<'_, Membership>, target: Target) {
        state.target = Target { serial: state.target.serial + 1, ..target };
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the partitions of the reader, as far as they are known.
    pub(super) fn held(&self) -> Vec<TopicPartition> {
        self.lock().confirmed.partitions.clone()
    }

    /// Waits until the reader has confirmed the target, or the member is to stop. Whether it has.
    pub(super) fn is_confirmed(&self, patience: Duration) -> bool {
        let is_confirmed = |state: &Membership| state.confirmed.serial == state.target.serial;
        let state = self.wait(self.lock(), patience, |state| is_confirmed(state) || state.stopping);
        is_confirmed(&state)
    }

    /// Waits until the reader has something else than `held`, or the member is to stop.
    pub(super) fn wait_for_other_than(&self, held: &[TopicPartition], patience: Duration) {
        drop(self.wait(self.lock(), patience, |state| state.stopping || state.confirmed.partitions != held));
    }

    pub(super) fn set_identity(&self, member_id: &Text, generation: i32) {
        self.lock().identity = MemberIdentity { member_id: member_id.clone(), generation };
    }

    /// Offsets committed before the assignment of this generation.
    pub(super) fn set_committed(&self, generation: i32, offsets: HashMap<(TopicPartition, Uuid), i64>) {
        self.lock().committed = Some(CommittedWith { generation, offsets });
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        self.lock().trouble = trouble;
    }

    /// A request that a stop must end; `None` once it is answered.
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
    fn offsets_that_came_with_an_assignment_serve_once_and_that_generation_only() {
        let shared = SharedMembership::default();
        let of = |partition: i32| ((Text::from("t"), partition), Uuid([7; 16]));
        let came = |generation| {
            shared.set_identity(&"me".into(), generation);
            shared.set_committed(generation, HashMap::from([(of(0), 5), (of(1), -1)]));
        };
        came(1);
        assert_eq!(shared.take_committed(&[of(0), of(1)]), Some(vec![Some(5), None]));
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
    fn lost_partitions_leave_the_reader_without_an_identity_until_it_has_confirmed() {
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
    fn nothing_is_told_twice_at_most_as_a_passing_state_and_as_settled() {
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
