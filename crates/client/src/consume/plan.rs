//! Plan of a run, and outcome of a run.

use super::cursor::Cursor;
use super::fetcher::FetchSettings;
use super::progress::ConsumeProgress;
use super::start::StartOffset;
use crate::blocking::PartitionPlace;
use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Plan of a run.
#[derive(Clone, Debug)]
pub struct ConsumePlan {
    /// Settings of the fetches.
    pub fetch: FetchSettings,
    /// Fewest records after which the run ends. The run reads the whole of the response that reaches this number.
    pub records: u64,
    /// Longest time without a record before the run ends.
    pub timeout: Duration,
    /// Start of cursors without an offset.
    pub start: StartOffset,
    /// True if each cursor without an end stops at the end that the partition's log has when the read begins.
    pub to_end: bool,
    /// True if the run continues after all of its topics were deleted, since other topics may appear.
    pub outlives_topics: bool,
    /// Partitions with leaders that the caller has just looked up, by topic. The run looks up only other topics at
    /// first.
    pub places: BTreeMap<Text, Vec<PartitionPlace>>,
    /// Topics that were deleted before the run. The run does not report them again.
    pub deleted: BTreeSet<Text>,
}

impl ConsumePlan {
    /// Returns a plan that reads from the oldest record on, until no record comes for `timeout`.
    pub fn new(fetch: FetchSettings, timeout: Duration) -> Self {
        let (records, start) = (u64::MAX, StartOffset::Earliest);
        let (places, deleted) = Default::default();
        ConsumePlan { fetch, records, timeout, start, to_end: false, outlives_topics: false, places, deleted }
    }
}

/// Outcome of a run.
pub struct ConsumeOutcome<S> {
    /// Cursors of all partitions, with their sinks.
    pub cursors: Vec<Cursor<S>>,
    /// Counts of the run.
    pub progress: Arc<ConsumeProgress>,
    /// Time at which the run reached the planned number of records, or the end of every partition; `None` if it ended
    /// before.
    pub finished: Option<SystemTime>,
    /// Sentence about the first partition that could not be read; `None` if all were read. Deleted topics do not count.
    pub unread: Option<String>,
}
