//! Tests of the index on each of its storage back ends.

use std::cell::Cell;

use fullbore_rules::commit::{BatchKind, CommitVerdict, DisklessPartitionId, ObjectBatch, ObjectId, Refusal};
use fullbore_rules::sequence::{SequenceRefusal, Stamp};
use fullbore_wire::Uuid;

use super::postgres::tests::PostgresBackEnd;
use super::sqlite::SqliteFinder;
use super::store::DELETE_AGAIN_MS;
use super::time_search::{RunTime, TimeSearch};
use super::*;

pub const NOW: i64 = 1_700_000_000_000;

/// A storage back end that belongs to one test.
pub trait BackEnd {
    type Store: IndexStore;
    fn new() -> Self;
    /// Opens another connection, like a second broker or a restarted process.
    fn store(&self) -> Self::Store;
    fn finder(&self) -> Box<dyn RunSource>;
    /// Adds the topic to the metadata. Replaces another topic of the same name.
    fn add_topic(&self, name: &str, topic: Uuid);
    /// Makes all objects older by `ms`.
    fn age(&self, ms: i64);
    /// Returns the time that the test uses as the caller's clock, in ms.
    fn now_ms(&self) -> i64;
    /// Returns the number of producer rows of a partition, even of a deleted one.
    fn producer_rows(&self, id: DisklessPartitionId) -> usize;
    /// Makes every commit fail. If `refuse` is false, commits succeed again.
    fn refuse_writes(&self, store: &Self::Store, refuse: bool);
}

pub struct SqliteBackEnd {
    directory: tempfile::TempDir,
    now_ms: Cell<i64>,
}

impl BackEnd for SqliteBackEnd {
    type Store = SqliteIndex;

    fn new() -> Self {
        SqliteBackEnd { directory: tempfile::tempdir().expect("temporary directory"), now_ms: Cell::new(NOW) }
    }

    fn store(&self) -> SqliteIndex {
        SqliteIndex::open(self.directory.path()).expect("opened")
    }

    fn finder(&self) -> Box<dyn RunSource> {
        Box::new(SqliteFinder::open(self.directory.path()).expect("opened"))
    }

    fn add_topic(&self, _: &str, _: Uuid) {}

    fn age(&self, ms: i64) {
        self.now_ms.set(self.now_ms.get() + ms);
    }

    fn now_ms(&self) -> i64 {
        self.now_ms.get()
    }

    fn producer_rows(&self, id: DisklessPartitionId) -> usize {
        self.store().producer_rows(id)
    }

    fn refuse_writes(&self, store: &SqliteIndex, refuse: bool) {
        store.refuse_writes(refuse);
    }
}

/// An index that has the partitions of a topic.
pub struct Opened<B: BackEnd> {
    pub back_end: B,
    pub index: Index<B::Store>,
    pub partitions: Vec<DisklessPartitionId>,
}

pub const TOPIC: Uuid = Uuid([1; 16]);

impl<B: BackEnd> Opened<B> {
    pub fn new(partitions: i32) -> Self {
        let back_end = B::new();
        back_end.add_topic("topic", TOPIC);
        let mut store = back_end.store();
        let rows = store.create("topic", TOPIC, partitions).expect("made");
        let partitions = rows.iter().map(|row| row.id).collect();
        Opened { back_end, index: Index::new(store, 128), partitions }
    }

    /// Opens the index again, as if the process had been restarted.
    pub fn again(&mut self) {
        self.index = self.another();
    }

    /// Opens the index a second time, like another broker.
    pub fn another(&self) -> Index<B::Store> {
        Index::new(self.back_end.store(), 128)
    }

    pub fn object(&mut self) -> ObjectId {
        self.index.store.register(1, self.back_end.now_ms()).expect("registered").remove(0)
    }

    pub fn commit(&mut self, id: ObjectId, batches: &[ObjectBatch]) -> Vec<CommitVerdict> {
        let object = UploadedObject { id, batches: batches.to_vec() };
        self.index.commit(&[object], self.back_end.now_ms()).expect("committed").verdicts.remove(0)
    }

    fn unused(&mut self) -> Vec<ObjectId> {
        let unused = self.index.store.unused(10, 60_000, self.back_end.now_ms()).expect("taken");
        unused.into_iter().map(|object| object.id).collect()
    }

