//! Steps of a transaction at which a test can kill the process (SIGKILL) or stop it (SIGSTOP).
//!
//! A step is chosen with `FULLBORE_FAULT_POINT=STEP[:ACTION[:COUNT]]` when the broker starts, for example `decided`,
//! `marked:kill:2` or `decided:stop`. The default action is `kill`. The action is taken when the step is reached for
//! the COUNT-th time. Without the variable, each step costs just one relaxed load.
//!
//! Invariant: at most one step is armed, and its action is taken only once.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The environment variable that arms a step.
pub const VARIABLE: &str = "FULLBORE_FAULT_POINT";

/// A step of a transaction that this broker has just completed. The kill or stop happens before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FaultPoint {
    /// The producer's epoch is recorded, but the InitProducerId has not been answered.
    Begun = 1,
    /// A new partition of the transaction is recorded, but the request that added it has not been answered.
    Added = 2,
    /// A batch of a transaction is in the leader's log.
    Appended = 3,
    /// The record of the decision waits to be appended.
    Deciding = 4,
    /// The decision is recorded on all in-sync replicas, but no marker has been written.
    Decided = 5,
    /// A marker is in a log of this broker, or in the index of diskless topics.
    Marked = 6,
    /// The transaction's offsets are recorded, but the TxnOffsetCommit has not been answered.
    Offsets = 7,
    /// A marker is in `__consumer_offsets`, and the group's offsets have been applied or dropped.
    OffsetsEnded = 8,
    /// EndTxn is about to be answered without an error.
    Answer = 9,
    /// All markers are written, and the completion is recorded.
    Completed = 10,
}

impl FaultPoint {
    /// All steps and their names, in the order in which a transaction reaches them.
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

/// The number of the armed step; 0 if none is armed.
static ARMED: AtomicU8 = AtomicU8::new(0);
/// How often the armed step must still be reached before the process is killed or stopped.
static LEFT: AtomicU64 = AtomicU64::new(0);
/// True if the action is SIGSTOP, and false if it is SIGKILL.
static STANDS: AtomicBool = AtomicBool::new(false);

/// Takes the action if this step is armed and has been reached often enough. Does not return if the action is SIGKILL.
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
    // SAFETY: raise(3) takes a number and touches no memory. The calling thread gets the signal before the call
    // returns.
    unsafe { libc::raise(signal) };
}

/// Arms the step that the environment variable [`VARIABLE`] names. Returns the variable's value for the log; `None` if
/// the variable is not set.
///
/// # Errors
/// Returns a sentence that explains why the variable's value is not valid.
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
