//! Each rule of the window by example; `model` has all of them against the broker's own rules.

use super::*;

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
