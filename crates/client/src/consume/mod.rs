//! Reads whole topics at full speed. The caller assigns the partitions, and each starts at an offset or a timestamp.
//!
//! This is not a consumer group, so no offsets are committed. Each leader has one fetcher, which is a thread with a
//! connection ([`fetcher`]). [`run`] starts the fetchers, passes them partitions by its [`ConsumePlan`], and updates
//! its [`ConsumeProgress`]. Invariant: each record of a partition reaches the partition's [`Sink`] once, in offset
//! order, and with a matching checksum. If the log loses records after they were read ([`epochs`]), the order begins
//! again at the first lost offset.

mod cursor;
mod deleted;
mod epochs;
mod error;
mod fetcher;
mod growth;
mod inbox;
mod pace;
mod plan;
mod progress;
mod run;
mod scout;
mod session;
mod settings;
mod start;
mod waiting;

pub use cursor::{Cursor, Sink};
pub use deleted::DeletedOffsets;
pub use error::ConsumeError;
pub use fullbore_wire::batch::{BatchView, Record};
pub use growth::{Growth, TopicFilter};
pub use plan::{ConsumeOutcome, ConsumePlan};
pub use progress::ConsumeProgress;
pub use settings::FetchSettings;
pub use start::{Placed, StartOffset};

use crate::blocking::Cluster;
use run::Run;

/// Reads until it has the planned number of records, until every partition is read to its end, or until no record has
/// come for the timeout. Calls `observe` every few milliseconds, and ends the run once `observe` returns false. The run
/// takes over the connection that [`Cluster::any`] returns, and may fetch on it.
///
/// # Errors
/// Returns an error that no retry can repair, such as a record that the sink refused, or an offset that does not exist.
/// The error of a single partition or topic (a bad batch, a deletion) is returned only after all others are read. If
/// the timeout passes while a partition cannot be read, returns the reason why it cannot be read.
pub fn consume<S: Sink>(
    cluster: &Cluster,
    cursors: Vec<Cursor<S>>,
    plan: &ConsumePlan,
    observe: impl FnMut(&ConsumeProgress) -> bool,
) -> Result<ConsumeOutcome<S>, ConsumeError> {
    consume_growing(cluster, cursors, plan, None, observe)
}

/// Reads like [`consume`], and also reads the new partitions that `growth` finds.
///
/// # Errors
/// Returns [`ConsumeError`] under the conditions of [`consume`].
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
