//! Steps of a transaction at which a test has the process die or stand still: as kill -9 and SIGSTOP do, at one known
//! moment.
//!
//! `FULLBORE_FAULT_POINT=STEP[:ACTION[:COUNT]]` arms one step as the broker starts: `decided`, `marked:kill:2`,
//! `decided:stop`. The action is `kill` unless named, and it comes the COUNT-th time that the step is reached. Not
//! armed, a step costs one relaxed load.
//!
//! Invariant: at most one step is armed, and its action comes once.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Environment variable that arms a step.
pub const VARIABLE: &str = "FULLBORE_FAULT_POINT";

/// Step of a transaction that is done on this broker, while nothing that follows from it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FaultPoint {
    /// The producer is on record with its epoch, and its InitProducerId is not answered.
    Begun = 1,
    /// A partition is in the transaction on record, and unanswered.
    Added = 2,
    /// A batch that is part of a transaction is in the leader's log.
    Appended = 3,
    /// The record of a decision waits for its append.
    Deciding = 4,
    /// A decision is on record, on all replicas in sync, and no marker is written.
    Decided = 5,
    /// A marker is in a log of this broker, or in the index.
    Marked = 6,
    /// Offsets of a transaction are on record, and TxnOffsetCommit is not answered.
    Offsets = 7,
    /// A marker in `__consumer_offsets` is on record, and a group's offsets are applied or dropped.
    OffsetsEnded = 8,
    /// EndTxn is about to be answered without an error.
    Answer = 9,
    /// All markers are written, and the completion is on record.
    Completed = 10,
}

impl FaultPoint {
    /// Every step with its name, in the order of a transaction.
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

/// Number of the armed step; 0 for none.
static ARMED: AtomicU8 = AtomicU8::new(0);
/// Times that the armed step is reached before its action comes.
static LEFT: AtomicU64 = AtomicU64::new(0);
/// True to stand still, false to die.
static STANDS: AtomicBool = AtomicBool::new(false);

/// Takes note that this step is done. Does not return if the process is to die here.
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
    // SAFETY: raise(3) takes a number and touches no memory. The calling thread takes the signal, so that it goes no
    // further.
    unsafe { libc::raise(signal) };
}

/// Arms the step that [`VARIABLE`] names, if it is set. Returns its value for the log.
///
/// # Errors
/// Words on a value that names no step, action or count.
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
    fn value_names_a_step_it_dies_there_the_first_time_unless_more_is_said() {
        assert_eq!(parse("decided"), Ok((FaultPoint::Decided, false, 1)));
        assert_eq!(parse("offsets-ended:stop"), Ok((FaultPoint::OffsetsEnded, true, 1)));
        assert_eq!(parse("marked:kill:7"), Ok((FaultPoint::Marked, false, 7)));
    }

    #[test]
    fn value_names_nothing_it_is_refused() {
        for value in ["", "decide", "decided:die", "decided:kill:x"] {
            assert!(parse(value).is_err(), "{value}");
        }
    }

    #[test]
    fn steps_are_numbered_in_order_none_is_zero() {
        assert!(FaultPoint::ALL.iter().zip(1..).all(|((step, _), number)| *step as u8 == number));
    }
}
