//! Tests of the reorder buffer, case by case and with a network that delays, duplicates and reorders batches. In
//! whatever order copies arrive, the log must have each batch of an epoch once, in the order of sequences. Each copy
//! must get one response.

use std::collections::BTreeMap;

use fullbore_schedules::Random;
use proptest::prelude::*;

use super::super::{Producers, Verdict};
use super::*;

const WAIT_MS: u64 = 100;

fn stamp(producer_id: i64, producer_epoch: i16, base_sequence: i32) -> Stamp {
    Stamp { producer_id, producer_epoch, base_sequence, record_count: 1 }
}

#[test]
fn append_releases_only_the_batch_that_follows() {
    let mut parking = Parking::default();
    for (producer, sequence) in [(1, 1), (1, 3), (2, 1)] {
        assert!(parking.park(&stamp(producer, 0, sequence), (producer, sequence), 10, WAIT_MS).is_empty());
    }
    let freed = parking.appended(&stamp(1, 0, 0));
    assert_eq!(freed, Freed { fenced: vec![], next: Some((1, 1)) });
    assert_eq!(parking.appended(&stamp(1, 0, 1)), Freed { fenced: vec![], next: None });
    assert_eq!(parking.len(), 2);
    assert_eq!(parking.give_up(1), [(1, 3)]);
    assert_eq!(parking.into_items().collect::<Vec<_>>(), [(2, 1)]);
}

#[test]
fn last_sequence_is_followed_by_the_first() {
    let mut parking = Parking::default();
    parking.park(&stamp(1, 0, 0), "zero", 10, WAIT_MS);
    assert_eq!(parking.appended(&stamp(1, 0, i32::MAX)).next, Some("zero"));
}

#[test]
fn newer_epoch_removes_the_older_one_parked_or_appended() {
    let mut parking = Parking::default();
    parking.park(&stamp(1, 0, 5), "old", 10, WAIT_MS);
    parking.park(&stamp(2, 0, 5), "other", 10, WAIT_MS);
    assert_eq!(parking.park(&stamp(1, 1, 3), "new", 10, WAIT_MS), ["old"]);
    assert_eq!(parking.room_for(&stamp(1, 0, 7), 5), Err(SequenceRefusal::InvalidProducerEpoch));
    assert_eq!(parking.appended(&stamp(1, 0, 2)), Freed { fenced: vec![], next: None }, "of the older epoch");
    assert_eq!(parking.appended(&stamp(1, 2, 0)), Freed { fenced: vec!["new"], next: None });
    assert_eq!(parking.len(), 1);
}

#[test]
fn slots_are_bounded_per_producer_and_epoch() {
    let mut parking = Parking::default();
    for sequence in 1..=3 {
        assert_eq!(parking.room_for(&stamp(1, 0, sequence), 3), Ok(Some(10 * (sequence as usize - 1))));
        parking.park(&stamp(1, 0, sequence), (), 10, WAIT_MS);
    }
    assert_eq!(parking.room_for(&stamp(1, 0, 4), 3), Ok(None));
    assert_eq!(parking.room_for(&stamp(1, 0, 3), 4), Err(SequenceRefusal::OutOfOrderSequence), "the place is taken");
    assert_eq!(parking.room_for(&stamp(1, 1, 4), 3), Ok(Some(0)), "a new epoch has all places");
    assert_eq!(parking.room_for(&stamp(2, 0, 4), 3), Ok(Some(0)));
    assert_eq!(parking.room_for(&stamp(2, 0, 4), 0), Ok(None));
    assert!(parking.find(&stamp(1, 0, 3)).is_some());
    assert!(parking.find(&Stamp { record_count: 2, ..stamp(1, 0, 3) }).is_none());
    assert!(parking.find(&stamp(1, 1, 3)).is_none());
}

