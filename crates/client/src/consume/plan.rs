//! Plan of a run, and its outcome.

use super::cursor::Cursor;
use super::lane::FetchSettings;
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
    /// How to fetch.
    pub fetch: FetchSettings,
    /// The run ends with the response that reaches this many records.
    pub records: u64,
    /// The run ends when no record came for this long.
    pub timeout: Duration,
    /// Begin of cursors without an offset.
    pub start: StartOffset,
    /// True if cursors without an end are to end where their partition ends when it is begun.
    pub to_end: bool,
    /// True if the run goes on though every topic it reads was deleted: there may be others.
    pub outlives_topics: bool,
    /// Leaders that the caller has just looked up, by topic: the first look is for those of other topics only.
    pub places: BTreeMap<Text, Vec<PartitionPlace>>,
    /// Topics that were deleted before it began, which is not told again.
    pub deleted: BTreeSet<Text>,
}

impl ConsumePlan {
    /// From the oldest record on until nothing comes for the timeout.
    pub fn new(fetch: FetchSettings, timeout: Duration) -> Self {
        let (records, start) = (u64::MAX, StartOffset::Earliest);
        let (places, deleted) = Default::default();
        ConsumePlan { fetch, records, timeout, start, to_end: false, outlives_topics: false, places, deleted }
    }
}

/// How a run went.
pub struct ConsumeOutcome<S> {
    /// Every partition's cursor with its sink.
    pub cursors: Vec<Cursor<S>>,
    /// Counts.
    pub progress: Arc<ConsumeProgress>,
    /// When the number wanted, or the end of every partition, was reached; `None` if the records ended before.
    pub finished: Option<SystemTime>,
    /// Which partition could not be read, and why; of several, the first. Not those of deleted topics.
    pub unread: Option<String>,
}
