//! Tests transactions in the index on each back end: how they are opened, ended, read again, and removed.

use std::collections::BTreeMap;

use fullbore_rules::commit::{BatchKind, CommitVerdict, Confirmation, DisklessPartitionId, ObjectBatch, Refusal};
use fullbore_rules::sequence::{AbortedTransaction, Marker, PRODUCERS_MAX, ProducerState, SequenceRefusal, Stamp};
use fullbore_schedules::Random;
use fullbore_wire::Uuid;

use super::postgres::tests::PostgresBackEnd;
use super::tests::{BackEnd, NOW, Opened, SqliteBackEnd, TOPIC, appended, batch, by, on_each_back_end};
use super::{CommitAnswer, Index, IndexStore, PartitionRow, UploadedObject};

on_each_back_end! {
    transaction_opens_and_ends_every_row_shows_the_last_stable_offset
    transaction_is_written_by_several_brokers_their_markers_and_openings_are_seen
    answer_of_a_commit_with_a_marker_is_lost_it_is_answered_as_made
    aborted_transactions_are_found_by_range
    aborted_transactions_go_with_the_log_start_and_with_their_partition
    records_of_an_open_transaction_are_deleted_it_ends_with_its_marker
    producer_has_an_open_transaction_it_does_not_expire
    old_rows_of_producers_are_removed_a_state_read_again_is_the_state_in_memory
    topic_is_made_again_no_transaction_is_open_and_producers_go_on
    topic_is_deleted_markers_for_it_are_answered_as_gone
}

/// Returns a batch of ten records in a transaction. The coordinator confirmed the transaction when the partition's next
/// offset was `next_offset`.
fn verified(batch: ObjectBatch, next_offset: i64) -> ObjectBatch {
    let confirmation = Some(Confirmation { next_offset, is_added: false });
    ObjectBatch { kind: BatchKind::Transactional, confirmation, ..batch }
}

fn of_epoch(producer_epoch: i16, batch: ObjectBatch) -> ObjectBatch {
    ObjectBatch { stamp: Stamp { producer_epoch, ..batch.stamp }, ..batch }
}

/// Returns a marker of a producer. `version` is the transaction version (1 or 2), as KIP-890 defines it.
fn marker(to: DisklessPartitionId, position: u32, of: (i64, i16), is_commit: bool, version: i8) -> ObjectBatch {
    let (producer_id, producer_epoch) = of;
    let marker = Marker { producer_id, producer_epoch, coordinator_epoch: 4, is_commit };
    let stamp = Stamp { producer_id, producer_epoch, base_sequence: -1, record_count: 1 };
    ObjectBatch { stamp, kind: BatchKind::marker(&marker, version), ..batch(to, position, 0) }
}

fn refused(why: SequenceRefusal) -> CommitVerdict {
    CommitVerdict::Refused(Refusal::Sequence(why))
}

const UNVERIFIED: CommitVerdict = CommitVerdict::Refused(Refusal::Unverified);

/// The part of a partition's state that tests compare, with only the newest batch of each producer.
type Shown = (PartitionRow, Vec<ProducerState>);

impl<B: BackEnd> Opened<B> {
    fn answer(&mut self, batches: Vec<ObjectBatch>) -> CommitAnswer {
        let object = UploadedObject { id: self.object(), batches };
        self.index.commit(&[object], self.back_end.now_ms()).expect("committed")
    }

    fn row(&self, id: DisklessPartitionId) -> PartitionRow {
        self.back_end.finder().partitions(&[id]).expect("read")[0]
    }

    fn aborted(&self, id: DisklessPartitionId, offsets: std::ops::Range<i64>) -> Vec<AbortedTransaction> {
        let found = self.back_end.finder().aborted(id, offsets.clone(), PRODUCERS_MAX + 1).expect("read");
        assert_eq!(found.end, offsets.end);
        found.transactions
    }
}

fn shown<S: IndexStore>(index: &mut Index<S>, id: DisklessPartitionId) -> Shown {
    let row = index.refresh_one(id, 0).expect("known").expect("there").row;
    let mut producers: Vec<_> = index.known[&id].producers.iter().collect();
    producers.sort_by_key(|of| of.producer_id);
    (row, producers)
}

