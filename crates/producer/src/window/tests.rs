//! Each rule of the window by example, then all of them against the broker's own rules over a hostile network.

use super::*;
use crate::partitioner::splitmix;
use fullbore_rules::sequence::{Producers, Refusal, Stamp as BrokerStamp, Verdict};

const IDENTITY: Identity = Identity { producer_id: 9, epoch: 0 };

fn window() -> Window<u32> {
    let mut window = Window::new(true);
    assert_eq!(window.wants_identity(), Some(None));
    assert!(!window.may_open(), "nothing leaves without a producer id");
    window.adopt(IDENTITY);
    window
}

/// A window whose first batch is acknowledged, with `n` more of one record each in flight.
fn in_flight(n: usize) -> (Window<u32>, Vec<Ticket>) {
    let mut window = window();
    let (first, _) = window.open(1);
    assert!(!window.may_open(), "one batch until the first acknowledgement");
    window.acked(first);
    let tickets = (0..n).map(|_| window.open(1).0).collect();
    (window, tickets)
}

#[test]
fn the_window_is_bounded_by_distance_not_by_count() {
    let (mut window, tickets) = in_flight(5);
    assert!(!window.may_open());
    for ticket in &tickets[1..] {
        window.acked(*ticket);
    }
    assert_eq!((window.in_flight(), window.span()), (1, 5));
    assert!(!window.may_open(), "the oldest is unresolved");
    window.acked(tickets[0]);
    assert!(window.may_open());
    assert_eq!(window.span(), 0);
}

#[test]
fn retries_go_in_order_with_their_own_sequences_once_all_is_resolved() {
    let (mut window, tickets) = in_flight(3);
    window.set_back(tickets[1], Setback::Retry { maybe: false }, 2);
    window.set_back(tickets[0], Setback::Retry { maybe: false }, 1);
    assert!(window.next_retry().is_none(), "one is in flight");
    window.set_back(tickets[2], Setback::OutOfOrder, 3);
    let again: Vec<_> = std::iter::from_fn(|| window.next_retry()).collect();
    let order: Vec<_> = again.iter().map(|(_, stamp, batch)| (stamp.base_sequence, *batch)).collect();
    assert_eq!(order, [(1, 1), (2, 2), (3, 3)]);
    assert!(window.may_open(), "new batches may follow");
    assert_eq!(window.open(1).1.base_sequence, 4);
}

#[test]
fn a_round_that_is_all_out_of_order_starts_a_new_epoch() {
    let (mut window, tickets) = in_flight(2);
    for (ticket, batch) in tickets.into_iter().zip(1..) {
        window.set_back(ticket, Setback::OutOfOrder, batch);
    }
    let (first, stamp, batch) = window.next_retry().unwrap();
    assert_eq!((stamp.producer_epoch, stamp.base_sequence, batch), (1, 0, 1));
    assert!(window.next_retry().is_none(), "one batch until the first acknowledgement of the epoch");
    window.acked(first);
    assert_eq!(window.next_retry().unwrap().1.base_sequence, 1);
}

#[test]
fn an_acknowledgement_proves_earlier_batches_that_the_broker_forgot() {
    let (mut window, tickets) = in_flight(3);
    for (ticket, batch) in tickets.iter().zip(1..) {
        window.set_back(*ticket, Setback::Retry { maybe: batch > 1 }, batch);
    }
    let again: Vec<Ticket> = std::iter::from_fn(|| window.next_retry()).map(|(ticket, ..)| ticket).collect();
    window.acked(again[0]);
    window.set_back(again[1], Setback::OutOfOrder, 2);
    window.acked(again[2]);
    assert_eq!(window.settled(), [(2, Fate::Written)]);
    assert!(window.is_idle() && window.span() == 0);
}

#[test]
fn a_hole_starts_a_new_epoch_only_when_nothing_is_in_flight() {
    let (mut window, tickets) = in_flight(3);
    window.given_up(tickets[0], false);
    assert!(!window.may_open());
    window.set_back(tickets[1], Setback::OutOfOrder, 2);
    assert!(window.next_retry().is_none());
    window.set_back(tickets[2], Setback::OutOfOrder, 3);
    let (ticket, stamp, batch) = window.next_retry().unwrap();
    assert_eq!((stamp.producer_epoch, stamp.base_sequence, batch), (1, 0, 2));
    window.acked(ticket);
    assert_eq!(window.next_retry().unwrap().1.base_sequence, 1);
}

#[test]
fn the_sequence_after_the_last_is_0() {
    let (mut window, _) = in_flight(0);
    window.next_sequence = i32::MAX - 1;
    let (ticket, stamp) = window.open(3);
    assert_eq!(stamp.base_sequence, i32::MAX - 1);
    window.acked(ticket);
    assert_eq!(window.open(1).1.base_sequence, 1);
}

