//! The plan and the outcome of a run.

use super::cursor::Cursor;
use super::progress::ConsumeProgress;
use super::settings::FetchSettings;
use super::start::StartOffset;
use crate::blocking::PartitionPlace;
use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct ConsumePlan {
    /// The settings of the fetches.
    pub fetch: FetchSettings,
    /// Number of records after which the run ends. The run still reads the rest of the response with the last of these
    /// records.
    pub records: u64,
    /// Time without a record after which the run ends.
    pub timeout: Duration,
    /// The start of a cursor that has no offset.
    pub start: StartOffset,
    /// True if a cursor without an end reads up to the end that the log had when the read began.
    pub to_end: bool,
    /// metadata.max.age.ms: how often the leaders of all partitions are looked up, each time at another broker.
    pub metadata_max_age: Duration,
    /// True if the run continues after all of its topics were deleted, since other topics may appear.
    pub outlives_topics: bool,
    /// Partitions with their leaders, by topic, that the caller has just looked up. The run's first look-up leaves out
    /// these topics.
    pub places: BTreeMap<Text, Vec<PartitionPlace>>,
    /// Topics whose deletion the caller already knows. The run does not report them again.
    pub deleted: BTreeSet<Text>,
}

impl ConsumePlan {
    /// Creates a plan that reads from the oldest record on, until no record comes for `timeout`.
    pub fn new(fetch: FetchSettings, timeout: Duration) -> Self {
        let (records, start) = (u64::MAX, StartOffset::Earliest);
        let (places, deleted) = Default::default();
        let metadata_max_age = Duration::from_secs(300);
        ConsumePlan {
            fetch,
            records,
            timeout,
            start,
            to_end: false,
            metadata_max_age,
            outlives_topics: false,
            places,
            deleted,
        }
    }
}

/// The outcome of a run.
pub struct ConsumeOutcome<S> {
    /// The cursors of all partitions, with their sinks.
    pub cursors: Vec<Cursor<S>>,
    /// The counts of the run.
    pub progress: Arc<ConsumeProgress>,
    /// When the run reached the planned number of records or the end of every partition. `None` if the run ended
    /// earlier.
    pub finished: Option<SystemTime>,
    /// A sentence about the first partition that could not be read, or `None` if all were read. Deleted topics do not
    /// count.
    pub unread: Option<String>,
}