    pub fn tidy(&mut self) {
        while self.index.tidy(2, self.back_end.now_ms()).expect("tidied") {}
    }
}

/// Returns a batch of ten records. The first of them has the sequence `base_sequence`.
pub fn batch(partition: DisklessPartitionId, position: u32, base_sequence: i32) -> ObjectBatch {
    let stamp = Stamp { producer_id: 7, producer_epoch: 0, base_sequence, record_count: 10 };
    ObjectBatch {
        partition,
        position,
        size: 100,
        stamp,
        max_timestamp: NOW,
        kind: BatchKind::Plain,
        confirmation: None,
    }
}

/// Returns `batch` with the producer id `producer_id`.
pub fn by(producer_id: i64, batch: ObjectBatch) -> ObjectBatch {
    ObjectBatch { stamp: Stamp { producer_id, ..batch.stamp }, ..batch }
}

pub fn appended(base_offset: i64) -> CommitVerdict {
    CommitVerdict::Appended { base_offset }
}

/// Expands each of these functions to two tests, one on SQLite and one on PostgreSQL.
macro_rules! on_each_back_end {
    ($($name:ident)*) => {
        mod on_sqlite {
            $(#[test] fn $name() { super::$name::<super::SqliteBackEnd>(); })*
        }
        mod on_postgres {
            $(#[test] fn $name() { super::$name::<super::PostgresBackEnd>(); })*
        }
    };
}

pub(super) use on_each_back_end;

on_each_back_end! {
    index_restarts_its_commits_are_known
    committed_object_is_committed_again_it_answers_from_its_rows
    another_broker_commits_its_batches_are_applied
    partition_or_object_is_gone_its_batch_is_refused
    partition_is_deleted_a_commit_whose_answer_was_lost_is_answered_as_made
    commit_fails_it_leaves_nothing_and_is_repeated
    state_of_many_partitions_is_unknown_it_is_read_in_pieces
    no_batch_of_an_object_is_appended_the_object_is_unused_and_answers_as_before
    partitions_and_objects_are_created_each_gets_a_larger_id
    log_start_moves_runs_before_it_are_deleted_and_their_objects_are_unused
    topic_is_deleted_no_row_of_it_is_left
    objects_cannot_be_used_any_more_they_are_deleted
    delete_of_an_object_fails_it_is_returned_again_soon
    runs_are_found_by_offset_and_by_time
}

fn index_restarts_its_commits_are_known<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let [first, second] = opened.partitions[..] else { panic!("two") };
    let object = opened.object();
    let batches = [batch(first, 0, 0), batch(first, 100, 10), batch(second, 200, 0)];
    assert_eq!(opened.commit(object, &batches), [appended(0), appended(10), appended(0)]);
    opened.again();
    let next = opened.object();
    assert_ne!(next, object);
    let again = CommitVerdict::Duplicate { base_offset: 10, timestamp: NOW };
    let gap = CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence));
    let batches = [batch(first, 0, 10), batch(first, 100, 20), batch(second, 200, 20)];
    assert_eq!(opened.commit(next, &batches), [again, appended(20), gap]);
    let run = &opened.back_end.finder().runs_from(first, 0, 1).expect("read")[0];
    let place = (run.object, run.base_offset, run.end_offset(), run.position, run.bytes());
    assert_eq!(place, (object, 0, 20, 0, 200));
    let row = opened.back_end.finder().partitions(&[first]).expect("read")[0];
    assert_eq!((row.log_start, row.next_offset, row.bytes, row.max_timestamp), (0, 30, 300, NOW));
    assert_eq!(opened.index.refresh_one(first, 0).expect("known").expect("there").row.next_offset, 30);
}

fn committed_object_is_committed_again_it_answers_from_its_rows<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    let (object, batches) = (opened.object(), [batch(partition, 0, 0), batch(partition, 100, 10)]);
    let first = opened.commit(object, &batches);
    // The answer was lost, so the broker requests the commit again.
    assert_eq!(opened.commit(object, &batches), first);
    opened.again();
    assert_eq!(opened.commit(object, &batches), first);
    assert_eq!(opened.index.known[&partition].next_offset, 20);
}

