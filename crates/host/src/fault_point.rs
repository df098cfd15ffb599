//! Fault points: steps of a transaction at which a test kills the process (SIGKILL) or stops it (SIGSTOP).
//!
//! `FULLBORE_FAULT_POINT=STEP[:ACTION[:COUNT]]` arms one step as the broker starts: `decided`,
//! `marked:kill:2`, `decided:stop`. The default action is `kill`. The action is taken when the step is reached for the
//! COUNT-th time. If no step is armed, a step costs one relaxed load.
//!
//! Invariant: at most one step is armed, and its action is taken once.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Environment variable that arms a step.
pub const VARIABLE: &str = "FULLBORE_FAULT_POINT";

/// Step of a transaction that this broker has completed. The consequences of the step are still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FaultPoint {
    /// The producer's epoch is recorded, and the InitProducerId is not yet answered.
    Begun = 1,
    /// The transaction's new partition is recorded, and the request that adds it is not yet answered.
    Added = 2,
    /// A batch of a transaction is in the leader's log.
    Appended = 3,
    /// The record of a decision waits for its append.
    Deciding = 4,
    /// The decision is recorded on all replicas in sync, and no marker is written yet.
    Decided = 5,
    /// A marker is in a log of this broker, or in the index of diskless topics.
    Marked = 6,
    /// Offsets of a transaction are recorded, and the TxnOffsetCommit is not yet answered.
    Offsets = 7,
    /// A marker is in `__consumer_offsets`, and a group's offsets are applied or dropped.
    OffsetsEnded = 8,
    /// EndTxn is about to be answered without an error.
    Answer = 9,
    /// All markers are written, and the completion is recorded.
    Completed = 10,
}

impl FaultPoint {
    /// All steps with their names, in the order in which a transaction reaches them.
    pub const ALL: [(FaultPoint, &'static str); 10] = [
        (FaultPoint::Begun, "begun"),
        (FaultPoint::Added, "added"),
        (FaultPoint::Appended, "appended"),
        (FaultPoint::Deciding, "deciding"),
        (FaultPoint::Decided, "decided"),
        (FaultPoint::Marked, "marked"),
        (FaultPoint::Offsets, "offsets"),
        (FaultPoint::OffsetsEnded, "offsets-ended"),
        (FaultPoint::Answer, "answer"),
        (FaultPoint::Completed, "completed"),
    ];
}

/// Number of the armed step; 0 if no step is armed.
static ARMED: AtomicU8 = AtomicU8::new(0);
/// Number of times that the armed step must still be reached; the last time takes the action.
static LEFT: AtomicU64 = AtomicU64::new(0);
/// True if the action is SIGSTOP, false if it is SIGKILL.
static STANDS: AtomicBool = AtomicBool::new(false);

/// Takes the action if this step is armed, and its count is complete. Does not return if the action is SIGKILL.
#[inline]
pub fn reached(step: FaultPoint) {
    if ARMED.load(Ordering::Relaxed) == step as u8 {
        act();
    }
}

#[cold]
fn act() {
    let left = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    if left != Ok(0) && left != Ok(1) {
        return;
    }
    ARMED.store(0, Ordering::Relaxed);
    let signal = if STANDS.load(Ordering::Relaxed) { libc::SIGSTOP } else { libc::SIGKILL };
    // SAFETY: raise(3) takes a number and touches no memory. The signal reaches the calling thread before the call
    // returns.
    unsafe { libc::raise(signal) };
}

/// Arms the step that [`VARIABLE`] names. Returns the variable's value for the log; None if it is not set.
///
/// # Errors
/// Sentence about the variable's value, if it names no step, action or count.
pub fn arm() -> Result<Option<String>, String> {
    let Ok(value) = std::env::var(VARIABLE) else { return Ok(None) };
    let (step, stands, count) = parse(&value).map_err(|why| format!("{VARIABLE}={value}: {why}"))?;
    STANDS.store(stands, Ordering::Relaxed);
    LEFT.store(count, Ordering::Relaxed);
    ARMED.store(step as u8, Ordering::Relaxed);
    Ok(Some(value))
}

fn parse(value: &str) -> Result<(FaultPoint, bool, u64), String> {
    let mut words = value.split(':');
    let name = words.next().unwrap_or_default();
    let named = FaultPoint::ALL.iter().find(|(_, found)| *found == name);
    let &(step, _) = named.ok_or_else(|| format!("no step is called {name:?}"))?;
    let stands = match words.next() {
        None | Some("kill") => false,
        Some("stop") => true,
        Some(other) => return Err(format!("no action is called {other:?}: kill, stop")),
    };
    let count = words.next().map_or(Ok(1), str::parse).map_err(|error| format!("the count: {error}"))?;
    Ok((step, stands, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_a_step_alone_kills_the_first_time() {
        assert_eq!(parse("decided"), Ok((FaultPoint::Decided, false, 1)));
        assert_eq!(parse("offsets-ended:stop"), Ok((FaultPoint::OffsetsEnded, true, 1)));
        assert_eq!(parse("marked:kill:7"), Ok((FaultPoint::Marked, false, 7)));
    }

    #[test]
    fn a_value_with_an_unknown_part_is_refused() {
        for value in ["", "decide", "decided:die", "decided:kill:x"] {
            assert!(parse(value).is_err(), "{value}");
        }
    }

    #[test]
    fn steps_are_numbered_from_one_in_order() {
        assert!(FaultPoint::ALL.iter().zip(1..).all(|((step, _), number)| *step as u8 == number));
    }
}
