//! Fetch 4-18: long polls, sessions (KIP-227), topic ids (KIP-516).
//!
//! A fetch is answered when it has its minimum of bytes, an error, or no time left. It holds no records: what it
//! returns are ranges of log files. Invariant: the first partition with data returns at least one whole batch, so that
//! a consumer always moves (KIP-74).

mod answer;
pub mod sessions;

use super::{Completion, Fault, Reply, topics};
use crate::broker::Shared;
use crate::classic::Partition;
use crate::control::Image;
use crate::metrics::Metrics;
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, PartitionData};
use fullbore_wire::{ErrorCode, Text, Uuid};
use sessions::Plan;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The longest wait a client can ask for.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// How long an answer waits at least for logs that are being opened, whatever the client asks for: most take a few
/// milliseconds. After a crash one may take seconds, and then the answer says nothing of its partition.
const OPENING_WAIT: Duration = Duration::from_millis(500);
/// Offsets that are not known: clients keep what they had.
const UNKNOWN: i64 = -1;

/// A partition as requests name it: by topic name or by topic id, whichever the version has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartitionKey {
    /// The topic's name, or empty.
    pub topic: Text,
    /// The topic's id, or zero.
    pub topic_id: Uuid,
    /// The partition.
    pub index: i32,
}

/// One partition to fetch from.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Which.
    pub key: PartitionKey,
    /// From where and how much.
    pub fetch: FetchPartition,
}

/// The outcome for one partition.
pub struct Fetched {
    /// Which.
    pub key: PartitionKey,
    /// As it goes into the response.
    pub data: PartitionData,
}

/// Admits a fetch: settles its session, and answers at once if enough is there.
///
/// # Errors
/// When the response cannot be written.
pub fn admit(broker: &Arc<Shared>, request: FetchRequest, reply: Reply) -> Result<Completion, Fault> {
    let replica = request.replica_id.max(request.replica_state.replica_id);
    if replica >= 0 {
        return Ok(Completion::Ready(answer::error(ErrorCode::INVALID_REQUEST, 0, reply)?));
    }
    let deadline =
        Instant::now() + Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)).min(WAIT_MAX);
    let limits = Limits {
        min_bytes: u64::try_from(request.min_bytes).unwrap_or(0),
        max_bytes: usize::try_from(request.max_bytes).unwrap_or(0).min(broker.config.fetch_max_bytes),
    };
    let plan = match broker.sessions.plan(request, broker.now_ms()) {
        Ok(plan) => plan,
        Err(code) => {
            broker.metrics.fetch_failed(code);
            return Ok(Completion::Ready(answer::error(code, 0, reply)?));
        }
    };
    let fetched = attempt(broker, &plan.wanted, &limits);
    if fetched.is_enough || (deadline <= Instant::now() && !fetched.is_opening) {
        fetched.count(&broker.metrics);
        return Ok(Completion::Ready(answer::of(plan, fetched.partitions, reply)?));
    }
    let broker = Arc::clone(broker);
    Ok(Completion::Later(Box::pin(async move {
        let fetched = wait(&broker, &plan, &limits, deadline).await;
        fetched.count(&broker.metrics);
        answer::of(plan, fetched.partitions, reply)
    })))
}

/// How much one fetch wants.
struct Limits {
    min_bytes: u64,
    max_bytes: usize,
}

/// What one look at all partitions gave.
struct Attempt {
    partitions: Vec<Fetched>,
    /// Whether it must not wait any longer.
    is_enough: bool,
    /// Whether some of them could not be looked at, since their logs are being opened.
    is_opening: bool,
}

impl Attempt {
    fn count(&self, metrics: &Metrics) {
        for Fetched { data, .. } in &self.partitions {
            match &data.records {
                _ if data.error_code.is_err() => metrics.fetch_failed(data.error_code),
                Some(records) if !records.is_empty() => metrics.fetched(records.len()),
                _ => {}
            }
        }
    }
}