#[test]
fn batch_replaces_the_one_farthest_ahead_and_none_before_it() {
    let mut parking = Parking::default();
    for sequence in [i32::MAX - 1, 1, 5, 3] {
        parking.park(&stamp(1, 0, sequence), sequence, 10, WAIT_MS);
    }
    parking.park(&stamp(2, 0, 9), 9, 10, WAIT_MS);
    assert_eq!(parking.take_farther(&stamp(1, 0, 6)), None);
    assert_eq!(parking.take_farther(&stamp(1, 1, 2)), None, "those of another epoch are no matter of places");
    assert_eq!(parking.take_farther(&stamp(1, 0, 2)), Some(5));
    assert_eq!(parking.take_farther(&stamp(1, 0, 2)), Some(3));
    assert_eq!(parking.take_farther(&stamp(1, 0, 2)), None);
    assert_eq!(parking.take_farther(&stamp(1, 0, i32::MAX)), Some(1), "0 follows the last sequence");
    assert_eq!((parking.len(), parking.has(1), parking.has(2)), (2, true, true));
}

#[test]
fn due_batches_expire_oldest_first_and_the_others_stay() {
    let mut parking = Parking::default();
    for sequence in 1..=4 {
        parking.park(&stamp(1, 0, sequence), sequence, 10, WAIT_MS + sequence as u64);
    }
    assert_eq!(parking.appended(&stamp(1, 0, 0)).next, Some(1));
    assert_eq!(parking.next_due_ms(), Some(WAIT_MS + 2));
    assert_eq!(parking.expire(WAIT_MS + 3), [2, 3]);
    assert_eq!((parking.len(), parking.next_due_ms()), (1, Some(WAIT_MS + 4)));
    assert_eq!(parking.expire(WAIT_MS + 4), [4]);
    assert!(parking.is_empty() && parking.producers.is_empty() && parking.next_due_ms().is_none());
}

#[test]
fn producer_gets_half_of_the_bytes_that_others_leave() {
    assert!(fits(0, 50, 0, 100));
    assert!(!fits(0, 51, 0, 100));
    assert!(fits(49, 1, 49, 100));
    assert!(!fits(50, 1, 50, 100));
    assert!(fits(0, 25, 50, 100), "another one still finds room");
    assert!(!fits(0, 1, 100, 100));
    assert!(!fits(0, 101, 0, 100));
    assert!(!fits(0, 1, 200, 100), "a limit that was lowered");
}

/// The response to a copy of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Offset(i64),
    Refused(SequenceRefusal),
}

/// A server that uses the producer state and the reorder buffer together, as the broker does.
struct Server {
    producers: Producers,
    parking: Parking<(Stamp, Vec<usize>)>,
    log: Vec<(Stamp, i64)>,
    log_end: i64,
    window: usize,
    bytes_max: usize,
    now_ms: u64,
    answers: Vec<(usize, Answer)>,
}

impl Server {
    fn receive(&mut self, copy: usize, stamp: Stamp) {
        if self.producers.ahead(&stamp) > 0 {
            return self.park(copy, stamp);
        }
        match self.producers.check(&stamp, self.log_end) {
            Verdict::Append => self.append(stamp, vec![copy]),
            Verdict::Duplicate { base_offset, .. } => self.answers.push((copy, Answer::Offset(base_offset))),
            Verdict::Refuse(refusal) => self.answers.push((copy, Answer::Refused(refusal))),
        }
    }

    fn park(&mut self, copy: usize, stamp: Stamp) {
        if let Some((_, copies)) = self.parking.find(&stamp) {
            return copies.push(copy);
        }
        loop {
            let used = self.parking.len();
            match self.parking.room_for(&stamp, self.window) {
                Ok(Some(own)) if fits(own, 1, used, self.bytes_max) => {
                    let fenced = self.parking.park(&stamp, (stamp, vec![copy]), 1, self.now_ms + WAIT_MS);
                    return self.refuse(fenced, SequenceRefusal::InvalidProducerEpoch);
                }
                Ok(_) => match self.parking.take_farther(&stamp) {
                    Some(farther) => self.refuse(vec![farther], SequenceRefusal::OutOfOrderSequence),
                    None => break,
                },
                Err(refusal) => return self.answers.push((copy, Answer::Refused(refusal))),
            }
        }
        let behind = |parked: &Stamp| sequence_distance(stamp.base_sequence, parked.base_sequence) < HALF_RANGE;
        let epoch = |parked: &Stamp| parked.producer_epoch == stamp.producer_epoch;
        assert!(
            !self.parking.stamps_of(stamp.producer_id).any(|parked| epoch(&parked) && behind(&parked)),
            "{stamp:?} is refused, whose answer may be behind that of one that waits for it"
        );
        self.answers.push((copy, Answer::Refused(SequenceRefusal::OutOfOrderSequence)));
    }