#[test]
fn a_used_up_epoch_or_a_fenced_one_asks_for_another_producer_id() {
    for (epoch, setback) in [(i16::MAX, Setback::OutOfOrder), (3, Setback::Fenced)] {
        let mut window = window();
        window.identity = Some(Identity { producer_id: 9, epoch });
        let (ticket, _) = window.open(2);
        window.set_back(ticket, setback, 7);
        assert!(window.next_retry().is_none());
        assert_eq!(window.wants_identity(), Some(Some(9)));
        window.adopt(Identity { producer_id: 10, epoch: 0 });
        let (_, stamp, _) = window.next_retry().unwrap();
        assert_eq!((stamp.producer_id, stamp.producer_epoch, stamp.base_sequence), (10, 0, 0));
    }
}

#[test]
fn parts_of_a_split_batch_share_its_sequences() {
    let (mut window, _) = in_flight(0);
    let (big, stamp) = window.open(10);
    let (next, _) = window.open(1);
    assert_eq!(stamp.base_sequence, 1);
    window.split(big, vec![(4, 1), (6, 2)]);
    window.set_back(next, Setback::OutOfOrder, 3);
    let again: Vec<_> = std::iter::from_fn(|| window.next_retry()).map(|(_, s, b)| (s.base_sequence, b)).collect();
    assert_eq!(again, [(1, 1), (5, 2), (11, 3)]);
}

#[test]
fn without_idempotence_there_are_no_sequences_and_no_window() {
    let mut window: Window<u32> = Window::new(false);
    let tickets: Vec<Ticket> = (0..20)
        .map(|_| window.open(1))
        .map(|(t, s)| {
            assert_eq!(s, Stamp::NONE);
            t
        })
        .collect();
    assert!(window.may_open());
    window.given_up(tickets[3], true);
    assert!(window.may_open());
}

/// A batch on its way.
#[derive(Clone, Copy)]
struct Attempt {
    stamp: BrokerStamp,
    batch: u32,
}

/// The broker's log and its rules.
#[derive(Default)]
struct Broker {
    producers: Producers,
    log: Vec<u32>,
    newest: Option<(BrokerStamp, i64)>,
}

impl Broker {
    fn take(&mut self, attempt: Attempt, window: usize) -> Result<(), Refusal> {
        let end = self.log.len() as i64;
        match self.producers.check(&attempt.stamp, end) {
            Verdict::Append => {
                self.producers.append(&attempt.stamp, end, 0, 0, window);
                self.newest = Some((attempt.stamp, end));
                self.log.extend(std::iter::repeat_n(attempt.batch, attempt.stamp.record_count as usize));
                Ok(())
            }
            Verdict::Duplicate { .. } | Verdict::Refuse(Refusal::DuplicateSequence) => Ok(()),
            Verdict::Refuse(refusal) => Err(refusal),
        }
    }

    /// A restart after which only the newest batch is remembered, as in Kafka 4.3.
    fn forget(&mut self) {
        self.producers = Producers::default();
        if let Some((stamp, offset)) = self.newest {
            self.producers.append(&stamp, offset, 0, 0, 5);
        }
    }
}

/// A producer's window, a broker and the network between them.
struct World {
    window: Window<u32>,
    broker: Broker,
    size: usize,
    /// On the connection, oldest first.
    wire: VecDeque<(Ticket, Attempt)>,
    /// From connections that ended; the broker may still come upon them.
    late: VecDeque<Attempt>,
    sent: u32,
    acked: Vec<u32>,
    doubtful: Vec<u32>,
    lost: Vec<u32>,
    /// Some attempt of theirs may have been written.
    ambiguous: std::collections::HashSet<u32>,
    random: u64,
}

impl World {
    fn new(seed: u64, size: usize) -> World {
        let mut window = window();
        window.limit = size;
        let (broker, wire, late) = (Broker::default(), VecDeque::new(), VecDeque::new());
        let (acked, doubtful, lost) = (Vec::new(), Vec::new(), Vec::new());
        World {
            window,
            broker,
            size,
            wire,
            late,
            sent: 0,
            acked,
            doubtful,
            lost,
            ambiguous: Default::default(),
            random: seed,
        }
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.random = splitmix(self.random);
        (self.random >> 33) % sides
    }

    fn records(batch: u32) -> u32 {
        1 + batch % 3
    }

    fn send(&mut self) {
        for (batch, fate) in self.window.settled() {
            if fate == Fate::Written { self.acked.push(batch) } else { self.doubtful.push(batch) }
        }
        let next = match self.window.next_retry() {
            Some(next) => next,
            None if self.window.may_open() && self.sent < 60 => {
                let batch = self.sent;
                self.sent += 1;
                let (ticket, stamp) = self.window.open(World::records(batch));
                (ticket, stamp, batch)
            }
            None => return,
        };
        let (ticket, stamp, batch) = next;
        assert!(self.window.span() <= self.size + 1, "a broker that remembers {} could forget one", self.size);
        let stamp = BrokerStamp {
            producer_id: stamp.producer_id,
            producer_epoch: stamp.producer_epoch,
            base_sequence: stamp.base_sequence,
            record_count: World::records(batch) as i32,
        };
        self.wire.push_back((ticket, Attempt { stamp, batch }));
    }

