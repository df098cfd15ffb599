//! The table of metrics: every family that the metrics page shows, in the order of the page.
//!
//! Both the metrics page and `docs/metrics.md` are made from these rows. The document adds only headings.

use super::gauges::Page;
use crate::transactions::TransactionCounts;
use fullbore_db::calls::{CallsOfConnection, PlaneConnection};
use fullbore_host::metrics::Errors;
use fullbore_rules::group::GroupState;
use prometheus_client::encoding::{EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge, Histogram, Info};
use prometheus_client::registry::Unit;
use std::fmt;

/// A family of metrics, with a name and one sample for each combination of labels.
pub(super) struct Family {
    /// The name without its unit and without the suffix of its type (`_total`, `_info`).
    pub name: &'static str,
    pub unit: Option<&'static Unit>,
    pub kind: MetricType,
    pub labels: &'static [&'static str],
    /// A sentence that explains the metric.
    pub help: &'static str,
    /// Writes the samples.
    pub write: fn(&Page, MetricEncoder<'_>) -> fmt::Result,
}

static BYTES: Unit = Unit::Bytes;
static SECONDS: Unit = Unit::Seconds;

const API: &[&str] = &["api"];
const CODE: &[&str] = &["code"];
const STATE: &[&str] = &["state"];
const CONNECTION: &[&str] = &["connection"];
const PART: &[&str] = &["part"];
const TRANSACTIONAL_ID: &[&str] = &["transactional_id"];