fn another_broker_commits_its_batches_are_applied<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    let mut other = opened.another();
    let mut at = 0;
    for round in 0..6 {
        let object = opened.object();
        let uploaded = UploadedObject { id: object, batches: vec![batch(partition, 0, at)] };
        let index = if round % 2 == 0 { &mut opened.index } else { &mut other };
        let verdicts = index.commit(&[uploaded], NOW).expect("committed").verdicts.remove(0);
        assert_eq!(verdicts, [appended(i64::from(at))], "round {round}");
        at += 10;
    }
}

fn partition_or_object_is_gone_its_batch_is_refused<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let (partition, object) = (opened.partitions[0], opened.object());
    let gone = [CommitVerdict::Refused(Refusal::ObjectGone)];
    assert_eq!(opened.commit(object + 1, &[batch(partition, 0, 0)]), gone);
    let missing = [CommitVerdict::Refused(Refusal::PartitionGone)];
    assert_eq!(opened.commit(object, &[batch(partition + 1, 0, 0)]), missing);
    assert!(opened.index.refresh_one(partition + 1, 0).expect("known").is_none());
}

/// A batch that was committed before the deletion must count as a duplicate. If it were refused, the producer would
/// write it again, to the next topic of the name.
fn partition_is_deleted_a_commit_whose_answer_was_lost_is_answered_as_made<B: BackEnd>() {
    let made = |base_offset| CommitVerdict::Duplicate { base_offset, timestamp: NOW };
    for is_still_known in [false, true] {
        let mut opened = Opened::<B>::new(1);
        let partition = opened.partitions[0];
        let first = opened.object();
        opened.commit(first, &[batch(partition, 0, 0)]);
        let lost =
            UploadedObject { id: opened.object(), batches: vec![batch(partition, 0, 10), batch(partition, 100, 20)] };
        opened.another().commit(std::slice::from_ref(&lost), NOW).expect("committed");
        if is_still_known {
            opened.index.refresh_one(partition, 0).expect("known").expect("there");
        }
        opened.back_end.store().delete(TOPIC, &[]).expect("deleted");
        let mut tidier = opened.another();
        while tidier.tidy(2, opened.back_end.now_ms()).expect("tidied") {}
        assert!(opened.back_end.finder().runs_from(partition, 0, 1).expect("read").is_empty(), "its runs are cleared");
        let verdicts = opened.index.commit(&[lost], NOW).expect("answered").verdicts;
        assert_eq!(verdicts, [[made(10), made(20)]], "still known: {is_still_known}");
        let (late, gone) = (opened.object(), [CommitVerdict::Refused(Refusal::PartitionGone)]);
        assert_eq!(opened.commit(late, &[batch(partition, 0, 30)]), gone, "it was never made");
    }
}

fn commit_fails_it_leaves_nothing_and_is_repeated<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let (partition, object) = (opened.partitions[0], opened.object());
    let uploaded = UploadedObject { id: object, batches: vec![batch(partition, 0, 0)] };
    opened.back_end.refuse_writes(&opened.index.store, true);
    opened.index.commit(std::slice::from_ref(&uploaded), NOW).expect_err("refused");
    opened.back_end.refuse_writes(&opened.index.store, false);
    let verdicts = opened.index.commit(&[uploaded], NOW).expect("committed").verdicts;
    assert_eq!(verdicts, [[appended(0)]]);
}

fn state_of_many_partitions_is_unknown_it_is_read_in_pieces<B: BackEnd>() {
    let mut opened = Opened::<B>::new(3 * UNKNOWN_AT_ONCE as i32 - 1);
    let batches = |sequence| opened.partitions.iter().map(|id| batch(*id, 0, sequence)).collect::<Vec<_>>();
    let (first, second) = (batches(0), batches(10));
    let object = opened.object();
    opened.commit(object, &first);
    // Drops the state in memory, as after a commit with an unknown outcome.
    opened.again();
    let touched = opened.partitions.iter().copied().collect();
    assert_eq!(opened.index.read_rest(&touched).expect("read").len(), 2 * UNKNOWN_AT_ONCE - 1);
    assert_eq!(opened.index.known.len(), 2 * UNKNOWN_AT_ONCE - 1);
    assert!(opened.index.read_rest(&touched).expect("read").is_empty(), "the commit reads what is left");
    opened.again();
    let uploaded = UploadedObject { id: opened.object(), batches: second };
    let answer = opened.index.commit(&[uploaded], NOW).expect("committed");
    assert!(answer.verdicts[0].iter().all(|verdict| *verdict == appended(10)), "{:?}", answer.verdicts);
    // Each row is returned exactly once.
    assert!(answer.partitions.iter().all(|(row, since)| (row.next_offset, *since) == (20, 0)));
    let mut reported: Vec<_> = answer.producers.iter().map(|row| (row.batches.partition, row.base_offset())).collect();
    reported.sort_unstable();
    let mut expected: Vec<_> = opened.partitions.iter().flat_map(|id| [(*id, 0), (*id, 10)]).collect();
    expected.sort_unstable();
    assert_eq!(reported, expected);
}

