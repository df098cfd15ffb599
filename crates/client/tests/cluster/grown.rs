//! Tests that new partitions appear in topics that are being read.

use super::{NAMED_VERSION_MAX, cursors, with_topic};
use fullbore_client::admin::create_partitions;
use fullbore_client::blocking::{Cluster, PartitionPlace};
use fullbore_client::consume::{
    BatchView, ConsumePlan, Cursor, FetchSettings, Growth, Record, Sink, StartOffset, consume_growing,
};
use fullbore_tests::{Batch, produce_request};
use fullbore_wire::apis::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// A sink that sends each record's partition and offset to a channel.
struct Telling(i32, Sender<(i32, i64)>);

impl Sink for Telling {
    fn record(&mut self, batch: &BatchView<'_>, record: &Record<'_>) -> Result<ControlFlow<()>, String> {
        // An error only means that the test is over.
        let _ = self.1.send((self.0, record.offset(batch)));
        Ok(ControlFlow::Continue(()))
    }
}

/// Writes five records to partition 1 and deletes the first three.
fn write_and_delete(address: &str) {
    let mut connection = Cluster::new(address, "test").expect("valid").connect(address).expect("it answers");
    let written = produce_request("t", 1, Batch::of(&["0", "1", "2", "3", "4"]).bytes());
    let written = connection.call_up_to(&written, NAMED_VERSION_MAX).expect("an answer");
    assert!(!written.responses[0].partition_responses[0].error_code.is_err(), "{written:?}");
    let partition = DeleteRecordsPartition { partition_index: 1, offset: 3, ..Default::default() };
    let topic = DeleteRecordsTopic { name: "t".into(), partitions: vec![partition], ..Default::default() };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    let deleted = connection.call(&request).expect("an answer");
    assert_eq!(deleted.topics[0].partitions[0].low_watermark, 3, "{deleted:?}");
}

#[test]
fn a_new_partition_is_read_from_its_first_remaining_record() {
    for reset in [None, Some(StartOffset::Latest), Some(StartOffset::Earliest)] {
        let broker = with_topic(1);
        let (reports, reported) = channel();
        let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
        let begun = cursors(&mut cluster, || Telling(0, reports.clone()));
        create_partitions(&mut cluster, &"t".into(), 2, None).expect("created");
        let address = broker.address.clone();
        // The run finds the new partition before records are written to it and deleted, but starts to read only
        // afterwards.
        let begin = move |place: PartitionPlace| {
            write_and_delete(&address);
            let sink = Telling(place.partition, reports.clone());
            Cursor::new(place, sink)
        };
        let growth = Growth::new(vec!["t".into()], None, Duration::from_millis(10), begin);
        let fetch = FetchSettings { reset, ..FetchSettings::default() };
        let plan =
            ConsumePlan { records: 2, start: StartOffset::Latest, ..ConsumePlan::new(fetch, Duration::from_secs(20)) };
        let outcome = consume_growing(&cluster, begun, &plan, Some(growth), |_| true);
        let outcome = outcome.unwrap_or_else(|error| panic!("{reset:?}: {error}"));
        assert!(outcome.finished.is_some(), "{reset:?}");
        assert_eq!(reported.try_iter().collect::<Vec<_>>(), [(1, 3), (1, 4)], "{reset:?}");
    }
}
