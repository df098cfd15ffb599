//! Tests reads of a partition with two batches. The broker knows only the first of them.

use std::time::Duration;

use fullbore_rules::commit::{BatchKind, ObjectBatch, PackedBatch};
use fullbore_rules::sequence::{NO_PRODUCER_ID, Stamp};
use fullbore_tests::Batch;
use fullbore_wire::Uuid;
use fullbore_wire::batch::BatchView;

use super::super::index::{Index, IndexStore, SqliteIndex, UploadedObject};
use super::super::objects::double::StoreDouble;
use super::super::objects::{BodyProgress, Objects};
use super::super::pipeline::upload::marked;
use super::*;
use fullbore_config::{BrokerConfig, Properties};
use fullbore_host::long_work::LongWork;
use fullbore_log::partition::read::{Isolation, TimeQuery, TimestampOffset};

/// A reader, and a partition with two batches of one record each. The broker knows only the first batch.
struct TwoBatches {
    reader: Reader,
    view: Arc<PartitionView>,
    directory: tempfile::TempDir,
}

async fn two_batches() -> TwoBatches {
    two_batches_of(b"value").await
}

async fn two_batches_of(value: &[u8]) -> TwoBatches {
    two_batches_as(value, |batches, _| batches.into()).await
}

/// Creates the partition and its reader. `stored` receives the two batches and the id of their object. It returns the
/// bytes that the store will have.
async fn two_batches_as(value: &[u8], stored: impl Fn([Bytes; 2], ObjectId) -> Vec<Bytes>) -> TwoBatches {
    let bytes = Batch::at(7, &[value]).bytes();
    let size = bytes.len() as u32;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = SqliteIndex::open(directory.path()).expect("made").numbered_from(1);
    let row = store.create("topic", Uuid([1; 16]), 1).expect("made")[0];
    let object = store.register(1, 0).expect("registered")[0];
    let stamp = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: 0, base_sequence: 0, record_count: 1 };
    let batch = |position| ObjectBatch {
        partition: row.id,
        position,
        size,
        stamp,
        max_timestamp: 7,
        kind: BatchKind::Plain,
        confirmation: None,
    };
    let uploaded = UploadedObject { id: object, batches: vec![batch(0), batch(size)] };
    Index::new(store, 5).commit(&[uploaded], 0).expect("committed");
    let objects = Objects::over(StoreDouble::taking(Duration::ZERO), "one");
    objects.put(object, stored([bytes.clone(), bytes], object), BodyProgress::default()).await.expect("put");

    let cache = Arc::new(Mutex::new(ObjectCache::new(0, 1 << 24)));
    let fetcher = RangeFetcher::new(objects, Arc::clone(&cache), 1, Arc::default());
    let reader =
        Reader::new(cache, ResponseBudget::new(1 << 24), fetcher, RunFinder::open(directory.path()).expect("opened"));
    let (config, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
    let view = Arc::new(PartitionView::new("topic".into(), Uuid([1; 16]), 0, Arc::new(config.topics.defaults)));
    view.make_ready(&PartitionRow { next_offset: 1, ..row });
    TwoBatches { reader, view, directory }
}

#[tokio::test]
async fn requests_come_for_every_offset_few_are_under_way_and_no_reader_is_blocked() {
    let TwoBatches { reader, view, .. } = two_batches().await;
    let waiter = Arc::default();
    let _registration = view.register(&waiter);
    (1..1000).for_each(|offset| reader.request(&view, offset, 1));
    assert_eq!(reader.shared.under_way.lock().count(), 16);
    while matches!(reader.find(&view, 0..1, 1 << 20, true, 1), Found::Missing) {
        reader.request(&view, 0, 1);
        waiter.notified().await;
    }
}

