//! Fetch 4-18: long polls, sessions (KIP-227) and topic ids (KIP-516). Fetches of other brokers are in `replica/`.
//!
//! A fetch is answered once it has found its minimum of bytes or an error, or once its time is up. Reading can be
//! expensive, so the fetch first compares the sizes of the partitions with the minimum ([`Depth`]). A fetch copies no
//! records into memory. Its response refers to ranges of log files or to the diskless cache.
//!
//! A consumer of a diskless partition is redirected to a broker of its own rack, if there is one (KIP-392). The
//! response then has no records of the partition. The first partition with data returns at least one whole batch, so
//! that a consumer always makes progress (KIP-74).

mod answer;
mod rack;
pub mod replica;

use super::wide::ENTRIES_SHORT_MAX;
use super::{Call, Completion, Fault, Reply, topics};
use crate::fetch_sessions::{
    FetchAdmission, FetchPlan, Fetched, FetchedTopic, PartitionFetch, PartitionOutcome, SessionRequest,
};
use crate::node::FetchServices;
use crate::partitions::{AnyPartition, LogOffsets, Read, ReadError};
use fullbore_control::{Image, Topic};
use fullbore_host::long_work::is_in_slot;
use fullbore_host::metrics::Metrics;
use fullbore_host::wide_work::WideWork;
use fullbore_log::partition::read::Isolation;
use fullbore_log::txn_index::AbortedTransaction;
use fullbore_rules::replica::epochs::EpochEnd;
use fullbore_wire::apis::fetch::{AbortedTransaction as AbortedInAnswer, EpochEndOffset, FetchRequest, PartitionData};
use fullbore_wire::{ErrorCode, Frame};
use rack::CrossRackClient;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Maximum time that a fetch waits, whatever the client requests.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Minimum time that a fetch waits while logs are being opened or records are being read from the object store, even if
/// the client requests a shorter wait. Most logs open within milliseconds. After a crash this may take seconds, and the
/// response then contains no records of the partition.
const OPENING_WAIT: Duration = Duration::from_millis(500);
/// Stands for an unknown offset. The client then keeps its previous value.
const UNKNOWN: i64 = PartitionOutcome::UNKNOWN;

/// In a session that reads ahead, a response counts as full once less than an eighth of its size limit is left.
const FULL_SHARE: usize = 8;
/// Memory that a pending fetch takes, in addition to its lists of partitions.
const PENDING_BYTES: usize = 2048;
/// Memory that a partition without records takes while it is read and in the response.
const SIZE_BYTES: usize = 128;

/// Admits a fetch: finds or creates its session, and answers at once if there is enough data.
///
/// # Errors
/// Returns an error if the response cannot be encoded.
pub async fn admit(
    call: &mut Call<'_>,
    services: &Arc<FetchServices>,
    request: FetchRequest,
    reply: Reply,
) -> Result<Completion, Fault> {
    if request.replica_id.max(request.replica_state.replica_id) >= 0 {
        return replica::admit(call, services, request, reply);
    }
    let partitions = services.sessions.partitions_of(request.session_id);
    if partitions <= ENTRIES_SHORT_MAX {
        return admit_consumer(call, services, request, reply);
    }
    // Memory is reserved for all partitions of the session. Even a short request may change, remove or read any of
    // them.
    Box::pin(services.wide.drive(partitions * SIZE_BYTES, async { admit_consumer(call, services, request, reply) }))
        .await
}