    /// The broker takes the oldest request, and answers.
    fn answer(&mut self, calm: bool) {
        let Some((ticket, attempt)) = self.wire.pop_front() else { return };
        match if calm { 9 } else { self.roll(10) } {
            0 => self.window.set_back(ticket, Setback::Retry { maybe: false }, attempt.batch),
            1 => match self.broker.take(attempt, self.size) {
                Ok(()) => {
                    self.ambiguous.insert(attempt.batch);
                    self.window.set_back(ticket, Setback::Retry { maybe: true }, attempt.batch);
                }
                Err(refusal) => self.refused(ticket, attempt, refusal),
            },
            2 if self.roll(4) == 0 => {
                let maybe = self.ambiguous.contains(&attempt.batch);
                if maybe {
                    self.doubtful.push(attempt.batch)
                } else {
                    self.lost.push(attempt.batch)
                }
                self.window.given_up(ticket, maybe);
            }
            3 if self.roll(4) == 0 => {
                let _ = self.broker.take(attempt, self.size);
                self.doubtful.push(attempt.batch);
                self.window.given_up(ticket, true);
            }
            _ => match self.broker.take(attempt, self.size) {
                Ok(()) => {
                    self.window.acked(ticket);
                    self.acked.push(attempt.batch);
                }
                Err(refusal) => self.refused(ticket, attempt, refusal),
            },
        }
    }

    fn refused(&mut self, ticket: Ticket, attempt: Attempt, refusal: Refusal) {
        assert_eq!(refusal, Refusal::OutOfOrderSequence);
        self.window.set_back(ticket, Setback::OutOfOrder, attempt.batch);
    }

    /// The connection ends: the broker may have taken some, and may come upon the rest later, or never.
    fn cut(&mut self) {
        let mut arrives = true;
        for (ticket, attempt) in std::mem::take(&mut self.wire) {
            arrives &= self.roll(3) > 0;
            if arrives {
                let _ = self.broker.take(attempt, self.size);
            } else if self.roll(2) == 0 {
                self.late.push_back(attempt);
            }
            self.ambiguous.insert(attempt.batch);
            self.window.set_back(ticket, Setback::Retry { maybe: true }, attempt.batch);
        }
    }

    fn step(&mut self, forgets: bool) {
        match self.roll(40) {
            0..=17 => self.send(),
            18..=35 => self.answer(false),
            36 => self.cut(),
            37 => {
                if let Some(attempt) = self.late.pop_front() {
                    let _ = self.broker.take(attempt, self.size);
                }
            }
            38 if forgets => self.broker.forget(),
            39 if self.roll(8) == 0 => {
                let (doubtful, mut first) = (&mut self.doubtful, true);
                self.window.drop_retries(|batch| {
                    let unwanted = std::mem::take(&mut first);
                    if unwanted {
                        doubtful.push(*batch);
                    }
                    unwanted
                });
            }
            _ => {}
        }
    }

    fn check(&mut self) {
        let log = &self.broker.log;
        let whole: Vec<u32> = log.chunk_by(|a, b| a == b).map(|run| run[0]).collect();
        for run in log.chunk_by(|a, b| a == b) {
            assert_eq!(run.len(), World::records(run[0]) as usize, "batch {} is there once", run[0]);
        }
        assert!(whole.is_sorted() && whole.windows(2).all(|pair| pair[0] < pair[1]), "order: {whole:?}");
        self.acked.sort_unstable();
        for batch in 0..self.sent {
            let stored = whole.binary_search(&batch).is_ok();
            if self.acked.binary_search(&batch).is_ok() {
                assert!(stored, "batch {batch} was acknowledged and is not there");
            } else if self.lost.contains(&batch) {
                assert!(!stored, "batch {batch} was surely not written and is there");
            } else {
                assert!(self.doubtful.contains(&batch), "batch {batch} has no result");
            }
        }
    }
}

#[test]
fn no_loss_no_duplicate_no_reorder_over_a_hostile_network() {
    for size in [5, 64, 1024] {
        for seed in 0..1500 {
            let mut world = World::new(splitmix(seed ^ (size as u64) << 32), size);
            let forgets = seed % 2 == 0;
            for _ in 0..600 {
                world.step(forgets);
            }
            for _ in 0..4000 {
                if world.sent == 60 && world.window.is_idle() {
                    break;
                }
                world.send();
                world.answer(true);
            }
            assert!(world.window.is_idle() && world.sent == 60, "seed {seed} size {size} hangs: {:?}", world.window);
            world.check();
        }
    }
}
