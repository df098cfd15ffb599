//! The state of a replica's log, which can be read without the lock of the replica.
//!
//! The phase is a copy of the variant of [`LogState`](super::state::LogState). [`Replica::put`](super::Replica::put)
//! writes both. A separate flag records that the partition is deleted, because the log may still be open during the
//! deletion.
//!
//! Invariant: a phase changes only while the replica's state is locked, and only as [`TRANSITIONS`] allows.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// The state of a replica's log. See [`LogState`](super::state::LogState) for the data of each variant.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The log is not opened yet, or must be opened again after a failed truncation.
    Unopened,
    /// A thread is opening the log, if the log's directory exists.
    Opening,
    /// A thread is creating the log and its directory. The creation is short, because there is nothing to recover.
    Creating,
    /// The partition has no log, because nothing was ever written to it.
    Absent,
    Open,
    /// The log's files are damaged.
    Refused,
    /// The log is closed and will not be opened again, because the partition was deleted or the broker stops.
    Gone,
}

/// The flag of a deleted partition. It is set once, in any phase, and never cleared.
const LEAVING: u8 = 0x80;

/// The phases that may follow each phase. The comment of a row names the functions of `Replica` that make these
/// changes, in the order of the row.
const TRANSITIONS: [(Phase, &[Phase]); 7] = [
    // `step` opens the log; `leave` closes it for good.
    (Phase::Unopened, &[Phase::Opening, Phase::Gone]),
    // When an opening ends, `step` sets `Unopened` after a failure or a stop, `Absent` if there is no directory, `Open`
    // after a success, and `Refused` if the log is damaged.
    (Phase::Opening, &[Phase::Unopened, Phase::Absent, Phase::Open, Phase::Refused]),
    // When a creation ends, `step` sets `Absent` after a failure or a stop, `Open` after a success, and `Refused` if
    // the log is damaged.
    (Phase::Creating, &[Phase::Absent, Phase::Open, Phase::Refused]),
    // `step` creates the log; `leave` closes the partition for good.
    (Phase::Absent, &[Phase::Creating, Phase::Gone]),
    // `open_anew` closes the log after a failed truncation; `leave` closes the partition for good.
    (Phase::Open, &[Phase::Unopened, Phase::Gone]),
    // `leave` closes the partition for good.
    (Phase::Refused, &[Phase::Gone]),
    // `leave` is called twice if the partition is deleted while the broker stops.
    (Phase::Gone, &[Phase::Gone]),
];

impl Phase {
    /// Returns true if [`TRANSITIONS`] allows a change from this phase to `to`.
    fn may_become(self, to: Phase) -> bool {
        TRANSITIONS[self as usize].1.contains(&to)
    }
}

/// The phase of a replica together with its deletion flag.
#[derive(Debug, Clone, Copy)]
pub struct PhaseView(u8);

impl PhaseView {
    pub fn phase(self) -> Phase {
        TRANSITIONS[usize::from(self.0 & !LEAVING)].0
    }

    /// Returns true if the partition is deleted. From then on, long work on the partition ends early, and its
    /// checkpoints are no longer written.
    pub fn is_leaving(self) -> bool {
        self.0 & LEAVING != 0
    }

    /// Returns true if no thread has to open or create the log before it can be used: the log is open, absent, damaged
    /// or gone.
    pub fn is_settled(self) -> bool {
        !matches!(self.phase(), Phase::Unopened | Phase::Opening | Phase::Creating)
    }

    /// Returns true if a caller need not wait for a recovery.
    pub fn is_usable(self) -> bool {
        self.is_settled() || self.is_creating()
    }

    /// Returns true if a thread is creating the log. The creation is short.
    pub fn is_creating(self) -> bool {
        self.phase() == Phase::Creating
    }

    /// Returns true if the log is open, so that an append need not open or create it first.
    pub fn is_open(self) -> bool {
        self.phase() == Phase::Open
    }

    /// Returns true if the partition has no log, because no record was ever written to it.
    pub fn is_absent(self) -> bool {
        self.phase() == Phase::Absent
    }
}

/// Stores the phase and the deletion flag of one replica. A reader takes no lock.
#[derive(Debug)]
pub struct PhaseCell(AtomicU8);

impl PhaseCell {
    pub fn new(phase: Phase) -> PhaseCell {
        PhaseCell(AtomicU8::new(phase as u8))
    }

    #[inline]
    pub fn load(&self) -> PhaseView {
        PhaseView(self.0.load(Acquire))
    }

    /// Sets the deletion flag, in any phase. Takes no lock.
    pub fn set_leaving(&self) {
        self.0.fetch_or(LEAVING, Release);
    }

    /// Changes the phase and keeps the deletion flag. The caller must hold the lock of the replica's state.
    ///
    /// # Panics
    /// Panics if the current phase is not `from`, or if `to` must not follow `from`.
    pub fn change(&self, from: Phase, to: Phase) {
        let now = self.load().phase();
        assert!(now == from && from.may_become(to), "a log cannot go from {from:?} to {to:?} in the phase {now:?}");
        self.0.fetch_xor(from as u8 ^ to as u8, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn each_transition_of_the_table_is_made_and_any_other_panics() {
        for (row, (from, allowed)) in TRANSITIONS.iter().enumerate() {
            assert_eq!(*from as usize, row, "the table is indexed by the phase");
            for (to, _) in TRANSITIONS {
                let changed = catch_unwind(|| {
                    let cell = PhaseCell::new(*from);
                    cell.change(*from, to);
                    cell.load().phase()
                });
                assert_eq!(changed.ok(), allowed.contains(&to).then_some(to), "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn replica_that_is_leaving_changes_its_phase_and_stays_leaving() {
        let cell = PhaseCell::new(Phase::Absent);
        assert!(!cell.load().is_leaving());
        cell.set_leaving();
        for (from, to) in [(Phase::Absent, Phase::Creating), (Phase::Creating, Phase::Open), (Phase::Open, Phase::Gone)]
        {
            assert!(cell.load().is_leaving() && cell.load().phase() == from);
            cell.change(from, to);
        }
        cell.set_leaving();
        assert!(cell.load().is_leaving() && cell.load().phase() == Phase::Gone);
    }

    #[test]
    #[should_panic(expected = "a log cannot go from Unopened to Gone in the phase Open")]
    fn state_that_disagrees_with_the_phase_panics() {
        PhaseCell::new(Phase::Open).change(Phase::Unopened, Phase::Gone);
    }
}