/// Regression test: consumers read from 1,000 partitions with records in the same object. While a search for one
/// partition waited, the cache evicted the object, so it was fetched again for each of these partitions.
#[tokio::test]
async fn store_is_slow_records_of_an_object_in_memory_wait_for_no_get() {
    const PARTITIONS: usize = 40;
    let TwoBatches { view, directory, .. } = two_batches().await;
    let mut store = SqliteIndex::open(directory.path()).expect("opened");
    let rows = store.create("many", Uuid([2; 16]), PARTITIONS as i32).expect("made");
    let ids = store.register(PARTITIONS, 0).expect("registered");
    let stamp = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: 0, base_sequence: 0, record_count: 1 };
    let bytes = Batch::at(7, &["value"]).bytes();
    let size = bytes.len() as u32;
    let batch = |at: usize, position| ObjectBatch {
        partition: rows[at].id,
        position,
        size,
        stamp,
        max_timestamp: 7,
        kind: BatchKind::Plain,
        confirmation: None,
    };
    let (first, last) = (0, PARTITIONS - 1);
    let mut uploaded = vec![UploadedObject { id: ids[0], batches: vec![batch(first, 0), batch(last, size)] }];
    uploaded.extend((1..last).map(|at| UploadedObject { id: ids[at], batches: vec![batch(at, 0)] }));
    Index::new(store, 5).commit(&uploaded, 0).expect("committed");
    let double = StoreDouble::taking(Duration::ZERO);
    let objects = Objects::over(double.clone(), "one");
    objects.put(ids[0], vec![bytes.clone(), bytes], BodyProgress::default()).await.expect("put");
    let cache = Arc::new(Mutex::new(ObjectCache::new(0, 1 << 24)));
    let fetcher = RangeFetcher::new(objects, Arc::clone(&cache), 1, Arc::default());
    let finder = RunFinder::open(directory.path()).expect("opened");
    let reader = Reader::new(cache, ResponseBudget::new(1 << 24), fetcher, finder);
    let many = (0..).zip(&rows).map(|(index, row)| {
        let view = PartitionView::new("many".into(), Uuid([2; 16]), index, view.config());
        view.make_ready(&PartitionRow { next_offset: 1, ..*row });
        Arc::new(view)
    });
    let many: Vec<_> = many.collect();
    assert_eq!(read(&reader, &many[first], 0).await, Ok(1));
    double.hang_next(usize::MAX);
    many[1..last].iter().for_each(|partition| reader.request(partition, 0, 1));
    let found = tokio::time::timeout(Duration::from_secs(120), read(&reader, &many[last], 0)).await;
    assert_eq!(found, Ok(Ok(1)));
    assert!(double.gets() <= 2, "{} GETs", double.gets());
}

#[tokio::test]
async fn topic_is_deleted_elsewhere_its_readers_get_an_error() {
    let TwoBatches { reader, view, directory } = two_batches().await;
    let before = Instant::now();
    let waiter = Arc::default();
    let _registration = view.register(&waiter);
    let mut store = SqliteIndex::open(directory.path()).expect("opened");
    store.delete(view.topic_id(), &[]).expect("deleted");
    while store.clear(10, 0).expect("cleared") {}
    reader.request(&view, 0, 1);
    while reader.shared.under_way.lock().count() > 0 {
        waiter.notified().await;
    }
    assert_eq!(view.failed_since(before), Some(ReadError::Gone));
}

#[tokio::test]
async fn records_are_deleted_elsewhere_later_ones_are_not_read_in_their_place() {
    let TwoBatches { reader, view, directory } = two_batches().await;
    let mut store = SqliteIndex::open(directory.path()).expect("opened");
    let (row, object) = (store.partitions()[0], store.register(1, 0).expect("registered")[0]);
    let stamp = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: 0, base_sequence: 0, record_count: 1 };
    let batch = ObjectBatch {
        partition: row.id,
        position: 0,
        size: 100,
        stamp,
        max_timestamp: 7,
        kind: BatchKind::Plain,
        confirmation: None,
    };
    let uploaded = UploadedObject { id: object, batches: vec![batch] };
    Index::new(SqliteIndex::open(directory.path()).expect("opened"), 5).commit(&[uploaded], 0).expect("committed");
    view.moved(&store.partitions()[0], Vec::new());
    store.move_log_start(row.id, 2).expect("moved");
    while store.clear(10, 0).expect("cleared") {}
    assert_eq!((view.offsets().log_start, view.offsets().log_end), (0, 3));
    let waiter = Arc::default();
    let _registration = view.register(&waiter);
    reader.request(&view, 0, 1);
    while reader.shared.under_way.lock().count() > 0 {
        waiter.notified().await;
    }
    assert!(matches!(reader.find(&view, 0..3, 1 << 20, true, 1), Found::Missing));
    assert_eq!(view.offsets().log_start, 2, "so that who asks from there is told");
}

