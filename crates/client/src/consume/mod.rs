//! Reading whole topics as fast as they come: partitions are assigned by hand, from a timestamp's offset on.
//!
//! Not a consumer group, and nothing is committed. One thread and one connection per leader ([`lane`]); [`run`] starts them and
//! gives them their partitions; here is what a run needs to know and what it tells. Invariant: each record of a partition reaches
//! its [`Sink`] once, in offset order, and with a matching checksum.

mod cursor;
mod growth;
mod lane;
mod run;
mod scout;
mod start;
mod waiting;

pub use cursor::{Cursor, Sink};
pub use fullbore_wire::batch::{BatchView, Record};
pub use growth::{Growth, TopicFilter};
pub use lane::FetchSettings;
pub use start::{Placed, Start};

use crate::blocking::Cluster;
use crate::error::ClientError;
use fullbore_wire::Text;
use run::Run;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use waiting::{Waiting, sentence};

/// How long a partition must have been refused for the run to have left it out.
const REFUSED_AFTER: Duration = Duration::from_secs(1);

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    /// The cluster's or the connection's.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Bytes that are no record batch, or whose checksum does not match.
    #[error(
        "partition {partition} of topic '{topic}' has a broken batch at offset {offset}: {reason}; check the broker's disk"
    )]
    Corrupt {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// The first offset that could not be read.
        offset: i64,
        /// What is wrong.
        reason: String,
    },
    /// The partition has no such offset, and may not be started again.
    #[error(
        "partition {partition} of topic '{topic}' has no offset {offset}; start with the oldest it has by --offset beginning, \
         with those to come by --offset end"
    )]
    OutOfRange {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// Before its first or past its last.
        offset: i64,
    },
    /// What is at the offsets that were asked for is another topic's.
    #[error("topic '{topic}' was deleted and made again while it was read; start again with the new one")]
    Recreated {
        /// The topic.
        topic: Text,
    },
    /// There is no such topic any more.
    #[error("topic '{topic}' was deleted while it was read")]
    Deleted {
        /// The topic.
        topic: Text,
    },
    /// The leader has refused a partition for as long as the run waits for it.
    #[error(transparent)]
    Refusing(Arc<ClientError>),
    /// The sink did not accept a record.
    #[error("partition {partition} of topic '{topic}', offset {offset}: {reason}")]
    Refused {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// The record's offset.
        offset: i64,
        /// In the sink's words.
        reason: String,
    },
    /// The timeout passed while some partition could not be read.
    #[error("no record came in {} ms: {source}", waited.as_millis())]
    Unreachable {
        /// How long.
        waited: Duration,
        /// Why, as last seen.
        source: Arc<ClientError>,
    },
    /// The system gave no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// What all lanes count together. Written by the lanes, read by anyone.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    records: AtomicU64,
    bytes: AtomicU64,
    /// Microseconds after `started` at which the last records came.
    last_record_us: AtomicU64,
    first_fetch: OnceLock<Instant>,
    finished: OnceLock<SystemTime>,
    stop: AtomicBool,
    records_wanted: u64,
    trouble: Mutex<Option<String>>,
    waiting: Waiting,
    /// What happened that nothing can be done about, until it is told.
    notices: Mutex<Vec<String>>,
    deleted: Mutex<BTreeSet<Text>>,
}

impl Progress {
    fn new(records_wanted: u64, deleted: BTreeSet<Text>) -> Self {
        Progress {
            started: Instant::now(),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            last_record_us: AtomicU64::new(0),
            first_fetch: OnceLock::new(),
            finished: OnceLock::new(),
            stop: AtomicBool::new(false),
            records_wanted,
            trouble: Mutex::default(),
            waiting: Waiting::default(),
            notices: Mutex::default(),
            deleted: Mutex::new(deleted),
        }
    }

    /// Why some partition is not being read just now.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// What is to be told once: partitions that will not be read any more, and why.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn notice(&self, what: String) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// The topics that were deleted while they were read, and are not there again.
    pub fn deleted(&self) -> BTreeSet<Text> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records read so far.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Bytes of their keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// From the start until the first fetch was sent; `None` before that.
    pub fn setup(&self) -> Option<Duration> {
        self.first_fetch.get().map(|first| *first - self.started)
    }

    fn idle(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_micros(self.last_record_us.load(Ordering::Relaxed)))
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts one response's records; the one that reaches the number wanted ends the run.
    fn count(&self, records: u64, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let before = self.records.fetch_add(records, Ordering::Relaxed);
        self.last_record_us.store(self.started.elapsed().as_micros() as u64, Ordering::Relaxed);
        if before + records >= self.records_wanted {
            self.finished.get_or_init(SystemTime::now);
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// How a run went.
pub struct Outcome<S> {
    /// Every partition's cursor with its sink.
    pub cursors: Vec<Cursor<S>>,
    /// Counts.
    pub progress: Arc<Progress>,
    /// When the number wanted, or the end of every partition, was reached; `None` if the records ended before.
    pub finished: Option<SystemTime>,
    /// Which partition could not be read, and why; of several, the first. Not those of deleted topics.
    pub unread: Option<String>,
}

/// What a run needs to know.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How to fetch.
    pub fetch: FetchSettings,
    /// The run ends with the response that reaches this many records.
    pub records: u64,
    /// The run ends when no record came for this long.
    pub timeout: Duration,
    /// Where cursors without an offset start.
    pub start: Start,
    /// Whether cursors without an end are to end where their partition ends when it is begun.
    pub to_end: bool,
    /// Whether the run goes on though every topic it reads was deleted: there may be others.
    pub outlives_topics: bool,
    /// Topics that were deleted before it began, which is not told again.
    pub deleted: BTreeSet<Text>,
}

impl Plan {
    /// From the oldest record on until nothing comes for the timeout.
    pub fn new(fetch: FetchSettings, timeout: Duration) -> Self {
        let (records, start) = (u64::MAX, Start::Earliest);
        let deleted = BTreeSet::new();
        Plan { fetch, records, timeout, start, to_end: false, outlives_topics: false, deleted }
    }
}

/// Reads until the number wanted, the end of every partition, or until nothing comes for the timeout. `observe` is called every few milliseconds
/// and may end the run by returning false.
///
/// # Errors
/// What no retry can help: a record the sink refused, an offset that is not there. What concerns one partition or topic alone (a
/// broken batch, a deletion) is an error once nothing else is left to read. When the timeout passes while a partition cannot be
/// read, why.
pub fn consume<S: Sink>(
    cluster: &Cluster,
    cursors: Vec<Cursor<S>>,
    plan: &Plan,
    observe: impl FnMut(&Progress) -> bool,
) -> Result<Outcome<S>, ConsumeError> {
    consume_growing(cluster, cursors, plan, None, observe)
}

/// As [`consume`], and reads the partitions, too, that topics get meanwhile.
///
/// # Errors
/// As [`consume`].
pub fn consume_growing<S: Sink>(
    cluster: &Cluster,
    cursors: Vec<Cursor<S>>,
    plan: &Plan,
    mut growth: Option<Growth<S>>,
    mut observe: impl FnMut(&Progress) -> bool,
) -> Result<Outcome<S>, ConsumeError> {
    growth.iter_mut().for_each(|growth| growth.know(&cursors));
    let mut run = Run::new(cluster, cursors, plan, growth);
    let ended = run.follow(&mut observe);
    let stopped = run.stop();
    ended.and(stopped)?;
    Ok(run.outcome())
}
