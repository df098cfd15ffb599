//! Tests each rule of the window by example. `model` checks all of them against the broker's own rules.

use super::*;

const IDENTITY: ProducerIdAndEpoch = ProducerIdAndEpoch { producer_id: 9, epoch: 0 };

fn window() -> Window<u32> {
    let mut window = Window::new(true);
    assert_eq!(window.wants_identity(), Some(None));
    assert!(!window.may_open(), "nothing leaves without a producer id");
    window.adopt(IDENTITY);
    window
}

/// Returns a window whose first batch is acknowledged. `n` more batches of one record each are in flight.
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

/// Three partitions have windows of five batches, and two full connections have about eleven batches in flight. Each
/// window then has three or four of them, and more batches wait for a connection.
#[test]
fn three_of_five_in_flight_the_window_takes_more() {
    assert!(in_flight(3).0.takes_more());
    assert!(!in_flight(4).0.takes_more());
}

#[test]
fn retries_go_in_order_with_their_own_sequences_once_all_is_resolved() {
    let (mut window, tickets) = in_flight(3);
    window.set_back(tickets[1], Setback::Retry { maybe: false }, 2);
    window.set_back(tickets[0], Setback::Retry { maybe: false }, 1);
    assert!(window.next_retry(false).is_none(), "one is in flight");
    window.set_back(tickets[2], Setback::OutOfOrder, 3);
    let again: Vec<_> = std::iter::from_fn(|| window.next_retry(false)).collect();
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
    let (first, stamp, batch) = window.next_retry(false).unwrap();
    assert_eq!((stamp.producer_epoch, stamp.base_sequence, batch), (1, 0, 1));
    assert!(window.next_retry(false).is_none(), "one batch until the first acknowledgement of the epoch");
    window.acked(first);
    assert_eq!(window.next_retry(false).unwrap().1.base_sequence, 1);
}