/// Admits the fetch of a consumer.
fn admit_consumer(
    call: &mut Call<'_>,
    services: &Arc<FetchServices>,
    request: FetchRequest,
    reply: Reply,
) -> Result<Completion, Fault> {
    let Some(isolation) = Isolation::from_code(request.isolation_level) else {
        return refused(services, ErrorCode::INVALID_REQUEST, reply).map(Completion::Ready);
    };
    let began = Instant::now();
    let max_bytes = usize::try_from(request.max_bytes).unwrap_or(0).min(services.metadata.config.api.fetch_max_bytes);
    let limits = FetchLimits {
        // The response cannot have more than `max_bytes`, so the client would wait for a larger minimum until its time
        // is up.
        min_bytes: usize::try_from(request.min_bytes).unwrap_or(0).min(max_bytes.max(1)),
        max_bytes,
        began,
        deadline: began + Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)).min(WAIT_MAX),
        isolation,
        client: call.client.number,
        cross_rack: CrossRackClient::of(&services.metadata, call.listener, &request.rack_id),
    };
    // Only the needed fields of the request are copied. The request's frame may be part of a large buffer, which can
    // now be freed.
    let requested = SessionRequest::of(request);
    let plan = match services.sessions.admit(requested) {
        Ok(FetchAdmission::Planned(plan)) => plan,
        Ok(FetchAdmission::Behind(behind)) => {
            let held = PENDING_BYTES + behind.bytes_held();
            let partitions = behind.partitions();
            let shared = Arc::clone(services);
            let answer = async move {
                // Lets other tasks run first, because many fetches may wait here, each with thousands of partitions.
                tokio::task::yield_now().await;
                match shared.sessions.plan_behind(behind) {
                    Ok(plan) => {
                        let limits = FetchLimits { began: Instant::now(), ..limits };
                        answer_later(&shared, plan, &limits, reply).await
                    }
                    Err(code) => refused(&shared, code, reply),
                }
            };
            return Ok(holding(&services.wide, answer, partitions, held));
        }
        Err(code) => return refused(services, code, reply).map(Completion::Ready),
    };
    if let Some(session) = services.sessions.opened_by(&plan) {
        call.client.reads_in = Some(session);
    }
    match plan.wanted() {
        Ok(wanted) if wanted.len() <= ENTRIES_SHORT_MAX || is_in_slot() => {
            let fetched = attempt(services, &wanted, &limits, plan.reads_ahead);
            // Releases this reference to the session's list. The session then holds the only one and can change the
            // list in place.
            drop(wanted);
            let is_late = limits.deadline <= Instant::now() && !fetched.is_opening && !fetched.is_counted;
            if fetched.is_enough || is_late {
                return answer_now(services, plan, Ok(fetched), reply).map(Completion::Ready);
            }
        }
        Ok(_) => {}
        Err(code) => return refused(services, code, reply).map(Completion::Ready),
    }
    let (partitions, held) = (plan.partitions(), PENDING_BYTES + plan.bytes_held());
    let shared = Arc::clone(services);
    let answer = async move { answer_later(&shared, plan, &limits, reply).await };
    Ok(holding(&services.wide, answer, partitions, held))
}

/// Returns a completion that is answered later. A fetch of thousands of partitions does not run on the threads that
/// serve connections.
fn holding(
    wide: &Arc<WideWork>,
    answer: impl Future<Output = Result<Frame, Fault>> + Send + 'static,
    partitions: usize,
    held: usize,
) -> Completion {
    if partitions <= ENTRIES_SHORT_MAX {
        return Completion::Holding(Box::pin(answer), held);
    }
    let wide = Arc::clone(wide);
    Completion::Holding(Box::pin(async move { wide.drive(partitions * SIZE_BYTES, answer).await }), held)
}

/// Waits until there is enough data or the time is up, then answers.
async fn answer_later(
    services: &FetchServices,
    mut plan: FetchPlan,
    limits: &FetchLimits,
    reply: Reply,
) -> Result<Frame, Fault> {
    let fetched = wait(services, &mut plan, limits).await;
    answer_now(services, plan, fetched, reply)
}

fn answer_now(
    services: &FetchServices,
    plan: FetchPlan,
    fetched: Result<Attempt, ErrorCode>,
    reply: Reply,
) -> Result<Frame, Fault> {
    match fetched.and_then(|fetched| plan.shown(fetched.partitions)) {
        Ok(shown) => {
            count(&shown, &services.metrics);
            answer::of(&services.metadata, plan.session_id, shown, reply)
        }
        Err(code) => refused(services, code, reply),
    }
}

fn refused(services: &FetchServices, code: ErrorCode, reply: Reply) -> Result<Frame, Fault> {
    services.metrics.fetch_failed(code);
    answer::error(code, 0, reply)
}

