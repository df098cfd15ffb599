//! Phase of a replica's log, for readers that must not wait for the lock of its state.
//!
//! The phase repeats the variant of the state's [`LogState`](super::state::LogState).
//! [`Replica::put`](super::Replica::put) writes both. A flag beside the phase shows that the partition is deleted; the
//! log may still be open during the deletion.
//!
//! Invariant: a phase changes under the lock of the state, and only as [`TRANSITIONS`] allows.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// Phase of a replica's log.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Log that was not read since the broker's start.
    Unopened,
    /// Log that a thread is opening, if its directory exists.
    Opening,
    /// Log and directory that a thread creates. The creation ends soon, because there is nothing to recover.
    Creating,
    /// Log that was never written.
    Absent,
    Open,
    /// Log with damaged files.
    Refused,
    /// Log of a deleted partition, or closed by the stop of the broker.
    Gone,
}

/// Flag of a deleted partition, set once and in any phase.
const LEAVING: u8 = 0x80;

/// Phases that may follow each phase. The comments name the functions of `Replica` that make the change, and the
/// reasons in the order of the phases.
const TRANSITIONS: [(Phase, &[Phase]); 7] = [
    // `step`; `leave`.
    (Phase::Unopened, &[Phase::Opening, Phase::Gone]),
    // `step`, by the thread at the directory only: failed or ended early; no directory; opened; damaged.
    (Phase::Opening, &[Phase::Unopened, Phase::Absent, Phase::Open, Phase::Refused]),
    // `step`, by the thread at the directory only: failed or ended early; created; damaged.
    (Phase::Creating, &[Phase::Absent, Phase::Open, Phase::Refused]),
    // `step`; `leave`.
    (Phase::Absent, &[Phase::Creating, Phase::Gone]),
    // `open_anew`; `leave`.
    (Phase::Open, &[Phase::Unopened, Phase::Gone]),
    // `leave`.
    (Phase::Refused, &[Phase::Gone]),
    // `leave`: a deletion while the broker stops.
    (Phase::Gone, &[Phase::Gone]),
];

impl Phase {
    /// Returns true if [`TRANSITIONS`] has a change from this phase to `to`.
    fn may_become(self, to: Phase) -> bool {
        TRANSITIONS[self as usize].1.contains(&to)
    }
}

/// Phase of a replica and its deletion flag, from one load.
#[derive(Debug, Clone, Copy)]
pub struct PhaseView(u8);

impl PhaseView {
    pub fn phase(self) -> Phase {
        TRANSITIONS[usize::from(self.0 & !LEAVING)].0
    }

    /// Returns true if the partition is deleted: long work on it ends early, and no checkpoint of it is written.
    pub fn is_leaving(self) -> bool {
        self.0 & LEAVING != 0
    }

    /// Returns true if no caller has to wait for a thread to open the log: the log is open, damaged or gone, or was
    /// never written.
    pub fn is_settled(self) -> bool {
        !matches!(self.phase(), Phase::Unopened | Phase::Opening | Phase::Creating)
    }

    /// Returns true if a use of the log need not wait for a recovery.
    pub fn is_usable(self) -> bool {
        self.is_settled() || self.is_creating()
    }

    /// Returns true if a thread is creating the log; the creation ends soon.
    pub fn is_creating(self) -> bool {
        self.phase() == Phase::Creating
    }

    /// Returns true if the log is open. The first append to an absent log blocks, since it creates the directory.
    pub fn is_open(self) -> bool {
        self.phase() == Phase::Open
    }

    /// Returns true if nothing was ever written, so that there is no log to be opened.
    pub fn is_absent(self) -> bool {
        self.phase() == Phase::Absent
    }
}

/// Phase of one replica. Loads take no lock.
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

    /// Marks the replica as leaving, in whichever phase it is. Takes no lock.
    pub fn set_leaving(&self) {
        self.0.fetch_or(LEAVING, Release);
    }

    /// Changes the phase and keeps the deletion flag. The caller holds the lock of the state.
    ///
    /// # Panics
    /// If the phase is not `from`, or may not become `to`.
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
