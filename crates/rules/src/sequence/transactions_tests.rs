//! Compares the transactions of a partition with a naive model, which is the list of its batches and markers, read from
//! end to end.

use proptest::prelude::*;

use super::*;

const PRODUCERS: i64 = 3;
const WINDOW: usize = 5;

fn stamp(producer_id: i64, producer_epoch: i16, base_sequence: i32) -> Stamp {
    Stamp { producer_id, producer_epoch, base_sequence, record_count: 2 }
}

fn marker(producer_id: i64, producer_epoch: i16, coordinator_epoch: i32) -> Marker {
    Marker { producer_id, producer_epoch, coordinator_epoch, is_commit: false }
}

fn versioned(marker: Marker, transaction_version: i8) -> VersionedMarker {
    VersionedMarker { marker, transaction_version }
}

fn begun(producers: &mut Producers, stamp: Stamp, base_offset: i64) {
    assert_eq!(producers.transaction_of(&stamp, true), Ok(TransactionOfBatch::Begins));
    producers.append(&stamp, base_offset, 0, 0, WINDOW);
    producers.append_transactional(&stamp, base_offset, 0, 0);
}

#[test]
fn open_transaction_refuses_a_plain_batch_and_continues_with_the_next() {
    let mut producers = Producers::default();
    begun(&mut producers, stamp(1, 0, 0), 10);
    let next = stamp(1, 0, 2);
    assert_eq!(producers.transaction_of(&next, false), Err(SequenceRefusal::InvalidTxnState));
    assert_eq!(producers.transaction_of(&next, true), Ok(TransactionOfBatch::Ongoing));
    assert_eq!(producers.transaction_of(&stamp(1, 1, 0), true), Ok(TransactionOfBatch::Begins), "another epoch");
    assert_eq!(producers.transaction_of(&stamp(2, 0, 0), false), Ok(TransactionOfBatch::None));
    assert_eq!(producers.first_open(), Some(10));
}

/// The coordinator's confirmation of a batch may arrive after the transaction's marker was forgotten together with its
/// producer. The batch must then be verified again.
#[test]
fn transaction_ended_meanwhile_shows_even_for_a_forgotten_or_returned_producer() {
    let mut producers = Producers::bounded(2);
    let other = |producers: &mut Producers, id: i64| producers.append(&stamp(id, 0, 0), 10 * id, 0, 0, WINDOW);
    let has_ended = |producers: &Producers, seen: TransactionsSeen| producers.may_have_ended_since(1, seen);
    let unknown = producers.transactions_seen(1);
    assert!(!has_ended(&producers, unknown));
    (2..=4).for_each(|id| other(&mut producers, id));
    let later = producers.transactions_seen(1);
    assert!(!has_ended(&producers, later), "those that are forgotten were known before");
    producers.end_transaction(&marker(1, 1, 4), 100, 0, 0);
    let marked = producers.transactions_seen(1);
    assert_eq!([later, marked].map(|seen| has_ended(&producers, seen)), [true, false]);
    producers.end_transaction(&marker(1, 1, 4), 110, 0, 0);
    let again = producers.transactions_seen(1);
    assert_eq!([marked, again].map(|seen| has_ended(&producers, seen)), [true, false]);
    producers.end_transaction(&marker(1, 2, 4), 120, 0, 0);
    assert!(!has_ended(&producers, again), "the epoch refuses what is late");
    (5..=6).for_each(|id| other(&mut producers, id));
    assert_eq!([unknown, later, again].map(|seen| has_ended(&producers, seen)), [true; 3], "it is forgotten");
    producers.append(&stamp(1, 1, 0), 200, 0, 0, WINDOW);
    assert_eq!([unknown, later, again].map(|seen| has_ended(&producers, seen)), [true; 3], "it is known again");
    let known = producers.transactions_seen(1);
    assert!(!has_ended(&producers, known));
}

/// The marker and the batch have the same epoch, and the partition did not know that epoch before the marker. With
/// version 1, the batch may belong to the ended transaction.
#[test]
fn batch_verified_before_a_version_1_marker_that_raises_the_epoch_may_be_of_the_ended_transaction() {
    let mut producers = Producers::default();
    begun(&mut producers, stamp(1, 0, 0), 10);
    producers.end_appended(&versioned(marker(1, 0, 4), 1), 12, 0, 0);
    let seen = producers.transactions_seen(1);
    producers.end_appended(&versioned(marker(1, 2, 4), 2), 13, 0, 0);
    assert!(
        !producers.may_have_ended_since(1, seen),
        "version 2: batches of epoch 2 come later, those before are refused"
    );
    let seen = producers.transactions_seen(1);
    producers.end_appended(&versioned(marker(1, 3, 4), 1), 14, 0, 0);
    assert!(producers.may_have_ended_since(1, seen));
    let seen = producers.transactions_seen(1);
    begun(&mut producers, stamp(1, 4, 0), 15);
    assert!(!producers.may_have_ended_since(1, seen), "the next epoch");
    producers.end_appended(&versioned(marker(1, 4, 4), 1), 17, 0, 0);
    assert!(producers.may_have_ended_since(1, seen));
}