/// Adds the errors and the bytes of records in a response to the metrics.
fn count(shown: &[Fetched], metrics: &Metrics) {
    for Fetched { outcome, .. } in shown {
        match outcome {
            PartitionOutcome::Failed { code, .. } => metrics.fetch_failed(*code),
            outcome if outcome.records_bytes() > 0 => metrics.fetched(outcome.records_bytes()),
            _ => {}
        }
    }
}

/// The limits of one fetch: its bytes, its time and its isolation level. `cross_rack` is the consumer if its rack is
/// not this broker's.
#[derive(Clone)]
struct FetchLimits {
    min_bytes: usize,
    max_bytes: usize,
    began: Instant,
    deadline: Instant,
    isolation: Isolation,
    /// Number of the client's connection.
    client: u64,
    cross_rack: Option<CrossRackClient>,
}

/// The outcome of reading all partitions once.
struct Attempt {
    partitions: Vec<Fetched>,
    /// True if the fetch should be answered now.
    is_enough: bool,
    /// True if a log is being opened, or if records are being read from the object store.
    is_opening: bool,
    /// True if some partitions were only counted by their sizes. Their records must still be read before the answer.
    is_counted: bool,
}

/// A choice for a read: to only count the sizes that are known, or to also read the records.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Counts partitions of known size without reading them. Reads all others, since only a read finds their sizes.
    Sizes,
    /// Reads all partitions.
    Records,
}

/// Waits until there is enough data or the time is up. Reads the partitions at the start, and again whenever one of
/// them has grown.
async fn wait(services: &FetchServices, plan: &mut FetchPlan, limits: &FetchLimits) -> Result<Attempt, ErrorCode> {
    let waiter = Arc::new(Notify::new());
    register(services, plan, &waiter)?;
    let mut stop = services.stopping.clone();
    let opening_deadline = limits.deadline.max(Instant::now() + OPENING_WAIT);
    loop {
        if plan.has_lost_one()? {
            // A partition was deleted, so its registration is gone. Its topic may exist again, so the fetch registers
            // with all partitions anew.
            register(services, plan, &waiter)?;
        }
        // The waiter was registered before this read, so an append after the read still wakes this task.
        let fetched = read_once(services, plan, limits, Depth::Sizes)?;
        let deadline = if fetched.is_opening { opening_deadline } else { limits.deadline };
        if fetched.is_enough || (deadline <= Instant::now() && !fetched.is_counted) {
            return Ok(fetched);
        }
        // Frees the outcomes before the wait, because there is one for each partition.
        drop(fetched);
        let grown = async {
            tokio::select! {
                () = waiter.notified() => true,
                _ = stop.wait_for(|stopping| *stopping) => false,
            }
        };
        if !timeout_at(deadline, grown).await.unwrap_or(false) {
            return read_once(services, plan, limits, Depth::Records);
        }
    }
}

/// Reads every partition once. With [`Depth::Sizes`], the known sizes are compared with the minimum before any records
/// are read ([`attempt`]).
fn read_once(
    services: &FetchServices,
    plan: &FetchPlan,
    limits: &FetchLimits,
    depth: Depth,
) -> Result<Attempt, ErrorCode> {
    let wanted = plan.wanted()?;
    Ok(match depth {
        Depth::Sizes => attempt(services, &wanted, limits, plan.reads_ahead),
        Depth::Records => read_each(services, &wanted, depth, limits, plan.reads_ahead),
    })
}

fn register(services: &FetchServices, plan: &mut FetchPlan, waiter: &Arc<Notify>) -> Result<(), ErrorCode> {
    let image = services.metadata.control.image();
    let found = |wanted: &PartitionFetch| partition(services, &image, wanted).ok();
    let registered =
        plan.wanted()?.iter().filter_map(found).map(|partition| partition.register(waiter)).collect::<Vec<_>>();
    plan.keep_registered(Arc::clone(waiter), registered)
}

/// Reads every partition once. If the client wants more than one byte and its deadline has not passed, first adds up
/// the known sizes. The records are read only if the sizes reach the client's minimum.
fn attempt(services: &FetchServices, wanted: &[PartitionFetch], limits: &FetchLimits, reads_ahead: bool) -> Attempt {
    if limits.min_bytes > 1 && Instant::now() < limits.deadline {
        let attempt = read_each(services, wanted, Depth::Sizes, limits, reads_ahead);
        if !(attempt.is_counted && attempt.is_enough) {
            return attempt;
        }
    }
    read_each(services, wanted, Depth::Records, limits, reads_ahead)
}