fn transaction_opens_and_ends_every_row_shows_the_last_stable_offset<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    let opens = vec![
        by(8, batch(partition, 0, 0)),
        verified(batch(partition, 100, 0), 0),
        verified(by(9, batch(partition, 200, 0)), 0),
    ];
    let answer = opened.answer(opens);
    let of = |row: &PartitionRow| (row.next_offset, row.first_unstable, row.last_stable_offset());
    assert_eq!(of(&answer.partitions[0].0), (30, Some(10), 10));
    assert_eq!(of(&opened.row(partition)), (30, Some(10), 10));
    opened.again();
    assert_eq!(of(&shown(&mut opened.index, partition).0), (30, Some(10), 10));
    let answer = opened.answer(vec![marker(partition, 0, (7, 0), true, 1)]);
    assert_eq!(answer.verdicts, [[appended(30)]]);
    assert_eq!(of(&answer.partitions[0].0), (31, Some(20), 20));
    assert_eq!(of(&opened.row(partition)), (31, Some(20), 20));
    let moved = opened.index.store.move_log_start(partition, 25).expect("moved").expect("there");
    assert_eq!(of(&moved), (31, Some(20), 25), "the log start passes it");
    opened.again();
    let answer = opened.answer(vec![marker(partition, 0, (9, 1), false, 2)]);
    assert_eq!(of(&answer.partitions[0].0), (32, None, 32));
    assert_eq!(of(&opened.row(partition)), (32, None, 32));
    assert_eq!(opened.aborted(partition, 0..32).len(), 1);
}

fn transaction_is_written_by_several_brokers_their_markers_and_openings_are_seen<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    let mut other = opened.another();
    let mut by_other = |opened: &mut Opened<B>, batches: Vec<ObjectBatch>| {
        let object = UploadedObject { id: opened.object(), batches };
        other.commit(&[object], NOW).expect("committed").verdicts.remove(0)
    };
    assert_eq!(opened.answer(vec![verified(batch(partition, 0, 0), 0)]).verdicts, [[appended(0)]]);
    let ongoing = ObjectBatch { confirmation: None, ..verified(batch(partition, 0, 10), 0) };
    assert_eq!(by_other(&mut opened, vec![ongoing]), [appended(10)], "it is open there, too");
    assert_eq!(by_other(&mut opened, vec![marker(partition, 0, (7, 0), false, 1)]), [appended(20)]);
    // The first broker has not read the marker yet. It must not open a transaction without a confirmation by the
    // coordinator, nor with a confirmation from before the marker.
    let late = ObjectBatch { confirmation: None, ..verified(batch(partition, 0, 20), 0) };
    assert_eq!(opened.answer(vec![late]).verdicts, [[UNVERIFIED]]);
    assert_eq!(opened.answer(vec![verified(batch(partition, 0, 20), 20)]).verdicts, [[UNVERIFIED]]);
    assert_eq!(opened.answer(vec![verified(batch(partition, 0, 20), 21)]).verdicts, [[appended(21)]]);
    let plain = batch(partition, 0, 30);
    assert_eq!(by_other(&mut opened, vec![plain]), [refused(SequenceRefusal::InvalidTxnState)]);
    assert_eq!(shown(&mut opened.index, partition), shown(&mut other, partition));
    let refreshed = other.refresh_one(partition, 10).expect("known").expect("there");
    let kinds: Vec<_> =
        refreshed.producers.iter().map(|row| (row.base_offset(), row.batches.batches[0].kind)).collect();
    let ends = BatchKind::Marker { coordinator_epoch: 4, is_commit: false, has_next_epoch: false };
    assert_eq!(kinds, [(10, BatchKind::Transactional), (20, ends), (21, BatchKind::Transactional)]);
}