/// Looks again each time a partition grew, until there is enough or the time is up.
async fn wait(broker: &Shared, plan: &Plan, limits: &Limits, deadline: Instant) -> Attempt {
    let waiter = Arc::new(Notify::new());
    let image = broker.control.image();
    let _registered: Vec<_> = plan
        .wanted
        .iter()
        .filter_map(|wanted| partition(broker, &image, &wanted.key).ok())
        .map(|partition| partition.register(&waiter))
        .collect();
    let mut stop = broker.stopping();
    let opening_deadline = deadline.max(Instant::now() + OPENING_WAIT);
    loop {
        // Registered first, looked second: an append between the two has already woken the waiter.
        let fetched = attempt(broker, &plan.wanted, limits);
        if fetched.is_enough {
            return fetched;
        }
        let grown = async {
            tokio::select! {
                () = waiter.notified() => true,
                _ = stop.wait_for(|stopping| *stopping) => false,
            }
        };
        let deadline = if fetched.is_opening { opening_deadline } else { deadline };
        if !timeout_at(deadline, grown).await.unwrap_or(false) {
            return attempt(broker, &plan.wanted, limits);
        }
    }
}

/// Reads every partition once, in the order asked.
fn attempt(broker: &Shared, wanted: &[Wanted], limits: &Limits) -> Attempt {
    let image = broker.control.image();
    let mut partitions = Vec::with_capacity(wanted.len());
    let (mut bytes, mut failed, mut is_opening) = (0, false, false);
    for Wanted { key, fetch } in wanted {
        let left = limits.max_bytes.saturating_sub(bytes);
        let data = match partition(broker, &image, key) {
            Ok(partition) if !partition.is_settled() => {
                partition.ask_to_open();
                is_opening = true;
                nothing(key.index)
            }
            found => read(broker, found, key, fetch, left, bytes == 0),
        };
        bytes += data.records.as_ref().map_or(0, |records| records.len());
        failed |= data.error_code.is_err();
        partitions.push(Fetched { key: key.clone(), data });
    }
    let has_enough = bytes as u64 >= limits.min_bytes && !(is_opening && bytes == 0);
    Attempt { partitions, is_enough: failed || wanted.is_empty() || has_enough, is_opening }
}

fn partition(broker: &Shared, image: &Image, key: &PartitionKey) -> Result<Arc<Partition>, ErrorCode> {
    topics::partition(broker, topics::find(image, &key.topic, key.topic_id)?, key.index)
}

/// Reads one partition: at most `left` bytes, or one batch however large if this is the `first` data of the response.
fn read(
    broker: &Shared,
    found: Result<Arc<Partition>, ErrorCode>,
    key: &PartitionKey,
    fetch: &FetchPartition,
    left: usize,
    first: bool,
) -> PartitionData {
    let outcome = found.and_then(|partition| {
        topics::check_leader_epoch(fetch.current_leader_epoch, broker.leader_epoch())?;
        let asked = usize::try_from(fetch.partition_max_bytes).unwrap_or(0);
        let max_bytes = u32::try_from(asked.min(left)).unwrap_or(u32::MAX);
        partition.read(fetch.fetch_offset, max_bytes, first).map_err(|error| error.code())
    });
    match outcome {
        Ok(read) => PartitionData {
            partition_index: key.index,
            high_watermark: read.high_watermark,
            last_stable_offset: read.last_stable_offset,
            log_start_offset: read.log_start_offset,
            aborted_transactions: None,
            records: Some(read.records),
            ..Default::default()
        },
        Err(error_code) => PartitionData { error_code, ..nothing(key.index) },
    }
}

/// Of a partition of which nothing can be said.
fn nothing(partition_index: i32) -> PartitionData {
    PartitionData {
        partition_index,
        high_watermark: UNKNOWN,
        last_stable_offset: UNKNOWN,
        log_start_offset: UNKNOWN,
        aborted_transactions: None,
        records: Some(Default::default()),
        ..Default::default()
    }
}

/// The keys of a topic's partitions. The name is copied: a session outlives the request, and a slice would keep all of
/// the request's frame.
fn keys<'t, P>(
    topic: &Text,
    topic_id: Uuid,
    partitions: &'t [P],
    index: impl Fn(&P) -> i32 + 't,
) -> impl Iterator<Item = PartitionKey> + 't {
    let topic = Text::from(topic.as_str());
    partitions.iter().map(move |p| PartitionKey { topic: topic.clone(), topic_id, index: index(p) })
}