/// Reads every partition once, in the order of the request. At [`Depth::Sizes`], a partition whose size is known is
/// counted and not read.
///
/// If opening a partition's log or reading its records has failed since the fetch began, the partition gets an error,
/// after which the client retries. In a session that reads ahead, reading stops once the answer is full or has too
/// little space for the next batch. The session's next answers contain the remaining partitions.
fn read_each(
    services: &FetchServices,
    wanted: &[PartitionFetch],
    depth: Depth,
    limits: &FetchLimits,
    reads_ahead: bool,
) -> Attempt {
    let image = services.metadata.control.image();
    let mut partitions = Vec::with_capacity(wanted.len());
    let (mut bytes, mut is_urgent, mut is_opening, mut is_counted) = (0, wanted.is_empty(), false, false);
    let mut minimum = Minimum { left: limits.min_bytes, reads_ahead };
    let router = limits.cross_rack.as_ref().map(|cross_rack| cross_rack.router(&services.metadata, &image));
    for fetch in wanted {
        let index = fetch.index;
        let outcome_is = |outcome| Fetched { topic: Arc::clone(&fetch.topic), index, outcome };
        let topic = topic_of(&image, &fetch.topic);
        if let (Ok(topic), Some(router)) = (topic, &router)
            && let Some(preferred_read_replica) = router.broker_of(topic, index)
        {
            is_urgent = true;
            partitions.push(outcome_is(PartitionOutcome::Elsewhere(preferred_read_replica)));
            continue;
        }
        if reads_ahead && bytes > limits.max_bytes - limits.max_bytes / FULL_SHARE {
            minimum.left = 0;
            break;
        }
        let left = limits.max_bytes.saturating_sub(bytes);
        let found = topic.and_then(|topic| topics::partition(&services.partitions, topic, index));
        let room = ReadRoom { left, is_first: bytes == 0, is_whole: reads_ahead };
        if depth == Depth::Sizes
            && let Ok(partition) = &found
            && let Some(count) =
                partition.count(limits.isolation, fetch.fetch_offset, u64::from(room_for(fetch, &room)))
        {
            is_counted = true;
            bytes += minimum.count_size(count, room_for(fetch, &room));
            continue;
        }
        let found = found.map_err(|code| Unread::Failed(ReadError::Role(code)));
        let found = found.and_then(|partition| Ok((read(&partition, fetch, &room, limits)?, partition)));
        let outcome = match found {
            Ok(((Some(read), _), _)) if reads_ahead && bytes > 0 && read.is_cut && read.records.is_empty() => {
                // Stops here, because the next batch does not fit and those of other partitions would seldom fit
                // either. The next answer of the session begins with this partition.
                minimum.left = 0;
                break;
            }
            Ok(((Some(read), in_epoch), _)) => {
                minimum.count(read.records.len(), read.is_cut, room_for(fetch, &room));
                bytes += read.records.len();
                PartitionOutcome::Read(of_read(fetch, read, in_epoch, reads_ahead))
            }
            Ok(((None, _), partition)) => {
                is_opening = true;
                PartitionOutcome::Read(awaited(fetch, &partition, reads_ahead))
            }
            Err(why) => {
                is_urgent = true;
                unread(fetch, why, reads_ahead)
            }
        };
        partitions.push(outcome_is(outcome));
    }
    let has_enough = if bytes == 0 { limits.min_bytes == 0 && !is_opening } else { minimum.left == 0 };
    Attempt { partitions, is_enough: is_urgent || has_enough, is_opening, is_counted }
}

fn partition(services: &FetchServices, image: &Image, wanted: &PartitionFetch) -> Result<AnyPartition, ErrorCode> {
    topics::partition(&services.partitions, topic_of(image, &wanted.topic)?, wanted.index)
}