fn answer_of_a_commit_with_a_marker_is_lost_it_is_answered_as_made<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    opened.answer(vec![verified(batch(partition, 0, 0), 0)]);
    let lost = UploadedObject {
        id: opened.object(),
        batches: vec![
            verified(batch(partition, 0, 10), 0),
            marker(partition, 100, (7, 1), false, 2),
            of_epoch(1, verified(batch(partition, 200, 0), 0)),
        ],
    };
    let made = [appended(10), appended(20), appended(21)];
    assert_eq!(opened.another().commit(std::slice::from_ref(&lost), NOW).expect("committed").verdicts, [made]);
    for _ in 0..2 {
        let answer = opened.index.commit(std::slice::from_ref(&lost), NOW).expect("answered");
        assert_eq!(answer.verdicts, [made]);
        assert_eq!(answer.partitions[0].0.last_stable_offset(), 21);
        assert_eq!(opened.aborted(partition, 0..40).len(), 1);
        opened.again();
    }
    // First the object loses all its extents, then the commit is requested again. The last batch is still recognised as
    // a duplicate. The first batch and the marker are refused, because the producer has a later epoch.
    opened.index.store.move_log_start(partition, 31).expect("moved").expect("there");
    opened.tidy();
    let verdicts = opened.index.commit(&[lost], NOW).expect("answered").verdicts.remove(0);
    let gone = [
        refused(SequenceRefusal::InvalidProducerEpoch),
        refused(SequenceRefusal::InvalidProducerEpoch),
        CommitVerdict::Duplicate { base_offset: 21, timestamp: NOW },
    ];
    assert_eq!(verdicts, gone, "the producer has gone on");
    assert_eq!(opened.row(partition).next_offset, 31);
}

/// Returns those transactions of a list that overlap a range.
fn in_range(all: &[AbortedTransaction], offsets: &std::ops::Range<i64>) -> Vec<AbortedTransaction> {
    let overlaps = |of: &&AbortedTransaction| of.last_offset >= offsets.start && of.first_offset < offsets.end;
    let mut found: Vec<_> = all.iter().filter(overlaps).copied().collect();
    found.sort_by_key(|of| of.first_offset);
    found
}

fn aborted_transactions_are_found_by_range<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let partition = opened.partitions[0];
    let mut random = Random::new(7);
    // The next sequence of each producer, and true if its transaction is open.
    let mut producers: BTreeMap<i64, (i32, bool)> = (1..6).map(|id| (id, (0, false))).collect();
    let mut expected = Vec::new();
    for _ in 0..40 {
        let (id, is_abort) = (1 + random.below(5) as i64, random.one_in(2));
        let (sequence, is_open) = producers[&id];
        let next = opened.row(partition).next_offset;
        let ends = is_open && random.one_in(2);
        let offered = match ends {
            true => marker(partition, 0, (id, 0), !is_abort, 1),
            false => verified(by(id, batch(partition, 0, sequence)), next),
        };
        let began =
            shown(&mut opened.index, partition).1.iter().find(|of| of.producer_id == id).and_then(|of| of.open_from);
        let answer = opened.answer(vec![offered]);
        assert_eq!(answer.verdicts, [[appended(next)]]);
        producers.insert(id, if ends { (sequence, false) } else { (sequence + 10, true) });
        if ends && is_abort {
            let (first_offset, last_stable_offset) =
                (began.expect("open"), answer.partitions[0].0.last_stable_offset());
            expected.push(AbortedTransaction { producer_id: id, first_offset, last_offset: next, last_stable_offset });
        }
    }
    assert!(expected.len() > 3);
    let end = opened.row(partition).next_offset;
    for start in (0..end).step_by(3) {
        for length in [1, 15, end] {
            let offsets = start..start + length;
            assert_eq!(opened.aborted(partition, offsets.clone()), in_range(&expected, &offsets), "{offsets:?}");
        }
    }
    // Each answer has two transactions that end in its range, and those that are open at the end of its range.
    let (mut from, mut answers) = (0, 0);
    while from < end {
        let found = opened.back_end.finder().aborted(partition, from..end, 2).expect("read");
        assert_eq!(found.transactions, in_range(&expected, &(from..found.end)), "{from}..{}", found.end);
        assert!(found.end > from && found.end <= end);
        (from, answers) = (found.end, answers + 1);
    }
    assert_eq!(answers, expected.len() / 2 + 1);
    assert!(opened.aborted(opened.partitions[1], 0..end).is_empty(), "another partition has none");
}

