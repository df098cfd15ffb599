use fullbore_rules::commit::{CommitVerdict, DisklessPartitionId, ObjectBatch, ObjectId, Refusal};
use fullbore_rules::sequence::{SequenceRefusal, Stamp};
use fullbore_wire::Uuid;

use super::*;

const NOW: i64 = 1_700_000_000_000;
const TIME: CommitTime = CommitTime { now_ms: NOW, fresh_from: 0 };

/// An index in a folder, with a topic's partitions.
struct Opened {
    folder: tempfile::TempDir,
    index: Index<SqliteIndex>,
    partitions: Vec<DisklessPartitionId>,
}

fn opened(partitions: i32) -> Opened {
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut store = SqliteIndex::open(folder.path()).expect("made");
    let rows = store.create(Uuid([1; 16]), partitions).expect("made");
    let partitions = rows.iter().map(|row| row.id).collect();
    Opened { index: Index::new(store, 128), folder, partitions }
}

impl Opened {
    /// As after the process has ended.
    fn again(&mut self) {
        self.index = self.another();
    }

    /// As another broker has it.
    fn another(&self) -> Index<SqliteIndex> {
        Index::new(SqliteIndex::open(self.folder.path()).expect("opened"), 128)
    }

    fn object(&mut self) -> ObjectId {
        self.index.store.register(1, NOW).expect("registered").remove(0)
    }

    fn commit(&mut self, id: ObjectId, batches: &[ObjectBatch]) -> Vec<CommitVerdict> {
        let object = UploadedObject { id, batches: batches.to_vec() };
        self.index.commit(&[object], TIME).expect("committed").verdicts.remove(0)
    }
}

/// The batch of ten records whose first has this sequence.
fn batch(partition: DisklessPartitionId, position: u32, base_sequence: i32) -> ObjectBatch {
    let stamp = Stamp { producer_id: 7, producer_epoch: 0, base_sequence, record_count: 10 };
    ObjectBatch { partition, position, size: 100, stamp, max_timestamp: NOW }
}

fn appended(base_offset: i64) -> CommitVerdict {
    CommitVerdict::Appended { base_offset }
}

#[test]
fn what_is_committed_is_known_after_a_restart() {
    let mut opened = opened(2);
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
    let run = &opened.index.store.runs_of(object).expect("read")[0];
    assert_eq!((run.base_offset, run.end_offset(), run.position, run.bytes()), (0, 20, 0, 200));
}

#[test]
fn an_object_that_is_committed_answers_from_its_rows() {
    let mut opened = opened(1);
    let partition = opened.partitions[0];
    let (object, batches) = (opened.object(), [batch(partition, 0, 0), batch(partition, 100, 10)]);
    let first = opened.commit(object, &batches);
    // Its answer was lost, and it is asked for again.
    assert_eq!(opened.commit(object, &batches), first);
    opened.again();
    assert_eq!(opened.commit(object, &batches), first);
    assert_eq!(opened.index.known[&partition].next_offset, 20);
}

#[test]
fn what_another_has_committed_is_taken_over() {
    let mut opened = opened(1);
    let partition = opened.partitions[0];
    let mut other = opened.another();
    let mut at = 0;
    for round in 0..6 {
        let object = opened.object();
        let uploaded = UploadedObject { id: object, batches: vec![batch(partition, 0, at)] };
        let index = if round % 2 == 0 { &mut opened.index } else { &mut other };
        let verdicts = index.commit(&[uploaded], TIME).expect("committed").verdicts.remove(0);
        assert_eq!(verdicts, [appended(i64::from(at))], "round {round}");
        at += 10;
    }
}

#[test]
fn without_its_partition_or_its_object_a_batch_is_refused() {
    let mut opened = opened(1);
    let (partition, object) = (opened.partitions[0], opened.object());
    let gone = [CommitVerdict::Refused(Refusal::ObjectGone)];
    assert_eq!(opened.commit(object + 1, &[batch(partition, 0, 0)]), gone);
    let missing = [CommitVerdict::Refused(Refusal::PartitionGone)];
    assert_eq!(opened.commit(object, &[batch(partition + 1, 0, 0)]), missing);
}

#[test]
fn a_commit_that_fails_leaves_nothing_and_is_made_again() {
    let mut opened = opened(1);
    let (partition, object) = (opened.partitions[0], opened.object());
    let uploaded = UploadedObject { id: object, batches: vec![batch(partition, 0, 0)] };
    opened.index.store.refuse_writes(true);
    opened.index.commit(std::slice::from_ref(&uploaded), TIME).expect_err("refused");
    opened.index.store.refuse_writes(false);
    let verdicts = opened.index.commit(&[uploaded], TIME).expect("committed").verdicts;
    assert_eq!(verdicts, [[appended(0)]]);
}

#[test]
fn an_object_of_which_nothing_was_appended_is_unused_and_answers_as_before() {
    let mut opened = opened(1);
    let (partition, object, again) = (opened.partitions[0], opened.object(), opened.object());
    opened.commit(object, &[batch(partition, 0, 0)]);
    let duplicate = [CommitVerdict::Duplicate { base_offset: 0, timestamp: NOW }];
    assert_eq!(opened.commit(again, &[batch(partition, 0, 0)]), duplicate);
    // Its answer was lost, and it is asked for again.
    assert_eq!(opened.commit(again, &[batch(partition, 0, 0)]), duplicate);
    assert!(opened.index.store.unused(10, NOW + 59_999).expect("taken").is_empty());
    assert_eq!(opened.index.store.unused(10, NOW + 60_000).expect("taken"), [again]);
}

#[test]
fn partitions_and_objects_have_numbers_that_do_not_come_back() {
    let mut opened = opened(3);
    let before = opened.partitions.clone();
    let mut created = |topic, count| {
        let rows = opened.index.store.create(Uuid([topic; 16]), count).expect("made");
        rows.iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(created(1, 4)[..3], before[..]);
    let others = created(2, 1);
    assert!(others[0] > before[2]);
    let objects = opened.index.store.register(3, NOW).expect("registered");
    assert!(objects.is_sorted() && opened.object() > objects[2]);
}
