//! Measures the latency of acks=all in round trips between a leader and its only follower, under a steady load. The
//! latency of a record is the time from its append until the leader knows that the follower has it.

use std::collections::VecDeque;

use fullbore_rules::replica::pipe::FetchPipe;
use fullbore_rules::replica::spacing::Spacing;

const ROUND_TRIP_US: i64 = 20_000;
/// The time between two records, in microseconds.
const RECORD_US: i64 = 50;
/// How many records are sent. The first quarter is not counted, because the leader must first measure the round trip.
const RECORDS: i64 = 40_000;

#[derive(Clone, Copy, PartialEq)]
enum Answers {
    Spaced,
    AtOnce,
}

/// The fetches or the responses in flight. Each has its arrival time, and the log end up to which it acknowledges or
/// has records.
type Way = VecDeque<(i64, i64)>;

/// Returns, for each record, the time at which the leader knew that it was replicated.
fn replicated_us(depth: usize, answers: Answers) -> Vec<i64> {
    let mut pipe = FetchPipe::new(depth);
    let mut spacing = Spacing::new(depth, 0);
    let (mut fetches, mut back, mut waiting) = (Way::new(), Way::new(), 0);
    let (mut sent, mut follower_end, mut known) = (0, 0, Vec::new());
    let mut now = 0;
    while (known.len() as i64) < RECORDS {
        let log_end = now / RECORD_US + 1;
        while let Some((_, end)) = back.pop_front_if(|(at, _)| *at <= now) {
            follower_end = end;
            pipe.answered();
        }
        while pipe.may_send(true, false) {
            pipe.sent();
            fetches.push_back((now + ROUND_TRIP_US / 2, follower_end));
        }
        while let Some((_, acknowledged)) = fetches.pop_front_if(|(at, _)| *at <= now) {
            waiting += 1;
            spacing.acknowledged(acknowledged, now);
            known.extend((known.len() as i64..acknowledged).map(|_| now));
        }
        let is_due = answers == Answers::AtOnce || spacing.due_us(1, now) <= now;
        if waiting > 0 && sent < log_end && is_due {
            (waiting, sent) = (waiting - 1, log_end);
            spacing.answered(sent, now);
            back.push_back((now + ROUND_TRIP_US / 2, sent));
        }
        now += 10;
    }
    known
}

/// Returns the median and the 99th percentile, in hundredths of a round trip.
fn p50_and_p99(depth: usize, answers: Answers) -> (i64, i64) {
    let known = replicated_us(depth, answers);
    let took = known.iter().zip(0..).map(|(at, record)| at - record * RECORD_US);
    let mut took: Vec<i64> = took.skip(RECORDS as usize / 4).take(RECORDS as usize / 2).collect();
    took.sort_unstable();
    let hundredths = |us: i64| us * 100 / ROUND_TRIP_US;
    (hundredths(took[took.len() / 2]), hundredths(took[took.len() * 99 / 100]))
}

#[test]
fn spaced_responses_replicate_a_record_in_one_round_trip_and_a_sixteenth() {
    let one_fetch = p50_and_p99(1, Answers::AtOnce);
    let spaced = p50_and_p99(8, Answers::Spaced);
    let at_once = p50_and_p99(8, Answers::AtOnce);
    println!(
        "p50 and p99 in hundredths of a round trip: one fetch {one_fetch:?}, 8 spaced {spaced:?}, 8 at once {at_once:?}"
    );
    assert!(one_fetch.0 >= 145 && one_fetch.1 >= 190, "{one_fetch:?}");
    assert!(spaced.0 <= 108 && spaced.1 <= 115, "{spaced:?}");
    assert!(at_once.0 > spaced.0, "{at_once:?}");
}