    fn append(&mut self, stamp: Stamp, copies: Vec<usize>) {
        let mut next = Some((stamp, copies));
        while let Some((stamp, copies)) = next {
            assert_eq!(self.producers.check(&stamp, self.log_end), Verdict::Append, "{stamp:?}");
            let base_offset = self.log_end;
            self.producers.append(&stamp, base_offset, 0, 0, self.window);
            self.log.push((stamp, base_offset));
            self.log_end += i64::from(stamp.record_count);
            self.answers.extend(copies.into_iter().map(|copy| (copy, Answer::Offset(base_offset))));
            let freed = self.parking.appended(&stamp);
            self.refuse(freed.fenced, SequenceRefusal::InvalidProducerEpoch);
            next = freed.next;
        }
    }

    fn expire(&mut self) {
        self.now_ms += WAIT_MS / 2;
        let expired = self.parking.expire(self.now_ms);
        self.refuse(expired, SequenceRefusal::OutOfOrderSequence);
    }

    fn refuse(&mut self, items: Vec<(Stamp, Vec<usize>)>, refusal: SequenceRefusal) {
        for (_, copies) in items {
            self.answers.extend(copies.into_iter().map(|copy| (copy, Answer::Refused(refusal))));
        }
    }
}

/// A batch that the client has sent: its stamp, and how many copies are in flight.
struct Sent {
    stamp: Stamp,
    under_way: usize,
}

/// A client with a window of batches, and the network between it and the server.
struct Run {
    random: Random,
    server: Server,
    epoch: i16,
    next_sequence: i32,
    /// The unacknowledged batches by number, so the oldest comes first.
    open: BTreeMap<u64, Sent>,
    next_batch: u64,
    /// The copies in flight.
    network: Vec<usize>,
    /// The stamp and the batch of every copy that was ever sent.
    copies: Vec<(Stamp, u64)>,
    answered: Vec<usize>,
}

const FIRST_SEQUENCE: i32 = i32::MAX - 60;

impl Run {
    fn new(seed: u64, window: usize, bytes_max: usize) -> Run {
        let mut producers = Producers::default();
        let first = Stamp { record_count: 1, ..stamp(1, 0, FIRST_SEQUENCE - 1) };
        producers.append(&first, 0, 0, 0, window);
        Run {
            random: Random::new(seed),
            server: Server {
                producers,
                parking: Parking::default(),
                log: vec![(first, 0)],
                log_end: 1,
                window,
                bytes_max,
                now_ms: 0,
                answers: Vec::new(),
            },
            epoch: 0,
            next_sequence: FIRST_SEQUENCE,
            open: BTreeMap::new(),
            next_batch: 0,
            network: Vec::new(),
            copies: Vec::new(),
            answered: Vec::new(),
        }
    }

    fn send(&mut self) {
        let within =
            self.open.first_key_value().is_none_or(|(oldest, _)| self.next_batch - oldest < self.server.window as u64);
        if within {
            let record_count = 1 + self.random.below(3) as i32;
            let stamp = Stamp { record_count, ..stamp(1, self.epoch, self.next_sequence) };
            self.next_sequence = sequence_add(self.next_sequence, record_count);
            self.open.insert(self.next_batch, Sent { stamp, under_way: 0 });
            self.transmit(self.next_batch);
            self.next_batch += 1;
        }
    }

    fn transmit(&mut self, batch: u64) {
        let sent = self.open.get_mut(&batch).expect("only what is open is sent");
        sent.under_way += 1;
        self.network.push(self.copies.len());
        self.copies.push((sent.stamp, batch));
    }

