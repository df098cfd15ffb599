//! Tests reading ahead with many small fetches in flight. No record is skipped or read twice, whatever happens to the
//! connection, the records and the topic.

use super::{cursors, plan, with_topic, write_numbers};
use crate::broker::TestBroker;
use fullbore_client::admin::create_topic;
use fullbore_client::blocking::Cluster;
use fullbore_client::consume::{BatchView, ConsumePlan, FetchSettings, Record, Sink, StartOffset, consume};
use fullbore_tests::Proxy;
use fullbore_wire::apis::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use std::ops::ControlFlow;

/// A sink that asserts that offsets rise, and records the ranges of offsets that it did not get.
#[derive(Default)]
struct Rising {
    next: i64,
    left_out: Vec<std::ops::Range<i64>>,
}

impl Sink for Rising {
    fn record(&mut self, batch: &BatchView<'_>, record: &Record<'_>) -> Result<ControlFlow<()>, String> {
        let offset = record.offset(batch);
        if offset < self.next {
            return Err(format!("{} was due, and {offset} came", self.next));
        }
        if offset > self.next {
            self.left_out.push(self.next..offset);
        }
        self.next = offset + 1;
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns settings with which a response has about ten batches, a few of each partition.
fn small() -> FetchSettings {
    FetchSettings { partition_max_bytes: 10_000, max_bytes: 30_000, ..Default::default() }
}

fn delete_before(address: &str, partition_index: i32, offset: i64) {
    let mut connection = Cluster::new(address, "test").expect("valid").connect(address).expect("it answers");
    let partition = DeleteRecordsPartition { partition_index, offset, ..Default::default() };
    let topic = DeleteRecordsTopic { name: "t".into(), partitions: vec![partition], ..Default::default() };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    let deleted = connection.call(&request).expect("an answer");
    assert_eq!(deleted.topics[0].partitions[0].low_watermark, offset, "{deleted:?}");
}

#[test]
fn partitions_are_read_whole_and_once_over_breaking_connections() {
    let proxy = Proxy::start();
    let broker = TestBroker::start(Some(&proxy));
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    create_topic(&mut cluster, "t", Some(7), None, &[]).expect("created");
    write_numbers(&broker.address, 7, 210_000, 100);
    let begun = cursors(&mut cluster, Rising::default);
    let mut cuts = 0;
    let plan = ConsumePlan { fetch: small(), to_end: true, ..plan(u64::MAX) };
    let outcome = consume(&cluster, begun, &plan, |counts| {
        if cuts < 5 && counts.records() > cuts * 20_000 {
            proxy.cut();
            cuts += 1;
        }
        true
    });
    let outcome = outcome.expect("read");
    assert!(cuts > 0 && outcome.finished.is_some());
    for cursor in &outcome.cursors {
        assert_eq!((cursor.sink.next, cursor.sink.left_out.as_slice()), (30_000, &[][..]), "{}", cursor.partition);
    }
}

#[test]
fn remaining_records_are_read_once_when_others_are_deleted_ahead() {
    let broker = with_topic(3);
    write_numbers(&broker.address, 3, 300_000, 100);
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    let begun = cursors(&mut cluster, Rising::default);
    let fetch = FetchSettings { reset: Some(StartOffset::Earliest), ..small() };
    let mut is_deleted = false;
    let plan = ConsumePlan { fetch, to_end: true, ..plan(u64::MAX) };
    let outcome = consume(&cluster, begun, &plan, |counts| {
        if !is_deleted && counts.records() > 0 {
            delete_before(&broker.address, 1, 90_000);
            is_deleted = true;
        }
        true
    });
    let outcome = outcome.expect("read");
    assert!(outcome.finished.is_some());
    for cursor in &outcome.cursors {
        let left_out = cursor.sink.left_out.as_slice();
        assert_eq!(cursor.sink.next, 100_000, "{}", cursor.partition);
        match cursor.partition {
            // The records before offset 90,000 are deleted during the run. The reader may already have read some or all
            // of these.
            1 => assert!(left_out.len() <= 1 && left_out.iter().all(|gone| gone.end == 90_000), "{left_out:?}"),
            _ => assert_eq!(left_out, &[]),
        }
    }
}

#[test]
fn a_reader_with_hardly_any_fetch_memory_reads_everything() {
    let broker = with_topic(3);
    write_numbers(&broker.address, 3, 30_000, 100);
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    for buffer_memory in [0, 1, 5_000] {
        let begun = cursors(&mut cluster, Rising::default);
        let fetch = FetchSettings { buffer_memory, ..Default::default() };
        let outcome = consume(&cluster, begun, &ConsumePlan { fetch, ..plan(30_000) }, |_| true).expect("read");
        assert_eq!(outcome.progress.records(), 30_000, "{buffer_memory}");
    }
}