fn aborted_transactions_go_with_the_log_start_and_with_their_partition<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let [partition, other] = opened.partitions[..] else { panic!("two") };
    for number in 0..5 {
        let end = 11 * i64::from(number);
        let batches = [partition, other].map(|id| verified(batch(id, 0, 10 * number), end));
        opened.answer(batches.to_vec());
        opened.answer([partition, other].map(|id| marker(id, 0, (7, 0), false, 1)).to_vec());
    }
    let lasts =
        |opened: &Opened<B>, id| -> Vec<i64> { opened.aborted(id, 0..100).iter().map(|of| of.last_offset).collect() };
    assert_eq!(lasts(&opened, partition), [10, 21, 32, 43, 54]);
    // The log start of 25 is after the marker at 21. The marker at 32 stays, although its transaction begins before the
    // log start.
    opened.index.store.move_log_start(partition, 25).expect("moved").expect("there");
    opened.tidy();
    assert_eq!(lasts(&opened, partition), [32, 43, 54]);
    opened.index.store.move_log_start(partition, 33).expect("moved").expect("there");
    opened.tidy();
    assert_eq!((lasts(&opened, partition).len(), lasts(&opened, other).len()), (2, 5));
    opened.index.delete(TOPIC, &[partition, other]).expect("deleted");
    opened.tidy();
    assert!(lasts(&opened, partition).is_empty() && lasts(&opened, other).is_empty());
}

fn records_of_an_open_transaction_are_deleted_it_ends_with_its_marker<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    opened.answer(vec![verified(batch(partition, 0, 0), 0), by(8, batch(partition, 100, 0))]);
    opened.index.store.move_log_start(partition, 20).expect("moved").expect("there");
    opened.tidy();
    assert!(opened.back_end.finder().runs_from(partition, 0, 1).expect("read").is_empty());
    opened.again();
    let (row, producers) = shown(&mut opened.index, partition);
    assert_eq!((row.first_unstable, row.last_stable_offset()), (Some(0), 20));
    assert_eq!(producers[0].open_from, Some(0));
    assert_eq!(opened.answer(vec![batch(partition, 0, 10)]).verdicts, [[refused(SequenceRefusal::InvalidTxnState)]]);
    opened.answer(vec![marker(partition, 0, (7, 0), false, 1)]);
    let aborted = AbortedTransaction { producer_id: 7, first_offset: 0, last_offset: 20, last_stable_offset: 21 };
    assert_eq!(opened.aborted(partition, 20..21), [aborted]);
    assert_eq!(opened.row(partition).last_stable_offset(), 21);
}

fn producer_has_an_open_transaction_it_does_not_expire<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    let late = opened.back_end.now_ms() + 10_000_000;
    let expire = |opened: &mut Opened<B>, now_ms: i64| {
        opened.index.expire_producers_after(1_000);
        while opened.index.tidy(10, now_ms).expect("tidied") {}
    };
    opened.answer(vec![verified(batch(partition, 0, 0), 0), by(8, batch(partition, 100, 0))]);
    opened.answer(vec![verified(batch(partition, 0, 10), 0)]);
    let ids = |shown: Shown| shown.1.iter().map(|of| of.producer_id).collect::<Vec<_>>();
    // PostgreSQL computes idle times by its own clock. Its time is earlier than `late`, but later than all writes.
    expire(&mut opened, late);
    assert_eq!(ids(shown(&mut opened.index, partition)), [7]);
    opened.again();
    let (row, producers) = shown(&mut opened.index, partition);
    assert_eq!((row.first_unstable, row.expired_to, producers[0].open_from), (Some(0), 8, Some(0)));
    opened.answer(vec![marker(partition, 0, (7, 0), true, 1)]);
    opened.again();
    expire(&mut opened, late);
    assert_eq!((ids(shown(&mut opened.index, partition)), opened.back_end.producer_rows(partition)), (vec![], 0));
    // In a deleted partition, even the rows of an open transaction expire.
    let opens = of_epoch(1, verified(batch(partition, 0, 0), 31));
    assert_eq!(opened.answer(vec![opens]).verdicts, [[appended(31)]]);
    opened.index.delete(TOPIC, &[partition]).expect("deleted");
    opened.again();
    expire(&mut opened, late);
    assert_eq!(opened.back_end.producer_rows(partition), 1, "that of producers that were forgotten is of now");
}