#[tokio::test]
async fn index_has_records_past_the_known_end_they_are_not_read() {
    let TwoBatches { reader, view, directory: _directory } = two_batches().await;
    let waiter = Arc::default();
    let _registration = view.register(&waiter);
    reader.request(&view, 0, 1);
    let found = loop {
        match reader.find(&view, 0..view.offsets().log_end, 1 << 20, true, 1) {
            Found::Records(Records::Memory(found), _) => break found,
            _ => waiter.notified().await,
        }
    };
    assert_eq!(BatchView::first(&found).expect("a batch").size(), found.len(), "one batch");
}

/// Reads until there are records, or they are known to be lost. Returns the offset after the records.
async fn read(reader: &Reader, view: &Arc<PartitionView>, offset: i64) -> Result<i64, ReadError> {
    let (began, waiter) = (Instant::now(), Arc::default());
    let _registration = view.register(&waiter);
    loop {
        if let Found::Records(_, end) = reader.find(view, offset..view.offsets().log_end, 1 << 20, true, 1) {
            return Ok(end);
        }
        match view.failed_since(began).map(|why| why.at(offset)) {
            Some(lost @ ReadError::Lost { .. }) => return Err(lost),
            _ => reader.request(view, offset, 1),
        }
        waiter.notified().await;
    }
}

#[tokio::test]
async fn store_gives_the_bytes_of_another_object_they_are_lost_to_readers() {
    let swapped = |batches: [Bytes; 2], object| batches.map(|batch| marked(batch, object + 1)).into();
    let TwoBatches { reader, view, directory } = two_batches_as(b"value", swapped).await;
    view.moved(&SqliteIndex::open(directory.path()).expect("opened").partitions()[0], Vec::new());
    assert_eq!(read(&reader, &view, 0).await, Err(ReadError::Lost { from: 0, next: 1 }));
    assert_eq!(read(&reader, &view, 1).await, Err(ReadError::Lost { from: 1, next: 2 }));
}

#[tokio::test]
async fn object_ends_within_a_batch_those_before_it_are_read() {
    let cut = |batches: [Bytes; 2], object| {
        let [first, second] = batches.map(|batch| marked(batch, object));
        vec![first, second.slice(..second.len() - 1)]
    };
    let TwoBatches { reader, view, directory } = two_batches_as(b"value", cut).await;
    view.moved(&SqliteIndex::open(directory.path()).expect("opened").partitions()[0], Vec::new());
    assert_eq!(read(&reader, &view, 0).await, Ok(1));
    assert_eq!(read(&reader, &view, 1).await, Err(ReadError::Lost { from: 1, next: 2 }));
}

#[tokio::test]
async fn object_is_empty_its_records_are_lost() {
    let TwoBatches { reader, view, directory } = two_batches_as(b"value", |_, _| Vec::new()).await;
    view.moved(&SqliteIndex::open(directory.path()).expect("opened").partitions()[0], Vec::new());
    assert_eq!(read(&reader, &view, 0).await, Err(ReadError::Lost { from: 0, next: 2 }));
}