fn no_batch_of_an_object_is_appended_the_object_is_unused_and_answers_as_before<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let (partition, object, again) = (opened.partitions[0], opened.object(), opened.object());
    opened.commit(object, &[batch(partition, 0, 0)]);
    let duplicate = [CommitVerdict::Duplicate { base_offset: 0, timestamp: NOW }];
    assert_eq!(opened.commit(again, &[batch(partition, 0, 0)]), duplicate);
    // The answer was lost, so the broker requests the commit again.
    assert_eq!(opened.commit(again, &[batch(partition, 0, 0)]), duplicate);
    opened.back_end.age(20_000);
    assert!(opened.unused().is_empty());
    opened.back_end.age(40_000);
    assert_eq!(opened.unused(), [again]);
}

fn partitions_and_objects_are_created_each_gets_a_larger_id<B: BackEnd>() {
    let mut opened = Opened::<B>::new(3);
    let before = opened.partitions.clone();
    opened.back_end.add_topic("other", Uuid([2; 16]));
    let mut created = |topic, count| {
        let name = if topic == 1 { "topic" } else { "other" };
        let rows = opened.index.store.create(name, Uuid([topic; 16]), count).expect("made");
        rows.iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(created(1, 4)[..3], before[..]);
    let others = created(2, 1);
    assert!(others[0] > before[2]);
    let objects = opened.index.store.register(3, NOW).expect("registered");
    assert!(objects.is_sorted() && opened.object() > objects[2]);
}

fn log_start_moves_runs_before_it_are_deleted_and_their_objects_are_unused<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let [partition, other] = opened.partitions[..] else { panic!("two") };
    let mut objects = Vec::new();
    for number in 0..6 {
        let object = opened.object();
        // The third object has records of both partitions. The records of one partition form two extents, with a
        // duplicate in between.
        let batches = match number {
            2 => vec![
                batch(partition, 0, 20),
                batch(partition, 100, 10),
                batch(partition, 200, 30),
                batch(other, 300, 0),
            ],
            _ => vec![batch(partition, 0, if number < 2 { number * 10 } else { number * 10 + 10 })],
        };
        opened.commit(object, &batches);
        objects.push(object);
    }
    let moved = opened.index.store.move_log_start(partition, 45).expect("moved").expect("there");
    assert_eq!((moved.log_start, moved.next_offset), (45, 70));
    let back = opened.index.store.move_log_start(partition, 10).expect("asked").expect("there");
    assert_eq!((back.log_start, back.bytes), (45, 700));
    assert!(opened.index.store.move_log_start(other + 1, 10).expect("asked").is_none());
    opened.tidy();
    let mut finder = opened.back_end.finder();
    let left: Vec<i64> = finder.runs_from(partition, 0, 10).expect("read").iter().map(|run| run.base_offset).collect();
    assert_eq!(left, [40, 50, 60], "the one that the log start is in is there");
    assert_eq!(finder.partitions(&[partition]).expect("read")[0].bytes, 300);
    opened.back_end.age(60_000);
    let mut unused = opened.unused();
    unused.sort_unstable();
    assert_eq!(unused, objects[..2], "the third is used by the other partition");
    let past = opened.index.store.move_log_start(partition, 1_000).expect("moved").expect("there");
    assert_eq!(past.log_start, 70, "no further than the end");
}