/// Two rows must stay although they are far older than the retained batches: the row with the producer's last marker,
/// and the row that opened its transaction.
fn old_rows_of_producers_are_removed_a_state_read_again_is_the_state_in_memory<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    opened.answer(vec![
        verified(batch(partition, 0, 0), 0),
        marker(partition, 100, (7, 1), false, 2),
        of_epoch(1, verified(batch(partition, 200, 0), 0)),
        verified(by(8, batch(partition, 300, 0)), 0),
        marker(partition, 400, (8, 0), true, 1),
    ]);
    for number in 1..2_400 {
        let of_8 = by(8, batch(partition, 100, 10 * number));
        opened.answer(vec![of_epoch(1, verified(batch(partition, 0, 10 * number), 0)), of_8]);
    }
    opened.tidy();
    let rows = opened.back_end.producer_rows(partition);
    assert!(rows < 3_000, "{rows} rows are left of 4,800");
    let kept = shown(&mut opened.index, partition);
    assert_eq!(kept.1.iter().map(|of| of.open_from).collect::<Vec<_>>(), [Some(11), None]);
    assert_eq!(kept.1.iter().map(|of| of.coordinator_epoch).collect::<Vec<_>>(), [4, 4]);
    let mut anew = opened.another();
    assert_eq!(shown(&mut anew, partition), kept);
    let next = kept.0.next_offset;
    let object = opened.object();
    let verdicts = opened.commit(object, &[marker(partition, 0, (7, 2), false, 2)]);
    assert_eq!(verdicts, [appended(next)]);
    // The marker of producer 8 left the epoch unchanged. A confirmation that is older than this marker must still be
    // refused.
    for known in [31, 41] {
        let batches = vec![verified(by(8, batch(partition, 0, 24_000)), known)];
        let mut anew = opened.another();
        let object = UploadedObject { id: opened.object(), batches };
        let verdict = anew.commit(&[object], NOW).expect("committed").verdicts.remove(0).remove(0);
        let is_refused = known == 31;
        assert_eq!(verdict == UNVERIFIED, is_refused, "known to {known}: {verdict:?}");
    }
}

fn topic_is_made_again_no_transaction_is_open_and_producers_go_on<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    // Producer 7 has an open transaction. The newest rows of producers 8 and 9 contain only a marker. The marker of
    // producer 8 left the epoch unchanged.
    opened.answer(vec![
        verified(batch(partition, 0, 0), 0),
        verified(by(8, batch(partition, 100, 0)), 0),
        verified(by(9, batch(partition, 200, 0)), 0),
    ]);
    opened.answer(vec![marker(partition, 0, (8, 0), true, 1), marker(partition, 100, (9, 1), true, 2)]);
    let next = Uuid([2; 16]);
    opened.back_end.add_topic("topic", next);
    opened.index.delete(TOPIC, &[partition]).expect("deleted");
    let made = opened.index.store.create("topic", next, 1).expect("made")[0];
    assert_eq!((made.first_unstable, made.last_stable_offset()), (None, 0));
    opened.tidy();
    let batches = |id| {
        [
            ObjectBatch { confirmation: None, ..verified(batch(id, 0, 10), 0) },
            by(8, batch(id, 100, 20)),
            by(9, batch(id, 200, 10)),
        ]
    };
    let gap = refused(SequenceRefusal::OutOfOrderSequence);
    let object = opened.object();
    assert_eq!(opened.commit(object, &batches(made.id)), [UNVERIFIED, gap, gap]);
    let go_on = [
        verified(batch(made.id, 0, 10), 0),
        by(8, batch(made.id, 100, 10)),
        of_epoch(1, by(9, batch(made.id, 200, 0))),
    ];
    let object = opened.object();
    assert_eq!(opened.commit(object, &go_on), [appended(0), appended(10), appended(20)]);
    assert_eq!(opened.row(made.id).first_unstable, Some(0));
}

fn topic_is_deleted_markers_for_it_are_answered_as_gone<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    opened.answer(vec![verified(batch(partition, 0, 0), 0)]);
    // The first marker is of an unknown producer. At the second one, the producer is known but has no open transaction.
    let verdicts =
        opened.answer(vec![marker(partition, 0, (99, 3), true, 2), marker(partition, 100, (99, 3), true, 2)]);
    assert_eq!(verdicts.verdicts, [[appended(10), appended(11)]]);
    assert!(opened.aborted(partition, 0..20).is_empty());
    opened.back_end.store().delete(TOPIC, &[]).expect("deleted");
    let gone = CommitVerdict::Refused(Refusal::PartitionGone);
    for _ in 0..2 {
        assert_eq!(opened.answer(vec![marker(partition, 0, (7, 1), false, 2)]).verdicts, [[gone]]);
        opened.tidy();
        opened.again();
    }
}