    /// Resends an unacknowledged batch, as after a lost connection. Other copies of it may have arrived or not.
    fn retry(&mut self) {
        let open: Vec<u64> = self.open.iter().filter(|(_, sent)| sent.under_way < 3).map(|(batch, _)| *batch).collect();
        if !open.is_empty() {
            let batch = open[self.random.below(open.len())];
            self.transmit(batch);
        }
    }

    /// Delivers a random copy that is in flight.
    fn deliver(&mut self) {
        if !self.network.is_empty() {
            let copy = self.network.swap_remove(self.random.below(self.network.len()));
            self.server.receive(copy, self.copies[copy].0);
            self.take_answers();
        }
    }

    fn take_answers(&mut self) {
        for (copy, answer) in std::mem::take(&mut self.server.answers) {
            self.answered.push(copy);
            let (stamp, batch) = self.copies[copy];
            let Some(sent) = self.open.get_mut(&batch) else { continue };
            sent.under_way -= 1;
            match answer {
                Answer::Offset(offset) => {
                    assert!(self.server.log.contains(&(stamp, offset)), "{stamp:?} is not at {offset}");
                    self.open.remove(&batch);
                }
                Answer::Refused(SequenceRefusal::OutOfOrderSequence) => {}
                Answer::Refused(refusal) => panic!("{stamp:?} was refused as {refusal:?}"),
            }
        }
    }

    /// Makes the client give up its unacknowledged batches and begin a new epoch.
    fn bump(&mut self) {
        self.open.clear();
        self.epoch += 1;
        self.next_sequence = 0;
    }

    /// Delivers and resends copies until all batches are acknowledged.
    fn finish(&mut self) {
        let mut rounds = 0;
        while !self.open.is_empty() || !self.network.is_empty() || !self.server.parking.is_empty() {
            let lost: Vec<u64> =
                self.open.iter().filter(|(_, sent)| sent.under_way == 0).map(|(batch, _)| *batch).collect();
            lost.into_iter().for_each(|batch| self.transmit(batch));
            while !self.network.is_empty() {
                self.deliver();
            }
            self.server.expire();
            self.take_answers();
            rounds += 1;
            assert!(rounds < 5_000, "{} batches never come through", self.open.len());
        }
    }

    fn check_log(&self) {
        for pair in self.server.log.windows(2) {
            let ((before, before_offset), (after, offset)) = (pair[0], pair[1]);
            assert_eq!(offset, before_offset + i64::from(before.record_count));
            let follows = if after.producer_epoch == before.producer_epoch {
                after.base_sequence == sequence_add(before.last_sequence(), 1)
            } else {
                after.producer_epoch > before.producer_epoch && after.base_sequence == 0
            };
            assert!(follows, "{after:?} after {before:?}");
        }
        let mut answered = self.answered.clone();
        answered.sort_unstable();
        assert!(answered.iter().copied().eq(0..self.copies.len()), "each copy is answered once");
    }
}

fn any_order(seed: u64, window: usize, bytes_max: usize, bumps: bool) -> Run {
    let mut run = Run::new(seed, window, bytes_max);
    for _ in 0..window.max(40) * 6 {
        match run.random.below(20) {
            0..9 => run.send(),
            9..18 => run.deliver(),
            18 => run.retry(),
            _ if run.random.one_in(8) && bumps => run.bump(),
            _ if run.random.one_in(4) => {
                run.server.expire();
                run.take_answers();
            }
            _ => {}
        }
        assert!(run.server.parking.len() <= window, "more than the window is parked");
    }
    run.finish();
    run.check_log();
    run
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_order_within_the_window_is_appended_once_in_order(seed: u64, window in prop::sample::select(vec![5usize, 64, 1024])) {
        let run = any_order(seed, window, usize::MAX / 2, false);
        let sent: i64 = run.copies.iter().map(|(stamp, batch)| (*batch, i64::from(stamp.record_count))).collect::<BTreeMap<_, _>>().values().sum();
        prop_assert_eq!(run.server.log_end, 1 + sent, "every batch, once");
    }

    #[test]
    fn new_epochs_and_a_small_buffer_keep_the_log_in_order(seed: u64, window in prop::sample::select(vec![5usize, 64, 1024]), bytes_max in 1usize..40) {
        any_order(seed, window, bytes_max, true);
    }
}