fn topic_is_deleted_no_row_of_it_is_left<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let [first, second] = opened.partitions[..] else { panic!("two") };
    let objects: Vec<ObjectId> = (0..3)
        .map(|number| {
            let object = opened.object();
            opened.commit(object, &[batch(first, 0, number * 10), batch(second, 100, number * 10)]);
            object
        })
        .collect();
    opened.index.store.delete(TOPIC, &[]).expect("deleted");
    opened.index.store.delete(TOPIC, &[]).expect("so it is already");
    let late = opened.object();
    let refused = [CommitVerdict::Refused(Refusal::PartitionGone)];
    assert_eq!(opened.commit(late, &[batch(first, 0, 30)]), refused);
    let later = opened.object();
    assert_eq!(opened.commit(later, &[batch(first, 0, 30)]), refused, "rows of producers make none");
    opened.tidy();
    let mut finder = opened.back_end.finder();
    assert!(finder.partitions(&[first]).expect("read").is_empty());
    assert!(finder.runs_from(first, 0, 10).expect("read").is_empty());
    opened.back_end.age(60_000);
    let mut unused = opened.unused();
    unused.sort_unstable();
    assert_eq!(unused, [&objects[..], &[late, later]].concat());
}

/// The index records that the DELETE has failed. It therefore returns the object again, even after a restart or to
/// another broker.
fn delete_of_an_object_fails_it_is_returned_again_soon<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    let (failed, deleted) = (opened.object(), opened.object());
    opened.back_end.age(3_600_000);
    assert_eq!(opened.unused().len(), 2);
    opened.index.store.delete_failed(&[failed], opened.back_end.now_ms()).expect("noted");
    opened.again();
    assert!(opened.unused().is_empty(), "it is not tried again at once");
    opened.back_end.age(DELETE_AGAIN_MS);
    let late = CommitVerdict::Refused(Refusal::ObjectGone);
    assert_eq!(opened.commit(failed, &[batch(partition, 0, 0)]), [late], "no commit may use it");
    assert_eq!(opened.unused(), [failed]);
    opened.back_end.age(DELETE_AGAIN_MS);
    assert!(opened.unused().is_empty(), "it was deleted");
    opened.back_end.age(86_400_000);
    let mut again = opened.unused();
    again.sort_unstable();
    assert_eq!(again, [failed.min(deleted), failed.max(deleted)], "a day later again, for a late upload");
}

fn objects_cannot_be_used_any_more_they_are_deleted<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    let (used, forgotten) = (opened.object(), opened.object());
    opened.commit(used, &[batch(partition, 0, 0)]);
    opened.back_end.age(3_500_000);
    assert!(opened.unused().is_empty());
    opened.back_end.age(100_000);
    assert_eq!(opened.unused(), [forgotten]);
    let gone = [CommitVerdict::Refused(Refusal::ObjectGone)];
    assert_eq!(opened.commit(forgotten, &[batch(partition, 0, 10)]), gone, "too late");
    opened.back_end.age(80_000_000);
    assert!(opened.unused().is_empty());
    opened.back_end.age(6_400_000);
    assert_eq!(opened.unused(), [forgotten], "again, for a late upload");
    opened.back_end.age(100_000_000);
    assert_eq!(opened.unused(), [forgotten], "and again, since nobody has said that it is deleted");
    opened.index.store.forget(&[forgotten]).expect("forgotten");
    opened.back_end.age(100_000_000);
    assert!(opened.unused().is_empty());
    assert_eq!(opened.commit(forgotten, &[batch(partition, 0, 10)]), gone);
}

fn runs_are_found_by_offset_and_by_time<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    for number in 0..5 {
        let object = opened.object();
        let at = ObjectBatch { max_timestamp: NOW + i64::from(number), ..batch(partition, 0, number * 10) };
        opened.commit(object, &[at]);
    }
    let mut finder = opened.back_end.finder();
    let mut found = |offset: i64, count: usize| -> Vec<i64> {
        finder.runs_from(partition, offset, count).expect("read").iter().map(|run| run.base_offset).collect()
    };
    assert_eq!(found(0, 2), [0, 10]);
    assert_eq!(found(19, 2), [10, 20]);
    assert_eq!(found(45, 2), [40]);
    let mut finder = opened.back_end.finder();
    let last = finder.last_times(&[(partition, 39), (partition, -1), (partition + 1, 9)]).expect("read");
    assert_eq!(last, [Some(RunTime { base_offset: 30, max_timestamp_so_far: NOW + 3 }), None, None]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    // A finder with its connections must be droppable within an async task.
    runtime.block_on(async {
        let finder = RunFinder::over(vec![opened.back_end.finder(), opened.back_end.finder()]);
        let searches = [3, 5].map(|later| TimeSearch::new(partition, 0..50, NOW + later));
        assert_eq!(finder.first_runs_at(searches.into()).await.expect("read"), [Some(30), None]);
    });
}