/// Finds the topic of a fetch and remembers its name. If the topic is deleted and another one gets its name, the id
/// becomes unknown. The remembered name then shows that the topic was replaced.
///
/// # Errors
/// Fails as [`topics::find`] does. Fails with INCONSISTENT_TOPIC_ID if a different topic now has the name.
fn topic_of<'i>(image: &'i Image, requested: &FetchedTopic) -> Result<&'i Arc<Topic>, ErrorCode> {
    let found = topics::find(image, &requested.name, requested.id);
    match found {
        Ok(topic) => requested.resolve(&topic.name),
        Err(_) if requested.resolved().is_some_and(|name| image.topic(name).is_some()) => {
            return Err(ErrorCode::INCONSISTENT_TOPIC_ID);
        }
        Err(_) => {}
    }
    found
}

/// The space that the answer still has when a partition is read.
struct ReadRoom {
    /// How many more bytes the answer may have.
    left: usize,
    /// True if the answer has no records yet. The first batch may then have any size.
    is_first: bool,
    /// True if only whole batches may be returned.
    is_whole: bool,
}

/// The number of bytes that an answer still lacks to reach the client's minimum.
struct Minimum {
    left: usize,
    reads_ahead: bool,
}

impl Minimum {
    /// Counts the `bytes` of a partition towards the minimum. `room` is the maximum that the partition may return.
    /// `is_cut` is true if the partition has more records than that.
    ///
    /// If the records are cut, waiting longer would not add any to this answer. So at least `room` bytes count, as in
    /// Kafka. In a session that reads ahead, the minimum then counts as reached, since the next answer contains the
    /// rest.
    fn count(&mut self, bytes: usize, is_cut: bool, room: u32) {
        let counted = match (is_cut, self.reads_ahead) {
            (true, true) => usize::MAX,
            (true, false) => bytes.max(room as usize),
            (false, _) => bytes,
        };
        self.left = self.left.saturating_sub(counted);
    }

    /// Counts a partition with `size` bytes of records, of which it may return `room`. Returns how many bytes it would
    /// return.
    fn count_size(&mut self, size: u64, room: u32) -> usize {
        let bytes = size.min(u64::from(room)) as usize;
        self.count(bytes, size > u64::from(room), room);
        bytes
    }
}

/// Returns how many bytes the partition may return: its own limit, or less if the answer has less space left.
fn room_for(fetch: &PartitionFetch, room: &ReadRoom) -> u32 {
    let requested = usize::try_from(fetch.partition_max_bytes).unwrap_or(0);
    u32::try_from(requested.min(room.left)).unwrap_or(u32::MAX)
}

/// The reason why a partition is not read.
enum Unread {
    /// The partition cannot be read.
    Failed(ReadError),
    /// The log no longer has the records that the consumer has read. Contains the newest epoch that both may have, and
    /// the log start.
    Diverging(EpochEnd, i64),
}

impl From<ReadError> for Unread {
    fn from(error: ReadError) -> Unread {
        Unread::Failed(error)
    }
}

/// The records of a partition, and the leader epoch of a classic partition whose log is open. The records are `None`
/// while the log is being opened, or while they are being read from the object store.
type ReadInEpoch = (Option<Read>, Option<i32>);

/// Reads one partition.
fn read(
    partition: &AnyPartition,
    fetch: &PartitionFetch,
    room: &ReadRoom,
    limits: &FetchLimits,
) -> Result<ReadInEpoch, Unread> {
    let read = read_log(partition, fetch, room, limits);
    if let Err(Unread::Diverging(..) | Unread::Failed(ReadError::OffsetOutOfRange)) = read {
        // The broker may have lost its leadership during the read. Its log may then be shorter than the leader's.
        partition.check_leads(fetch.current_leader_epoch).map_err(ReadError::Role)?;
    }
    read
}

