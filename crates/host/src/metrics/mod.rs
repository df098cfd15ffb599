//! The broker's counters, which the metrics page shows. For each request, the broker makes only a few relaxed additions
//! to these counters.
//!
//! The names and format of the metrics are in `exposition`, and the HTTP page is in `admin`. Invariant: recording takes
//! no lock, allocates nothing and never waits.

mod counter;
mod errors;
mod histogram;
mod process;

pub use process::Process;

pub use counter::Counter;
pub use errors::Errors;
use fullbore_wire::ErrorCode;
use fullbore_wire::api::ApiKey;
pub use histogram::Histogram;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The largest API key plus one.
const API_CODES: usize = ApiKey::ALL[ApiKey::ALL.len() - 1] as usize + 1;

/// The index of each API's counters, by API key. The keys have gaps, but the counters do not.
const SLOTS: [u8; API_CODES] = {
    let mut slots = [0; API_CODES];
    let mut at = 0;
    while at < ApiKey::ALL.len() {
        slots[ApiKey::ALL[at] as usize] = at as u8;
        at += 1;
    }
    slots
};

/// A handle on the counters, which is cheap to clone. All counters start at zero when the broker starts, and never
/// decrease.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub counters: Arc<Counters>,
}

#[derive(Debug)]
pub struct Counters {
    pub started: Instant,
    pub connections: Connections,
    pub apis: [PerApi; ApiKey::ALL.len()],
    pub produce: ProduceCounters,
    pub fetch: Fetch,
    pub replication: ReplicationCounters,
    pub telemetry: Telemetry,
    pub groups: GroupCounters,
    pub offsets: OffsetCommits,
    pub commits: TransactionCommits,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Connections {
    pub accepted: Counter,
    pub closed: Counter,
    pub refused: Counter,
}

/// The counters of one API. Each API has its own cache lines, so that producers do not slow down consumers.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PerApi {
    pub duration: Histogram,
    pub response_bytes: Counter,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ProduceCounters {
    pub batches: Counter,
    pub records: Counter,
    pub bytes: Counter,
    pub unanswered: Counter,
    pub errors: Errors,
    pub reorder: Reorder,
}

/// Counts the out-of-order batches that were parked since the start, and those of them that have left the reorder
/// buffer.
#[derive(Debug, Default)]
pub struct Reorder {
    pub parked: Counter,
    pub parked_bytes: Counter,
    pub left: Counter,
    pub left_bytes: Counter,
    pub expired: Counter,
}

impl Reorder {
    /// Returns the number of batches that are parked now.
    pub fn batches_now(&self) -> u64 {
        // Read `left` first. Otherwise a batch that is parked and leaves between the two reads would make the
        // difference negative.
        let left = self.left.get();
        self.parked.get().saturating_sub(left)
    }

    pub fn bytes_now(&self) -> u64 {
        let left = self.left_bytes.get();
        self.parked_bytes.get().saturating_sub(left)
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Fetch {
    pub bytes: Counter,
    pub errors: Errors,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ReplicationCounters {
    pub bytes_in: Counter,
    pub bytes_out: Counter,
    pub isr_shrinks: Counter,
    pub isr_expands: Counter,
}

/// Counts how often clients push their own metrics.
#[derive(Debug, Default)]
pub struct Telemetry {
    pub pushes: Counter,
    pub bytes: Counter,
    pub errors: Errors,
}

#[derive(Debug, Default)]
pub struct GroupCounters {
    pub stable: Counter,
    pub expired_members: Counter,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub struct OffsetCommits {
    pub committed: Counter,
    pub errors: Errors,
}

/// How long the parts of a transaction's commit take.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct TransactionCommits {
    /// The time from the start of the commit until its decision is recorded.
    pub decision: Histogram,
    /// The time from the recorded decision until every partition has its marker.
    pub markers: Histogram,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            started: Instant::now(),
            connections: Connections::default(),
            apis: std::array::from_fn(|_| PerApi::default()),
            produce: ProduceCounters::default(),
            fetch: Fetch::default(),
            replication: ReplicationCounters::default(),
            telemetry: Telemetry::default(),
            groups: GroupCounters::default(),
            offsets: OffsetCommits::default(),
            commits: TransactionCommits::default(),
        }
    }
}

impl Counters {
    pub fn api(&self, api: ApiKey) -> &PerApi {
        &self.apis[usize::from(SLOTS[api as usize])]
    }
}

impl Metrics {
    /// Counts a connection that was accepted.
    pub fn connection_opened(&self) {
        self.counters.connections.accepted.add(1);
    }

    /// Counts an accepted connection that has ended.
    pub fn connection_closed(&self) {
        self.counters.connections.closed.add(1);
    }

    /// Counts a connection that was refused because of a limit.
    pub fn connection_refused(&self) {
        self.counters.connections.refused.add(1);
    }

    /// Counts a response. `elapsed` is the time from the arrival of its request until the response was sent.
    /// `response_bytes` includes the length prefix.
    pub fn answered(&self, api: ApiKey, elapsed: Duration, response_bytes: usize) {
        let counters = self.counters.api(api);
        counters.duration.observe(elapsed);
        counters.response_bytes.add(response_bytes as u64);
    }

    /// Counts a produce request with acks=0, which gets no response.
    pub fn unanswered(&self) {
        self.counters.produce.unanswered.add(1);
    }

