//! Plan of a run, and its outcome.

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
    /// Number of records with which the run ends, after the response that reaches it.
    pub records: u64,
    /// Time without a record after which the run ends.
    pub timeout: Duration,
    /// Start of cursors without an offset.
    pub start: StartOffset,
    /// True if a cursor without an end ends at the end that its partition has when it starts.
    pub to_end: bool,
    /// True if the run goes on though all of its topics were deleted: others may come.
    pub outlives_topics: bool,
    /// Leaders that the caller has just looked up, by topic: the first look-up is only for other topics.
    pub places: BTreeMap<Text, Vec<PartitionPlace>>,
    /// Topics that were deleted before the run, which are not reported again.
    pub deleted: BTreeSet<Text>,
}

impl ConsumePlan {
    /// Makes a plan from the oldest record on until no record comes for the timeout.
    pub fn new(fetch: FetchSettings, timeout: Duration) -> Self {
        let (records, start) = (u64::MAX, StartOffset::Earliest);
        let (places, deleted) = Default::default();
        ConsumePlan { fetch, records, timeout, start, to_end: false, outlives_topics: false, places, deleted }
    }
}

/// Outcome of a run.
pub struct ConsumeOutcome<S> {
    /// Cursors of all partitions with their sinks.
    pub cursors: Vec<Cursor<S>>,
    /// Counts of the run.
    pub progress: Arc<ConsumeProgress>,
    /// Time at which the planned number, or the end of every partition, was reached; `None` if the records ended
    /// before.
    pub finished: Option<SystemTime>,
    /// Sentence about a partition that could not be read, the first of several. Not one of a deleted topic.
    pub unread: Option<String>,
}