fn read_log(
    partition: &AnyPartition,
    fetch: &PartitionFetch,
    room: &ReadRoom,
    limits: &FetchLimits,
) -> Result<ReadInEpoch, Unread> {
    let FetchLimits { isolation, began, client, .. } = *limits;
    let (offset, began, mut in_epoch) = (fetch.fetch_offset, began.into_std(), None);
    if partition.is_settled() {
        in_epoch = partition.check_leads(fetch.current_leader_epoch).map_err(ReadError::Role)?;
        // As in Kafka, the epochs are compared before the offsets, because a truncated log may be too short for the
        // consumer's offset.
        if let Some(last_epoch) = fetch.last_fetched_epoch()
            && let Some(end) = partition.divergence(offset, last_epoch)?
        {
            return Err(Unread::Diverging(end, partition.offsets()?.log_start));
        }
    }
    let max_bytes = room_for(fetch, room);
    if !room.is_whole {
        return Ok((partition.try_read(isolation, offset, max_bytes, room.is_first, began, client)?, in_epoch));
    }
    let read_whole = |max_bytes| partition.try_read_whole(isolation, offset, max_bytes, room.is_first, began, client);
    let read = match read_whole(max_bytes) {
        // The next batch is larger than the partition's own limit, but may fit into the rest of the answer.
        Ok(Some(read)) if read.is_cut && read.records.is_empty() && (max_bytes as usize) < room.left => {
            read_whole(u32::try_from(room.left).unwrap_or(u32::MAX))
        }
        read => read,
    };
    Ok((read?, in_epoch))
}

fn of_read(fetch: &PartitionFetch, read: Read, in_epoch: Option<i32>, reads_ahead: bool) -> Box<PartitionData> {
    Box::new(PartitionData {
        in_epoch: in_epoch.filter(|_| reads_ahead).unwrap_or(-1),
        partition_index: fetch.index,
        high_watermark: read.high_watermark,
        last_stable_offset: read.last_stable_offset,
        log_start_offset: read.log_start_offset,
        aborted_transactions: read.aborted.map(|aborted| aborted.into_iter().map(aborted_transaction).collect()),
        from_offset: if reads_ahead { fetch.fetch_offset } else { UNKNOWN },
        next_offset: read.end_offset.filter(|_| reads_ahead).unwrap_or(UNKNOWN),
        records: Some(read.records),
        ..Default::default()
    })
}

fn aborted_transaction(aborted: AbortedTransaction) -> AbortedInAnswer {
    let AbortedTransaction { producer_id, first_offset, .. } = aborted;
    AbortedInAnswer { producer_id, first_offset, ..Default::default() }
}

/// Returns the outcome for a partition that is not read. If the records at the client's position are lost, a client
/// that reads ahead also gets the offset at which it can continue.
fn unread(fetch: &PartitionFetch, why: Unread, reads_ahead: bool) -> PartitionOutcome {
    let from_offset = if reads_ahead { fetch.fetch_offset } else { UNKNOWN };
    let error = match why {
        Unread::Diverging(EpochEnd { epoch, end_offset }, log_start_offset) => {
            let diverging_epoch = EpochEndOffset { epoch, end_offset, ..Default::default() };
            let nothing = answer::nothing(fetch.index);
            let data = PartitionData { diverging_epoch, from_offset, log_start_offset, ..nothing };
            return PartitionOutcome::Read(Box::new(data));
        }
        Unread::Failed(error) => error,
    };
    let next_offset = match error {
        ReadError::Lost { next, .. } if reads_ahead => next,
        _ => UNKNOWN,
    };
    PartitionOutcome::Failed { code: error.code(), from_offset, next_offset }
}

/// Returns the entry of a partition whose log is still being opened, or whose records are still being read from the
/// object store. The entry contains the offsets that this broker knows. If they are so old that the high watermark is
/// below the client's position, the entry contains none.
fn awaited(fetch: &PartitionFetch, partition: &AnyPartition, reads_ahead: bool) -> Box<PartitionData> {
    let known = partition.known_offsets().filter(|(offsets, _)| offsets.high_watermark >= fetch.fetch_offset);
    let from_offset = if reads_ahead { fetch.fetch_offset } else { UNKNOWN };
    let mut data = Box::new(PartitionData { from_offset, ..answer::nothing(fetch.index) });
    if let Some((LogOffsets { log_start, high_watermark, .. }, last_stable_offset)) = known {
        (data.high_watermark, data.last_stable_offset) = (high_watermark, last_stable_offset);
        data.log_start_offset = log_start;
    }
    data
}