#[rustfmt::skip]
pub(super) static FAMILIES: &[Family] = &[
    Family { name: "fullbore_broker", unit: None, kind: Info, labels: &["cluster_id", "node_id", "version"],
        help: "Cluster, broker and version in the labels; always 1.",
        write: |page, mut encoder| encoder.encode_info(&[
            ("cluster_id", page.gauges.cluster_id.as_str()),
            ("node_id", &page.gauges.node_id.to_string()),
            ("version", env!("CARGO_PKG_VERSION")),
        ]) },
    Family { name: "fullbore_uptime", unit: Some(&SECONDS), kind: Gauge, labels: &[],
        help: "Time since the broker started.",
        write: |page, encoder| gauge(encoder, page.counters().started.elapsed().as_secs_f64()) },

    Family { name: "fullbore_connections_open", unit: None, kind: Gauge, labels: &[],
        help: "Open connections of clients.",
        write: |page, encoder| gauge(encoder, page.metrics.connections_open()) },
    Family { name: "fullbore_connections_accepted", unit: None, kind: Counter, labels: &[],
        help: "Connections accepted.",
        write: |page, encoder| counter(encoder, page.counters().connections.accepted.get()) },
    Family { name: "fullbore_connections_refused", unit: None, kind: Counter, labels: &[],
        help: "Connections closed at once because max.connections or max.connections.per.ip was reached.",
        write: |page, encoder| counter(encoder, page.counters().connections.refused.get()) },

    Family { name: "fullbore_request_duration", unit: Some(&SECONDS), kind: Histogram, labels: API,
        help: "Time from the last byte of a request to the write of its response, including the wait for earlier responses and the time of a long poll. The histogram's count is the number of answered requests.",
        write: durations },
    Family { name: "fullbore_response", unit: Some(&BYTES), kind: Counter, labels: API,
        help: "Bytes of responses, with length prefixes.",
        write: response_bytes },

    Family { name: "fullbore_produce_batches", unit: None, kind: Counter, labels: &[],
        help: "Record batches appended for producers.",
        write: |page, encoder| counter(encoder, page.counters().produce.batches.get()) },
    Family { name: "fullbore_produce_records", unit: None, kind: Counter, labels: &[],
        help: "Records in the batches appended for producers.",
        write: |page, encoder| counter(encoder, page.counters().produce.records.get()) },
    Family { name: "fullbore_produce", unit: Some(&BYTES), kind: Counter, labels: &[],
        help: "Size on disk of the batches appended for producers, after compression by the producer or by compression.type.",
        write: |page, encoder| counter(encoder, page.counters().produce.bytes.get()) },
    Family { name: "fullbore_produce_unanswered", unit: None, kind: Counter, labels: &[],
        help: "Produce requests with acks=0, which are not in fullbore_request_duration_seconds.",
        write: |page, encoder| counter(encoder, page.counters().produce.unanswered.get()) },
    Family { name: "fullbore_produce_errors", unit: None, kind: Counter, labels: CODE,
        help: "Errors of single partitions in produce requests, by Kafka's error code; a code appears after its first occurrence.",
        write: |page, encoder| errors(encoder, &page.counters().produce.errors) },

    Family { name: "fullbore_reorder_parked_batches", unit: None, kind: Gauge, labels: &[],
        help: "Out-of-order batches that wait for earlier batches now.",
        write: |page, encoder| gauge(encoder, page.counters().produce.reorder.batches_now()) },
    Family { name: "fullbore_reorder_parked", unit: Some(&BYTES), kind: Gauge, labels: &[],
        help: "Memory of the out-of-order batches that wait now; at most fullbore.reorder.bytes.max.",
        write: |page, encoder| gauge(encoder, page.counters().produce.reorder.bytes_now()) },
    Family { name: "fullbore_reorder_batches", unit: None, kind: Counter, labels: &[],
        help: "Out-of-order batches that had to wait.",
        write: |page, encoder| counter(encoder, page.counters().produce.reorder.parked.get()) },
    Family { name: "fullbore_reorder_expired_batches", unit: None, kind: Counter, labels: &[],
        help: "Out-of-order batches refused after fullbore.reorder.wait.ms.",
        write: |page, encoder| counter(encoder, page.counters().produce.reorder.expired.get()) },

    Family { name: "fullbore_fetch", unit: Some(&BYTES), kind: Counter, labels: &[],
        help: "Size on disk of record batches in fetch responses.",
        write: |page, encoder| counter(encoder, page.counters().fetch.bytes.get()) },
    Family { name: "fullbore_fetch_errors", unit: None, kind: Counter, labels: CODE,
        help: "Errors of single partitions in fetch requests, and of fetch requests that failed as a whole, by Kafka's error code; a code appears after its first occurrence.",
        write: |page, encoder| errors(encoder, &page.counters().fetch.errors) },
    Family { name: "fullbore_fetch_sessions", unit: None, kind: Gauge, labels: &[],
        help: "Open fetch sessions (KIP-227); at most max.incremental.fetch.session.cache.slots.",
        write: |page, encoder| gauge(encoder, page.gauges.fetch_sessions) },

    Family { name: "fullbore_replication_in", unit: Some(&BYTES), kind: Counter, labels: &[],
        help: "Bytes of record batches fetched from leaders as a follower.",
        write: |page, encoder| counter(encoder, page.counters().replication.bytes_in.get()) },
    Family { name: "fullbore_replication_out", unit: Some(&BYTES), kind: Counter, labels: &[],
        help: "Bytes of record batches sent to followers as a leader.",
        write: |page, encoder| counter(encoder, page.counters().replication.bytes_out.get()) },
    Family { name: "fullbore_replication_max_lag_records", unit: None, kind: Gauge, labels: &[],
        help: "Largest number of records by which a followed partition is behind its leader, as of the leader's last response.",
        write: |page, encoder| gauge(encoder, page.gauges.replication.max_lag) },
    Family { name: "fullbore_isr_shrinks", unit: None, kind: Counter, labels: &[],
        help: "Times this broker, as leader, removed replicas from an ISR because they were behind for replica.lag.time.max.ms.",
        write: |page, encoder| counter(encoder, page.counters().replication.isr_shrinks.get()) },
    Family { name: "fullbore_isr_expands", unit: None, kind: Counter, labels: &[],
        help: "Times this broker, as leader, added a replica to an ISR because it had caught up.",
        write: |page, encoder| counter(encoder, page.counters().replication.isr_expands.get()) },
    Family { name: "fullbore_partitions_under_replicated", unit: None, kind: Gauge, labels: &[],
        help: "Partitions that this broker leads and that have replicas out of sync.",
        write: |page, encoder| gauge(encoder, page.gauges.replication.under_replicated) },
    Family { name: "fullbore_partitions_under_min_isr", unit: None, kind: Gauge, labels: &[],
        help: "Partitions that this broker leads and that have fewer in-sync replicas than min.insync.replicas: acks=all fails.",
        write: |page, encoder| gauge(encoder, page.gauges.replication.under_min_isr) },
    Family { name: "fullbore_partitions_offline", unit: None, kind: Gauge, labels: &[],
        help: "Partitions of the cluster without a leader.",
        write: |page, encoder| gauge(encoder, page.gauges.replication.offline) },

    Family { name: "fullbore_telemetry_pushes", unit: None, kind: Counter, labels: &[],
        help: "Pushes of clients' own metrics (KIP-714) that were accepted.",
        write: |page, encoder| counter(encoder, page.counters().telemetry.pushes.get()) },
    Family { name: "fullbore_telemetry", unit: Some(&BYTES), kind: Counter, labels: &[],
        help: "Bytes of the accepted pushes of clients' metrics, compressed if the client compressed them.",
        write: |page, encoder| counter(encoder, page.counters().telemetry.bytes.get()) },
    Family { name: "fullbore_telemetry_errors", unit: None, kind: Counter, labels: CODE,
        help: "Pushes of clients' own metrics that were refused, by Kafka's error code; a code appears after its first occurrence.",
        write: |page, encoder| errors(encoder, &page.counters().telemetry.errors) },
    Family { name: "fullbore_offset_commits", unit: None, kind: Counter, labels: &[],
        help: "Offsets committed by groups; each partition counts.",
        write: |page, encoder| counter(encoder, page.counters().offsets.committed.get()) },
    Family { name: "fullbore_offset_commit_errors", unit: None, kind: Counter, labels: CODE,
        help: "Errors of single partitions in offset commits, by Kafka's error code; a code appears after its first occurrence.",
        write: |page, encoder| errors(encoder, &page.counters().offsets.errors) },
    Family { name: "fullbore_committed_offsets", unit: None, kind: Gauge, labels: &[],
        help: "Committed offsets of all groups; at most fullbore.offsets.max.",
        write: |page, encoder| gauge(encoder, page.gauges.offsets_held) },
    Family { name: "fullbore_committed_offset_metadata", unit: Some(&BYTES), kind: Gauge, labels: &[],
        help: "Bytes of the metadata strings that clients have committed with their offsets; at most fullbore.offsets.metadata.bytes.max.",
        write: |page, encoder| gauge(encoder, page.gauges.offset_metadata_bytes) },

    Family { name: "fullbore_groups", unit: None, kind: Gauge, labels: STATE,
        help: "Groups by state; groups that only have offsets are Empty; at most fullbore.groups.max.",
        write: groups },
    Family { name: "fullbore_transactional_ids", unit: None, kind: Gauge, labels: STATE,
        help: "Transactional ids that this broker coordinates, by the state of their transaction; at most fullbore.transactional.ids.max.",
        write: transactional_ids },
    Family { name: "fullbore_transaction_oldest_open", unit: Some(&SECONDS), kind: Gauge, labels: TRANSACTIONAL_ID,
        help: "Age of the oldest transaction coordinated by this broker that is open or lacks markers; 0 if there is none. The label transactional_id is empty until the transaction is 10 s old, so that ordinary transactions create no series.",
        write: oldest_open },
    Family { name: "fullbore_transaction_commit_duration", unit: Some(&SECONDS), kind: Histogram, labels: PART,
        help: "Time of the two parts of a commit. decision: until the decision is stored, and with fullbore.transaction.flush also flushed. markers: from then until every partition has its marker.",
        write: commit_durations },
    Family { name: "fullbore_last_stable_offset_lag_max", unit: None, kind: Gauge, labels: &[],
        help: "Largest number of records between last stable offset and high watermark, among the partitions that this broker leads and all diskless partitions. Consumers at read_committed wait for these records.",
        write: |page, encoder| gauge(encoder, page.gauges.stable_lag_max) },
    Family { name: "fullbore_group_rebalances", unit: None, kind: Counter, labels: &[],
        help: "Times a group of the classic protocol became stable with a new assignment.",
        write: |page, encoder| counter(encoder, page.counters().groups.stable.get()) },
    Family { name: "fullbore_group_expired_members", unit: None, kind: Counter, labels: &[],
        help: "Group members removed because their heartbeat, or their next step of a rebalance, was late.",
        write: |page, encoder| counter(encoder, page.counters().groups.expired_members.get()) },

    Family { name: "fullbore_topics", unit: None, kind: Gauge, labels: &[],
        help: "Topics of the cluster.",
        write: |page, encoder| gauge(encoder, page.gauges.topics) },
    Family { name: "fullbore_partitions", unit: None, kind: Gauge, labels: &[],
        help: "Partitions of the cluster's topics.",
        write: |page, encoder| gauge(encoder, page.gauges.partitions) },
    Family { name: "fullbore_partitions_failed", unit: None, kind: Gauge, labels: &[],
        help: "Partitions that accept no records until the next start, because a write or an fsync has failed.",
        write: |page, encoder| gauge(encoder, page.gauges.partitions_failed) },
    Family { name: "fullbore_partitions_unwritable", unit: None, kind: Gauge, labels: &[],
        help: "Partitions whose appends or reads have failed for seconds, with intact logs: their directories accept no files, or their files cannot be opened or read. Other in-sync replicas lead them, if there are any.",
        write: |page, encoder| gauge(encoder, page.gauges.partitions_unwritable) },
    Family { name: "fullbore_partitions_refused", unit: None, kind: Gauge, labels: &[],
        help: "Partitions known to have damaged files: neither read nor written until they are repaired; the broker's log names file and byte.",
        write: |page, encoder| gauge(encoder, page.gauges.partitions_refused) },
    Family { name: "fullbore_set_aside_files", unit: None, kind: Gauge, labels: &[],
        help: "Files with records that a power loss has separated from their log by a gap, stored beside the log as OFFSET.log.aside-N; `topics describe` lists them. These files may be removed.",
        write: |page, encoder| gauge(encoder, page.gauges.set_aside.files) },
    Family { name: "fullbore_set_aside", unit: Some(&BYTES), kind: Gauge, labels: &[],
        help: "Bytes of the files OFFSET.log.aside-N.",
        write: |page, encoder| gauge(encoder, page.gauges.set_aside.bytes) },
    Family { name: "fullbore_disk_full", unit: None, kind: Gauge, labels: &[],
        help: "1 while the disk of the data directory is full: from a write that failed for lack of space or used the reserve, until enough space is free again.",
        write: |page, encoder| gauge(encoder, usize::from(page.gauges.disk_full)) },
    Family { name: "fullbore_disk_hung", unit: None, kind: Gauge, labels: &[],
        help: "1 while the disk of the data directory hangs: a write has not returned for 4 s.",
        write: |page, encoder| gauge(encoder, usize::from(page.gauges.disk_hung)) },
    Family { name: "fullbore_disk_reserve", unit: Some(&BYTES), kind: Gauge, labels: &[],
        help: "Space reserved for operations that free space on a full disk; less than fullbore.disk.reserve.bytes while a part is in use.",
        write: |page, encoder| gauge(encoder, page.gauges.disk_reserve_bytes) },
    Family { name: "fullbore_cleaner_runs", unit: None, kind: Counter, labels: &[],
        help: "Completed compactions of a log.",
        write: |page, encoder| counter(encoder, page.gauges.cleaner.runs) },
    Family { name: "fullbore_cleaner_failures", unit: None, kind: Counter, labels: &[],
        help: "Compactions that failed because of a damaged batch or an error of the system.",
        write: |page, encoder| counter(encoder, page.gauges.cleaner.failures) },
    Family { name: "fullbore_cleaner_read", unit: Some(&BYTES), kind: Counter, labels: &[],
        help: "Bytes read to compact logs: once for the keys of new records, and once to rewrite.",
        write: |page, encoder| counter(encoder, page.gauges.cleaner.bytes_read) },
    Family { name: "fullbore_cleaner_written", unit: Some(&BYTES), kind: Counter, labels: &[],
        help: "Bytes written by compaction.",
        write: |page, encoder| counter(encoder, page.gauges.cleaner.bytes_written) },
    Family { name: "fullbore_cleaner_removed_records", unit: None, kind: Counter, labels: &[],
        help: "Records that compaction has removed from logs.",
        write: |page, encoder| counter(encoder, page.gauges.cleaner.records_removed) },
    Family { name: "fullbore_cleaner_max_dirty_ratio", unit: None, kind: Gauge, labels: &[],
        help: "Dirty ratio of the dirtiest compacted log at the cleaner's last check; from 0 to 1.",
        write: |page, encoder| gauge(encoder, page.gauges.cleaner.max_dirty_ratio) },
    Family { name: "fullbore_cleaner_uncleanable_partitions", unit: None, kind: Gauge, labels: &[],
        help: "Partitions whose compaction has failed and is suspended: for a minute, or until the next start if a batch is damaged.",
        write: |page, encoder| gauge(encoder, page.gauges.cleaner.uncleanable_partitions) },
    Family { name: "fullbore_diskless_puts", unit: None, kind: Counter, labels: &[],
        help: "Objects of diskless topics put into the object store.",
        write: |page, encoder| counter(encoder, page.gauges.store.puts) },
    Family { name: "fullbore_diskless_put", unit: Some(&BYTES), kind: Counter, labels: &[],
        help: "Bytes of the objects put into the object store.",
        write: |page, encoder| counter(encoder, page.gauges.store.put_bytes) },
    Family { name: "fullbore_diskless_put_failures", unit: None, kind: Counter, labels: &[],
        help: "Failed attempts to put an object; each object has up to diskless.produce.max.upload.attempts attempts.",
        write: |page, encoder| counter(encoder, page.gauges.store.put_failures) },
    Family { name: "fullbore_diskless_hedged_puts", unit: None, kind: Counter, labels: &[],
        help: "Additional PUTs, each sent because the earlier PUT of the same object was slow.",
        write: |page, encoder| counter(encoder, page.gauges.store.hedged_puts) },
    Family { name: "fullbore_diskless_gets", unit: None, kind: Counter, labels: &[],
        help: "Successful reads of the object store, for records that are not in this broker's cache.",
        write: |page, encoder| counter(encoder, page.gauges.store.gets) },
    Family { name: "fullbore_diskless_get", unit: Some(&BYTES), kind: Counter, labels: &[],
        help: "Bytes read from the object store.",
        write: |page, encoder| counter(encoder, page.gauges.store.get_bytes) },
    Family { name: "fullbore_diskless_get_failures", unit: None, kind: Counter, labels: &[],
        help: "Failed attempts to read from the object store.",
        write: |page, encoder| counter(encoder, page.gauges.store.get_failures) },
    Family { name: "fullbore_diskless_uncommitted", unit: Some(&BYTES), kind: Gauge, labels: &[],
        help: "Bytes of uncommitted batches of diskless topics; at diskless.produce.memory.bytes the broker stops reading from producers.",
        write: |page, encoder| gauge(encoder, page.gauges.store.uncommitted_bytes) },
    Family { name: "fullbore_metadata_epoch", unit: None, kind: Gauge, labels: &[],
        help: "Version of the metadata, which grows with every change and every start.",
        write: |page, encoder| gauge(encoder, page.gauges.metadata_epoch) },

    Family { name: "fullbore_control_plane_up", unit: None, kind: Gauge, labels: &[],
        help: "1 while the database of the cluster answers this broker's heartbeats and is not a restored older copy, else 0. A standalone broker has none of the metrics fullbore_control_plane_*.",
        write: |page, encoder| known(encoder, page.gauges.plane.map(|plane| u64::from(plane.answers))) },
    Family { name: "fullbore_control_plane_answer_age", unit: Some(&SECONDS), kind: Gauge, labels: &[],
        help: "Time since the database last answered a heartbeat.",
        write: |page, encoder| known(encoder, page.gauges.plane.map(|plane| plane.since_answer.as_secs_f64())) },
    Family { name: "fullbore_control_plane_newest_version", unit: None, kind: Gauge, labels: &[],
        help: "Newest version of the metadata, from the database's last answer to a heartbeat; this broker has applied it once fullbore_metadata_epoch is the same.",
        write: |page, encoder| known(encoder, page.gauges.plane.map(|plane| plane.newest)) },
    Family { name: "fullbore_control_plane_call_duration", unit: Some(&SECONDS), kind: Histogram, labels: CONNECTION,
        help: "Time of a call to the database, with waits for the lock on the metadata; the label connection is metadata, or beats for heartbeats.",
        write: plane_durations },
    Family { name: "fullbore_control_plane_call_failures", unit: None, kind: Counter, labels: CONNECTION,
        help: "Calls to the database that were refused or not answered within control.plane.timeout.ms, and attempts to connect that failed.",
        write: plane_failures },
    Family { name: "fullbore_control_plane_broker_epoch", unit: None, kind: Gauge, labels: &[],
        help: "Broker epoch with which this process is registered in the cluster; grows with each start.",
        write: |page, encoder| known(encoder, page.gauges.plane.map(|_| page.gauges.membership.broker_epoch)) },
    Family { name: "fullbore_control_plane_fenced", unit: None, kind: Gauge, labels: &[],
        help: "1 while this broker is fenced according to its metadata or to those of another broker, and therefore leads nothing.",
        write: |page, encoder| known(encoder, page.gauges.plane.map(|_| u64::from(page.gauges.membership.is_fenced))) },
    Family { name: "fullbore_control_plane_disk_full", unit: None, kind: Gauge, labels: &[],
        help: "1 while the metadata records that this broker's disk is full: other in-sync replicas lead, and no leader waits for this broker.",
        write: |page, encoder| known(encoder, page.gauges.plane.map(|_| u64::from(page.gauges.membership.is_full))) },
    Family { name: "fullbore_control_plane_brokers", unit: None, kind: Gauge, labels: &[],
        help: "Brokers that are registered in the cluster.",
        write: |page, encoder| known(encoder, page.gauges.plane.map(|_| page.gauges.membership.registered as u64)) },
    Family { name: "fullbore_control_plane_brokers_fenced", unit: None, kind: Gauge, labels: &[],
        help: "Registered brokers that are fenced: failed or stopped.",
        write: |page, encoder| known(encoder, page.gauges.plane.map(|_| page.gauges.membership.fenced as u64)) },

    Family { name: "fullbore_process_cpu", unit: Some(&SECONDS), kind: Counter, labels: &[],
        help: "Processor time of all threads.",
        write: |page, encoder| counter(encoder, page.gauges.process.cpu_s) },
    Family { name: "fullbore_process_resident_memory", unit: Some(&BYTES), kind: Gauge, labels: &[],
        help: "Resident memory of the process, without the page cache of the logs. Linux only.",
        write: |page, encoder| known(encoder, page.gauges.process.resident_bytes) },
    Family { name: "fullbore_process_open_fds", unit: None, kind: Gauge, labels: &[],
        help: "File descriptors in use: connections and the files of the logs. Linux only.",
        write: |page, encoder| known(encoder, page.gauges.process.open_fds) },
    Family { name: "fullbore_process_max_fds", unit: None, kind: Gauge, labels: &[],
        help: "Limit of file descriptors (RLIMIT_NOFILE); absent if unlimited.",
        write: |page, encoder| known(encoder, page.gauges.process.max_fds) },
];