#[test]
fn marker_of_a_new_coordinator_shows_that_the_old_one_is_replaced() {
    let mut producers = Producers::default();
    let is_replaced = |producers: &Producers, id: i64, epoch: i32| producers.has_later_coordinator(id, epoch);
    assert!(!is_replaced(&producers, 1, 0), "no transaction has ended");
    producers.end_transaction(&marker(1, 0, 4), 10, 0, 0);
    assert_eq!([3, 4, 5].map(|epoch| is_replaced(&producers, 1, epoch)), [true, false, false]);
    begun(&mut producers, stamp(1, 0, 0), 11);
    assert!(is_replaced(&producers, 1, 3), "the next transaction changes nothing");
    assert!(!is_replaced(&producers, 2, 3), "of another producer");
}

#[test]
fn marker_with_the_next_epoch_the_producer_begins_at_zero() {
    let mut producers = Producers::default();
    begun(&mut producers, stamp(1, 0, 0), 10);
    assert_eq!(producers.check_marker(&versioned(marker(1, 0, 4), 2)), Err(SequenceRefusal::InvalidProducerEpoch));
    assert_eq!(producers.check_marker(&versioned(marker(1, 1, 4), 2)), Ok(()));
    let completed = producers.end_transaction(&marker(1, 1, 4), 12, 7, 0);
    let expected = CompletedTransaction {
        producer_id: 1,
        first_offset: 10,
        last_offset: 12,
        last_stable_offset: 13,
        is_commit: false,
    };
    assert_eq!(completed, Some(expected));
    assert_eq!(producers.check(&stamp(1, 0, 2), 13), Verdict::Refuse(SequenceRefusal::InvalidProducerEpoch));
    assert_eq!(producers.check(&stamp(1, 1, 2), 13), Verdict::Refuse(SequenceRefusal::OutOfOrderSequence));
    assert_eq!(producers.check(&stamp(1, 1, 0), 13), Verdict::Append);
    let state = producers.iter().next().expect("known");
    assert_eq!((state.producer_epoch, state.last_sequence, state.last_timestamp), (1, -1, 7));
    assert_eq!((state.coordinator_epoch, state.open_from), (4, None));
    assert_eq!(producers.check_marker(&versioned(marker(1, 1, 4), 2)), Ok(()), "the same once more");
    assert_eq!(producers.end_transaction(&marker(1, 1, 4), 13, 8, 0), None);
}

#[test]
fn marker_with_the_same_epoch_the_sequence_continues() {
    let mut producers = Producers::default();
    begun(&mut producers, stamp(1, 3, 0), 10);
    assert_eq!(producers.check_marker(&versioned(marker(1, 2, 0), 0)), Err(SequenceRefusal::InvalidProducerEpoch));
    assert_eq!(producers.check_marker(&versioned(marker(1, 3, 0), 0)), Ok(()));
    assert!(producers.end_transaction(&marker(1, 3, 0), 12, 0, 0).is_some());
    assert_eq!(producers.check(&stamp(1, 3, 2), 13), Verdict::Append);
    assert_eq!(producers.check(&stamp(1, 3, 0), 13), Verdict::Duplicate { base_offset: 10, timestamp: 0 });
}

#[test]
fn marker_of_an_older_coordinator_is_refused() {
    let mut producers = Producers::default();
    producers.end_transaction(&marker(1, 0, 5), 0, 0, 0);
    assert_eq!(producers.check_marker(&versioned(marker(1, 1, 4), 2)), Err(SequenceRefusal::CoordinatorFenced));
    assert_eq!(producers.check_marker(&versioned(marker(1, 1, 5), 2)), Ok(()));
    assert_eq!(producers.check_marker(&versioned(marker(9, 0, 0), 2)), Ok(()), "an unknown producer");
}

