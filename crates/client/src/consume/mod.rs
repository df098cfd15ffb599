//! Reading whole topics as fast as they come: partitions are assigned by hand, from a timestamp's offset on.
//!
//! Not a consumer group, and nothing is committed. One thread and one connection per leader ([`lane`]); [`run`] starts
//! them and gives them their partitions, as its [`ConsumePlan`] says, and tells its [`ConsumeProgress`]. Invariant:
//! each record of a partition reaches its [`Sink`] once, in offset order, and with a matching checksum.

mod cursor;
mod deleted;
mod error;
mod growth;
mod lane;
mod pace;
mod plan;
mod progress;
mod run;
mod scout;
mod session;
mod start;
mod waiting;

pub use cursor::{Cursor, Sink};
pub use deleted::DeletedOffsets;
pub use error::ConsumeError;
pub use fullbore_wire::batch::{BatchView, Record};
pub use growth::{Growth, TopicFilter};
pub use lane::FetchSettings;
pub use plan::{ConsumeOutcome, ConsumePlan};
pub use progress::ConsumeProgress;
pub use start::{Placed, StartOffset};

use crate::blocking::Cluster;
use run::Run;

/// Reads until the number wanted, the end of every partition, or until nothing comes for the timeout. `observe` is
/// called every few milliseconds and may end the run by returning false. The run takes the connection over that
/// `cluster` has, and may fetch on it.
///
/// # Errors
/// What no retry can help: a record the sink refused, an offset that is not there. What concerns one partition or topic
/// alone (a broken batch, a deletion) is an error once nothing else is left to read. When the timeout passes while a
/// partition cannot be read, why.
pub fn consume<S: Sink>(
    cluster: &Cluster,
    cursors: Vec<Cursor<S>>,
    plan: &ConsumePlan,
    observe: impl FnMut(&ConsumeProgress) -> bool,
) -> Result<ConsumeOutcome<S>, ConsumeError> {
    consume_growing(cluster, cursors, plan, None, observe)
}

/// Reads as [`consume`] does, and also the partitions that topics get meanwhile.
///
/// # Errors
/// Errors of [`consume`].
pub fn consume_growing<S: Sink>(
    cluster: &Cluster,
    cursors: Vec<Cursor<S>>,
    plan: &ConsumePlan,
    mut growth: Option<Growth<S>>,
    mut observe: impl FnMut(&ConsumeProgress) -> bool,
) -> Result<ConsumeOutcome<S>, ConsumeError> {
    growth.iter_mut().for_each(|growth| growth.know(&cursors));
    let mut run = Run::new(cluster, cursors, plan, growth);
    let ended = run.follow(&mut observe);
    let stopped = run.stop();
    ended.and(stopped)?;
    Ok(run.outcome())
}