impl Family {
    /// Returns the full name of the family's samples. Those of a histogram have further suffixes.
    pub fn full_name(&self) -> String {
        let unit = self.unit.map_or(String::new(), |unit| format!("_{}", unit.as_str()));
        let suffix = match self.kind {
            Counter => "_total",
            Info => "_info",
            _ => "",
        };
        format!("{}{unit}{suffix}", self.name)
    }
}

fn gauge(mut encoder: MetricEncoder<'_>, value: impl EncodeGaugeValue) -> fmt::Result {
    encoder.encode_gauge(&value)
}

/// Writes a sample if the value is known.
fn known(encoder: MetricEncoder<'_>, value: Option<impl EncodeGaugeValue>) -> fmt::Result {
    value.map_or(Ok(()), |value| gauge(encoder, value))
}

fn counter(mut encoder: MetricEncoder<'_>, value: impl EncodeCounterValue) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, f64>(&value, None)
}

fn durations(page: &Page, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    page.gauges.served.iter().try_for_each(|api| {
        let seen = page.counters().api(*api).duration.seen();
        let labels = [("api", api.name())];
        encoder.encode_family(&labels)?.encode_histogram::<NoLabelSet>(seen.sum_s, seen.count, &seen.buckets, None)
    })
}

fn response_bytes(page: &Page, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    page.gauges.served.iter().try_for_each(|api| {
        let labels = [("api", api.name())];
        counter(encoder.encode_family(&labels)?, page.counters().api(*api).response_bytes.get())
    })
}