#[test]
fn an_acknowledgement_proves_earlier_batches_that_the_broker_forgot() {
    let (mut window, tickets) = in_flight(3);
    for (ticket, batch) in tickets.iter().zip(1..) {
        window.set_back(*ticket, Setback::Retry { maybe: batch > 1 }, batch);
    }
    let again: Vec<Ticket> = std::iter::from_fn(|| window.next_retry(false)).map(|(ticket, ..)| ticket).collect();
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
    assert!(window.next_retry(false).is_none());
    window.set_back(tickets[2], Setback::OutOfOrder, 3);
    let (ticket, stamp, batch) = window.next_retry(false).unwrap();
    assert_eq!((stamp.producer_epoch, stamp.base_sequence, batch), (1, 0, 2));
    window.acked(ticket);
    assert_eq!(window.next_retry(false).unwrap().1.base_sequence, 1);
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
fn epoch_used_up_or_fenced_another_producer_id_is_requested() {
    for (epoch, setback) in [(i16::MAX, Setback::OutOfOrder), (3, Setback::Fenced)] {
        let mut window = window();
        window.identity = Some(ProducerIdAndEpoch { producer_id: 9, epoch });
        let (ticket, _) = window.open(2);
        window.set_back(ticket, setback, 7);
        assert!(window.next_retry(false).is_none());
        assert_eq!(window.wants_identity(), Some(Some(9)));
        window.adopt(ProducerIdAndEpoch { producer_id: 10, epoch: 0 });
        let (_, stamp, _) = window.next_retry(false).unwrap();
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
    let again: Vec<_> = std::iter::from_fn(|| window.next_retry(false)).map(|(_, s, b)| (s.base_sequence, b)).collect();
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

/// Sends all retries that may be sent now and returns their sequences.
fn resent(window: &mut Window<u32>) -> Vec<i32> {
    std::iter::from_fn(|| window.next_retry(false)).map(|(_, stamp, _)| stamp.base_sequence).collect()
}

#[test]
fn a_larger_grant_opens_and_a_smaller_one_holds_back_until_fewer_are_in_flight() {
    let (mut window, mut tickets) = in_flight(5);
    window.grant(8);
    while window.may_open() {
        tickets.push(window.open(1).0);
    }
    assert_eq!(window.span(), 8);
    window.grant(5);
    for ticket in tickets.drain(..3) {
        window.acked(ticket);
        assert!(!window.may_open(), "{} are in flight", window.span());
    }
    window.acked(tickets[0]);
    assert!(window.may_open());
}

#[test]
fn a_round_keeps_to_a_grant_that_shrank_since_its_batches_left() {
    let (mut window, _) = in_flight(0);
    window.grant(64);
    let tickets: Vec<Ticket> = (0..64).map(|_| window.open(1).0).collect();
    for (ticket, batch) in tickets.iter().zip(0..) {
        window.set_back(*ticket, Setback::Retry { maybe: false }, batch);
    }
    // The new leader retains five batches.
    window.grant(5);
    assert_eq!(resent(&mut window), [1, 2, 3, 4, 5]);
    window.acked(tickets[1]);
    assert_eq!(resent(&mut window), [] as [i32; 0], "the oldest counts");
    window.acked(tickets[0]);
    assert_eq!(resent(&mut window), [6, 7]);
    window.grant(8);
    assert_eq!(resent(&mut window), [8, 9, 10]);
}

#[test]
fn leader_retains_few_batches_retries_leave_one_by_one_until_one_is_recognised() {
    let (mut window, _) = in_flight(0);
    window.grant(64);
    let tickets: Vec<Ticket> = (0..20).map(|_| window.open(1).0).collect();
    for (ticket, batch) in tickets.iter().zip(0..) {
        window.set_back(*ticket, Setback::Retry { maybe: true }, batch);
    }
    window.grant(5);
    // All twenty batches are in the new leader's log, but it retains only the last five.
    for part in tickets[..15].chunks(5) {
        assert_eq!(resent(&mut window).len(), 5);
        for ticket in part {
            window.set_back(*ticket, Setback::OutOfOrder, 0);
        }
        assert_eq!(window.identity, Some(IDENTITY), "the newest has not been sent again");
        assert!(window.in_round());
    }
    assert_eq!(resent(&mut window), [16, 17, 18, 19, 20]);
    window.acked(tickets[15]);
    assert_eq!(window.settled().len(), 15, "what is before it is proven");
    tickets[16..].iter().for_each(|ticket| window.acked(*ticket));
    assert!(window.is_idle() && window.may_open());
    assert_eq!(window.open(1).1, Stamp { producer_id: 9, producer_epoch: 0, base_sequence: 21 });
}

#[test]
fn out_of_order_is_no_evidence_if_something_was_acknowledged_since_the_batch_left() {
    let (mut window, _) = in_flight(0);
    let tickets: Vec<Ticket> = (0..2).map(|_| window.open(1).0).collect();
    // The connection ends, and both batches may arrive late. They are sent again over two connections. The second one
    // overtakes the first one, is parked, and is refused when its wait ends. Then the first one arrives, and its
    // response overtakes that refusal.
    tickets.iter().for_each(|ticket| window.set_back(*ticket, Setback::Retry { maybe: true }, 7));
    assert_eq!(resent(&mut window), [1, 2]);
    window.acked(tickets[0]);
    window.set_back(tickets[1], Setback::OutOfOrder, 7);
    // A late copy of the second batch may now be appended, so the batch must not get another number.
    let (ticket, stamp, _) = window.next_retry(false).unwrap();
    assert_eq!((stamp.producer_epoch, stamp.base_sequence), (0, 2));
    // A second refusal, without an acknowledgement in between, proves that the batch is not in the log.
    window.set_back(ticket, Setback::OutOfOrder, 7);
    let (_, stamp, _) = window.next_retry(false).unwrap();
    assert_eq!((stamp.producer_epoch, stamp.base_sequence), (1, 0));
}

#[test]
fn a_refusal_of_an_earlier_round_is_no_evidence() {
    let (mut window, tickets) = in_flight(3);
    let lost = Setback::Retry { maybe: true };
    tickets.iter().for_each(|ticket| window.set_back(*ticket, lost, 7));
    assert_eq!(resent(&mut window), [1, 2, 3]);
    window.set_back(tickets[0], Setback::Retry { maybe: false }, 7);
    window.set_back(tickets[1], Setback::OutOfOrder, 7);
    window.set_back(tickets[2], Setback::OutOfOrder, 7);
    // Late copies of all three are now appended. Then the broker restarts and retains only the last.
    let (first, ..) = window.next_retry(false).unwrap();
    window.set_back(first, Setback::OutOfOrder, 7);
    assert_eq!(resent(&mut window), [2, 3], "the others are sent again first");
    assert_eq!(window.identity, Some(IDENTITY));
    window.set_back(tickets[1], Setback::OutOfOrder, 7);
    window.acked(tickets[2]);
    assert_eq!(window.settled(), [(7, Fate::Written), (7, Fate::Written)]);
}

#[test]
fn a_batch_whose_answer_is_lost_after_a_later_one_was_acknowledged_is_proven() {
    let (mut window, tickets) = in_flight(2);
    window.acked(tickets[1]);
    window.set_back(tickets[0], Setback::Retry { maybe: true }, 7);
    let (ticket, ..) = window.next_retry(false).unwrap();
    window.set_back(ticket, Setback::OutOfOrder, 7);
    assert_eq!(window.settled(), [(7, Fate::Written)]);
    assert!(window.may_open());
}

#[test]
fn batch_given_up_is_proven_written_no_hole_is_left() {
    let (mut window, tickets) = in_flight(2);
    window.acked(tickets[1]);
    window.given_up(tickets[0], true);
    assert!(window.may_open());
    assert_eq!(window.open(1).1, Stamp { producer_id: 9, producer_epoch: 0, base_sequence: 3 });
}

#[test]
fn producer_fenced_possibly_written_batches_fail_and_the_rest_is_sent_under_another_id() {
    let (mut window, tickets) = in_flight(3);
    window.set_back(tickets[0], Setback::Retry { maybe: true }, 1);
    window.set_back(tickets[2], Setback::Retry { maybe: true }, 3);
    window.set_back(tickets[1], Setback::Fenced, 2);
    // No batch behind the second can have been written, because the second was certainly not written.
    assert_eq!(window.settled(), [(1, Fate::Unresolved)]);
    assert_eq!(window.wants_identity(), Some(Some(9)));
    window.adopt(ProducerIdAndEpoch { producer_id: 10, epoch: 0 });
    let (ticket, stamp, batch) = window.next_retry(false).unwrap();
    assert_eq!((stamp.producer_id, stamp.base_sequence, batch), (10, 0, 2));
    window.acked(ticket);
    assert_eq!(window.next_retry(false).map(|(_, stamp, batch)| (stamp.base_sequence, batch)), Some((1, 3)));
}

#[test]
fn a_ticket_is_good_after_a_batch_before_it_was_split() {
    let (mut window, _) = in_flight(0);
    let tickets: Vec<Ticket> = (0..4).map(|_| window.open(10).0).collect();
    window.split(tickets[0], vec![(5, 1), (5, 2)]);
    window.acked(tickets[3]);
    window.set_back(tickets[1], Setback::Retry { maybe: true }, 3);
    window.given_up(tickets[2], true);
    let again: Vec<_> = std::iter::from_fn(|| window.next_retry(false)).map(|(_, s, b)| (s.base_sequence, b)).collect();
    assert_eq!(again, [(1, 1), (6, 2), (11, 3)]);
}

#[test]
fn window_covers_2_to_the_29_sequences_no_further_batch_opens() {
    let (mut window, _) = in_flight(0);
    window.grant(WINDOW_MAX);
    let mut tickets = Vec::new();
    while window.may_open() {
        tickets.push(window.open(SEQUENCES_MAX / 4 + 1).0);
    }
    assert_eq!(tickets.len(), 4);
    window.acked(tickets[0]);
    assert!(window.may_open());
}

#[test]
fn a_producer_that_rested_sends_one_batch_first() {
    let (mut window, tickets) = in_flight(1);
    window.rested();
    assert!(window.may_open(), "something is in flight");
    window.acked(tickets[0]);
    window.rested();
    let (ticket, _) = window.open(1);
    assert!(!window.may_open());
    window.acked(ticket);
    assert!(window.may_open());
}

/// The number of visited slots per batch must not grow with the window.
#[test]
fn a_batch_costs_the_same_at_a_window_of_ten_thousand() {
    for size in [1024, WINDOW_MAX] {
        let (mut window, _) = in_flight(0);
        window.grant(size);
        let (mut batches, lanes) = (0, 8);
        let mut in_flight: Vec<VecDeque<Ticket>> = vec![VecDeque::new(); lanes];
        for round in 0..20 {
            while window.may_open() {
                in_flight[batches % lanes].push_back(window.open(3).0);
                batches += 1;
            }
            // Responses arrive one connection after another. In every third round of the test, one response is lost,
            // and all batches behind it are sent again.
            let mut back = Vec::new();
            for lane in &mut in_flight {
                for ticket in lane.drain(..).rev() {
                    if round % 3 == 2 { back.push(ticket) } else { window.acked(ticket) }
                }
            }
            let setback = |i: usize| if i == 0 { Setback::Retry { maybe: true } } else { Setback::OutOfOrder };
            back.into_iter().enumerate().for_each(|(i, ticket)| window.set_back(ticket, setback(i), 7));
            let again: Vec<Ticket> =
                std::iter::from_fn(|| window.next_retry(false)).map(|(ticket, ..)| ticket).collect();
            again.into_iter().for_each(|ticket| window.acked(ticket));
        }
        assert!(batches >= 20 * size);
        assert!(window.visits <= 4 * batches, "{} slots for {batches} batches", window.visits);
    }
}

const OLD: Uuid = Uuid([1; 16]);
const NEW: Uuid = Uuid([2; 16]);

/// Returns a window like [`in_flight`]. The topic of its log is recreated later in the test.
fn in_flight_to_old(n: usize) -> (Window<u32>, Vec<Ticket>) {
    let mut window = window();
    assert!(!window.write_to(OLD), "the first that is known");
    let (first, _) = window.open(1);
    window.acked(first);
    let tickets = (0..n).map(|_| window.open(1).0).collect();
    (window, tickets)
}

#[test]
fn batch_possibly_written_to_a_deleted_log_is_sent_again_to_the_new_one() {
    let (mut window, tickets) = in_flight_to_old(1);
    assert!(window.write_to(NEW));
    window.set_back(tickets[0], Setback::Retry { maybe: true }, 1);
    let (_, stamp, batch) = window.next_retry(false).unwrap();
    assert_eq!((stamp.producer_epoch, stamp.base_sequence, batch), (1, 0, 1));
}

#[test]
fn log_replaced_batch_possibly_written_by_name_is_unresolved() {
    let (mut window, tickets) = in_flight_to_old(1);
    window.went_by_name(tickets[0]);
    window.write_to(NEW);
    window.set_back(tickets[0], Setback::Retry { maybe: true }, 1);
    assert_eq!(window.settled(), [(1, Fate::Unresolved)]);
}

/// A broker has stale metadata for long. It still returns the topic's old id after another broker has returned the new
/// one.
#[test]
fn log_counted_as_gone_returns_batch_possibly_in_it_is_unresolved() {
    let (mut window, tickets) = in_flight_to_old(1);
    window.set_back(tickets[0], Setback::Retry { maybe: true }, 1);
    window.write_to(NEW);
    let (ticket, ..) = window.next_retry(false).expect("it goes to the new log");
    window.set_back(ticket, Setback::Retry { maybe: false }, 1);
    window.write_to(OLD);
    assert_eq!(window.settled(), [(1, Fate::Unresolved)]);
}

#[test]
fn a_round_ends_where_the_log_is_another_one() {
    let (mut window, tickets) = in_flight_to_old(2);
    tickets.iter().zip([1, 2]).for_each(|(t, batch)| window.set_back(*t, Setback::Retry { maybe: false }, batch));
    let (first, _, batch) = window.next_retry(false).unwrap();
    assert_eq!(batch, 1);
    window.write_to(NEW);
    assert!(window.next_retry(false).is_none(), "the first one has no answer yet, and would come behind it");
    window.set_back(first, Setback::Retry { maybe: false }, 1);
    let again: Vec<_> = std::iter::from_fn(|| window.next_retry(false)).map(|(_, _, batch)| batch).collect();
    assert_eq!(again[..1], [1]);
}

fn transactional_in_flight(n: usize) -> (Window<u32>, Vec<Ticket>) {
    let mut window = Window::new(true).transactional(true);
    assert!(window.begin_epoch(IDENTITY, true));
    let tickets = (0..n).map(|_| window.open(1).0).collect();
    (window, tickets)
}

#[test]
fn epoch_that_begins_at_0_alone_lets_several_first_batches_leave() {
    let (window, _) = transactional_in_flight(3);
    assert_eq!((window.in_flight(), window.is_open()), (3, true));
}

#[test]
fn batches_all_out_of_order_in_a_transaction_are_refused_and_no_epoch_begins() {
    let (mut window, tickets) = transactional_in_flight(2);
    for (ticket, batch) in tickets.into_iter().zip(1..) {
        window.set_back(ticket, Setback::OutOfOrder, batch);
    }
    assert!(window.next_retry(false).is_none());
    assert_eq!(window.settled(), [(1, Fate::Refused), (2, Fate::Refused)]);
    assert!(!window.may_open() && !window.is_clean(), "nothing leaves before the coordinator gives an epoch");
    let next = ProducerIdAndEpoch { epoch: 1, ..IDENTITY };
    assert!(window.begin_epoch(next, false) && window.is_clean());
    assert_eq!(window.open(1).1.base_sequence, 0);
    assert!(!window.may_open(), "one batch until the first acknowledgement");
}

#[test]
fn epoch_of_the_next_transaction_waits_for_batches_in_flight() {
    let (mut window, tickets) = transactional_in_flight(1);
    let next = ProducerIdAndEpoch { epoch: 1, ..IDENTITY };
    assert!(!window.begin_epoch(next, true));
    window.given_up(tickets[0], true);
    assert!(!window.is_clean(), "a gap");
    assert!(window.begin_epoch(next, true));
    assert_eq!(window.stamp(0).producer_epoch, 1);
}