/// Regression test: a life-cycle rule of the store had deleted all objects of a day. For each of these objects, one
/// after another, a reader sent three GETs with pauses.
#[tokio::test]
async fn many_objects_in_a_row_are_gone_their_records_are_passed_together() {
    const GONE: i64 = 30;
    let TwoBatches { reader, view, directory } = two_batches().await;
    let mut store = SqliteIndex::open(directory.path()).expect("opened");
    let row = store.partitions()[0];
    let stamp = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: 0, base_sequence: 0, record_count: 1 };
    let batch = ObjectBatch {
        partition: row.id,
        position: 0,
        size: 100,
        stamp,
        max_timestamp: 7,
        kind: BatchKind::Plain,
        confirmation: None,
    };
    for _ in 0..GONE {
        let uploaded = UploadedObject { id: store.register(1, 0).expect("registered")[0], batches: vec![batch] };
        let own = SqliteIndex::open(directory.path()).expect("opened");
        Index::new(own, 5).commit(&[uploaded], 0).expect("committed");
    }
    view.moved(&store.partitions()[0], Vec::new());
    let (mut at, mut losses) = (0, 0);
    while at < 2 + GONE {
        at = match read(&reader, &view, at).await {
            Ok(end) => end,
            Err(ReadError::Lost { from, next }) => {
                // A read-ahead from an earlier offset may have found the loss.
                assert!(from >= 2 && (from..next).contains(&at), "{from} to {next} at {at}");
                losses += 1;
                next
            }
            Err(other) => panic!("{other}"),
        };
    }
    assert!(at == 2 + GONE && losses < GONE / 3, "{losses} losses to {at}");
}

#[test]
fn losses_adjoin_they_are_one_up_to_the_first_record_that_is_there() {
    let lost = BTreeMap::from([(4, 6), (6, 9), (9, 12), (13, 14)]);
    let loss = |from, next| Some(ReadError::Lost { from, next });
    assert_eq!(
        [4, 5, 8, 13].map(|offset| lost_at(offset, &lost)),
        [loss(4, 12), loss(4, 12), loss(6, 12), loss(13, 14)]
    );
    assert_eq!([3, 12, 14].map(|offset| lost_at(offset, &lost)), [None; 3]);
}

#[tokio::test]
async fn clients_hold_all_the_response_budget_a_response_has_one_batch() {
    let TwoBatches { reader, view, directory } = two_batches_of(&[0; 300_000]).await;
    view.moved(&SqliteIndex::open(directory.path()).expect("opened").partitions()[0], Vec::new());
    let waiter = Arc::default();
    let _registration = view.register(&waiter);
    let read = |at_least_one| match reader.find(&view, 0..2, 1 << 20, at_least_one, 1) {
        Found::Records(records, _) => Some(records.len()),
        Found::Missing => None,
    };
    reader.request(&view, 0, 1);
    while read(true).is_none_or(|len| len < 600_000) {
        waiter.notified().await;
    }
    let held = reader.shared.given.give(Bytes::from(vec![0; 1 << 24]));
    assert!(read(true).is_some_and(|len| (300_000..600_000).contains(&len)), "{:?}", read(true));
    assert_eq!(read(false), Some(0), "what comes behind the first of an answer");
    drop(held);
    assert!(read(true).is_some_and(|len| len > 600_000), "{:?}", read(true));
}

#[tokio::test]
async fn partitions_are_to_be_refreshed_during_a_refresh_the_next_one_covers_them_together() {
    let TwoBatches { reader, view, directory } = two_batches().await;
    let rows = SqliteIndex::open(directory.path()).expect("opened").create("many", Uuid([2; 16]), 20).expect("made");
    let many = (0..).zip(&rows).map(|(index, row)| {
        let view = PartitionView::new("many".into(), Uuid([2; 16]), index, view.config());
        view.make_ready(row);
        Arc::new(view)
    });
    let many: Vec<_> = many.collect();
    many.iter().chain([&many[0]]).for_each(|view| reader.request_refresh(view));
    let requested = reader.shared.next_to_refresh().expect("asked for");
    assert_eq!(requested.len(), 20, "nobody was asked yet, and each is there once");
    reader.refresh(&requested).await.expect("refreshed");
    assert!(many.iter().all(|view| view.was_refreshed()));
}