fn groups(page: &Page, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    GroupState::ALL.iter().zip(page.gauges.groups).try_for_each(|(state, count)| {
        let labels = [("state", state.name())];
        gauge(encoder.encode_family(&labels)?, count)
    })
}

fn transactional_ids(page: &Page, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    TransactionCounts::STATES.iter().zip(page.gauges.transactions.by_state).try_for_each(|(state, count)| {
        let labels = [("state", state.name())];
        gauge(encoder.encode_family(&labels)?, count)
    })
}

/// The page shows the id of the oldest transaction if it has been open for at least this many seconds.
const NAMED_FROM_S: f64 = 10.0;

fn oldest_open(page: &Page, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    let oldest = page.gauges.transactions.oldest_open.as_ref();
    let age_s = oldest.map_or(0.0, |oldest| oldest.age_ms as f64 / 1000.0);
    let named = oldest.filter(|_| age_s >= NAMED_FROM_S).map_or("", |oldest| &*oldest.transactional_id);
    gauge(encoder.encode_family(&[("transactional_id", named)])?, age_s)
}

fn commit_durations(page: &Page, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    let commits = &page.counters().commits;
    [("decision", &commits.decision), ("markers", &commits.markers)].into_iter().try_for_each(|(part, durations)| {
        let seen = durations.seen();
        let labels = [("part", part)];
        encoder.encode_family(&labels)?.encode_histogram::<NoLabelSet>(seen.sum_s, seen.count, &seen.buckets, None)
    })
}

fn plane_durations(page: &Page, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    of_connections(page).try_for_each(|(connection, calls)| {
        let seen = calls.answered.seen();
        let labels = [("connection", connection.name())];
        encoder.encode_family(&labels)?.encode_histogram::<NoLabelSet>(seen.sum_s, seen.count, &seen.buckets, None)
    })
}

fn plane_failures(page: &Page, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    of_connections(page).try_for_each(|(connection, calls)| {
        let labels = [("connection", connection.name())];
        counter(encoder.encode_family(&labels)?, calls.failed.get())
    })
}

/// Returns the connections to the database with the counts of their calls. A standalone broker has no such connections.
fn of_connections(page: &Page) -> impl Iterator<Item = (PlaneConnection, &CallsOfConnection)> {
    let calls = page.gauges.plane_calls.as_ref().filter(|_| page.gauges.plane.is_some());
    calls.into_iter().flat_map(|calls| PlaneConnection::ALL.map(|connection| (connection, calls.of(connection))))
}

fn errors(mut encoder: MetricEncoder<'_>, errors: &Errors) -> fmt::Result {
    errors.occurred().try_for_each(|(code, count)| {
        let labels = [("code", code)];
        counter(encoder.encode_family(&labels)?, count)
    })
}