#[test]
fn marker_that_is_not_replicated_leaves_its_records_unstable() {
    let mut producers = Producers::default();
    begun(&mut producers, stamp(1, 0, 0), 10);
    begun(&mut producers, stamp(2, 0, 0), 12);
    let completed = producers.end_transaction(&marker(1, 1, 0), 14, 0, 0).expect("was open");
    assert_eq!(completed.last_stable_offset, 12, "of the other");
    assert_eq!((producers.first_unstable(14), producers.first_open()), (Some(10), Some(12)));
    assert_eq!(producers.first_unstable(15), Some(12));
    producers.end_transaction(&marker(2, 1, 0), 15, 0, 0);
    assert_eq!(producers.first_unstable(16), None);
}

#[test]
fn producer_with_an_open_transaction_is_neither_expired_nor_evicted() {
    let mut producers = Producers::bounded(2);
    begun(&mut producers, stamp(1, 0, 0), 0);
    begun(&mut producers, stamp(2, 0, 0), 2);
    assert_eq!(producers.transaction_of(&stamp(3, 0, 0), true), Err(SequenceRefusal::TooManyTransactions));
    for id in 3..6 {
        producers.append(&stamp(id, 0, 0), id * 2, 0, 0, WINDOW);
    }
    assert_eq!(producers.expire(i64::MAX, 1), 0, "plain ones are past the limit, and so evicted");
    assert_eq!(producers.iter().map(|state| state.producer_id).collect::<Vec<_>>(), [1, 2]);
    producers.end_transaction(&marker(1, 1, 0), 20, 0, 0);
    assert_eq!(producers.expire(i64::MAX, 1), 1);
    assert_eq!(producers.len(), 1);
}

#[test]
fn batch_without_a_sequence_opens_a_transaction_and_the_epoch_begins_at_zero() {
    let mut producers = Producers::default();
    let offsets = Stamp { producer_id: 1, producer_epoch: 2, base_sequence: -1, record_count: 3 };
    assert_eq!(producers.check_unsequenced(&offsets), Ok(()));
    producers.append_transactional(&offsets, 10, 5, 0);
    assert_eq!(producers.first_open(), Some(10));
    assert_eq!(producers.transaction_of(&offsets, true), Ok(TransactionOfBatch::Ongoing));
    assert_eq!(producers.check(&stamp(1, 2, 0), 13), Verdict::Append);
    let older = Stamp { producer_epoch: 1, ..offsets };
    assert_eq!(producers.check_unsequenced(&older), Err(SequenceRefusal::InvalidProducerEpoch));
    let mut restored = Producers::default();
    restored.restore(producers.snapshot(), 0, WINDOW);
    assert_eq!(restored.first_open(), Some(10));
}

#[derive(Clone, Debug)]
enum Step {
    Append { producer_id: i64, is_transactional: bool },
    End { producer_id: i64, is_commit: bool, bumps: bool },
    Replicate { behind: i64 },
    Restart,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Batch { stamp: Stamp, base_offset: i64, is_transactional: bool },
    Marker { marker: Marker, offset: i64 },
}

#[derive(Default)]
struct Model {
    producers: Producers,
    log: Vec<Entry>,
    log_end: i64,
    high_watermark: i64,
    /// The epoch and the next sequence of each producer.
    clients: [(i16, i32); PRODUCERS as usize],
}

impl Model {
    /// Returns the first offsets of all transactions that have no marker below `upto`, by reading the whole list.
    fn open_below(&self, upto: i64) -> Vec<i64> {
        let mut open = std::collections::BTreeMap::new();
        for entry in &self.log {
            match *entry {
                Entry::Batch { stamp, base_offset, is_transactional: true } => {
                    open.entry(stamp.producer_id).or_insert(base_offset);
                }
                Entry::Marker { marker, offset } if offset < upto => _ = open.remove(&marker.producer_id),
                _ => {}
            }
        }
        open.into_values().collect()
    }

    fn is_open(&self, producer_id: i64) -> bool {
        let own = self.log.iter().rev().find_map(|entry| match *entry {
            Entry::Batch { stamp, is_transactional, .. } if stamp.producer_id == producer_id => Some(is_transactional),
            Entry::Marker { marker, .. } if marker.producer_id == producer_id => Some(false),
            _ => None,
        });
        own == Some(true)
    }