#[tokio::test]
async fn batches_are_opened_for_their_timestamps_only_with_a_permit_for_long_work() {
    let TwoBatches { reader, view, directory: _directory } = two_batches().await;
    let long = LongWork::without_slots();
    let queries = [(view, TimeQuery::Since(7))];
    let mut search = Box::pin(reader.offsets_by_time(&queries, Isolation::ReadUncommitted, &long));
    let waits = tokio::time::timeout(Duration::from_millis(100), &mut search).await;
    assert!(waits.is_err(), "{waits:?} on the thread of a connection");
    long.add_slots(1);
    assert_eq!(search.await, [Ok(Some(TimestampOffset { offset: 0, timestamp: 7, leader_epoch: 0 }))]);
}

#[tokio::test]
async fn response_has_a_small_part_of_a_block_it_does_not_hold_the_block() {
    for (value, is_held) in [(vec![0; 5_000], false), (vec![0; 600_000], true)] {
        let TwoBatches { reader, view, directory: _directory } = two_batches_of(&value).await;
        let waiter = Arc::default();
        let _registration = view.register(&waiter);
        reader.request(&view, 0, 1);
        let pieces = loop {
            match reader.find(&view, 0..1, 1 << 20, true, 1) {
                Found::Records(Records::Memory(found), _) => break vec![found],
                Found::Records(Records::Pieces(found), _) => break found,
                _ => waiter.notified().await,
            }
        };
        let block = reader.shared.cache.lock().find(1, 0, BLOCK / 128).expect("it is there").parts.remove(0);
        let held = block.as_ptr()..block.as_ptr().wrapping_add((2 * value.len()).min(BLOCK as usize));
        assert_eq!(pieces.iter().any(|piece| held.contains(&piece.as_ptr())), is_held, "{} bytes", value.len());
    }
}

/// Returns adjacent extents of a partition, each in its own object. For each extent, `runs` has the position and the
/// sizes of the batches. Each batch has 10 records.
fn runs_of(runs: &[(u32, Vec<u32>)]) -> Vec<Arc<BatchRun>> {
    let mut base_offset = 0;
    let run = |(object, (position, sizes)): (usize, &(u32, Vec<u32>))| {
        let batches: Vec<_> =
            sizes.iter().map(|size| PackedBatch { size: *size, record_count: 10, max_timestamp: 7 }).collect();
        let run = BatchRun {
            partition: 1,
            object: object as ObjectId,
            base_offset,
            position: *position,
            max_timestamp_so_far: 7,
            batches,
        };
        base_offset = run.end_offset();
        Arc::new(run)
    };
    runs.iter().enumerate().map(run).collect()
}

#[test]
fn run_exceeds_the_blocks_left_the_read_ahead_ends_before_it() {
    let half = BLOCK / 2;
    // The second extent spans two blocks, and the third is within a single block.
    let runs = runs_of(&[(0, vec![half]), (half + 1, vec![half]), (0, vec![half])]);
    let ahead = ahead(0, &runs, 2);
    assert_eq!(ahead.iter().map(|part| part.end_offset).collect::<Vec<_>>(), [10]);
}

proptest::proptest! {
    #[test]
    fn parts_read_ahead_leave_out_no_batch_between_them(
        sizes in proptest::collection::vec((0..BLOCK, proptest::collection::vec(1..BLOCK, 1..3)), 1..12),
        first in 0_usize..24,
        blocks_max in 1_usize..8,
    ) {
        let runs = runs_of(&sizes);
        let batches: Vec<_> = runs.iter().flat_map(|run| run.placed().map(|(at, base, batch)| (run.object, at, base, batch.size))).collect();
        let offset = batches[first % batches.len()].2 + 3;
        let mut expected = batches[first % batches.len()..].iter();
        for part in ahead(offset, &runs, blocks_max) {
            let mut at = part.range.start;
            while at < part.range.end {
                let (object, position, base, size) = *expected.next().expect("a batch");
                proptest::prop_assert_eq!((object, position), (part.run.object, at));
                at += size;
                proptest::prop_assert!(base + 10 <= part.end_offset);
            }
        }
        proptest::prop_assert!(expected.len() < batches.len() - first % batches.len(), "one batch at least");
    }
}
