//! The metrics of the broker as text for Prometheus, in the format OpenMetrics 1.0. Parsers of the older format 0.0.4
//! can read it as well.
//!
//! Every family is a row of `families`, from which both the page and `docs/metrics.md` are made. The values in `gauges`
//! are read for each page. For each page the counters are read once, and nothing is cached between pages.

mod docs;
mod families;
mod gauges;

pub use docs::markdown;
pub use gauges::{Gauges, SlowGauges};

use families::FAMILIES;
use fullbore_host::metrics::Metrics;
use gauges::Page;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;
use std::fmt;

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        FAMILIES.iter().try_for_each(|family| {
            let encoder = encoder.encode_descriptor(family.name, family.help, family.unit, family.kind)?;
            (family.write)(self, encoder)
        })
    }
}

/// Returns the page. Its media type is `application/openmetrics-text; version=1.0.0; charset=utf-8`.
pub fn page(metrics: &Metrics, gauges: Gauges) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { metrics: metrics.clone(), gauges }));
    let mut text = String::new();
    text::encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partitions::{CleanerStatus, SetAside};
    use fullbore_db::calls::{CountedCalls, PlaneCalls, PlaneConnection, PlaneSeen};
    use fullbore_diskless::StoreUse;
    use fullbore_host::metrics::Process;
    use fullbore_wire::ErrorCode;
    use fullbore_wire::api::ApiKey;
    use gauges::{MembershipGauges, ReplicationGauges};
    use std::collections::{HashMap, HashSet};
    use std::sync::Arc;
    use std::time::Duration;

    fn used() -> Metrics {
        let metrics = Metrics::default();
        metrics.connection_opened();
        metrics.connection_opened();
        metrics.connection_closed();
        metrics.connection_refused();
        metrics.answered(ApiKey::Produce, Duration::from_millis(3), 100);
        metrics.answered(ApiKey::Produce, Duration::from_micros(40), 50);
        metrics.unanswered();
        metrics.appended(1000, 10);
        metrics.produce_failed(ErrorCode::MESSAGE_TOO_LARGE);
        metrics.fetched(700);
        metrics.fetch_failed(ErrorCode::OFFSET_OUT_OF_RANGE);
        metrics.replicated_in(11);
        metrics.replicated_out(12);
        metrics.isr_changed(3, 2);
        metrics.isr_changed(2, 3);
        metrics.group_stable();
        metrics.group_member_expired();
        metrics.offset_committed(ErrorCode::NONE);
        metrics.offset_committed(ErrorCode::ILLEGAL_GENERATION);
        metrics.commit_decided(Duration::from_millis(3));
        metrics.commit_marked(Duration::from_millis(3));
        metrics
    }

    fn plane_calls() -> Arc<PlaneCalls> {
        let calls = Arc::new(PlaneCalls::default());
        CountedCalls::new(Arc::clone(&calls), PlaneConnection::Metadata).answered(Duration::from_millis(7));
        CountedCalls::new(Arc::clone(&calls), PlaneConnection::Heartbeats).failed();
        calls
    }

    fn shown() -> String {
        let process = Process { resident_bytes: Some(4096), open_fds: Some(12), max_fds: None, cpu_s: 1.5 };
        let gauges = Gauges {
            served: ApiKey::ALL,
            cluster_id: "c\"1".to_owned(),
            node_id: 7,
            topics: 3,
            partitions: 60,
            partitions_failed: 4,
            partitions_unwritable: 6,
            partitions_refused: 5,
            set_aside: SetAside { files: 2, bytes: 4096 },
            disk_full: true,
            disk_hung: true,
            disk_reserve_bytes: 8192,
            cleaner: CleanerStatus {
                runs: 9,
                failures: 2,
                bytes_read: 300,
                bytes_written: 200,
                records_removed: 50,
                max_dirty_ratio: 0.25,
                uncleanable_partitions: 1,
            },
            store: StoreUse {
                puts: 21,
                put_bytes: 22,
                put_failures: 23,
                hedged_puts: 24,
                gets: 25,
                get_bytes: 26,
                get_failures: 27,
                uncommitted_bytes: 28,
            },
            metadata_epoch: 5,
            plane: Some(PlaneSeen { answers: true, since_answer: Duration::from_millis(250), newest: 6 }),
            plane_calls: Some(plane_calls()),
            membership: MembershipGauges { broker_epoch: 4, is_fenced: true, is_full: true, registered: 3, fenced: 2 },
            fetch_sessions: 2,
            replication: ReplicationGauges { under_replicated: 7, under_min_isr: 6, offline: 5, max_lag: 8 },
            groups: [3, 0, 0, 0, 0, 2, 0],
            transactions: crate::transactions::TransactionCounts {
                by_state: [1, 2, 3, 4, 5, 6],
                oldest_open: Some(crate::transactions::OldestOpen {
                    transactional_id: "orders-1".into(),
                    age_ms: 11_500,
                }),
            },
            stable_lag_max: 19,
            offsets_held: 6,
            offset_metadata_bytes: 12,
            process,
        };
        page(&used(), gauges)
    }

    #[test]
    fn page_has_every_recorded_value() {
        let text = shown();
        for line in [
            "fullbore_connections_open 1",
            "fullbore_connections_accepted_total 2",
            "fullbore_connections_refused_total 1",
            "fullbore_request_duration_seconds_count{api=\"Produce\"} 2",
            "fullbore_request_duration_seconds_bucket{le=\"0.00005\",api=\"Produce\"} 1",
            "fullbore_request_duration_seconds_bucket{le=\"0.002\",api=\"Produce\"} 1",
            "fullbore_request_duration_seconds_bucket{le=\"0.005\",api=\"Produce\"} 2",
            "fullbore_request_duration_seconds_bucket{le=\"+Inf\",api=\"Produce\"} 2",
            "fullbore_request_duration_seconds_count{api=\"Fetch\"} 0",
            "fullbore_response_bytes_total{api=\"Produce\"} 150",
            "fullbore_produce_batches_total 1",
            "fullbore_produce_records_total 10",
            "fullbore_produce_bytes_total 1000",
            "fullbore_produce_unanswered_total 1",
            "fullbore_produce_errors_total{code=\"MESSAGE_TOO_LARGE\"} 1",
            "fullbore_fetch_bytes_total 700",
            "fullbore_fetch_errors_total{code=\"OFFSET_OUT_OF_RANGE\"} 1",
            "fullbore_fetch_sessions 2",
            "fullbore_replication_in_bytes_total 11",
            "fullbore_replication_out_bytes_total 12",
            "fullbore_replication_max_lag_records 8",
            "fullbore_isr_shrinks_total 1",
            "fullbore_isr_expands_total 1",
            "fullbore_partitions_under_replicated 7",
            "fullbore_partitions_under_min_isr 6",
            "fullbore_partitions_offline 5",
            "fullbore_groups{state=\"Empty\"} 3",
            "fullbore_groups{state=\"Stable\"} 2",
            "fullbore_transaction_oldest_open_seconds{transactional_id=\"orders-1\"} 11.5",
            "fullbore_transaction_commit_duration_seconds_count{part=\"decision\"} 1",
            "fullbore_transaction_commit_duration_seconds_bucket{le=\"0.005\",part=\"markers\"} 1",
            "fullbore_last_stable_offset_lag_max 19",
            "fullbore_group_rebalances_total 1",
            "fullbore_group_expired_members_total 1",
            "fullbore_offset_commits_total 1",
            "fullbore_offset_commit_errors_total{code=\"ILLEGAL_GENERATION\"} 1",
            "fullbore_committed_offsets 6",
            "fullbore_committed_offset_metadata_bytes 12",
            "fullbore_topics 3",
            "fullbore_partitions 60",
            "fullbore_partitions_failed 4",
            "fullbore_partitions_unwritable 6",
            "fullbore_partitions_refused 5",
            "fullbore_set_aside_files 2",
            "fullbore_set_aside_bytes 4096",
            "fullbore_disk_full 1",
            "fullbore_disk_hung 1",
            "fullbore_disk_reserve_bytes 8192",
            "fullbore_cleaner_runs_total 9",
            "fullbore_cleaner_failures_total 2",
            "fullbore_cleaner_read_bytes_total 300",
            "fullbore_cleaner_written_bytes_total 200",
            "fullbore_cleaner_removed_records_total 50",
            "fullbore_cleaner_max_dirty_ratio 0.25",
            "fullbore_cleaner_uncleanable_partitions 1",
            "fullbore_diskless_puts_total 21",
            "fullbore_diskless_put_bytes_total 22",
            "fullbore_diskless_put_failures_total 23",
            "fullbore_diskless_hedged_puts_total 24",
            "fullbore_diskless_gets_total 25",
            "fullbore_diskless_get_bytes_total 26",
            "fullbore_diskless_get_failures_total 27",
            "fullbore_diskless_uncommitted_bytes 28",
            "fullbore_metadata_epoch 5",
            "fullbore_control_plane_up 1",
            "fullbore_control_plane_answer_age_seconds 0.25",
            "fullbore_control_plane_newest_version 6",
            "fullbore_control_plane_call_duration_seconds_bucket{le=\"0.01\",connection=\"metadata\"} 1",
            "fullbore_control_plane_call_duration_seconds_count{connection=\"beats\"} 0",
            "fullbore_control_plane_call_failures_total{connection=\"beats\"} 1",
            "fullbore_control_plane_broker_epoch 4",
            "fullbore_control_plane_fenced 1",
            "fullbore_control_plane_disk_full 1",
            "fullbore_control_plane_brokers 3",
            "fullbore_control_plane_brokers_fenced 2",
            "fullbore_process_cpu_seconds_total 1.5",
            "fullbore_process_resident_memory_bytes 4096",
            "fullbore_process_open_fds 12",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("\nfullbore_process_max_fds "), "unlimited is not a number");
        assert!(text.contains("cluster_id=\"c\\\"1\",node_id=\"7\",version="), "{text}");
    }

    /// Checks what a scraper expects: each sample follows the declaration of its family, no sample is repeated, and the
    /// page ends with the end marker.
    #[test]
    fn page_keeps_the_rules_of_openmetrics() {
        let text = shown();
        let (mut types, mut samples) = (HashMap::new(), HashSet::new());
        for line in text.lines().filter(|line| *line != "# EOF") {
            match line.strip_prefix("# ") {
                Some(comment) => {
                    let mut words = comment.splitn(3, ' ');
                    let (what, name) = (words.next().unwrap(), words.next().unwrap());
                    let value = words.next().expect("nothing is empty");
                    if what == "TYPE" {
                        assert!(types.insert(name, value).is_none(), "{name} is there twice");
                    }
                }
                None => {
                    let (sample, value) = line.rsplit_once(' ').expect("a sample has a value");
                    assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
                    assert!(samples.insert(sample), "{sample} is there twice");
                    let name = sample.split('{').next().unwrap();
                    let declared = types.keys().any(|family| {
                        name.strip_prefix(family)
                            .is_some_and(|rest| ["", "_total", "_info", "_sum", "_count", "_bucket"].contains(&rest))
                    });
                    assert!(declared, "{name} has no TYPE");
                }
            }
        }
        assert_eq!(types.len(), FAMILIES.len());
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    }
}