    fn append(&mut self, producer_id: i64, is_transactional: bool) {
        let (epoch, sequence) = self.clients[producer_id as usize];
        let stamp = stamp(producer_id, epoch, sequence);
        assert_eq!(self.producers.check(&stamp, self.log_end), Verdict::Append);
        let expected = match (is_transactional, self.is_open(producer_id)) {
            (false, true) => Err(SequenceRefusal::InvalidTxnState),
            (false, false) => Ok(TransactionOfBatch::None),
            (true, true) => Ok(TransactionOfBatch::Ongoing),
            (true, false) => Ok(TransactionOfBatch::Begins),
        };
        assert_eq!(self.producers.transaction_of(&stamp, is_transactional), expected);
        if expected.is_err() {
            return;
        }
        let entry = Entry::Batch { stamp, base_offset: self.log_end, is_transactional };
        apply(&mut self.producers, &entry);
        self.log.push(entry);
        self.log_end += 2;
        self.clients[producer_id as usize].1 += 2;
    }

    fn end(&mut self, producer_id: i64, is_commit: bool, bumps: bool) {
        let (epoch, _) = self.clients[producer_id as usize];
        let marker = Marker { producer_id, producer_epoch: epoch + i16::from(bumps), coordinator_epoch: 0, is_commit };
        assert_eq!(self.producers.check_marker(&versioned(marker, if bumps { 2 } else { 0 })), Ok(()));
        let was_open = self.is_open(producer_id);
        let entry = Entry::Marker { marker, offset: self.log_end };
        let completed = apply(&mut self.producers, &entry);
        self.log.push(entry);
        self.log_end += 1;
        assert_eq!(completed.is_some(), was_open);
        let still_open = self.open_below(i64::MAX).into_iter().min();
        if let Some(completed) = completed {
            assert_eq!(completed.last_stable_offset, still_open.unwrap_or(self.log_end));
        }
        if bumps {
            self.clients[producer_id as usize] = (epoch + 1, 0);
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Append { producer_id, is_transactional } => self.append(producer_id, is_transactional),
            Step::End { producer_id, is_commit, bumps } => self.end(producer_id, is_commit, bumps),
            Step::Replicate { behind } => {
                self.high_watermark = self.high_watermark.max(self.log_end - behind);
            }
            Step::Restart => {
                let mut restored = Producers::default();
                restored.restore(self.producers.snapshot(), 0, WINDOW);
                assert!(restored.snapshot().eq(self.producers.snapshot()));
                assert_eq!(restored.first_open(), self.producers.first_open());
                // The snapshot does not contain unreplicated markers, so all markers now count as replicated.
                self.producers = restored;
                self.high_watermark = self.log_end;
            }
        }
        let unstable = self.open_below(self.high_watermark).into_iter().min();
        assert_eq!(self.producers.first_unstable(self.high_watermark), unstable);
        assert_eq!(self.producers.first_open(), self.open_below(i64::MAX).into_iter().min());
        let idle = self.producers.idle.len() + self.open_below(i64::MAX).len();
        assert_eq!(idle, self.producers.len());
    }
}

fn apply(producers: &mut Producers, entry: &Entry) -> Option<CompletedTransaction> {
    match *entry {
        Entry::Batch { stamp, base_offset, is_transactional } => {
            producers.append(&stamp, base_offset, base_offset, 0, WINDOW);
            if is_transactional {
                producers.append_transactional(&stamp, base_offset, base_offset, 0);
            }
            None
        }
        Entry::Marker { marker, offset } => producers.end_transaction(&marker, offset, offset, 0),
    }
}

fn step() -> impl Strategy<Value = Step> {
    let producer_id = 0..PRODUCERS;
    prop_oneof![
        6 => (producer_id.clone(), prop::bool::weighted(0.7))
            .prop_map(|(producer_id, is_transactional)| Step::Append { producer_id, is_transactional }),
        4 => (producer_id, any::<bool>(), any::<bool>())
            .prop_map(|(producer_id, is_commit, bumps)| Step::End { producer_id, is_commit, bumps }),
        3 => (0..6_i64).prop_map(|behind| Step::Replicate { behind }),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #[test]
    fn random_transactions_leave_the_state_of_the_list(steps in prop::collection::vec(step(), 1..80)) {
        let mut model = Model::default();
        steps.iter().for_each(|step| model.run(step));
        let mut replayed = Producers::default();
        model.log.iter().for_each(|entry| _ = apply(&mut replayed, entry));
        prop_assert_eq!(replayed.first_open(), model.producers.first_open());
        let sorted = |producers: &Producers| {
            let mut entries: Vec<_> = producers.snapshot().collect();
            entries.sort_by_key(|entry| (entry.producer_id, entry.last_offset));
            entries
        };
        prop_assert_eq!(sorted(&replayed), sorted(&model.producers));
    }
}