    /// Counts a batch that is in the log now. `batch_bytes` is its size, and `records` the number of its records.
    pub fn appended(&self, batch_bytes: usize, records: i32) {
        let produce = &self.counters.produce;
        produce.batches.add(1);
        produce.bytes.add(batch_bytes as u64);
        produce.records.add(u64::try_from(records).unwrap_or(0));
    }

    /// Counts a partition's batch that was refused, or that was lost after it was appended.
    pub fn produce_failed(&self, code: ErrorCode) {
        self.counters.produce.errors.add(code);
    }

    /// Counts a batch that arrived out of order and has to wait. `bytes` is the memory that it takes.
    pub fn parked(&self, bytes: usize) {
        let reorder = &self.counters.produce.reorder;
        reorder.parked.add(1);
        reorder.parked_bytes.add(bytes as u64);
    }

    /// Counts a batch that no longer waits in the reorder buffer.
    pub fn unparked(&self, bytes: usize) {
        let reorder = &self.counters.produce.reorder;
        reorder.left.add(1);
        reorder.left_bytes.add(bytes as u64);
    }

    /// Counts batches that waited too long for those before them.
    pub fn reorder_expired(&self, batches: usize) {
        self.counters.produce.reorder.expired.add(batches as u64);
    }

    /// Counts the offset of one partition in an OffsetCommit: as committed, or under its error `code`.
    pub fn offset_committed(&self, code: ErrorCode) {
        let offsets = &self.counters.offsets;
        if code.is_err() { offsets.errors.add(code) } else { offsets.committed.add(1) }
    }

    /// Records how long it took from the start of a commit until its decision was recorded.
    pub fn commit_decided(&self, elapsed: Duration) {
        self.counters.commits.decision.observe(elapsed);
    }

    /// Records how long it took from the decision of a commit until its last marker was written.
    pub fn commit_marked(&self, elapsed: Duration) {
        self.counters.commits.markers.observe(elapsed);
    }

    /// Counts the bytes of records in a fetch response.
    pub fn fetched(&self, records_bytes: usize) {
        self.counters.fetch.bytes.add(records_bytes as u64);
    }

    /// Counts the error of a partition in a fetch response, or of the whole fetch session.
    pub fn fetch_failed(&self, code: ErrorCode) {
        self.counters.fetch.errors.add(code);
    }

    /// Counts the bytes of records that were sent to a follower.
    pub fn replicated_out(&self, records_bytes: usize) {
        self.counters.replication.bytes_out.add(records_bytes as u64);
    }

    /// Counts the bytes of records that were received from a leader.
    pub fn replicated_in(&self, records_bytes: usize) {
        self.counters.replication.bytes_in.add(records_bytes as u64);
    }

    /// Counts a change in the ISR of a partition that this broker leads. `before` and `now` are the numbers of
    /// replicas.
    pub fn isr_changed(&self, before: usize, now: usize) {
        let replication = &self.counters.replication;
        if now < before { replication.isr_shrinks.add(1) } else { replication.isr_expands.add(1) }
    }

    /// Counts a client's push of its own metrics. `bytes` is the size of the metrics.
    pub fn telemetry_pushed(&self, bytes: usize) {
        self.counters.telemetry.pushes.add(1);
        self.counters.telemetry.bytes.add(bytes as u64);
    }

    /// Counts a client's push that was refused.
    pub fn telemetry_refused(&self, code: ErrorCode) {
        self.counters.telemetry.errors.add(code);
    }

    /// Counts a new assignment of a group.
    pub fn group_stable(&self) {
        self.counters.groups.stable.add(1);
    }

    /// Counts a group member that was removed because its session had expired.
    pub fn group_member_expired(&self) {
        self.counters.groups.expired_members.add(1);
    }

    /// Returns the number of open connections.
    pub fn connections_open(&self) -> u64 {
        // Read `closed` first. Otherwise a connection that opens and closes between the two reads would make the
        // difference negative.
        let closed = self.counters.connections.closed.get();
        self.counters.connections.accepted.get().saturating_sub(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_api_has_counters_of_its_own() {
        let metrics = Metrics::default();
        for (at, api) in ApiKey::ALL.iter().enumerate() {
            metrics.answered(*api, Duration::ZERO, at + 1);
        }
        for (at, api) in ApiKey::ALL.iter().enumerate() {
            assert_eq!(metrics.counters.api(*api).response_bytes.get(), at as u64 + 1, "{}", api.name());
        }
    }

    #[test]
    fn open_connections_are_those_accepted_minus_those_closed() {
        let metrics = Metrics::default();
        metrics.connection_opened();
        metrics.connection_opened();
        metrics.connection_closed();
        metrics.connection_refused();
        assert_eq!(metrics.connections_open(), 1);
        assert_eq!(metrics.counters.connections.refused.get(), 1);
    }

    #[test]
    fn parked_batches_are_those_that_came_minus_those_that_left() {
        let metrics = Metrics::default();
        metrics.parked(100);
        metrics.parked(200);
        metrics.unparked(100);
        metrics.reorder_expired(1);
        let reorder = &metrics.counters.produce.reorder;
        assert_eq!((reorder.batches_now(), reorder.bytes_now()), (1, 200));
        assert_eq!((reorder.parked.get(), reorder.expired.get()), (2, 1));
    }

    #[test]
    fn concurrent_additions_are_all_counted() {
        let metrics = Metrics::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| metrics.appended(10, 3)));
            }
        });
        let produce = &metrics.counters.produce;
        assert_eq!((produce.batches.get(), produce.bytes.get(), produce.records.get()), (40_000, 400_000, 120_000));
    }
}
