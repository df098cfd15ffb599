//! Tests ListOffsets by time over many partitions: the answers, and the number of calls to the index.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fullbore_rules::commit::{BatchKind, ObjectBatch};
use fullbore_rules::sequence::{NO_PRODUCER_ID, Stamp};
use fullbore_schedules::Random;
use fullbore_tests::Batch;
use fullbore_wire::Uuid;

use super::super::index::counted::Counted;
use super::super::index::{Index, IndexStore, SqliteIndex, UploadedObject};
use super::super::objects::double::StoreDouble;
use super::super::objects::{BodyProgress, Objects};
use super::*;
use fullbore_config::{BrokerConfig, Properties};
use fullbore_host::long_work::LongWork;
use fullbore_log::partition::read::{Isolation, TimeQuery, TimestampOffset};

/// A reader of partitions whose batches have one record each.
struct Timed {
    reader: Reader,
    /// The partitions. Each has a log start that the test sets.
    views: Vec<Arc<PartitionView>>,
    /// The timestamps of each partition's records, in the order of their offsets.
    times: Vec<Vec<i64>>,
    calls: Arc<AtomicUsize>,
    long: LongWork,
    _directory: tempfile::TempDir,
}

impl Timed {
    /// Creates the partitions. `objects` has the timestamps of the records in each object, grouped by partition.
    async fn new(objects: &[Vec<Vec<i64>>], log_start: impl Fn(usize) -> i64) -> Timed {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut store = SqliteIndex::open(directory.path()).expect("made").numbered_from(1);
        let rows = store.create("topic", Uuid([1; 16]), objects[0].len() as i32).expect("made");
        let ids = store.register(objects.len(), 0).expect("registered");
        let in_store = Objects::over(StoreDouble::taking(Duration::ZERO), "one");
        let (mut uploaded, mut times) = (Vec::new(), vec![Vec::new(); rows.len()]);
        for (id, records) in ids.iter().zip(objects) {
            let (mut batches, mut parts, mut position) = (Vec::new(), Vec::new(), 0);
            for (at, max_timestamp) in
                records.iter().enumerate().flat_map(|(at, of)| of.iter().map(move |ms| (at, *ms)))
            {
                let bytes = Batch::at(max_timestamp, &[b"value"]).bytes();
                let stamp = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: 0, base_sequence: 0, record_count: 1 };
                let (partition, size, kind) = (rows[at].id, bytes.len() as u32, BatchKind::Plain);
                batches.push(ObjectBatch { partition, position, size, stamp, max_timestamp, kind, confirmation: None });
                position += size;
                parts.push(bytes);
                times[at].push(max_timestamp);
            }
            in_store.put(*id, parts, BodyProgress::default()).await.expect("put");
            uploaded.push(UploadedObject { id: *id, batches });
        }
        Index::new(store, 5).commit(&uploaded, 0).expect("committed");
        let (finder, calls) = Counted::finder(directory.path());
        let rows = finder.partitions(rows.iter().map(|row| row.id).collect()).await.expect("read");
        let cache = Arc::new(Mutex::new(ObjectCache::new(0, 1 << 24)));
        let fetcher = RangeFetcher::new(in_store, Arc::clone(&cache), 4, Arc::default());
        let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = Arc::new(config.topics.defaults);
        let view = |(at, row): (usize, &PartitionRow)| {
            let view = PartitionView::new("topic".into(), Uuid([1; 16]), at as i32, Arc::clone(&config));
            view.make_ready(&PartitionRow { log_start: log_start(at).min(row.next_offset), ..*row });
            Arc::new(view)
        };
        let views = rows.iter().enumerate().map(view).collect();
        let reader = Reader::new(cache, ResponseBudget::new(1 << 24), fetcher, finder);
        Timed { reader, views, times, calls, long: LongWork::default(), _directory: directory }
    }

    /// Returns offset and timestamp of each partition's answer, and the number of calls to the index.
    async fn answers(&self, query: TimeQuery) -> (Vec<Option<(i64, i64)>>, usize) {
        let queries: Vec<_> = self.views.iter().map(|view| (Arc::clone(view), query)).collect();
        let before = self.calls.load(Ordering::Relaxed);
        let found = self.reader.offsets_by_time(&queries, Isolation::ReadUncommitted, &self.long).await;
        let one = |found: &TimestampOffset| (found.offset, found.timestamp);
        let found = found.iter().map(|found| found.as_ref().expect("read").as_ref().map(one)).collect();
        (found, self.calls.load(Ordering::Relaxed) - before)
    }

    /// Finds the answers by reading all records.
    fn scanned(&self, query: TimeQuery) -> Vec<Option<(i64, i64)>> {
        let of = |(view, times): (&Arc<PartitionView>, &Vec<i64>)| {
            let log_start = view.offsets().log_start;
            let mut records = (0..).zip(times.iter().copied()).filter(|(offset, _)| *offset >= log_start);
            match query {
                TimeQuery::Since(since_ms) => records.find(|(_, ms)| *ms >= since_ms),
                TimeQuery::Largest => records.reduce(|first, next| if next.1 > first.1 { next } else { first }),
            }
        };
        self.views.iter().zip(&self.times).map(of).collect()
    }
}

#[tokio::test]
async fn partitions_have_random_records_answers_by_time_agree_with_a_scan() {
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let mut records = |_| random.list(0..3, |random| random.between(0, 30));
        let objects: Vec<Vec<_>> = (0..6).map(|_| (0..90).map(&mut records).collect()).collect();
        let timed = Timed::new(&objects, |at| at as i64 % 4).await;
        for query in (0..31).step_by(3).map(TimeQuery::Since).chain([TimeQuery::Largest]) {
            assert_eq!(timed.answers(query).await.0, timed.scanned(query), "seed {seed}, {query:?}");
        }
    }
}

#[tokio::test]
async fn request_by_time_has_many_partitions_few_calls_of_the_index_answer_it() {
    let objects: Vec<_> = (0..8).map(|object| vec![vec![10 * object]; 500]).collect();
    let timed = Timed::new(&objects, |_| 0).await;
    for (query, expected) in [(TimeQuery::Since(35), (4, 40)), (TimeQuery::Largest, (7, 70))] {
        let (answers, calls) = timed.answers(query).await;
        assert_eq!(answers, vec![Some(expected); 500]);
        // Four steps of the search, and eight calls for 64 extents each.
        assert!(calls <= 12, "{calls} calls for {query:?}");
    }
}
