//! Reader of whole topics at full speed: the caller assigns the partitions, which start at an offset or a timestamp.
//!
//! Not a consumer group; nothing is committed. Each leader has one thread and one connection ([`fetcher`]). [`run`]
//! starts them, passes them partitions by its [`ConsumePlan`], and keeps its [`ConsumeProgress`]. Invariant: each
//! record of a partition reaches its [`Sink`] once, in offset order, and with a matching checksum.

mod cursor;
mod deleted;
mod error;
mod fetcher;
mod growth;
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
pub use fetcher::FetchSettings;
pub use fullbore_wire::batch::{BatchView, Record};
pub use growth::{Growth, TopicFilter};
pub use plan::{ConsumeOutcome, ConsumePlan};
pub use progress::ConsumeProgress;
pub use start::{Placed, StartOffset};

use crate::blocking::Cluster;
use run::Run;

/// Reads up to the planned number of records, the end of every partition, or the timeout without records. Calls
/// `observe` every few milliseconds, which ends the run by returning false. The run takes over the connection of
/// `cluster`, and may fetch on it.
///
/// # Errors
/// An error that no retry can repair: a record that the sink refused, an offset that does not exist. An error of one
/// partition or topic (a bad batch, a deletion) is returned once nothing else is left to read. If the timeout passes
/// while a partition cannot be read, the reason for that.
pub fn consume<S: Sink>(
    cluster: &Cluster,
    cursors: Vec<Cursor<S>>,
    plan: &ConsumePlan,
    observe: impl FnMut(&ConsumeProgress) -> bool,
) -> Result<ConsumeOutcome<S>, ConsumeError> {
    consume_growing(cluster, cursors, plan, None, observe)
}

/// Reads as [`consume`] does, and also new partitions of its topics.
///
/// # Errors
/// Those of [`consume`].
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
